use super::{Arrival, Facts, Op, Opcode, Peer};

/// One-sided data, two-sided notice: lands by address, and consumes a receive that carries 32 bits.
pub enum WriteImm {}

impl Op for WriteImm {
    const FACTS: Facts = Facts {
        name: "write_imm",
        family: "write_imm",
        title: "RDMA WRITE with immediate",
        opcode: Opcode::RdmaWriteWithImm,
        arrival: Arrival::RecvCompletion,
        peer: Peer::Echoes,
        may_inline: true,
    };
}
