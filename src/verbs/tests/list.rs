//! Lists of work requests.

use super::ends::*;
use crate::verbs::*;

const OK: WcStatus = WcStatus::SUCCESS;

/// Writes of one byte each to the same place, numbered from 0.
fn writes(a: &End, b: &End, count: usize) -> SendList {
    let sender = |at: usize| {
        let mut sender = a.qp.sender(Opcode::RdmaWrite, a.mr.slice(at, 1), Some(b.mr.remote(500)), false);
        sender.set_id(at as u64);
        sender
    };
    SendList::new((0..count).map(sender).collect())
}

#[test]
fn a_list_is_posted_in_order_any_number_of_times_and_its_last_completes() {
    let (a, b) = pair("emu0");
    a.mr.region().write(0, b"abc");
    let mut list = writes(&a, &b, 3);
    assert_eq!(list.len(), 3);
    for _ in 0..4 {
        list.post().unwrap();
        assert_eq!((a.sent(), b.bytes(500, 1)), (vec![(2, OK)], b"c".to_vec()));
        b.mr.region().write(500, b"-");
    }
}

#[test]
fn each_request_of_a_list_can_be_changed() {
    let (a, b) = pair("emu0");
    a.mr.region().write(0, b"abcdef");
    let mut list = writes(&a, &b, 3);
    list.request(0).set_signalled(true);
    list.request(2).set_signalled(false);
    list.request(1).move_to(4, Some(b.mr.remote(501)));
    list.request(0).set_id(70);
    list.post().unwrap();
    assert_eq!((a.sent(), b.bytes(500, 2)), (vec![(70, OK)], b"ce".to_vec()));

    let mut number = a.qp.sender(Opcode::FetchAdd, a.mr.slice(0, 8), Some(b.mr.remote(0)), false);
    number.set_atomic(1, 0);
    let immediate = a.qp.sender(Opcode::SendWithImm, [a.mr.slice(8, 1), a.mr.slice(16, 1)], None, false);
    let mut list = SendList::new(vec![number, immediate]);
    list.request(0).set_atomic(5, 0);
    list.request(1).set_imm(6);
    list.request(1).move_slice(1, 17);
    b.qp.receiver(b.mr.slice(100, 2)).post().unwrap();
    list.post().unwrap();
    assert_eq!((b.bytes(0, 8), b.received()[0].imm()), (5_u64.to_ne_bytes().to_vec(), 6));
}

#[test]
fn a_list_that_does_not_fit_says_how_much_of_it_was_posted() {
    let (a, b) = pair("emu0");
    let mut list = writes(&a, &b, 20);
    let partial = list.post().unwrap_err();
    assert_eq!(partial.posted, 16);
    assert!(
        partial.error.message.contains("16 of 20 posted, RdmaWrite, 1 bytes"),
        "{}",
        partial.error.message
    );
    assert!(a.sent().is_empty(), "the one that asks was not posted");
    // Only those that asked give their places back, so this queue pair is stuck; another goes on where it stopped.
    let (a, b) = pair("emu0");
    let mut list = writes(&a, &b, 20);
    (0..20).for_each(|at| list.request(at).set_signalled(true));
    let posted = list.post().unwrap_err().posted as usize;
    assert_eq!(a.sent().len(), posted);
    list.post_from(posted).unwrap();
    assert_eq!(a.sent(), [(16, OK), (17, OK), (18, OK), (19, OK)]);
    let partial = writes(&End::new("emu0", Transport::Rc), &b, 2).post().unwrap_err();
    assert!(partial.to_string().contains("0 of 2 posted"), "{partial}");
}

#[test]
fn receives_that_do_not_fit_are_counted_too() {
    let (a, _b) = pair("emu0");
    let partial = a.qp.receiver(a.mr.slice(0, 8)).post_many(40).unwrap_err();
    assert_eq!(partial.posted, 16);
    assert!(partial.error.message.contains("16 of 40 posted"), "{}", partial.error.message);
}

#[test]
#[should_panic = "different queue pairs"]
fn a_list_is_of_one_queue_pair() {
    let (a, b) = pair("emu0");
    let sender = |end: &End| end.qp.sender(Opcode::Send, end.mr.slice(0, 1), None, false);
    SendList::new(vec![sender(&a), sender(&b)]);
}

#[test]
#[should_panic = "at least one"]
fn a_list_is_not_empty() {
    SendList::new(Vec::new());
}
