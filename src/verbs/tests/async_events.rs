//! What a device says outside of any completion queue.

use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::ends::*;
use crate::verbs::*;

fn events(end: &End) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| end.context.take_async_event().unwrap()).collect()
}

#[test]
fn a_connection_that_works_says_nothing() {
    let (a, b) = pair("emu0");
    b.qp.receiver(b.mr.slice(0, 8)).post().unwrap();
    a.qp.sender(Opcode::Send, a.mr.slice(0, 8), None, false).post_signalled().unwrap();
    assert_eq!(b.received().len(), 1);
    assert_eq!((events(&a), events(&b)), (vec![], vec![]));
}

#[test]
fn the_descriptor_is_readable_while_there_are_events() {
    let (a, b) = pair("emu0");
    let readable = || {
        let fd = b.context.async_fd();
        poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
    };
    assert!(!readable());
    let beyond = RemoteSlice { addr: 0, rkey: 0 };
    a.qp.sender(Opcode::RdmaWrite, a.mr.slice(0, 8), Some(beyond), false).post_signalled().unwrap();
    assert!(readable());
    assert_eq!(events(&b), [AsyncEvent::QpAccessError { qpn: b.qp.number() }]);
    assert!(!readable());
    assert_eq!((a.sent(), events(&a)), (vec![(0, WcStatus::REM_ACCESS_ERR)], vec![]));
}

#[test]
fn a_request_that_is_not_served_is_told_to_its_target() {
    let (a, b) = pair("emu0");
    a.qp.sender(Opcode::FetchAdd, a.mr.slice(0, 8), Some(b.mr.remote(1)), false).post_signalled().unwrap();
    assert_eq!(events(&b), [AsyncEvent::QpRequestError { qpn: b.qp.number() }]);
}

#[test]
fn a_lost_completion_is_told_for_the_queue_and_for_the_queue_pair() {
    let (a, b) = (End::with_send_cq("emu0", Transport::Rc, 1), End::new("emu0", Transport::Rc));
    a.connect(&b);
    b.connect(&a);
    let mut write = a.qp.sender(Opcode::RdmaWrite, a.mr.slice(0, 8), Some(b.mr.remote(0)), false);
    write.post_signalled().unwrap();
    write.post_signalled().unwrap();
    assert_eq!(events(&a), [AsyncEvent::CqError, AsyncEvent::QpFatal { qpn: a.qp.number() }]);
    assert_eq!(a.qp.state().unwrap(), QpState::Error);
}

#[test]
fn the_first_message_before_rts_is_told_once_and_taken() {
    for transport in [Transport::Rc, Transport::Uc] {
        let (a, b) = (End::new("emu0", transport), End::new("emu0", transport));
        b.to_rtr(&a);
        a.connect(&b);
        let mut receiver = b.qp.receiver(b.mr.slice(0, 8));
        receiver.post_many(3).unwrap();
        let mut send = a.qp.sender(Opcode::Send, a.mr.slice(0, 8), None, false);
        send.post_signalled().unwrap();
        assert_eq!(events(&b), [AsyncEvent::CommEstablished { qpn: b.qp.number() }], "{transport}");
        send.post_signalled().unwrap();
        b.to_rts();
        send.post_signalled().unwrap();
        assert_eq!((a.sent().len(), b.received().len(), events(&b)), (3, 3, vec![]));
    }
}

#[test]
fn a_stranger_establishes_nothing() {
    let (a, b, stranger) =
        (End::new("emu0", Transport::Rc), End::new("emu0", Transport::Rc), End::new("emu0", Transport::Rc));
    b.to_rtr(&a);
    stranger.connect(&b);
    b.qp.receiver(b.mr.slice(0, 8)).post().unwrap();
    stranger.qp.sender(Opcode::Send, stranger.mr.slice(0, 8), None, false).post_signalled().unwrap();
    assert_eq!(stranger.sent(), [(0, WcStatus::RETRY_EXC_ERR)]);
    assert_eq!(events(&b), []);
}

#[test]
fn a_shared_queue_tells_when_it_runs_low_and_when_a_queue_pair_leaves_it() {
    let (b, srq) = End::sharing("emu0", Transport::Rc);
    let a = End::new("emu0", Transport::Rc);
    a.connect(&b);
    b.connect(&a);
    srq.receiver(b.mr.slice(0, 8)).post_many(4).unwrap();
    srq.set_limit(3).unwrap();
    assert!(srq.set_limit(5).is_err());
    let mut send = a.qp.sender(Opcode::Send, a.mr.slice(0, 8), None, false);
    send.post_signalled().unwrap();
    assert_eq!(events(&b), []);
    send.post_signalled().unwrap();
    send.post_signalled().unwrap();
    assert_eq!(events(&b), [AsyncEvent::SrqLimitReached], "once");
    b.qp.to_error().unwrap();
    b.qp.to_error().unwrap();
    assert_eq!(events(&b), [AsyncEvent::LastWqeReached { qpn: b.qp.number() }]);
}

#[test]
fn events_of_what_is_gone_are_gone_too() {
    let (a, b) = pair("emu0");
    let beyond = RemoteSlice { addr: 0, rkey: 0 };
    a.qp.sender(Opcode::RdmaWrite, a.mr.slice(0, 8), Some(beyond), false).post_signalled().unwrap();
    let context = b.context.clone();
    drop(b);
    assert_eq!(context.take_async_event().unwrap(), None);
}
