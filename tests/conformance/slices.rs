//! Work requests of several slices of memory.

use verbmark::verbs::{Opcode, QpState, WcStatus};

use crate::lab::{End, Lab, MEMORY, Request, Setup, pattern};
use crate::rule::rules;

rules! {
    "Several slices of memory (RC)";
    sends_gather_in_order: "ibv_post_send(3); IBTA 10.7.3",
        "SEND, RDMA WRITE and WRITE with immediate data of four slices, some across packets: the bytes arrive in the order of the list.";
    receives_scatter_in_order: "ibv_post_recv(3); IBTA 10.7.3",
        "SEND to a receive of three slices: each is filled before the next is begun, and the length told is of all together.";
    slices_not_reached_are_untouched: "ibv_post_recv(3); IBTA 10.7.3",
        "SEND of fewer bytes than the first of a receive's slices has: the others stay as they are.";
    reads_scatter_in_order: "ibv_post_send(3); IBTA 10.7.3",
        "RDMA READ into four slices fills them in the order of the list.";
    the_sum_of_the_slices_counts: "IBTA 10.7.3; IBTA 11.6.2",
        "SEND of as many bytes as a receive's slices have together succeeds; one byte more is LOC_LEN_ERR at B and REM_INV_REQ_ERR at A.",
        but rxe "6.1": "One byte more is LOC_QP_OP_ERR at B and REM_OP_ERR at A." => rxe_the_sum_of_the_slices_counts;
    inline_gathers_too: "ibv_post_send(3)",
        "SEND, inline, of three slices: the bytes at the time of the post arrive in order.";
    a_bad_slice_spoils_the_send: "IBTA 9.9.2; IBTA 11.6.2",
        "SEND whose third slice has a key of nobody: LOC_PROT_ERR, A in ERROR; B does not notice.",
        but rxe "6.1": "LOC_QP_OP_ERR instead of LOC_PROT_ERR." => rxe_a_bad_slice_spoils_the_send;
    a_bad_slice_spoils_the_receive: "IBTA 9.9.3; IBTA 11.6.2",
        "SEND that reaches a second slice with a key of nobody: LOC_PROT_ERR at B, REM_OP_ERR at A.",
        but rxe "6.1": "LOC_QP_OP_ERR at B instead of LOC_PROT_ERR." => rxe_a_bad_slice_spoils_the_receive;
}

const IN: usize = MEMORY / 2;

/// Four slices of an end, not in the order of their addresses: lengths 1, 2 MTU + 3, 0 and 5; and their bytes.
fn four(end: &End) -> ([verbmark::verbs::Slice; 4], Vec<u8>) {
    let long = 2 * end.mtu as usize + 3;
    let parts = [(100, 1), (200, long), (50, 0), (10, 5)];
    let bytes = parts.iter().flat_map(|&(offset, len)| end.bytes(offset, len)).collect();
    (parts.map(|(offset, len)| end.slice(offset, len)), bytes)
}

fn sends_gather_in_order(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(0, &pattern(1, MEMORY / 2));
    let (slices, bytes) = four(&a);
    for opcode in [Opcode::Send, Opcode::RdmaWrite, Opcode::RdmaWriteWithImm] {
        b.fill(IN, &vec![0; bytes.len() + 1]);
        let remote = (opcode != Opcode::Send).then(|| b.remote(IN));
        if opcode != Opcode::RdmaWrite {
            b.receive(10, b.slice(IN, if remote.is_none() { bytes.len() } else { 0 })).unwrap();
        }
        a.post(&Request::new(opcode, slices.clone(), remote)).unwrap();
        a.sends_end(&[(1, WcStatus::SUCCESS)]);
        if opcode != Opcode::RdmaWrite {
            assert_eq!(b.received(1)[0].byte_len() as usize, bytes.len());
        }
        assert_eq!(b.bytes(IN, bytes.len() + 1), [&bytes[..], &[0]].concat(), "{opcode:?}");
    }
}

fn receives_scatter_in_order(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let len = 2 * a.mtu as usize;
    a.fill(0, &pattern(2, len));
    b.receive(10, [b.slice(IN, 3), b.slice(100, 7), b.slice(IN + 1000, len)]).unwrap();
    a.post(&Request::send(a.slice(0, len))).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    let received = b.received(1)[0];
    assert_eq!((received.status(), received.byte_len() as usize), (WcStatus::SUCCESS, len));
    let parts = [b.bytes(IN, 3), b.bytes(100, 7), b.bytes(IN + 1000, len - 10)].concat();
    assert_eq!(parts, pattern(2, len));
    assert_eq!(b.bytes(IN + 1000 + len - 10, 10), [0; 10]);
}

fn slices_not_reached_are_untouched(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(0, &[7; 16]);
    b.receive(10, [b.slice(100, 20), b.slice(200, 20)]).unwrap();
    a.post(&Request::send(a.slice(0, 16))).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
    assert_eq!(b.bytes(100, 20), [vec![7; 16], vec![0; 4]].concat());
    assert_eq!(b.bytes(200, 20), [0; 20]);
}

fn reads_scatter_in_order(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    let (slices, bytes) = four(&a);
    b.fill(IN, &pattern(3, bytes.len()));
    a.post(&Request::new(Opcode::RdmaRead, slices, Some(b.remote(IN)))).unwrap();
    assert_eq!(a.sent(1)[0].byte_len() as usize, bytes.len());
    assert_eq!(four(&a).1, pattern(3, bytes.len()));
    assert_eq!(a.bytes(101, 99), [0; 99]);
}

fn sum(lab: &Lab, at_a: WcStatus, at_b: WcStatus) {
    let (a, b) = lab.pair(Setup::default());
    for id in [30, 31] {
        b.receive(id, [b.slice(100, 8), b.slice(200, 8)]).unwrap();
    }
    a.post_all(&[
        Request::send([a.slice(0, 15), a.slice(20, 1)]),
        Request::send([a.slice(0, 9), a.slice(20, 8)]).id(2),
    ]);
    a.sends_end(&[(1, WcStatus::SUCCESS), (2, at_a)]);
    b.receives_end(&[(30, WcStatus::SUCCESS), (31, at_b)]);
}

fn the_sum_of_the_slices_counts(lab: &Lab) {
    sum(lab, WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR);
}

fn rxe_the_sum_of_the_slices_counts(lab: &Lab) {
    sum(lab, WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR);
}

fn inline_gathers_too(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(0, &pattern(4, 64));
    let expected = [a.bytes(40, 4), a.bytes(0, 8), a.bytes(20, 3)].concat();
    a.post(&Request::send([a.slice(40, 4), a.slice(0, 8), a.slice(20, 3)]).inline()).unwrap();
    a.fill(0, &[0; 64]);
    b.receive(10, b.slice(IN, 64)).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
    assert_eq!(b.bytes(IN, 15), expected);
}

fn bad_send(lab: &Lab, expected: WcStatus) {
    let (a, b) = lab.pair(Setup::default());
    b.receives([30]);
    let bad = a.mr.claim(!a.mr.lkey(), 16, 8);
    a.post(&Request::send([a.slice(0, 8), a.slice(8, 8), bad])).unwrap();
    a.sends_end(&[(1, expected)]);
    a.comes_to(QpState::Error);
    assert_eq!(b.state(), QpState::Rts);
    b.nothing_received();
}

fn a_bad_slice_spoils_the_send(lab: &Lab) {
    bad_send(lab, WcStatus::LOC_PROT_ERR);
}

fn rxe_a_bad_slice_spoils_the_send(lab: &Lab) {
    bad_send(lab, WcStatus::LOC_QP_OP_ERR);
}

fn bad_receive(lab: &Lab, at_b: WcStatus) {
    let (a, b) = lab.pair(Setup::default());
    let bad = b.mr.claim(!b.mr.lkey(), 16, 8);
    b.receive(30, [b.slice(0, 8), bad]).unwrap();
    a.post(&Request::send(a.slice(0, 9))).unwrap();
    a.sends_end(&[(1, WcStatus::REM_OP_ERR)]);
    b.receives_end(&[(30, at_b)]);
}

fn a_bad_slice_spoils_the_receive(lab: &Lab) {
    bad_receive(lab, WcStatus::LOC_PROT_ERR);
}

fn rxe_a_bad_slice_spoils_the_receive(lab: &Lab) {
    bad_receive(lab, WcStatus::LOC_QP_OP_ERR);
}
