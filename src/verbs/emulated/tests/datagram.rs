//! Datagrams: who takes them, what they bring, and what becomes of those that nobody takes.

use super::super::faults::Faults;
use super::harness::*;
use ibverbs_sys::{ibv_ah, ibv_qp_state as states, ibv_qp_type, ibv_wc_flags};

const OK: status::Type = status::IBV_WC_SUCCESS;
const GRH: usize = 40;

fn ud() -> Setup {
    Setup { kind: ibv_qp_type::IBV_QPT_UD, ..Setup::default() }
}

/// An end in RTS.
fn end(setup: Setup) -> End {
    let end = End::new(setup);
    end.connect(&end.attributes(0));
    end
}

/// A handle of the way to the devices own port, destroyed at the end.
struct Way<'a>(&'a End, *mut ibv_ah);

impl<'a> Way<'a> {
    fn new(end: &'a End) -> Self {
        let mut address = end.attributes(0).ah_attr;
        // SAFETY: the domain is live.
        Self(end, unsafe { end.provider.create_ah(end.pd, &mut address) }.unwrap())
    }

    fn send(&self, id: u64, len: usize, to: &End) -> Wr {
        Wr::new(id, opcode::IBV_WR_SEND, &[self.0.sge(0, len)]).datagram(self.1, to.number(), QKEY)
    }
}

impl Drop for Way<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live and not used again.
        unsafe { self.0.provider.destroy_ah(self.1) }.unwrap();
    }
}

fn dropped(end: &End) -> u64 {
    // SAFETY: the context is live.
    unsafe { end.provider.dropped(end.context) }.unwrap()
}

#[test]
fn a_datagram_brings_its_header_its_payload_and_its_sender() {
    for (device, has_header) in [("emu0", true), ("emu1", false)] {
        let (a, b) = (end(Setup { device, ..ud() }), end(Setup { device, ..ud() }));
        let way = Way::new(&a);
        for (seed, len) in [0, 1, 63, 64, 1024, 4096].into_iter().enumerate() {
            let payload = pattern(seed, len);
            a.write(0, &payload);
            b.write(100, &vec![0xee; GRH + len + 1]);
            // Entries that do not end where the header does.
            b.receive(5, &[b.sge(100, 7), b.sge(107, 50), b.sge(157, GRH + len.max(17) - 57)]).unwrap();
            let mut wr = way.send(3, len, &b);
            (wr.opcode, wr.imm) = (opcode::IBV_WR_SEND_WITH_IMM, 77);
            a.post(&[wr]).unwrap();
            assert_eq!(gist(&a.sent()), [(3, OK)]);
            let received = b.received();
            assert_eq!(gist(&received), [(5, OK)], "{device}, {len} bytes");
            let got = received[0];
            let flags =
                ibv_wc_flags::IBV_WC_WITH_IMM.0 | if has_header { ibv_wc_flags::IBV_WC_GRH.0 } else { 0 };
            assert_eq!((got.byte_len as usize, got.wc_flags), (GRH + len, flags));
            assert_eq!((got.qp_num, got.src_qp, got.imm_data), (b.number(), a.number(), 77_u32.to_be()));
            assert_eq!(b.read(100 + GRH, len), payload, "{device}, {len} bytes");
            let header = b.read(100, GRH);
            if has_header {
                assert_eq!((&header[..20], header[20]), (&[0; 20][..], 0x45));
                assert_eq!((&header[32..36], &header[36..]), (&[127, 0, 0, 1][..], &[127, 0, 0, 1][..]));
            } else {
                assert_eq!(header, [0xee; GRH]);
            }
        }
    }
}

#[test]
fn a_global_route_brings_a_header_on_infiniband_too() {
    let (a, b) = (end(Setup { device: "emu1", ..ud() }), end(Setup { device: "emu1", ..ud() }));
    let mut address = a.attributes(0).ah_attr;
    // SAFETY: the context is live.
    let gid = unsafe { a.provider.gid_table(a.context) }.unwrap()[0].gid;
    address.is_global = 1;
    address.grh.dgid = gid;
    address.sl = 3;
    // SAFETY: the domain is live.
    let way = Way(&a, unsafe { a.provider.create_ah(a.pd, &mut address) }.unwrap());
    b.receive(1, &[b.sge(0, 48)]).unwrap();
    a.post(&[way.send(2, 8, &b)]).unwrap();
    let got = b.received()[0];
    assert_eq!((got.wc_flags, got.sl, got.slid), (ibv_wc_flags::IBV_WC_GRH.0, 3, 17));
    // SAFETY: any bytes are a GID.
    let gid = unsafe { gid.raw };
    assert_eq!((b.read(8, 16), b.read(24, 16), b.read(6, 1)), (gid.to_vec(), gid.to_vec(), vec![0x1b]));
}

#[test]
fn a_datagram_that_nobody_takes_is_gone() {
    let (a, b) = (end(ud()), end(ud()));
    let way = Way::new(&a);
    let send = |id| way.send(id, 8, &b);
    a.post(&[send(1)]).unwrap();
    assert_eq!(dropped(&b), 1, "no receive");
    b.receive(7, &[b.sge(0, GRH + 7)]).unwrap();
    a.post(&[send(2)]).unwrap();
    assert_eq!(dropped(&b), 2, "no room");
    a.post(&[Wr { datagram: Some((way.1, b.number(), QKEY + 1)), ..way.send(3, 7, &b) }]).unwrap();
    assert_eq!(dropped(&b), 3, "another key");
    a.post(&[Wr { datagram: Some((way.1, 0x00ff_ffff, QKEY)), ..way.send(4, 7, &b) }]).unwrap();
    let reliable = pair(Setup::default());
    reliable.0.receive(1, &[reliable.0.sge(0, 100)]).unwrap();
    a.post(&[way.send(5, 7, &reliable.0)]).unwrap();
    assert!(reliable.0.received().is_empty());
    let expected: Vec<_> = (1..=5).map(|id| (id, OK)).collect();
    assert_eq!(gist(&a.sent()), expected);
    assert!(b.received().is_empty(), "the receive is still there");
    a.post(&[way.send(6, 7, &b)]).unwrap();
    assert_eq!(gist(&b.received()), [(7, OK)]);
    assert_eq!((a.state(), b.state()), (states::IBV_QPS_RTS, states::IBV_QPS_RTS));
}

#[test]
fn a_key_with_the_highest_bit_stands_for_the_senders_own() {
    let (a, b) = (end(ud()), end(ud()));
    let way = Way::new(&a);
    b.receive(7, &[b.sge(0, 100)]).unwrap();
    a.post(&[Wr { datagram: Some((way.1, b.number(), 1 << 31)), ..way.send(1, 8, &b) }]).unwrap();
    assert_eq!(gist(&b.received()), [(7, OK)]);
}

#[test]
fn a_datagram_is_one_packet_or_none() {
    let (a, b) = (end(ud()), end(ud()));
    let way = Way::new(&a);
    b.receive(7, &[b.sge(0, 9000)]).unwrap();
    a.post(&[way.send(1, 4097, &b)]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, OK)]);
    assert_eq!((a.state(), b.received().len()), (states::IBV_QPS_RTS, 0));
}

#[test]
fn datagrams_are_sends_with_an_address() {
    let (a, b) = (end(ud()), end(ud()));
    let way = Way::new(&a);
    for op in [opcode::IBV_WR_RDMA_WRITE, opcode::IBV_WR_RDMA_WRITE_WITH_IMM, opcode::IBV_WR_RDMA_READ] {
        let mut wr = way.send(1, 8, &b);
        wr.opcode = op;
        assert_eq!(a.post(&[wr]), Err((EINVAL, 0)), "{op}");
    }
    let mut lost = way.send(1, 8, &b);
    lost.datagram = Some((std::ptr::null_mut(), b.number(), QKEY));
    assert_eq!(a.post(&[lost]), Err((EINVAL, 0)));
}

#[test]
fn one_queue_pair_sends_to_many_and_to_itself() {
    let (a, b, c) = (end(ud()), end(ud()), end(ud()));
    let way = Way::new(&a);
    for round in 0..3 {
        for target in [&a, &b, &c] {
            target.receive(round, &[target.sge(1000, 48)]).unwrap();
            a.post(&[way.send(9, 8, target)]).unwrap();
            assert_eq!(gist(&target.received()), [(round, OK)]);
        }
    }
    // Whoever is gone is no longer known.
    let number = b.number();
    drop(b);
    a.post(&[Wr { datagram: Some((way.1, number, QKEY)), ..way.send(10, 8, &c) }]).unwrap();
    assert_eq!(a.sent().len(), 10);
}

#[test]
fn a_handle_is_checked_and_leads_nowhere_when_the_port_is_down() {
    let a = end(Setup { faults: Faults { port_down: true, ..Faults::default() }, ..ud() });
    let mut address = a.attributes(0).ah_attr;
    address.is_global = 0;
    // SAFETY: the domain is live.
    let refused = unsafe { a.provider.create_ah(a.pd, &mut address) }.unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EINVAL));
    let way = Way::new(&a);
    a.receive(1, &[a.sge(100, 100)]).unwrap();
    a.post(&[way.send(2, 8, &a)]).unwrap();
    assert_eq!((gist(&a.sent()), a.received().len()), (vec![(2, OK)], 0));
}

#[test]
fn a_handle_may_be_destroyed_while_its_datagram_waits() {
    let (a, b) = (end(ud()), end(ud()));
    b.receive(7, &[b.sge(0, 100)]).unwrap();
    a.modify(states::IBV_QPS_SQD, &a.attributes(0), STATE).unwrap();
    {
        let way = Way::new(&a);
        a.post(&[way.send(1, 8, &b)]).unwrap();
    }
    a.modify(states::IBV_QPS_RTS, &a.attributes(0), STATE).unwrap();
    assert_eq!((gist(&a.sent()), gist(&b.received())), (vec![(1, OK)], vec![(7, OK)]));
}

#[test]
fn a_domain_with_a_handle_is_busy() {
    let a = End::new(ud());
    // SAFETY: live objects, destroyed once.
    unsafe {
        let pd = a.provider.alloc_pd(a.context).unwrap();
        let ah = a.provider.create_ah(pd, &mut a.attributes(0).ah_attr).unwrap();
        assert_eq!(a.provider.dealloc_pd(pd).unwrap_err().raw_os_error(), Some(nix::libc::EBUSY));
        a.provider.destroy_ah(ah).unwrap();
        a.provider.dealloc_pd(pd).unwrap();
    }
}
