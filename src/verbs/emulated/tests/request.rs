//! Work requests as tests write them.

use ibverbs_sys::{ibv_ah, ibv_sge};

use super::harness::{End, SIGNALED, opcode};

/// A work request for a send queue, in safe clothes.
#[derive(Clone)]
pub(super) struct Wr {
    pub id: u64,
    pub opcode: opcode::Type,
    pub flags: u32,
    pub imm: u32,
    pub local: Vec<ibv_sge>,
    pub remote: u64,
    pub rkey: u32,
    pub compare_add: u64,
    pub swap: u64,
    /// Address handle, number and key of the target.
    pub datagram: Option<(*mut ibv_ah, u32, u32)>,
}

// SAFETY: handles may be used from any thread.
unsafe impl Send for Wr {}
// SAFETY: as above.
unsafe impl Sync for Wr {}

impl Wr {
    /// Signalled.
    pub fn new(id: u64, opcode: opcode::Type, local: &[ibv_sge]) -> Self {
        Self {
            id,
            opcode,
            flags: SIGNALED,
            imm: 0,
            local: local.to_vec(),
            remote: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            datagram: None,
        }
    }

    pub fn to(mut self, target: &End, offset: usize) -> Self {
        self.remote = target.addr(offset);
        self.rkey = target.key();
        self
    }

    pub fn datagram(mut self, ah: *mut ibv_ah, target: u32, qkey: u32) -> Self {
        self.datagram = Some((ah, target, qkey));
        self
    }

    pub fn flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }
}
