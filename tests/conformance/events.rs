//! Completion events. That there was none is told by an event asked for later on the same channel: it would have come
//! behind.

use verbmark::verbs::{Opcode, QpState, WcStatus};

use crate::lab::{End, Lab, Request, Setup};
use crate::rule::rules;

rules! {
    "Completion events (RC)";
    one_event_for_one_arm: "ibv_req_notify_cq(3), notes",
        "Armed once, two completions give one event; armed again, another gives another.";
    a_queue_that_is_not_armed_is_silent: "ibv_req_notify_cq(3)",
        "Completions of a queue that was never armed give no event.";
    what_was_there_before_gives_no_event: "ibv_req_notify_cq(3)",
        "A completion that is in the queue when it is armed gives no event; the next one does.";
    unsignalled_sends_give_no_event: "ibv_req_notify_cq(3); IBTA 10.8.6",
        "Unsignalled sends that succeed give no event.";
    failures_give_an_event: "ibv_req_notify_cq(3)",
        "A send that fails gives an event, though it was not signalled; so does a receive that is flushed.";
    a_sleeping_receiver_is_woken: "ibv_get_cq_event(3)",
        "B, asleep on its channel, is woken by a message of A.";
    a_sleeping_sender_is_woken_by_the_peers_receive: "ibv_get_cq_event(3); IBTA 9.7.5.2.8",
        "A, asleep on its channel with a SEND that waits for a receive, is woken when B posts one, though A never polls.";
    a_sleeping_sender_is_woken_by_its_own_error: "ibv_req_notify_cq(3); IBTA 10.3.1.7",
        "A, asleep on its channel with a SEND that waits for a receive, is woken when it is moved to ERROR, though A never polls.";
    a_sleeping_sender_is_woken_by_what_it_refused: "ibv_req_notify_cq(3); IBTA 9.9.3",
        "B, asleep on its channel with a SEND that waits for a receive, is woken when its queue pair fails for what A asked, though B never polls.";
    a_drained_sender_is_woken_by_what_it_refused: "ibv_req_notify_cq(3); IBTA 10.3.1.5",
        "The same with B in SQD and a SEND that was not begun.";
    a_solicited_message_wakes: "ibv_req_notify_cq(3); ibv_post_send(3)",
        "Armed for solicited completions: a SEND and a WRITE with immediate data give no event, and one of either with the solicited flag gives one.";
    flushed_receives_are_solicited: "ibv_req_notify_cq(3)",
        "Armed for solicited completions: a receive that is flushed gives an event.";
    failed_sends_are_solicited: "ibv_req_notify_cq(3)",
        "Armed for solicited completions: a send that fails gives an event.",
        but rxe "6.1": "It gives none." => rxe_failed_sends_are_solicited;
    own_sends_are_not_solicited: "ibv_req_notify_cq(3)",
        "Armed for solicited completions: successful sends of the own queue pair give no event, whatever their flag.";
    the_wider_request_holds: "IBTA 11.4.2.2",
        "Armed for all and then for solicited completions: any completion gives the event.";
    arming_twice_gives_one_event: "ibv_req_notify_cq(3)",
        "Armed twice before a completion: one event.";
}

fn write(a: &End, b: &End) -> Request {
    Request::write(a.slice(0, 8), b.remote(64))
}

/// Waits for `count` events of A's channel, and fails if there are more: the last is asked for here.
fn events_before_the_last(a: &End, b: &End, count: usize) {
    a.recv_cq.arm().unwrap();
    b.fence(a);
    a.events(count + 1);
    a.no_event();
}

fn one_event_for_one_arm(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.send_cq.arm().unwrap();
    for _ in 0..2 {
        a.post(&write(&a, &b)).unwrap();
        a.sent(1);
    }
    events_before_the_last(&a, &b, 1);
    a.send_cq.arm().unwrap();
    a.post(&write(&a, &b)).unwrap();
    a.sent(1);
    events_before_the_last(&a, &b, 1);
}

fn a_queue_that_is_not_armed_is_silent(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.post(&write(&a, &b)).unwrap();
    a.sent(1);
    events_before_the_last(&a, &b, 0);
}

fn what_was_there_before_gives_no_event(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.post(&write(&a, &b).unsignalled()).unwrap();
    a.post(&write(&a, &b).id(2)).unwrap();
    // It is there, and is not taken.
    a.post(&Request::send(a.slice(0, 0)).unsignalled()).unwrap();
    b.receive(10, b.slice(0, 0)).unwrap();
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
    a.send_cq.arm().unwrap();
    events_before_the_last(&a, &b, 0);
    a.post(&write(&a, &b).id(3)).unwrap();
    events_before_the_last(&a, &b, 1);
    a.sends_end(&[(2, WcStatus::SUCCESS), (3, WcStatus::SUCCESS)]);
}

fn unsignalled_sends_give_no_event(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.send_cq.arm().unwrap();
    b.receives([10]);
    a.post(&write(&a, &b).unsignalled()).unwrap();
    a.post(&Request::send(a.slice(0, 8)).unsignalled()).unwrap();
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
    events_before_the_last(&a, &b, 0);
}

fn failures_give_an_event(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.receives([20]);
    a.send_cq.arm().unwrap();
    let mut remote = b.remote(64);
    remote.rkey = !remote.rkey;
    a.post(&Request::write(a.slice(0, 8), remote).unsignalled()).unwrap();
    a.events(1);
    a.sends_end(&[(1, WcStatus::REM_ACCESS_ERR)]);
    a.receives_end(&[(20, WcStatus::WR_FLUSH_ERR)]);

    let (a, _b) = lab.pair(Setup::default());
    a.receives([20]);
    a.recv_cq.arm().unwrap();
    a.modify(QpState::Error).unwrap();
    a.events(1);
    a.receives_end(&[(20, WcStatus::WR_FLUSH_ERR)]);
}

fn a_sleeping_receiver_is_woken(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    b.receives([10]);
    std::thread::scope(|scope| {
        b.recv_cq.arm().unwrap();
        scope.spawn(|| {
            b.events(1);
            b.receives_end(&[(10, WcStatus::SUCCESS)]);
        });
        a.post(&Request::send(a.slice(0, 8))).unwrap();
    });
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
}

fn a_sleeping_sender_is_woken_by_the_peers_receive(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.post(&Request::send(a.slice(0, 8))).unwrap();
    a.send_cq.arm().unwrap();
    a.nothing_sent();
    b.receives([10]);
    // Nothing below looks at the queue before the event came.
    a.events(1);
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
}

fn a_sleeping_sender_is_woken_by_its_own_error(lab: &Lab) {
    let (a, _b) = lab.pair(Setup::default());
    a.post(&Request::send(a.slice(0, 8))).unwrap();
    a.send_cq.arm().unwrap();
    a.nothing_sent();
    a.modify(QpState::Error).unwrap();
    a.events(1);
    a.sends_end(&[(1, WcStatus::WR_FLUSH_ERR)]);
}

fn a_sleeping_sender_is_woken_by_what_it_refused(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    b.post(&Request::send(b.slice(0, 8)).id(2)).unwrap();
    b.send_cq.arm().unwrap();
    b.nothing_sent();
    let mut remote = b.remote(64);
    remote.rkey = !remote.rkey;
    a.post(&Request::write(a.slice(0, 8), remote)).unwrap();
    b.events(1);
    b.sends_end(&[(2, WcStatus::WR_FLUSH_ERR)]);
    a.sends_end(&[(1, WcStatus::REM_ACCESS_ERR)]);
}

fn a_drained_sender_is_woken_by_what_it_refused(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.receives([20]);
    b.modify(QpState::Sqd).unwrap();
    b.post(&Request::send(b.slice(0, 8)).id(2)).unwrap();
    b.send_cq.arm().unwrap();
    b.nothing_sent();
    let mut remote = b.remote(64);
    remote.rkey = !remote.rkey;
    a.post(&Request::write(a.slice(0, 8), remote)).unwrap();
    b.events(1);
    b.sends_end(&[(2, WcStatus::WR_FLUSH_ERR)]);
    a.sends_end(&[(1, WcStatus::REM_ACCESS_ERR)]);
    a.receives_end(&[(20, WcStatus::WR_FLUSH_ERR)]);
}

fn a_solicited_message_wakes(lab: &Lab) {
    let (b, a) = lab.pair(Setup::default());
    let write_with_imm = Request::new(Opcode::RdmaWriteWithImm, b.slice(0, 8), Some(a.remote(64)));
    for request in [Request::send(b.slice(0, 8)), write_with_imm] {
        for solicited in [false, true] {
            a.receives([10]);
            a.recv_cq.arm_solicited().unwrap();
            b.post(&if solicited { request.clone().solicited() } else { request.clone() }).unwrap();
            a.receives_end(&[(10, WcStatus::SUCCESS)]);
            b.sends_end(&[(1, WcStatus::SUCCESS)]);
            events_before_the_last(&a, &b, solicited.into());
        }
    }
}

fn flushed_receives_are_solicited(lab: &Lab) {
    let (a, _b) = lab.pair(Setup::default());
    a.receives([20]);
    a.recv_cq.arm_solicited().unwrap();
    a.modify(QpState::Error).unwrap();
    a.events(1);
    a.receives_end(&[(20, WcStatus::WR_FLUSH_ERR)]);
}

/// A's send queue, armed for solicited completions, has one that failed; and one of its receives, which gives an event
/// behind, was flushed.
fn failed_send(lab: &Lab) -> End {
    let (a, b) = lab.pair(Setup::default());
    a.send_cq.arm_solicited().unwrap();
    let mut remote = b.remote(64);
    remote.rkey = !remote.rkey;
    a.post(&Request::write(a.slice(0, 8), remote)).unwrap();
    a.sends_end(&[(1, WcStatus::REM_ACCESS_ERR)]);
    a.comes_to(QpState::Error);
    a.modify(QpState::Reset).unwrap();
    a.connect(&b);
    a.receives([20]);
    a.recv_cq.arm().unwrap();
    a.modify(QpState::Error).unwrap();
    a.receives_end(&[(20, WcStatus::WR_FLUSH_ERR)]);
    a
}

fn failed_sends_are_solicited(lab: &Lab) {
    let a = failed_send(lab);
    a.events(2);
}

fn rxe_failed_sends_are_solicited(lab: &Lab) {
    let a = failed_send(lab);
    a.events(1);
    a.no_event();
}

fn own_sends_are_not_solicited(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    b.receives([10]);
    a.send_cq.arm_solicited().unwrap();
    a.post(&Request::send(a.slice(0, 8)).solicited()).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
    events_before_the_last(&a, &b, 0);
}

fn the_wider_request_holds(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.send_cq.arm().unwrap();
    a.send_cq.arm_solicited().unwrap();
    a.post(&write(&a, &b)).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    events_before_the_last(&a, &b, 1);
}

fn arming_twice_gives_one_event(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.send_cq.arm().unwrap();
    a.send_cq.arm().unwrap();
    for _ in 0..2 {
        a.post(&write(&a, &b)).unwrap();
        a.sent(1);
    }
    events_before_the_last(&a, &b, 1);
}
