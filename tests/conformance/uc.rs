//! Unreliable connections: what is lost is lost, and nobody but the receiver's own queue tells.

use verbmark::verbs::{Access, Attributes, Opcode, QpState, RemoteSlice, Transport, WcStatus};

use crate::lab::{ALL, End, Lab, MEMORY, Request, Setup, pattern};
use crate::rule::rules;

rules! {
    "Unreliable connections (UC)";
    uc_needs_each_of_its_attributes: "ibv_modify_qp(3), table for UC",
        "To INIT without P_Key index, port or rights; to RTR without address, path MTU, destination or receive PSN; to RTS without the send PSN: errors, and the state stays.";
    uc_takes_none_of_reliable_ones: "IBTA 11.2.5.2, state transition properties",
        "Reads, RNR timer, timeout and retry counts are refused, and the state stays.";
    uc_messages_arrive: "ibv_post_send(3), table of operations; IBTA 9.8.2",
        "SEND, RDMA WRITE, and both with immediate data, of one packet and of several, arrive whole and complete as over RC.";
    uc_has_no_reads_and_no_atomics: "ibv_post_send(3), table of operations",
        "RDMA READ and atomics are refused at the post, and the queue pair goes on.",
        but rxe "6.1": "They are taken and complete with LOC_QP_OP_ERR; A is in ERROR." => rxe_uc_has_no_reads_and_no_atomics;
    uc_without_a_receive: "IBTA 9.8.2; IBTA 9.9.3",
        "SEND and WRITE with immediate data without a receive at B: A succeeds, nothing of them is seen at B, and the next SEND fills the next receive.";
    uc_write_with_a_bad_key: "IBTA 9.8.2; IBTA 9.9.3",
        "RDMA WRITE with a key of nobody, and one byte beyond the region: A succeeds, B's memory is unchanged, and both go on.";
    uc_write_without_the_right: "ibv_modify_qp(3); IBTA 9.9.3",
        "RDMA WRITE to a queue pair without remote write: A succeeds, B's memory is unchanged, and both go on.";
    uc_receive_too_small: "IBTA 9.8.2; IBTA 9.9.3",
        "SEND of one byte more than the receive has room for: A succeeds, and both go on.",
        but rxe "6.1": "The receive completes with LOC_QP_OP_ERR, and B is in ERROR." => rxe_uc_receive_too_small;
    uc_nobody_there: "IBTA 9.8.2",
        "B is in ERROR, or was never there: A succeeds and stays in RTS.";
    uc_local_fault_stops_the_send_queue: "IBTA 10.3.1.6; IBTA 9.9.2",
        "SEND with a key of nobody: LOC_PROT_ERR and what follows is flushed; A is in SQE, still receives, and sends again when it was moved to RTS.",
        but rxe "6.1": "LOC_QP_OP_ERR, and A is in ERROR: its receives are flushed." => rxe_uc_local_fault_stops_the_send_queue;
    uc_flushes_in_order: "IBTA 10.3.1.7",
        "Moved to ERROR with receives posted: each completes with WR_FLUSH_ERR, in order; sends posted later do, too.";
}

fn uc() -> Setup {
    Setup { transport: Transport::Uc, ..Setup::default() }
}

fn rtr(a: &End, b: &End) -> Attributes {
    Attributes { max_dest_rd_atomic: None, min_rnr_timer: None, ..a.rtr(b).into() }
}

fn rts(a: &End) -> Attributes {
    Attributes { sq_psn: Some(a.rts().sq_psn), ..QpState::Rts.into() }
}

fn refused<const N: usize>(a: &End, attempts: [Attributes; N]) {
    let before = a.state();
    for attributes in attempts {
        assert!(a.modify(attributes).is_err(), "{before}: {attributes} was accepted");
        assert_eq!(a.state(), before, "{attributes}");
    }
}

fn uc_needs_each_of_its_attributes(lab: &Lab) {
    let (a, b) = (lab.end(uc()), lab.end(uc()));
    let all = Attributes::from(a.init());
    refused(
        &a,
        [
            Attributes { pkey_index: None, ..all },
            Attributes { port: None, ..all },
            Attributes { access: None, ..all },
        ],
    );
    a.modify(all).unwrap();
    let all = rtr(&a, &b);
    refused(
        &a,
        [
            Attributes { address: None, ..all },
            Attributes { path_mtu: None, ..all },
            Attributes { dest_qpn: None, ..all },
            Attributes { rq_psn: None, ..all },
        ],
    );
    a.modify(all).unwrap();
    refused(&a, [Attributes { sq_psn: None, ..rts(&a) }]);
    a.modify(rts(&a)).unwrap();
    assert_eq!(a.state(), QpState::Rts);
}

fn uc_takes_none_of_reliable_ones(lab: &Lab) {
    let (a, b) = (lab.end(uc()), lab.end(uc()));
    a.modify(a.init()).unwrap();
    let all = rtr(&a, &b);
    refused(
        &a,
        [
            Attributes { max_dest_rd_atomic: Some(1), ..all },
            Attributes { min_rnr_timer: Some(1), ..all },
            Attributes { qkey: Some(1), ..all },
        ],
    );
    a.modify(all).unwrap();
    let all = rts(&a);
    refused(
        &a,
        [
            Attributes { timeout: Some(14), ..all },
            Attributes { retry_count: Some(1), ..all },
            Attributes { rnr_retry: Some(1), ..all },
            Attributes { max_rd_atomic: Some(1), ..all },
        ],
    );
    a.modify(all).unwrap();
}

const IN: usize = MEMORY / 2;
const SENT: &[(u64, WcStatus)] = &[(1, WcStatus::SUCCESS)];

/// A SEND from A that fills B's receive of this number: nothing that came before is left anywhere.
fn next_arrives(a: &End, b: &End, receive: u64) {
    a.fill(0, &pattern(9, 16));
    a.post(&Request::send(a.slice(0, 16)).id(99)).unwrap();
    a.sends_end(&[(99, WcStatus::SUCCESS)]);
    let received = b.received(1)[0];
    assert_eq!((received.id(), received.status(), received.byte_len()), (receive, WcStatus::SUCCESS, 16));
    b.nothing_received();
    assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rts));
}

fn uc_messages_arrive(lab: &Lab) {
    let (a, b) = lab.pair(uc());
    for opcode in [Opcode::Send, Opcode::SendWithImm, Opcode::RdmaWrite, Opcode::RdmaWriteWithImm] {
        for len in [8, 2 * a.mtu as usize + 1] {
            a.fill(0, &pattern(len as u8, len));
            b.fill(IN, &vec![0; len + 1]);
            let remote = (!matches!(opcode, Opcode::Send | Opcode::SendWithImm)).then(|| b.remote(IN));
            // The last tells that a write is through.
            b.receive(10, b.slice(IN, if remote.is_none() { len } else { 0 })).unwrap();
            a.post(&Request::new(opcode, a.slice(0, len), remote).imm(77)).unwrap();
            a.sends_end(SENT);
            if opcode == Opcode::RdmaWrite {
                next_arrives_empty(&a, &b);
            } else {
                let received = b.received(1)[0];
                assert_eq!((received.status(), received.byte_len() as usize), (WcStatus::SUCCESS, len));
                let has_imm = opcode != Opcode::Send;
                assert_eq!((received.has_imm(), received.imm() == 77), (has_imm, has_imm), "{opcode:?}");
            }
            assert_eq!(b.bytes(IN, len + 1), [pattern(len as u8, len), vec![0]].concat(), "{opcode:?}");
        }
    }
}

/// A SEND of no bytes that takes B's receive 10.
fn next_arrives_empty(a: &End, b: &End) {
    a.post(&Request::send(a.slice(0, 0))).unwrap();
    a.sends_end(SENT);
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
}

fn uc_has_no_reads_and_no_atomics(lab: &Lab) {
    let (a, b) = lab.pair(uc());
    b.receive(30, b.slice(IN, 16)).unwrap();
    for opcode in [Opcode::RdmaRead, Opcode::FetchAdd, Opcode::CompareSwap] {
        let posted = a.post(&Request::new(opcode, a.slice(0, 8), Some(b.remote(0))));
        assert!(posted.is_err(), "{opcode:?} was taken");
    }
    next_arrives(&a, &b, 30);
}

fn rxe_uc_has_no_reads_and_no_atomics(lab: &Lab) {
    for opcode in [Opcode::RdmaRead, Opcode::FetchAdd, Opcode::CompareSwap] {
        let (a, b) = lab.pair(uc());
        a.post(&Request::new(opcode, a.slice(0, 8), Some(b.remote(0)))).unwrap();
        a.sends_end(&[(1, WcStatus::LOC_QP_OP_ERR)]);
        a.comes_to(QpState::Error);
        assert_eq!(b.state(), QpState::Rts);
    }
}

fn uc_without_a_receive(lab: &Lab) {
    let (a, b) = lab.pair(uc());
    a.fill(0, &[1; 8]);
    let write = Request::new(Opcode::RdmaWriteWithImm, a.slice(0, 8), Some(b.remote(0)));
    a.post_all(&[Request::send(a.slice(0, 8)), write.id(2)]);
    a.sends_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    lab.is_through();
    b.receive(30, b.slice(IN, 16)).unwrap();
    next_arrives(&a, &b, 30);
    assert_eq!(b.bytes(0, 8), [0; 8]);
}

/// RDMA WRITEs that B must not obey.
fn not_obeyed(lab: &Lab, setup: Setup, remotes: impl Fn(&End) -> Vec<RemoteSlice>) {
    let (a, b) = lab.pair(setup);
    a.fill(0, &[1; 8]);
    b.receive(30, b.slice(IN, 16)).unwrap();
    let before = b.bytes(0, IN);
    let after = b.bytes(IN + 16, IN - 16);
    for remote in remotes(&b) {
        a.post(&Request::write(a.slice(0, 8), remote)).unwrap();
        a.sends_end(SENT);
    }
    next_arrives(&a, &b, 30);
    assert_eq!((b.bytes(0, IN), b.bytes(IN + 16, IN - 16)), (before, after));
}

fn uc_write_with_a_bad_key(lab: &Lab) {
    not_obeyed(lab, uc(), |b| vec![RemoteSlice { rkey: !b.mr.rkey(), ..b.remote(64) }, b.remote(MEMORY - 7)]);
}

fn uc_write_without_the_right(lab: &Lab) {
    let qp_access = Access { remote_write: false, ..ALL };
    not_obeyed(lab, Setup { qp_access, ..uc() }, |b| vec![b.remote(64)]);
}

fn uc_receive_too_small(lab: &Lab) {
    let (a, b) = lab.pair(uc());
    b.receive(30, b.slice(IN, 16)).unwrap();
    a.post(&Request::send(a.slice(0, 17))).unwrap();
    a.sends_end(SENT);
    lab.is_through();
    next_arrives(&a, &b, 30);
}

fn rxe_uc_receive_too_small(lab: &Lab) {
    let (a, b) = lab.pair(uc());
    b.receive(30, b.slice(IN, 16)).unwrap();
    a.post(&Request::send(a.slice(0, 17))).unwrap();
    a.sends_end(SENT);
    b.receives_end(&[(30, WcStatus::LOC_QP_OP_ERR)]);
    b.comes_to(QpState::Error);
    assert_eq!(a.state(), QpState::Rts);
}

fn uc_nobody_there(lab: &Lab) {
    let (a, b) = lab.pair(uc());
    b.modify(QpState::Error).unwrap();
    let (c, d) = (lab.end(uc()), lab.end(uc()));
    c.modify(c.init()).unwrap();
    let nobody = d.qp.number() ^ 0x0080_0000;
    c.modify(Attributes { dest_qpn: Some(nobody), ..rtr(&c, &d) }).unwrap();
    c.modify(rts(&c)).unwrap();
    for end in [&a, &c] {
        end.post_all(&[Request::send(end.slice(0, 8)), Request::write(end.slice(0, 8), b.remote(64)).id(2)]);
        end.sends_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
        assert_eq!(end.state(), QpState::Rts);
    }
    assert_eq!(b.bytes(64, 8), [0; 8]);
}

fn uc_local_fault_stops_the_send_queue(lab: &Lab) {
    let (a, b) = lab.pair(uc());
    a.receives([20]);
    let nobodys = a.mr.claim(!a.mr.lkey(), 0, 8);
    a.post(&Request::send(nobodys).unsignalled()).unwrap();
    let _ = a.post(&Request::send(a.slice(0, 8)).id(2));
    a.sends_end(&[(1, WcStatus::LOC_PROT_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    a.comes_to(QpState::Sqe);
    b.post(&Request::send(b.slice(0, 8))).unwrap();
    a.receives_end(&[(20, WcStatus::SUCCESS)]);
    a.qp.recover().unwrap();
    b.receive(30, b.slice(IN, 16)).unwrap();
    next_arrives(&a, &b, 30);
}

fn rxe_uc_local_fault_stops_the_send_queue(lab: &Lab) {
    let (a, _b) = lab.pair(uc());
    a.receives([20]);
    let nobodys = a.mr.claim(!a.mr.lkey(), 0, 8);
    a.post(&Request::send(nobodys).unsignalled()).unwrap();
    let _ = a.post(&Request::send(a.slice(0, 8)).id(2));
    a.sends_end(&[(1, WcStatus::LOC_QP_OP_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    a.comes_to(QpState::Error);
    a.receives_end(&[(20, WcStatus::WR_FLUSH_ERR)]);
}

fn uc_flushes_in_order(lab: &Lab) {
    let (a, _b) = lab.pair(uc());
    a.receives([20, 21, 22]);
    a.modify(QpState::Error).unwrap();
    a.receives_end(&[20, 21, 22].map(|id| (id, WcStatus::WR_FLUSH_ERR)));
    a.post_all(&[Request::send(a.slice(0, 8)), Request::send(a.slice(0, 8)).id(2).unsignalled()]);
    a.sends_end(&[(1, WcStatus::WR_FLUSH_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
}
