//! What a device refuses of its own side: keys and bounds of local memory, receives that are too small, messages that
//! are too long.

use std::process::Command;

use verbmark::verbs::{Opcode, ProviderKind, QpState, Slice, WcStatus};

use crate::lab::{ALL, End, Lab, MEMORY, Request, Setup};
use crate::rule::rules;

rules! {
    "Local faults (RC)";
    send_from_a_key_of_nobody: "IBTA 9.9.2; IBTA 11.6.2",
        "SEND with an L_Key nobody has: LOC_PROT_ERR, what follows is flushed, A in ERROR with its receives flushed; B does not notice.",
        but rxe "6.1": "LOC_QP_OP_ERR instead of LOC_PROT_ERR." => rxe_send_from_a_key_of_nobody;
    write_from_a_key_of_nobody: "IBTA 9.9.2; IBTA 11.6.2",
        "RDMA WRITE with such an L_Key: the same.",
        but rxe "6.1": "LOC_QP_OP_ERR instead of LOC_PROT_ERR." => rxe_write_from_a_key_of_nobody;
    send_from_a_key_that_is_almost_right: "IBTA 9.9.2; IBTA 10.6.3",
        "SEND with an L_Key that differs from the right one in its last bit: the same.",
        but rxe "6.1": "LOC_QP_OP_ERR instead of LOC_PROT_ERR." => rxe_send_from_a_key_that_is_almost_right;
    read_into_a_key_of_nobody: "IBTA 9.9.2; IBTA 11.6.2",
        "RDMA READ with such an L_Key: the same.";
    send_a_byte_beyond: "IBTA 9.9.2; IBTA 10.6.3",
        "SEND of bytes that end one behind the region: the same.";
    read_into_a_byte_beyond: "IBTA 9.9.2; IBTA 10.6.3",
        "RDMA READ into bytes that end one behind the region: the same.";
    send_from_memory_that_is_gone: "ibv_dereg_mr(3); IBTA 10.6.5",
        "SEND with the L_Key of a region that was deregistered: the same.",
        but rxe "6.1": "LOC_QP_OP_ERR instead of LOC_PROT_ERR." => rxe_send_from_memory_that_is_gone;
    send_from_another_protection_domain: "IBTA 10.2.3",
        "SEND with the L_Key of a region of another protection domain: the same.",
        but rxe "6.1": "LOC_QP_OP_ERR instead of LOC_PROT_ERR." => rxe_send_from_another_protection_domain;
    inline_needs_no_key: "ibv_post_send(3)",
        "SEND, inline, with an L_Key nobody has: succeeds.";
    receive_into_a_key_of_nobody: "IBTA 9.9.3; IBTA 11.6.2",
        "SEND to a receive with an L_Key nobody has: LOC_PROT_ERR at B, REM_OP_ERR at A; both in ERROR, the rest flushed.",
        but rxe "6.1": "LOC_QP_OP_ERR at B instead of LOC_PROT_ERR." => rxe_receive_into_a_key_of_nobody;
    receive_a_byte_too_small: "IBTA 9.9.3; IBTA 11.6.2",
        "SEND of one byte more than the receive has room for: LOC_LEN_ERR at B, REM_INV_REQ_ERR at A; both in ERROR, the rest flushed.",
        but rxe "6.1": "LOC_QP_OP_ERR at B and REM_OP_ERR at A." => rxe_receive_a_byte_too_small;
    longer_than_the_port_allows: "ibv_query_port(3); IBTA 11.6.2",
        "RDMA WRITE of one byte more than the port's max_msg_sz: LOC_LEN_ERR, A in ERROR; B does not notice.",
        but rxe "6.1": "The message is sent and arrives." => rxe_longer_than_the_port_allows;
}

/// Posts `opcode` with this local memory and a request behind it; only A may notice.
fn refused(a: &End, b: &End, opcode: Opcode, local: Slice, expected: WcStatus) {
    a.receives([20, 21]);
    b.receives([30]);
    let remote = (opcode != Opcode::Send).then(|| b.remote(64));
    a.post(&Request::new(opcode, local, remote)).unwrap();
    let _ = a.post(&Request::write(a.slice(0, 8), b.remote(64)).id(2).unsignalled());
    a.sends_end(&[(1, expected), (2, WcStatus::WR_FLUSH_ERR)]);
    a.comes_to(QpState::Error);
    a.receives_end(&[(20, WcStatus::WR_FLUSH_ERR), (21, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!(b.state(), QpState::Rts);
    b.nothing_received();
    assert_eq!(b.bytes(64, 8), [0; 8]);
}

fn bad_local(lab: &Lab, opcode: Opcode, local: impl Fn(&End) -> Slice, expected: WcStatus) {
    let (a, b) = lab.pair(Setup::default());
    refused(&a, &b, opcode, local(&a), expected);
}

fn nobodys_key(a: &End) -> Slice {
    a.mr.claim(!a.mr.lkey(), 0, 8)
}

fn send_from_a_key_of_nobody(lab: &Lab) {
    bad_local(lab, Opcode::Send, nobodys_key, WcStatus::LOC_PROT_ERR);
}

fn rxe_send_from_a_key_of_nobody(lab: &Lab) {
    bad_local(lab, Opcode::Send, nobodys_key, WcStatus::LOC_QP_OP_ERR);
}

fn write_from_a_key_of_nobody(lab: &Lab) {
    bad_local(lab, Opcode::RdmaWrite, nobodys_key, WcStatus::LOC_PROT_ERR);
}

fn rxe_write_from_a_key_of_nobody(lab: &Lab) {
    bad_local(lab, Opcode::RdmaWrite, nobodys_key, WcStatus::LOC_QP_OP_ERR);
}

fn almost_right(a: &End) -> Slice {
    a.mr.claim(a.mr.lkey() ^ 1, 0, 8)
}

fn send_from_a_key_that_is_almost_right(lab: &Lab) {
    bad_local(lab, Opcode::Send, almost_right, WcStatus::LOC_PROT_ERR);
}

fn rxe_send_from_a_key_that_is_almost_right(lab: &Lab) {
    bad_local(lab, Opcode::Send, almost_right, WcStatus::LOC_QP_OP_ERR);
}

fn read_into_a_key_of_nobody(lab: &Lab) {
    bad_local(lab, Opcode::RdmaRead, nobodys_key, WcStatus::LOC_PROT_ERR);
}

fn beyond(a: &End) -> Slice {
    a.mr.claim(a.mr.lkey(), MEMORY - 7, 8)
}

fn send_a_byte_beyond(lab: &Lab) {
    bad_local(lab, Opcode::Send, beyond, WcStatus::LOC_PROT_ERR);
}

fn read_into_a_byte_beyond(lab: &Lab) {
    bad_local(lab, Opcode::RdmaRead, beyond, WcStatus::LOC_PROT_ERR);
}

fn gone(a: &End) -> Slice {
    let lkey = a.register(4096, ALL).lkey();
    a.mr.claim(lkey, 0, 8)
}

fn send_from_memory_that_is_gone(lab: &Lab) {
    bad_local(lab, Opcode::Send, gone, WcStatus::LOC_PROT_ERR);
}

fn rxe_send_from_memory_that_is_gone(lab: &Lab) {
    bad_local(lab, Opcode::Send, gone, WcStatus::LOC_QP_OP_ERR);
}

fn from_another_domain(lab: &Lab, expected: WcStatus) {
    let stranger = lab.end(Setup::default());
    // Its address, too, as bounds are not to be what decides.
    let local = |a: &End| {
        let distance = stranger.mr.addr().wrapping_sub(a.mr.addr());
        a.mr.claim(stranger.mr.lkey(), distance as usize, 8)
    };
    bad_local(lab, Opcode::Send, local, expected);
}

fn send_from_another_protection_domain(lab: &Lab) {
    from_another_domain(lab, WcStatus::LOC_PROT_ERR);
}

fn rxe_send_from_another_protection_domain(lab: &Lab) {
    from_another_domain(lab, WcStatus::LOC_QP_OP_ERR);
}

fn inline_needs_no_key(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(0, &[5; 8]);
    b.receive(10, b.slice(64, 8)).unwrap();
    a.post(&Request::send(nobodys_key(&a)).inline()).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
    assert_eq!(b.bytes(64, 8), [5; 8]);
}

/// A sends 9 bytes to this receive of B's, with another request and another receive behind.
fn bad_receive(lab: &Lab, into: impl Fn(&End) -> Slice, at_a: WcStatus, at_b: WcStatus) {
    let (a, b) = lab.pair(Setup::default());
    a.receives([20]);
    b.receive(30, into(&b)).unwrap();
    b.receives([31]);
    a.post(&Request::send(a.slice(0, 9))).unwrap();
    let _ = a.post(&Request::write(a.slice(0, 8), b.remote(64)).id(2).unsignalled());
    a.sends_end(&[(1, at_a), (2, WcStatus::WR_FLUSH_ERR)]);
    b.receives_end(&[(30, at_b), (31, WcStatus::WR_FLUSH_ERR)]);
    a.receives_end(&[(20, WcStatus::WR_FLUSH_ERR)]);
    a.comes_to(QpState::Error);
    b.comes_to(QpState::Error);
    b.nothing_sent();
}

fn into_nobodys_key(b: &End) -> Slice {
    b.mr.claim(!b.mr.lkey(), 0, 64)
}

fn receive_into_a_key_of_nobody(lab: &Lab) {
    bad_receive(lab, into_nobodys_key, WcStatus::REM_OP_ERR, WcStatus::LOC_PROT_ERR);
}

fn rxe_receive_into_a_key_of_nobody(lab: &Lab) {
    bad_receive(lab, into_nobodys_key, WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR);
}

fn receive_a_byte_too_small(lab: &Lab) {
    bad_receive(lab, |b| b.slice(0, 8), WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR);
}

fn rxe_receive_a_byte_too_small(lab: &Lab) {
    bad_receive(lab, |b| b.slice(0, 8), WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR);
}

fn longer_than_the_port_allows(lab: &Lab) {
    let longest = usize::try_from(lab.port.max_msg_size).unwrap();
    if lab.device.provider() == ProviderKind::Emulated && longest > 1 << 20 {
        return with_short_messages(lab);
    }
    let (a, b) = lab.pair(Setup::default());
    let (from, to) = (a.register(longest + 1, ALL), b.register(longest + 1, ALL));
    a.post(&Request::write(from.slice(0, longest), to.remote(0))).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    a.post(&Request::write(from.slice(0, longest + 1), to.remote(0))).unwrap();
    a.sends_end(&[(1, WcStatus::LOC_LEN_ERR)]);
    a.comes_to(QpState::Error);
    assert_eq!(b.state(), QpState::Rts);
}

fn rxe_longer_than_the_port_allows(lab: &Lab) {
    let longest = usize::try_from(lab.port.max_msg_size).unwrap();
    let (a, b) = lab.pair(Setup::default());
    let (from, to) = (a.register(longest + 1, ALL), b.register(longest + 1, ALL));
    from.region().store_release(longest, 7);
    a.post(&Request::write(from.slice(0, longest + 1), to.remote(0))).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    assert_eq!(to.region().load_acquire(longest), 7);
}

/// The emulated devices take messages of a gigabyte unless told otherwise, which only a new process can be.
fn with_short_messages(lab: &Lab) {
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "local_faults::rule::longer_than_the_port_allows"])
        .env("VERBMARK_EMULATED", "max-msg=4096")
        .env("VERBMARK_CONFORMANCE_DEVICE", lab.device.name())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
}
