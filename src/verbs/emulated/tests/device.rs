//! Listing, opening, querying; objects and their order of destruction; misbehaviour.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use super::super::faults::{Faults, Gids};
use super::super::{device_names, provider};
use super::harness::*;
use ibverbs_sys::*;

fn with_faults(faults: Faults) -> Setup {
    Setup { faults, ..Setup::default() }
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn the_two_devices_are_what_they_claim() {
    assert_eq!(device_names(), ["emu0", "emu1"]);
    let provider = provider();
    for name in device_names() {
        // SAFETY: the context is closed last.
        unsafe {
            let context = provider.open(name).unwrap();
            let shown = CStr::from_ptr((*(*context).device).name.as_ptr());
            assert_eq!(shown.to_str(), Ok(*name));
            let attr = provider.query_device(context).unwrap();
            assert_eq!((attr.phys_port_cnt, attr.max_qp_wr, attr.max_cqe), (1, 65_536, 4_194_303));
            let port = provider.query_port(context, 1).unwrap();
            assert_eq!((port.state, port.active_mtu), (ibv_port_state::IBV_PORT_ACTIVE, IBV_MTU_4096));
            assert_eq!(port.max_msg_sz, 1 << 30);
            assert_eq!(errno(provider.query_port(context, 2)), Some(EINVAL));
            assert_eq!(errno(provider.query_port(context, 0)), Some(EINVAL));
            assert_eq!(provider.query_pkey(context, 1, 0).unwrap(), 0xffff);
            assert_eq!(errno(provider.query_pkey(context, 1, 1)), Some(EINVAL));
            let gids = provider.gid_table(context).unwrap();
            assert_eq!(gids[0].gid.raw[..2], [0xfe, 0x80]);
            if *name == "emu0" {
                assert_eq!((port.link_layer, port.lid), (IBV_LINK_LAYER_ETHERNET as u8, 0));
                let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
                assert_eq!((gids.len(), gids[1].gid.raw), (2, v4));
                assert!(gids.iter().all(|gid| gid.gid_type == IBV_GID_TYPE_ROCE_V2 && gid.ndev_ifindex > 0));
            } else {
                assert_eq!(port.link_layer, IBV_LINK_LAYER_INFINIBAND as u8);
                assert!(port.lid > 0 && gids.len() == 1 && gids[0].gid_type == IBV_GID_TYPE_IB);
            }
            provider.close(context).unwrap();
        }
    }
    // SAFETY: there is no such device.
    assert_eq!(errno(unsafe { provider.open("emu2") }), Some(nix::libc::ENODEV));
}

#[test]
fn what_is_in_use_is_not_destroyed() {
    const EBUSY: Option<i32> = Some(nix::libc::EBUSY);
    let end = End::new(Setup { events: true, ..Setup::default() });
    // SAFETY: every one of these is refused.
    unsafe {
        assert_eq!(errno(end.provider.close(end.context)), EBUSY);
        assert_eq!(errno(end.provider.dealloc_pd(end.pd)), EBUSY);
        assert_eq!(errno(end.provider.destroy_cq(end.send_cq)), EBUSY);
        assert_eq!(errno(end.provider.destroy_cq(end.recv_cq)), EBUSY);
        assert_eq!(errno(end.provider.destroy_channel(end.channel)), EBUSY);
    }
}

#[test]
fn capacities_are_rounded_up_and_limited() {
    let end = End::new(Setup::default());
    let create = |change: &dyn Fn(&mut ibv_qp_init_attr)| {
        let mut init = end.init();
        change(&mut init);
        // SAFETY: the domain and the queues are live, and the queue pair is destroyed at once.
        unsafe {
            end.provider.create_qp(end.pd, &mut init).map(|qp| {
                end.provider.destroy_qp(qp).unwrap();
                init.cap
            })
        }
    };
    let cap = create(&|init| {
        init.cap = ibv_qp_cap {
            max_send_wr: 100,
            max_recv_wr: 1,
            max_send_sge: 0,
            max_recv_sge: 6,
            max_inline_data: 64,
        };
    });
    let cap = cap.unwrap();
    assert_eq!((cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge), (128, 1, 1, 6));
    assert_eq!(cap.max_inline_data, 64);
    assert_eq!(create(&|init| init.cap.max_inline_data = 1).unwrap().max_inline_data, 32);
    assert_eq!(create(&|init| init.cap.max_inline_data = 220).unwrap().max_inline_data, 220);
    assert_eq!(create(&|init| init.cap.max_send_wr = 65_536).unwrap().max_send_wr, 65_536);
    assert_eq!(errno(create(&|init| init.cap.max_inline_data = 221)), Some(EINVAL));
    assert_eq!(errno(create(&|init| init.cap.max_send_wr = 65_537)), Some(EINVAL));
    assert_eq!(errno(create(&|init| init.cap.max_recv_wr = 65_537)), Some(EINVAL));
    assert_eq!(errno(create(&|init| init.cap.max_send_sge = 7)), Some(EINVAL));
    assert_eq!(errno(create(&|init| init.recv_cq = std::ptr::null_mut())), Some(EINVAL));
    assert!(create(&|init| init.qp_type = ibv_qp_type::IBV_QPT_RAW_PACKET).is_err());
    // SAFETY: refused.
    unsafe {
        assert_eq!(errno(end.provider.create_cq(end.context, 0, None)), Some(EINVAL));
        assert_eq!(errno(end.provider.create_cq(end.context, 4_194_304, None)), Some(EINVAL));
    }
}

#[test]
fn registration_checks_its_arguments() {
    let end = End::new(Setup::default());
    let register = |addr: *mut u8, len: usize, access: u32| {
        // SAFETY: refused, but for the one that is deregistered at once.
        errno(unsafe { end.provider.reg_mr(end.pd, addr, len, access as i32) })
    };
    assert_eq!(register(end.memory, 0, LOCAL_WRITE), Some(EINVAL));
    assert_eq!(register(end.memory, usize::MAX, LOCAL_WRITE), Some(EINVAL));
    assert_eq!(register(end.memory, 8, REMOTE_WRITE), Some(EINVAL));
    assert_eq!(register(end.memory, 8, REMOTE_ATOMIC), Some(EINVAL));
    assert_eq!(register(end.memory, 8, 1 << 30), Some(EINVAL));
}

#[test]
fn every_nth_message_is_corrupted_and_no_other() {
    for inline in [0, INLINE] {
        let (a, b) = pair(with_faults(Faults { corrupt: Some(3), ..Faults::default() }));
        let payload = pattern(1, 64);
        a.write(0, &payload);
        let mut differ = Vec::new();
        for _ in 0..9 {
            let flags = SIGNALED | inline;
            a.post(&[Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 64)]).to(&b, 0).flags(flags)]).unwrap();
            let got = b.read(0, 64);
            differ.push(got.iter().zip(&payload).filter(|(got, sent)| got != sent).count());
            assert_eq!(got[63], payload[63]);
        }
        assert_eq!(differ, [0, 0, 1, 0, 0, 1, 0, 0, 1]);
        assert_eq!(a.read(0, 64), payload);
        assert_eq!(a.sent().len(), 9);
    }
    let (a, b) = pair(with_faults(Faults { corrupt: Some(1), ..Faults::default() }));
    b.write(0, &pattern(2, 64));
    a.post(&[Wr::new(1, opcode::IBV_WR_RDMA_READ, &[a.sge(0, 9), a.sge(9, 55)]).to(&b, 0)]).unwrap();
    assert_ne!(a.read(0, 64), pattern(2, 64));
    assert_eq!(b.read(0, 64), pattern(2, 64));
}

#[test]
fn a_port_that_is_down_carries_nothing() {
    let (a, b) = pair(with_faults(Faults { port_down: true, ..Faults::default() }));
    // SAFETY: the context is live.
    assert_eq!(unsafe { a.provider.query_port(a.context, 1) }.unwrap().state, ibv_port_state::IBV_PORT_DOWN);
    a.post(&[Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 1)]).to(&b, 0)]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_RETRY_EXC_ERR)]);
}

#[test]
fn resources_can_be_short() {
    let end = End::new(Setup { inline: 0, ..with_faults(Faults { no_inline: true, ..Faults::default() }) });
    let mut init = end.init();
    init.cap.max_inline_data = 1;
    // SAFETY: live parents; refused.
    assert_eq!(errno(unsafe { end.provider.create_qp(end.pd, &mut init) }), Some(EINVAL));

    let provider = provider();
    // SAFETY: children before parents.
    unsafe {
        let faults = Faults { no_memlock: true, ..Faults::default() };
        let context = super::super::Context::open("emu0", faults).unwrap();
        let pd = provider.alloc_pd(context).unwrap();
        assert_eq!(errno(provider.reg_mr(pd, [0_u8; 8].as_mut_ptr(), 8, 1)), Some(ENOMEM));
        provider.dealloc_pd(pd).unwrap();
        provider.close(context).unwrap();

        let context =
            super::super::Context::open("emu1", Faults { fail_qp: true, ..Faults::default() }).unwrap();
        let pd = provider.alloc_pd(context).unwrap();
        let cq = provider.create_cq(context, 1, None).unwrap();
        let mut init = end.init();
        (init.send_cq, init.recv_cq, init.cap.max_inline_data) = (cq, cq, 0);
        assert_eq!(errno(provider.create_qp(pd, &mut init)), Some(ENOMEM));
        provider.destroy_cq(cq).unwrap();
        provider.dealloc_pd(pd).unwrap();
        provider.close(context).unwrap();
    }
}

#[test]
fn a_port_without_an_ip_address_has_one_gid() {
    let end = End::new(with_faults(Faults { gids: Gids::LinkLocal, ..Faults::default() }));
    // SAFETY: the context is live.
    assert_eq!(unsafe { end.provider.gid_table(end.context) }.unwrap().len(), 1);
    end.connect(&end.attributes(end.number()));
    end.post(&[Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[end.sge(0, 1)]).to(&end, 1)]).unwrap();
    assert_eq!(gist(&end.sent()), [(1, status::IBV_WC_SUCCESS)]);
}

#[test]
fn nothing_is_visible_before_the_delay_is_over() {
    let delay = Duration::from_micros(200);
    let (a, b) = pair(with_faults(Faults { delay_ns: 200_000, ..Faults::default() }));
    let start = Instant::now();
    for _ in 0..3 {
        a.post(&[Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 1)]).to(&b, 0)]).unwrap();
    }
    assert!(start.elapsed() >= delay * 3);
    assert_eq!(a.sent().len(), 3);
}

#[test]
fn a_device_that_dies_takes_the_queue_pair_with_it() {
    let (a, b) = pair(with_faults(Faults { die_after: Some(2), ..Faults::default() }));
    let write = |id| Wr::new(id, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 1)]).to(&b, 0).flags(0);
    a.receive(9, &[]).unwrap();
    a.post(&[write(1), write(2), write(3), write(4)]).unwrap();
    assert_eq!(gist(&a.sent()), [(3, status::IBV_WC_FATAL_ERR), (4, status::IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(gist(&a.received()), [(9, status::IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(a.state(), ibv_qp_state::IBV_QPS_ERR);
    // SAFETY: the context is live.
    let event = unsafe { a.provider.next_async_event(a.context) }.unwrap();
    assert_eq!(event, (ibverbs_sys::IBV_EVENT_DEVICE_FATAL, 0));
    b.post(&[Wr::new(5, opcode::IBV_WR_SEND, &[])]).unwrap();
    assert_eq!(gist(&b.sent()), [(5, status::IBV_WC_RETRY_EXC_ERR)]);
}

#[test]
fn a_port_that_goes_down_says_so_and_nothing_arrives_any_more() {
    let (a, b) = pair(with_faults(Faults { port_error_after: Some(2), ..Faults::default() }));
    let write = |id| Wr::new(id, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 1)]).to(&b, 0);
    let port_state = || {
        // SAFETY: the context is live.
        unsafe { a.provider.query_port(a.context, 1) }.unwrap().state
    };
    a.post(&[write(1), write(2)]).unwrap();
    assert_eq!(port_state(), ibverbs_sys::ibv_port_state::IBV_PORT_ACTIVE);
    a.post(&[write(3)]).unwrap();
    assert_eq!(port_state(), ibverbs_sys::ibv_port_state::IBV_PORT_DOWN);
    assert_eq!(gist(&a.sent())[2], (3, status::IBV_WC_RETRY_EXC_ERR));
    // SAFETY: the context is live.
    let next = || unsafe { a.provider.next_async_event(a.context) };
    assert_eq!(next().unwrap(), (ibverbs_sys::IBV_EVENT_PORT_ERR, 1));
    assert_eq!(next().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    b.post(&[Wr::new(4, opcode::IBV_WR_SEND, &[])]).unwrap();
    assert_eq!(gist(&b.sent()), [(4, status::IBV_WC_RETRY_EXC_ERR)]);
}
