use super::{Arrival, Facts, Op, Opcode, Peer};

/// One-sided: the target's memory is fetched without its taking part.
pub enum Read {}

impl Op for Read {
    const FACTS: Facts = Facts {
        name: "read",
        family: "read",
        title: "RDMA READ",
        opcode: Opcode::RdmaRead,
        arrival: Arrival::Never,
        peer: Peer::Passive,
        may_inline: false,
    };
}
