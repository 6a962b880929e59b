//! What travels between a requester and a responder, and the completions that tell of it.

use ibverbs_sys::{ibv_send_wr, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode};

use super::completion::Completion;
use super::grh;
use super::memory::Pieces;

/// A request as the responder sees it.
pub(super) struct Request<'a> {
    pub opcode: ibv_wr_opcode::Type,
    /// The sender asks for the receiver's attention.
    pub solicited: bool,
    /// Immediate data in network byte order, meaningful if the opcode carries some.
    pub imm: u32,
    /// Address at the target, meaningful for one-sided operations.
    pub remote_addr: u64,
    /// Key of that address.
    pub rkey: u32,
    /// What to compare with or to add.
    pub compare_add: u64,
    /// What to put there.
    pub swap: u64,
    /// The requester's memory: the payload, or where the answer goes.
    pub local: &'a Pieces,
    /// Bytes of a packet, as a power of two.
    pub mtu_shift: u32,
    /// Number of the requester.
    pub from: u32,
    /// LID of the requester.
    pub lid: u16,
    /// Service level of its path.
    pub service_level: u8,
}

/// What a datagram carries besides.
pub(super) struct Envelope {
    /// The key that the target must have.
    pub qkey: u32,
    /// The header of a global route, if it came by one.
    pub header: Option<[u8; grh::BYTES]>,
}

impl Request<'_> {
    /// Takes what the opcode needs besides the local memory.
    ///
    /// # Safety
    /// Those fields of `wr` are filled in.
    #[inline(always)]
    pub(super) unsafe fn take_operands(&mut self, wr: &ibv_send_wr) {
        if carries_immediate(wr.opcode) {
            // SAFETY: the caller's contract.
            self.imm = unsafe { wr.__bindgen_anon_1.imm_data };
        }
        if is_atomic(wr.opcode) {
            // SAFETY: the caller's contract.
            let atomic = unsafe { wr.wr.atomic };
            self.remote_addr = atomic.remote_addr;
            self.rkey = atomic.rkey;
            self.compare_add = atomic.compare_add;
            self.swap = atomic.swap;
        } else if !is_send(wr.opcode) {
            // SAFETY: the caller's contract.
            let rdma = unsafe { wr.wr.rdma };
            self.remote_addr = rdma.remote_addr;
            self.rkey = rdma.rkey;
        }
    }
}

/// The message has immediate data.
#[inline(always)]
pub(super) const fn carries_immediate(opcode: ibv_wr_opcode::Type) -> bool {
    matches!(opcode, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM)
}

/// The message uses up a receive.
pub(super) const fn takes_receive(opcode: ibv_wr_opcode::Type) -> bool {
    is_send(opcode) || carries_immediate(opcode)
}

/// The message goes to a receive, whole.
#[inline(always)]
pub(super) const fn is_send(opcode: ibv_wr_opcode::Type) -> bool {
    matches!(opcode, ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM)
}

/// The opcode of the requester's completion; `None` for operations the device does not have.
#[inline(always)]
pub(super) const fn completes_as(opcode: ibv_wr_opcode::Type) -> Option<ibv_wc_opcode::Type> {
    Some(match opcode {
        ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => ibv_wc_opcode::IBV_WC_SEND,
        ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
            ibv_wc_opcode::IBV_WC_RDMA_WRITE
        }
        ibv_wr_opcode::IBV_WR_RDMA_READ => ibv_wc_opcode::IBV_WC_RDMA_READ,
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => ibv_wc_opcode::IBV_WC_COMP_SWAP,
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        _ => return None,
    })
}

/// The data comes back from the target.
#[inline(always)]
pub(super) const fn pulls(opcode: ibv_wr_opcode::Type) -> bool {
    is_atomic(opcode) || matches!(opcode, ibv_wr_opcode::IBV_WR_RDMA_READ)
}

/// Compare-and-swap or fetch-and-add.
#[inline(always)]
pub(super) const fn is_atomic(opcode: ibv_wr_opcode::Type) -> bool {
    matches!(opcode, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD)
}

/// A completion with the four fields that hardware defines even when it tells of an error.
pub(super) const fn completion(
    wr_id: u64,
    opcode: ibv_wc_opcode::Type,
    status: ibv_wc_status::Type,
    number: u32,
) -> Completion {
    Completion {
        wr_id,
        status,
        opcode,
        vendor_err: 0,
        byte_len: 0,
        imm_data: 0,
        qp_num: number,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}
