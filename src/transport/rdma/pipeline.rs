//! The data path of latency tests with several messages outstanding, over one queue pair or many.
//!
//! Message `n` of a queue pair has slots of its own at both ends, number `n % depth` of those it is sent from and of
//! those it lands in. They are free for message `n + depth`: that is started only when the reply to `n` was taken, which
//! came after `n` was.

use std::marker::PhantomData;

use super::completion::{RECEIVES, SENDS, check_arrival, failed};
use super::ping_pong::opcode;
use super::queue::{Queue, of_id};
use super::{Rdma, Shape, Shared};
use crate::error::Result;
use crate::measure::{Halt, Never, Pipeline, RoundTrip, Spin, Waiting, Wake, Watch};
use crate::ops::{Arrival, Op, Opcode, Peer};
use crate::plan::Side;
use crate::transport::pattern::Pattern;
use crate::transport::{Counted, Tally};
use crate::verbs::{Patch, ReceiveRing, RemoteSlice, Sender, Slots, Wc};

/// Trips that end with one look at most. A receive queue has room for as many more than are outstanding, so that
/// receives may be posted after their messages were answered.
pub(super) const BATCH: usize = 16;

/// Messages of verb `O` there and, if it echoes, back, several of them under way; waiting as `W` says.
///
/// At the client a [`Pipeline`] with a lane for each queue pair, at the server a [`RoundTrip`] that answers messages one
/// by one as they come, each on the queue pair that brought it.
pub struct Pipelined<'r, O, W> {
    lanes: Vec<Lane<'r, O>>,
    shared: &'r Shared,
    wcs: [Wc; BATCH],
    /// The lanes of the messages that the last look found, how many these were, and how many of them were looked at.
    found: [usize; BATCH],
    got: usize,
    used: usize,
    /// Where memory is looked at first.
    first: usize,
    size: usize,
    tally: Tally,
    _types: PhantomData<(O, W)>,
}

/// One queue pair.
struct Lane<'r, O> {
    queue: &'r mut Queue,
    sender: Sender,
    receives: ReceiveRing,
    next_sent: Place,
    next_arrival: Place,
    next_check: Place,
    _verb: PhantomData<O>,
}

/// A message by its number, the slot it uses, and how often that was used before.
#[derive(Debug, Clone, Copy)]
struct Place {
    message: u64,
    slot: usize,
    turn: u64,
    depth: usize,
}

impl Place {
    fn new(message: u64, depth: usize) -> Self {
        let slots = depth as u64;
        Self { message, slot: (message % slots) as usize, turn: message / slots, depth }
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

impl<'r, O: Op> Lane<'r, O> {
    fn new(queue: &'r mut Queue, shared: &Shared, size: usize) -> Self {
        let facts = const { O::FACTS };
        let (landings, depth) = (queue.landings(), queue.slots.count / 2);
        let sendings = Slots { count: depth, ..queue.slots };
        let (next, across) = (Place::new(queue.sent, depth), (depth * queue.slots.stride) as u64);
        // A read fetches the peer's sending slot into our landing slot. All operations are on one word.
        let (local, remote) = match (facts.is_atomic(), facts.pulls()) {
            (true, _) => (landings, shared.remote.addr + queue.ours() as u64),
            (false, true) => (landings, shared.remote.addr.wrapping_sub(across)),
            (false, false) => (sendings, shared.remote.addr.wrapping_add(across)),
        };
        let remote = facts.is_one_sided().then_some(RemoteSlice { addr: remote, ..shared.remote });
        let inline = facts.may_inline && size as u64 <= u64::from(queue.qp.caps().max_inline);
        let slice = shared.memory.slice(local.offset, size);
        let mut sender = queue.qp.sender(opcode(facts.opcode), slice, remote, inline);
        match remote {
            Some(remote) if !facts.is_atomic() => sender.cycle_both(local, next.slot, remote),
            _ => sender.cycle(local, next.slot),
        }
        if facts.peer == Peer::Passive {
            sender.set_signalled(true);
            sender.set_id(queue.tag);
        }
        if facts.opcode == Opcode::FetchAdd {
            sender.set_atomic(1, 0);
        }
        let receives = queue.receives(shared);
        let lane = Self {
            queue,
            sender,
            receives,
            next_sent: next,
            next_arrival: next,
            next_check: next,
            _verb: PhantomData,
        };
        if facts.arrival == Arrival::LastByte {
            // Where the flag stands depends on the size, and what an earlier size left there may look like one.
            (0..depth)
                .for_each(|slot| shared.memory.region().store_release(lane.landing(slot) + size - 1, 0));
        }
        lane
    }

    fn sending(&self, slot: usize) -> usize {
        self.queue.ours() + slot * self.queue.slots.stride
    }

    fn landing(&self, slot: usize) -> usize {
        self.queue.landing() + slot * self.queue.slots.stride
    }

    /// Posts the next message, for which there is room.
    #[inline(always)]
    fn send(&mut self, shared: &Shared, size: usize) -> Result<()> {
        let facts = const { O::FACTS };
        let signalled = if const { matches!(O::FACTS.peer, Peer::Echoes) } {
            self.queue.count_send()
        } else {
            self.queue.sent += 1;
            false
        };
        if facts.arrival == Arrival::LastByte {
            let at = self.sending(self.next_sent.slot) + size - 1;
            shared.memory.region().store_release(at, self.next_sent.flag());
        }
        let patch = match facts.opcode {
            Opcode::RdmaWriteWithImm => Patch::Imm(self.next_sent.message as u32),
            Opcode::CompareSwap => Patch::Swap(self.next_sent.message),
            _ => Patch::None,
        };
        let both = facts.is_one_sided() && !facts.is_atomic();
        if signalled {
            self.queue.until_signal = self.queue.signal_every;
            self.sender.set_id(self.queue.tag | self.queue.sent);
            self.sender.set_signalled(true);
            self.sender.post_run(1, both, patch)?;
            self.sender.set_signalled(false);
        } else {
            self.sender.post_run(1, both, patch)?;
        }
        self.next_sent.advance();
        Ok(())
    }

    /// Posts a receive for one that was taken.
    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        self.receives.post(1)?;
        self.queue.taken += 1;
        Ok(())
    }

    #[inline(always)]
    fn has_flag(&self, shared: &Shared, size: usize) -> bool {
        let at = self.landing(self.next_arrival.slot) + size - 1;
        shared.memory.region().load_acquire(at) == self.next_arrival.flag()
    }

    /// So many sends are answered and not known to be complete that the completion of one should be there.
    #[inline(always)]
    fn owes(&self) -> bool {
        let answered = self.next_arrival.message.min(self.queue.sent);
        answered.saturating_sub(self.queue.reaped) >= u64::from(self.queue.signal_every)
    }

    /// The pattern of what arrives as message `message`, or of what is sent as it.
    fn pattern(&self, shared: &Shared, message: u64, arrives: bool) -> Pattern {
        let from_client = (shared.side == Side::Client) != arrives;
        match O::FACTS.peer {
            // The passive end wrote its pattern once.
            Peer::Passive => Pattern::new(shared.seed, 0),
            Peer::Echoes => Pattern::new(shared.seed ^ self.queue.tag, 2 * message + u64::from(from_client)),
        }
    }

    fn stamp(&self, shared: &Shared, size: usize) {
        let (region, Place { message, slot, .. }) = (shared.memory.region(), self.next_sent);
        match O::FACTS.peer {
            // What lands must not be what landed before.
            Peer::Passive => Pattern::new(!shared.seed, message).stamp(region, self.landing(slot), size),
            Peer::Echoes => {
                self.pattern(shared, message, false).stamp(region, self.sending(slot), patterned::<O>(size));
            }
        }
    }

    /// Looks at the next message to be checked, which completed with `wc`.
    fn check(&mut self, shared: &Shared, size: usize, wc: &Wc) -> Result<()> {
        let Place { message, slot, .. } = self.next_check;
        self.next_check.advance();
        let at = self.landing(slot);
        if O::FACTS.is_atomic() {
            return self.queue.check_word(shared, at, message);
        }
        let pattern = self.pattern(shared, message, true);
        pattern.check(shared.memory.region(), at, patterned::<O>(size), message)?;
        check_arrival::<O>(wc, message, size, message as u32)
    }
}

/// Bytes that carry the pattern: the last one is the flag where memory is watched.
fn patterned<O: Op>(size: usize) -> usize {
    if O::FACTS.arrival == Arrival::LastByte { size - 1 } else { size }
}

impl<'r, O: Op, W: Waiting> Pipelined<'r, O, W> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        debug_assert_eq!(rdma.shared.shape, Shape::Latency);
        let Rdma { queues, shared, .. } = rdma;
        Self {
            lanes: queues.iter_mut().map(|queue| Lane::new(queue, shared, size)).collect(),
            shared,
            wcs: [Wc::EMPTY; BATCH],
            found: [0; BATCH],
            got: 0,
            used: 0,
            first: 0,
            size,
            tally: Tally::default(),
            _types: PhantomData,
        }
    }

    #[inline(always)]
    fn send(&mut self, lane: usize, watch: &Watch<'_>) -> Result<(), Halt> {
        if const { matches!(O::FACTS.peer, Peer::Echoes) } {
            let queue = &self.lanes[lane].queue;
            if queue.sent - queue.reaped >= self.shared.depth {
                self.make_room(lane, watch)?;
            }
        }
        Ok(self.lanes[lane].send(self.shared, self.size)?)
    }

    /// Waits for the completion of a send. The queue is full only when one that is long answered has not completed.
    #[cold]
    fn make_room(&mut self, lane: usize, watch: &Watch<'_>) -> Result<(), Halt> {
        let mut wait = Spin::default();
        loop {
            self.reap()?;
            let queue = &self.lanes[lane].queue;
            if queue.sent - queue.reaped < self.shared.depth {
                return Ok(());
            }
            wait.idle(&mut Never, watch)?;
        }
    }

    /// Takes what completions of sends there are.
    #[inline(never)]
    fn reap(&mut self) -> Result<(), Halt> {
        // Not into `self.wcs`: the completions of arrivals are still to be checked.
        let mut sent = [Wc::EMPTY];
        while self.shared.send_cq.poll(&mut sent)? == 1 {
            if !sent[0].is_success() {
                return Err(failed(&sent[0], SENDS));
            }
            let (lane, number) = of_id(sent[0].id());
            self.lanes[lane].queue.reaped = number;
        }
        Ok(())
    }

    /// Looks for messages that have arrived and were not found before, up to `most`, and notes their lanes.
    #[inline(always)]
    fn find(&mut self, most: usize) -> Result<usize, Halt> {
        let got = if const { matches!(O::FACTS.arrival, Arrival::LastByte) } {
            self.find_flags(most)
        } else {
            self.find_completions(most)?
        };
        (self.got, self.used) = (got, 0);
        self.tally.empty_polls += u64::from(got == 0);
        Ok(got)
    }

    #[inline(always)]
    fn find_completions(&mut self, most: usize) -> Result<usize, Halt> {
        let (cq, which) = match const { O::FACTS.arrival } {
            Arrival::RecvCompletion => (&self.shared.recv_cq, RECEIVES),
            _ => (&self.shared.send_cq, SENDS),
        };
        let got = cq.poll(&mut self.wcs[..most])?;
        for (found, wc) in self.found.iter_mut().zip(&self.wcs[..got]) {
            if !wc.is_success() {
                return Err(failed(wc, which));
            }
            *found = of_id(wc.id()).0;
            self.lanes[*found].next_arrival.advance();
        }
        Ok(got)
    }

    #[inline(always)]
    fn find_flags(&mut self, most: usize) -> usize {
        let (lanes, mut got) = (self.lanes.len(), 0);
        for _ in 0..lanes {
            let lane = self.first;
            while got < most && self.lanes[lane].has_flag(self.shared, self.size) {
                self.lanes[lane].next_arrival.advance();
                self.found[got] = lane;
                got += 1;
            }
            if got == most {
                break;
            }
            self.first = if lane + 1 < lanes { lane + 1 } else { 0 };
        }
        got
    }

    /// Waits until there is something to find.
    fn wait_for(&mut self, most: usize, watch: &Watch<'_>) -> Result<usize, Halt> {
        let mut wait = W::default();
        loop {
            for _ in 0..W::polls(watch) {
                let got = self.find(most)?;
                if got > 0 {
                    return Ok(got);
                }
            }
            let looks_around = match const { O::FACTS.arrival } {
                Arrival::RecvCompletion => wait.idle(&mut self.shared.arrivals(), watch)?,
                _ => wait.idle(&mut self.shared.sends(), watch)?,
            };
            if looks_around {
                self.look_for_failures()?;
            }
        }
    }

    /// A failed send is why nothing arrives. Where sends are what is waited for, it is found there.
    fn look_for_failures(&mut self) -> Result<(), Halt> {
        if const { matches!(O::FACTS.peer, Peer::Echoes) } { self.reap() } else { Ok(()) }
    }

    /// What is to be done on a lane once a message was taken.
    #[inline(always)]
    fn settle_lane(&mut self, lane: usize) -> Result<(), Halt> {
        if const { matches!(O::FACTS.arrival, Arrival::RecvCompletion) } {
            self.lanes[lane].receive()?;
        }
        if const { matches!(O::FACTS.peer, Peer::Echoes) } && self.lanes[lane].owes() {
            self.reap()?;
        }
        Ok(())
    }

    fn check_found(&mut self, index: usize) -> Result<(), Halt> {
        // Where no completion tells of the arrival it is not looked at.
        Ok(self.lanes[self.found[index]].check(self.shared, self.size, &self.wcs[index])?)
    }
}

impl<O, W> Counted for Pipelined<'_, O, W> {
    fn tally(&self) -> Tally {
        self.tally
    }
}

impl<O: Op, W: Waiting> Pipeline for Pipelined<'_, O, W> {
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    #[inline(always)]
    fn start(&mut self, lane: usize, watch: &Watch<'_>) -> Result<(), Halt> {
        self.send(lane, watch)
    }

    #[inline(always)]
    fn finished(&mut self) -> Result<usize, Halt> {
        self.find(BATCH)
    }

    fn wait(&mut self, watch: &Watch<'_>) -> Result<usize, Halt> {
        self.wait_for(BATCH, watch)
    }

    #[inline(always)]
    fn lane(&self, ended: usize) -> usize {
        self.found[ended]
    }

    #[inline(always)]
    fn settle(&mut self, ended: usize) -> Result<(), Halt> {
        (0..ended).try_for_each(|index| self.settle_lane(self.found[index]))
    }

    fn inspect(&mut self) -> Result<(), Halt> {
        self.shared.sends().check()?;
        self.look_for_failures()
    }

    fn stamp(&mut self, lane: usize) {
        self.lanes[lane].stamp(self.shared, self.size);
    }

    fn check(&mut self, ended: usize) -> Result<(), Halt> {
        (0..ended).try_for_each(|index| self.check_found(index))
    }
}

impl<O: Op, W: Waiting> RoundTrip for Pipelined<'_, O, W> {
    #[inline(always)]
    fn start(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.send(self.found[self.used - 1], watch)
    }

    #[inline(always)]
    fn finish(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        if self.used == self.got {
            self.wait_for(BATCH, watch)?;
        }
        self.used += 1;
        Ok(())
    }

    #[inline(always)]
    fn settle(&mut self, _watch: &Watch<'_>) -> Result<(), Halt> {
        self.settle_lane(self.found[self.used - 1])
    }

    fn stamp(&mut self) {
        self.lanes[self.found[self.used - 1]].stamp(self.shared, self.size);
    }

    fn check(&mut self) -> Result<(), Halt> {
        self.check_found(self.used - 1)
    }
}
