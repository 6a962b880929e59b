//! In which states work requests are taken.

use verbmark::verbs::{Attributes, QpState, WcStatus};

use crate::lab::{End, Lab, Request, Setup};
use crate::rule::rules;

rules! {
    "Posting in each state (RC)";
    no_receive_in_reset: "IBTA 11.4.1.2; IBTA 10.3.1.1",
        "In RESET a receive is refused.";
    receives_in_init_wait: "IBTA 10.3.1.2",
        "In INIT and in RTR receives are taken, and later messages complete them in that order.";
    no_send_in_reset: "IBTA 11.4.1.1; IBTA 10.3.1.1",
        "In RESET a send is refused, and it is never sent: not after the queue pair was connected either.",
        but rxe "6.1": "The send is refused and kept: it is sent once the queue pair is connected." => rxe_no_send_in_reset;
    no_send_in_init: "IBTA 11.4.1.1; IBTA 10.3.1.2",
        "In INIT a send is refused, and it is never sent.",
        but rxe "6.1": "The send is refused and kept: it is sent once the queue pair is connected." => rxe_no_send_in_init;
    no_send_in_rtr: "IBTA 11.4.1.1; IBTA 10.3.1.3",
        "In RTR a send is refused, and it is never sent.",
        but rxe "6.1": "The send is refused and kept: it is sent once the queue pair is connected." => rxe_no_send_in_rtr;
    rtr_receives: "IBTA 10.3.1.3",
        "In RTR messages of the peer are received.";
    sends_in_error_are_flushed: "IBTA 10.3.1.7",
        "In ERROR sends are taken and complete with WR_FLUSH_ERR, in order, signalled or not.";
    receives_in_error_are_flushed: "IBTA 10.3.1.7",
        "In ERROR receives are taken and complete with WR_FLUSH_ERR, in order.",
        but rxe "6.1": "They are taken, and complete only when the queue pair is moved to ERROR once more." => rxe_receives_in_error_are_flushed;
}

fn no_receive_in_reset(lab: &Lab) {
    let a = lab.end(Setup::default());
    assert!(a.receive(1, a.slice(0, 8)).is_err(), "a receive was taken in {}", a.state());
}

fn receives_in_init_wait(lab: &Lab) {
    let (a, b) = (lab.end(Setup::default()), lab.end(Setup::default()));
    a.connect(&b);
    b.modify(b.init()).unwrap();
    b.receives([1, 2]);
    b.modify(b.rtr(&a)).unwrap();
    b.receives([3]);
    for id in 1..=3 {
        a.post(&Request::send(a.slice(0, 8)).id(id)).unwrap();
    }
    a.sends_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS), (3, WcStatus::SUCCESS)]);
    b.receives_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS), (3, WcStatus::SUCCESS)]);
}

/// A posts a send in this state, which must be refused, is then connected, and sends something else. Both ends, for a
/// look at what was sent.
fn is_refused(lab: &Lab, state: QpState) -> (End, End) {
    let (a, b) = (lab.end(Setup::default()), lab.end(Setup::default()));
    b.connect(&a);
    b.receives([10, 11]);
    let offer = |a: &End| {
        if a.state() == state {
            let posted = a.post(&Request::send(a.slice(0, 8)).id(1));
            assert!(posted.is_err(), "a send was taken in {state}");
        }
    };
    offer(&a);
    for step in [Attributes::from(a.init()), a.rtr(&b).into(), a.rts().into()] {
        a.modify(step).unwrap();
        offer(&a);
    }
    a.post(&Request::send(a.slice(0, 8)).id(2)).unwrap();
    (a, b)
}

fn is_never_sent(lab: &Lab, state: QpState) {
    let (a, b) = is_refused(lab, state);
    a.sends_end(&[(2, WcStatus::SUCCESS)]);
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
}

fn is_sent_later(lab: &Lab, state: QpState) {
    let (a, b) = is_refused(lab, state);
    a.sends_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    b.receives_end(&[(10, WcStatus::SUCCESS), (11, WcStatus::SUCCESS)]);
}

fn no_send_in_reset(lab: &Lab) {
    is_never_sent(lab, QpState::Reset);
}

fn rxe_no_send_in_reset(lab: &Lab) {
    is_sent_later(lab, QpState::Reset);
}

fn no_send_in_init(lab: &Lab) {
    is_never_sent(lab, QpState::Init);
}

fn rxe_no_send_in_init(lab: &Lab) {
    is_sent_later(lab, QpState::Init);
}

fn no_send_in_rtr(lab: &Lab) {
    is_never_sent(lab, QpState::Rtr);
}

fn rxe_no_send_in_rtr(lab: &Lab) {
    is_sent_later(lab, QpState::Rtr);
}

fn rtr_receives(lab: &Lab) {
    let (a, b) = (lab.end(Setup::default()), lab.end(Setup::default()));
    a.connect(&b);
    b.modify(b.init()).unwrap();
    b.modify(b.rtr(&a)).unwrap();
    b.receives([10]);
    a.post(&Request::send(a.slice(0, 8))).unwrap();
    a.post(&Request::write(a.slice(0, 8), b.remote(64)).id(2)).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
    assert_eq!(b.state(), QpState::Rtr);
}

fn sends_in_error_are_flushed(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    b.receives([10]);
    a.modify(QpState::Error).unwrap();
    a.post(&Request::send(a.slice(0, 8)).id(1)).unwrap();
    a.post(&Request::write(a.slice(0, 8), b.remote(64)).id(2).unsignalled()).unwrap();
    a.sends_end(&[(1, WcStatus::WR_FLUSH_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    b.nothing_received();
}

fn receives_in_error_are_flushed(lab: &Lab) {
    let (a, _b) = lab.pair(Setup::default());
    a.modify(QpState::Error).unwrap();
    a.receives([1, 2]);
    a.receives_end(&[(1, WcStatus::WR_FLUSH_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
}

fn rxe_receives_in_error_are_flushed(lab: &Lab) {
    let (a, _b) = lab.pair(Setup::default());
    a.modify(QpState::Error).unwrap();
    a.receives([1, 2]);
    // Long enough for a flush to come, as far as other traffic can tell.
    lab.is_through();
    a.nothing_received();
    a.modify(QpState::Error).unwrap();
    a.receives_end(&[(1, WcStatus::WR_FLUSH_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
}
