//! What each operation does when nothing is wrong.

use verbmark::verbs::{Opcode, RemoteSlice, WcStatus};

use crate::lab::{End, Lab, MEMORY, Request, Setup, pattern};
use crate::rule::rules;

rules! {
    "Operations (RC)";
    send_fills_the_next_receive: "ibv_post_send(3); ibv_poll_cq(3); IBTA 9.4.1",
        "SEND: the oldest receive of B gets the bytes and completes with their number; both ends complete with SUCCESS.";
    send_with_imm_brings_its_value: "ibv_post_send(3); ibv_poll_cq(3)",
        "SEND with immediate data: B's completion has the value; a plain SEND's has none.";
    write_changes_what_it_names: "IBTA 9.4.3",
        "RDMA WRITE: exactly the named bytes of B change; B's receives stay and nothing completes there.";
    write_with_imm_takes_a_receive: "IBTA 9.4.3; ibv_poll_cq(3)",
        "RDMA WRITE with immediate data: as RDMA WRITE, and B's oldest receive completes with the value and the number of bytes written, its own memory untouched.";
    read_brings_what_it_names: "IBTA 9.4.4; ibv_poll_cq(3)",
        "RDMA READ: exactly the named bytes of A change to B's, A's completion has their number, and nothing completes at B.";
    messages_of_many_packets_arrive_whole: "IBTA 9.4; IBTA 9.7.2",
        "SEND, RDMA WRITE, WRITE with immediate data and READ of three path MTUs and a byte, and of exactly two, arrive whole.";
    messages_of_no_bytes: "IBTA 9.4.1",
        "SEND, RDMA WRITE, WRITE with immediate data and READ of no bytes succeed; the receive they take has length 0.";
    no_bytes_need_no_key: "IBTA 9.4.3; IBTA 9.4.4",
        "RDMA WRITE and READ of no bytes succeed with any R_Key and address.";
    a_receive_may_be_larger: "IBTA 10.7.3; ibv_poll_cq(3)",
        "SEND of fewer bytes than the receive has room for: the completion has the number sent, and the rest is untouched.";
    the_last_byte_can_be_reached: "IBTA 10.6.3",
        "RDMA WRITE and READ of the first and of the last bytes of a region succeed.";
    inline_bytes_are_taken_at_the_post: "ibv_post_send(3)",
        "SEND, RDMA WRITE and WRITE with immediate data, inline: the memory may change as soon as the post has returned.";
    receives_complete_in_order: "IBTA 10.8.3",
        "Receives complete in the order in which they were posted, and messages meet them in the order in which those were posted.";
    sends_complete_in_order: "IBTA 10.8.3",
        "Sends, writes and reads complete in the order in which they were posted.";
    a_send_shows_the_writes_before_it: "IBTA 9.5",
        "When a receive completes, the bytes of RDMA WRITEs posted before its SEND are there.";
    a_read_sees_the_writes_before_it: "IBTA 9.5",
        "RDMA READ returns what RDMA WRITEs posted before it have written.";
    both_directions_at_once: "IBTA 9.7.1",
        "A and B send to each other at the same time; neither disturbs the other.";
}

/// Where outgoing bytes lie, and where incoming ones go.
const OUT: usize = 0;
const IN: usize = MEMORY / 2;

const SENT: &[(u64, WcStatus)] = &[(1, WcStatus::SUCCESS)];

fn send_fills_the_next_receive(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(OUT, &pattern(1, 100));
    b.receive(10, b.slice(IN, 100)).unwrap();
    b.receive(11, b.slice(IN + 100, 100)).unwrap();
    a.post(&Request::send(a.slice(OUT, 100))).unwrap();
    let sent = a.sent(1)[0];
    assert_eq!((sent.id(), sent.status(), sent.qp_number()), (1, WcStatus::SUCCESS, a.qp.number()));
    let received = b.received(1)[0];
    assert_eq!((received.id(), received.status()), (10, WcStatus::SUCCESS));
    assert_eq!((received.byte_len(), received.qp_number()), (100, b.qp.number()));
    assert!(received.is_recv() && !sent.is_recv());
    assert_eq!(b.bytes(IN, 101), [pattern(1, 100), vec![0]].concat());
    b.nothing_received();
}

fn send_with_imm_brings_its_value(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    b.receives([10, 11]);
    a.post(&Request::new(Opcode::SendWithImm, a.slice(OUT, 5), None).imm(0x0102_0304)).unwrap();
    a.post(&Request::send(a.slice(OUT, 5)).imm(7).id(2)).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    let received = b.received(2);
    assert_eq!((received[0].has_imm(), received[0].imm(), received[0].byte_len()), (true, 0x0102_0304, 5));
    assert!(!received[1].has_imm());
}

fn write_changes_what_it_names(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(OUT, &pattern(2, 100));
    b.receives([10]);
    a.post(&Request::write(a.slice(OUT, 100), b.remote(IN + 1))).unwrap();
    a.sends_end(SENT);
    assert_eq!(b.bytes(IN, 102), [vec![0], pattern(2, 100), vec![0]].concat());
    b.nothing_received();
    // The receive is still there.
    a.post(&Request::send(a.slice(OUT, 8))).unwrap();
    a.sends_end(SENT);
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
}

fn write_with_imm_takes_a_receive(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(OUT, &pattern(3, 100));
    b.receive(10, b.slice(0, 16)).unwrap();
    let write = Request::new(Opcode::RdmaWriteWithImm, a.slice(OUT, 100), Some(b.remote(IN + 1)));
    a.post(&write.imm(0xfeed_beef)).unwrap();
    a.sends_end(SENT);
    let received = b.received(1)[0];
    assert_eq!((received.id(), received.status()), (10, WcStatus::SUCCESS));
    assert_eq!((received.has_imm(), received.imm(), received.byte_len()), (true, 0xfeed_beef, 100));
    assert_eq!(b.bytes(IN, 102), [vec![0], pattern(3, 100), vec![0]].concat());
    assert_eq!(b.bytes(0, 16), [0; 16]);
}

fn read_brings_what_it_names(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    b.fill(OUT, &pattern(4, 100));
    b.receives([10]);
    a.post(&Request::new(Opcode::RdmaRead, a.slice(IN + 1, 100), Some(b.remote(OUT)))).unwrap();
    let read = a.sent(1)[0];
    assert_eq!((read.id(), read.status(), read.byte_len()), (1, WcStatus::SUCCESS, 100));
    assert_eq!(a.bytes(IN, 102), [vec![0], pattern(4, 100), vec![0]].concat());
    b.nothing_received();
}

/// Moves `len` bytes by `opcode` from A to B, or back by RDMA READ, and checks all that is to be seen.
fn moves(a: &End, b: &End, opcode: Opcode, len: usize) {
    let (from, to) = if opcode == Opcode::RdmaRead { (b, a) } else { (a, b) };
    from.fill(OUT, &pattern(len as u8, len));
    to.fill(IN, &vec![0; len + 1]);
    let takes_receive = matches!(opcode, Opcode::Send | Opcode::SendWithImm | Opcode::RdmaWriteWithImm);
    if takes_receive {
        let room = if opcode == Opcode::RdmaWriteWithImm { 0 } else { len };
        b.receive(10, b.slice(IN, room)).unwrap();
    }
    let (local, remote) = match opcode {
        Opcode::Send | Opcode::SendWithImm => (a.slice(OUT, len), None),
        Opcode::RdmaRead => (a.slice(IN, len), Some(b.remote(OUT))),
        _ => (a.slice(OUT, len), Some(b.remote(IN))),
    };
    a.post(&Request::new(opcode, local, remote)).unwrap();
    a.sends_end(SENT);
    if takes_receive {
        let received = b.received(1)[0];
        assert_eq!((received.status(), received.byte_len() as usize), (WcStatus::SUCCESS, len), "{opcode:?}");
    }
    b.nothing_received();
    assert_eq!(to.bytes(IN, len + 1), [pattern(len as u8, len), vec![0]].concat(), "{opcode:?} {len}");
}

const ALL: [Opcode; 5] =
    [Opcode::Send, Opcode::SendWithImm, Opcode::RdmaWrite, Opcode::RdmaWriteWithImm, Opcode::RdmaRead];

fn messages_of_many_packets_arrive_whole(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let mtu = a.mtu as usize;
    for opcode in ALL {
        for len in [2 * mtu, 3 * mtu + 1] {
            moves(&a, &b, opcode, len);
        }
    }
}

fn messages_of_no_bytes(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    for opcode in ALL {
        moves(&a, &b, opcode, 0);
    }
}

fn no_bytes_need_no_key(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
        let nowhere = RemoteSlice { addr: 1, rkey: !b.mr.rkey() };
        a.post(&Request::new(opcode, a.slice(0, 0), Some(nowhere))).unwrap();
        a.sends_end(SENT);
    }
}

fn a_receive_may_be_larger(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(OUT, &pattern(5, 10));
    b.receive(10, b.slice(IN, 64)).unwrap();
    a.post(&Request::send(a.slice(OUT, 10))).unwrap();
    a.sends_end(SENT);
    assert_eq!(b.received(1)[0].byte_len(), 10);
    assert_eq!(b.bytes(IN, 64), [pattern(5, 10), vec![0; 54]].concat());
}

fn the_last_byte_can_be_reached(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(OUT, &pattern(6, 64));
    for offset in [0, MEMORY - 64] {
        a.post(&Request::write(a.slice(OUT, 64), b.remote(offset))).unwrap();
        a.post(&Request::new(Opcode::RdmaRead, a.slice(IN, 64), Some(b.remote(offset))).id(2)).unwrap();
        a.sends_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
        assert_eq!(b.bytes(offset, 64), pattern(6, 64));
        assert_eq!(a.bytes(IN, 64), pattern(6, 64));
    }
}

fn inline_bytes_are_taken_at_the_post(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let len = a.qp.caps().max_inline.min(64) as usize;
    assert!(len > 0, "no inline data was granted");
    for (opcode, remote) in [
        (Opcode::Send, None),
        (Opcode::RdmaWrite, Some(b.remote(IN))),
        (Opcode::RdmaWriteWithImm, Some(b.remote(IN))),
    ] {
        b.fill(IN, &[0; 64]);
        a.fill(OUT, &pattern(7, len));
        // The message cannot leave before there is a receive, so that it is the copy of the post which arrives.
        a.post(&Request::send(a.slice(OUT, 0)).id(9)).unwrap();
        a.post(&Request::new(opcode, a.slice(OUT, len), remote).inline()).unwrap();
        a.fill(OUT, &vec![0xee; len]);
        b.receive(10, b.slice(0, 0)).unwrap();
        if opcode != Opcode::RdmaWrite {
            b.receive(11, b.slice(IN, if remote.is_none() { len } else { 0 })).unwrap();
        }
        a.sends_end(&[(9, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)]);
        assert_eq!(b.bytes(IN, len), pattern(7, len), "{opcode:?}");
        b.received(if opcode == Opcode::RdmaWrite { 1 } else { 2 });
    }
}

fn receives_complete_in_order(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    for i in 0..8 {
        b.receive(100 + i, b.slice(IN + 64 * i as usize, 64)).unwrap();
    }
    for i in 0..8 {
        a.fill(OUT + 64 * i, &pattern(i as u8, 64));
        a.post(&Request::send(a.slice(OUT + 64 * i, 64)).id(i as u64)).unwrap();
    }
    a.sent(8);
    b.receives_end(&[100, 101, 102, 103, 104, 105, 106, 107].map(|id| (id, WcStatus::SUCCESS)));
    for i in 0..8 {
        assert_eq!(b.bytes(IN + 64 * i, 64), pattern(i as u8, 64));
    }
}

fn sends_complete_in_order(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    b.receives([10, 11]);
    let read = |id| Request::new(Opcode::RdmaRead, a.slice(IN, 3000), Some(b.remote(0))).id(id);
    let write = |id| Request::write(a.slice(OUT, 8), b.remote(IN)).id(id);
    let send = |id| Request::send(a.slice(OUT, 8)).id(id);
    a.post_all(&[read(1), write(2), read(3), send(4), write(5), read(6), send(7)]);
    a.sends_end(&[1, 2, 3, 4, 5, 6, 7].map(|id| (id, WcStatus::SUCCESS)));
}

fn a_send_shows_the_writes_before_it(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let len = 3 * a.mtu as usize;
    for round in 1..=8 {
        a.fill(OUT, &pattern(round, len));
        b.receives([10]);
        a.post(&Request::write(a.slice(OUT, len), b.remote(IN)).unsignalled()).unwrap();
        a.post(&Request::send(a.slice(OUT, 0))).unwrap();
        b.receives_end(&[(10, WcStatus::SUCCESS)]);
        assert_eq!(b.bytes(IN, len), pattern(round, len));
        a.sends_end(SENT);
    }
}

fn a_read_sees_the_writes_before_it(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    for round in 1..=8 {
        a.fill(OUT, &pattern(round, 64));
        a.post(&Request::write(a.slice(OUT, 64), b.remote(IN)).unsignalled()).unwrap();
        a.post(&Request::new(Opcode::RdmaRead, a.slice(IN, 64), Some(b.remote(IN)))).unwrap();
        a.sends_end(SENT);
        assert_eq!(a.bytes(IN, 64), pattern(round, 64));
    }
}

fn both_directions_at_once(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    for end in [&a, &b] {
        end.receives(10..18);
    }
    for id in 0..8 {
        for end in [&a, &b] {
            end.post(&Request::send(end.slice(OUT, 64)).id(id)).unwrap();
        }
    }
    for end in [&a, &b] {
        end.sends_end(&[0, 1, 2, 3, 4, 5, 6, 7].map(|id| (id, WcStatus::SUCCESS)));
        end.receives_end(&[10, 11, 12, 13, 14, 15, 16, 17].map(|id| (id, WcStatus::SUCCESS)));
    }
}
