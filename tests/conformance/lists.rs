//! Linked lists of work requests.

use verbmark::verbs::{Opcode, Partial, QpState, SendList, WcStatus};

use crate::lab::{End, Lab, Request, Setup, pattern};
use crate::rule::rules;

rules! {
    "Linked lists of work requests (RC)";
    a_list_is_executed_in_order: "ibv_post_send(3)",
        "A list of two RDMA WRITEs to the same bytes, a SEND and an RDMA READ: all are executed, in the order of the list.";
    a_list_completes_as_its_flags_say: "ibv_post_send(3); IBTA 10.8.6",
        "Of a list of six, the second, the fifth and the last are signalled: those three complete, in that order.";
    a_list_stops_at_the_first_refused: "ibv_post_send(3), bad_wr; ibv_create_qp(3)",
        "A list longer than the queue: bad_wr is the first that has no room, those before it are sent, it and those behind it are not.",
        but rxe "6.1": "31 are posted where 16 were granted, the room of its ring; what is posted is what bad_wr says." => rxe_a_list_stops_at_the_first_refused;
    the_rest_of_a_list_can_follow: "ibv_post_send(3), bad_wr",
        "The requests from bad_wr on, posted again when there is room, are sent behind the others, each once.";
    a_list_of_receives_stops_at_the_first_refused: "ibv_post_recv(3), bad_wr",
        "A list of receives longer than the queue: bad_wr is the first that has no room, and those before it are filled.",
        but rxe "6.1": "31 are posted where 16 were granted, the room of its ring; what is posted is what bad_wr says." => rxe_a_list_of_receives_stops_at_the_first_refused;
    a_list_in_error_is_flushed: "IBTA 10.3.1.7; IBTA 10.8.6",
        "A list posted in ERROR: each of it completes with WR_FLUSH_ERR, in order, signalled or not.";
    a_failure_within_a_list: "IBTA 9.9.2; IBTA 10.8.6",
        "A list whose second fails: an unsignalled first is silent, the second completes with its error, all behind with WR_FLUSH_ERR.";
    a_list_in_the_wrong_state: "ibv_post_send(3); IBTA 10.3.1.2",
        "A list posted in INIT: bad_wr is its first.";
}

const TARGET: usize = 4096;

/// Links requests; signalled are those that are so by themselves.
fn list(a: &End, requests: &[Request]) -> SendList {
    let mut list = SendList::new(requests.iter().map(|request| a.sender(request)).collect());
    for (index, request) in requests.iter().enumerate() {
        list.request(index).set_signalled(request.signalled);
    }
    list
}

fn send(a: &End, id: u64) -> Request {
    Request::send(a.slice(id as usize, 1)).id(id)
}

fn a_list_is_executed_in_order(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(0, &pattern(1, 16));
    b.receives([10]);
    let write = |from| Request::write(a.slice(from, 8), b.remote(TARGET)).unsignalled();
    let read = Request::new(Opcode::RdmaRead, a.slice(100, 8), Some(b.remote(TARGET)));
    let mut list = list(&a, &[write(0), write(8), send(&a, 1).unsignalled(), read.id(4)]);
    list.post().unwrap();
    a.sends_end(&[(4, WcStatus::SUCCESS)]);
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
    assert_eq!(b.bytes(TARGET, 8), pattern(1, 16)[8..]);
    assert_eq!(a.bytes(100, 8), pattern(1, 16)[8..]);
}

fn a_list_completes_as_its_flags_say(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let requests: Vec<_> = (1..=6)
        .map(|id| Request::write(a.slice(0, 8), b.remote(TARGET)).id(id))
        .map(|request| if [2, 5, 6].contains(&request.id) { request } else { request.unsignalled() })
        .collect();
    list(&a, &requests).post().unwrap();
    a.sends_end(&[2, 5, 6].map(|id| (id, WcStatus::SUCCESS)));
}

/// A pair, and what became of a list of forty sends while B has no receive for any; and how many were sent when it has.
fn too_long(lab: &Lab) -> (End, End, SendList, u32) {
    let (a, b) = lab.pair(Setup::default());
    let requests: Vec<_> = (0..40).map(|id| send(&a, id)).collect();
    let mut list = list(&a, &requests);
    let Partial { posted, .. } =
        list.post().expect_err("all of a list were taken that is longer than the queue");
    for id in 0..u64::from(posted) {
        b.receives([id]);
        b.received(1);
    }
    let sent: Vec<_> = (0..u64::from(posted)).map(|id| (id, WcStatus::SUCCESS)).collect();
    a.sends_end(&sent);
    (a, b, list, posted)
}

fn a_list_stops_at_the_first_refused(lab: &Lab) {
    let (a, b, _, posted) = too_long(lab);
    // Were one of the others sent, it would take this.
    b.receives([100]);
    a.post(&send(&a, 1000)).unwrap();
    a.sends_end(&[(1000, WcStatus::SUCCESS)]);
    b.receives_end(&[(100, WcStatus::SUCCESS)]);
    assert_eq!(posted, a.qp.caps().max_send_wr);
}

fn rxe_a_list_stops_at_the_first_refused(lab: &Lab) {
    let (a, b, _, posted) = too_long(lab);
    b.receives([100]);
    a.post(&send(&a, 1000)).unwrap();
    a.sends_end(&[(1000, WcStatus::SUCCESS)]);
    b.receives_end(&[(100, WcStatus::SUCCESS)]);
    assert_eq!((posted, a.qp.caps().max_send_wr), (31, 16));
}

fn the_rest_of_a_list_can_follow(lab: &Lab) {
    let (a, b, mut list, posted) = too_long(lab);
    let mut first = posted;
    while first < 40 {
        let more = match list.post_from(first as usize) {
            Ok(()) => 40 - first,
            Err(partial) => partial.posted,
        };
        assert!(more > 0, "there is room, and none of the rest is posted");
        for id in u64::from(first)..u64::from(first + more) {
            b.receives([id]);
            b.received(1);
            assert_eq!(a.sent(1)[0].id(), id);
        }
        first += more;
    }
    a.nothing_sent();
    b.nothing_received();
}

fn receives_posted(lab: &Lab) -> (u32, u32) {
    let (a, b) = lab.pair(Setup::default());
    let mut receiver = b.qp.receiver(b.slice(0, 8));
    receiver.set_id(7);
    let Partial { posted, .. } = receiver.post_many(50).expect_err("more were taken than the queue is deep");
    for _ in 0..posted {
        a.post(&send(&a, 1)).unwrap();
        a.sends_end(&[(1, WcStatus::SUCCESS)]);
    }
    b.receives_end(&vec![(7, WcStatus::SUCCESS); posted as usize]);
    (posted, b.qp.caps().max_recv_wr)
}

fn a_list_of_receives_stops_at_the_first_refused(lab: &Lab) {
    let (posted, granted) = receives_posted(lab);
    assert_eq!(posted, granted);
}

fn rxe_a_list_of_receives_stops_at_the_first_refused(lab: &Lab) {
    assert_eq!(receives_posted(lab), (31, 16));
}

fn a_list_in_error_is_flushed(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.modify(QpState::Error).unwrap();
    let write = Request::write(a.slice(0, 8), b.remote(TARGET)).id(2);
    list(&a, &[send(&a, 1), write.unsignalled(), send(&a, 3)]).post().unwrap();
    a.sends_end(&[1, 2, 3].map(|id| (id, WcStatus::WR_FLUSH_ERR)));
}

fn a_failure_within_a_list(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let mut nowhere = b.remote(TARGET);
    nowhere.rkey = !nowhere.rkey;
    let write = |remote, id| Request::write(a.slice(0, 8), remote).id(id).unsignalled();
    let requests = [
        write(b.remote(TARGET), 1),
        write(nowhere, 2),
        write(b.remote(TARGET), 3),
        write(b.remote(TARGET), 4),
    ];
    list(&a, &requests).post().unwrap();
    a.sends_end(&[(2, WcStatus::REM_ACCESS_ERR), (3, WcStatus::WR_FLUSH_ERR), (4, WcStatus::WR_FLUSH_ERR)]);
}

fn a_list_in_the_wrong_state(lab: &Lab) {
    let a = lab.end(Setup::default());
    a.modify(a.init()).unwrap();
    let partial = list(&a, &[send(&a, 1), send(&a, 2)]).post().expect_err("a list was taken in INIT");
    assert_eq!(partial.posted, 0);
}
