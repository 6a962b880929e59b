//! Set-up of the RDMA path: memory, queues, and the two steps that connect them.

use serde::{Deserialize, Serialize};

use super::pair::{Made, Place, Way};
use super::queue::{Queue, fresh_psn};
use super::{Layout, Port, Rdma, Shared, pipeline};
use crate::error::{Error, Result, Step};
use crate::ops::{Arrival, Verb};
use crate::plan::{Side, Test};
use crate::transport::memory;
use crate::transport::path::{PathChoice, PortFacts};
use crate::transport::pattern::WAY_BACK;
use crate::verbs::{Access, Address, Pd, QpCaps, QpInit, Region, Registration, RemoteSlice};

/// What the other end must know to connect its queue pairs to ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Queue pairs, in the order in which they are connected to the other end's.
    pub pairs: Vec<PairFacts>,
    /// Local identifier of the port; 0 on Ethernet.
    pub lid: u16,
    /// Start and key of the test buffer.
    pub memory: RemoteSlice,
    /// Bytes of it.
    pub memory_bytes: u64,
}

/// A queue pair as the other end knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairFacts {
    /// Queue pair number.
    pub qpn: u32,
    /// First packet sequence number this end sends with, 24 bits.
    pub psn: u32,
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

/// Queue pairs and memory, not yet connected.
#[derive(Debug)]
pub struct Prepared {
    // Dropped first, as in `Rdma`.
    pairs: Vec<(Made, u32)>,
    shared: Shared,
    pd: Pd,
    signal_every: u32,
    port: u8,
    lid: u16,
    access: Access,
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

/// Entries that the completion queues need: for sends, and for receives.
fn completions(test: &Test) -> (u64, u64) {
    let qps = u64::from(test.qps);
    let receives = match (consumes_receives(test), test.shared_receive) {
        (false, _) => qps,
        (true, false) => qps * u64::from(rx_depth(test)),
        (true, true) => rx_depth(test).into(),
    };
    (qps * u64::from(tx_depth(test)), receives)
}

/// Depth of each send queue. With several messages outstanding no end waits for room: one that is answered still has its
/// place until the next completion asked for.
fn tx_depth(test: &Test) -> u32 {
    let needed = if test.is_pipelined() { test.load.depth + 2 * test.signal_every } else { 0 };
    test.tx_depth.max(needed)
}

/// Receives posted ahead. With several messages outstanding one is posted again after the answer.
fn rx_depth(test: &Test) -> u32 {
    let needed = if test.is_pipelined() { test.load.depth + pipeline::BATCH as u32 } else { 0 };
    test.rx_depth.max(needed)
}

fn consumes_receives(test: &Test) -> bool {
    test.verb.facts().arrival == Arrival::RecvCompletion
}

/// Compares what the test needs with the device's limits, before anything is made.
fn within_limits(port: &Port, test: &Test) -> Result<()> {
    let limits = port.context().attr()?;
    let name = port.device().name();
    let (sends, receives) = completions(test);
    let receives_each = if consumes_receives(test) { rx_depth(test) } else { 1 };
    let of_srq = if test.shared_receive { limits.max_srq_wr } else { limits.max_qp_wr };
    for (needed, most, what, limit, option) in [
        (
            u64::from(test.qps) * u64::from(test.threads),
            limits.max_qp,
            "queue pairs",
            "max_qp",
            "-q or --threads",
        ),
        (tx_depth(test).into(), limits.max_qp_wr, "sends outstanding", "max_qp_wr", "-t"),
        (
            receives_each.into(),
            of_srq,
            "receives posted",
            if test.shared_receive { "max_srq_wr" } else { "max_qp_wr" },
            "-r",
        ),
        (sends, limits.max_cqe, "completions of sends (-q times -t)", "max_cqe", "-t or -q"),
        (receives, limits.max_cqe, "completions of receives (-q times -r)", "max_cqe", "-r or -q"),
    ] {
        if needed > u64::from(most) {
            return Err(Error::failed(
                Step::CreateQp,
                format!("{needed} {what} are more than {name} can: {most} ({limit})"),
            )
            .with_remedy(format!("lower {option}")));
        }
    }
    Ok(())
}

impl Prepared {
    /// Registers the buffer, creates the queues, and brings the queue pairs to INIT, where receives may be posted.
    ///
    /// # Errors
    /// What the device refused, with its limit.
    pub fn new(port: &Port, test: &Test, side: Side) -> Result<Self> {
        within_limits(port, test)?;
        let layout = Layout::of(test)?;
        let (_, takes_from) = layout.directions_of(side);
        let context = port.context();
        let pd = context.alloc_pd()?;
        let access = access(test.verb);
        let region = Region::placed(layout.bytes(), memory::placement(test, port.numa())?)?;
        let how = Registration { relaxed_ordering: test.relaxed_ordering, on_demand: test.on_demand_paging };
        let memory = pd.register_as(region, access, how)?;
        let sleeps = test.sleeps();
        let channel = || if sleeps { context.create_channel().map(Some) } else { Ok(None) };
        let send_channel = channel()?;
        // Who sends and takes at once is woken by either.
        let recv_channel = if test.bidirectional { send_channel.clone() } else { channel()? };
        let (sends, receives) = completions(test);
        let send_cq = context.create_cq(sends as u32, send_channel.as_ref())?;
        let recv_cq = context.create_cq(receives as u32, recv_channel.as_ref())?;
        let srq = if test.shared_receive { Some(pd.create_srq(rx_depth(test), 1)?) } else { None };
        let init = QpInit {
            srq: srq.as_ref(),
            max_send_wr: tx_depth(test),
            max_recv_wr: if consumes_receives(test) { rx_depth(test) } else { 1 },
            max_inline: if test.verb.facts().may_inline { test.max_inline } else { 0 },
            ..QpInit::new(&send_cq, &recv_cq)
        };
        let place = Place { port: port.number(), pkey_index: port.pkey_index(), access };
        let make = |index: usize| {
            Ok((Made::new(&pd, test, &init, place)?, fresh_psn(test.payload_seed, side, index)))
        };
        let pairs = (0..layout.queues).map(make).collect::<Result<_>>()?;
        let shared = Shared {
            send_cq,
            recv_cq,
            send_channel,
            recv_channel,
            srq,
            memory,
            layout,
            landing: layout.all_slots(takes_from),
            remote: RemoteSlice { addr: 0, rkey: 0 },
            remote_bytes: 0,
            peers: Vec::new(),
            shape: test.shape,
            seed: test.payload_seed,
            side,
            depth: tx_depth(test).into(),
            rx_depth: if consumes_receives(test) { rx_depth(test).into() } else { 0 },
            post_list: test.post_list as usize,
            cqe_batch: test.cqe_batch as usize,
            may_lose: !test.connection.is_reliable(),
        };
        let signal_every = test.signal_every;
        Ok(Self { pairs, shared, pd, signal_every, port: port.number(), lid: port.attr().lid, access })
    }

    /// What the other end needs.
    pub fn endpoint(&self) -> Endpoint {
        let facts = |(made, psn): &(Made, u32)| PairFacts { qpn: made.number(), psn: *psn };
        Endpoint {
            pairs: self.pairs.iter().map(facts).collect(),
            lid: self.lid,
            memory: self.shared.memory.remote(0),
            memory_bytes: self.shared.layout.bytes() as u64,
        }
    }

    /// What the device granted.
    pub fn caps(&self) -> QpCaps {
        self.pairs[0].0.caps()
    }

    /// Remote rights of the buffer.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Connects to the other end's queue pairs, each to the one of its index: RTR, then RTS.
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
        let (ours, theirs) = (self.pairs.len(), remote.pairs.len());
        if ours != theirs {
            return Err(Error::failed(
                Step::ConnectQp,
                format!("this end has {ours} queue pairs and the peer {theirs}"),
            ));
        }
        let (own, told) = (self.shared.layout.bytes() as u64, remote.memory_bytes);
        if told != own {
            return Err(Error::failed(
                Step::ConnectQp,
                format!("the ends disagree on the buffer: {own} B at this end, {told} B at the peer"),
            )
            .with_remedy("run the same verbmark at both ends"));
        }
        self.shared.remote = remote.memory;
        self.shared.remote_bytes = told;
        self.shared.peers = remote.pairs.iter().map(|pair| pair.qpn).collect();
        let grh = choice.route(self.shared.side, test)?;
        let address = Address { port: self.port, lid: remote.lid, service_level: test.service_level, grh };
        let way = Way { pd: &self.pd, address, mtu: choice.mtu, test, reads };
        let (layout, side) = (self.shared.layout, self.shared.side);
        let (sends_to, takes_from) = layout.directions_of(side);
        let mut queues = Vec::with_capacity(ours);
        for (index, ((made, psn), peer)) in self.pairs.into_iter().zip(&remote.pairs).enumerate() {
            let slots = self.shared.layout.slots_of(index, sends_to);
            queues.push(Queue::new(made.connect(psn, *peer, &way)?, index, slots, self.signal_every));
        }
        let mut taking = Vec::new();
        if test.bidirectional {
            let all = queues.iter().enumerate();
            taking =
                all.map(|(index, queue)| queue.taking(index, layout.slots_of(index, takes_from))).collect();
            let back = if side == Side::Server { &mut queues } else { &mut taking };
            back.iter_mut().for_each(|queue| queue.salt = WAY_BACK);
        }
        let mut rdma = Rdma { queues, taking, shared: self.shared };
        rdma.post_receives()?;
        Ok(rdma)
    }
}
