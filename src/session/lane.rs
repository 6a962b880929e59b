//! What every phase of a run needs at either end: control connection, clock, and how a loop's end is understood.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::error::{Error, Kind, Result, Step};
use crate::host::{self, DeviceCounters};
use crate::measure::{Clock, FailedWork, Halt, Stop, Watch};
use crate::oob::Control;
use crate::plan::{Test, Transport};
use crate::transport::rdma::{Diagnosis, Insight};
use crate::verbs::{Context, TOLD, WcStatus};

/// Longest wait for a message that the peer owes at once.
pub const STEP: Duration = Duration::from_secs(15);

/// How long the peer is given to say why, after a path failed.
pub const LAST_WORD: Duration = Duration::from_millis(1500);

/// Counter of messages that found no receive, on devices in this process.
pub const NOT_READY: &str = "receiver_not_ready";

/// One end of a run, without its paths.
pub struct Lane {
    /// To the other end.
    pub control: Control,
    /// What is measured.
    pub test: Test,
    /// Calibrated.
    pub clock: Clock,
    /// Those of this end's threads, in order; empty where they may not be chosen.
    pub cores: Vec<usize>,
    /// Both ends share one core.
    pub shares_core: bool,
    /// Set by a signal.
    pub signalled: &'static AtomicBool,
    /// The RDMA device and the number of its port, for counters and events.
    pub device: Option<(Context, u8)>,
    /// The data connections, for the kernel's counters of them.
    pub sockets: Vec<TcpStream>,
    /// What a poll that finds nothing costs this end.
    pub poll_costs: PollCosts,
    /// What explains a failed work request; `None` without an RDMA path.
    pub diagnosis: Option<Diagnosis>,
    /// Bytes of a message of the point under way.
    pub size: u64,
}

/// What a poll that finds nothing costs, in ns; measured once a run for each path that is polled.
#[derive(Debug, Clone, Copy, Default)]
pub struct PollCosts {
    rdma: Option<f64>,
    tcp: Option<f64>,
}

impl PollCosts {
    /// The cost on a path; `None` until it was measured.
    pub fn of(&self, transport: Transport) -> Option<f64> {
        match transport {
            Transport::Rdma => self.rdma,
            Transport::Tcp => self.tcp,
        }
    }

    /// Notes the cost on a path.
    pub fn note(&mut self, transport: Transport, ns: Option<f64>) {
        match transport {
            Transport::Rdma => self.rdma = ns,
            Transport::Tcp => self.tcp = ns,
        }
    }
}

impl Lane {
    /// What loops of the current phase look at while they wait.
    pub fn watch(&self) -> Watch<'_> {
        let watch = Watch::new(self.control.as_fd(), self.signalled, self.test.stall_timeout);
        if self.shares_core { watch.sharing_core() } else { watch }
    }

    /// Messages of this path may be lost, and neither end learns of it.
    pub fn may_lose(&self, transport: Transport) -> bool {
        transport == Transport::Rdma && !self.test.connection.is_reliable()
    }

    /// What a receiver's loop looks at when the sender has said that it is done, until nothing comes any more.
    pub fn last_watch(&self) -> Watch<'_> {
        self.watch().without_peer().with_stall(self.test.quiet_time())
    }

    /// Sends a message and waits for the answer to it.
    ///
    /// # Errors
    /// The peer's error, or that it does not answer.
    pub fn ask<M: serde::Serialize, A: DeserializeOwned>(&mut self, message: &M, what: &str) -> Result<A> {
        self.control.send(message)?;
        self.control.recv(what, STEP)
    }

    /// The longest a phase of so many messages of `size` bytes may take before a passive end gives up waiting for
    /// its end. Generous: it only ends waits that would never end.
    pub fn longest_phase(&self, size: u64) -> Duration {
        let spare = self.test.stall_timeout + STEP;
        let warm_up = self.test.warm_up.span.min(Duration::from_secs(3600));
        match self.test.stop {
            Stop::After(span) => span + warm_up + spare,
            Stop::Count(count) => {
                let each = Duration::from_millis(20) + Duration::from_micros(size);
                let all = each.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
                // A random schedule may take longer than its rate says; the spare time is that of many gaps.
                let due = self.test.load.rate_per_s.map_or(0.0, |rate| 2.0 * count as f64 / rate);
                let all = all.saturating_add(Duration::try_from_secs_f64(due).unwrap_or(Duration::MAX / 2));
                all.saturating_add(warm_up + spare)
            }
        }
    }

    /// What the device of a path counts, or the kernel; `None` where it counts nothing.
    pub(super) fn counters(&self, transport: Transport) -> Option<DeviceCounters> {
        let counters = match transport {
            Transport::Rdma => self.device.as_ref().map(|(device, port)| {
                let mut counters = DeviceCounters::read(device.device().name(), *port);
                counters.0.extend(device.not_ready().map(|count| (NOT_READY.to_owned(), count)));
                counters
            }),
            Transport::Tcp => Some(host::connection_counters(self.sockets.iter().map(AsFd::as_fd))),
        };
        counters.filter(|counters| !counters.0.is_empty())
    }

    /// The troubles that the device has told of in this run.
    pub(super) fn troubles(&self) -> Vec<String> {
        let events = self.device.iter().flat_map(|(device, _)| device.events());
        events.filter(|event| event.is_trouble()).map(|event| format!("{TOLD}: {event}")).collect()
    }

    /// The error behind a loop's end. The peer's word comes first: it knows what happened to it.
    pub fn explain(&mut self, halt: Halt, step: Step) -> Error {
        // What became of this end's device is why the peer has trouble, not the other way round.
        let gone = self.device.as_ref().and_then(|(device, _)| device.check_device().err());
        let is_gone = gone.is_some();
        if let (Some(gone), Halt::Peer | Halt::Stalled(_)) = (gone, &halt) {
            return gone.at(step);
        }
        let mut insight = Insight::Told;
        let work_failed = matches!(halt, Halt::Work(_));
        let ours = match halt {
            Halt::Interrupted => return Error::interrupted(step),
            Halt::Peer => return self.last_word(step),
            Halt::Stalled(waited) => Error::failed(
                step,
                format!("nothing has moved for {:.1} s and the peer is silent", waited.as_secs_f64()),
            )
            .with_remedy(
                "see whether the peer's process runs and the path delivers; --stall-timeout sets the limit",
            ),
            Halt::Failed(error) => error.at(step),
            Halt::Work(failed) => {
                let (error, known) = self.diagnose(failed);
                insight = known;
                error.at(step)
            }
        };
        if ours.kind == Kind::Invalid {
            return ours;
        }
        let mut message = ours.message;
        for trouble in self.troubles() {
            if !message.contains(&trouble) {
                message = format!("{message}; {trouble}");
            }
        }
        let ours = Error { message, ..ours };
        if is_gone {
            return ours;
        }
        // Who found the fault says so at once, and who only follows waits longest: both ends then tell the same.
        let patience = match insight {
            Insight::Found => Duration::ZERO,
            Insight::Told => LAST_WORD,
            Insight::Follows => 2 * LAST_WORD,
        };
        match self.control.wait_readable(patience) {
            Ok(true) => match self.last_word(step) {
                theirs if work_failed && insight > Insight::Follows && Insight::is_behind(&theirs) => {
                    Error { message: format!("{}; the peer: {}", ours.message, theirs.message), ..ours }
                }
                theirs if theirs.remote && work_failed => {
                    let here = ours.message.split("; ").next().unwrap_or_default();
                    Error { message: format!("{}; this end: {here}", theirs.message), ..theirs }
                }
                theirs if theirs.remote => theirs,
                closed => Error { message: format!("{}; {}", ours.message, closed.message), ..ours },
            },
            _ => ours,
        }
    }

    /// The error of a failed work request, and how much it tells.
    fn diagnose(&self, failed: FailedWork) -> (Error, Insight) {
        let Some(diagnosis) = &self.diagnosis else {
            let message = format!("a work request failed with status {}", failed.status);
            return (Error::failed(Step::Measure, message), Insight::Told);
        };
        let first = diagnosis.first(failed);
        let insight = Insight::of(WcStatus::of_code(first.status));
        (diagnosis.explain(first, &self.test, self.size), insight)
    }

    /// What the peer says when it should be silent: its error, or that it is gone.
    fn last_word(&mut self, step: Step) -> Error {
        self.control.set_step(step);
        match self.control.recv::<serde_json::Value>("the end of the phase", LAST_WORD) {
            Err(error) => error,
            Ok(unexpected) => {
                Error::failed(step, format!("the peer sent {unexpected} in the middle of a phase"))
            }
        }
    }
}
