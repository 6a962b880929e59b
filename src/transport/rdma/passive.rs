//! The end of one-sided tests whose memory is used without its taking part.

use std::marker::PhantomData;

use super::layout::share;
use super::queue::Queue;
use super::{Rdma, Shared};
use crate::error::Result;
use crate::ops::Op;
use crate::plan::Shape;
use crate::transport::pattern::Pattern;
use crate::transport::{Aside, Checked};

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
    fn prepare(&mut self, messages: &Checked) {
        prepare::<O>(&self.rdma.queues, &self.rdma.shared, self.size, messages);
    }

    fn check(&mut self, each: &[u64], checked: Option<&Checked>) -> Result<()> {
        check::<O>(&mut self.rdma.queues, &self.rdma.shared, self.size, each, checked)
    }

    fn landed(&mut self, checked: &Checked) -> Result<u64> {
        let Rdma { queues, shared, .. } = &*self.rdma;
        let mut landed = 0;
        for (index, (queue, first)) in queues.iter().zip(&checked.first).enumerate() {
            for message in *first..first.saturating_add(share(checked.count, index, queues.len())) {
                landed += u64::from(queue.has_landed(shared, message, self.size)?);
            }
        }
        Ok(landed)
    }
}

/// As [`Aside::prepare`], for these queue pairs.
pub(super) fn prepare<O: Op>(queues: &[Queue], shared: &Shared, size: usize, messages: &Checked) {
    if O::FACTS.is_atomic() || !(O::FACTS.pulls() || shared.may_lose) {
        return;
    }
    for (index, (queue, first)) in queues.iter().zip(&messages.first).enumerate() {
        match shared.shape {
            // One pattern for all messages: the requester says what it overwrites.
            Shape::Latency => {
                for slot in 0..queue.slots.count / 2 {
                    let at = queue.ours() + slot * queue.slots.stride;
                    Pattern::new(shared.seed, 0).stamp(shared.memory.region(), at, size);
                }
            }
            Shape::Bandwidth => {
                let count = share(messages.count, index, queues.len());
                // What a message that may be lost is to replace is known to be something else.
                queue.stamp_next(shared, *first, count, size, !O::FACTS.pulls());
            }
        }
    }
}

/// As [`Aside::check`], for these queue pairs.
pub(super) fn check<O: Op>(
    queues: &mut [Queue],
    shared: &Shared,
    size: usize,
    each: &[u64],
    checked: Option<&Checked>,
) -> Result<()> {
    let count = queues.len();
    for (index, (queue, messages)) in queues.iter_mut().zip(each).enumerate() {
        queue.taken += messages;
        if O::FACTS.is_atomic() {
            queue.check_word(shared, queue.ours(), queue.taken)?;
        } else if let (Some(checked), false) = (checked, O::FACTS.pulls()) {
            let first = checked.first.get(index).copied().unwrap_or(0);
            (first..first.saturating_add(share(checked.count, index, count)))
                .try_for_each(|message| queue.check(shared, message, size))?;
        }
    }
    Ok(())
}
