//! The data path of bandwidth tests over one queue pair: the end that posts, and the end that takes.

use std::marker::PhantomData;
use std::slice;

use super::completion::{check_arrival, counted};
use super::gaps::{self, Landed};
use super::posting::Posting;
use super::queue::Queue;
use super::{Rdma, Shape, Shared, passive};
use crate::error::Result;
use crate::measure::{Halt, Sink, Stream, Waiting, Watch};
use crate::ops::Op;
use crate::transport::{Aside, Checked, Counted, Gaps, Payload, Tally};
use crate::verbs::{ReceiveRing, Wc};

/// Posts messages of verb `O` as `P` hands them over, waiting for completions as `W` says.
pub struct Streamer<'r, O, W, P> {
    queue: &'r mut Queue,
    shared: &'r Shared,
    posting: P,
    wcs: Box<[Wc]>,
    size: usize,
    tally: Tally,
    _types: PhantomData<(O, W)>,
}

impl<'r, O: Op, W: Waiting, P: Posting> Streamer<'r, O, W, P> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        debug_assert_eq!(rdma.shared.shape, Shape::Bandwidth);
        Self::over(&mut rdma.queues[0], &rdma.shared, size)
    }

    /// The same over a queue pair that has these slots.
    pub(super) fn over(queue: &'r mut Queue, shared: &'r Shared, size: usize) -> Self {
        let posting = P::new::<O>(queue, shared, size);
        let wcs = vec![Wc::EMPTY; shared.cqe_batch].into();
        Self { queue, shared, posting, wcs, size, tally: Tally::default(), _types: PhantomData }
    }

    /// Notes that the first `got` completions have come; returns how many messages they end.
    #[inline(always)]
    fn note(&mut self, got: usize) -> u64 {
        let done = self.wcs[got - 1].id();
        let new = done - self.queue.reaped;
        self.queue.reaped = done;
        new
    }
}

impl<O, W, P> Counted for Streamer<'_, O, W, P> {
    fn tally(&self) -> Tally {
        self.tally
    }
}

impl<O: Op, W: Waiting, P: Posting> Stream for Streamer<'_, O, W, P> {
    fn expect(&mut self, messages: Option<u64>) {
        self.queue.expect(messages);
    }

    #[inline(always)]
    fn post(&mut self, count: u64, _watch: &Watch<'_>) -> Result<u64, Halt> {
        self.posting.post::<O>(self.queue, count)?;
        Ok(count)
    }

    fn cover(&mut self, _watch: &Watch<'_>) -> Result<u64, Halt> {
        let needed = self.queue.needs_cover(self.shared.depth).into();
        self.posting.post::<O>(self.queue, needed)?;
        Ok(needed)
    }

    #[inline(always)]
    fn reap(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        let got = self.shared.sends().batch::<W>(&mut self.wcs, watch, &mut self.tally.empty_polls)?;
        Ok(self.note(got))
    }

    #[inline]
    fn look(&mut self) -> Result<u64, Halt> {
        match self.shared.sends().look(&mut self.wcs, &mut self.tally.empty_polls)? {
            0 => Ok(0),
            got => Ok(self.note(got)),
        }
    }
}

impl<O: Op, W, P> Payload for Streamer<'_, O, W, P> {
    fn slots(&self) -> u64 {
        self.queue.slots.count as u64
    }

    fn positions(&self) -> Vec<u64> {
        vec![self.queue.sent]
    }

    fn stamp(&mut self, count: u64) {
        self.queue.stamp_next(self.shared, self.queue.sent, count, self.size, O::FACTS.pulls());
    }

    fn check(&mut self, count: u64) -> Result<()> {
        self.queue.check_sent::<O>(self.shared, count, self.size)
    }
}

/// Takes messages that consume receives. Where verb `O` has none, there is never one.
pub struct Taker<'r, O, W> {
    queue: &'r mut Queue,
    shared: &'r Shared,
    receives: ReceiveRing,
    wcs: Box<[Wc]>,
    size: usize,
    /// Messages of a phase that is checked, on a path that may lose some.
    landed: Vec<Landed>,
    tally: Tally,
    _types: PhantomData<(O, W)>,
}

impl<'r, O: Op, W: Waiting> Taker<'r, O, W> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        debug_assert_eq!(rdma.shared.shape, Shape::Bandwidth);
        Self::over(&mut rdma.queues[0], &rdma.shared, size)
    }

    /// The same over a queue pair that has these slots.
    pub(super) fn over(queue: &'r mut Queue, shared: &'r Shared, size: usize) -> Self {
        let receives = queue.receives(shared);
        let wcs = vec![Wc::EMPTY; shared.cqe_batch].into();
        let (landed, tally) = (Vec::new(), Tally::default());
        Self { queue, shared, receives, wcs, size, landed, tally, _types: PhantomData }
    }

    /// Makes room for as many as have come, the first `got` completions.
    #[inline(always)]
    fn note<const VERIFY: bool>(&mut self, got: usize) -> Result<u64, Halt> {
        self.receives.post(got)?;
        let first = self.queue.taken;
        self.queue.taken += got as u64;
        if VERIFY {
            for (wc, message) in self.wcs[..got].iter().zip(first..) {
                if self.shared.may_lose {
                    self.landed.push(Landed::new(0, message, self.queue.slot_offset(message), wc));
                } else {
                    check_arrival::<O>(wc, message, self.size, counted(message))?;
                }
            }
        }
        Ok(got as u64)
    }
}

impl<O, W> Counted for Taker<'_, O, W> {
    fn tally(&self) -> Tally {
        self.tally
    }
}

impl<O: Op, W: Waiting> Sink for Taker<'_, O, W> {
    #[inline(always)]
    fn take<const VERIFY: bool>(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        let got = self.shared.arrivals().batch::<W>(&mut self.wcs, watch, &mut self.tally.empty_polls)?;
        self.note::<VERIFY>(got)
    }

    #[inline]
    fn look<const VERIFY: bool>(&mut self, _watch: &Watch<'_>) -> Result<u64, Halt> {
        if const { !O::FACTS.consumes_receives() } {
            return Ok(0);
        }
        match self.shared.arrivals().look(&mut self.wcs, &mut self.tally.empty_polls)? {
            0 => Ok(0),
            got => self.note::<VERIFY>(got),
        }
    }
}

impl<O, W> Payload for Taker<'_, O, W> {
    fn slots(&self) -> u64 {
        self.queue.slots.count as u64
    }

    fn positions(&self) -> Vec<u64> {
        vec![self.queue.taken]
    }

    fn stamp(&mut self, count: u64) {
        self.queue.stamp_next(self.shared, self.queue.taken, count, self.size, false);
    }

    fn check(&mut self, count: u64) -> Result<()> {
        let last = self.queue.taken;
        (last - count..last).try_for_each(|message| self.queue.check(self.shared, message, self.size))
    }
}

impl<O: Op, W> Gaps for Taker<'_, O, W> {
    fn check_among(&mut self, messages: &Checked) -> Result<()> {
        let landed = std::mem::take(&mut self.landed);
        let queue = std::slice::from_ref(&*self.queue);
        gaps::check_among::<O>(&landed, queue, self.shared, self.size, messages)
    }
}

impl<O: Op, W> Aside for Taker<'_, O, W> {
    fn prepare(&mut self, messages: &Checked) {
        passive::prepare::<O>(slice::from_ref(self.queue), self.shared, self.size, messages);
    }

    fn check(&mut self, each: &[u64], checked: Option<&Checked>) -> Result<()> {
        match checked {
            _ if !O::FACTS.consumes_receives() => {
                passive::check::<O>(slice::from_mut(self.queue), self.shared, self.size, each, checked)
            }
            Some(checked) => Payload::check(self, checked.count),
            None => Ok(()),
        }
    }
}
