//! Queues that are full, receives that are missing, completions nobody asked for.

use std::time::{Duration, Instant};

use verbmark::verbs::{AsyncEvent, Opcode, QpState, Wc, WcStatus};

use crate::lab::{End, Lab, Request, Setup, gist};
use crate::rule::rules;

rules! {
    "Queues and receivers that are not ready (RC)";
    only_signalled_sends_complete: "ibv_post_send(3); IBTA 10.8.6",
        "Of sends posted with every fourth signalled, exactly those complete.";
    unsignalled_sends_give_their_places_back: "IBTA 10.8.6",
        "Many more unsignalled sends than the queue is deep pass through it, a signalled one in every half of it.";
    a_full_send_queue_refuses: "ibv_create_qp(3); IBTA 11.4.1.1",
        "As many sends as were granted are taken while none completes; the next is refused, and those taken are all sent.",
        but rxe "6.1": "31 are taken where 16 were granted: the room of its ring." => rxe_a_full_send_queue_refuses;
    a_full_receive_queue_refuses: "ibv_create_qp(3); IBTA 11.4.1.2",
        "As many receives as were granted are taken; the next is refused, and those taken are all filled.",
        but rxe "6.1": "31 are taken where 16 were granted: the room of its ring." => rxe_a_full_receive_queue_refuses;
    a_send_waits_for_a_receive: "IBTA 9.7.5.2.8",
        "RNR retry count 7: a SEND without a receive at B waits without an end, and succeeds once there is one.";
    nothing_overtakes_a_waiting_send: "IBTA 10.8.3",
        "RNR retry count 7: an RDMA WRITE posted behind a SEND that waits is not executed before it.";
    a_write_with_imm_waits_for_a_receive: "IBTA 9.7.5.2.8",
        "RNR retry count 7: an RDMA WRITE with immediate data waits for a receive, too.";
    writes_and_reads_need_no_receive: "IBTA 9.4.3; IBTA 9.4.4",
        "RDMA WRITE and READ succeed with no receive at B.";
    rnr_without_retries_fails: "IBTA 9.7.5.2.8; IBTA 9.9.2",
        "RNR retry count 0: a SEND without a receive at B ends with RNR_RETRY_EXC_ERR; A is in ERROR, what follows is flushed, B stays in RTS.";
    rnr_retries_are_used_up: "IBTA 9.7.5.2.8; IBTA 9.9.2",
        "RNR retry count 2: the same after two retries; where the port counts, its RNR counters have moved.";
    a_reached_receiver_restores_the_retries: "IBTA 9.9.2",
        "RNR retry count 6: eight SENDs that each had to wait for a receive succeed, as each that succeeds gives the retries back.";
    a_full_completion_queue_cannot_be_used: "ibv_poll_cq(3), notes; IBTA 10.10.2.3",
        "More completions than the queue has room for: an asynchronous event, and polling fails in the end.",
        but rxe "6.1": "There is the event, what has no room is lost, and polling goes on without an error." => rxe_a_full_completion_queue_cannot_be_used;
}

fn write(a: &End, b: &End, id: u64) -> Request {
    Request::write(a.slice(0, 8), b.remote(64)).id(id)
}

fn send(a: &End, id: u64) -> Request {
    Request::send(a.slice(0, 8)).id(id)
}

fn only_signalled_sends_complete(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    for id in 1..=12 {
        let request = write(&a, &b, id);
        a.post(&if id % 4 == 0 { request } else { request.unsignalled() }).unwrap();
    }
    a.sends_end(&[4, 8, 12].map(|id| (id, WcStatus::SUCCESS)));
}

fn unsignalled_sends_give_their_places_back(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let half = u64::from(a.qp.caps().max_send_wr / 2);
    for round in 0..10 {
        for id in 1..half {
            a.post(&write(&a, &b, id).unsignalled()).unwrap();
        }
        a.post(&write(&a, &b, 1000 + round)).unwrap();
        a.sends_end(&[(1000 + round, WcStatus::SUCCESS)]);
    }
}

/// Posts until the device refuses, at most some more than what was granted; how many it took.
fn taken(granted: u32, mut post: impl FnMut(u64) -> bool) -> u64 {
    (0..4 * u64::from(granted)).take_while(|&id| post(id)).count() as u64
}

fn a_full_send_queue_refuses(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let granted = a.qp.caps().max_send_wr;
    let took = taken(granted, |id| a.post(&send(&a, id)).is_ok());
    all_are_sent(&a, &b, took);
    assert_eq!(took, u64::from(granted));
}

fn rxe_a_full_send_queue_refuses(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let took = taken(a.qp.caps().max_send_wr, |id| a.post(&send(&a, id)).is_ok());
    all_are_sent(&a, &b, took);
    assert_eq!((took, a.qp.caps().max_send_wr), (31, 16));
}

fn all_are_sent(a: &End, b: &End, count: u64) {
    for _ in 0..count {
        b.receives([10]);
        b.received(1);
    }
    let ids: Vec<_> = (0..count).map(|id| (id, WcStatus::SUCCESS)).collect();
    a.sends_end(&ids);
}

fn a_full_receive_queue_refuses(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let granted = b.qp.caps().max_recv_wr;
    let took = taken(granted, |id| b.receive(id, b.slice(0, 8)).is_ok());
    all_are_filled(&a, &b, took);
    assert_eq!(took, u64::from(granted));
}

fn rxe_a_full_receive_queue_refuses(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let took = taken(b.qp.caps().max_recv_wr, |id| b.receive(id, b.slice(0, 8)).is_ok());
    all_are_filled(&a, &b, took);
    assert_eq!((took, b.qp.caps().max_recv_wr), (31, 16));
}

fn all_are_filled(a: &End, b: &End, count: u64) {
    for id in 0..count {
        a.post(&send(a, id)).unwrap();
        a.sent(1);
    }
    let ids: Vec<_> = (0..count).map(|id| (id, WcStatus::SUCCESS)).collect();
    b.receives_end(&ids);
}

fn a_send_waits_for_a_receive(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let refused = lab.counter("send_rnr_err");
    a.post(&send(&a, 1)).unwrap();
    if let Some(refused) = refused {
        // More refusals than any finite count of retries would survive.
        lab.comes_to_count("send_rnr_err", refused + 10);
    }
    a.nothing_sent();
    b.receives([10]);
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
}

fn nothing_overtakes_a_waiting_send(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(0, &[9; 8]);
    a.post_all(&[send(&a, 1), write(&a, &b, 2)]);
    b.fence(&a);
    a.nothing_sent();
    assert_eq!(b.bytes(64, 8), [0; 8]);
    b.receives([10]);
    a.sends_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    assert_eq!(b.bytes(64, 8), [9; 8]);
}

fn a_write_with_imm_waits_for_a_receive(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.post(&Request::new(Opcode::RdmaWriteWithImm, a.slice(0, 8), Some(b.remote(64))).imm(5)).unwrap();
    b.fence(&a);
    a.nothing_sent();
    b.receives([10]);
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    assert_eq!(b.received(1)[0].imm(), 5);
}

fn writes_and_reads_need_no_receive(lab: &Lab) {
    let (a, b) = lab.pair(Setup { rnr_retry: 0, ..Setup::default() });
    a.post_all(&[write(&a, &b, 1), Request::new(Opcode::RdmaRead, a.slice(0, 8), Some(b.remote(64))).id(2)]);
    a.sends_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
}

fn fails_for_want_of_a_receive(lab: &Lab, rnr_retry: u8) {
    let (a, b) = lab.pair(Setup { rnr_retry, ..Setup::default() });
    a.receives([20]);
    a.post_all(&[send(&a, 1), write(&a, &b, 2).unsignalled()]);
    a.sends_end(&[(1, WcStatus::RNR_RETRY_EXC_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    a.comes_to(QpState::Error);
    a.receives_end(&[(20, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!(b.state(), QpState::Rts);
    b.nothing_received();
}

fn rnr_without_retries_fails(lab: &Lab) {
    fails_for_want_of_a_receive(lab, 0);
}

fn rnr_retries_are_used_up(lab: &Lab) {
    let before = ["send_rnr_err", "rcvd_rnr_err"].map(|name| lab.counter(name));
    fails_for_want_of_a_receive(lab, 2);
    let after = ["send_rnr_err", "rcvd_rnr_err"].map(|name| lab.counter(name));
    for (before, after) in before.into_iter().zip(after) {
        // Once, and again for each retry.
        assert!(after >= before.map(|count| count + 3), "{before:?} and {after:?}");
    }
}

fn a_reached_receiver_restores_the_retries(lab: &Lab) {
    // The most patient of all finite settings. A machine that stands still for longer proves nothing.
    let setup = Setup { rnr_retry: 6, min_rnr_timer: 0, ..Setup::default() };
    let patience = Duration::from_millis(6 * 655);
    'again: for _ in 0..10 {
        let (a, b) = lab.pair(setup);
        for id in 1..=8 {
            let begun = Instant::now();
            a.post(&send(&a, id)).unwrap();
            b.receives([10]);
            let was_late = begun.elapsed() >= patience;
            let end = gist(&a.sent(1));
            if was_late && end == [(id, WcStatus::RNR_RETRY_EXC_ERR)] {
                continue 'again;
            }
            assert_eq!(end, [(id, WcStatus::SUCCESS)]);
            b.receives_end(&[(10, WcStatus::SUCCESS)]);
        }
        return;
    }
    panic!("this machine stands still too often to tell");
}

fn a_full_completion_queue_cannot_be_used(lab: &Lab) {
    let (a, _b, _) = lab.overfull();
    assert_eq!(lab.async_event(), AsyncEvent::CqError);
    let mut some = [Wc::EMPTY; 8];
    let failed = (0..8).any(|_| a.send_cq.poll(&mut some).is_err());
    assert!(failed, "a queue that lost completions can still be polled");
}

fn rxe_a_full_completion_queue_cannot_be_used(lab: &Lab) {
    let (a, b, count) = lab.overfull();
    assert_eq!(lab.async_event(), AsyncEvent::CqError);
    // All are under way in order, and this one tells that they are through.
    b.receives([10]);
    a.post(&send(&a, 99).unsignalled()).unwrap();
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
    let mut some = [Wc::EMPTY; 64];
    let kept = a.send_cq.poll(&mut some).unwrap();
    assert!((3..count).contains(&kept), "{kept} of {count}");
    let first: Vec<_> = (0..kept as u64).map(|id| (id, WcStatus::SUCCESS)).collect();
    assert_eq!(gist(&some[..kept]), first);
    a.post(&write(&a, &b, 100)).unwrap();
    a.sends_end(&[(100, WcStatus::SUCCESS)]);
}
