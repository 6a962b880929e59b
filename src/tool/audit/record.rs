//! The document of an audit: `verbmark.audit/1`.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::strace::Traced;
use super::trace::{Calls, Threads};
use crate::error::{Error, Kind, Result, Step};
use crate::ops::Verb;
use crate::plan::{Connection, Role, Shape, Side, Transport, Wait};
use crate::result::{Device, Missing, ResultRow, Status, TestRecord, Tool, derived_copies, timestamp};

/// Name and version of the format.
pub const SCHEMA: &str = "verbmark.audit/1";

/// What an audit came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// [`SCHEMA`].
    pub schema: String,
    /// What wrote it.
    pub tool: Tool,
    /// The command line.
    pub command: Vec<String>,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// How it ended; never `invalid`.
    pub status: Status,
    /// Why it ended before its end.
    pub error: Option<Error>,
    /// Values that could not be had.
    pub missing: Vec<Missing>,
    /// What traced the runs; `null` when it could not be run.
    pub tracer: Option<Tracer>,
    /// The test; `null` when no run came to its end.
    pub test: Option<AuditedTest>,
    /// A run for each path, in order.
    pub runs: Vec<AuditedRun>,
}

/// What counted the system calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracer {
    /// `strace`.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// The test that was traced, as the client decided it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditedTest {
    /// The binary.
    pub binary: String,
    /// The verb.
    pub op: Verb,
    /// In a latency test whose verb echoes a message is a round trip.
    pub shape: Shape,
    /// Transport service of the queue pairs.
    pub connection: Connection,
    /// How both ends waited.
    pub wait: Wait,
    /// Payload of one message.
    pub size_bytes: u64,
}

/// One traced run, over one path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditedRun {
    /// The path.
    pub transport: Transport,
    /// The test's command line.
    pub command: Vec<String>,
    /// The end that measured.
    pub client: AuditedEnd,
    /// The other one.
    pub server: AuditedEnd,
}

/// One end of a traced run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditedEnd {
    /// `null` over TCP.
    pub device: Option<AuditedDevice>,
    /// `null` at the end that was not traced.
    pub system_calls: Option<SystemCalls>,
    /// Derived from what the path is known to do, not measured.
    pub derived_copies: AuditedCopies,
}

/// The device of an end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedDevice {
    /// Name, such as `mlx5_0`.
    pub name: String,
    /// Such as `mlx5_core`, `rxe` or `emulated`; `null` when not known.
    pub provider: Option<String>,
    /// A CPU does the device's work; `null` when the provider is not known.
    pub is_software: Option<bool>,
}

/// The system calls of an end in the measured phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SystemCalls {
    /// Messages of the phase, those of a warm-up inside it included.
    pub messages: u64,
    /// Calls a message, all of them.
    pub per_message: f64,
    /// Those of them that found nothing: where an end spins their number is a matter of timing.
    pub found_nothing_per_message: f64,
    /// Each call, the most frequent first.
    pub by_name: Vec<SystemCall>,
}

/// One system call of an end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SystemCall {
    /// As the kernel names it.
    pub name: String,
    /// How often it was made.
    pub calls: u64,
    /// Those of them that found nothing: `EAGAIN`, or a timeout.
    pub found_nothing: u64,
    /// Those of them that failed otherwise.
    pub failed: u64,
    /// `calls` divided by the messages.
    pub per_message: f64,
    /// `found_nothing` divided by the messages.
    pub found_nothing_per_message: f64,
}

/// Copies of the payload by a CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditedCopies {
    /// A message; `null` where it cannot be told.
    pub per_message: Option<f64>,
    /// What it follows from, or why it cannot be told.
    pub reason: String,
}

impl Audit {
    /// Of this command line, which has just begun.
    pub fn new(command: Vec<String>) -> Self {
        Self {
            schema: SCHEMA.into(),
            tool: Tool::new("verbmark"),
            command,
            started_at: timestamp(SystemTime::now()),
            status: Status::Ok,
            error: None,
            missing: Vec::new(),
            tracer: None,
            test: None,
            runs: Vec::new(),
        }
    }

    /// Ends it with an error. What was traced before stands.
    pub fn fail(&mut self, error: Error) {
        self.status = if error.kind == Kind::Interrupted { Status::Interrupted } else { Status::Failed };
        if self.tracer.is_none() {
            self.miss("tracer".into(), error.message.clone());
        }
        if self.test.is_none() {
            self.miss("test".into(), "no traced run came to its end".into());
        }
        self.error = Some(error);
    }

    /// Adds a run that came to its end.
    ///
    /// # Errors
    /// It had not exactly one measured phase.
    pub fn add(&mut self, role: &Role, traced: &Traced) -> Result<()> {
        let document = &traced.document;
        let (Some(test), [row]) = (&document.test, &document.results[..]) else {
            return Err(not_one_point(format!("the run has {} results", document.results.len())));
        };
        if test.verify {
            return Err(not_one_point("the client ran with --verify".into()));
        }
        let index = self.runs.len();
        let mut end = |side| {
            let device = document.end(side).and_then(|end| end.device.as_ref());
            let device = device.filter(|_| row.transport == Transport::Rdma);
            let system_calls = calls_of(role, side, traced, row, test)?;
            let place = format!("runs[{index}].{}", side.name());
            if system_calls.is_none() {
                self.miss(format!("{place}.system_calls"), not_traced(side, &document.tool.binary));
            }
            let copies = derived_copies(document, row, side);
            if copies.per_message.is_none() {
                self.miss(format!("{place}.derived_copies.per_message"), copies.reason.clone());
            }
            if let Some(device) = device.filter(|device| device.is_software.is_none()) {
                let reason = format!("the provider of {} is not known to be hardware", device.name);
                if device.provider.is_none() {
                    self.miss(format!("{place}.device.provider"), reason.clone());
                }
                self.miss(format!("{place}.device.is_software"), reason);
            }
            Ok(AuditedEnd {
                device: device.map(audited),
                system_calls,
                derived_copies: AuditedCopies { per_message: copies.per_message, reason: copies.reason },
            })
        };
        let (client, server) = (end(Side::Client)?, end(Side::Server)?);
        self.test.get_or_insert_with(|| AuditedTest {
            binary: document.tool.binary.clone(),
            op: test.op,
            shape: test.shape,
            connection: test.connection,
            wait: test.wait,
            size_bytes: row.size_bytes,
        });
        self.runs.push(AuditedRun {
            transport: row.transport,
            command: as_typed(&document.command),
            client,
            server,
        });
        Ok(())
    }

    fn miss(&mut self, path: String, reason: String) {
        self.missing.push(Missing { path, reason });
    }
}

/// strace was given the whole path of the test; where that lies on this machine is nothing for a document.
fn as_typed(command: &[String]) -> Vec<String> {
    let name = |program: &String| program.rsplit('/').next().unwrap_or_default().to_owned();
    command.first().map(name).into_iter().chain(command.iter().skip(1).cloned()).collect()
}

fn audited(device: &Device) -> AuditedDevice {
    let Device { name, provider, is_software, .. } = device.clone();
    AuditedDevice { name, provider, is_software }
}

fn not_one_point(what: String) -> Error {
    Error::failed(Step::Measure, format!("{what}, and an audit traces one measured phase"))
        .with_remedy("let the client be audited, too, or run it with one size, without --verify, and with --no-tcp or --tcp-only")
}

fn not_traced(side: Side, binary: &str) -> String {
    let there = match side {
        Side::Client => format!("run `verbmark audit -- {binary} HOST` as the client"),
        Side::Server => format!("run `verbmark audit -- {binary}` as the server"),
    };
    format!("this end runs elsewhere and was not traced here: {there}")
}

/// `None` of an end that is not in the trace.
fn calls_of(
    role: &Role,
    side: Side,
    traced: &Traced,
    row: &ResultRow,
    test: &TestRecord,
) -> Result<Option<SystemCalls>> {
    let threads = match (role, side) {
        (Role::Loopback, Side::Server) => Threads::OfServer,
        (Role::Loopback | Role::Client(_), Side::Client) | (Role::Server, Side::Server) => Threads::OfProcess,
        _ => return Ok(None),
    };
    // The client's account of a latency test begins when it is warm; all others hold the warm-up, too.
    let is_warm = test.shape == Shape::Latency && side == Side::Client;
    let messages = if is_warm { Some(row.messages) } else { row.sent };
    match (traced.trace.measured(threads), messages) {
        (Some(calls), Some(messages @ 1..)) => Ok(Some(system_calls(&calls, messages))),
        _ => Err(Error::failed(
            Step::Measure,
            format!("the trace holds no measured phase of the {}'s end", side.name()),
        )
        .with_remedy("see that verbmark and the test are of one version")),
    }
}

fn system_calls(calls: &Calls, messages: u64) -> SystemCalls {
    let each = |count: u64| count as f64 / messages as f64;
    let mut by_name: Vec<_> = calls
        .iter()
        .map(|(name, count)| SystemCall {
            name: name.clone(),
            calls: count.calls,
            found_nothing: count.found_nothing,
            failed: count.failed,
            per_message: each(count.calls),
            found_nothing_per_message: each(count.found_nothing),
        })
        .collect();
    by_name.sort_by_key(|call| std::cmp::Reverse(call.calls));
    SystemCalls {
        messages,
        per_message: each(by_name.iter().map(|call| call.calls).sum()),
        found_nothing_per_message: each(by_name.iter().map(|call| call.found_nothing).sum()),
        by_name,
    }
}
