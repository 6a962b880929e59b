use super::{Arrival, Facts, Op, Opcode, Peer};

/// One-sided: 8 bytes of the target's memory are replaced by its device if they are what was expected, and what was
/// there comes back.
pub enum CompareSwap {}

impl Op for CompareSwap {
    const FACTS: Facts = Facts {
        name: "compare_swap",
        family: "atomic",
        title: "atomic COMPARE AND SWAP",
        opcode: Opcode::CompareSwap,
        arrival: Arrival::Never,
        peer: Peer::Passive,
        may_inline: false,
    };
}
