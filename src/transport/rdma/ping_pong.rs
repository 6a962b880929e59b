//! The data path of latency tests over a queue pair.

use std::marker::PhantomData;

use super::completion::{Other, Source};
use super::{Rdma, Shape};
use crate::error::{Error, Step};
use crate::measure::{Halt, RoundTrip, Spin, Waiting, Watch};
use crate::ops::{Arrival, Op, Opcode, Peer};
use crate::plan::Side;
use crate::transport::pattern::Pattern;
use crate::transport::{Counted, Tally};
use crate::verbs::{self, Receiver, Sender, Wc};

/// Messages of verb `O` there and, if it echoes, back; waiting as `W` says.
pub struct PingPong<'r, O, W> {
    rdma: &'r mut Rdma,
    sender: Sender,
    receiver: Receiver,
    wc: [Wc; 1],
    size: usize,
    /// Trips begun and ended on this path.
    started: u64,
    finished: u64,
    tally: Tally,
    _types: PhantomData<(O, W)>,
}

/// The work request a verb asks for.
pub(super) const fn opcode(opcode: Opcode) -> verbs::Opcode {
    match opcode {
        Opcode::Send => verbs::Opcode::Send,
        Opcode::RdmaWrite => verbs::Opcode::RdmaWrite,
        Opcode::RdmaWriteWithImm => verbs::Opcode::RdmaWriteWithImm,
        Opcode::RdmaRead => verbs::Opcode::RdmaRead,
    }
}

impl<'r, O: Op, W: Waiting> PingPong<'r, O, W> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        debug_assert_eq!(rdma.shape, Shape::Latency);
        let facts = const { O::FACTS };
        let (ours, theirs) = (0, rdma.layout.stride);
        // A read fetches the peer's sending slot into our landing slot.
        let (local, remote) = if facts.pulls() { (theirs, ours) } else { (ours, theirs) };
        let remote = facts
            .is_one_sided()
            .then(|| verbs::RemoteSlice { addr: rdma.remote.addr + remote as u64, rkey: rdma.remote.rkey });
        let inline = facts.may_inline && size as u64 <= u64::from(rdma.qp.caps().max_inline);
        let sender = rdma.qp.sender(opcode(facts.opcode), rdma.memory.slice(local, size), remote, inline);
        let receiver = rdma.qp.receiver(rdma.memory.slice(rdma.layout.stride, rdma.layout.stride));
        let mut path = Self {
            rdma,
            sender,
            receiver,
            wc: [Wc::EMPTY],
            size,
            started: 0,
            finished: 0,
            tally: Tally::default(),
            _types: PhantomData,
        };
        if facts.arrival == Arrival::LastByte {
            path.landing_flag(flag(0));
        }
        path
    }

    fn landing(&self) -> usize {
        self.rdma.layout.stride
    }

    fn landing_flag(&mut self, value: u8) {
        let at = self.landing() + self.size - 1;
        self.rdma.memory.region().store_release(at, value);
    }

    /// Waits for the completion of the latest signalled send. It has no wake-up of its own: the message it belongs
    /// to was answered, so that it is there or about to be.
    #[inline]
    fn reap(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        let mut source = Source { cq: &self.rdma.send_cq, channel: None };
        // Not into `self.wc`: the completion of the arrival is still to be checked.
        let mut sent = [Wc::EMPTY];
        source.wait::<Spin<false>>(&mut sent, None, watch, &mut 0)?;
        self.rdma.reaped = sent[0].id();
        Ok(())
    }

    #[inline(always)]
    fn wait_for_receive(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        let rdma = &mut *self.rdma;
        let mut source = Source { cq: &rdma.recv_cq, channel: rdma.recv_channel.as_ref() };
        let other = Other { cq: &rdma.send_cq, done: &mut rdma.reaped };
        source.wait::<W>(&mut self.wc, Some(other), watch, &mut self.tally.empty_polls)?;
        rdma.taken += 1;
        Ok(())
    }

    #[inline(always)]
    fn wait_for_send(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        let rdma = &mut *self.rdma;
        let mut source = Source { cq: &rdma.send_cq, channel: rdma.send_channel.as_ref() };
        source.wait::<W>(&mut self.wc, None, watch, &mut self.tally.empty_polls)?;
        rdma.reaped = rdma.sent;
        Ok(())
    }

    #[inline(always)]
    fn wait_for_last_byte(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        let at = self.landing() + self.size - 1;
        let expected = flag(self.finished + 1);
        let mut wait = Spin::<false>::default();
        loop {
            if self.rdma.memory.region().load_acquire(at) == expected {
                break;
            }
            let rdma = &mut *self.rdma;
            let mut source = Source { cq: &rdma.send_cq, channel: None };
            if wait.idle(&mut source, watch)? {
                Other { cq: &rdma.send_cq, done: &mut rdma.reaped }.look()?;
            }
        }
        self.tally.empty_polls += wait.empty_polls();
        Ok(())
    }

    /// The pattern of what arrives in trip `trip`, or of what is sent in it.
    fn pattern(&self, trip: u64, arrives: bool) -> Pattern {
        let from_client = (self.rdma.side == Side::Client) != arrives;
        match O::FACTS.peer {
            // The passive end wrote its pattern once.
            Peer::Passive => Pattern::new(self.rdma.seed, 0),
            Peer::Echoes => Pattern::new(self.rdma.seed, 2 * trip + u64::from(from_client)),
        }
    }

    /// Bytes that carry the pattern: the last one is the flag where memory is watched.
    fn patterned(&self) -> usize {
        if O::FACTS.arrival == Arrival::LastByte { self.size - 1 } else { self.size }
    }
}

/// The last byte of trip `trip`. Never zero, which fresh memory holds, and different from its neighbours.
fn flag(trip: u64) -> u8 {
    (trip % 251 + 1) as u8
}

impl<O, W> Counted for PingPong<'_, O, W> {
    fn tally(&self) -> Tally {
        self.tally
    }
}

impl<O: Op, W: Waiting> RoundTrip for PingPong<'_, O, W> {
    #[inline(always)]
    fn start(&mut self, _watch: &Watch<'_>) -> Result<(), Halt> {
        let facts = const { O::FACTS };
        self.started += 1;
        if facts.arrival == Arrival::LastByte {
            self.rdma.memory.region().store_release(self.size - 1, flag(self.started));
        }
        if facts.carries_imm() {
            self.sender.set_imm(self.started as u32);
        }
        let signalled = self.rdma.count_send(matches!(facts.peer, Peer::Passive));
        self.sender.set_id(self.rdma.sent);
        self.sender.post(signalled)?;
        Ok(())
    }

    #[inline(always)]
    fn finish(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        match const { O::FACTS.arrival } {
            Arrival::RecvCompletion => self.wait_for_receive(watch)?,
            Arrival::LastByte => self.wait_for_last_byte(watch)?,
            Arrival::Never => self.wait_for_send(watch)?,
        }
        self.finished += 1;
        Ok(())
    }

    #[inline(always)]
    fn settle(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        if const { matches!(O::FACTS.arrival, Arrival::RecvCompletion) } {
            self.receiver.post()?;
            self.rdma.receives_posted += 1;
        }
        if const { matches!(O::FACTS.peer, Peer::Echoes) }
            && self.rdma.sent - self.rdma.reaped >= self.rdma.depth
        {
            self.reap(watch)?;
        }
        Ok(())
    }

    fn stamp(&mut self) {
        let region = self.rdma.memory.region();
        match O::FACTS.peer {
            // What lands must not be what landed before.
            Peer::Passive => {
                Pattern::new(!self.rdma.seed, self.started).stamp(region, self.landing(), self.size)
            }
            Peer::Echoes => self.pattern(self.started + 1, false).stamp(region, 0, self.patterned()),
        }
    }

    fn check(&mut self) -> Result<(), Halt> {
        let trip = self.finished;
        let region = self.rdma.memory.region();
        self.pattern(trip, true).check(region, self.landing(), self.patterned(), trip)?;
        let wc = &self.wc[0];
        let wrong = |what: &str, is: u32, should: u32| {
            Err(Halt::Failed(Error::invalid(
                Step::Check,
                format!("message {trip} has {what} {is}, not {should}"),
            )))
        };
        if O::FACTS.arrival == Arrival::RecvCompletion && wc.byte_len() as usize != self.size {
            return wrong("length", wc.byte_len(), self.size as u32);
        }
        if O::FACTS.carries_imm() && wc.imm() != trip as u32 {
            return wrong("immediate data", wc.imm(), trip as u32);
        }
        Ok(())
    }
}
