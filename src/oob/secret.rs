//! A secret that both ends know, and how each proves that without telling it: HMAC-SHA-256 (RFC 2104) over random numbers of
//! both, of which neither is used twice.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::messages::Token;
use crate::error::{Error, Result};
use crate::plan::Side;

/// Least length: shorter ones are found by trying, offline, from one proof that was overheard.
const SHORTEST: usize = 16;

/// Longest secret that is read.
const LONGEST: u64 = 4096;

/// What both ends know, as the key of a MAC.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

/// Not the bytes: a secret is in no log.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What each end sends to show that it knows the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Proof {
    /// What the other end must answer; at a server, what it has just answered.
    pub(super) challenge: Token,
    /// 64 hexadecimal digits.
    pub(super) mac: String,
}

impl Secret {
    /// The content of a file, without a line feed at its end.
    ///
    /// # Errors
    /// Usage: the file cannot be read, or its length is outside 16 to 4096 bytes.
    pub fn read(path: &Path) -> Result<Self> {
        Self::new(&content(path)?)
    }

    fn new(key: &[u8]) -> Result<Self> {
        let mac = Hmac::new_from_slice(key);
        mac.map(Self).map_err(|error| Error::usage(format!("the secret is no key: {error}")))
    }

    /// This end's proof, made with what the other end asked and what it is asked in turn.
    pub(super) fn prove(&self, side: Side, asked: &Token, asks: &Token) -> Proof {
        let mac = self.mac(side, asked, asks).finalize().into_bytes();
        let mac = mac.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        Proof { challenge: asks.clone(), mac }
    }

    /// Whether the proof is that of the end of this side, who was `asked` this; in constant time.
    pub(super) fn proves(&self, side: Side, asked: &Token, proof: &Proof) -> bool {
        let digits = proof.mac.as_bytes().chunks(2).map(|pair| {
            let text = std::str::from_utf8(pair).unwrap_or_default();
            // `from_str_radix` would take a sign.
            let plain = text.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
            u8::from_str_radix(text, 16).ok().filter(|_| plain)
        });
        let Some(claimed) = digits.collect::<Option<Vec<u8>>>() else { return false };
        self.mac(side, asked, &proof.challenge).verify_slice(&claimed).is_ok()
    }

    /// The side is in it, so that no answer can be sent back as one.
    fn mac(&self, side: Side, asked: &Token, asks: &Token) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in ["verbmark/1 secret ", side.name(), " ", asked.digits(), " ", asks.digits()] {
            mac.update(part.as_bytes());
        }
        mac
    }
}

/// What a file has, but for a line feed at its end.
fn content(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(LONGEST + 2).read_to_end(&mut bytes)).map_err(|error| {
        Error::usage(format!("--secret-file {shown}: {error}"))
            .with_remedy("name a file that this user can read, with the same content at both ends")
    })?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    if !(SHORTEST..=LONGEST as usize).contains(&bytes.len()) {
        let length = bytes.len();
        return Err(Error::usage(format!(
            "--secret-file {shown}: {length} bytes, not {SHORTEST} to {LONGEST}"
        ))
        .with_remedy("make one with `openssl rand -hex 32`"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_proof_holds_for_its_side_its_question_and_its_secret_alone() {
        let (ours, other) = (secret("sixteen bytes or more"), secret("sixteen bytes or mora"));
        let [asked, asks, another] = [(); 3].map(|()| Token::random().unwrap());
        let proof = ours.prove(Side::Client, &asked, &asks);
        assert!(ours.proves(Side::Client, &asked, &proof));
        assert!(!other.proves(Side::Client, &asked, &proof), "another secret");
        assert!(!ours.proves(Side::Server, &asked, &proof), "sent back");
        assert!(!ours.proves(Side::Client, &another, &proof), "heard before");
        let replaced = Proof { challenge: another, ..proof.clone() };
        assert!(!ours.proves(Side::Client, &asked, &replaced), "another challenge");
        for mac in ["", "0", "+f", &proof.mac[2..], &format!("{}00", proof.mac), &"\u{e9}".repeat(32)] {
            assert!(!ours.proves(Side::Client, &asked, &Proof { mac: mac.into(), ..proof.clone() }), "{mac}");
        }
        assert!(!format!("{ours:?} {proof:?}").contains("sixteen"));
    }

    #[test]
    fn a_file_is_read_without_its_last_line_feed_and_neither_too_short_nor_too_long() {
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("secret");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            content(&path)
        };
        assert_eq!(read(b"0123456789abcdef\n").unwrap(), b"0123456789abcdef");
        assert_eq!(read(b"0123456789abcde\n\n").unwrap(), b"0123456789abcde\n");
        assert!(read(b"0123456789abcde\n").unwrap_err().message.contains("15 bytes"));
        assert!(read(&[b'x'; 4097]).is_err());
        assert!(Secret::read(Path::new("/nowhere")).unwrap_err().message.contains("/nowhere"));
    }
}
