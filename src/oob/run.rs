//! The messages of a run, in the order they go. What only the paths understand (ports, endpoints) goes between them
//! as the paths' own types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Token;
use crate::ops::Verb;
use crate::plan::{Shape, Test, Transport, Wait};
use crate::result::{CpuUse, End, MachineCpu, Missing, ResultRow, RowInterval, Status};

/// Client: what it came for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The verb of its test.
    pub verb: Verb,
    /// And the shape.
    pub shape: Shape,
    /// Paths it wants measured.
    pub transports: Vec<Transport>,
    /// The cores it runs on, so that a server on the same host takes others.
    pub cores: Vec<usize>,
    /// Threads of each end.
    pub threads: u32,
    /// The first core of the server, unless it was started with one.
    #[serde(default)]
    pub server_core: Option<usize>,
    /// Identifies the run in the documents of both ends.
    pub run_id: String,
}

/// Server: it serves that. Where RDMA is wanted, the facts of its port follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The core it runs on.
    pub core: Option<usize>,
    /// Both ends have one core to share: spinners yield.
    pub shares_core: bool,
}

/// Server: what a client hears before its offer, at once and again every few seconds until it is its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    /// Clients that are served before it, with the one that is measured now.
    pub ahead: usize,
}

/// Server: its answer to a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    /// It is the client's turn.
    Offer(Offer),
    /// It is not yet; another answer follows.
    Busy(Busy),
}

/// Client: the whole test. Where RDMA is wanted, the facts of its port and the choice of the path follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Completely decided.
    pub test: Test,
}

/// Server: agreed; from here on an error ends the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accept {
    /// What data connections show.
    pub token: Token,
}

/// Both: who they are, and what they could not find out of themselves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Introduction {
    /// The facts of this end.
    pub end: End,
    /// Paths begin at the end.
    pub missing: Vec<Missing>,
}

/// Client: what comes next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A size over one path: phases follow.
    Point {
        /// Which path.
        transport: Transport,
        /// Message size in bytes.
        size: u64,
        /// How both ends wait; without it as the test says.
        #[serde(default)]
        wait: Option<Wait>,
    },
    /// Distributions of the intervals of the row that follows, as many as a message takes.
    Payloads(Vec<Option<String>>),
    /// What the point gave, without those distributions.
    Row(Box<ResultRow>),
    /// Nothing more.
    Finish {
        /// How the run ended for the client.
        status: Status,
    },
}

/// Both, before the first point of a test that reports CPU in full: what all cores of the machine did at rest; `null`
/// where the kernel does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rested {
    /// Over the time of the rest.
    pub machine: Option<MachineCpu>,
}

/// Client: the next phase of a point. The server answers [`Ready`], runs it, and waits for [`Done`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Messages whose payload is checked, nothing timed.
    Check {
        /// Number of the first on each queue pair, or on the connection.
        first: Vec<u64>,
        /// How many, dealt out one by one.
        count: u64,
    },
    /// Warm-up alone, where it must not run into the measurement.
    WarmUp,
    /// Warm-up and measurement.
    Measure,
    /// The point is over.
    Over,
}

/// Server: receives are posted, sockets are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {}

/// Client, and in a bidirectional phase both: so many messages were sent in this phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Messages.
    pub messages: u64,
    /// Of them on each queue pair.
    pub each: Vec<u64>,
}

/// Server: what it streamed itself in a bidirectional phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Streamed {
    /// In all: before, inside and after the window.
    pub posted: u64,
    /// Completed inside the window.
    pub messages: u64,
    /// When the window opened, on the server's clock.
    pub opened_ns: u64,
    /// Length of the window.
    pub window_ns: u64,
    /// The window in pieces.
    pub intervals: Vec<RowInterval>,
}

/// What a receiver measured of a stream.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Received {
    /// That arrived inside the window.
    pub messages: u64,
    /// Length of the window.
    pub window_ns: u64,
    /// The window in pieces.
    pub intervals: Vec<RowInterval>,
}

/// Server: what it saw of the phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Messages that arrived; `null` where the target is not told.
    pub messages: Option<u64>,
    /// What it measured, where the receiver measures; `null` also if its window never opened.
    #[serde(default)]
    pub received: Option<Received>,
    /// What it measured of its own direction, where it has one.
    #[serde(default)]
    pub streamed: Option<Streamed>,
    /// What its measuring thread used, warm-up included.
    pub cpu: Option<CpuUse>,
    /// How its device's counters moved.
    pub counters: Option<BTreeMap<String, u64>>,
    /// What disturbed it.
    pub disturbances: Vec<String>,
}
