//! The document `verbmark.doctor/1`.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::code::Code;
use crate::host::Missing;
use crate::measure::histogram::SIGNIFICANT_DIGITS;
use crate::measure::{Jitter, jitter};
use crate::result::{GidType, Tool, timestamp};

/// Name and version of the document.
pub const SCHEMA: &str = "verbmark.doctor/1";

/// What of a machine disturbs measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkup {
    /// [`SCHEMA`].
    pub schema: String,
    /// What looked.
    pub tool: Tool,
    /// When, RFC 3339.
    pub examined_at: String,
    /// The machine's name.
    pub host: Option<String>,
    /// Its kernel's release.
    pub kernel: Option<String>,
    /// The core that would measure.
    pub core: usize,
    /// The RDMA device that would be used.
    pub device: Option<String>,
    /// Its port.
    pub port: Option<u8>,
    /// The port's network interface.
    pub netdev: Option<String>,
    /// What was found, in the order in which it was looked for.
    pub findings: Vec<Finding>,
    /// What took the core away from a thread that did nothing but look.
    pub jitter: Option<JitterFacts>,
    /// The way to the host that was named; `null` where none was.
    pub path: Option<PathFacts>,
    /// Values that could not be had.
    pub missing: Vec<Missing>,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at.
    pub code: Code,
    /// Whether it matters.
    pub level: Level,
    /// The value; `null` where it cannot be told.
    pub seen: Option<String>,
    /// What it does to results.
    pub effect: String,
    /// The command that mends it, or what else does; `null` where nothing is to be mended, or nothing can be.
    pub remedy: Option<String>,
}

/// Whether a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Numbers suffer.
    Warning,
    /// It cannot be told: neither good nor bad.
    Unknown,
}

impl Level {
    /// Its name, as in the document.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
        }
    }
}

/// What a check has to say where it could look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    level: Level,
    seen: String,
    remedy: Option<String>,
}

impl Verdict {
    /// As it should be.
    pub fn ok(seen: impl Into<String>) -> Self {
        Self { level: Level::Ok, seen: seen.into(), remedy: None }
    }

    /// Worth knowing.
    pub fn note(seen: impl Into<String>) -> Self {
        Self { level: Level::Note, ..Self::ok(seen) }
    }

    /// Numbers suffer.
    pub fn warning(seen: impl Into<String>) -> Self {
        Self { level: Level::Warning, ..Self::ok(seen) }
    }

    /// Adds the command that mends it.
    #[must_use]
    pub fn mended_by(mut self, command: impl Into<String>) -> Self {
        self.remedy = Some(command.into());
        self
    }
}

/// What a check says, or why it cannot.
pub type Checked = Result<Verdict, String>;

/// The level of what a check says.
#[cfg(test)]
pub fn level(checked: &Checked) -> Level {
    checked.as_ref().map_or(Level::Unknown, |verdict| verdict.level)
}

/// The jitter of a core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JitterFacts {
    /// How long was looked.
    pub window_s: f64,
    /// Readings of the clock, each a gap from the one before.
    pub gaps: u64,
    /// A gap longer than this is counted.
    pub threshold_us: f64,
    /// So many were.
    pub over: u64,
    /// The same a second.
    pub over_per_s: f64,
    /// The usual gap: one turn of the loop, recording included.
    pub p50_ns: Option<u64>,
    /// 99.9 of 100 are no longer.
    pub p99_9_ns: Option<u64>,
    /// The longest.
    pub max_ns: Option<u64>,
    /// All of them.
    pub histogram: GapHistogram,
}

/// All gaps, as a result's histogram is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapHistogram {
    /// `ns`.
    pub unit: String,
    /// `gap`.
    pub of: String,
    /// Decimal digits that are kept.
    pub significant_digits: u8,
    /// `hdr-v2-deflate-base64`.
    pub encoding: String,
    /// The histogram.
    pub payload: String,
}

impl From<&Jitter> for JitterFacts {
    fn from(seen: &Jitter) -> Self {
        Self {
            window_s: seen.window_ns as f64 / 1e9,
            gaps: seen.gaps.samples(),
            threshold_us: jitter::THRESHOLD.as_secs_f64() * 1e6,
            over: seen.over,
            over_per_s: seen.over_per_s(),
            p50_ns: seen.gaps.quantile(0.5),
            p99_9_ns: seen.gaps.quantile(0.999),
            max_ns: seen.gaps.max(),
            histogram: GapHistogram {
                unit: "ns".into(),
                of: "gap".into(),
                significant_digits: SIGNIFICANT_DIGITS,
                encoding: "hdr-v2-deflate-base64".into(),
                payload: seen.gaps.to_payload(),
            },
        }
    }
}

/// The way to another host, as it looks from here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathFacts {
    /// As it was named.
    pub host: String,
    /// Where a server was looked for.
    pub port: u16,
    /// The address that was tried.
    pub address: Option<String>,
    /// The interface that packets leave by.
    pub interface: Option<String>,
    /// The address that they come from.
    pub source: Option<String>,
    /// The first hop, where the host is not on the interface's own subnet; `null` where it is.
    pub gateway: Option<String>,
    /// Largest packet of that interface in bytes.
    pub mtu_bytes: Option<u32>,
    /// RDMA ports of this host on that way.
    pub rdma: Vec<RdmaOnPath>,
    /// Version of the protocol that a server answered with; `null` where none did.
    pub server_protocol: Option<u32>,
}

/// An RDMA port with an address on the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaOnPath {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// Index in the GID table.
    pub gid_index: u32,
    /// The address there.
    pub address: String,
    /// What the network speaks for it.
    #[serde(rename = "type")]
    pub kind: GidType,
}

impl Checkup {
    /// Nothing found yet.
    pub fn new(core: usize) -> Self {
        Self {
            schema: SCHEMA.into(),
            tool: Tool::new("verbmark"),
            examined_at: timestamp(SystemTime::now()),
            host: None,
            kernel: None,
            core,
            device: None,
            port: None,
            netdev: None,
            findings: Vec::new(),
            jitter: None,
            path: None,
            missing: Vec::new(),
        }
    }

    /// Adds a finding, or that it cannot be told and why.
    pub fn found(&mut self, code: Code, checked: Checked) {
        let (level, seen, remedy) = match checked {
            Ok(verdict) => (verdict.level, Some(verdict.seen), verdict.remedy),
            Err(reason) => {
                self.miss(format!("findings[{}].seen", self.findings.len()), reason);
                (Level::Unknown, None, None)
            }
        };
        self.findings.push(Finding { code, level, seen, effect: code.effect().into(), remedy });
    }

    /// The value, or a note why there is none.
    pub fn keep<T>(&mut self, path: &str, value: Result<T, String>) -> Option<T> {
        value.map_err(|reason| self.miss(path, reason)).ok()
    }

    /// Notes why `path` is `null`.
    pub fn miss(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.missing.push(Missing::new(path, reason));
    }

    /// Findings of this level.
    pub fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }
}
