//! What happens to work that is outstanding when a queue pair fails.

use verbmark::verbs::{Opcode, QpState, WcStatus};

use crate::lab::{End, Lab, Request, Setup};
use crate::rule::rules;

rules! {
    "Errors and flushing (RC)";
    both_queues_are_flushed_in_order: "IBTA 10.3.1.7; IBTA 10.10.2.2",
        "Moved to ERROR with sends waiting and receives posted: each completes with WR_FLUSH_ERR, each queue in the order posted.";
    unsignalled_work_is_flushed_visibly: "IBTA 10.8.6",
        "Unsignalled sends that are flushed complete, each of them.";
    unsignalled_success_before_a_failure_stays_silent: "IBTA 10.8.6",
        "Unsignalled sends that succeeded before one that fails have no completion.";
    a_failure_completes_unsignalled: "IBTA 10.8.6",
        "A send that fails completes, signalled or not.";
    success_outlives_the_failure: "IBTA 10.3.1.7",
        "Completions that were not taken when the queue pair failed can still be taken, before those of the failure.";
    a_failed_requester_flushes_its_receives: "IBTA 10.3.1.7; IBTA 9.9.2",
        "A's receives are flushed, in order, when one of its sends fails.";
    a_failed_responder_flushes_its_sends: "IBTA 10.3.1.7; IBTA 9.9.3",
        "B's waiting sends are flushed, in order, when it refuses what A asked.";
    the_peer_is_not_told_of_an_error: "IBTA 10.3.1.7",
        "A moved to ERROR: B stays in RTS with its receives.";
    only_the_first_failure_is_told: "IBTA 10.10.2.2",
        "Two requests that must fail: the first completes with its error, the second with WR_FLUSH_ERR.";
    reads_under_way_are_flushed: "IBTA 10.3.1.7",
        "RDMA READs posted behind a send that waits complete with WR_FLUSH_ERR, and change nothing.";
}

fn send(a: &End, id: u64) -> Request {
    Request::send(a.slice(0, 8)).id(id)
}

fn write(a: &End, b: &End, id: u64) -> Request {
    Request::write(a.slice(0, 8), b.remote(64)).id(id)
}

fn bad_write(a: &End, b: &End, id: u64) -> Request {
    let mut remote = b.remote(64);
    remote.rkey = !remote.rkey;
    Request::write(a.slice(0, 8), remote).id(id)
}

fn flushed<const N: usize>(ids: [u64; N]) -> [(u64, WcStatus); N] {
    ids.map(|id| (id, WcStatus::WR_FLUSH_ERR))
}

fn both_queues_are_flushed_in_order(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.receives([20, 21, 22]);
    a.post_all(&[send(&a, 1), send(&a, 2), write(&a, &b, 3)]);
    a.modify(QpState::Error).unwrap();
    a.sends_end(&flushed([1, 2, 3]));
    a.receives_end(&flushed([20, 21, 22]));
    b.nothing_received();
    assert_eq!(b.bytes(64, 8), [0; 8]);
}

fn unsignalled_work_is_flushed_visibly(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.post_all(&[send(&a, 1).unsignalled(), write(&a, &b, 2).unsignalled(), send(&a, 3)]);
    a.modify(QpState::Error).unwrap();
    a.sends_end(&flushed([1, 2, 3]));
}

fn unsignalled_success_before_a_failure_stays_silent(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(0, &[3; 8]);
    a.post_all(&[write(&a, &b, 1).unsignalled(), write(&a, &b, 2).unsignalled(), bad_write(&a, &b, 3)]);
    a.sends_end(&[(3, WcStatus::REM_ACCESS_ERR)]);
    assert_eq!(b.bytes(64, 8), [3; 8]);
}

fn a_failure_completes_unsignalled(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.post(&bad_write(&a, &b, 1).unsignalled()).unwrap();
    a.sends_end(&[(1, WcStatus::REM_ACCESS_ERR)]);
}

fn success_outlives_the_failure(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    b.receives([30, 31, 32]);
    a.post_all(&[send(&a, 1), send(&a, 2), bad_write(&a, &b, 3)]);
    b.comes_to(QpState::Error);
    a.comes_to(QpState::Error);
    a.sends_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS), (3, WcStatus::REM_ACCESS_ERR)]);
    b.receives_end(&[(30, WcStatus::SUCCESS), (31, WcStatus::SUCCESS), (32, WcStatus::WR_FLUSH_ERR)]);
}

fn a_failed_requester_flushes_its_receives(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.receives(20..28);
    a.post(&bad_write(&a, &b, 1)).unwrap();
    a.sends_end(&[(1, WcStatus::REM_ACCESS_ERR)]);
    a.receives_end(&flushed([20, 21, 22, 23, 24, 25, 26, 27]));
}

fn a_failed_responder_flushes_its_sends(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    b.post_all(&[send(&b, 40), send(&b, 41).unsignalled()]);
    a.post(&bad_write(&a, &b, 1)).unwrap();
    a.sends_end(&[(1, WcStatus::REM_ACCESS_ERR)]);
    b.sends_end(&flushed([40, 41]));
    b.comes_to(QpState::Error);
}

fn the_peer_is_not_told_of_an_error(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.receives([20]);
    b.receives([30]);
    a.modify(QpState::Error).unwrap();
    a.receives_end(&flushed([20]));
    assert_eq!(b.state(), QpState::Rts);
    b.nothing_received();
}

fn only_the_first_failure_is_told(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    // Both wait, so that the second is posted before the first fails.
    a.post_all(&[send(&a, 1), bad_write(&a, &b, 2), bad_write(&a, &b, 3)]);
    b.receives([30]);
    a.sends_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::REM_ACCESS_ERR), (3, WcStatus::WR_FLUSH_ERR)]);
    b.receives_end(&[(30, WcStatus::SUCCESS)]);
}

fn reads_under_way_are_flushed(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    b.fill(64, &[5; 8]);
    let read = |id| Request::new(Opcode::RdmaRead, a.slice(128, 8), Some(b.remote(64))).id(id);
    a.post_all(&[send(&a, 1), read(2), read(3)]);
    a.modify(QpState::Error).unwrap();
    a.sends_end(&flushed([1, 2, 3]));
    assert_eq!(a.bytes(128, 8), [0; 8]);
}
