//! Completion events: one per arming, none lost.

use super::harness::*;

fn write(a: &End, b: &End) -> Wr {
    Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 8)]).to(b, 0)
}

fn send(a: &End, flags: u32) -> Wr {
    Wr::new(1, opcode::IBV_WR_SEND, &[a.sge(0, 8)]).flags(flags)
}

fn events() -> (End, End) {
    pair(Setup { events: true, ..Setup::default() })
}

#[test]
fn an_armed_queue_gives_one_event_and_is_then_silent() {
    let (a, b) = events();
    a.post(&[write(&a, &b)]).unwrap();
    assert_eq!(a.event(), None, "not armed");
    a.arm(a.send_cq, false);
    assert_eq!(a.event(), None, "what is there already does not count");
    a.post(&[write(&a, &b), write(&a, &b)]).unwrap();
    assert_eq!(a.event(), Some(a.send_cq));
    assert_eq!(a.event(), None);
    assert_eq!(a.sent().len(), 3);
    a.arm(a.send_cq, false);
    a.post(&[write(&a, &b)]).unwrap();
    assert_eq!(a.event(), Some(a.send_cq));
}

#[test]
fn an_unsignalled_request_gives_no_event() {
    let (a, b) = events();
    a.arm(a.send_cq, false);
    a.post(&[write(&a, &b).flags(0)]).unwrap();
    assert_eq!(a.event(), None);
}

#[test]
fn queues_of_one_channel_are_told_apart() {
    let (a, b) = events();
    b.arm(b.send_cq, false);
    b.arm(b.recv_cq, false);
    b.receive(1, &[b.sge(0, 8)]).unwrap();
    a.post(&[send(&a, SIGNALED)]).unwrap();
    b.post(&[write(&b, &a)]).unwrap();
    assert_eq!(b.event(), Some(b.recv_cq));
    assert_eq!(b.event(), Some(b.send_cq));
    assert_eq!(b.event(), None);
}

#[test]
fn a_queue_armed_for_solicited_completions_wakes_for_those_and_for_errors() {
    let (a, b) = events();
    for id in 0..4 {
        b.receive(id, &[b.sge(0, 8)]).unwrap();
    }
    b.arm(b.recv_cq, true);
    a.post(&[send(&a, 0)]).unwrap();
    assert_eq!(b.event(), None);
    a.post(&[send(&a, SOLICITED)]).unwrap();
    assert_eq!(b.event(), Some(b.recv_cq));
    b.arm(b.recv_cq, true);
    // The wider request wins, whatever comes last.
    b.arm(b.recv_cq, false);
    b.arm(b.recv_cq, true);
    a.post(&[send(&a, 0)]).unwrap();
    assert_eq!(b.event(), Some(b.recv_cq));
    b.arm(b.recv_cq, true);
    b.to_error();
    assert_eq!(b.event(), Some(b.recv_cq));
    assert_eq!(b.received().last().unwrap().status, status::IBV_WC_WR_FLUSH_ERR);
}

#[test]
fn the_descriptor_is_readable_while_there_are_events() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let (a, b) = events();
    let readable = || {
        // SAFETY: the channel is live.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw((*a.channel).fd) };
        poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
    };
    assert!(!readable());
    a.arm(a.send_cq, false);
    a.arm(a.recv_cq, false);
    a.receive(1, &[a.sge(0, 8)]).unwrap();
    a.post(&[write(&a, &b)]).unwrap();
    b.post(&[send(&b, 0)]).unwrap();
    assert!(readable());
    assert!(a.event().is_some() && readable());
    assert!(a.event().is_some() && !readable());
}

#[test]
fn a_sleeping_sender_is_woken_by_the_receive_it_waits_for() {
    let (a, b) = events();
    a.arm(a.send_cq, false);
    a.post(&[send(&a, SIGNALED)]).unwrap();
    assert!(a.sent().is_empty());
    assert_eq!(a.event(), None);
    b.receive(1, &[b.sge(0, 8)]).unwrap();
    assert_eq!(a.event(), Some(a.send_cq));
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_SUCCESS)]);
}

#[test]
fn a_sender_that_sleeps_for_the_answer_is_carried_on_too() {
    // The send is unsignalled; only the peer's reply would wake us.
    let (a, b) = events();
    a.receive(1, &[a.sge(8, 8)]).unwrap();
    a.arm(a.recv_cq, false);
    a.post(&[send(&a, 0)]).unwrap();
    b.receive(2, &[b.sge(0, 8)]).unwrap();
    assert_eq!(b.received().len(), 1);
    b.post(&[send(&b, 0)]).unwrap();
    assert_eq!(a.event(), Some(a.recv_cq));
}

#[test]
fn events_that_nobody_took_go_with_their_queue() {
    let (a, b) = events();
    // SAFETY: the context and the channel are live; the queue is destroyed once.
    unsafe {
        let doomed = a.provider.create_cq(a.context, 8, Some(a.channel)).unwrap();
        let mut init = a.init();
        init.send_cq = doomed;
        let mut end = End::new(a.setup);
        let spare = std::mem::replace(&mut end.qp, a.provider.create_qp(a.pd, &mut init).unwrap());
        end.connect(&end.attributes(end.number()));
        a.arm(doomed, false);
        a.arm(a.send_cq, false);
        end.post(&[Wr::new(1, opcode::IBV_WR_SEND, &[])]).unwrap();
        end.receive(2, &[]).unwrap();
        a.post(&[write(&a, &b)]).unwrap();
        end.destroy_qp();
        end.qp = spare;
        a.provider.destroy_cq(doomed).unwrap();
    }
    assert_eq!(a.event(), Some(a.send_cq));
    assert_eq!(a.event(), None);
}

#[test]
fn a_queue_with_an_event_not_acknowledged_is_busy() {
    let (a, b) = events();
    a.arm(a.send_cq, false);
    a.post(&[write(&a, &b)]).unwrap();
    // SAFETY: live objects.
    unsafe {
        let cq = a.provider.next_event(a.channel).unwrap();
        let mut a = a;
        a.destroy_qp();
        assert_eq!(a.provider.destroy_cq(cq).unwrap_err().raw_os_error(), Some(nix::libc::EBUSY));
        a.provider.ack_events(cq, 1);
    }
}
