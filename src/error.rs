//! The one error type of the crate: what failed, with which values, and what to do next.
//!
//! It is a value that travels: over the control connection to the peer, and into the result document.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Result of everything that can fail outside the libraries we call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The step of a run at which an error happened, in the order a run takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Reading the command line.
    Arguments,
    /// Opening the listening port.
    Listen,
    /// Reaching the server's port.
    Connect,
    /// The first frames: who speaks, which protocol, which test.
    Hello,
    /// Agreeing on the test.
    Plan,
    /// Finding and opening the RDMA device.
    OpenDevice,
    /// Reading the port's state, GID table and limits.
    QueryPort,
    /// Choosing the pair of addresses for the path.
    ChoosePath,
    /// Allocating and registering memory.
    RegisterMemory,
    /// Creating completion channels, completion queues and queue pairs.
    CreateQp,
    /// Exchanging QPN, PSN, GID or LID, address and rkey.
    Exchange,
    /// Moving queue pairs to RTR and RTS.
    ConnectQp,
    /// Opening the TCP data connection.
    TcpConnect,
    /// Checking payloads before the measurement.
    Check,
    /// Running before the window opens.
    WarmUp,
    /// Inside the measured window.
    Measure,
    /// Checking payloads after the measurement.
    Verify,
    /// Exchanging results.
    Results,
    /// Reading recorded documents.
    Read,
    /// Writing tables and files.
    Output,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Arguments => "arguments",
            Step::Listen => "listen",
            Step::Connect => "connect",
            Step::Hello => "hello",
            Step::Plan => "plan",
            Step::OpenDevice => "open device",
            Step::QueryPort => "query port",
            Step::ChoosePath => "choose path",
            Step::RegisterMemory => "register memory",
            Step::CreateQp => "create queue pair",
            Step::Exchange => "exchange endpoints",
            Step::ConnectQp => "connect queue pair",
            Step::TcpConnect => "open TCP data connection",
            Step::Check => "check payload",
            Step::WarmUp => "warm up",
            Step::Measure => "measure",
            Step::Verify => "verify payload",
            Step::Results => "exchange results",
            Step::Read => "read documents",
            Step::Output => "write output",
        })
    }
}

/// What kind of failure it is; this decides the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The command line asks for something impossible. Exit status 2.
    Usage,
    /// Device, peer or network failed. Exit status 5.
    Failed,
    /// A number was produced that must not be trusted. Exit status 5.
    Invalid,
    /// A person stopped the run. Exit status 130.
    Interrupted,
}

/// What failed, with which values, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}{step}: {message}", if *remote { "peer: " } else { "" })]
pub struct Error {
    /// Where in the run.
    pub step: Step,
    /// What kind.
    pub kind: Kind,
    /// Cause and values, one line.
    pub message: String,
    /// What a person can do about it, one line.
    pub remedy: Option<String>,
    /// The error happened at the other end and was sent to us.
    pub remote: bool,
}

impl Error {
    /// A device, peer or network failure at `step`.
    #[cold]
    pub fn failed(step: Step, message: impl Into<String>) -> Self {
        Self { step, kind: Kind::Failed, message: message.into(), remedy: None, remote: false }
    }

    /// A number that must not be trusted.
    #[cold]
    pub fn invalid(step: Step, message: impl Into<String>) -> Self {
        Self { kind: Kind::Invalid, ..Self::failed(step, message) }
    }

    /// Something the command line asks for that cannot be.
    #[cold]
    pub fn usage(message: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, ..Self::failed(Step::Arguments, message) }
    }

    /// Ctrl-C or SIGTERM during `step`.
    #[cold]
    pub fn interrupted(step: Step) -> Self {
        Self { kind: Kind::Interrupted, ..Self::failed(step, "stopped by a signal") }
    }

    /// Adds what to do about it; an earlier, more specific remedy stays.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy.get_or_insert_with(|| remedy.into());
        self
    }

    /// Says before the cause where it is: in which option, file or test.
    #[must_use]
    pub fn within(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// Moves the error to the step that was under way when a lower layer failed.
    #[must_use]
    pub fn at(mut self, step: Step) -> Self {
        self.step = step;
        self
    }

    /// The same error as the other end sees it: not its command line and not its keyboard, so a failure there.
    #[must_use]
    pub fn as_remote(mut self) -> Self {
        self.remote = true;
        if self.kind != Kind::Invalid {
            self.kind = Kind::Failed;
        }
        self
    }

    /// Exit status of a process that ends with this error: 2, 5 or 130.
    pub fn exit_status(&self) -> u8 {
        match self.kind {
            Kind::Usage => 2,
            Kind::Failed | Kind::Invalid => 5,
            Kind::Interrupted => 130,
        }
    }
}
