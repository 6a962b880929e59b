//! What each operation moves, and what its completions say.

use super::harness::*;
use ibverbs_sys::ibv_wc_flags;

/// Operations that carry a payload to the target.
const PUSHES: [opcode::Type; 4] = [
    opcode::IBV_WR_SEND,
    opcode::IBV_WR_SEND_WITH_IMM,
    opcode::IBV_WR_RDMA_WRITE,
    opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
];

fn consumes_receive(op: opcode::Type) -> bool {
    op != opcode::IBV_WR_RDMA_WRITE
}

fn is_send(op: opcode::Type) -> bool {
    matches!(op, opcode::IBV_WR_SEND | opcode::IBV_WR_SEND_WITH_IMM)
}

fn has_imm(op: opcode::Type) -> bool {
    matches!(op, opcode::IBV_WR_SEND_WITH_IMM | opcode::IBV_WR_RDMA_WRITE_WITH_IMM)
}

/// Cuts `len` bytes at `offset` into `pieces` entries of different lengths.
fn cut(end: &End, offset: usize, len: usize, pieces: usize) -> Vec<ibverbs_sys::ibv_sge> {
    let mut entries = Vec::new();
    let mut at = 0;
    for piece in 0..pieces {
        let part = if piece + 1 == pieces { len - at } else { (len / pieces).saturating_sub(piece) };
        entries.push(end.sge(offset + at, part));
        at += part;
    }
    entries
}

#[test]
fn every_push_in_every_shape_arrives_whole() {
    const TARGET: usize = 32_768;
    for device in ["emu0", "emu1"] {
        let (a, b) = pair(Setup { device, ..Setup::default() });
        let mut seed = 0;
        for op in PUSHES {
            for inline in [false, true] {
                for len in [0, 1, 2, 7, 64, 220, 1024, 1025, 9000] {
                    if inline && len > 220 {
                        continue;
                    }
                    for (from, into) in [(1, 1), (1, 3), (3, 1), (4, 4)] {
                        seed += 1;
                        let payload = pattern(seed, len);
                        a.write(100, &payload);
                        b.write(TARGET - 1, &vec![0xee; len + 2]);
                        if consumes_receive(op) {
                            b.receive(7, &cut(&b, TARGET, len, into)).unwrap();
                        }
                        let mut wr = Wr::new(seed as u64, op, &cut(&a, 100, len, from)).to(&b, TARGET);
                        wr.imm = 0x0102_0300 + seed as u32;
                        wr.flags |= if inline { INLINE } else { 0 };
                        if inline {
                            wr.local.iter_mut().for_each(|entry| entry.lkey = 0xdead);
                        }
                        a.post(&[wr.clone()]).unwrap();

                        let what = format!("{device} opcode {op} inline {inline} {len} bytes {from}->{into}");
                        assert_eq!(b.read(TARGET, len), payload, "{what}");
                        assert_eq!(
                            (b.read(TARGET - 1, 1)[0], b.read(TARGET + len, 1)[0]),
                            (0xee, 0xee),
                            "{what}"
                        );
                        assert_eq!(gist(&a.sent()), [(seed as u64, status::IBV_WC_SUCCESS)], "{what}");
                        let received = b.received();
                        if consumes_receive(op) {
                            assert_eq!(gist(&received), [(7, status::IBV_WC_SUCCESS)], "{what}");
                            let got = received[0];
                            let kind = if is_send(op) {
                                wc_opcode::IBV_WC_RECV
                            } else {
                                wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM
                            };
                            assert_eq!((got.opcode, got.byte_len), (kind, len as u32), "{what}");
                            assert_eq!((got.qp_num, got.src_qp), (b.number(), a.number()), "{what}");
                            let flag = ibv_wc_flags::IBV_WC_WITH_IMM.0;
                            assert_eq!(got.wc_flags, if has_imm(op) { flag } else { 0 }, "{what}");
                            assert_eq!(got.imm_data, if has_imm(op) { wr.imm.to_be() } else { 0 }, "{what}");
                        } else {
                            assert!(received.is_empty(), "{what}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_read_brings_the_targets_bytes() {
    let (a, b) = pair(Setup::default());
    for (seed, len) in [0, 1, 64, 4096, 9001].into_iter().enumerate() {
        let payload = pattern(seed, len);
        b.write(500, &payload);
        let wr = Wr::new(1, opcode::IBV_WR_RDMA_READ, &cut(&a, 40, len, 3)).to(&b, 500);
        a.post(&[wr]).unwrap();
        let sent = a.sent();
        assert_eq!(gist(&sent), [(1, status::IBV_WC_SUCCESS)]);
        assert_eq!((sent[0].opcode, sent[0].byte_len), (wc_opcode::IBV_WC_RDMA_READ, len as u32));
        assert_eq!(a.read(40, len), payload);
        assert!(b.received().is_empty());
    }
}

#[test]
fn atomics_change_the_target_and_bring_what_was_there() {
    let (a, b) = pair(Setup::default());
    let value = |bytes: Vec<u8>| u64::from_ne_bytes(bytes.try_into().unwrap());
    b.write(64, &40_u64.to_ne_bytes());
    let atomic = |op, compare_add, swap| {
        let mut wr = Wr::new(3, op, &[a.sge(8, 8)]).to(&b, 64);
        (wr.compare_add, wr.swap) = (compare_add, swap);
        a.post(&[wr]).unwrap();
        assert_eq!(gist(&a.sent()), [(3, status::IBV_WC_SUCCESS)]);
        (value(a.read(8, 8)), value(b.read(64, 8)))
    };
    assert_eq!(atomic(opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0), (40, 42));
    assert_eq!(atomic(opcode::IBV_WR_ATOMIC_CMP_AND_SWP, 41, 7), (42, 42));
    assert_eq!(atomic(opcode::IBV_WR_ATOMIC_CMP_AND_SWP, 42, 7), (42, 7));
    assert_eq!(atomic(opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, u64::MAX, 0), (7, 6));
}

#[test]
fn an_atomic_needs_eight_aligned_bytes() {
    for (offset, len, expected) in
        [(65, 8, status::IBV_WC_REM_INV_REQ_ERR), (64, 4, status::IBV_WC_LOC_LEN_ERR)]
    {
        let (a, b) = pair(Setup::default());
        a.post(&[Wr::new(1, opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &[a.sge(0, len)]).to(&b, offset)]).unwrap();
        assert_eq!(gist(&a.sent()), [(1, expected)]);
    }
}

#[test]
fn a_list_is_executed_in_order_and_only_signalled_requests_complete() {
    let (a, b) = pair(Setup::default());
    let payload = pattern(1, 9);
    a.write(0, &payload);
    // Each write overwrites the one before, so the order shows.
    let list: Vec<Wr> = (0..9)
        .map(|n| {
            let flags = if n % 3 == 2 { SIGNALED } else { 0 };
            Wr::new(n as u64, opcode::IBV_WR_RDMA_WRITE, &[a.sge(n, 1)]).to(&b, 0).flags(flags)
        })
        .collect();
    a.post(&list).unwrap();
    assert_eq!(b.read(0, 1), payload[8..]);
    let ok = status::IBV_WC_SUCCESS;
    assert_eq!(gist(&a.sent()), [(2, ok), (5, ok), (8, ok)]);
}

#[test]
fn a_queue_pair_that_signals_all_ignores_the_flag() {
    let (a, b) = pair(Setup { signal_all: true, ..Setup::default() });
    a.post(&[Wr::new(4, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 1)]).to(&b, 0).flags(0)]).unwrap();
    assert_eq!(gist(&a.sent()), [(4, status::IBV_WC_SUCCESS)]);
}

#[test]
fn a_queue_pair_may_be_connected_to_itself() {
    let a = End::new(Setup::default());
    a.connect(&a.attributes(a.number()));
    let payload = pattern(5, 300);
    a.write(0, &payload);
    a.receive(1, &[a.sge(1000, 300)]).unwrap();
    a.post(&[Wr::new(2, opcode::IBV_WR_SEND, &[a.sge(0, 300)])]).unwrap();
    assert_eq!(a.read(1000, 300), payload);
    assert_eq!(gist(&a.sent()), [(2, status::IBV_WC_SUCCESS)]);
    assert_eq!(gist(&a.received()), [(1, status::IBV_WC_SUCCESS)]);
    // Its own error reaches both of its halves.
    a.receive(3, &[]).unwrap();
    a.post(&[Wr::new(4, opcode::IBV_WR_RDMA_READ, &[a.sge(0, 8)])]).unwrap();
    assert_eq!(gist(&a.sent()), [(4, status::IBV_WC_REM_ACCESS_ERR)]);
    assert_eq!(gist(&a.received()), [(3, status::IBV_WC_WR_FLUSH_ERR)]);
}

#[test]
fn overlapping_memory_is_copied_as_if_through_a_network() {
    let a = End::new(Setup::default());
    a.connect(&a.attributes(a.number()));
    let payload = pattern(6, 256);
    a.write(0, &payload);
    a.post(&[Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 256)]).to(&a, 3)]).unwrap();
    assert_eq!(a.read(3, 256), payload);
}

#[test]
fn inline_memory_may_change_once_the_post_returned() {
    let (a, b) = pair(Setup::default());
    a.write(0, b"first");
    // No receive yet: the send waits, and its bytes with it.
    a.post(&[Wr::new(1, opcode::IBV_WR_SEND, &[a.sge(0, 2), a.sge(2, 3)]).flags(SIGNALED | INLINE)]).unwrap();
    a.write(0, b"later");
    b.receive(2, &[b.sge(0, 5)]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_SUCCESS)]);
    assert_eq!(b.read(0, 5), b"first");
}
