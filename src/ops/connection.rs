use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Facts, Opcode};

/// The transport service of queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Connection {
    /// Reliable connection: each message arrives once and in order, or both ends learn that it did not.
    Rc,
    /// Unreliable connection: a message may be lost, and its sender succeeds all the same.
    Uc,
    /// Unreliable datagram: likewise, without a connection, and a message is one packet.
    Ud,
}

impl Connection {
    /// Every service of the suite.
    pub const ALL: [Self; 3] = [Self::Rc, Self::Uc, Self::Ud];

    /// A message that was sent has arrived, or the sender learns of it.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc)
    }

    /// Its name, as options and documents have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Facts {
    /// The service has this verb (IBTA volume 1, 9.4; `ibv_post_send(3)`).
    pub const fn runs_over(&self, connection: Connection) -> bool {
        match connection {
            Connection::Rc => true,
            Connection::Uc => {
                matches!(self.opcode, Opcode::Send | Opcode::RdmaWrite | Opcode::RdmaWriteWithImm)
            }
            Connection::Ud => matches!(self.opcode, Opcode::Send),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Verb;

    #[test]
    fn each_verb_has_the_services_of_the_specification() {
        for verb in Verb::ALL {
            let legal: Vec<_> = Connection::ALL
                .into_iter()
                .filter(|connection| verb.facts().runs_over(*connection))
                .collect();
            let expected: &[Connection] = match verb {
                Verb::Send => &Connection::ALL,
                Verb::Write | Verb::WriteImm => &[Connection::Rc, Connection::Uc],
                Verb::Read | Verb::FetchAdd | Verb::CompareSwap => &[Connection::Rc],
            };
            assert_eq!(legal, expected, "{verb}");
        }
    }

    #[test]
    fn names_are_those_of_the_documents() {
        for connection in Connection::ALL {
            assert_eq!(serde_json::to_string(&connection).unwrap(), format!("\"{connection}\""));
        }
    }
}
