//! The end of one-sided tests whose memory is used without its taking part.

use super::Rdma;
use crate::error::Result;
use crate::transport::Payload;
use crate::transport::pattern::Pattern;

/// The buffer of the passive end, for messages of one size.
pub struct Passive<'r> {
    rdma: &'r Rdma,
    size: usize,
}

impl<'r> Passive<'r> {
    /// The buffer for messages of `size` bytes.
    pub fn new(rdma: &'r Rdma, size: usize) -> Self {
        Self { rdma, size }
    }

    /// Writes the pattern a latency test reads, for all its messages.
    pub fn stamp_for_reads(&mut self) {
        Pattern::new(self.rdma.seed, 0).stamp(self.rdma.memory.region(), 0, self.size);
    }
}

impl Payload for Passive<'_> {
    fn slots(&self) -> u64 {
        self.rdma.layout.slots as u64
    }

    fn stamp(&mut self, message: u64) {
        self.rdma.stamp(self.rdma.seed, message, self.size);
    }

    fn check(&mut self, message: u64) -> Result<()> {
        self.rdma.check(message, self.size)
    }

    fn next(&self) -> u64 {
        0
    }
}
