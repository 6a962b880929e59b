//! Frames: a length of four bytes, most significant first, then that many bytes of JSON.
//!
//! [`Decoder`] does no I/O. It says where the next bytes go and never asks for more than the frame under way, so that
//! what follows a frame stays in the socket; it checks a length before it makes room for it. [`read()`] and [`write()`]
//! put it on a socket.

use std::io;
use std::net::TcpStream;

use nix::poll::PollFlags;
use serde::Serialize;

use super::wire::{Limit, Moved, Wake, read_once, write_once};

/// Longest body of a frame in bytes.
pub const MAX_FRAME: usize = 1 << 20;

/// Bytes of the length before a body.
const HEADER: usize = 4;

/// Why a frame could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// End of the stream between two frames.
    #[error("closed the connection")]
    Closed,
    /// End of the stream within a frame.
    #[error("closed the connection after {have} of the {of} bytes of a frame")]
    ClosedInside { have: usize, of: usize },
    /// The peer's kernel refused what we sent, or the peer closed without reading it.
    #[error("reset the connection")]
    Reset,
    /// The deadline passed.
    #[error("timed out")]
    TimedOut { progress: Option<(usize, usize)> },
    /// The stop flag was set.
    #[error("stopped")]
    Stopped,
    /// A length of zero: no JSON value is that short.
    #[error("sent a frame of no bytes")]
    Empty,
    /// Longer than this connection takes; what a stranger's first bytes look like, too.
    #[error("sent something that is no frame (first bytes \"{}\"; as a length {length}, and {limit} is the most)", first.escape_ascii())]
    TooLong { length: usize, limit: usize, first: [u8; HEADER] },
    /// Anything else.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for Fault {
    fn from(cause: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
        match cause.kind() {
            ConnectionReset | BrokenPipe | ConnectionAborted => Fault::Reset,
            _ => Fault::Io(cause),
        }
    }
}

/// Takes a stream apart into frames.
#[derive(Debug)]
pub(super) struct Decoder {
    limit: usize,
    header: [u8; HEADER],
    /// Bytes of header and body that have come.
    have: usize,
    body: Vec<u8>,
}

impl Decoder {
    /// Refuses bodies longer than `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.min(MAX_FRAME), header: [0; HEADER], have: 0, body: Vec::new() }
    }

    /// From the next frame on refuses bodies longer than this.
    pub(super) fn limit_to(&mut self, limit: usize) {
        self.limit = limit.min(MAX_FRAME);
    }

    /// Where the next bytes go; never empty.
    pub(super) fn space(&mut self) -> &mut [u8] {
        match self.have.checked_sub(HEADER) {
            None => &mut self.header[self.have..],
            Some(in_body) => &mut self.body[in_body..],
        }
    }

    /// Counts the first `count` bytes of [`Decoder::space`] as come; gives the body when that completes it.
    pub(super) fn filled(&mut self, count: usize) -> Result<Option<Vec<u8>>, Fault> {
        let in_header = self.have < HEADER;
        self.have += count.min(self.space().len());
        if self.have < HEADER {
            return Ok(None);
        }
        if in_header {
            let length = u32::from_be_bytes(self.header) as usize;
            if length == 0 {
                return Err(Fault::Empty);
            }
            if length > self.limit {
                return Err(Fault::TooLong { length, limit: self.limit, first: self.header });
            }
            self.body = vec![0; length];
        }
        if self.have < HEADER + self.body.len() {
            return Ok(None);
        }
        self.have = 0;
        Ok(Some(std::mem::take(&mut self.body)))
    }

    /// Bytes come, and bytes of the whole, of the frame under way; `None` between frames.
    pub(super) fn progress(&self) -> Option<(usize, usize)> {
        (self.have > 0).then(|| (self.have, HEADER + self.body.len()))
    }

    /// What the end of the stream means here.
    pub(super) fn ended(&self) -> Fault {
        self.progress().map_or(Fault::Closed, |(have, of)| Fault::ClosedInside { have, of })
    }
}

/// One frame around `message`.
///
/// # Errors
/// The message has no JSON form, or one longer than [`MAX_FRAME`].
pub(super) fn encode(message: &impl Serialize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; HEADER];
    serde_json::to_writer(&mut bytes, message).map_err(|e| format!("no JSON form: {e}"))?;
    let length = bytes.len() - HEADER;
    match u32::try_from(length) {
        Ok(header) if length <= MAX_FRAME => bytes[..HEADER].copy_from_slice(&header.to_be_bytes()),
        _ => return Err(format!("{length} bytes, and a frame takes {MAX_FRAME}")),
    }
    Ok(bytes)
}

/// Reads the rest of the frame under way in `decoder`. After a fault of time the wait can be taken up again.
pub(super) fn read(stream: &TcpStream, decoder: &mut Decoder, limit: &Limit<'_>) -> Result<Vec<u8>, Fault> {
    loop {
        match read_once(stream, decoder.space())? {
            Moved::Bytes(count) => {
                if let Some(body) = decoder.filled(count)? {
                    return Ok(body);
                }
            }
            Moved::End => return Err(decoder.ended()),
            Moved::NotYet => match limit.wait_for(stream, PollFlags::POLLIN)? {
                Wake::Ready => {}
                Wake::TimedOut => return Err(Fault::TimedOut { progress: decoder.progress() }),
                Wake::Stopped => return Err(Fault::Stopped),
            },
        }
    }
}

/// Writes all of `bytes`; `written` counts what went out, also when that is not all.
pub(super) fn write(
    stream: &TcpStream,
    bytes: &[u8],
    written: &mut usize,
    limit: &Limit<'_>,
) -> Result<(), Fault> {
    while *written < bytes.len() {
        match write_once(stream, &bytes[*written..])? {
            Moved::Bytes(count) => *written += count,
            Moved::End => return Err(Fault::Closed),
            Moved::NotYet => match limit.wait_for(stream, PollFlags::POLLOUT)? {
                Wake::Ready => {}
                Wake::TimedOut => return Err(Fault::TimedOut { progress: Some((*written, bytes.len())) }),
                Wake::Stopped => return Err(Fault::Stopped),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds `bytes` in pieces of the given sizes (cycled); the bodies, and the fault that ended it.
    fn decode(limit: usize, bytes: &[u8], pieces: &[usize]) -> (Vec<Vec<u8>>, Option<Fault>, usize) {
        let mut decoder = Decoder::new(limit);
        let (mut bodies, mut at, mut largest) = (Vec::new(), 0, 0);
        for piece in pieces.iter().copied().cycle() {
            if at == bytes.len() {
                break;
            }
            let space = decoder.space();
            assert!(!space.is_empty(), "a decoder with no room for a byte never ends");
            let count = piece.max(1).min(space.len()).min(bytes.len() - at);
            space[..count].copy_from_slice(&bytes[at..at + count]);
            at += count;
            match decoder.filled(count) {
                Ok(Some(body)) => bodies.push(body),
                Ok(None) => {}
                Err(fault) => return (bodies, Some(fault), largest),
            }
            largest = largest.max(decoder.body.capacity());
        }
        let fault = decoder.progress().map(|_| decoder.ended());
        (bodies, fault, largest)
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_never_panic_nor_make_room_above_the_limit(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            pieces in prop::collection::vec(1usize..40, 1..8),
            limit in 1usize..300,
        ) {
            let (bodies, _, largest) = decode(limit, &bytes, &pieces);
            prop_assert!(largest <= limit);
            prop_assert!(bodies.iter().all(|body| !body.is_empty() && body.len() <= limit));
        }

        #[test]
        fn frames_come_whole_however_they_are_cut(
            messages in prop::collection::vec(".{0,60}", 1..5),
            pieces in prop::collection::vec(1usize..90, 1..8),
        ) {
            let stream: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
            let (bodies, fault, _) = decode(MAX_FRAME, &stream, &pieces);
            prop_assert!(fault.is_none());
            let read: Vec<String> = bodies.iter().map(|body| serde_json::from_slice(body).unwrap()).collect();
            prop_assert_eq!(read, messages);
        }
    }

    #[test]
    fn a_frame_cut_at_every_boundary_says_how_much_of_it_came() {
        let frame = encode(&"twelve bytes").unwrap();
        for cut in 0..frame.len() {
            let (bodies, fault, _) = decode(MAX_FRAME, &frame[..cut], &[1]);
            assert!(bodies.is_empty());
            match (cut, fault) {
                (0, None) => {}
                (_, Some(Fault::ClosedInside { have, .. })) => assert_eq!(have, cut),
                (_, other) => panic!("cut at {cut}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_largest_length_is_refused_before_there_is_room_for_it() {
        let (_, fault, largest) = decode(MAX_FRAME, &[0xff; 4], &[4]);
        assert_eq!(largest, 0);
        assert_eq!(
            fault.unwrap().to_string(),
            r#"sent something that is no frame (first bytes "\xff\xff\xff\xff"; as a length 4294967295, and 1048576 is the most)"#
        );
    }

    #[test]
    fn a_length_of_zero_is_a_fault() {
        assert!(matches!(decode(MAX_FRAME, &[0; 4], &[4]).1, Some(Fault::Empty)));
    }

    #[test]
    fn a_message_of_the_limit_goes_and_one_above_it_is_refused_by_the_sender() {
        let fits = "x".repeat(MAX_FRAME - 2);
        let frame = encode(&fits).unwrap();
        assert_eq!(decode(MAX_FRAME, &frame, &[65_536]).0.len(), 1);
        assert_eq!(encode(&format!("{fits}x")).unwrap_err(), "1048577 bytes, and a frame takes 1048576");
    }
}
