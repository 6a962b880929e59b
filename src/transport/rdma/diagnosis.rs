//! What a failed work request comes to: the error that a person reads, with the facts of both ends that bear on it.
//!
//! A device tells status, vendor code and queue pair, and nothing else that counts (`ibv_poll_cq(3)`). Everything more is
//! known from when the ends connected, and kept here, away from the loops.

use std::time::Duration;

use super::causes::{Situation, causes};
use super::{Port, Rdma};
use crate::error::{Error, Step};
use crate::host::{self, DeviceCounters};
use crate::measure::FailedWork;
use crate::plan::{Connection, Side, Test};
use crate::transport::path::{GidFact, PathChoice, PortFacts};
use crate::verbs::{Context, Cq, PortState, RemoteSlice, TOLD, Wc, WcStatus, rnr_wait};

/// What both ends told each other of their queue pairs and of the path between them.
#[derive(Debug)]
pub struct Diagnosis {
    context: Context,
    port: u8,
    side: Side,
    choice: PathChoice,
    ours: PortFacts,
    theirs: PortFacts,
    threads: Vec<Known>,
    /// When the ends connected.
    counters: DeviceCounters,
}

/// What is known of the queue pairs of one thread.
#[derive(Debug)]
struct Known {
    sends: Cq,
    receives: Cq,
    /// Own number, and that of the peer's.
    numbers: Vec<(u32, u32)>,
    memory: RemoteSlice,
    bytes: u64,
    remote: RemoteSlice,
    remote_bytes: u64,
    /// Room of a receive, and bytes from one message to the next.
    stride: u64,
}

impl Known {
    fn of(rdma: &Rdma) -> Self {
        let shared = &rdma.shared;
        let numbers = rdma.queues.iter().map(|queue| queue.qp.number());
        Self {
            sends: shared.send_cq.clone(),
            receives: shared.recv_cq.clone(),
            numbers: numbers.zip(shared.peers.iter().copied()).collect(),
            memory: shared.memory.remote(0),
            bytes: shared.layout.bytes() as u64,
            remote: shared.remote,
            remote_bytes: shared.remote_bytes,
            stride: shared.layout.stride as u64,
        }
    }

    fn peer_of(&self, number: u32) -> Option<u32> {
        self.numbers.iter().find(|(own, _)| *own == number).map(|(_, peer)| *peer)
    }
}

/// How words begin in the names of counters that count trouble, of the drivers in the kernel.
const TROUBLE: [&str; 10] =
    ["err", "discard", "drop", "retry", "timeout", "nak", "rnr", "exceeded", "duplicate", "out"];

impl Diagnosis {
    /// Keeps what is known now that the ends are connected.
    pub fn new(
        port: &Port,
        side: Side,
        choice: &PathChoice,
        ends: (&PortFacts, &PortFacts),
        rdma: &[Rdma],
    ) -> Self {
        let context = port.context().clone();
        Self {
            counters: DeviceCounters::read(context.device().name(), port.number()),
            context,
            port: port.number(),
            side,
            choice: choice.clone(),
            ours: ends.0.clone(),
            theirs: ends.1.clone(),
            threads: rdma.iter().map(Known::of).collect(),
        }
    }

    /// The failure behind this one: where it was flushed, another completion of its queue pair may tell what went wrong
    /// first. Takes what completions there are.
    pub fn first(&self, failed: FailedWork) -> FailedWork {
        let is_flush = |status| status == WcStatus::WR_FLUSH_ERR;
        if !is_flush(WcStatus::of_code(failed.status)) {
            return failed;
        }
        for known in self.threads.iter().filter(|known| known.peer_of(failed.qp_number).is_some()) {
            for (cq, is_receive) in [(&known.receives, true), (&known.sends, false)] {
                let mut wcs = [Wc::EMPTY];
                while matches!(cq.poll(&mut wcs), Ok(1)) {
                    let [wc] = &wcs;
                    let is_its = wc.qp_number() == failed.qp_number;
                    if is_its && !wc.is_success() && !is_flush(wc.status()) {
                        let (status, vendor_error) = (wc.status().code(), wc.vendor_error());
                        return FailedWork { status, vendor_error, is_receive, ..failed };
                    }
                }
            }
        }
        failed
    }

    /// The error of a failed work request of a test, while messages of `size` bytes were sent.
    pub fn explain(&self, failed: FailedWork, test: &Test, size: u64) -> Error {
        let FailedWork { qp_number, is_receive, vendor_error, .. } = failed;
        let status = WcStatus::of_code(failed.status);
        let known = self.threads.iter().find(|known| known.peer_of(qp_number).is_some());
        let state = self.context.port(self.port).map(|attr| attr.state);
        let title = test.verb.facts().title;
        let mut parts = vec![format!(
            "{}{title} of {size} B on QP {qp_number:#08x}{} failed: {status} ({}, status {}, vendor {vendor_error:#x}), {}",
            if is_receive { "receive for " } else { "" },
            known
                .and_then(|known| known.peer_of(qp_number))
                .map_or(String::new(), |peer| format!(", peer's QP {peer:#08x},")),
            status.name(),
            status.code(),
            if status == WcStatus::WR_FLUSH_ERR {
                "behind an error that this end was not told"
            } else {
                "the first error of the queue pair"
            },
        )];
        match status {
            WcStatus::RETRY_EXC_ERR | WcStatus::RESP_TIMEOUT_ERR | WcStatus::BAD_RESP_ERR => {
                parts.extend([self.way(), tries(test)]);
            }
            WcStatus::RNR_RETRY_EXC_ERR => parts.extend([self.receives(known, test), waits(test)]),
            WcStatus::REM_ACCESS_ERR => parts.extend(known.map(|known| known.theirs())),
            WcStatus::LOC_ACCESS_ERR | WcStatus::LOC_PROT_ERR => parts.extend(known.map(Known::ours)),
            WcStatus::REM_INV_REQ_ERR | WcStatus::REM_OP_ERR => {
                parts.push(self.receives(known, test));
                parts.extend(known.filter(|_| test.verb.facts().is_one_sided()).map(|known| known.theirs()));
            }
            WcStatus::LOC_LEN_ERR => parts.extend([self.receives(known, test), self.longest(test)]),
            _ => {}
        }
        let port_is_active = state.as_ref().is_ok_and(|state| *state == PortState::Active);
        parts.push(match state {
            Ok(state) => format!("port {} is {state} now", self.ours.name),
            Err(error) => format!("port {} cannot be asked: {}", self.ours.name, error.message),
        });
        parts.extend(self.counted());
        let connection = test.connection;
        let situation =
            Situation { connection, link_layer: self.ours.link_layer, is_receive, port_is_active };
        Error::failed(Step::Measure, parts.join("; ")).with_remedy(listed(status, &situation))
    }

    /// The path, as both ends know it.
    pub fn way(&self) -> String {
        let (ours, theirs) = (&self.ours, &self.theirs);
        let ends = match &self.choice.gids {
            Some((client, server)) => {
                let (from, to) = if self.side == Side::Client { (client, server) } else { (server, client) };
                format!("{} here, {} there", gid(from), gid(to))
            }
            None => format!("LID {} here, LID {} there", ours.lid, theirs.lid),
        };
        format!(
            "path MTU {} of the active {} here and {} there; {ends}",
            self.choice.mtu, ours.active_mtu, theirs.active_mtu
        )
    }

    /// Receives that the test posts, where its messages take any.
    fn receives(&self, known: Option<&Known>, test: &Test) -> String {
        let room = known.map_or(String::new(), |known| format!(" of {} B", known.stride));
        match test.verb.facts().consumes_receives() {
            true => format!("{} receives{room} are posted ahead at each queue", test.rx_depth),
            false => "messages take no receives".into(),
        }
    }

    /// What the ports take.
    fn longest(&self, test: &Test) -> String {
        match test.connection {
            Connection::Ud => format!("a datagram has at most the path MTU of {} B", self.choice.mtu),
            Connection::Rc | Connection::Uc => {
                format!("ports take {} B here and {} B there", self.ours.max_message, self.theirs.max_message)
            }
        }
    }

    /// What this end's device has counted of trouble since the ends connected. `None` if nothing.
    fn counted(&self) -> Option<String> {
        let now = DeviceCounters::read(self.context.device().name(), self.port);
        let (counted, _) = host::delta(&self.counters, &now);
        let is_trouble =
            |name: &str| name.split('_').any(|word| TROUBLE.iter().any(|trouble| word.starts_with(trouble)));
        let moved = counted.into_iter().filter(|(name, count)| *count > 0 && is_trouble(name));
        let moved: Vec<_> = moved.map(|(name, count)| format!("{name} {count}")).collect();
        (!moved.is_empty()).then(|| format!("counted since: {}", moved.join(", ")))
    }
}

impl Known {
    fn ours(&self) -> String {
        format!(
            "this end's buffer has {} B at {:#x}, key {:#x}",
            self.bytes, self.memory.addr, self.memory.rkey
        )
    }

    fn theirs(&self) -> String {
        let Self { remote, remote_bytes, bytes, .. } = self;
        let (first, last) = (remote.addr, remote.addr.saturating_add(*bytes));
        format!(
            "requests go to {first:#x} up to {last:#x} with key {:#x}; the peer told of {remote_bytes} B from there on",
            remote.rkey
        )
    }
}

fn gid(fact: &GidFact) -> String {
    format!("GID {} {} ({})", fact.index, fact.gid, fact.kind)
}

/// How long a device waits for answers: each try takes up to four times what was set (IBTA 9.9.2.1.3).
fn tries(test: &Test) -> String {
    let (timeout, retries) = (test.qp_timeout, test.retry_count);
    let set = format!("--qp-timeout {timeout}, --retry-count {retries}");
    if timeout == 0 {
        return format!("{set}: waits for ever");
    }
    let longest = test.device_gives_up_after();
    format!("{set}: given up after {} to {}", seconds(longest / 4), seconds(longest))
}

/// How long a device tries again where no receive is posted.
fn waits(test: &Test) -> String {
    let wait = rnr_wait(test.min_rnr_timer);
    let set = format!("--rnr-retry {}, --min-rnr-timer {}", test.rnr_retry, test.min_rnr_timer);
    match test.rnr_retry {
        7 => format!("{set}: tries for ever, {} apart", seconds(wait)),
        retries => format!("{set}: given up after {}", seconds(wait * u32::from(retries))),
    }
}

fn seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 0.1 { format!("{:.3} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

/// The causes, numbered.
fn listed(status: WcStatus, situation: &Situation) -> String {
    let numbered = (1..).zip(causes(status, situation));
    let listed: Vec<_> =
        numbered.map(|(number, cause)| format!("{number}) {}: {}", cause.what, cause.look)).collect();
    format!("likely, in this order: {}", listed.join("; "))
}

/// How much an end knows of what went wrong, from the status of its failed work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Insight {
    /// It was only told that something had gone wrong before, or elsewhere.
    Follows,
    /// It knows what became of its request; the other end may know why.
    Told,
    /// It found the fault.
    Found,
}

impl Insight {
    /// What a status gives.
    pub fn of(status: WcStatus) -> Self {
        match status {
            WcStatus::WR_FLUSH_ERR | WcStatus::LOC_ACCESS_ERR => Self::Follows,
            WcStatus::LOC_LEN_ERR
            | WcStatus::LOC_QP_OP_ERR
            | WcStatus::LOC_PROT_ERR
            | WcStatus::FATAL_ERR
            | WcStatus::GENERAL_ERR => Self::Found,
            _ => Self::Told,
        }
    }

    /// The other end's error only follows: it is one of a failed work request that does, or of an event of a queue pair,
    /// which says less than the completion at the requester.
    pub fn is_behind(told: &Error) -> bool {
        let named = |status: WcStatus| told.message.contains(&format!("({}, status", status.name()));
        told.remote
            && (named(WcStatus::WR_FLUSH_ERR)
                || named(WcStatus::LOC_ACCESS_ERR)
                || told.message.starts_with(&format!("{TOLD}: QP")))
    }
}
