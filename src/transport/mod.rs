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

/// The buffers of a bandwidth path.
pub trait Payload {
    /// Messages that have buffers of their own.
    fn slots(&self) -> u64;
    /// The number of the next message on each queue pair, or on the connection.
    fn positions(&self) -> Vec<u64>;
    /// Writes the patterns of the next `count` messages into their buffers.
    fn stamp(&mut self, count: u64);
    /// Compares the buffers of the last `count` messages with their patterns.
    ///
    /// # Errors
    /// `Invalid`: a payload is not what was sent.
    fn check(&mut self, count: u64) -> Result<(), Error>;
    /// Waits until no buffer is under way any more, so that [`Payload::stamp`] may write to any.
    ///
    /// # Errors
    /// The reason to leave the wait.
    fn settle(&mut self, _watch: &Watch<'_>) -> Result<(), Halt> {
        Ok(())
    }
}

/// Messages whose payload is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The number of the first one on each queue pair.
    pub first: Vec<u64>,
    /// How many, dealt out one by one to the queue pairs.
    pub count: u64,
}

/// The end of a path whose memory is used without its taking part.
pub trait Aside {
    /// Writes what the messages are to find.
    fn prepare(&mut self, messages: &Checked);
    /// Looks at what as many messages on `each` queue pair left behind, and more closely where they are `checked`.
    ///
    /// # Errors
    /// `Invalid`: it is not what must be there.
    fn check(&mut self, each: &[u64], checked: Option<&Checked>) -> Result<(), Error>;
    /// On a path that may lose messages, how many of these have come whole by now.
    ///
    /// # Errors
    /// `Invalid`: there are bytes that neither a message nor [`Aside::prepare`] has written.
    fn landed(&mut self, checked: &Checked) -> Result<u64, Error> {
        // Where none is lost.
        Ok(checked.count)
    }
}

/// Messages that have come over a path that may lose some of them.
pub trait Gaps: Payload {
    /// Compares what came since the last call, while it was to be checked, with the messages of which it must be.
    ///
    /// # Errors
    /// `Invalid`: one is none of these, or has come twice.
    fn check_among(&mut self, messages: &Checked) -> Result<(), Error>;
}

/// The buffers of a path that carries messages both ways at once.
pub trait Exchanged {
    /// This end is told of each message that arrives.
    const IS_TOLD: bool;
    /// Messages of one direction that have buffers of their own.
    fn slots(&self) -> u64;
    /// The number of the next message that this end posts, on each queue pair or on the connection.
    fn sent(&self) -> Vec<u64>;
    /// Writes the patterns of the next `count` messages of either direction into the buffers of this end that they come
    /// from.
    fn stamp(&mut self, count: u64);
    /// Looks at what a phase left behind in which the peer posted as many messages on `each` queue pair; where both ends
    /// posted `checked` ones after [`Exchanged::stamp`], at their payload.
    ///
    /// # Errors
    /// `Invalid`: it is not what must be there.
    fn check(&mut self, each: &[u64], checked: Option<u64>) -> Result<(), Error>;
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
    /// This and another path's.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            empty_polls: self.empty_polls + other.empty_polls,
            lent: self.lent + other.lent,
            copied: self.copied + other.copied,
        }
    }

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

    /// Looks once as the wait of this path does, while nothing is under way: whether something was there all the same.
    /// `None` where what such a look costs is learnt otherwise, or not.
    ///
    /// # Errors
    /// The path failed.
    fn look_once(&mut self) -> Result<Option<bool>, Halt> {
        Ok(None)
    }
}
