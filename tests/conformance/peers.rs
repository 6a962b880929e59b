//! Peers that do not answer.

use verbmark::verbs::{Attributes, Opcode, QpState, WcStatus};

use crate::lab::{End, Lab, Request, Setup};
use crate::rule::rules;

rules! {
    "Peers that do not answer (RC)";
    peer_is_gone: "IBTA 9.7.6.1.3; IBTA 11.6.2",
        "B's queue pair was destroyed: SEND, RDMA WRITE and READ end with RETRY_EXC_ERR, what follows is flushed, A is in ERROR with its receives flushed.";
    peer_is_in_error: "IBTA 10.3.1.7; IBTA 11.6.2",
        "B is in ERROR: the same.";
    peer_is_in_reset: "IBTA 10.3.1.1; IBTA 11.6.2",
        "B is in RESET: the same.";
    peer_is_in_init: "IBTA 10.3.1.2; IBTA 11.6.2",
        "B is in INIT, with a receive posted: the same, and the receive stays.";
    peer_expects_another_number: "IBTA 9.7.4.1; IBTA 11.6.2",
        "A's first PSN is ahead of the one B was told: the same, and B stays in RTS.";
    peer_has_had_that_number: "IBTA 9.7.1; IBTA 9.7.5.1",
        "A's first PSN is behind the one B was told, as that of a message sent again is: SEND and RDMA WRITE succeed, and have no effect at B.";
    peer_never_was: "IBTA 9.6.1; IBTA 11.6.2",
        "No queue pair has the number A was told: the same.";
    retries_are_counted: "IBTA 9.7.6.1.3",
        "Retry count 3, B gone: where the port counts, it has seen three retries and one that were too many.";
    seven_retries_are_seven: "IBTA 9.7.6.1.3; IBTA 11.2.5.2",
        "Retry count 7, B gone: RETRY_EXC_ERR after seven retries.",
        but rxe "6.1": "7 is without an end: the request is retried more than seven times and does not complete." => rxe_seven_retries_are_seven;
}

/// A sends, writes or reads, with a request behind; nobody answers.
fn no_answer(a: &End, b: &End, opcode: Opcode) {
    a.receives([20]);
    let remote = (opcode != Opcode::Send).then(|| b.remote(64));
    a.post(&Request::new(opcode, a.slice(0, 8), remote)).unwrap();
    let _ = a.post(&Request::write(a.slice(0, 8), b.remote(64)).id(2).unsignalled());
    a.sends_end(&[(1, WcStatus::RETRY_EXC_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    a.receives_end(&[(20, WcStatus::WR_FLUSH_ERR)]);
    a.comes_to(QpState::Error);
    assert_eq!(b.bytes(64, 8), [0; 8]);
}

const OPCODES: [Opcode; 3] = [Opcode::Send, Opcode::RdmaWrite, Opcode::RdmaRead];

fn for_each_operation(lab: &Lab, spoil: impl Fn(&mut End)) {
    for opcode in OPCODES {
        let (a, mut b) = lab.pair(Setup::impatient());
        spoil(&mut b);
        no_answer(&a, &b, opcode);
    }
}

fn peer_is_gone(lab: &Lab) {
    for_each_operation(lab, |b| b.replace_queue_pair());
}

fn peer_is_in_error(lab: &Lab) {
    for_each_operation(lab, |b| b.modify(QpState::Error).unwrap());
}

fn peer_is_in_reset(lab: &Lab) {
    for_each_operation(lab, |b| b.modify(QpState::Reset).unwrap());
}

fn peer_is_in_init(lab: &Lab) {
    for opcode in OPCODES {
        let (a, b) = (lab.end(Setup::impatient()), lab.end(Setup::impatient()));
        a.connect(&b);
        b.modify(b.init()).unwrap();
        b.receives([30]);
        no_answer(&a, &b, opcode);
        b.nothing_received();
        assert_eq!(b.state(), QpState::Init);
    }
}

fn peer_expects_another_number(lab: &Lab) {
    let (a, b) = (lab.end(Setup::impatient()), lab.end(Setup::impatient()));
    a.connect(&b);
    b.modify(b.init()).unwrap();
    let rtr = b.rtr(&a);
    b.modify(Attributes { rq_psn: Some(rtr.rq_psn - 0x4000), ..rtr.into() }).unwrap();
    b.modify(b.rts()).unwrap();
    no_answer(&a, &b, Opcode::RdmaWrite);
    assert_eq!(b.state(), QpState::Rts);
}

fn peer_has_had_that_number(lab: &Lab) {
    let (a, b) = (lab.end(Setup::default()), lab.end(Setup::default()));
    a.connect(&b);
    b.modify(b.init()).unwrap();
    let rtr = b.rtr(&a);
    b.modify(Attributes { rq_psn: Some((rtr.rq_psn + 2) & 0x00ff_ffff), ..rtr.into() }).unwrap();
    b.receives([30]);
    a.fill(0, &[3; 8]);
    a.post_all(&[
        Request::send(a.slice(0, 8)).id(1),
        Request::write(a.slice(0, 8), b.remote(128)).id(2),
        // From here on B has not seen them.
        Request::write(a.slice(0, 8), b.remote(192)).id(3),
        Request::send(a.slice(0, 8)).id(4),
    ]);
    a.sends_end(&[1, 2, 3, 4].map(|id| (id, WcStatus::SUCCESS)));
    b.receives_end(&[(30, WcStatus::SUCCESS)]);
    assert_eq!((b.bytes(128, 8), b.bytes(192, 8)), (vec![0; 8], vec![3; 8]));
}

fn peer_never_was(lab: &Lab) {
    let (a, b) = (lab.end(Setup::impatient()), lab.end(Setup::impatient()));
    b.connect(&a);
    a.modify(a.init()).unwrap();
    let nobody = b.qp.number() ^ 0x0080_0000;
    a.modify(Attributes { dest_qpn: Some(nobody), ..a.rtr(&b).into() }).unwrap();
    a.modify(a.rts()).unwrap();
    no_answer(&a, &b, Opcode::RdmaWrite);
    assert_eq!(b.state(), QpState::Rts);
}

fn retries_are_counted(lab: &Lab) {
    let (a, b) = lab.pair(Setup { retry_count: 3, ..Setup::impatient() });
    b.modify(QpState::Error).unwrap();
    let counts = || ["completer_retry_err", "retry_exceeded_err"].map(|name| lab.counter(name));
    let before = counts();
    no_answer(&a, &b, Opcode::RdmaWrite);
    let [retried, exceeded] = counts();
    assert!(retried >= before[0].map(|count| count + 3), "{before:?} and {retried:?}");
    assert_eq!(exceeded, before[1].map(|count| count + 1));
}

fn seven_retries_are_seven(lab: &Lab) {
    let (a, b) = lab.pair(Setup { retry_count: 7, ..Setup::impatient() });
    b.modify(QpState::Error).unwrap();
    no_answer(&a, &b, Opcode::RdmaWrite);
}

fn rxe_seven_retries_are_seven(lab: &Lab) {
    let (a, b) = lab.pair(Setup { retry_count: 7, ..Setup::impatient() });
    b.modify(QpState::Error).unwrap();
    let retried = lab.counter("completer_retry_err").unwrap();
    a.post(&Request::write(a.slice(0, 8), b.remote(64))).unwrap();
    lab.comes_to_count("completer_retry_err", retried + 10);
    a.nothing_sent();
    assert_eq!(a.state(), QpState::Rts);
}
