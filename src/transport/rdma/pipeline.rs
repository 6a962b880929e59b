//! The data path of latency tests with several messages outstanding.
//!
//! Message `n` of the run has slots of its own at both ends, number `n % depth` of those it is sent from and of those it
//! lands in. They are free for message `n + depth`: that is started only when the reply to `n` was taken, which came
//! after `n` was.

use std::marker::PhantomData;
use std::slice;

use super::completion::{Other, Source, failed};
use super::ping_pong::opcode;
use super::{Rdma, Shape};
use crate::error::{Error, Result, Step};
use crate::measure::{Halt, Pipeline, RoundTrip, Spin, Waiting, Watch};
use crate::ops::{Arrival, Op, Opcode, Peer};
use crate::plan::Side;
use crate::transport::pattern::Pattern;
use crate::transport::{Counted, Tally};
use crate::verbs::{Receiver, RemoteSlice, Sender, Wc};

/// Completions taken with one poll. The receive queue has room for as many more than are outstanding, so that their
/// receives may be posted after their messages were answered.
pub(super) const BATCH: usize = 16;

/// Messages of verb `O` there and, if it echoes, back, several of them under way; waiting as `W` says.
///
/// At the client a [`Pipeline`], at the server a [`RoundTrip`] that answers them one by one.
pub struct Pipelined<'r, O, W> {
    rdma: &'r mut Rdma,
    sender: Sender,
    receiver: Receiver,
    wcs: [Wc; BATCH],
    /// Of them there are, and were looked at.
    got: usize,
    used: usize,
    size: usize,
    next_sent: Place,
    next_arrival: Place,
    next_check: Place,
    next_receive: Place,
    tally: Tally,
    _types: PhantomData<(O, W)>,
}

/// A message by its number in the run, the slot it uses, and how often that was used before.
#[derive(Debug, Clone, Copy)]
struct Place {
    message: u64,
    slot: u64,
    turn: u64,
    depth: u64,
}

impl Place {
    fn new(message: u64, depth: u64) -> Self {
        Self { message, slot: message % depth, turn: message / depth, depth }
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.message += 1;
        self.slot += 1;
        if self.slot == self.depth {
            (self.slot, self.turn) = (0, self.turn + 1);
        }
    }

    /// The last byte of the message where memory is watched. Never zero, which an unused slot holds, and another than
    /// that of the slot's message before.
    fn flag(self) -> u8 {
        (self.turn % 251 + 1) as u8
    }
}

impl<'r, O: Op, W: Waiting> Pipelined<'r, O, W> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        debug_assert_eq!(rdma.shape, Shape::Latency);
        let facts = const { O::FACTS };
        let (stride, depth) = (rdma.layout.stride, rdma.layout.slots as u64 / 2);
        let inline = facts.may_inline && size as u64 <= u64::from(rdma.qp.caps().max_inline);
        let remote = facts.is_one_sided().then_some(rdma.remote);
        let mut sender = rdma.qp.sender(opcode(facts.opcode), rdma.memory.slice(0, size), remote, inline);
        let receiver = rdma.qp.receiver(rdma.memory.slice(rdma.layout.landing(0), stride));
        if facts.peer == Peer::Passive {
            sender.set_signalled(true);
        }
        if facts.opcode == Opcode::FetchAdd {
            sender.set_atomic(1, 0);
        }
        let next = Place::new(rdma.sent, depth);
        let next_receive = Place::new(rdma.receives_posted, depth);
        let path = Self {
            rdma,
            sender,
            receiver,
            wcs: [Wc::EMPTY; BATCH],
            got: 0,
            used: 0,
            size,
            next_sent: next,
            next_arrival: next,
            next_check: next,
            next_receive,
            tally: Tally::default(),
            _types: PhantomData,
        };
        if facts.arrival == Arrival::LastByte {
            // Where the flag stands depends on the size, and what an earlier size left there may look like one.
            (0..depth).for_each(|slot| path.rdma.memory.region().store_release(path.flag_at(slot), 0));
        }
        path
    }

    fn sending(&self, slot: u64) -> usize {
        slot as usize * self.rdma.layout.stride
    }

    fn landing(&self, slot: u64) -> usize {
        self.rdma.layout.landing(slot)
    }

    fn flag_at(&self, slot: u64) -> usize {
        self.landing(slot) + self.size - 1
    }

    /// Moves the request to the slots of the next message.
    #[inline(always)]
    fn aim(&mut self) {
        let facts = const { O::FACTS };
        let (ours, theirs) = (self.sending(self.next_sent.slot), self.landing(self.next_sent.slot));
        // A read fetches the peer's sending slot into our landing slot. All operations are on one word.
        let (local, remote) = if facts.pulls() { (theirs, ours) } else { (ours, theirs) };
        let remote = if facts.is_atomic() { 0 } else { remote };
        let RemoteSlice { addr, rkey } = self.rdma.remote;
        let remote = facts.is_one_sided().then_some(RemoteSlice { addr: addr + remote as u64, rkey });
        self.sender.move_to(local, remote);
    }

    #[inline(always)]
    fn send(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        let facts = const { O::FACTS };
        self.aim();
        let signalled = if const { matches!(O::FACTS.peer, Peer::Echoes) } {
            if self.rdma.sent - self.rdma.reaped >= self.rdma.depth {
                self.make_room(watch)?;
            }
            self.rdma.count_send()
        } else {
            self.rdma.sent += 1;
            false
        };
        if facts.arrival == Arrival::LastByte {
            let at = self.sending(self.next_sent.slot) + self.size - 1;
            self.rdma.memory.region().store_release(at, self.next_sent.flag());
        }
        if facts.carries_imm() {
            self.sender.set_imm(self.next_sent.message as u32);
        }
        if const { matches!(O::FACTS.opcode, Opcode::CompareSwap) } {
            self.sender.set_atomic(self.next_sent.message, self.next_sent.message + 1);
        }
        if signalled {
            self.rdma.until_signal = self.rdma.signal_every;
            self.sender.set_id(self.rdma.sent);
            self.sender.post_signalled()?;
        } else {
            self.sender.post()?;
        }
        self.next_sent.advance();
        Ok(())
    }

    /// Waits for the completion of a send. The queue is full only when one that is long answered has not completed.
    #[cold]
    fn make_room(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        let rdma = &mut *self.rdma;
        let mut sent = Wc::EMPTY;
        let first = rdma.send_cq.polled(rdma.send_cq.poll_one(&mut sent));
        let source = Source { cq: &rdma.send_cq, channel: None };
        source.wait::<Spin<false>>(first, slice::from_mut(&mut sent), None, watch, &mut 0)?;
        rdma.reaped = sent.id();
        Ok(())
    }

    /// Takes the completion of a send if one should be there.
    #[inline(always)]
    fn reap(&mut self) -> Result<(), Halt> {
        let answered = self.next_arrival.message.min(self.rdma.sent);
        if answered.saturating_sub(self.rdma.reaped) < u64::from(self.rdma.signal_every) {
            return Ok(());
        }
        let mut sent = [Wc::EMPTY];
        if self.rdma.send_cq.poll(&mut sent)? == 1 {
            if !sent[0].is_success() {
                return Err(failed(&sent[0], None));
            }
            self.rdma.reaped = sent[0].id();
        }
        Ok(())
    }

    /// Posts a receive for one that was taken.
    #[inline(always)]
    fn receive(&mut self) -> Result<(), Halt> {
        self.receiver.move_to(self.landing(self.next_receive.slot));
        self.receiver.post()?;
        self.next_receive.advance();
        self.rdma.receives_posted += 1;
        Ok(())
    }

    /// The completions that tell of arrivals which are there.
    #[inline(always)]
    fn poll(&mut self) -> Result<usize, Halt> {
        let is_told = const { matches!(O::FACTS.arrival, Arrival::RecvCompletion) };
        let (cq, other) = match is_told {
            true => (&self.rdma.recv_cq, Some(&self.rdma.send_cq)),
            false => (&self.rdma.send_cq, None),
        };
        let got = cq.poll(&mut self.wcs)?;
        if let Some(wc) = self.wcs[..got].iter().find(|wc| !wc.is_success()) {
            return Err(failed(wc, other));
        }
        self.tally.empty_polls += u64::from(got == 0);
        Ok(got)
    }

    fn wait_for_completions(&mut self, watch: &Watch<'_>) -> Result<usize, Halt> {
        let rdma = &mut *self.rdma;
        let (source, other) = if const { matches!(O::FACTS.arrival, Arrival::RecvCompletion) } {
            let source = Source { cq: &rdma.recv_cq, channel: rdma.recv_channel.as_ref() };
            (source, Some(Other { cq: &rdma.send_cq, done: &mut rdma.reaped }))
        } else {
            (Source { cq: &rdma.send_cq, channel: rdma.send_channel.as_ref() }, None)
        };
        let first = source.cq.poll(&mut self.wcs);
        source.wait::<W>(first, &mut self.wcs, other, watch, &mut self.tally.empty_polls)
    }

    #[inline(always)]
    fn has_flag(&self) -> bool {
        let at = self.flag_at(self.next_arrival.slot);
        self.rdma.memory.region().load_acquire(at) == self.next_arrival.flag()
    }

    fn wait_for_flag(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        let mut wait = W::default();
        loop {
            for tries in 0..W::POLLS {
                if self.has_flag() {
                    self.tally.empty_polls += u64::from(tries);
                    return Ok(());
                }
            }
            self.tally.empty_polls += u64::from(W::POLLS);
            let rdma = &mut *self.rdma;
            if wait.idle(&mut Source { cq: &rdma.send_cq, channel: None }, watch)? {
                Other { cq: &rdma.send_cq, done: &mut rdma.reaped }.look()?;
            }
        }
    }

    /// Notes that the next `count` messages have arrived.
    #[inline(always)]
    fn arrived(&mut self, count: usize) {
        (0..count).for_each(|_| self.next_arrival.advance());
    }

    /// Bytes that carry the pattern: the last one is the flag where memory is watched.
    fn patterned(&self) -> usize {
        if O::FACTS.arrival == Arrival::LastByte { self.size - 1 } else { self.size }
    }

    /// The pattern of what arrives as message `message`, or of what is sent as it.
    fn pattern(&self, message: u64, arrives: bool) -> Pattern {
        let from_client = (self.rdma.side == Side::Client) != arrives;
        match O::FACTS.peer {
            // The passive end wrote its pattern once.
            Peer::Passive => Pattern::new(self.rdma.seed, 0),
            Peer::Echoes => Pattern::new(self.rdma.seed, 2 * message + u64::from(from_client)),
        }
    }

    fn stamp_next(&mut self) {
        let (region, Place { message, slot, .. }) = (self.rdma.memory.region(), self.next_sent);
        match O::FACTS.peer {
            // What lands must not be what landed before.
            Peer::Passive => {
                Pattern::new(!self.rdma.seed, message).stamp(region, self.landing(slot), self.size);
            }
            Peer::Echoes => {
                self.pattern(message, false).stamp(region, self.sending(slot), self.patterned());
            }
        }
    }

    /// Looks at the next message to be checked, which completed with `wc`.
    fn check_next(&mut self, wc: Wc) -> Result<(), Halt> {
        let Place { message, slot, .. } = self.next_check;
        self.next_check.advance();
        if O::FACTS.is_atomic() {
            return Ok(self.rdma.check_word(self.landing(slot), message)?);
        }
        let region = self.rdma.memory.region();
        self.pattern(message, true).check(region, self.landing(slot), self.patterned(), message)?;
        let wrong = |what: &str, is: u32, should: u32| {
            let text = format!("message {message} has {what} {is}, not {should}");
            Err(Error::invalid(Step::Check, text).into())
        };
        if O::FACTS.arrival == Arrival::RecvCompletion && wc.byte_len() as usize != self.size {
            return wrong("length", wc.byte_len(), self.size as u32);
        }
        if O::FACTS.carries_imm() && wc.imm() != message as u32 {
            return wrong("immediate data", wc.imm(), message as u32);
        }
        Ok(())
    }
}

impl<O, W> Counted for Pipelined<'_, O, W> {
    fn tally(&self) -> Tally {
        self.tally
    }
}

impl<O: Op, W: Waiting> Pipeline for Pipelined<'_, O, W> {
    #[inline(always)]
    fn start(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.send(watch)
    }

    #[inline(always)]
    fn finished(&mut self) -> Result<u64, Halt> {
        if const { matches!(O::FACTS.arrival, Arrival::LastByte) } {
            let first = self.next_arrival.message;
            while self.next_arrival.message < self.rdma.sent && self.has_flag() {
                self.next_arrival.advance();
            }
            let ended = self.next_arrival.message - first;
            self.tally.empty_polls += u64::from(ended == 0);
            return Ok(ended);
        }
        let got = self.poll()?;
        self.used = 0;
        self.arrived(got);
        Ok(got as u64)
    }

    fn wait(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        if const { matches!(O::FACTS.arrival, Arrival::LastByte) } {
            self.wait_for_flag(watch)?;
            return self.finished();
        }
        let got = self.wait_for_completions(watch)?;
        self.used = 0;
        self.arrived(got);
        Ok(got as u64)
    }

    #[inline(always)]
    fn settle(&mut self, ended: u64, _watch: &Watch<'_>) -> Result<(), Halt> {
        if const { matches!(O::FACTS.arrival, Arrival::RecvCompletion) } {
            (0..ended).try_for_each(|_| self.receive())?;
        }
        if const { matches!(O::FACTS.peer, Peer::Echoes) } { self.reap() } else { Ok(()) }
    }

    fn look(&mut self) -> Result<(), Halt> {
        if const { matches!(O::FACTS.peer, Peer::Echoes) } {
            Other { cq: &self.rdma.send_cq, done: &mut self.rdma.reaped }.look()
        } else {
            Ok(())
        }
    }

    fn stamp(&mut self) {
        self.stamp_next();
    }

    fn check(&mut self) -> Result<(), Halt> {
        // Where no completion tells of the arrival it is not looked at.
        let wc = self.wcs[self.used];
        self.used = (self.used + 1) % BATCH;
        self.check_next(wc)
    }
}

impl<O: Op, W: Waiting> RoundTrip for Pipelined<'_, O, W> {
    #[inline(always)]
    fn start(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.send(watch)
    }

    #[inline(always)]
    fn finish(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        if const { matches!(O::FACTS.arrival, Arrival::LastByte) } {
            self.wait_for_flag(watch)?;
        } else {
            if self.used == self.got {
                self.got = self.wait_for_completions(watch)?;
                self.used = 0;
            }
            self.used += 1;
        }
        self.arrived(1);
        Ok(())
    }

    #[inline(always)]
    fn settle(&mut self, _watch: &Watch<'_>) -> Result<(), Halt> {
        if const { matches!(O::FACTS.arrival, Arrival::RecvCompletion) } {
            self.receive()?;
        }
        self.reap()
    }

    fn stamp(&mut self) {
        self.stamp_next();
    }

    fn check(&mut self) -> Result<(), Halt> {
        let wc = self.wcs[self.used.max(1) - 1];
        self.check_next(wc)
    }
}
