//! Datagrams.

use verbmark::verbs::{
    Address, Attributes, Channel, Cq, Destination, GRH_BYTES, Gid, Grh, Mr, Opcode, Pd, QpState, Region,
    Slice, UdInit, UdQp, Wc, WcStatus,
};

use crate::lab::{ALL, Lab, MEMORY, PORT, Setup, comes_to, gist, pattern, queues, take, take_present};
use crate::rule::rules;

rules! {
    "Datagrams (UD)";
    ud_needs_each_of_its_attributes: "ibv_modify_qp(3), table for UD",
        "To INIT without P_Key index, port or Q_Key, and to RTS without the send PSN: errors, and the state stays.";
    ud_takes_none_of_connections: "IBTA 11.2.5.2, state transition properties",
        "Access rights, an address, a destination, a receive PSN, a timeout and a path MTU are refused, and the state stays.";
    ud_arrives_behind_forty_bytes: "ibv_post_recv(3), notes; IBTA 11.4.2.1",
        "SEND: the payload is in B's receive from byte 40 on, and the length told counts those 40.";
    ud_tells_who_sent: "ibv_poll_cq(3); IBTA 11.4.2.1",
        "B's completion has A's queue pair number, and the immediate value if there is one.";
    ud_without_a_route_has_no_header: "ibv_poll_cq(3), IBV_WC_GRH",
        "On InfiniBand, sent by LID: the completion says that there is no global route header, and the payload is at byte 40 all the same.";
    ud_header_is_of_the_route: "ibv_post_recv(3), notes; IBTA 8.3; IBTA A17 (RoCE v2)",
        "Sent with a global route: the completion says so, and the header names the two addresses; that of IPv4 stands in the last 20 of the 40 bytes.";
    ud_of_the_whole_mtu: "IBTA 9.8.3",
        "SEND of as many bytes as the port's MTU, and of none, arrive.";
    ud_longer_than_the_mtu: "IBTA C10-93.1.1",
        "SEND of one byte more than the port's MTU: nothing is sent, and that is no error; the next one arrives.";
    ud_with_another_key: "IBTA 9.6.1; IBTA 9.8.3",
        "SEND with another Q_Key than B's: A succeeds, B drops it, and its receive is there for the next one.";
    ud_without_a_receive: "IBTA 9.8.3; IBTA 9.9.3",
        "SEND without a receive at B: A succeeds, nothing of it is seen at B, and the next one fills the next receive.";
    ud_receive_too_small: "IBTA 9.8.3; ibv_post_recv(3), notes",
        "SEND to a receive that is a byte too small for it and the 40 before it: A succeeds, and both go on.",
        but rxe "6.1": "The receive completes with LOC_QP_OP_ERR, and B is in ERROR." => rxe_ud_receive_too_small;
    ud_nobody_there: "IBTA 9.8.3",
        "SEND to a queue pair number nobody has, and to one in RESET: A succeeds and stays in RTS.";
    ud_to_several: "ibv_create_ah(3); IBTA 9.8.3",
        "One queue pair sends to two others in turn, and each gets its own; order is kept.";
    ud_scatters: "ibv_post_recv(3), notes",
        "A receive of two slices, the first of 40 bytes: the header is in the first and the payload in the second.";
    ud_inline: "ibv_post_send(3)",
        "SEND, inline: the bytes at the time of the post arrive.";
    ud_local_fault_stops_the_send_queue: "IBTA 10.3.1.6; IBTA 9.9.2",
        "SEND with a key of nobody: LOC_PROT_ERR and what follows is flushed; A is in SQE, still receives, and sends again when it was moved to RTS.",
        but rxe "6.1": "LOC_QP_OP_ERR, and A is in ERROR: its receives are flushed." => rxe_ud_local_fault_stops_the_send_queue;
    ud_flushes_in_order: "IBTA 10.3.1.7",
        "Moved to ERROR with receives posted: each completes with WR_FLUSH_ERR, in order; sends posted later do, too.";
}

const QKEY: u32 = 0x1234_5678;

/// Where receives are.
const IN: usize = MEMORY / 2;

/// A queue pair of datagrams with memory and completion queues of its own.
struct Station {
    address: Address,
    mtu: usize,
    pd: Pd,
    mr: Mr,
    send_cq: Cq,
    recv_cq: Cq,
    qp: UdQp,
    _channel: Channel,
}

impl Station {
    fn in_reset(lab: &Lab) -> Self {
        let channel = lab.context.create_channel().unwrap();
        let [send_cq, recv_cq] = [(); 2].map(|()| lab.context.create_cq(64, Some(&channel)).unwrap());
        let pd = lab.context.alloc_pd().unwrap();
        let mr = pd.register(Region::new(MEMORY).unwrap(), ALL).unwrap();
        let qp = pd.create_ud_qp(&queues(&send_cq, &recv_cq, &Setup::default())).unwrap();
        let (address, mtu) = (lab.address(), lab.port.active_mtu as usize);
        Self { address, mtu, pd, mr, send_cq, recv_cq, qp, _channel: channel }
    }

    fn new(lab: &Lab) -> Self {
        let station = Self::in_reset(lab);
        station.qp.to_init(&INIT).unwrap();
        station.qp.to_rtr().unwrap();
        station.qp.to_rts(7).unwrap();
        station
    }

    fn state(&self) -> QpState {
        self.qp.state().unwrap()
    }

    /// As that of an end.
    fn comes_to(&self, state: QpState) {
        comes_to(state, || self.state());
    }

    fn to(&self, peer: &Station) -> Destination {
        Destination { handle: self.pd.create_ah(self.address).unwrap(), qpn: peer.qp.number(), qkey: QKEY }
    }

    fn slice(&self, offset: usize, len: usize) -> Slice {
        self.mr.slice(offset, len)
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.region().read(offset, &mut bytes);
        bytes
    }

    fn receive(&self, id: u64, into: impl Into<Vec<Slice>>) {
        let mut receiver = self.qp.receiver(into);
        receiver.set_id(id);
        receiver.post().unwrap();
    }

    fn post(&self, id: u64, local: Slice, destination: Destination) -> verbmark::error::Result<()> {
        let mut sender = self.qp.sender(Opcode::Send, local, destination, false);
        sender.set_id(id);
        sender.post_signalled()
    }

    /// Sends the first `len` bytes, which must succeed.
    fn send(&self, len: usize, destination: Destination) {
        self.post(1, self.slice(0, len), destination).unwrap();
        assert_eq!(gist(&take(&self.send_cq, 1)), [(1, WcStatus::SUCCESS)]);
    }

    fn received(&self) -> Wc {
        take(&self.recv_cq, 1)[0]
    }

    /// Sends 16 bytes to `peer`, which must fill this receive at [`IN`]: nothing of before is left anywhere.
    fn next_arrives(&self, peer: &Station, receive: u64) {
        self.mr.region().write(0, &pattern(9, 16));
        self.send(16, self.to(peer));
        let wc = peer.received();
        assert_eq!(
            (wc.id(), wc.status(), wc.byte_len() as usize),
            (receive, WcStatus::SUCCESS, GRH_BYTES + 16)
        );
        assert_eq!(peer.bytes(IN + GRH_BYTES, 16), pattern(9, 16));
        assert_eq!(gist(&take_present(&peer.recv_cq)), []);
        assert_eq!((self.state(), peer.state()), (QpState::Rts, QpState::Rts));
    }
}

const INIT: UdInit = UdInit { port: PORT, pkey_index: 0, qkey: QKEY };

fn pair(lab: &Lab) -> (Station, Station) {
    (Station::new(lab), Station::new(lab))
}

fn refused<const N: usize>(a: &Station, attempts: [Attributes; N]) {
    let before = a.state();
    for attributes in attempts {
        assert!(a.qp.apply(&attributes).is_err(), "{before}: {attributes} was accepted");
        assert_eq!(a.state(), before, "{attributes}");
    }
}

fn ud_needs_each_of_its_attributes(lab: &Lab) {
    let a = Station::in_reset(lab);
    let all = Attributes::from(INIT);
    refused(
        &a,
        [
            Attributes { pkey_index: None, ..all },
            Attributes { port: None, ..all },
            Attributes { qkey: None, ..all },
        ],
    );
    a.qp.apply(&all).unwrap();
    a.qp.apply(&QpState::Rtr.into()).unwrap();
    refused(&a, [QpState::Rts.into()]);
    a.qp.apply(&Attributes { sq_psn: Some(7), ..QpState::Rts.into() }).unwrap();
}

fn ud_takes_none_of_connections(lab: &Lab) {
    let a = Station::in_reset(lab);
    let all = Attributes::from(INIT);
    refused(&a, [Attributes { access: Some(ALL), ..all }, Attributes { timeout: Some(1), ..all }]);
    a.qp.apply(&all).unwrap();
    let all = Attributes::from(QpState::Rtr);
    refused(
        &a,
        [
            Attributes { address: Some(a.address), ..all },
            Attributes { path_mtu: Some(1024), ..all },
            Attributes { dest_qpn: Some(7), ..all },
            Attributes { rq_psn: Some(7), ..all },
        ],
    );
    a.qp.apply(&all).unwrap();
    let all = Attributes { sq_psn: Some(7), ..QpState::Rts.into() };
    refused(&a, [Attributes { timeout: Some(1), ..all }, Attributes { retry_count: Some(1), ..all }]);
    a.qp.apply(&all).unwrap();
}

fn ud_arrives_behind_forty_bytes(lab: &Lab) {
    let (a, b) = pair(lab);
    a.mr.region().write(0, &pattern(1, 100));
    b.receive(30, b.slice(IN, GRH_BYTES + 100));
    a.send(100, a.to(&b));
    let wc = b.received();
    assert_eq!((wc.id(), wc.status(), wc.byte_len() as usize), (30, WcStatus::SUCCESS, GRH_BYTES + 100));
    assert_eq!(b.bytes(IN + GRH_BYTES, 101), [pattern(1, 100), vec![0]].concat());
}

fn ud_tells_who_sent(lab: &Lab) {
    let (a, b) = pair(lab);
    for opcode in [Opcode::SendWithImm, Opcode::Send] {
        b.receive(30, b.slice(IN, 100));
        let mut sender = a.qp.sender(opcode, a.slice(0, 8), a.to(&b), false);
        sender.set_imm(0x0102_0304);
        sender.post_signalled().unwrap();
        let wc = b.received();
        assert_eq!((wc.source_qp(), wc.qp_number()), (a.qp.number(), b.qp.number()));
        assert_eq!(wc.has_imm(), opcode == Opcode::SendWithImm);
        assert!(!wc.has_imm() || wc.imm() == 0x0102_0304);
    }
}

fn ud_without_a_route_has_no_header(lab: &Lab) {
    if lab.is_ethernet() {
        return lab.does_not_apply();
    }
    let (a, b) = pair(lab);
    a.mr.region().write(0, &pattern(2, 8));
    b.receive(30, b.slice(IN, 100));
    a.send(8, a.to(&b));
    let wc = b.received();
    assert_eq!((wc.has_grh(), wc.byte_len() as usize), (false, GRH_BYTES + 8));
    assert_eq!(b.bytes(IN + GRH_BYTES, 8), pattern(2, 8));
}

fn ud_header_is_of_the_route(lab: &Lab) {
    let (mut a, b) = pair(lab);
    for entry in lab.context.gid_table(PORT).unwrap() {
        let source_index = entry.index.try_into().unwrap();
        let grh = Grh { dest: entry.gid, source_index, hop_limit: 9, traffic_class: 0, flow_label: 0 };
        a.address = Address { grh: Some(grh), ..lab.address() };
        b.mr.region().write(IN, &[0; 100]);
        b.receive(30, b.slice(IN, 100));
        a.send(8, a.to(&b));
        let wc = b.received();
        assert!(wc.has_grh(), "{}", entry.gid);
        let header = b.bytes(IN, GRH_BYTES);
        if entry.gid.is_v4_mapped() {
            let ipv4 = &entry.gid.bytes()[12..];
            assert_eq!(header[20] >> 4, 4, "version");
            assert_eq!((&header[32..36], &header[36..]), (ipv4, ipv4));
        } else {
            let address = |from: usize| Gid::new(header[from..from + 16].try_into().unwrap());
            assert_eq!(header[0] >> 4, 6, "version");
            assert_eq!((address(8), address(24)), (entry.gid, entry.gid));
        }
    }
}

fn ud_of_the_whole_mtu(lab: &Lab) {
    let (a, b) = pair(lab);
    for len in [a.mtu, 0] {
        a.mr.region().write(0, &pattern(3, len));
        b.receive(30, b.slice(IN, GRH_BYTES + len));
        a.send(len, a.to(&b));
        let wc = b.received();
        assert_eq!((wc.status(), wc.byte_len() as usize), (WcStatus::SUCCESS, GRH_BYTES + len));
        assert_eq!(b.bytes(IN + GRH_BYTES, len), pattern(3, len));
    }
}

fn ud_longer_than_the_mtu(lab: &Lab) {
    let (a, b) = pair(lab);
    b.receive(30, b.slice(IN, GRH_BYTES + a.mtu + 1));
    a.send(a.mtu + 1, a.to(&b));
    a.next_arrives(&b, 30);
}

fn ud_with_another_key(lab: &Lab) {
    let (a, b) = pair(lab);
    b.receive(30, b.slice(IN, 100));
    a.send(8, Destination { qkey: QKEY + 1, ..a.to(&b) });
    a.next_arrives(&b, 30);
}

fn ud_without_a_receive(lab: &Lab) {
    let (a, b) = pair(lab);
    a.send(8, a.to(&b));
    lab.is_through();
    b.receive(30, b.slice(IN, 100));
    a.next_arrives(&b, 30);
}

fn ud_receive_too_small(lab: &Lab) {
    let (a, b) = pair(lab);
    b.receive(30, b.slice(IN, GRH_BYTES + 16));
    a.send(17, a.to(&b));
    a.next_arrives(&b, 30);
}

fn rxe_ud_receive_too_small(lab: &Lab) {
    let (a, b) = pair(lab);
    b.receive(30, b.slice(IN, GRH_BYTES + 16));
    a.send(17, a.to(&b));
    assert_eq!(gist(&take(&b.recv_cq, 1)), [(30, WcStatus::LOC_QP_OP_ERR)]);
    b.comes_to(QpState::Error);
    assert_eq!(a.state(), QpState::Rts);
}

fn ud_nobody_there(lab: &Lab) {
    let (a, b) = pair(lab);
    let reset = Station::in_reset(lab);
    a.send(8, Destination { qpn: b.qp.number() ^ 0x0080_0000, ..a.to(&b) });
    a.send(8, a.to(&reset));
    assert_eq!(a.state(), QpState::Rts);
}

fn ud_to_several(lab: &Lab) {
    let ((a, b), c) = (pair(lab), Station::new(lab));
    for peer in [&b, &c] {
        for id in 0..4 {
            peer.receive(id, peer.slice(IN + 64 * id as usize, 64));
        }
    }
    for id in 0..4_u8 {
        for (peer, mark) in [(&b, id), (&c, 100 + id)] {
            a.mr.region().write(0, &[mark; 8]);
            a.send(8, a.to(peer));
        }
    }
    for (peer, mark) in [(&b, 0), (&c, 100)] {
        assert_eq!(gist(&take(&peer.recv_cq, 4)), [0, 1, 2, 3].map(|id| (id, WcStatus::SUCCESS)));
        for id in 0..4_u8 {
            assert_eq!(peer.bytes(IN + 64 * usize::from(id) + GRH_BYTES, 8), [mark + id; 8]);
        }
    }
}

fn ud_scatters(lab: &Lab) {
    let (a, b) = pair(lab);
    a.mr.region().write(0, &pattern(4, 20));
    b.receive(30, [b.slice(IN, GRH_BYTES), b.slice(100, 20)]);
    a.send(20, a.to(&b));
    assert_eq!(b.received().byte_len() as usize, GRH_BYTES + 20);
    assert_eq!(b.bytes(100, 20), pattern(4, 20));
}

fn ud_inline(lab: &Lab) {
    let (a, b) = pair(lab);
    a.mr.region().write(0, &pattern(5, 32));
    b.receive(30, b.slice(IN, 100));
    let mut sender = a.qp.sender(Opcode::Send, a.slice(0, 32), a.to(&b), true);
    sender.post_signalled().unwrap();
    a.mr.region().write(0, &[0; 32]);
    assert!(b.received().is_success());
    assert_eq!(b.bytes(IN + GRH_BYTES, 32), pattern(5, 32));
}

fn ud_local_fault_stops_the_send_queue(lab: &Lab) {
    let (a, b) = pair(lab);
    a.receive(20, a.slice(IN, 100));
    let nobodys = a.mr.claim(!a.mr.lkey(), 0, 8);
    a.post(1, nobodys, a.to(&b)).unwrap();
    let _ = a.post(2, a.slice(0, 8), a.to(&b));
    let ends = gist(&take(&a.send_cq, 2));
    assert_eq!(ends, [(1, WcStatus::LOC_PROT_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    a.comes_to(QpState::Sqe);
    b.send(8, b.to(&a));
    assert_eq!(a.received().status(), WcStatus::SUCCESS);
    a.qp.recover().unwrap();
    b.receive(30, b.slice(IN, 100));
    a.next_arrives(&b, 30);
}

fn rxe_ud_local_fault_stops_the_send_queue(lab: &Lab) {
    let (a, b) = pair(lab);
    a.receive(20, a.slice(IN, 100));
    let nobodys = a.mr.claim(!a.mr.lkey(), 0, 8);
    a.post(1, nobodys, a.to(&b)).unwrap();
    let _ = a.post(2, a.slice(0, 8), a.to(&b));
    let ends = gist(&take(&a.send_cq, 2));
    assert_eq!(ends, [(1, WcStatus::LOC_QP_OP_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    a.comes_to(QpState::Error);
    assert_eq!(gist(&take(&a.recv_cq, 1)), [(20, WcStatus::WR_FLUSH_ERR)]);
}

fn ud_flushes_in_order(lab: &Lab) {
    let (a, b) = pair(lab);
    for id in 20..23 {
        a.receive(id, a.slice(IN, 100));
    }
    a.qp.to_error().unwrap();
    assert_eq!(gist(&take(&a.recv_cq, 3)), [20, 21, 22].map(|id| (id, WcStatus::WR_FLUSH_ERR)));
    a.post(1, a.slice(0, 8), a.to(&b)).unwrap();
    assert_eq!(gist(&take(&a.send_cq, 1)), [(1, WcStatus::WR_FLUSH_ERR)]);
}
