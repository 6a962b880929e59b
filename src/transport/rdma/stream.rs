//! The data path of bandwidth tests over a queue pair: the end that posts, and the end that takes.

use std::marker::PhantomData;

use super::completion::Source;
use super::posting::Posting;
use super::{Rdma, Shape};
use crate::error::{Error, Result, Step};
use crate::measure::{Halt, Sink, Stream, Waiting, Watch};
use crate::ops::Op;
use crate::transport::{Counted, Payload, Tally};
use crate::verbs::{Receiver, Wc};

/// Posts messages of verb `O` as `P` hands them over, waiting for completions as `W` says.
pub struct Streamer<'r, O, W, P> {
    rdma: &'r mut Rdma,
    posting: P,
    wcs: Box<[Wc]>,
    size: usize,
    tally: Tally,
    _types: PhantomData<(O, W)>,
}

impl<'r, O: Op, W: Waiting, P: Posting> Streamer<'r, O, W, P> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        debug_assert_eq!(rdma.shape, Shape::Bandwidth);
        let posting = P::new::<O>(rdma, size);
        let wcs = vec![Wc::EMPTY; rdma.cqe_batch].into();
        Self { rdma, posting, wcs, size, tally: Tally::default(), _types: PhantomData }
    }
}

impl<O, W, P> Counted for Streamer<'_, O, W, P> {
    fn tally(&self) -> Tally {
        self.tally
    }
}

impl<O: Op, W: Waiting, P: Posting> Stream for Streamer<'_, O, W, P> {
    #[inline(always)]
    fn post(&mut self, count: u64, last: bool, _watch: &Watch<'_>) -> Result<(), Halt> {
        Ok(self.posting.post::<O>(self.rdma, count, last)?)
    }

    #[inline(always)]
    fn reap(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        let rdma = &mut *self.rdma;
        let source = Source { cq: &rdma.send_cq, channel: rdma.send_channel.as_ref() };
        let first = rdma.send_cq.poll(&mut self.wcs);
        let got = source.wait::<W>(first, &mut self.wcs, None, watch, &mut self.tally.empty_polls)?;
        let done = self.wcs[got - 1].id();
        let new = done - rdma.reaped;
        rdma.reaped = done;
        Ok(new)
    }
}

impl<O: Op, W, P> Payload for Streamer<'_, O, W, P> {
    fn slots(&self) -> u64 {
        self.rdma.layout.slots as u64
    }

    fn stamp(&mut self, message: u64) {
        // What a read brings must not be what lay there before.
        let seed = if O::FACTS.pulls() { !self.rdma.seed } else { self.rdma.seed };
        self.rdma.stamp(seed, message, self.size);
    }

    fn check(&mut self, message: u64) -> Result<()> {
        if O::FACTS.is_atomic() {
            return self.rdma.check_word(self.rdma.slot_offset(message), message);
        }
        self.rdma.check(message, self.size)
    }

    fn next(&self) -> u64 {
        self.rdma.sent
    }
}

/// Takes messages that consume receives.
pub struct Taker<'r, O, W> {
    rdma: &'r mut Rdma,
    receiver: Receiver,
    wcs: Box<[Wc]>,
    size: usize,
    tally: Tally,
    _types: PhantomData<(O, W)>,
}

impl<'r, O: Op, W: Waiting> Taker<'r, O, W> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        debug_assert_eq!(rdma.shape, Shape::Bandwidth);
        let mut receiver = rdma.qp.receiver(rdma.memory.slice(0, rdma.layout.stride));
        receiver.cycle(rdma.layout.slots(), rdma.slot(rdma.receives_posted));
        let wcs = vec![Wc::EMPTY; rdma.cqe_batch].into();
        Self { rdma, receiver, wcs, size, tally: Tally::default(), _types: PhantomData }
    }

    fn check_completion(&self, wc: &Wc, message: u64) -> Result<()> {
        let wrong = |what: &str, is: u32, should: u32| {
            Err(Error::invalid(Step::Check, format!("message {message} has {what} {is}, not {should}")))
        };
        if wc.byte_len() as usize != self.size {
            return wrong("length", wc.byte_len(), self.size as u32);
        }
        // The sender counts from one.
        if O::FACTS.carries_imm() && wc.imm() != (message + 1) as u32 {
            return wrong("immediate data", wc.imm(), (message + 1) as u32);
        }
        Ok(())
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
        let rdma = &mut *self.rdma;
        let source = Source { cq: &rdma.recv_cq, channel: rdma.recv_channel.as_ref() };
        let first = rdma.recv_cq.poll(&mut self.wcs);
        let got = source.wait::<W>(first, &mut self.wcs, None, watch, &mut self.tally.empty_polls)?;
        self.receiver.post_run(got)?;
        rdma.receives_posted += got as u64;
        rdma.taken += got as u64;
        if VERIFY {
            let first = self.rdma.taken - got as u64;
            for (i, wc) in self.wcs[..got].iter().enumerate() {
                self.check_completion(wc, first + i as u64)?;
            }
        }
        Ok(got as u64)
    }
}

impl<O, W> Payload for Taker<'_, O, W> {
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
        self.rdma.taken
    }
}
