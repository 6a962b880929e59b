//! Depths, waiting for receives, flushes.

use std::time::{Duration, Instant};

use super::harness::*;
use ibverbs_sys::ibv_qp_state as states;

const OK: status::Type = status::IBV_WC_SUCCESS;
const FLUSHED: status::Type = status::IBV_WC_WR_FLUSH_ERR;

fn write(a: &End, b: &End, id: u64, flags: u32) -> Wr {
    Wr::new(id, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 8)]).to(b, 0).flags(flags)
}

fn send(a: &End, id: u64) -> Wr {
    Wr::new(id, opcode::IBV_WR_SEND, &[a.sge(id as usize, 1)])
}

#[test]
fn a_send_slot_is_free_when_a_completion_at_or_after_it_was_polled() {
    let (a, b) = pair(Setup { send_depth: 4, ..Setup::default() });
    let quiet = |id| write(&a, &b, id, 0);
    a.post(&[quiet(1), quiet(2), write(&a, &b, 3, SIGNALED), quiet(4)]).unwrap();
    assert_eq!(a.post(&[quiet(5)]), Err((ENOMEM, 0)));
    assert_eq!(gist(&a.sent()), [(3, OK)]);
    // Three are free; the fourth work request, unsignalled, still has its slot.
    assert_eq!(a.post(&[quiet(5), quiet(6), write(&a, &b, 7, SIGNALED), quiet(8)]), Err((ENOMEM, 3)));
    assert_eq!(gist(&a.sent()), [(7, OK)]);
    a.post(&[quiet(8), quiet(9), quiet(10), quiet(11)]).unwrap();
    // Without a signal there is no way back.
    assert!(a.sent().is_empty());
    assert_eq!(a.post(&[quiet(12)]), Err((ENOMEM, 0)));
}

#[test]
fn a_receive_slot_is_free_when_its_completion_was_polled() {
    let (a, b) = pair(Setup { recv_depth: 4, ..Setup::default() });
    for id in 0..4 {
        b.receive(id, &[b.sge(0, 1)]).unwrap();
    }
    assert_eq!(b.receive(4, &[]), Err(ENOMEM));
    a.post(&[send(&a, 1), send(&a, 2)]).unwrap();
    assert_eq!(b.receive(4, &[]), Err(ENOMEM));
    assert_eq!(gist(&b.poll(b.recv_cq, 1).unwrap()), [(0, OK)]);
    b.receive(4, &[b.sge(0, 1)]).unwrap();
    assert_eq!(b.receive(5, &[]), Err(ENOMEM));
}

#[test]
fn queues_go_round_many_times() {
    let (a, b) = pair(Setup { send_depth: 4, recv_depth: 4, cq_depth: 4, ..Setup::default() });
    for round in 0..1000 {
        let id = round % 200;
        a.write(id as usize, &[round as u8]);
        b.receive(round, &[b.sge(0, 1)]).unwrap();
        let mut wr = send(&a, id);
        wr.id = round;
        a.post(&[wr]).unwrap();
        assert_eq!(gist(&a.sent()), [(round, OK)]);
        assert_eq!(gist(&b.received()), [(round, OK)]);
        assert_eq!(b.read(0, 1), [round as u8]);
    }
}

#[test]
fn a_queue_pair_without_a_queue_has_no_slots_in_it() {
    let (a, b) = pair(Setup { send_depth: 0, recv_depth: 0, ..Setup::default() });
    assert_eq!(a.post(&[write(&a, &b, 1, SIGNALED)]), Err((ENOMEM, 0)));
    assert_eq!(a.receive(1, &[]), Err(ENOMEM));
}

#[test]
fn sends_wait_for_receives_and_nothing_overtakes_them() {
    let (a, b) = pair(Setup::default());
    a.write(0, &pattern(3, 64));
    b.write(4000, &[0xee; 8]);
    a.post(&[send(&a, 1), send(&a, 2).flags(0), write(&a, &b, 3, SIGNALED).to(&b, 4000)]).unwrap();
    a.post(&[send(&a, 4)]).unwrap();
    assert!(a.sent().is_empty());
    assert_eq!(b.read(4000, 8), [0xee; 8]);

    b.receive(11, &[b.sge(0, 1)]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, OK)]);
    assert_eq!(b.read(4000, 8), [0xee; 8]);
    b.receive(12, &[b.sge(1, 1)]).unwrap();
    assert_eq!(gist(&a.sent()), [(3, OK)]);
    assert_eq!(b.read(4000, 8), pattern(3, 8));
    b.receive(13, &[b.sge(2, 1)]).unwrap();
    assert_eq!(gist(&a.sent()), [(4, OK)]);
    assert_eq!(gist(&b.received()), [(11, OK), (12, OK), (13, OK)]);
    let sent = pattern(3, 64);
    assert_eq!(b.read(0, 3), [sent[1], sent[2], sent[4]]);
    // The way is clear again.
    a.post(&[write(&a, &b, 5, SIGNALED)]).unwrap();
    assert_eq!(gist(&a.sent()), [(5, OK)]);
}

#[test]
fn both_ends_may_wait_for_each_other() {
    let (a, b) = pair(Setup::default());
    a.post(&[send(&a, 1), send(&a, 2)]).unwrap();
    b.post(&[send(&b, 3), send(&b, 4)]).unwrap();
    for id in [5, 6] {
        a.receive(id, &[a.sge(100, 1)]).unwrap();
        b.receive(id, &[b.sge(100, 1)]).unwrap();
    }
    assert_eq!(gist(&a.sent()), [(1, OK), (2, OK)]);
    assert_eq!(gist(&b.sent()), [(3, OK), (4, OK)]);
    assert_eq!(gist(&a.received()), [(5, OK), (6, OK)]);
    assert_eq!(gist(&b.received()), [(5, OK), (6, OK)]);
}

#[test]
fn waiting_sends_fill_the_send_queue() {
    let (a, b) = pair(Setup { send_depth: 4, ..Setup::default() });
    a.post(&[send(&a, 1), send(&a, 2), send(&a, 3), send(&a, 4)]).unwrap();
    assert_eq!(a.post(&[send(&a, 5)]), Err((ENOMEM, 0)));
    b.receive(1, &[b.sge(0, 1)]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, OK)]);
    a.post(&[send(&a, 5)]).unwrap();
}

#[test]
fn an_error_found_while_waiting_flushes_what_waits_behind() {
    let (a, b) = pair(Setup::default());
    let mut bad = send(&a, 1);
    bad.local[0].lkey ^= 1;
    a.post(&[send(&a, 0), bad, send(&a, 2)]).unwrap();
    assert!(a.sent().is_empty());
    b.receive(0, &[b.sge(0, 1)]).unwrap();
    assert_eq!(gist(&a.sent()), [(0, OK), (1, status::IBV_WC_LOC_PROT_ERR), (2, FLUSHED)]);
}

#[test]
fn no_retries_means_no_waiting() {
    let (a, b) = pair(Setup { rnr_retry: 0, ..Setup::default() });
    a.post(&[send(&a, 1), send(&a, 2)]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_RNR_RETRY_EXC_ERR), (2, FLUSHED)]);
    assert_eq!((a.state(), b.state()), (states::IBV_QPS_ERR, states::IBV_QPS_RTS));
}

#[test]
fn finite_retries_end_when_their_time_is_over() {
    // Code 16 is 2.56 ms; three retries.
    let least = Duration::from_micros(3 * 2560);
    let (a, _b) = pair(Setup { rnr_retry: 3, rnr_timer: 16, ..Setup::default() });
    let start = Instant::now();
    a.post(&[send(&a, 1), send(&a, 2)]).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(gist(&a.sent()));
    }
    assert!(start.elapsed() >= least);
    assert_eq!(seen, [(1, status::IBV_WC_RNR_RETRY_EXC_ERR), (2, FLUSHED)]);
}

#[test]
fn finite_retries_also_end_for_a_sleeper() {
    let (a, _b) = pair(Setup { rnr_retry: 1, rnr_timer: 1, events: true, ..Setup::default() });
    a.arm(a.send_cq, false);
    a.post(&[send(&a, 1)]).unwrap();
    a.sleep();
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_RNR_RETRY_EXC_ERR)]);
}

#[test]
fn a_receive_in_time_saves_a_send_with_finite_retries() {
    // Code 0 is 655 ms.
    let (a, b) = pair(Setup { rnr_retry: 6, rnr_timer: 0, ..Setup::default() });
    a.post(&[send(&a, 1)]).unwrap();
    b.receive(2, &[b.sge(0, 1)]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, OK)]);
}

#[test]
fn moving_to_error_flushes_both_queues_in_order() {
    let (a, b) = pair(Setup::default());
    for id in 10..15 {
        a.receive(id, &[a.sge(0, 1)]).unwrap();
    }
    a.post(&[send(&a, 1), send(&a, 2).flags(0), write(&a, &b, 3, 0)]).unwrap();
    a.to_error();
    assert_eq!(gist(&a.sent()), [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]);
    let expected: Vec<_> = (10..15).map(|id| (id, FLUSHED)).collect();
    assert_eq!(gist(&a.received()), expected);
    // And so does what is posted now.
    a.receive(15, &[]).unwrap();
    a.post(&[write(&a, &b, 4, 0)]).unwrap();
    assert_eq!(gist(&a.sent()), [(4, FLUSHED)]);
    assert_eq!(gist(&a.received()), [(15, FLUSHED)]);
}

#[test]
fn a_waiting_sender_fails_when_its_peer_goes_away() {
    for destroy in [false, true] {
        let (a, mut b) = pair(Setup { events: true, ..Setup::default() });
        a.arm(a.send_cq, false);
        a.post(&[send(&a, 1), send(&a, 2)]).unwrap();
        if destroy {
            b.destroy_qp();
        } else {
            b.to_error();
        }
        a.sleep();
        assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_RETRY_EXC_ERR), (2, FLUSHED)]);
    }
}

#[test]
fn a_waiting_sender_fails_when_its_peer_fails_by_itself() {
    let (a, b) = pair(Setup { events: true, ..Setup::default() });
    a.arm(a.send_cq, false);
    a.post(&[send(&a, 1)]).unwrap();
    let mut bad = send(&b, 2);
    bad.local[0].lkey ^= 1;
    b.post(&[bad]).unwrap();
    a.sleep();
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_RETRY_EXC_ERR)]);
}

#[test]
fn the_sends_of_a_responder_that_fails_are_flushed() {
    let (a, b) = pair(Setup { events: true, ..Setup::default() });
    b.arm(b.send_cq, false);
    b.post(&[send(&b, 1), send(&b, 2)]).unwrap();
    let mut bad = write(&a, &b, 3, SIGNALED);
    bad.rkey ^= 1;
    a.post(&[bad]).unwrap();
    b.sleep();
    assert_eq!(gist(&b.sent()), [(1, FLUSHED), (2, FLUSHED)]);
    assert_eq!(b.state(), states::IBV_QPS_ERR);
}

#[test]
fn so_are_those_that_it_was_told_to_hold_back() {
    let (a, b) = pair(Setup { events: true, ..Setup::default() });
    b.modify(states::IBV_QPS_SQD, &b.attributes(0), STATE).unwrap();
    b.arm(b.send_cq, false);
    b.post(&[write(&b, &a, 1, 0), write(&b, &a, 2, 0)]).unwrap();
    let mut bad = write(&a, &b, 3, SIGNALED);
    bad.rkey ^= 1;
    a.post(&[bad]).unwrap();
    b.sleep();
    assert_eq!(gist(&b.sent()), [(1, FLUSHED), (2, FLUSHED)]);
}

#[test]
fn a_full_completion_queue_loses_and_says_so() {
    let (a, b) = pair(Setup { cq_depth: 3, ..Setup::default() });
    let posts: Vec<Wr> = (0..5).map(|id| write(&a, &b, id, SIGNALED)).collect();
    a.post(&posts).unwrap();
    // What was there can be had.
    assert_eq!(gist(&a.poll(a.send_cq, 2).unwrap()), [(0, OK), (1, OK)]);
    assert_eq!(gist(&a.poll(a.send_cq, 2).unwrap()), [(2, OK)]);
    assert!(a.poll(a.send_cq, 2).unwrap_err() < 0);
    assert_eq!(a.state(), states::IBV_QPS_ERR);
    // There is room again, but nothing that comes now may hide that something is missing.
    a.post(&[write(&a, &b, 5, SIGNALED)]).unwrap();
    assert!(a.poll(a.send_cq, 2).unwrap_err() < 0);
    // SAFETY: the context is live.
    let fd = unsafe { a.provider.async_fd(a.context) };
    let mut polled = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut polled, nix::poll::PollTimeout::ZERO), Ok(1));
}

#[test]
fn a_full_completion_queue_of_the_target_ends_the_connection() {
    let (a, b) = pair(Setup { cq_depth: 3, ..Setup::default() });
    for id in 0..4 {
        b.receive(id, &[b.sge(0, 1)]).unwrap();
    }
    a.post(&[send(&a, 0).flags(0), send(&a, 1).flags(0), send(&a, 2).flags(0), send(&a, 3)]).unwrap();
    assert_eq!(gist(&a.sent()), [(3, status::IBV_WC_REM_OP_ERR)]);
    assert_eq!(gist(&b.received()), [(0, OK), (1, OK), (2, OK)]);
    assert_eq!(b.state(), states::IBV_QPS_ERR);
}

#[test]
fn a_destroyed_queue_pair_leaves_nothing_to_poll() {
    let (mut a, b) = pair(Setup::default());
    // SAFETY: the domain and the queues are live.
    let other = unsafe { a.provider.create_qp(a.pd, &mut a.init()) }.unwrap();
    let first = std::mem::replace(&mut a.qp, other);
    a.connect(&a.attributes(a.number()));
    a.post(&[write(&a, &a, 1, SIGNALED)]).unwrap();
    a.qp = first;
    a.post(&[write(&a, &b, 2, SIGNALED)]).unwrap();
    a.qp = other;
    a.post(&[write(&a, &a, 3, SIGNALED)]).unwrap();
    a.qp = first;
    a.destroy_qp();
    a.qp = other;
    assert_eq!(gist(&a.sent()), [(1, OK), (3, OK)]);
}
