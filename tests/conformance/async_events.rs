//! Asynchronous events: what no completion tells. That there was none is told by one that is provoked later.

use verbmark::verbs::{AsyncEvent, Opcode, QpState, RemoteSlice, WcStatus};

use crate::lab::{End, Lab, Request, Setup};
use crate::rule::rules;

rules! {
    "Asynchronous events";
    what_works_is_silent: "ibv_get_async_event(3)",
        "Connections that are made, used and taken apart give no event.";
    a_lost_completion_is_told: "ibv_poll_cq(3), notes; IBTA 11.6.3",
        "A completion queue overrun: IBV_EVENT_CQ_ERR.";
    a_refused_access_is_told: "ibv_get_async_event(3); IBTA 11.6.3",
        "B refused an RDMA WRITE for its key: IBV_EVENT_QP_ACCESS_ERR for B's queue pair, and none for A's.",
        but rxe "6.1": "There is none." => rxe_a_refused_access_is_told;
    a_refused_request_is_told: "ibv_get_async_event(3); IBTA 11.6.3",
        "B refused an RDMA READ because its queue pair does not allow any: IBV_EVENT_QP_REQ_ERR for B's queue pair, and none for A's.",
        but rxe "6.1": "There is none." => rxe_a_refused_request_is_told;
    a_failed_send_is_not_told: "IBTA 11.6.3",
        "A send of A that fails for its own memory: the completion tells, and there is no event.";
    the_first_message_is_told: "ibv_get_async_event(3); IBTA 10.3.1.3",
        "The first message to B in RTR: IBV_EVENT_COMM_EST for B's queue pair, once.",
        but rxe "6.1": "There is none." => rxe_the_first_message_is_told;
    a_low_shared_queue_is_told: "ibv_modify_srq(3); IBTA 10.2.9",
        "A limit of 3 on a shared queue of 4 receives: IBV_EVENT_SRQ_LIMIT_REACHED when the second message leaves 2, and not again.";
    the_last_shared_receive_is_told: "ibv_get_async_event(3); IBTA 10.2.9",
        "A queue pair with a shared receive queue moved to ERROR: IBV_EVENT_QP_LAST_WQE_REACHED.",
        but rxe "6.1": "There is none." => rxe_the_last_shared_receive_is_told;
}

/// What the device told so far.
fn told(lab: &Lab) -> Vec<AsyncEvent> {
    let _overfull = lab.overfull();
    let mut told = Vec::new();
    loop {
        match lab.async_event() {
            AsyncEvent::CqError => return told,
            event => told.push(event),
        }
    }
}

fn what_works_is_silent(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fence(&b);
    b.fence(&a);
    a.modify(QpState::Error).unwrap();
    b.modify(QpState::Reset).unwrap();
    assert_eq!(told(lab), []);
}

fn a_lost_completion_is_told(lab: &Lab) {
    let _overfull = lab.overfull();
    assert_eq!(lab.async_event(), AsyncEvent::CqError);
}

/// B has refused an RDMA WRITE for its key.
fn refused_access(lab: &Lab) -> (End, End) {
    let (a, b) = lab.pair(Setup::default());
    let nowhere = RemoteSlice { rkey: !b.mr.rkey(), ..b.remote(64) };
    a.post(&Request::write(a.slice(0, 8), nowhere)).unwrap();
    a.sends_end(&[(1, WcStatus::REM_ACCESS_ERR)]);
    b.comes_to(QpState::Error);
    (a, b)
}

fn a_refused_access_is_told(lab: &Lab) {
    let (_a, b) = refused_access(lab);
    assert_eq!(told(lab), [AsyncEvent::QpAccessError { qpn: b.qp.number() }]);
}

fn rxe_a_refused_access_is_told(lab: &Lab) {
    let _ends = refused_access(lab);
    assert_eq!(told(lab), []);
}

/// B has refused an RDMA READ for what its queue pair allows.
fn refused_request(lab: &Lab) -> (End, End) {
    let (a, b) = (lab.end(Setup::default()), lab.end(Setup { reads_in: 0, ..Setup::default() }));
    a.connect(&b);
    b.connect(&a);
    a.post(&Request::new(Opcode::RdmaRead, a.slice(0, 8), Some(b.remote(64)))).unwrap();
    a.sends_end(&[(1, WcStatus::REM_INV_REQ_ERR)]);
    b.comes_to(QpState::Error);
    (a, b)
}

fn a_refused_request_is_told(lab: &Lab) {
    let (_a, b) = refused_request(lab);
    assert_eq!(told(lab), [AsyncEvent::QpRequestError { qpn: b.qp.number() }]);
}

fn rxe_a_refused_request_is_told(lab: &Lab) {
    let _ends = refused_request(lab);
    assert_eq!(told(lab), []);
}

fn a_failed_send_is_not_told(lab: &Lab) {
    let (a, _b) = lab.pair(Setup::default());
    a.post(&Request::send(a.mr.claim(!a.mr.lkey(), 0, 8))).unwrap();
    assert!(!a.sent(1)[0].is_success());
    a.comes_to(QpState::Error);
    assert_eq!(told(lab), []);
}

/// B, in RTR, has had two messages.
fn established(lab: &Lab) -> (End, End) {
    let (a, b) = (lab.end(Setup::default()), lab.end(Setup::default()));
    b.modify(b.init()).unwrap();
    b.modify(b.rtr(&a)).unwrap();
    b.receives([10, 11]);
    a.connect(&b);
    a.post_all(&[Request::send(a.slice(0, 8)), Request::send(a.slice(0, 8))]);
    b.receives_end(&[(10, WcStatus::SUCCESS), (11, WcStatus::SUCCESS)]);
    (a, b)
}

fn the_first_message_is_told(lab: &Lab) {
    let (_a, b) = established(lab);
    assert_eq!(told(lab), [AsyncEvent::CommEstablished { qpn: b.qp.number() }]);
}

fn rxe_the_first_message_is_told(lab: &Lab) {
    let _ends = established(lab);
    assert_eq!(told(lab), []);
}

fn a_low_shared_queue_is_told(lab: &Lab) {
    let pd = lab.context.alloc_pd().unwrap();
    let srq = pd.create_srq(8, 1).unwrap();
    let (a, b) = (lab.end(Setup::default()), lab.end_sharing(&pd, &srq, Setup::default()));
    a.connect(&b);
    b.connect(&a);
    srq.receiver(b.slice(0, 8)).post_many(4).unwrap();
    srq.set_limit(3).unwrap();
    let send = || {
        a.post(&Request::send(a.slice(0, 8))).unwrap();
        a.sends_end(&[(1, WcStatus::SUCCESS)]);
        b.received(1);
    };
    send();
    assert_eq!(told(lab), []);
    send();
    send();
    let told: Vec<_> = told(lab).into_iter().filter(|event| !of_the_provoked(event)).collect();
    assert_eq!(told, [AsyncEvent::SrqLimitReached]);
}

/// Where a queue pair fails with its completion queue, the event of that is behind the one that is waited for.
fn of_the_provoked(event: &AsyncEvent) -> bool {
    matches!(event, AsyncEvent::QpFatal { .. })
}

/// A queue pair that shares receives is in ERROR.
fn left(lab: &Lab) -> End {
    let pd = lab.context.alloc_pd().unwrap();
    let srq = pd.create_srq(8, 1).unwrap();
    let (a, b) = (lab.end(Setup::default()), lab.end_sharing(&pd, &srq, Setup::default()));
    b.connect(&a);
    b.modify(QpState::Error).unwrap();
    b
}

fn the_last_shared_receive_is_told(lab: &Lab) {
    let b = left(lab);
    assert_eq!(told(lab), [AsyncEvent::LastWqeReached { qpn: b.qp.number() }]);
}

fn rxe_the_last_shared_receive_is_told(lab: &Lab) {
    let _end = left(lab);
    assert_eq!(told(lab), []);
}
