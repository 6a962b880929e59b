//! The messages of this layer itself. What a session exchanges passes through [`super::Control`] as any serde type.

use std::fmt;
use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, Step};

/// Around every message: what was asked for, or the error that stands in its place.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Envelope<T> {
    Ok(T),
    Error(Error),
}

/// A frame that is not what was awaited: its start, and what serde says of it. Both hold bytes of the peer.
pub(super) fn misread(body: &[u8], cause: &serde_json::Error) -> String {
    let start = body[..body.len().min(60)].escape_ascii();
    format!("\"{start}\" ({})", printable(&cause.to_string(), 200))
}

/// Text of the peer in one line that does nothing to a terminal, and of a length one can read.
pub(super) fn printable(text: &str, most: usize) -> String {
    text.chars().take(most).fold(String::new(), |mut out, c| {
        if c.is_control() {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
        out
    })
}

/// Which program speaks, and on which boot of which kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Version of the tool, as in `0.1.0`. The protocol has a version of its own in the preamble.
    pub tool: String,
    /// `/proc/sys/kernel/random/boot_id`: equal at both ends when they run under one kernel, in containers too.
    pub boot_id: Option<String>,
}

/// What a client sends after the preamble.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Who speaks.
    pub identity: Identity,
    /// What the connection is for.
    pub purpose: Purpose,
}

/// What a connection is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The control connection of a run; frames follow.
    Run {},
    /// A data connection of the run that holds this token; raw bytes follow the server's [`Welcome`].
    Data {
        /// Given to the client by the server over the control connection.
        token: Token,
    },
}

/// What a server answers to a [`Hello`] it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Who answers.
    pub identity: Identity,
    /// The client must prove that it knows a secret, with this; `None` where none is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge: Option<Token>,
}

/// Both ends have come to the same place.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Barrier {
    pub(super) barrier: String,
}

/// A random number, which ties a data connection to its run, or is asked of who must prove something: 128 bits as 32
/// hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Token(String);

impl Token {
    /// A new one, from `/dev/urandom` (`random(4)`).
    ///
    /// # Errors
    /// There is no such device here.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut bytes))
            .map_err(|e| Error::failed(Step::Listen, format!("reading 16 bytes of /dev/urandom: {e}")))?;
        Ok(Self(format!("{:032x}", u128::from_be_bytes(bytes))))
    }

    pub(super) fn digits(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Token {
    type Error = &'static str;

    fn try_from(text: String) -> std::result::Result<Self, &'static str> {
        let plain = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if plain { Ok(Self(text)) } else { Err("a token is 32 hexadecimal digits") }
    }
}

/// Not the digits: who reads a log must not be able to join a run.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_survive_the_wire_but_not_the_log() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_ne!(one, other);
        let json = serde_json::to_string(&one).unwrap();
        assert_eq!(json.len(), 34);
        assert_eq!(serde_json::from_str::<Token>(&json).unwrap(), one);
        assert_eq!(format!("{one:?}"), "Token(..)");
        for bad in [r#""""#, r#""12""#, "\"0123456789abcdef0123456789abcdeX\"", "7"] {
            assert!(serde_json::from_str::<Token>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_wire_form_is_fixed() {
        let identity = Identity { tool: "0.1.0".into(), boot_id: None };
        let hello = Hello { identity: identity.clone(), purpose: Purpose::Run {} };
        assert_eq!(
            serde_json::to_string(&Envelope::Ok(hello)).unwrap(),
            r#"{"ok":{"identity":{"tool":"0.1.0","boot_id":null},"purpose":{"run":{}}}}"#
        );
        let refused: Envelope<Welcome> = serde_json::from_str(
            r#"{"error":{"step":"hello","kind":"failed","message":"no","remedy":null,"remote":false}}"#,
        )
        .unwrap();
        assert!(matches!(refused, Envelope::Error(error) if error.message == "no"));
    }
}
