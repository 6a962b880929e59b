//! The data path of bandwidth tests over a queue pair: the end that posts, and the end that takes.

use std::marker::PhantomData;

use super::completion::{Source, take};
use super::ping_pong::opcode;
use super::{Rdma, Shape};
use crate::error::{Error, Result, Step};
use crate::measure::{Halt, Sink, Stream, Waiting, Watch};
use crate::ops::Op;
use crate::transport::{Counted, Payload, Tally};
use crate::verbs::{Receiver, Sender, Wc};

/// Completions taken with one poll.
const BATCH: usize = 16;

/// Posts messages of verb `O`, waiting for completions as `W` says.
pub struct Streamer<'r, O, W> {
    rdma: &'r mut Rdma,
    sender: Sender,
    wcs: [Wc; BATCH],
    size: usize,
    /// The slot of the next message, in bytes from the start of the buffer.
    at: usize,
    end: usize,
    tally: Tally,
    _types: PhantomData<(O, W)>,
}

impl<'r, O: Op, W: Waiting> Streamer<'r, O, W> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        debug_assert_eq!(rdma.shape, Shape::Bandwidth);
        let facts = const { O::FACTS };
        let at = rdma.slot_offset(rdma.sent);
        let remote = facts.is_one_sided().then(|| rdma.remote_slot(rdma.sent));
        let inline = facts.may_inline && size as u64 <= u64::from(rdma.qp.caps().max_inline);
        let sender = rdma.qp.sender(opcode(facts.opcode), rdma.memory.slice(at, size), remote, inline);
        let end = rdma.layout.stride * rdma.layout.slots;
        Self {
            rdma,
            sender,
            wcs: [Wc::EMPTY; BATCH],
            size,
            at,
            end,
            tally: Tally::default(),
            _types: PhantomData,
        }
    }

    #[inline(always)]
    fn post_one(&mut self, must_signal: bool) -> Result<()> {
        let facts = const { O::FACTS };
        let signalled = self.rdma.count_send(must_signal);
        if signalled {
            self.sender.set_id(self.rdma.sent);
        }
        if facts.carries_imm() {
            self.sender.set_imm(self.rdma.sent as u32);
        }
        let remote = if facts.is_one_sided() {
            let mut remote = self.rdma.remote;
            remote.addr += self.at as u64;
            Some(remote)
        } else {
            None
        };
        self.sender.move_to(self.at, remote);
        self.at += self.rdma.layout.stride;
        if self.at == self.end {
            self.at = 0;
        }
        self.sender.set_signalled(signalled);
        self.sender.post()
    }
}

impl<O, W> Counted for Streamer<'_, O, W> {
    fn tally(&self) -> Tally {
        self.tally
    }
}

impl<O: Op, W: Waiting> Stream for Streamer<'_, O, W> {
    #[inline(always)]
    fn post(&mut self, count: u64, last: bool, _watch: &Watch<'_>) -> Result<(), Halt> {
        for _ in 1..count {
            self.post_one(false)?;
        }
        self.post_one(last)?;
        Ok(())
    }

    #[inline(always)]
    fn reap(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        let rdma = &mut *self.rdma;
        let got = take(&rdma.send_cq, &mut self.wcs, |into| {
            let source = Source { cq: &rdma.send_cq, channel: rdma.send_channel.as_ref() };
            source.wait::<W>(into, None, watch, &mut self.tally.empty_polls)
        })?;
        let done = self.wcs[got - 1].id();
        let new = done - rdma.reaped;
        rdma.reaped = done;
        Ok(new)
    }
}

impl<O: Op, W> Payload for Streamer<'_, O, W> {
    fn slots(&self) -> u64 {
        self.rdma.layout.slots as u64
    }

    fn stamp(&mut self, message: u64) {
        // What a read brings must not be what lay there before.
        let seed = if O::FACTS.pulls() { !self.rdma.seed } else { self.rdma.seed };
        self.rdma.stamp(seed, message, self.size);
    }

    fn check(&mut self, message: u64) -> Result<()> {
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
    wcs: [Wc; BATCH],
    size: usize,
    /// Where the next receive posted will land.
    at: usize,
    end: usize,
    tally: Tally,
    _types: PhantomData<(O, W)>,
}

impl<'r, O: Op, W: Waiting> Taker<'r, O, W> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        debug_assert_eq!(rdma.shape, Shape::Bandwidth);
        let at = rdma.slot_offset(rdma.receives_posted);
        let receiver = rdma.qp.receiver(rdma.memory.slice(at, rdma.layout.stride));
        let end = rdma.layout.stride * rdma.layout.slots;
        Self {
            rdma,
            receiver,
            wcs: [Wc::EMPTY; BATCH],
            size,
            at,
            end,
            tally: Tally::default(),
            _types: PhantomData,
        }
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
        let got = take(&rdma.recv_cq, &mut self.wcs, |into| {
            let source = Source { cq: &rdma.recv_cq, channel: rdma.recv_channel.as_ref() };
            source.wait::<W>(into, None, watch, &mut self.tally.empty_polls)
        })?;
        for _ in 0..got {
            self.receiver.move_to(self.at);
            self.at += rdma.layout.stride;
            if self.at == self.end {
                self.at = 0;
            }
            self.receiver.post()?;
        }
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
