//! Buffers of the messages in flight, one behind the other.

use super::Tcp;
use crate::error::Result;
use crate::transport::pattern::Pattern;
use crate::verbs::Bytes;

/// As many messages as have buffers of their own.
pub(super) struct Ring {
    bytes: Bytes,
    pub(super) size: usize,
    /// Bytes moved through it since the path began.
    pub(super) moved: u64,
}

impl Ring {
    pub(super) fn new(tcp: &Tcp, size: usize, slots: usize) -> Result<Self> {
        Ok(Self { bytes: tcp.buffer(size * slots)?, size, moved: 0 })
    }

    pub(super) fn slots(&self) -> u64 {
        (self.bytes.len() / self.size) as u64
    }

    pub(super) fn slot(&mut self, message: u64) -> &mut [u8] {
        let at = (message % self.slots()) as usize * self.size;
        &mut self.bytes[at..at + self.size]
    }

    /// From where the next byte goes to the end of the ring.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let at = (self.moved % self.bytes.len() as u64) as usize;
        &mut self.bytes[at..]
    }

    /// Writes the patterns of `seed` for `count` messages from `first` on.
    pub(super) fn stamp(&mut self, seed: u64, first: u64, count: u64) {
        for message in first..first + count {
            Pattern::new(seed, message).fill(self.slot(message), 0);
        }
    }

    /// Compares `count` messages from `first` on with the patterns of `seed`.
    pub(super) fn check(&mut self, seed: u64, first: u64, count: u64) -> Result<()> {
        let size = self.size;
        (first..first + count).try_for_each(|message| {
            Pattern::new(seed, message).check_part(self.slot(message), 0, size, message)
        })
    }

    /// Whole messages moved.
    pub(super) fn messages(&self) -> u64 {
        self.moved / self.size as u64
    }
}
