//! Events for the completions that their senders want to be noticed.

use super::ends::*;
use crate::verbs::*;

#[test]
fn a_queue_armed_for_solicited_completions_wakes_for_those_and_for_errors() {
    let (a, b, channel) = {
        let (a, (b, channel)) = (End::new("emu0", Transport::Rc), End::with_channel("emu0", Transport::Rc));
        a.connect(&b);
        b.connect(&a);
        (a, b, channel)
    };
    let mut receiver = b.qp.receiver(b.mr.slice(0, 8));
    receiver.post_many(8).unwrap();
    let mut sender = a.qp.sender(Opcode::Send, a.mr.slice(0, 8), None, false);
    b.recv_cq.arm_solicited().unwrap();
    sender.post_signalled().unwrap();
    assert!(!channel.take_event().unwrap());
    sender.set_solicited(true);
    sender.post_signalled().unwrap();
    assert!(channel.take_event().unwrap());

    b.recv_cq.arm_solicited().unwrap();
    sender.set_solicited(false);
    sender.post_signalled().unwrap();
    assert!(!channel.take_event().unwrap(), "it can be taken back");
    let mut list = SendList::new(vec![sender]);
    list.request(0).set_solicited(true);
    list.post().unwrap();
    assert!(channel.take_event().unwrap());
    assert_eq!(a.sent().len(), 4, "and it still asks for its completion");

    b.recv_cq.arm_solicited().unwrap();
    b.qp.to_error().unwrap();
    assert!(channel.take_event().unwrap());
}
