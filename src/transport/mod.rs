//! The two paths a test runs over: queue pairs and a socket.
//!
//! A path is prepared, tells facts of its end, learns those of the other, and is connected. It never touches the
//! control connection: the session carries the facts.

use crate::error::Error;
use crate::measure::{Halt, Watch};

pub mod memory;
pub mod path;
pub mod pattern;
pub mod rdma;
pub mod tcp;

/// The buffers of a bandwidth path, addressed by message number.
pub trait Payload {
    /// Messages that have buffers of their own; message `n` uses buffer `n % slots`.
    fn slots(&self) -> u64;
    /// Writes the pattern of a message into its buffer.
    fn stamp(&mut self, message: u64);
    /// Compares a message's buffer with its pattern.
    ///
    /// # Errors
    /// `Invalid`: the payload is not what was sent.
    fn check(&mut self, message: u64) -> Result<(), Error>;
    /// Waits until no buffer is under way any more, so that [`Payload::stamp`] may write to any.
    ///
    /// # Errors
    /// The reason to leave the wait.
    fn settle(&mut self, _watch: &Watch<'_>) -> Result<(), Halt> {
        Ok(())
    }
    /// The number of the next message on this path.
    fn next(&self) -> u64;
}

/// The end of a path whose memory is used without its taking part.
pub trait Aside {
    /// Writes what the messages from `first` up to `end` are to find.
    fn prepare(&mut self, first: u64, end: u64);
    /// Looks at what `messages` left behind, and more closely where their payload is `checked`: from one number up to
    /// another.
    ///
    /// # Errors
    /// `Invalid`: it is not what must be there.
    fn check(&mut self, messages: u64, checked: Option<(u64, u64)>) -> Result<(), Error>;
}

/// What a path counted besides messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Calls by which a socket lent its buffers to the kernel, and that are back.
    pub lent: u64,
    /// Those of them that the kernel has copied after all.
    pub copied: u64,
}

impl Tally {
    /// What was added to an `earlier` tally of the same path.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            empty_polls: self.empty_polls - earlier.empty_polls,
            lent: self.lent - earlier.lent,
            copied: self.copied - earlier.copied,
        }
    }
}

/// A path that counts what it did besides messages.
pub trait Counted {
    /// So far.
    fn tally(&self) -> Tally;
}
