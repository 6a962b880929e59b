//! The data path of latency tests over a queue pair.

use std::marker::PhantomData;
use std::slice;

use super::completion::{Other, RECEIVES, SENDS, Source, check_arrival, spin};
use super::queue::Queue;
use super::{Rdma, Shape, Shared};
use crate::error::Error;
use crate::measure::{Halt, RoundTrip, Spin, Waiting, Watch};
use crate::ops::{Arrival, Op, Opcode, Peer};
use crate::plan::Side;
use crate::transport::pattern::Pattern;
use crate::transport::{Counted, Tally};
use crate::verbs::{self, Cq, PollFailed, Receiver, Sender, Wc};

/// Messages of verb `O` there and, if it echoes, back; waiting as `W` says.
pub struct PingPong<'r, O, W> {
    pub(super) queue: &'r mut Queue,
    pub(super) shared: &'r Shared,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Those of the shared part, one load nearer to the loop.
    recv_cq: Cq,
    send_cq: Cq,
    pub(super) wc: Wc,
    pub(super) size: usize,
    /// Trips of the run before this path's first.
    before: u64,
    /// What is awaited belongs to the trip of the last message sent, and at the end that answers to the one after it.
    ahead: u64,
    pub(super) tally: Tally,
    _types: PhantomData<(O, W)>,
}

/// The work request a verb asks for.
pub(super) const fn opcode(opcode: Opcode) -> verbs::Opcode {
    match opcode {
        Opcode::Send => verbs::Opcode::Send,
        Opcode::RdmaWrite => verbs::Opcode::RdmaWrite,
        Opcode::RdmaWriteWithImm => verbs::Opcode::RdmaWriteWithImm,
        Opcode::RdmaRead => verbs::Opcode::RdmaRead,
        Opcode::FetchAdd => verbs::Opcode::FetchAdd,
        Opcode::CompareSwap => verbs::Opcode::CompareSwap,
    }
}

impl<'r, O: Op, W: Waiting> PingPong<'r, O, W> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        Self::with(rdma, size, opcode(O::FACTS.opcode))
    }

    /// The same with another work request than the verb's own.
    pub(super) fn with(rdma: &'r mut Rdma, size: usize, opcode: verbs::Opcode) -> Self {
        debug_assert_eq!(rdma.shared.shape, Shape::Latency);
        let Rdma { queues, shared, .. } = rdma;
        let queue = &mut queues[0];
        let facts = const { O::FACTS };
        let (ours, theirs) = (queue.ours(), queue.landing());
        // A read fetches the peer's sending slot into our landing slot.
        let (local, remote) = if facts.pulls() { (theirs, ours) } else { (ours, theirs) };
        let remote = facts
            .is_one_sided()
            .then(|| verbs::RemoteSlice { addr: shared.remote.addr + remote as u64, ..shared.remote });
        let inline = facts.may_inline && size as u64 <= u64::from(queue.qp.caps().max_inline);
        let mut sender = queue.qp.sender(opcode, shared.memory.slice(local, size), remote, inline);
        let receiver = queue.receiver(shared);
        if facts.peer == Peer::Passive {
            sender.set_signalled(true);
        }
        if facts.opcode == Opcode::FetchAdd {
            sender.set_atomic(1, 0);
        }
        let (before, ahead) = (queue.sent, (shared.side == Side::Server).into());
        let mut path = Self {
            queue,
            shared,
            sender,
            receiver,
            recv_cq: shared.recv_cq.clone(),
            send_cq: shared.send_cq.clone(),
            wc: Wc::EMPTY,
            size,
            before,
            ahead,
            tally: Tally::default(),
            _types: PhantomData,
        };
        if facts.arrival == Arrival::LastByte {
            path.landing_flag(flag(before));
        }
        path
    }

    pub(super) fn landing_flag(&mut self, value: u8) {
        let at = self.queue.landing() + self.size - 1;
        self.shared.memory.region().store_release(at, value);
    }

    /// Makes room for as many sends as may be posted until the next that is signalled. The completions waited for have
    /// no wake-up of their own: the messages they belong to were answered, so that they are there or about to be.
    #[cold]
    fn make_room(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        let queue = &mut *self.queue;
        let cq = &self.shared.send_cq;
        while queue.sent - queue.reaped + u64::from(queue.signal_every) > self.shared.depth {
            // Not into `self.wc`: the completion of the arrival is still to be checked.
            let mut sent = Wc::EMPTY;
            let first = cq.polled(cq.poll_one(&mut sent));
            let source = Source::<SENDS> { cq, channel: None };
            source.wait::<Spin>(first, slice::from_mut(&mut sent), None, watch, &mut 0)?;
            queue.reaped = sent.id();
        }
        Ok(())
    }

    /// Makes room if the last message was signalled.
    #[inline(always)]
    pub(super) fn make_room_if_due(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        let has_just_signalled = self.queue.until_signal == self.queue.signal_every;
        if has_just_signalled { self.make_room(watch) } else { Ok(()) }
    }

    /// Looks once whether a message has come.
    pub(super) fn look_for_receive(&mut self) -> Result<bool, Halt> {
        let cq = &self.shared.recv_cq;
        let source = Source::<RECEIVES> { cq, channel: None };
        Ok(source.look(slice::from_mut(&mut self.wc), &mut self.tally.empty_polls)? == 1)
    }

    /// Posts the message just counted so that it completes with its number.
    #[inline]
    pub(super) fn post_signalled(&mut self) -> Result<(), Error> {
        self.queue.until_signal = self.queue.signal_every;
        self.sender.set_id(self.queue.sent);
        self.sender.post_signalled()
    }

    #[inline(always)]
    pub(super) fn wait_for_receive(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        match self.recv_cq.poll_one(&mut self.wc) {
            Ok(true) if self.wc.is_success() => Ok(()),
            first => self.wait_longer_for_receive(first, watch),
        }
    }

    /// A function of its own, so that a completion that is there already costs nothing of the waiting.
    #[inline(never)]
    fn wait_longer_for_receive(
        &mut self,
        first: Result<bool, PollFailed>,
        watch: &Watch<'_>,
    ) -> Result<(), Halt> {
        let shared = self.shared;
        let first = match first {
            Ok(false) => spin::<W>(&shared.recv_cq, &mut self.wc, watch, &mut self.tally.empty_polls),
            found => found,
        };
        if matches!(first, Ok(true)) && self.wc.is_success() {
            return Ok(());
        }
        let other = Other { cq: &shared.send_cq, done: &mut self.queue.reaped };
        let (first, into) = (shared.recv_cq.polled(first), slice::from_mut(&mut self.wc));
        shared.arrivals().wait::<W>(first, into, Some(other), watch, &mut self.tally.empty_polls).map(drop)
    }

    #[inline(always)]
    fn wait_for_send(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        match self.send_cq.poll_one(&mut self.wc) {
            Ok(true) if self.wc.is_success() => Ok(()),
            first => self.wait_longer_for_send(first, watch),
        }
    }

    #[inline(never)]
    fn wait_longer_for_send(
        &mut self,
        first: Result<bool, PollFailed>,
        watch: &Watch<'_>,
    ) -> Result<(), Halt> {
        let shared = self.shared;
        let first = match first {
            Ok(false) => spin::<W>(&shared.send_cq, &mut self.wc, watch, &mut self.tally.empty_polls),
            found => found,
        };
        if matches!(first, Ok(true)) && self.wc.is_success() {
            return Ok(());
        }
        let (first, into) = (shared.send_cq.polled(first), slice::from_mut(&mut self.wc));
        shared.sends().wait::<W>(first, into, None, watch, &mut self.tally.empty_polls).map(drop)
    }

    #[inline(always)]
    fn wait_for_last_byte(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        let at = self.queue.landing() + self.size - 1;
        let expected = flag(self.queue.sent + self.ahead);
        let mut wait = Spin::default();
        loop {
            for tries in 0..Spin::polls(watch) {
                if self.shared.memory.region().load_acquire(at) == expected {
                    self.tally.empty_polls += u64::from(tries);
                    return Ok(());
                }
            }
            self.tally.empty_polls += u64::from(Spin::polls(watch));
            let cq = &self.shared.send_cq;
            wait.idle(&mut Source::<SENDS> { cq, channel: None }, watch)?;
            Other { cq, done: &mut self.queue.reaped }.look()?;
        }
    }

    /// The number on this path, from 1, of the trip whose message is awaited or has just arrived.
    fn awaited(&self) -> u64 {
        self.queue.sent + self.ahead - self.before
    }

    /// The pattern of what arrives in trip `trip`, or of what is sent in it.
    fn pattern(&self, trip: u64, arrives: bool) -> Pattern {
        let from_client = (self.shared.side == Side::Client) != arrives;
        match O::FACTS.peer {
            // The passive end wrote its pattern once.
            Peer::Passive => Pattern::new(self.shared.seed, 0),
            Peer::Echoes => Pattern::new(self.shared.seed, 2 * trip + u64::from(from_client)),
        }
    }

    /// Bytes that carry the pattern: the last one is the flag where memory is watched.
    pub(super) fn patterned(&self) -> usize {
        if O::FACTS.arrival == Arrival::LastByte { self.size - 1 } else { self.size }
    }
}

/// The last byte of trip `trip`. Never zero, which fresh memory holds, and different from its neighbours.
pub(super) fn flag(trip: u64) -> u8 {
    (trip % 251 + 1) as u8
}

impl<O: Op, W> Counted for PingPong<'_, O, W> {
    fn tally(&self) -> Tally {
        self.tally
    }

    #[inline]
    fn look_once(&mut self) -> Result<Option<bool>, Halt> {
        let cq = match const { O::FACTS.arrival } {
            Arrival::RecvCompletion => &self.recv_cq,
            Arrival::Never => &self.send_cq,
            Arrival::LastByte => {
                let at = self.queue.landing() + self.size - 1;
                let expected = flag(self.queue.sent + 1 + self.ahead);
                return Ok(Some(self.shared.memory.region().load_acquire(at) == expected));
            }
        };
        Ok(Some(cq.polled(cq.poll_one(&mut self.wc))? > 0))
    }
}

impl<O: Op, W: Waiting> RoundTrip for PingPong<'_, O, W> {
    #[inline(always)]
    fn start(&mut self, _watch: &Watch<'_>) -> Result<(), Halt> {
        let facts = const { O::FACTS };
        let signalled = if const { matches!(O::FACTS.peer, Peer::Echoes) } {
            self.queue.count_send()
        } else {
            self.queue.sent += 1;
            false
        };
        if facts.arrival == Arrival::LastByte {
            self.shared
                .memory
                .region()
                .store_release(self.queue.ours() + self.size - 1, flag(self.queue.sent));
        }
        if facts.carries_imm() {
            self.sender.set_imm(self.queue.sent as u32);
        }
        if const { matches!(O::FACTS.opcode, Opcode::CompareSwap) } {
            self.sender.set_atomic(self.queue.sent - 1, self.queue.sent);
        }
        if signalled {
            self.post_signalled()?;
        } else {
            self.sender.post()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn finish(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        match const { O::FACTS.arrival } {
            Arrival::RecvCompletion => self.wait_for_receive(watch),
            Arrival::LastByte => self.wait_for_last_byte(watch),
            Arrival::Never => self.wait_for_send(watch),
        }
    }

    #[inline(always)]
    fn settle(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        if const { matches!(O::FACTS.arrival, Arrival::RecvCompletion) } {
            self.receiver.post()?;
        }
        if const { matches!(O::FACTS.peer, Peer::Echoes) } {
            self.make_room_if_due(watch)?;
        }
        Ok(())
    }

    fn stamp(&mut self) {
        let region = self.shared.memory.region();
        match O::FACTS.peer {
            // What lands must not be what landed before.
            Peer::Passive => Pattern::new(!self.shared.seed, self.queue.sent).stamp(
                region,
                self.queue.landing(),
                self.size,
            ),
            Peer::Echoes => self.pattern(self.queue.sent + 1 - self.before, false).stamp(
                region,
                self.queue.ours(),
                self.patterned(),
            ),
        }
    }

    fn check(&mut self) -> Result<(), Halt> {
        let trip = self.awaited();
        if O::FACTS.is_atomic() {
            return Ok(self.queue.check_word(self.shared, self.queue.landing(), self.queue.sent - 1)?);
        }
        let region = self.shared.memory.region();
        self.pattern(trip, true).check(region, self.queue.landing(), self.patterned(), trip)?;
        let imm = (trip + self.before) as u32;
        Ok(check_arrival::<O>(&self.wc, trip, self.size, imm)?)
    }
}
