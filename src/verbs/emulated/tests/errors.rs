//! Keys, bounds, rights, lengths and addresses: each mistake has its own status, at the right end.

use super::harness::*;
use ibverbs_sys::{IBV_MTU_256, ibv_gid, ibv_qp_state as states, ibv_sge};

/// Posts `wr` from A with one receive at B and one more WR behind it; checks A's status, the flush behind, B's state
/// and B's receive.
fn fails(
    a: &End,
    b: &End,
    wr: Wr,
    expected: status::Type,
    at_b: &[(u64, status::Type)],
    b_state: states::Type,
) {
    a.receive(50, &[]).unwrap();
    a.post(&[wr, Wr::new(99, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 1)]).to(b, 0).flags(0)]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, expected), (99, status::IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(gist(&a.received()), [(50, status::IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(a.state(), states::IBV_QPS_ERR);
    assert_eq!(b.state(), b_state);
    assert_eq!(gist(&b.received()), at_b);
}

const FLUSHED: &[(u64, status::Type)] =
    &[(60, status::IBV_WC_WR_FLUSH_ERR), (61, status::IBV_WC_WR_FLUSH_ERR)];

fn prepared(setup: Setup) -> (End, End) {
    let (a, b) = pair(setup);
    b.receive(60, &[b.sge(0, 64)]).unwrap();
    b.receive(61, &[b.sge(64, 64)]).unwrap();
    (a, b)
}

#[test]
fn a_bad_local_key_or_bound_is_the_posters_error() {
    let cases: [fn(&End, &mut ibv_sge); 5] = [
        |_, sge| sge.lkey ^= 1,                                          // another generation
        |_, sge| sge.lkey = 0,                                           // nobody's
        |_, sge| sge.lkey = 0xffff_ff00,                                 // index never used
        |a, sge| *sge = ibv_sge { length: 65, ..a.sge(MEMORY - 64, 0) }, // one byte too far
        |_, sge| sge.addr = u64::MAX - 3,                                // wraps around
    ];
    for op in [opcode::IBV_WR_SEND, opcode::IBV_WR_RDMA_WRITE, opcode::IBV_WR_RDMA_READ] {
        for (number, spoil) in cases.into_iter().enumerate() {
            let (a, b) = prepared(Setup::default());
            let mut sge = a.sge(0, 64);
            spoil(&a, &mut sge);
            println!("opcode {op} case {number}");
            let wr = Wr::new(1, op, &[sge]).to(&b, 0);
            fails(&a, &b, wr, status::IBV_WC_LOC_PROT_ERR, &[], states::IBV_QPS_RTS);
        }
    }
}

#[test]
fn a_bad_remote_key_or_bound_is_seen_by_the_requester_and_ends_both() {
    let cases: [fn(&mut Wr); 5] = [
        |wr| wr.rkey ^= 1,
        |wr| wr.rkey = 0,
        |wr| wr.remote += MEMORY as u64 - 63,
        |wr| wr.remote -= 1,
        |wr| wr.remote = u64::MAX - 3,
    ];
    let ops = [opcode::IBV_WR_RDMA_WRITE, opcode::IBV_WR_RDMA_WRITE_WITH_IMM, opcode::IBV_WR_RDMA_READ];
    for op in ops {
        for (number, spoil) in cases.into_iter().enumerate() {
            let (a, b) = prepared(Setup::default());
            let mut wr = Wr::new(1, op, &[a.sge(0, 64)]).to(&b, 0);
            spoil(&mut wr);
            println!("opcode {op} case {number}");
            fails(&a, &b, wr, status::IBV_WC_REM_ACCESS_ERR, FLUSHED, states::IBV_QPS_ERR);
        }
    }
}

#[test]
fn the_last_byte_of_a_region_can_be_reached() {
    let (a, b) = pair(Setup::default());
    a.write(MEMORY - 64, &pattern(1, 64));
    let wr = Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(MEMORY - 64, 64)]).to(&b, MEMORY - 64);
    a.post(&[wr]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_SUCCESS)]);
    assert_eq!(b.read(MEMORY - 64, 64), pattern(1, 64));
}

#[test]
fn memory_gives_only_the_rights_it_was_registered_with() {
    let write = (opcode::IBV_WR_RDMA_WRITE, 64, REMOTE_WRITE);
    let read = (opcode::IBV_WR_RDMA_READ, 64, REMOTE_READ);
    let add = (opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, 8, REMOTE_ATOMIC);
    for (op, len, right) in [write, read, add] {
        // The region lacks it, then the queue pair.
        let without = ALL_ACCESS & !right;
        let (a, b) = prepared(Setup { memory_access: without, ..Setup::default() });
        let wr = Wr::new(1, op, &[a.sge(0, len)]).to(&b, 0);
        fails(&a, &b, wr, status::IBV_WC_REM_ACCESS_ERR, FLUSHED, states::IBV_QPS_ERR);

        let (a, b) = prepared(Setup { qp_access: without, ..Setup::default() });
        let wr = Wr::new(1, op, &[a.sge(0, len)]).to(&b, 0);
        fails(&a, &b, wr, status::IBV_WC_REM_INV_REQ_ERR, FLUSHED, states::IBV_QPS_ERR);
    }
}

#[test]
fn memory_that_is_not_writable_receives_nothing() {
    let read_only = Setup { memory_access: REMOTE_READ, ..Setup::default() };
    let (a, b) = prepared(read_only);
    let wr = Wr::new(1, opcode::IBV_WR_RDMA_READ, &[a.sge(0, 64)]).to(&b, 0);
    fails(&a, &b, wr, status::IBV_WC_LOC_PROT_ERR, &[], states::IBV_QPS_RTS);

    let (a, b) = prepared(read_only);
    let wr = Wr::new(1, opcode::IBV_WR_SEND, &[a.sge(0, 64)]);
    let at_b = [(60, status::IBV_WC_LOC_PROT_ERR), (61, status::IBV_WC_WR_FLUSH_ERR)];
    fails(&a, &b, wr, status::IBV_WC_REM_OP_ERR, &at_b, states::IBV_QPS_ERR);
}

#[test]
fn a_key_of_another_protection_domain_is_as_good_as_none() {
    let (a, b) = prepared(Setup::default());
    // A's own key at B: the same process, another domain.
    let mut wr = Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 64)]).to(&b, 0);
    (wr.remote, wr.rkey) = (a.addr(0), a.key());
    fails(&a, &b, wr, status::IBV_WC_REM_ACCESS_ERR, FLUSHED, states::IBV_QPS_ERR);
}

#[test]
fn a_key_dies_with_its_region() {
    let (a, mut b) = prepared(Setup::default());
    let wr = Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 64)]).to(&b, 0);
    b.deregister();
    // SAFETY: the memory outlives the new region, which `b` deregisters.
    b.mr = unsafe { b.provider.reg_mr(b.pd, b.memory, MEMORY, ALL_ACCESS as i32) }.unwrap();
    assert_ne!(b.key(), wr.rkey);
    let posted = a.post(&[wr]);
    assert_eq!(posted, Ok(()));
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_REM_ACCESS_ERR)]);
}

#[test]
fn a_message_longer_than_its_receive_ends_both() {
    let (a, b) = prepared(Setup::default());
    let wr = Wr::new(1, opcode::IBV_WR_SEND, &[a.sge(0, 65)]);
    let at_b = [(60, status::IBV_WC_LOC_LEN_ERR), (61, status::IBV_WC_WR_FLUSH_ERR)];
    fails(&a, &b, wr, status::IBV_WC_REM_INV_REQ_ERR, &at_b, states::IBV_QPS_ERR);
}

#[test]
fn a_message_longer_than_the_port_allows_does_not_leave() {
    let faults = super::super::faults::Faults { max_message: 4096, ..Default::default() };
    let (a, b) = prepared(Setup { faults, ..Setup::default() });
    a.post(&[Wr::new(0, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 4096)]).to(&b, 0)]).unwrap();
    assert_eq!(gist(&a.sent()), [(0, status::IBV_WC_SUCCESS)]);
    let wr = Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 4097)]).to(&b, 0);
    fails(&a, &b, wr, status::IBV_WC_LOC_LEN_ERR, &[], states::IBV_QPS_RTS);
}

#[test]
fn a_zero_length_request_needs_no_key() {
    let (a, b) = pair(Setup::default());
    let mut wr = Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[]);
    (wr.remote, wr.rkey) = (1, 1);
    a.post(&[wr.clone()]).unwrap();
    wr.opcode = opcode::IBV_WR_RDMA_READ;
    a.post(&[wr]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_SUCCESS); 2]);
    assert_eq!(b.state(), states::IBV_QPS_RTS);
}

/// Connects A to B with whatever `spoil` does to A's attributes, and expects silence.
fn nobody_answers(device: &'static str, spoil: impl Fn(&End, &End, &mut ibverbs_sys::ibv_qp_attr)) {
    let setup = Setup { device, ..Setup::default() };
    let (a, b) = (End::new(setup), End::new(setup));
    b.connect(&b.attributes(a.number()));
    b.receive(60, &[b.sge(0, 64)]).unwrap();
    let mut attr = a.attributes(b.number());
    spoil(&a, &b, &mut attr);
    a.connect(&attr);
    fails(
        &a,
        &b,
        Wr::new(1, opcode::IBV_WR_SEND, &[a.sge(0, 8)]),
        status::IBV_WC_RETRY_EXC_ERR,
        &[],
        states::IBV_QPS_RTS,
    );
}

#[test]
fn a_wrong_address_is_never_answered() {
    for device in ["emu0", "emu1"] {
        nobody_answers(device, |_, _, attr| attr.sq_psn += 1);
        nobody_answers(device, |_, _, attr| attr.dest_qp_num ^= 1 << 20);
        // A queue pair that is there, but talks to somebody else.
        let (stranger, _friend) = pair(Setup { device, ..Setup::default() });
        nobody_answers(device, |_, _, attr| attr.dest_qp_num = stranger.number());
    }
    nobody_answers("emu0", |_, _, attr| attr.ah_attr.grh.dgid = ibv_gid { raw: [9; 16] });
    // Source and destination of different families.
    nobody_answers("emu0", |_, _, attr| attr.ah_attr.grh.sgid_index = 0);
    nobody_answers("emu1", |_, _, attr| attr.ah_attr.dlid += 1);
}

#[test]
fn a_number_of_before_is_acknowledged_without_effect() {
    let (a, b) = (End::new(Setup::default()), End::new(Setup::default()));
    b.connect(&b.attributes(a.number()));
    b.receive(60, &[b.sge(0, 64)]).unwrap();
    let mut attr = a.attributes(b.number());
    attr.sq_psn = attr.sq_psn.wrapping_sub(2) & 0x00ff_ffff;
    a.connect(&attr);
    a.write(0, &pattern(1, 8));
    let write = |id: u64| Wr::new(id, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 8)]).to(&b, 128 * id as usize);
    a.post(&[Wr::new(1, opcode::IBV_WR_SEND, &[a.sge(0, 8)]), write(2), write(3)]).unwrap();
    assert_eq!(gist(&a.sent()), [1, 2, 3].map(|id| (id, status::IBV_WC_SUCCESS)));
    assert!(b.received().is_empty());
    assert_eq!((b.read(256, 8), b.read(384, 8)), (vec![0; 8], pattern(1, 8)));

    // A message that would be half of each is nothing that anybody sends.
    let (a, b) = (End::new(Setup::default()), End::new(Setup::default()));
    b.connect(&b.attributes(a.number()));
    let mut attr = a.attributes(b.number());
    attr.sq_psn = attr.sq_psn.wrapping_sub(1) & 0x00ff_ffff;
    a.connect(&attr);
    a.post(&[Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 4097)]).to(&b, 0)]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_RETRY_EXC_ERR)]);
}

#[test]
fn both_gids_of_the_ethernet_port_work() {
    for index in [0, 1] {
        let (a, b) = (End::new(Setup::default()), End::new(Setup::default()));
        for (end, peer) in [(&a, &b), (&b, &a)] {
            let mut attr = end.attributes(peer.number());
            // SAFETY: the context is live.
            let gids = unsafe { end.provider.gid_table(end.context) }.unwrap();
            attr.ah_attr.grh.sgid_index = index;
            attr.ah_attr.grh.dgid = gids[usize::from(index)].gid;
            end.connect(&attr);
        }
        a.post(&[Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 8)]).to(&b, 0)]).unwrap();
        assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_SUCCESS)]);
    }
}

#[test]
fn a_peer_that_is_not_ready_gone_or_in_error_does_not_answer() {
    let write = |a: &End, rkey, remote| {
        let mut wr = Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 8)]);
        (wr.rkey, wr.remote) = (rkey, remote);
        a.post(&[wr]).unwrap();
        gist(&a.sent())
    };
    let silence = [(1, status::IBV_WC_RETRY_EXC_ERR)];

    let (a, b) = (End::new(Setup::default()), End::new(Setup::default()));
    a.connect(&a.attributes(b.number()));
    b.modify(states::IBV_QPS_INIT, &b.attributes(a.number()), TO_INIT).unwrap();
    assert_eq!(write(&a, b.key(), b.addr(0)), silence);

    // RTR is enough to be reached.
    let (a, b) = (End::new(Setup::default()), End::new(Setup::default()));
    a.connect(&a.attributes(b.number()));
    b.modify(states::IBV_QPS_INIT, &b.attributes(a.number()), TO_INIT).unwrap();
    b.modify(states::IBV_QPS_RTR, &b.attributes(a.number()), TO_RTR).unwrap();
    assert_eq!(write(&a, b.key(), b.addr(0)), [(1, status::IBV_WC_SUCCESS)]);

    let (a, mut b) = pair(Setup::default());
    assert_eq!(write(&a, b.key(), b.addr(0)), [(1, status::IBV_WC_SUCCESS)]);
    b.destroy_qp();
    assert_eq!(write(&a, b.key(), b.addr(0)), silence);

    let (a, b) = pair(Setup::default());
    b.to_error();
    assert_eq!(write(&a, b.key(), b.addr(0)), silence);
}

#[test]
fn ends_that_cut_messages_differently_do_not_understand_each_other() {
    let (a, b) = (End::new(Setup::default()), End::new(Setup { mtu: IBV_MTU_256, ..Setup::default() }));
    a.connect(&a.attributes(b.number()));
    b.connect(&b.attributes(a.number()));
    a.post(&[Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 256)]).to(&b, 0)]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_SUCCESS)]);
    a.post(&[Wr::new(2, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 257)]).to(&b, 0)]).unwrap();
    assert_eq!(gist(&a.sent()), [(2, status::IBV_WC_REM_INV_REQ_ERR)]);
}

#[test]
fn what_a_library_would_refuse_is_refused_at_the_post() {
    let (a, b) = pair(Setup { rd_atomic: 0, sge: 2, inline: 64, ..Setup::default() });
    let write = |entries: &[ibv_sge]| Wr::new(1, opcode::IBV_WR_RDMA_WRITE, entries).to(&b, 0);
    let one = a.sge(0, 1);
    assert_eq!(a.post(&[write(&[one]), write(&[one, one, one])]), Err((EINVAL, 1)));
    assert_eq!(a.post(&[Wr::new(1, opcode::IBV_WR_RDMA_READ, &[one]).to(&b, 0)]), Err((EINVAL, 0)));
    assert_eq!(a.post(&[write(&[a.sge(0, 65)]).flags(INLINE)]), Err((EINVAL, 0)));
    assert_eq!(a.post(&[write(&[a.sge(0, 64)]).flags(INLINE)]), Ok(()));
    assert!(a.post(&[Wr::new(1, opcode::IBV_WR_LOCAL_INV, &[])]).is_err());
    assert_eq!(b.receive(1, &[b.sge(0, 1); 3]), Err(EINVAL));
    // None of it harmed the queue pair.
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_SUCCESS)]);
    assert_eq!(a.state(), states::IBV_QPS_RTS);
}
