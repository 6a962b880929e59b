//! Compare-and-swap and fetch-and-add.

use super::ends::*;
use crate::verbs::*;

fn number(end: &End, offset: usize) -> u64 {
    u64::from_ne_bytes(end.bytes(offset, 8).try_into().unwrap())
}

#[test]
fn the_operands_of_an_atomic_reach_the_peer_and_what_was_there_comes_back() {
    for device in ["emu0", "emu1"] {
        let (a, b) = pair(device);
        assert_eq!(a.context.attr().unwrap().atomic, AtomicCap::Global);
        b.mr.region().write(64, &40_u64.to_ne_bytes());
        let mut add = a.qp.sender(Opcode::FetchAdd, a.mr.slice(8, 8), Some(b.mr.remote(64)), false);
        add.set_atomic(2, 0);
        add.post_signalled().unwrap();
        add.post_signalled().unwrap();
        assert_eq!(a.sent(), [(0, WcStatus::SUCCESS); 2]);
        assert_eq!((number(&a, 8), number(&b, 64)), (42, 44));

        let mut swap = a.qp.sender(Opcode::CompareSwap, a.mr.slice(16, 8), Some(b.mr.remote(0)), false);
        swap.set_atomic(44, 9);
        // The operands stay when the request is moved, and the key arrives.
        swap.move_to(24, Some(b.mr.remote(64)));
        swap.post_signalled().unwrap();
        assert_eq!((number(&a, 24), number(&b, 64)), (44, 9));
        swap.post_signalled().unwrap();
        assert_eq!((number(&a, 24), number(&b, 64)), (9, 9));
        assert_eq!(a.sent(), [(0, WcStatus::SUCCESS); 2]);
        assert!(b.received().is_empty(), "the peer is not told");
    }
}

#[test]
fn an_atomic_at_an_odd_address_is_an_invalid_request() {
    let (a, b) = pair("emu0");
    let mut add = a.qp.sender(Opcode::FetchAdd, a.mr.slice(8, 8), Some(b.mr.remote(65)), false);
    add.post_signalled().unwrap();
    assert_eq!(a.sent(), [(0, WcStatus::REM_INV_REQ_ERR)]);
    assert_eq!(a.qp.state().unwrap(), QpState::Error);
}

#[test]
fn an_atomic_needs_the_right_at_the_memory() {
    let (a, b) = pair("emu0");
    let access = Access { remote_atomic: false, ..ALL };
    let closed = b.pd.register(Region::new(64).unwrap(), access).unwrap();
    let mut add = a.qp.sender(Opcode::FetchAdd, a.mr.slice(8, 8), Some(closed.remote(0)), false);
    add.post_signalled().unwrap();
    assert_eq!(a.sent(), [(0, WcStatus::REM_ACCESS_ERR)]);
}

#[test]
#[should_panic = "brings 8 bytes"]
fn an_atomic_brings_eight_bytes() {
    let (a, b) = pair("emu0");
    a.qp.sender(Opcode::FetchAdd, a.mr.slice(8, 4), Some(b.mr.remote(64)), false);
}

#[test]
#[should_panic = "has no operands"]
fn other_requests_have_no_operands() {
    let (a, b) = pair("emu0");
    a.qp.sender(Opcode::RdmaWrite, a.mr.slice(8, 8), Some(b.mr.remote(64)), false).set_atomic(1, 2);
}
