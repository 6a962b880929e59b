use super::{Arrival, Facts, Op, Opcode, Peer};

/// One-sided: the data lands at an address and key of the target, which is not told.
pub enum Write {}

impl Op for Write {
    const FACTS: Facts = Facts {
        name: "write",
        family: "write",
        title: "RDMA WRITE",
        opcode: Opcode::RdmaWrite,
        arrival: Arrival::LastByte,
        peer: Peer::Echoes,
        may_inline: true,
    };
}
