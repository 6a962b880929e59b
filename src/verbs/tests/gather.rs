//! Work requests of several slices.

use super::ends::*;
use crate::verbs::*;

#[test]
fn slices_are_gathered_and_scattered_in_their_order() {
    let (a, b) = pair("emu0");
    a.mr.region().write(0, b"one two three");
    let local = [a.mr.slice(8, 5), a.mr.slice(3, 0), a.mr.slice(3, 1), a.mr.slice(0, 3)];
    let mut sender = a.qp.sender(Opcode::Send, local, None, false);
    let mut receiver = b.qp.receiver([b.mr.slice(100, 2), b.mr.slice(200, 100)]);
    receiver.post().unwrap();
    sender.post_signalled().unwrap();
    assert_eq!((b.bytes(100, 2), b.bytes(200, 7)), (b"th".to_vec(), b"ree one".to_vec()));
    assert_eq!(b.received()[0].byte_len(), 9);

    // By the index in which they were given, the empty one too.
    sender.move_slice(3, 4);
    sender.move_slice(1, 0);
    receiver.move_slice(1, 300);
    receiver.move_to(110);
    receiver.post().unwrap();
    sender.post_signalled().unwrap();
    assert_eq!((b.bytes(110, 2), b.bytes(300, 7)), (b"th".to_vec(), b"ree two".to_vec()));
    assert_eq!(a.sent(), [(0, WcStatus::SUCCESS); 2]);
}

#[test]
fn reads_scatter_too_and_nothing_is_a_message() {
    let (a, b) = pair("emu0");
    b.mr.region().write(50, b"remote");
    let into = [a.mr.slice(0, 2), a.mr.slice(10, 4)];
    a.qp.sender(Opcode::RdmaRead, into, Some(b.mr.remote(50)), false).post_signalled().unwrap();
    assert_eq!((a.bytes(0, 2), a.bytes(10, 4)), (b"re".to_vec(), b"mote".to_vec()));
    b.qp.receiver(b.mr.slice(0, 0)).post().unwrap();
    a.qp.sender(Opcode::Send, [a.mr.slice(0, 0), a.mr.slice(9, 0)], None, false).post_signalled().unwrap();
    assert_eq!(a.sent(), [(0, WcStatus::SUCCESS); 2]);
    assert_eq!(b.received()[0].byte_len(), 0);
}

#[test]
#[should_panic = "5 slices are more than the 4 granted"]
fn no_more_slices_than_were_granted() {
    let (a, _b) = pair("emu0");
    assert_eq!(a.qp.caps().max_send_sge, 4);
    let slices: Vec<_> = (0..5).map(|at| a.mr.slice(at, 1)).collect();
    a.qp.sender(Opcode::Send, slices, None, false);
}

#[test]
fn a_device_is_not_asked_for_more_slices_than_it_has() {
    let end = End::new("emu0", Transport::Rc);
    let init = QpInit { max_send_sge: 99, ..QpInit::new(&end.send_cq, &end.recv_cq) };
    let error = end.pd.create_qp(Transport::Rc, &init).unwrap_err();
    assert!(error.message.contains("99 slices"), "{}", error.message);
}
