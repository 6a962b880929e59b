use super::{Arrival, Facts, Op, Opcode, Peer};

/// Two-sided: the target posts a receive, the message lands where that receive says.
pub enum Send {}

impl Op for Send {
    const FACTS: Facts = Facts {
        name: "send",
        family: "send",
        title: "SEND",
        opcode: Opcode::Send,
        arrival: Arrival::RecvCompletion,
        peer: Peer::Echoes,
        may_inline: true,
    };
}
