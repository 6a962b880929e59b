//! Whether a test can use a port now, and why.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::result::LinkLayer;
use crate::verbs::PortState;

/// Why a port can or cannot be used, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// Nothing is in the way that this end can see.
    Usable,
    /// The device exists in this process only.
    Emulated,
    /// Its connections need `rdma_cm`, which the tests have not.
    Iwarp,
    /// The device cannot be opened.
    CannotOpen,
    /// The device is open and does not answer.
    NoAnswer,
    /// The port carries no data.
    NotActive,
    /// No subnet manager has given the port an address.
    NoLid,
    /// An Ethernet port has no address.
    NoGid,
    /// Memory cannot be registered: the limit of locked memory, most often.
    Memory,
}

/// The verdict on a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// For programs.
    pub code: Code,
    /// For people, one line.
    pub message: String,
    /// What to do about it, or `null`.
    pub remedy: Option<String>,
}

impl Reason {
    fn new(code: Code, message: impl Into<String>, remedy: Option<&str>) -> Self {
        Self { code, message: message.into(), remedy: remedy.map(str::to_owned) }
    }

    /// What a library or the kernel said.
    pub fn of(code: Code, error: &Error) -> Self {
        Self::new(code, error.message.clone(), error.remedy.as_deref())
    }

    /// A test can use the port now.
    pub fn is_usable(&self) -> bool {
        self.code == Code::Usable
    }
}

/// What decides about a port of an open device.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    pub is_emulated: bool,
    pub state: PortState,
    pub link_layer: Option<LinkLayer>,
    pub lid: u16,
    /// How many GIDs it has, and how many of them are not link-local.
    pub gids: (usize, usize),
    /// What registering as much memory as a test does came to.
    pub memory: Result<(), &'a Error>,
}

/// The first thing that is in the way, in the order in which a run would meet them.
pub fn judge(facts: &Facts<'_>) -> Reason {
    let infiniband = facts.link_layer == Some(LinkLayer::InfiniBand);
    let (gids, global) = facts.gids;
    if facts.state != PortState::Active {
        let remedy = if infiniband {
            "check the cable and that a subnet manager (opensm) runs"
        } else {
            "bring the interface up (ip link set IF up) and check the cable"
        };
        Reason::new(Code::NotActive, format!("the port is {}, not active", facts.state), Some(remedy))
    } else if infiniband && facts.lid == 0 {
        let remedy = "start a subnet manager (opensm) on the fabric";
        Reason::new(Code::NoLid, "the port has no LID", Some(remedy))
    } else if !infiniband && gids == 0 {
        let remedy = "bring the interface up and give it an address (ip addr add ADDRESS/BITS dev IF)";
        Reason::new(Code::NoGid, "the port has no GID", Some(remedy))
    } else if let Err(error) = facts.memory {
        Reason::of(Code::Memory, error)
    } else if facts.is_emulated {
        let message = "emulated in this process: used by --loopback alone, and its numbers measure this tool";
        Reason::new(Code::Emulated, message, None)
    } else if !infiniband && global == 0 {
        let message = "usable, by link-local GIDs alone: TCP is not measured over the same link";
        let remedy = "give the interface an address (ip addr add ADDRESS/BITS dev IF)";
        Reason::new(Code::Usable, message, Some(remedy))
    } else {
        Reason::new(Code::Usable, "usable", None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Step;

    const GOOD: Facts<'static> = Facts {
        is_emulated: false,
        state: PortState::Active,
        link_layer: Some(LinkLayer::Ethernet),
        lid: 0,
        gids: (2, 1),
        memory: Ok(()),
    };

    #[test]
    fn each_obstacle_is_named_with_what_to_do() {
        let error = Error::failed(Step::RegisterMemory, "too much").with_remedy("allow more");
        let infiniband = || Facts { link_layer: Some(LinkLayer::InfiniBand), ..GOOD };
        for (facts, code, part) in [
            (Facts { state: PortState::Down, ..GOOD }, Code::NotActive, "down"),
            (Facts { state: PortState::Init, ..infiniband() }, Code::NotActive, "opensm"),
            (Facts { gids: (0, 0), ..GOOD }, Code::NoGid, "ip addr add"),
            (infiniband(), Code::NoLid, "opensm"),
            (Facts { memory: Err(&error), ..GOOD }, Code::Memory, "allow more"),
        ] {
            let reason = judge(&facts);
            assert_eq!(reason.code, code, "{facts:?}");
            assert!(!reason.is_usable());
            let told = format!("{} {}", reason.message, reason.remedy.expect("there is something to do"));
            assert!(told.contains(part), "{told}");
        }
    }

    #[test]
    fn what_nothing_stands_in_the_way_of_is_usable() {
        assert_eq!(judge(&GOOD), Reason::new(Code::Usable, "usable", None));
        let routed = Facts { link_layer: Some(LinkLayer::InfiniBand), lid: 3, gids: (0, 0), ..GOOD };
        assert!(judge(&routed).is_usable(), "InfiniBand needs no GID within a subnet");
        let local = judge(&Facts { gids: (1, 0), ..GOOD });
        assert!(local.is_usable() && local.message.contains("link-local"));
    }

    #[test]
    fn the_emulated_device_is_never_offered_as_one_to_use() {
        let reason = judge(&Facts { is_emulated: true, ..GOOD });
        assert_eq!((reason.code, reason.is_usable()), (Code::Emulated, false));
        assert!(reason.message.contains("--loopback"));
    }
}
