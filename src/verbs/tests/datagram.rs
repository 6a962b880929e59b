//! Datagrams.

use super::ends::*;
use crate::verbs::*;

const QKEY: u32 = 0x11;

struct Station {
    qp: UdQp,
    recv_cq: Cq,
    end: End,
}

impl Station {
    fn new(device: &str) -> Self {
        let end = End::new(device, Transport::Rc);
        let recv_cq = end.context.create_cq(64, None).unwrap();
        let qp = end
            .pd
            .create_ud_qp(&QpInit {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_inline: 64,
                max_recv_sge: 2,
                ..QpInit::new(&end.send_cq, &recv_cq)
            })
            .unwrap();
        qp.to_init(&UdInit { port: 1, pkey_index: 0, qkey: QKEY }).unwrap();
        qp.to_rtr().unwrap();
        qp.to_rts(9).unwrap();
        Self { qp, recv_cq, end }
    }

    fn to(&self, peer: &Station) -> Destination {
        let handle = self.end.pd.create_ah(peer.end.address()).unwrap();
        Destination { handle, qpn: peer.qp.number(), qkey: QKEY }
    }
}

#[test]
fn datagrams_arrive_behind_the_space_for_their_header() {
    for device in ["emu0", "emu1"] {
        let (a, b, c) = (Station::new(device), Station::new(device), Station::new(device));
        a.end.mr.region().write(0, b"payload");
        let mut sender = a.qp.sender(Opcode::SendWithImm, a.end.mr.slice(0, 7), a.to(&b), true);
        sender.set_imm(5);
        // A request without remote memory keeps its destination, whatever it is told.
        sender.move_to(0, Some(b.end.mr.remote(0)));
        for peer in [&b, &c] {
            sender.set_destination(a.to(peer));
            let header = peer.end.mr.slice(0, GRH_BYTES);
            let mut receiver = peer.qp.receiver([header, peer.end.mr.slice(1000, 7)]);
            receiver.post().unwrap();
            sender.post_signalled().unwrap();
            assert_eq!(a.end.sent(), [(0, WcStatus::SUCCESS)]);
            let wc = taken(&peer.recv_cq)[0];
            assert_eq!((wc.byte_len() as usize, wc.source_qp(), wc.imm()), (GRH_BYTES + 7, a.qp.number(), 5));
            assert_eq!(wc.has_grh(), device == "emu0");
            assert_eq!(peer.end.bytes(1000, 7), b"payload");
        }
    }
}

#[test]
fn a_sender_keeps_what_its_datagrams_need() {
    let (a, b) = (Station::new("emu0"), Station::new("emu0"));
    b.qp.receiver(b.end.mr.slice(0, 100)).post().unwrap();
    let to = a.to(&b);
    let Station { qp, end: End { mr, send_cq, .. }, .. } = a;
    let mut sender = qp.sender(Opcode::Send, mr.slice(0, 8), to, false);
    drop((qp, mr));
    sender.post_signalled().unwrap();
    assert_eq!(gist(&taken(&send_cq)), [(0, WcStatus::SUCCESS)]);
    drop(sender);
    assert_eq!(taken(&b.recv_cq).len(), 1);
}

#[test]
fn datagrams_of_a_list_go_to_many() {
    let (a, b, c) = (Station::new("emu0"), Station::new("emu0"), Station::new("emu0"));
    let sender = || a.qp.sender(Opcode::Send, a.end.mr.slice(0, 7), a.to(&b), false);
    let mut list = SendList::new(vec![sender(), sender()]);
    list.request(1).set_destination(a.to(&c));
    for peer in [&b, &c] {
        peer.qp.receiver(peer.end.mr.slice(0, 100)).post().unwrap();
    }
    list.post().unwrap();
    assert_eq!((taken(&b.recv_cq).len(), taken(&c.recv_cq).len()), (1, 1));
}

#[test]
#[should_panic = "no datagrams for RdmaWrite"]
fn a_datagram_is_a_send() {
    let a = Station::new("emu0");
    a.qp.sender(Opcode::RdmaWrite, a.end.mr.slice(0, 8), a.to(&a), false);
}

#[test]
#[should_panic = "has no destination of its own"]
fn a_connection_has_one_destination() {
    let (a, (b, _c)) = (Station::new("emu0"), pair("emu0"));
    b.qp.sender(Opcode::Send, b.mr.slice(0, 8), None, false).set_destination(a.to(&a));
}

#[test]
#[should_panic = "of another protection domain"]
fn an_address_handle_is_of_the_senders_domain() {
    let (a, b) = (Station::new("emu0"), Station::new("emu0"));
    a.qp.sender(Opcode::Send, a.end.mr.slice(0, 8), b.to(&a), false);
}
