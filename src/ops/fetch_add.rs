use super::{Arrival, Facts, Op, Opcode, Peer};

/// One-sided: 8 bytes of the target's memory are added to by its device, and what was there comes back.
pub enum FetchAdd {}

impl Op for FetchAdd {
    const FACTS: Facts = Facts {
        name: "fetch_add",
        family: "atomic",
        title: "atomic FETCH AND ADD",
        opcode: Opcode::FetchAdd,
        arrival: Arrival::Never,
        peer: Peer::Passive,
        may_inline: false,
    };
}
