//! The end of one-sided tests whose memory is used without its taking part.

use std::marker::PhantomData;

use super::Rdma;
use crate::error::Result;
use crate::ops::Op;
use crate::plan::Shape;
use crate::transport::Aside;
use crate::transport::pattern::Pattern;

/// The buffer of the passive end of verb `O`, for messages of one size.
pub struct Passive<'r, O> {
    rdma: &'r mut Rdma,
    size: usize,
    _verb: PhantomData<O>,
}

impl<'r, O: Op> Passive<'r, O> {
    /// The buffer for messages of `size` bytes.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        Self { rdma, size, _verb: PhantomData }
    }
}

impl<O: Op> Aside for Passive<'_, O> {
    fn prepare(&mut self, first: u64, end: u64) {
        if !O::FACTS.pulls() || O::FACTS.is_atomic() {
            return;
        }
        match self.rdma.shape {
            // One pattern for all messages: the requester says what it overwrites.
            Shape::Latency => {
                let pattern = Pattern::new(self.rdma.seed, 0);
                (0..self.rdma.layout.slots / 2).for_each(|slot| {
                    pattern.stamp(self.rdma.memory.region(), slot * self.rdma.layout.stride, self.size);
                });
            }
            Shape::Bandwidth => {
                (first..end).for_each(|message| self.rdma.stamp(self.rdma.seed, message, self.size));
            }
        }
    }

    fn check(&mut self, messages: u64, checked: Option<(u64, u64)>) -> Result<()> {
        self.rdma.taken += messages;
        if O::FACTS.is_atomic() {
            return self.rdma.check_word(0, self.rdma.taken);
        }
        match checked {
            Some((first, end)) if !O::FACTS.pulls() => {
                (first..end).try_for_each(|message| self.rdma.check(message, self.size))
            }
            _ => Ok(()),
        }
    }
}
