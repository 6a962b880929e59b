//! What was decided: the test both ends run, and what each end keeps to itself.
//!
//! A [`Test`] is complete: every default is resolved, so that a loop never asks what an absent value means. The
//! client makes it, the server admits it, and the result document records it.

use std::ffi::OsString;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::measure::{Limit, Stop};
use crate::ops::Verb;

mod admit;
mod directions;
mod limits;
mod load;
mod resolve;
mod service;
mod site;
mod tcp;

pub use admit::{SHORTER, serves, tcp_only_server};
pub use load::Load;
pub use resolve::resolve;
pub use site::{Most, Site};
pub use tcp::TcpOptions;

pub use crate::cli::{Bound, BoundSide, HOP_LIMIT, LimitSpec, MOST_THREADS, Of, Quantity};
pub use crate::ops::Connection;

/// Latency or bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Round trips, each of them timed: a closed loop at a depth, or an open one at a rate.
    Latency,
    /// A window of outstanding messages.
    Bandwidth,
}

/// What a thread does while nothing has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Polls without pause; burns its core.
    Busy,
    /// Sleeps until the device or the kernel wakes it.
    Events,
}

/// A path that a point is measured over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Through queue pairs.
    Rdma,
    /// Through a socket.
    Tcp,
}

impl Transport {
    /// As documents and tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        }
    }
}

/// Which end of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Decides the test, posts the requests.
    Client,
    /// Answers.
    Server,
}

impl Side {
    /// As documents and tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// Where the measured buffers live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Anonymous pages of the process, of the base size.
    Anonymous,
    /// Reserved pages of the system's default huge size.
    HugePages,
}

/// One test, completely decided. Both ends hold the same value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// What is posted.
    pub verb: Verb,
    /// What is counted.
    pub shape: Shape,
    /// Transport service of the queue pairs.
    pub connection: Connection,
    /// How both ends wait, on RDMA and TCP alike; where both ways are compared, in the point under way.
    pub wait: Wait,
    /// Each size is measured busy polling, and then with events.
    #[serde(default)]
    pub compare_waits: bool,
    /// Paths measured at each size, in this order.
    pub transports: Vec<Transport>,
    /// Message sizes in bytes, in the order measured; 1 to the smaller `max_msg_sz` of both ends.
    pub sizes: Vec<u64>,
    /// When the measurement of a size ends.
    pub stop: Stop,
    /// When the warm-up before it ends.
    pub warm_up: Limit,
    /// Most messages outstanding on each queue pair, and the depth of its send queue. 1 to 65,536.
    pub tx_depth: u32,
    /// Receives posted ahead on each queue pair, or on the queue they share. 1 to 65,536.
    pub rx_depth: u32,
    /// Messages under way in a latency test, and the rate of an open loop.
    pub load: Load,
    /// One completion is asked for each this many sends; never more than `tx_depth`.
    pub signal_every: u32,
    /// Work requests linked into one list and posted by one call; never more than `tx_depth`. Bandwidth only.
    pub post_list: u32,
    /// Completions taken with one poll. Bandwidth only.
    pub cqe_batch: u32,
    /// Both ends stream at once. Bandwidth only.
    #[serde(default)]
    pub bidirectional: bool,
    /// Queue pairs of each thread, 1 to 4,096.
    pub qps: u32,
    /// They take their receives from one queue.
    #[serde(default)]
    pub shared_receive: bool,
    /// Buffers that messages of each queue pair, or of the connection, go through in turn; `None` takes as many as are
    /// outstanding, within a working set of 1 MiB.
    #[serde(default)]
    pub buffers: Option<u32>,
    /// Threads an end, each with queue pairs of its own.
    pub threads: u32,
    /// Kind of memory the payload lies in.
    pub memory: MemoryKind,
    /// The device may write to it in any order.
    pub relaxed_ordering: bool,
    /// It is not pinned: the device has pages brought in when it meets one that is missing.
    pub on_demand_paging: bool,
    /// Largest payload copied into the work request, as asked for; what was granted is in the endpoint's facts.
    pub max_inline: u32,
    /// Largest number of RDMA READs outstanding, as asked for; both devices' limits apply.
    pub outstanding_reads: u8,
    /// Path MTU in bytes as asked for; `None` takes the smaller active MTU of both ports.
    pub mtu: Option<u32>,
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// Traffic class of the global route header.
    pub traffic_class: u8,
    /// Flow label of the global route header, 20 bits.
    pub flow_label: u32,
    /// Hop limit of the global route header, 1 to 255.
    pub hop_limit: u8,
    /// Local ACK timeout exponent: 4.096 us * 2^n, 1 to 31.
    pub qp_timeout: u8,
    /// Retries after a timeout or a sequence NAK, 0 to 6. Seven is endless on rxe and so not offered.
    pub retry_count: u8,
    /// Retries after receiver-not-ready, 0 to 7; 7 is endless.
    pub rnr_retry: u8,
    /// Encoded wait before a sender told receiver-not-ready tries again, 0 to 31 (IBTA table 45; 12 is 0.64 ms).
    pub min_rnr_timer: u8,
    /// Options of the baseline's socket.
    pub tcp: TcpOptions,
    /// Check every latency message and the last window of a bandwidth run.
    pub verify: bool,
    /// Count system calls where that is allowed, and what all cores of both machines do.
    #[serde(default)]
    pub cpu_report: bool,
    /// What payload patterns are made from.
    pub payload_seed: u64,
    /// Who sends the first message of a ping-pong.
    pub first: Side,
    /// Longest wait for any progress inside a loop.
    pub stall_timeout: Duration,
    /// How long a message of an unreliable service may take before it counts as lost, from 100 us.
    #[serde(default)]
    pub loss_timeout: Duration,
}

impl Test {
    /// TCP connections that carry data: one for each thread, and one for each direction of several at once.
    pub fn connections(&self) -> u32 {
        if self.bidirectional { 2 * self.threads } else { self.threads }
    }

    /// The ways of waiting that are measured at each size, in this order.
    pub fn waits(&self) -> Vec<Wait> {
        if self.compare_waits { vec![Wait::Busy, Wait::Events] } else { vec![self.wait] }
    }

    /// Some point of it sleeps.
    pub fn sleeps(&self) -> bool {
        self.waits().contains(&Wait::Events)
    }

    /// Whether a path is measured.
    pub fn measures(&self, transport: Transport) -> bool {
        self.transports.contains(&transport)
    }

    /// Most messages outstanding on so many queue pairs together.
    pub fn outstanding(&self, pairs: usize) -> u64 {
        pairs as u64 * u64::from(self.tx_depth)
    }

    /// The name of the binary that serves it, such as `send_lat`.
    pub fn binary(&self) -> String {
        binary(self.verb, self.shape)
    }
}

/// The name of the binary for a verb and a shape.
pub fn binary(verb: Verb, shape: Shape) -> String {
    let suffix = match shape {
        Shape::Latency => "lat",
        Shape::Bandwidth => "bw",
    };
    format!("{}_{suffix}", verb.facts().family)
}

/// What this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Measures against the server on this host.
    Client(String),
    /// Serves one test.
    Server,
    /// Both, in one process.
    Loopback,
}

/// Where results go, besides the table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outputs {
    /// Result document.
    pub json: Option<OsString>,
    /// One row a result.
    pub csv: Option<OsString>,
    /// Interval log.
    pub hlog: Option<OsString>,
}

/// Everything a process was asked to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What this process is.
    pub role: Role,
    /// The test a client brings; at a server only its verb and shape count.
    pub test: Test,
    /// The sizes came from `-a`: those beyond a device's limit are left out instead of refused.
    pub is_sweep: bool,
    /// This end's own choices.
    pub site: Site,
    /// Core that the client wishes the server to run on; `None` leaves the choice to it.
    pub server_core: Option<usize>,
    /// Where results go.
    pub outputs: Outputs,
    /// Notes for the result document.
    pub labels: Vec<(String, String)>,
    /// What a client holds the run to; empty at a server.
    pub limits: Vec<LimitSpec>,
    /// Options a server ignores since the client decides them.
    pub ignored: Vec<String>,
}
