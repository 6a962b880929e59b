//! The first bytes of a connection, from each end: `verbmark/1` and a line feed.
//!
//! They tell a peer of this protocol from a stranger before anything is taken for a length, and they carry the one
//! number that must be read before the frames can be understood. The layout of frames and of an error in one is the
//! same in every version, so that a refusal is understood across versions.

/// Version of the protocol spoken here. It changes when a message changes so that an older end would misread it.
pub const PROTOCOL: u32 = 1;

/// What each end sends first.
pub(super) const PREAMBLE: &[u8] = b"verbmark/1\n";

/// The version of who is no client and only looks who answers: one that never was.
pub(super) const LOOKS: u32 = 0;

/// What every version begins with.
const NAME: &[u8] = b"verbmark/";

/// Bytes read to make out who speaks: what stock perftest sends first, and more than any preamble has.
const LONGEST: usize = 16;

/// Who is at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Peer {
    /// Speaks this version.
    Ours,
    /// Speaks another version of this protocol.
    OtherVersion(u32),
    /// Stock perftest: its version.
    Perftest(String),
    /// Something else: what it sent, fit to print.
    Stranger(String),
}

/// Reads a preamble piece by piece, and no byte beyond it. Does no I/O.
#[derive(Debug, Default)]
pub(super) struct Reader {
    bytes: [u8; LONGEST],
    have: usize,
}

impl Reader {
    /// Where the next bytes go; never empty before there is a verdict.
    pub(super) fn space(&mut self) -> &mut [u8] {
        // Past the length of our own preamble a byte at a time: a later version's may be a digit longer, and what
        // follows it is not ours to take.
        let end = if self.have < PREAMBLE.len() { PREAMBLE.len() } else { (self.have + 1).min(LONGEST) };
        &mut self.bytes[self.have..end]
    }

    /// Counts the first `count` bytes of [`Reader::space`] as come; who it is once that can be told.
    pub(super) fn filled(&mut self, count: usize) -> Option<Peer> {
        self.have += count.min(self.space().len());
        let seen = &self.bytes[..self.have];
        let common = seen.len().min(NAME.len());
        if seen[..common] == NAME[..common] {
            let rest = seen.get(NAME.len()..)?;
            return match rest.split_last() {
                Some((b'\n', digits)) => Some(version(digits).unwrap_or_else(|| self.ended())),
                _ if self.have == LONGEST || rest.iter().any(|byte| !byte.is_ascii_digit()) => {
                    Some(self.ended())
                }
                _ => None,
            };
        }
        // A digit may be the start of a perftest version, which ends in a NUL.
        let undecided = seen[0].is_ascii_digit() && !seen.contains(&0) && self.have < LONGEST;
        (!undecided).then(|| self.ended())
    }

    /// Anything come at all.
    pub(super) fn started(&self) -> bool {
        self.have > 0
    }

    /// Who it is when no more comes.
    pub(super) fn ended(&self) -> Peer {
        let seen = &self.bytes[..self.have];
        perftest(seen).unwrap_or_else(|| Peer::Stranger(describe(seen)))
    }
}

fn version(digits: &[u8]) -> Option<Peer> {
    let number: u32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(if number == PROTOCOL { Peer::Ours } else { Peer::OtherVersion(number) })
}

/// Stock perftest sends its version first, as sixteen bytes of ASCII filled up with NUL.
fn perftest(seen: &[u8]) -> Option<Peer> {
    let text = std::str::from_utf8(&seen[..seen.iter().position(|&byte| byte == 0)?]).ok()?;
    let numbers: Vec<&str> = text.split('.').collect();
    let plain = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (numbers.len() >= 2 && numbers.iter().all(plain)).then(|| Peer::Perftest(text.to_owned()))
}

fn describe(seen: &[u8]) -> String {
    let guess = match seen {
        [] => return "nothing".to_owned(),
        [0x16, 0x03, ..] => "a TLS handshake, ",
        [b'S', b'S', b'H', b'-', ..] => "an SSH banner, ",
        _ if ["GET ", "HEAD ", "POST ", "HTTP/"].iter().any(|word| seen.starts_with(word.as_bytes())) => {
            "HTTP, "
        }
        _ => "",
    };
    format!("{guess}\"{}\"", seen.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The verdict on `bytes` cut in pieces of `piece`, and how many of them were taken.
    fn verdict(bytes: &[u8], piece: usize) -> (Peer, usize) {
        let (mut reader, mut at) = (Reader::default(), 0);
        while at < bytes.len() {
            let space = reader.space();
            assert!(!space.is_empty());
            let count = piece.min(space.len()).min(bytes.len() - at);
            space[..count].copy_from_slice(&bytes[at..at + count]);
            at += count;
            if let Some(peer) = reader.filled(count) {
                return (peer, at);
            }
        }
        (reader.ended(), at)
    }

    #[test]
    fn our_own_preamble_is_known_however_it_is_cut_and_nothing_beyond_it_is_taken() {
        for piece in 1..=16 {
            assert_eq!(verdict(b"verbmark/1\n\0\0\0\x02{}", piece), (Peer::Ours, PREAMBLE.len()));
            assert_eq!(verdict(b"verbmark/23\n\0\0\0\x02{}", piece), (Peer::OtherVersion(23), 12));
        }
        assert_eq!(PREAMBLE, format!("verbmark/{PROTOCOL}\n").as_bytes());
    }

    #[test]
    fn a_perftest_client_is_known_by_its_first_sixteen_bytes() {
        for version in ["6.06", "6.29", "5.70"] {
            let mut bytes = [0; 16];
            bytes[..version.len()].copy_from_slice(version.as_bytes());
            for piece in 1..=16 {
                assert_eq!(verdict(&bytes, piece).0, Peer::Perftest(version.to_owned()));
            }
        }
    }

    #[test]
    fn strangers_are_described_by_what_they_sent() {
        let stranger = |bytes: &[u8]| match verdict(bytes, 16).0 {
            Peer::Stranger(what) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(stranger(b""), "nothing");
        assert_eq!(stranger(b"GET / HTTP/1.1\r\n"), r#"HTTP, "GET / HTTP/""#);
        assert_eq!(
            stranger(b"\x16\x03\x01\x02\0\x01\0"),
            r#"a TLS handshake, "\x16\x03\x01\x02\x00\x01\x00""#
        );
        assert_eq!(stranger(b"SSH-2.0-OpenSSH_9.2"), r#"an SSH banner, "SSH-2.0-Ope""#);
        assert_eq!(stranger(b"\x1b[2J\x07"), r#""\x1b[2J\x07""#);
        assert_eq!(stranger(b"6.06"), r#""6.06""#, "without its NUL it is no perftest version");
        assert_eq!(stranger(b"verbmark/x\n"), r#""verbmark/x\n""#);
        assert_eq!(stranger(b"verbmark/\n"), r#""verbmark/\n""#);
        assert_eq!(stranger(b"verbmark/99999999999999"), r#""verbmark/9999999""#);
    }

    proptest! {
        #[test]
        fn any_bytes_get_a_verdict_within_sixteen(
            bytes in prop::collection::vec(any::<u8>(), 16..40), piece in 1usize..20,
        ) {
            prop_assert!(verdict(&bytes, piece).1 <= LONGEST);
        }

        #[test]
        fn any_tail_after_the_name_gets_a_verdict(tail in prop::collection::vec(any::<u8>(), 16..20)) {
            prop_assert!(verdict(&[NAME, &tail].concat(), 16).1 <= LONGEST);
        }
    }
}
