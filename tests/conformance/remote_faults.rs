//! What the responder refuses: keys, bounds, rights.

use verbmark::verbs::{Access, Opcode, QpState, RemoteSlice, WcStatus};

use crate::lab::{ALL, End, Lab, MEMORY, Request, Setup, gist};
use crate::rule::rules;

rules! {
    "Remote access faults (RC)";
    write_with_a_key_of_nobody: "IBTA 9.9.3; IBTA 11.6.2",
        "RDMA WRITE with an R_Key nobody has: REM_ACCESS_ERR, what follows is flushed; A and B in ERROR, all their receives flushed.";
    read_with_a_key_of_nobody: "IBTA 9.9.3; IBTA 11.6.2",
        "RDMA READ with an R_Key nobody has: the same.";
    write_with_a_key_that_is_almost_right: "IBTA 10.6.3; IBTA 11.6.2",
        "RDMA WRITE with an R_Key that differs from the right one in its last bit: the same.";
    write_with_imm_with_a_key_of_nobody: "IBTA 9.9.3; IBTA 11.6.2",
        "RDMA WRITE with immediate data and an R_Key nobody has: the same; B's oldest receive ends with LOC_ACCESS_ERR or flushed.",
        but rxe "6.1": "B's oldest receive ends with REM_ACCESS_ERR, a status of requesters." => rxe_write_with_imm_with_a_key_of_nobody;
    write_a_byte_beyond: "IBTA 9.9.3; IBTA 10.6.3",
        "RDMA WRITE that ends a byte behind the region: REM_ACCESS_ERR, both ends as above, and no byte is written.";
    read_a_byte_beyond: "IBTA 9.9.3; IBTA 10.6.3",
        "RDMA READ that ends a byte behind the region: the same.";
    write_a_byte_before: "IBTA 9.9.3; IBTA 10.6.3",
        "RDMA WRITE that begins a byte before the region: the same.";
    read_a_byte_before: "IBTA 9.9.3; IBTA 10.6.3",
        "RDMA READ that begins a byte before the region: the same.";
    write_where_the_address_wraps: "IBTA 9.9.3; IBTA 10.6.3",
        "RDMA WRITE whose last address is beyond 2^64: the same.";
    write_to_memory_without_the_right: "ibv_reg_mr(3); IBTA 10.6.3",
        "RDMA WRITE to a region without remote write: REM_ACCESS_ERR, both ends as above.";
    read_of_memory_without_the_right: "ibv_reg_mr(3); IBTA 10.6.3",
        "RDMA READ of a region without remote read: REM_ACCESS_ERR, both ends as above.";
    write_through_a_queue_pair_without_the_right: "ibv_modify_qp(3); IBTA 9.7.4.1",
        "RDMA WRITE to a queue pair without remote write: REM_INV_REQ_ERR, both ends as above.";
    read_through_a_queue_pair_without_the_right: "ibv_modify_qp(3); IBTA 9.7.4.1",
        "RDMA READ of a queue pair without remote read: REM_INV_REQ_ERR, both ends as above.";
    read_of_a_queue_pair_that_takes_none: "ibv_modify_qp(3); IBTA 9.7.4.1",
        "RDMA READ of a queue pair that takes in no reads: REM_INV_REQ_ERR, both ends as above.";
    key_of_memory_that_is_gone: "ibv_dereg_mr(3); IBTA 10.6.5",
        "RDMA WRITE and READ with the key of a region that was deregistered: REM_ACCESS_ERR.";
    key_of_another_protection_domain: "IBTA 10.2.3; IBTA 10.6.3",
        "RDMA WRITE and READ with the key of a region of another protection domain than B's queue pair: REM_ACCESS_ERR.";
    what_came_before_a_fault_has_happened: "IBTA 9.9.2; IBTA 10.8.3",
        "Three RDMA WRITEs, the third with a bad key: the first two succeed and are there, the third fails.";
}

/// Posts `opcode` from A with a request behind it; checks both ends.
fn refused(a: &End, b: &End, opcode: Opcode, len: usize, remote: RemoteSlice, expected: WcStatus) {
    a.receives([20, 21]);
    b.receives([30, 31]);
    a.fill(0, &[0xaa; 64]);
    let before = b.bytes(0, MEMORY);
    a.post(&Request::new(opcode, a.slice(0, len), Some(remote))).unwrap();
    // Refused, too, where the first error has come already.
    let _ = a.post(&Request::write(a.slice(0, 8), b.remote(64)).id(2).unsignalled());
    a.sends_end(&[(1, expected), (2, WcStatus::WR_FLUSH_ERR)]);
    a.comes_to(QpState::Error);
    b.comes_to(QpState::Error);
    a.receives_end(&[(20, WcStatus::WR_FLUSH_ERR), (21, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!(b.bytes(0, MEMORY), before, "memory of B changed");
}

fn all_flushed(b: &End) {
    b.receives_end(&[(30, WcStatus::WR_FLUSH_ERR), (31, WcStatus::WR_FLUSH_ERR)]);
    b.nothing_sent();
}

/// The same for a remote slice that is wrong in some way, with a queue pair that allows all.
fn bad_slice(lab: &Lab, opcode: Opcode, len: usize, spoil: impl Fn(&End) -> RemoteSlice) {
    let (a, b) = lab.pair(Setup::default());
    refused(&a, &b, opcode, len, spoil(&b), WcStatus::REM_ACCESS_ERR);
    all_flushed(&b);
}

fn nobodys_key(b: &End) -> RemoteSlice {
    RemoteSlice { rkey: !b.mr.rkey(), ..b.remote(64) }
}

fn write_with_a_key_of_nobody(lab: &Lab) {
    bad_slice(lab, Opcode::RdmaWrite, 8, nobodys_key);
}

fn write_with_a_key_that_is_almost_right(lab: &Lab) {
    bad_slice(lab, Opcode::RdmaWrite, 8, |b| RemoteSlice { rkey: b.mr.rkey() ^ 1, ..b.remote(64) });
}

fn read_with_a_key_of_nobody(lab: &Lab) {
    bad_slice(lab, Opcode::RdmaRead, 8, nobodys_key);
}

fn write_with_imm_with_a_key_of_nobody(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    refused(&a, &b, Opcode::RdmaWriteWithImm, 8, nobodys_key(&b), WcStatus::REM_ACCESS_ERR);
    let ends = gist(&b.received(2));
    assert!([WcStatus::LOC_ACCESS_ERR, WcStatus::WR_FLUSH_ERR].contains(&ends[0].1), "{ends:?}");
    assert_eq!((ends[0].0, ends[1]), (30, (31, WcStatus::WR_FLUSH_ERR)));
}

fn rxe_write_with_imm_with_a_key_of_nobody(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    refused(&a, &b, Opcode::RdmaWriteWithImm, 8, nobodys_key(&b), WcStatus::REM_ACCESS_ERR);
    b.receives_end(&[(30, WcStatus::REM_ACCESS_ERR), (31, WcStatus::WR_FLUSH_ERR)]);
}

fn beyond(b: &End) -> RemoteSlice {
    b.remote(MEMORY - 7)
}

fn before(b: &End) -> RemoteSlice {
    RemoteSlice { addr: b.mr.addr() - 1, ..b.remote(0) }
}

fn write_a_byte_beyond(lab: &Lab) {
    bad_slice(lab, Opcode::RdmaWrite, 8, beyond);
}

fn read_a_byte_beyond(lab: &Lab) {
    bad_slice(lab, Opcode::RdmaRead, 8, beyond);
}

fn write_a_byte_before(lab: &Lab) {
    bad_slice(lab, Opcode::RdmaWrite, 8, before);
}

fn read_a_byte_before(lab: &Lab) {
    bad_slice(lab, Opcode::RdmaRead, 8, before);
}

fn write_where_the_address_wraps(lab: &Lab) {
    bad_slice(lab, Opcode::RdmaWrite, 8, |b| RemoteSlice { addr: u64::MAX - 3, ..b.remote(0) });
}

fn without_right(lab: &Lab, opcode: Opcode, memory_access: Access, qp_access: Access, expected: WcStatus) {
    let (a, b) = lab.pair(Setup { memory_access, qp_access, ..Setup::default() });
    refused(&a, &b, opcode, 8, b.remote(64), expected);
    all_flushed(&b);
}

const NO_WRITE: Access = Access { remote_write: false, ..ALL };
const NO_READ: Access = Access { remote_read: false, ..ALL };

fn write_to_memory_without_the_right(lab: &Lab) {
    // Remote atomics need write, on some devices.
    let reads = Access { remote_read: true, ..Access::default() };
    without_right(lab, Opcode::RdmaWrite, reads, ALL, WcStatus::REM_ACCESS_ERR);
}

fn read_of_memory_without_the_right(lab: &Lab) {
    without_right(lab, Opcode::RdmaRead, NO_READ, ALL, WcStatus::REM_ACCESS_ERR);
}

fn write_through_a_queue_pair_without_the_right(lab: &Lab) {
    without_right(lab, Opcode::RdmaWrite, ALL, NO_WRITE, WcStatus::REM_INV_REQ_ERR);
}

fn read_through_a_queue_pair_without_the_right(lab: &Lab) {
    without_right(lab, Opcode::RdmaRead, ALL, NO_READ, WcStatus::REM_INV_REQ_ERR);
}

fn read_of_a_queue_pair_that_takes_none(lab: &Lab) {
    let (a, b) = (lab.end(Setup::default()), lab.end(Setup { reads_in: 0, ..Setup::default() }));
    a.connect(&b);
    b.connect(&a);
    refused(&a, &b, Opcode::RdmaRead, 8, b.remote(64), WcStatus::REM_INV_REQ_ERR);
    all_flushed(&b);
}

fn key_of_memory_that_is_gone(lab: &Lab) {
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
        bad_slice(lab, opcode, 8, |b| b.register(4096, ALL).remote(0));
    }
}

fn key_of_another_protection_domain(lab: &Lab) {
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
        let stranger = lab.end(Setup::default());
        bad_slice(lab, opcode, 8, |_| stranger.remote(0));
        assert_eq!(stranger.bytes(0, 8), [0; 8]);
    }
}

fn what_came_before_a_fault_has_happened(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(0, &[1, 2, 3]);
    let write = |id: u64, remote| Request::write(a.slice(id as usize, 1), remote).id(id);
    a.post_all(&[write(0, b.remote(100)), write(1, b.remote(101)), write(2, nobodys_key(&b))]);
    a.sends_end(&[(0, WcStatus::SUCCESS), (1, WcStatus::SUCCESS), (2, WcStatus::REM_ACCESS_ERR)]);
    assert_eq!(b.bytes(100, 3), [1, 2, 0]);
}
