//! Unreliable connections.

use super::ends::*;
use crate::verbs::*;

#[test]
fn an_unreliable_connection_sends_and_writes() {
    for device in ["emu0", "emu1"] {
        let (a, b) = pair_over(device, Transport::Uc);
        assert_eq!(a.qp.transport(), Transport::Uc);
        a.mr.region().write(0, b"payload");
        let local = a.mr.slice(0, 7);
        let mut receiver = b.qp.receiver(b.mr.slice(100, 7));
        for (opcode, offset) in [
            (Opcode::Send, 100),
            (Opcode::SendWithImm, 100),
            (Opcode::RdmaWrite, 200),
            (Opcode::RdmaWriteWithImm, 300),
        ] {
            let consumes = opcode != Opcode::RdmaWrite;
            if consumes {
                receiver.post().unwrap();
            }
            let mut sender = a.qp.sender(opcode, local.clone(), Some(b.mr.remote(offset)), true);
            sender.set_imm(77);
            sender.post_signalled().unwrap();
            assert_eq!(a.sent(), [(0, WcStatus::SUCCESS)]);
            assert_eq!(b.bytes(offset, 7), b"payload", "{opcode:?}");
            let received = b.received();
            assert_eq!(received.len(), usize::from(consumes), "{opcode:?}");
            let has_imm = matches!(opcode, Opcode::SendWithImm | Opcode::RdmaWriteWithImm);
            assert_eq!(received.iter().any(|wc| wc.has_imm() && wc.imm() == 77), has_imm, "{opcode:?}");
            b.mr.region().write(0, &[0; 1000]);
        }
    }
}

#[test]
fn a_message_without_a_receive_is_gone_and_counted() {
    let (a, b) = pair_over("emu0", Transport::Uc);
    a.qp.sender(Opcode::Send, a.mr.slice(0, 7), None, false).post_signalled().unwrap();
    assert_eq!(a.sent(), [(0, WcStatus::SUCCESS)]);
    assert_eq!((a.context.dropped(), b.context.dropped()), (Some(0), Some(1)));
}

#[test]
fn an_unreliable_connection_has_no_reads_and_no_atomics() {
    let (a, b) = pair_over("emu0", Transport::Uc);
    for opcode in [Opcode::RdmaRead, Opcode::CompareSwap, Opcode::FetchAdd] {
        let mut sender = a.qp.sender(opcode, a.mr.slice(0, 8), Some(b.mr.remote(0)), false);
        let error = sender.post_signalled().unwrap_err();
        assert!(error.message.contains("Invalid argument"), "{}", error.message);
    }
}

#[test]
fn a_send_queue_in_error_is_brought_back() {
    // Room for one completion: the second is lost, and the send queue fails.
    let (a, b) = (End::with_send_cq("emu0", Transport::Uc, 1), End::new("emu0", Transport::Uc));
    a.connect(&b);
    b.connect(&a);
    assert!(a.qp.recover().is_err(), "nothing is wrong with it");
    let mut receiver = b.qp.receiver(b.mr.slice(0, 8));
    let mut sender = a.qp.sender(Opcode::Send, a.mr.slice(0, 8), None, false);
    receiver.post_many(3).unwrap();
    sender.post_signalled().unwrap();
    sender.post_signalled().unwrap();
    assert_eq!(a.qp.state().unwrap(), QpState::Sqe);
    a.qp.recover().unwrap();
    sender.post().unwrap();
    assert_eq!((b.received().len(), a.qp.state().unwrap()), (3, QpState::Rts));
}
