//! Work requests of the send queue, as rules write them.

use verbmark::verbs::{Opcode, RemoteSlice, Slice};

/// A work request of the send queue.
#[derive(Clone)]
pub struct Request {
    pub opcode: Opcode,
    pub local: Vec<Slice>,
    pub remote: Option<RemoteSlice>,
    pub id: u64,
    pub imm: u32,
    /// Of an atomic: what is added or compared, and what it is swapped for.
    pub operands: Option<(u64, u64)>,
    pub inline: bool,
    pub signalled: bool,
    pub solicited: bool,
}

impl Request {
    /// A signalled request with number 1.
    pub fn new(opcode: Opcode, local: impl Into<Vec<Slice>>, remote: Option<RemoteSlice>) -> Self {
        let local = local.into();
        Self {
            opcode,
            local,
            remote,
            id: 1,
            imm: 0,
            operands: None,
            inline: false,
            signalled: true,
            solicited: false,
        }
    }

    pub fn send(local: impl Into<Vec<Slice>>) -> Self {
        Self::new(Opcode::Send, local, None)
    }

    pub fn write(local: impl Into<Vec<Slice>>, remote: RemoteSlice) -> Self {
        Self::new(Opcode::RdmaWrite, local, Some(remote))
    }

    pub fn fetch_add(local: Slice, remote: RemoteSlice, addend: u64) -> Self {
        Self { operands: Some((addend, 0)), ..Self::new(Opcode::FetchAdd, local, Some(remote)) }
    }

    pub fn compare_swap(local: Slice, remote: RemoteSlice, compare: u64, swap: u64) -> Self {
        Self { operands: Some((compare, swap)), ..Self::new(Opcode::CompareSwap, local, Some(remote)) }
    }

    pub fn id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    pub fn imm(self, imm: u32) -> Self {
        Self { imm, ..self }
    }

    pub fn inline(self) -> Self {
        Self { inline: true, ..self }
    }

    pub fn solicited(self) -> Self {
        Self { solicited: true, ..self }
    }

    pub fn unsignalled(self) -> Self {
        Self { signalled: false, ..self }
    }
}
