//! The RDMA path: queue pairs, the memory they work on, and the data paths over them.

use crate::error::Result;
use crate::ops::Verb;
use crate::plan::Shape;
use crate::verbs::{Mr, Qp, QpCaps, RemoteSlice};

mod causes;
mod completion;
mod diagnosis;
mod duplex;
mod gaps;
mod gather;
mod layout;
mod lossy;
mod pair;
mod passive;
mod ping_pong;
mod pipeline;
mod port;
mod posting;
mod prepare;
mod queue;
mod shared;
mod spread;
mod stream;

pub use diagnosis::{Diagnosis, Insight};
pub use duplex::Duplex;
pub use gather::Gatherer;
pub use layout::{Layout, share};
pub use lossy::Lossy;
use pair::Pair;
pub use passive::Passive;
pub use ping_pong::PingPong;
pub use pipeline::Pipelined;
pub use port::Port;
pub use posting::{Lists, Posting, Single};
pub use prepare::{Endpoint, PairFacts, Prepared, Reads};
use queue::Queue;
use shared::Shared;
pub use spread::Spreader;
pub use stream::{Streamer, Taker};

/// The connected path of one run: it lives through all its sizes.
#[derive(Debug)]
pub struct Rdma {
    // Dropped first, so that the device lets go of memory and queues.
    queues: Vec<Queue>,
    /// The same queue pairs as what takes messages, where they send at once; empty where one direction is enough.
    taking: Vec<Queue>,
    shared: Shared,
}

impl Rdma {
    /// The first queue pair, of those that are connected.
    pub fn qp(&self) -> Option<&Qp> {
        match &self.queues[0].qp {
            Pair::Connected(qp) => Some(qp),
            Pair::Datagram(..) => None,
        }
    }

    /// The test buffer.
    pub fn memory(&self) -> &Mr {
        &self.shared.memory
    }

    /// The peer's test buffer.
    pub fn remote(&self) -> RemoteSlice {
        self.shared.remote
    }

    /// The first queue pair's number.
    pub fn qp_number(&self) -> u32 {
        self.queues[0].qp.number()
    }

    /// What the device granted.
    pub fn caps(&self) -> QpCaps {
        self.queues[0].qp.caps()
    }

    /// How the buffer is divided.
    pub fn layout(&self) -> Layout {
        self.shared.layout
    }

    /// The payload of this size goes into the work request.
    pub fn inlines(&self, verb: Verb, size: u64) -> bool {
        verb.facts().may_inline && size <= u64::from(self.caps().max_inline)
    }

    /// Fills the receive queues, or the one they share.
    fn post_receives(&mut self) -> Result<()> {
        let Self { queues, taking, shared } = self;
        let queues = if taking.is_empty() { queues } else { taking };
        match (&shared.srq, shared.shape) {
            (Some(srq), Shape::Bandwidth) => {
                gather::from_shared(srq, shared, 0).post(shared.rx_depth as usize)
            }
            (Some(_), Shape::Latency) => queues[0].post_receives(shared),
            (None, _) => queues.iter_mut().try_for_each(|queue| queue.post_receives(shared)),
        }
    }
}
