//! What each verb is: facts and a work request, one file a verb, one table.
//!
//! Everything that differs between verbs in a loop is an associated constant here, so that one loop serves all and
//! the compiler folds the rest. Facts only: nothing in this module touches a device.

use serde::{Deserialize, Serialize};

mod compare_swap;
mod connection;
mod fetch_add;
mod read;
mod send;
mod write;
mod write_imm;

pub use compare_swap::CompareSwap;
pub use connection::Connection;
pub use fetch_add::FetchAdd;
pub use read::Read;
pub use send::Send;
pub use write::Write;
pub use write_imm::WriteImm;

/// The operation a work request asks the device for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// `IBV_WR_SEND`
    Send,
    /// `IBV_WR_RDMA_WRITE`
    RdmaWrite,
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`
    RdmaWriteWithImm,
    /// `IBV_WR_RDMA_READ`
    RdmaRead,
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`
    FetchAdd,
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`
    CompareSwap,
}

/// How the end that did not post learns that a message is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// A completion on its receive queue: each message consumes a posted receive.
    RecvCompletion,
    /// Only its memory changes; it may watch the last byte.
    LastByte,
    /// Nothing: the requester's completion is the only trace.
    Never,
}

/// What the other end does in a latency test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Answers each message with one of the same kind: half of the round trip is shown.
    Echoes,
    /// Sleeps on the control connection: the whole operation is shown.
    Passive,
}

/// Bytes of an atomic operation's word: IBTA 9.4.5 knows no other.
pub const ATOMIC_SIZE: u64 = 8;

/// What the loops, the plan and the reports need to know of a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Name in options and documents, such as `write_imm`.
    pub name: &'static str,
    /// Name of its binaries up to `_lat` or `_bw`; verbs may share them.
    pub family: &'static str,
    /// The name as the specification spells it.
    pub title: &'static str,
    /// What the device is asked for.
    pub opcode: Opcode,
    /// How the target learns of a message.
    pub arrival: Arrival,
    /// What the target does in a latency test.
    pub peer: Peer,
    /// The payload may be copied into the work request (`IBV_SEND_INLINE`).
    pub may_inline: bool,
}

impl Facts {
    /// The work request names an address and key at the target.
    pub const fn is_one_sided(&self) -> bool {
        !matches!(self.opcode, Opcode::Send)
    }

    /// The payload travels from the target to the requester.
    pub const fn pulls(&self) -> bool {
        matches!(self.opcode, Opcode::RdmaRead) || self.is_atomic()
    }

    /// The target's device works on one word of its memory, in the order in which requests were posted.
    pub const fn is_atomic(&self) -> bool {
        matches!(self.opcode, Opcode::FetchAdd | Opcode::CompareSwap)
    }

    /// Each message takes a receive at its target, which so learns of it.
    pub const fn consumes_receives(&self) -> bool {
        matches!(self.arrival, Arrival::RecvCompletion)
    }

    /// The work request carries 32 bits of immediate data.
    pub const fn carries_imm(&self) -> bool {
        matches!(self.opcode, Opcode::RdmaWriteWithImm)
    }
}

/// A verb as a type, so that a loop over it is compiled for it alone.
pub trait Op: 'static + std::marker::Send {
    /// The facts, folded by the compiler wherever a loop asks.
    const FACTS: Facts;
}

/// Declares the table: the run-time name of each verb, and the way from it back to the type.
macro_rules! table {
    ($($verb:ident),* $(,)?) => {
        /// A verb by name, as plans and documents carry it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Verb {
            $(#[doc = concat!("See [`", stringify!($verb), "`].")] $verb,)*
        }

        impl Verb {
            /// Every verb of the suite.
            pub const ALL: &'static [Verb] = &[$(Verb::$verb),*];

            /// What there is to know of this verb.
            pub const fn facts(self) -> &'static Facts {
                match self {
                    $(Verb::$verb => &$verb::FACTS,)*
                }
            }

            /// Calls `visitor` with the verb's type: the one step from a name in a plan to a compiled loop.
            pub fn visit<V: Visitor>(self, visitor: V) -> V::Output {
                match self {
                    $(Verb::$verb => visitor.visit::<$verb>(),)*
                }
            }
        }
    };
}

table! {
    Send,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
}

/// Something to be done for one verb, compiled for each.
pub trait Visitor {
    /// What it yields.
    type Output;
    /// Does it for verb `O`.
    fn visit<O: Op>(self) -> Self::Output;
}

impl std::fmt::Display for Verb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.facts().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_agree_with_the_operation() {
        for verb in Verb::ALL {
            let facts = verb.facts();
            let consumes_receive = matches!(facts.opcode, Opcode::Send | Opcode::RdmaWriteWithImm);
            assert_eq!(facts.arrival == Arrival::RecvCompletion, consumes_receive, "{verb}");
            assert_eq!(facts.peer == Peer::Passive, facts.arrival == Arrival::Never, "{verb}");
            assert!(!(facts.pulls() && facts.may_inline), "{verb}: a read has no payload to inline");
        }
    }

    #[test]
    fn names_are_those_of_the_documents() {
        for verb in Verb::ALL {
            assert_eq!(serde_json::to_string(verb).unwrap(), format!("\"{}\"", verb.facts().name));
        }
    }
}
