//! One queue pair of a path, and how far it has come.

use super::pair::Pair;
use super::shared::Shared;
use crate::error::{Error, Result, Step};
use crate::ops::{ATOMIC_SIZE, Op};
use crate::plan::{Shape, Side};
use crate::transport::pattern::Pattern;
use crate::verbs::{ReceiveRing, Receiver, Slots};

/// Bits of a send's identifier that number the message; the queue pair's index is above them.
const NUMBER_BITS: u32 = 52;

/// The index of a queue pair, and the number of its message, that a send's identifier names.
pub(super) fn of_id(id: u64) -> (usize, u64) {
    ((id >> NUMBER_BITS) as usize, id & ((1 << NUMBER_BITS) - 1))
}

/// A queue pair with its part of the buffer. Numbers of messages go on from size to size, the same at both ends.
#[derive(Debug)]
pub struct Queue {
    pub(super) qp: Pair,
    /// Its slots of the buffer.
    pub(super) slots: Slots,
    /// Where messages of a latency test land: in the second half of the slots.
    landing: usize,
    /// What the identifiers of its sends have besides the number.
    pub(super) tag: u64,
    /// What sets the patterns of its direction apart.
    pub(super) salt: u64,
    pub(super) signal_every: u32,
    /// Sends until the next one that asks for a completion.
    pub(super) until_signal: u32,
    /// The number of the last message of a stretch, which asks for its completion whatever its turn.
    pub(super) end: u64,
    pub(super) sent: u64,
    pub(super) reaped: u64,
    /// Receives of its own that are posted.
    pub(super) ahead: u64,
    pub(super) taken: u64,
}

impl Queue {
    pub(super) fn new(qp: Pair, index: usize, slots: Slots, signal_every: u32) -> Self {
        Self {
            qp,
            slots,
            landing: slots.offset + slots.count / 2 * slots.stride,
            tag: (index as u64) << NUMBER_BITS,
            salt: 0,
            signal_every,
            until_signal: signal_every,
            end: u64::MAX,
            sent: 0,
            reaped: 0,
            ahead: 0,
            taken: 0,
        }
    }

    /// The same queue pair as one that only takes messages, into these slots.
    pub(super) fn taking(&self, index: usize, slots: Slots) -> Self {
        Self::new(self.qp.clone(), index, slots, self.signal_every)
    }

    /// Counts one more send. Whether it asks for a completion: each `signal_every`th does, so that no more than that
    /// many are ever without one behind them.
    #[inline(always)]
    pub(super) fn count_send(&mut self) -> bool {
        self.sent += 1;
        self.until_signal -= 1;
        self.until_signal == 0
    }

    /// Messages that may be posted now.
    #[inline]
    pub(super) fn room(&self, depth: u64) -> u64 {
        (depth - (self.sent - self.reaped)).min(self.end - self.sent)
    }

    /// The coming stretch has this many messages; `None` where that is not known beforehand.
    pub(super) fn expect(&mut self, messages: Option<u64>) {
        self.end = messages.map_or(u64::MAX, |messages| self.sent + messages);
    }

    /// Makes the next message one that asks for its completion, if those before it have none to come and there is room.
    /// Whether it is to be posted.
    pub(super) fn needs_cover(&mut self, depth: u64) -> bool {
        let needs = self.until_signal != self.signal_every && self.sent - self.reaped < depth;
        if needs {
            self.end = self.sent + 1;
        }
        needs
    }

    pub(super) fn slot(&self, message: u64) -> usize {
        (message % self.slots.count as u64) as usize
    }

    pub(super) fn slot_offset(&self, message: u64) -> usize {
        self.slots.offset + self.slot(message) * self.slots.stride
    }

    /// Where the slots begin.
    pub(super) fn ours(&self) -> usize {
        self.slots.offset
    }

    /// Where messages of a latency test land: in the second half of the slots.
    pub(super) fn landing(&self) -> usize {
        self.landing
    }

    /// The slots that messages of a latency test land in.
    pub(super) fn landings(&self) -> Slots {
        Slots { offset: self.landing(), count: self.slots.count / 2, ..self.slots }
    }

    /// The seed of the patterns of its messages.
    fn seed(&self, seed: u64) -> u64 {
        seed ^ self.tag ^ self.salt
    }

    /// Writes the patterns of `count` messages of a bandwidth test from `first` on into their slots: `others` than are
    /// sent where what a read brings must not be what lay there before.
    pub(super) fn stamp_next(&self, shared: &Shared, first: u64, count: u64, size: usize, others: bool) {
        let seed = self.seed(if others { !shared.seed } else { shared.seed });
        for message in first..first + count {
            Pattern::new(seed, message).stamp(shared.memory.region(), self.slot_offset(message), size);
        }
    }

    /// Compares what the last `count` messages of a verb that pulls have brought.
    pub(super) fn check_sent<O: Op>(&self, shared: &Shared, count: u64, size: usize) -> Result<()> {
        (self.sent - count..self.sent).try_for_each(|message| match O::FACTS.is_atomic() {
            true => self.check_word(shared, self.slot_offset(message), message),
            false => self.check(shared, message, size),
        })
    }

    /// Compares the slot of a message of a bandwidth test with its pattern.
    pub(super) fn check(&self, shared: &Shared, message: u64, size: usize) -> Result<()> {
        self.check_at(shared, self.slot_offset(message), message, size)
    }

    /// Looks whether a message has come whole to its slot, which others than are sent were stamped into.
    pub(super) fn has_landed(&self, shared: &Shared, message: u64, size: usize) -> Result<bool> {
        let [sent, before] = [shared.seed, !shared.seed].map(|seed| Pattern::new(self.seed(seed), message));
        sent.has_replaced(before, shared.memory.region(), self.slot_offset(message), size, message)
    }

    /// Compares what lies at an offset of the buffer with the pattern of a message.
    pub(super) fn check_at(&self, shared: &Shared, at: usize, message: u64, size: usize) -> Result<()> {
        Pattern::new(self.seed(shared.seed), message).check(shared.memory.region(), at, size, message)
    }

    /// Compares the word at an offset of the buffer with the number of operations on it so far: each leaves one more
    /// than it found.
    ///
    /// # Errors
    /// `Invalid`: operations were lost, repeated or done in another order.
    pub(super) fn check_word(&self, shared: &Shared, offset: usize, operations: u64) -> Result<()> {
        let mut word = [0; ATOMIC_SIZE as usize];
        shared.memory.region().read(offset, &mut word);
        let is = u64::from_ne_bytes(word);
        if is == operations {
            return Ok(());
        }
        Err(Error::invalid(Step::Check, format!("the word is {is} after {operations} atomic operations"))
            .with_remedy(
                "the device or its driver loses, repeats or reorders operations, or its word is shared",
            ))
    }

    /// The receive of a latency test with one message outstanding: all land in the second slot.
    pub(super) fn receiver(&self, shared: &Shared) -> Receiver {
        let local = shared.memory.slice(self.landing(), shared.layout.stride);
        match &shared.srq {
            Some(srq) => srq.receiver(local),
            None => self.qp.receiver(local),
        }
    }

    /// The receives from the next one on: that for message `n` is the slot `n` modulo their number, in a latency test of
    /// those that are landed in.
    pub(super) fn receives(&self, shared: &Shared) -> ReceiveRing {
        let slots = if shared.shape == Shape::Latency { self.landings() } else { self.slots };
        let local = shared.memory.slice(slots.offset, slots.stride);
        let next = ((self.taken + self.ahead) % slots.count as u64) as usize;
        self.qp.receive_ring(local, slots, next, |_| self.tag)
    }

    /// Fills the receive queue.
    pub(super) fn post_receives(&mut self, shared: &Shared) -> Result<()> {
        let missing = shared.rx_depth - self.ahead;
        match shared.srq {
            Some(_) => self.receiver(shared).post_many(missing as u32).map_err(|partial| partial.error)?,
            None => self.receives(shared).post(missing as usize)?,
        }
        self.ahead += missing;
        Ok(())
    }
}

/// A packet sequence number that an earlier run on the same queue pair number is unlikely to have used.
pub(super) fn fresh_psn(seed: u64, side: Side, index: usize) -> u32 {
    let salt = match side {
        Side::Client => 0x5bd1_e995,
        Side::Server => 0xc2b2_ae35,
    };
    ((seed ^ (seed >> 24)) as u32).wrapping_add(index as u32).wrapping_mul(salt) & 0x00ff_ffff
}
