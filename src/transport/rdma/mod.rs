//! Set-up of the RDMA path: device, port, memory, queues, and the two steps that connect them.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, Step};
use crate::ops::{ATOMIC_SIZE, Arrival, Verb};
use crate::plan::{Shape, Side, Test, Wait};
use crate::transport::memory;
use crate::transport::path::{PathChoice, PortFacts};
use crate::transport::pattern::Pattern;
use crate::verbs::{
    Access, Address, Channel, Cq, Init, Mr, Qp, QpCaps, QpInit, Region, Registration, RemoteSlice, Rtr, Rts,
    Slots, Transport,
};

mod completion;
mod passive;
mod ping_pong;
mod pipeline;
mod port;
mod posting;
mod stream;

pub use passive::Passive;
pub use ping_pong::PingPong;
pub use pipeline::Pipelined;
pub use port::Port;
pub use posting::{Lists, Posting, Single};
pub use stream::{Streamer, Taker};

/// What the other end must know to connect its queue pair to ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Queue pair number.
    pub qpn: u32,
    /// First packet sequence number this end sends with, 24 bits.
    pub psn: u32,
    /// Local identifier of the port; 0 on Ethernet.
    pub lid: u16,
    /// Start and key of the test buffer.
    pub memory: RemoteSlice,
}

/// How the buffer is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes from one slot to the next.
    pub stride: usize,
    /// Number of slots.
    pub slots: usize,
}

/// Slots of a bandwidth test are spread over at most this much, but for very large messages.
const WORKING_SET: u64 = 1 << 20;

/// Slots begin on cache lines of their own, on every processor we know.
const ALIGNMENT: u64 = 128;

impl Layout {
    fn slots(self) -> Slots {
        Slots { stride: self.stride, count: self.slots }
    }

    /// Where in the buffer of a latency test a message lands: the first half of the slots is sent from.
    fn landing(self, slot: u64) -> usize {
        (self.slots / 2 + slot as usize) * self.stride
    }

    /// Latency has a slot to send from and one to land in for each message outstanding; bandwidth has as many as messages may be outstanding, as
    /// far as a working set of 1 MiB holds them, and at least two.
    pub fn of(test: &Test) -> Result<Self> {
        let largest = test.sizes.iter().copied().max().unwrap_or(1);
        let stride = largest.next_multiple_of(ALIGNMENT);
        let slots = match test.shape {
            Shape::Latency => 2 * u64::from(test.load.depth),
            Shape::Bandwidth => {
                let slots = (WORKING_SET / stride).clamp(2, u64::from(test.tx_depth).max(2));
                // Lists go through the slots one behind the other.
                let list = u64::from(test.post_list);
                (slots / list * list).max(list)
            }
        };
        match (usize::try_from(stride), usize::try_from(slots)) {
            (Ok(stride), Ok(slots)) if stride.checked_mul(slots).is_some() => Ok(Self { stride, slots }),
            _ => Err(Error::failed(
                Step::RegisterMemory,
                format!("{slots} buffers of {largest} bytes do not fit an address space"),
            )),
        }
    }
}

/// Queue pair and memory, not yet connected.
#[derive(Debug)]
pub struct Prepared {
    rdma: Rdma,
    psn: u32,
    port: u8,
    lid: u16,
    access: Access,
}

/// The connected path of one run: it lives through all its sizes.
#[derive(Debug)]
pub struct Rdma {
    // Dropped in this order: the queue pair first, so that the device lets go of memory and queues.
    qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    send_channel: Option<Channel>,
    recv_channel: Option<Channel>,
    memory: Mr,
    layout: Layout,
    remote: RemoteSlice,
    shape: Shape,
    seed: u64,
    side: Side,
    depth: u64,
    rx_depth: u64,
    signal_every: u32,
    /// Work requests of a list; 1 where they are posted singly.
    post_list: usize,
    /// Completions taken with one poll of a stream.
    cqe_batch: usize,
    /// Sends until the next one that asks for a completion.
    until_signal: u32,
    // Numbers that go on from size to size, the same at both ends.
    sent: u64,
    reaped: u64,
    receives_posted: u64,
    taken: u64,
}

/// The remote rights a verb needs at the end that is written to or read from.
fn access(verb: Verb) -> Access {
    let facts = verb.facts();
    Access {
        remote_read: facts.pulls() && !facts.is_atomic(),
        remote_write: facts.is_one_sided() && !facts.pulls(),
        remote_atomic: facts.is_atomic(),
    }
}

impl Prepared {
    /// Registers the buffer, creates the queues, and brings the queue pair to INIT with its receives posted, so that
    /// the peer may send as soon as it is connected.
    ///
    /// # Errors
    /// What the device refused, with its limit.
    pub fn new(port: &Port, test: &Test, side: Side) -> Result<Self> {
        let layout = Layout::of(test)?;
        let context = port.context();
        let pd = context.alloc_pd()?;
        let access = access(test.verb);
        let region = Region::placed(layout.stride * layout.slots, memory::placement(test, port.numa())?)?;
        let how = Registration { relaxed_ordering: test.relaxed_ordering, on_demand: test.on_demand_paging };
        let memory = pd.register_as(region, access, how)?;
        let sleeps = test.wait == Wait::Events;
        let channel = || if sleeps { context.create_channel().map(Some) } else { Ok(None) };
        let (send_channel, recv_channel) = (channel()?, channel()?);
        let receives = test.verb.facts().arrival == Arrival::RecvCompletion;
        let (tx_depth, rx_depth) = depths(test);
        let rx_depth = if receives { rx_depth } else { 1 };
        let send_cq = context.create_cq(tx_depth, send_channel.as_ref())?;
        let recv_cq = context.create_cq(rx_depth, recv_channel.as_ref())?;
        let max_inline = if test.verb.facts().may_inline { test.max_inline } else { 0 };
        let qp = pd.create_qp(
            Transport::Rc,
            &QpInit {
                send_cq: &send_cq,
                recv_cq: &recv_cq,
                max_send_wr: tx_depth,
                max_recv_wr: rx_depth,
                max_inline,
                ..QpInit::new(&send_cq, &recv_cq)
            },
        )?;
        qp.to_init(&Init { port: port.number(), pkey_index: port.pkey_index(), access })?;
        let rdma = Rdma {
            qp,
            send_cq,
            recv_cq,
            send_channel,
            recv_channel,
            memory,
            layout,
            remote: RemoteSlice { addr: 0, rkey: 0 },
            shape: test.shape,
            seed: test.payload_seed,
            side,
            depth: tx_depth.into(),
            rx_depth: if receives { rx_depth.into() } else { 0 },
            signal_every: test.signal_every,
            post_list: test.post_list as usize,
            cqe_batch: test.cqe_batch as usize,
            until_signal: test.signal_every,
            sent: 0,
            reaped: 0,
            receives_posted: 0,
            taken: 0,
        };
        let psn = fresh_psn(test.payload_seed, side);
        Ok(Self { rdma, psn, port: port.number(), lid: port.attr().lid, access })
    }

    /// What the other end needs.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            qpn: self.rdma.qp.number(),
            psn: self.psn,
            lid: self.lid,
            memory: self.rdma.memory.remote(0),
        }
    }

    /// What the device granted.
    pub fn caps(&self) -> QpCaps {
        self.rdma.qp.caps()
    }

    /// Remote rights of the buffer.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Connects to the other end's queue pair: RTR, then RTS.
    ///
    /// # Errors
    /// The transition the device refused, with the attributes it was given.
    pub fn connect(
        mut self,
        remote: &Endpoint,
        test: &Test,
        choice: &PathChoice,
        reads: Reads,
    ) -> Result<Rdma> {
        let grh = choice.route(self.rdma.side, test)?;
        self.rdma.qp.to_rtr(&Rtr {
            path_mtu: choice.mtu,
            dest_qpn: remote.qpn,
            rq_psn: remote.psn,
            max_dest_rd_atomic: reads.incoming,
            min_rnr_timer: test.min_rnr_timer,
            address: Address { port: self.port, lid: remote.lid, service_level: test.service_level, grh },
        })?;
        self.rdma.qp.to_rts(&Rts {
            sq_psn: self.psn,
            timeout: test.qp_timeout,
            retry_count: test.retry_count,
            rnr_retry: test.rnr_retry,
            max_rd_atomic: reads.outgoing,
        })?;
        self.rdma.remote = remote.memory;
        self.rdma.post_receives()?;
        Ok(self.rdma)
    }
}

/// Depths of the queues. With several messages outstanding no end waits for room: a message that is answered still has
/// its place in the send queue until the next completion asked for, and its receive is posted after the answer.
fn depths(test: &Test) -> (u32, u32) {
    if !test.is_pipelined() {
        return (test.tx_depth, test.rx_depth);
    }
    let depth = test.load.depth;
    (test.tx_depth.max(depth + 2 * test.signal_every), test.rx_depth.max(depth + pipeline::BATCH as u32))
}

/// RDMA READs in flight each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reads {
    /// This end may have outstanding.
    pub outgoing: u8,
    /// This end accepts at once.
    pub incoming: u8,
}

impl Reads {
    /// The number asked for, within what the requester can send and the responder can take.
    pub fn agree(test: &Test, ours: &PortFacts, theirs: &PortFacts) -> Self {
        let limit = |requester: &PortFacts, responder: &PortFacts| {
            let most = requester.max_reads_out.min(responder.max_reads_in).min(u8::MAX.into());
            test.outstanding_reads.min(most as u8)
        };
        Self { outgoing: limit(ours, theirs), incoming: limit(theirs, ours) }
    }
}

/// A packet sequence number that an earlier run on the same queue pair number is unlikely to have used.
fn fresh_psn(seed: u64, side: Side) -> u32 {
    let salt = match side {
        Side::Client => 0x5bd1_e995,
        Side::Server => 0xc2b2_ae35,
    };
    ((seed ^ (seed >> 24)) as u32).wrapping_mul(salt) & 0x00ff_ffff
}

impl Rdma {
    /// The queue pair.
    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// The test buffer.
    pub fn memory(&self) -> &Mr {
        &self.memory
    }

    /// The peer's test buffer.
    pub fn remote(&self) -> RemoteSlice {
        self.remote
    }

    /// The queue pair's number.
    pub fn qp_number(&self) -> u32 {
        self.qp.number()
    }

    /// What the device granted.
    pub fn caps(&self) -> QpCaps {
        self.qp.caps()
    }

    /// How the buffer is divided.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The payload of this size goes into the work request.
    pub fn inlines(&self, verb: Verb, size: u64) -> bool {
        verb.facts().may_inline && size <= u64::from(self.qp.caps().max_inline)
    }

    /// Counts one more send. Whether it asks for a completion: each `signal_every`th does, so that no more than that
    /// many are ever without one behind them.
    #[inline(always)]
    fn count_send(&mut self) -> bool {
        self.sent += 1;
        self.until_signal -= 1;
        self.until_signal == 0
    }

    fn slot(&self, message: u64) -> usize {
        (message % self.layout.slots as u64) as usize
    }

    fn slot_offset(&self, message: u64) -> usize {
        self.slot(message) * self.layout.stride
    }

    /// Writes the pattern of `seed` for a message of a bandwidth test into its slot.
    fn stamp(&self, seed: u64, message: u64, size: usize) {
        Pattern::new(seed, message).stamp(self.memory.region(), self.slot_offset(message), size);
    }

    /// Compares the slot of a message of a bandwidth test with its pattern.
    fn check(&self, message: u64, size: usize) -> Result<()> {
        let at = self.slot_offset(message);
        Pattern::new(self.seed, message).check(self.memory.region(), at, size, message)
    }

    /// Compares the word at an offset of the buffer with the number of operations on it so far: each leaves one more
    /// than it found.
    ///
    /// # Errors
    /// `Invalid`: operations were lost, repeated or done in another order.
    fn check_word(&self, offset: usize, operations: u64) -> Result<()> {
        let mut word = [0; ATOMIC_SIZE as usize];
        self.memory.region().read(offset, &mut word);
        let is = u64::from_ne_bytes(word);
        if is == operations {
            return Ok(());
        }
        Err(Error::invalid(Step::Check, format!("the word is {is} after {operations} atomic operations"))
            .with_remedy(
                "the device or its driver loses, repeats or reorders operations, or its word is shared",
            ))
    }

    /// Fills the receive queue. The receive for message `n` lands in slot `n % slots`, in a latency test in that of the
    /// slots that are landed in.
    fn post_receives(&mut self) -> Result<()> {
        let mut receiver =
            self.qp.receiver(self.memory.slice(self.landing(self.receives_posted), self.layout.stride));
        while self.receives_posted - self.taken < self.rx_depth {
            receiver.move_to(self.landing(self.receives_posted));
            receiver.post()?;
            self.receives_posted += 1;
        }
        Ok(())
    }

    fn landing(&self, receive: u64) -> usize {
        match self.shape {
            Shape::Latency => self.layout.landing(receive % (self.layout.slots as u64 / 2)),
            Shape::Bandwidth => self.slot_offset(receive),
        }
    }
}
