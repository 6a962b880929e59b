//! The document itself, from the first moment of a run to its end.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{
    Claims, Comparison, End, LimitResult, LimitVerdict, ResultRow, TestRecord, comparison, run_id, timestamp,
};
use crate::error::{Error, Kind};
use crate::plan::Side;

/// Name and version of the format.
pub const SCHEMA: &str = "verbmark.result/1";

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As asked.
    Ok,
    /// Measured, but a number must not be trusted.
    Invalid,
    /// Device, peer or network failed; what was measured before stands.
    Failed,
    /// Stopped by a signal; what was measured before stands.
    Interrupted,
}

impl From<Kind> for Status {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Usage | Kind::Failed => Self::Failed,
            Kind::Invalid => Self::Invalid,
            Kind::Interrupted => Self::Interrupted,
        }
    }
}

/// What wrote a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// `verbmark`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The binary, such as `send_lat`.
    pub binary: String,
}

impl Tool {
    /// This version's `binary`.
    pub fn new(binary: impl Into<String>) -> Self {
        Self { name: "verbmark".into(), version: env!("CARGO_PKG_VERSION").into(), binary: binary.into() }
    }
}

/// A value that could not be had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Where it would stand, such as `results[0].latency_ns.p99_99`; `[]` means every element.
    pub path: String,
    /// Why it is not there, one line.
    pub reason: String,
}

/// Something a reader should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Name that programs may match, such as `preempted`.
    pub code: String,
    /// One line for people.
    pub message: String,
}

/// What this tool would measure where there is no network at all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// A cache line bounced from one measuring core to the other and back, halved.
    pub core_to_core_ns: Option<f64>,
    /// One turn of the measuring loop around an operation that does nothing.
    pub loop_ns: Option<f64>,
}

/// One run: what was asked, on what, what was measured, and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: String,
    /// What wrote it.
    pub tool: Tool,
    /// The command line.
    pub command: Vec<String>,
    /// 128 random bits in hexadecimal, the same at both ends.
    pub run_id: String,
    /// What the user called the run.
    pub labels: BTreeMap<String, String>,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// How it ended.
    pub status: Status,
    /// Why it ended before its end.
    pub error: Option<Error>,
    /// Values that could not be had.
    pub missing: Vec<Missing>,
    /// What disturbed the run; it stands all the same.
    pub warnings: Vec<Notice>,
    /// What explains the numbers.
    #[serde(default)]
    pub notes: Vec<Notice>,
    /// The test; `null` when none was agreed.
    pub test: Option<TestRecord>,
    /// The end that wrote this; `null` until its device was opened.
    pub local: Option<End>,
    /// The other end; `null` until it was heard of.
    pub remote: Option<End>,
    /// Both ends run on one host; `null` until it can be told.
    pub same_host: Option<bool>,
    /// The tool's own floor, measured on the same cores; `null` when it was not.
    #[serde(default)]
    pub floor: Option<Floor>,
    /// What was measured, in order.
    pub results: Vec<ResultRow>,
    /// RDMA beside TCP.
    pub comparison: Vec<Comparison>,
    /// What the run may be quoted for.
    pub claims: Claims,
    /// What became of the limits it was held to, at every point; empty without any.
    #[serde(default)]
    pub limits: Vec<LimitResult>,
}

impl Document {
    /// A run that starts now. Its status is `ok` until something says otherwise.
    pub fn new(tool: Tool, command: Vec<String>, labels: BTreeMap<String, String>) -> Self {
        Self {
            schema: SCHEMA.into(),
            tool,
            command,
            run_id: run_id(),
            labels,
            started_at: timestamp(SystemTime::now()),
            status: Status::Ok,
            error: None,
            missing: Vec::new(),
            warnings: Vec::new(),
            notes: Vec::new(),
            test: None,
            local: None,
            remote: None,
            same_host: None,
            floor: None,
            results: Vec::new(),
            comparison: Vec::new(),
            claims: Claims::of(None, None),
            limits: Vec::new(),
        }
    }

    /// A run that ended before anything was measured.
    pub fn failed(tool: Tool, command: Vec<String>, labels: BTreeMap<String, String>, error: Error) -> Self {
        let mut document = Self::new(tool, command, labels);
        document.fail(error);
        document
    }

    /// Ends the run with an error. The first one stays: what follows is its consequence.
    pub fn fail(&mut self, error: Error) {
        if self.error.is_none() {
            self.status = error.kind.into();
            self.error = Some(error);
        }
    }

    /// Says why a value is `null`. A path is said once.
    pub fn miss(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        let missing = Missing { path: path.into(), reason: reason.into() };
        if !self.missing.iter().any(|known| known.path == missing.path) {
            self.missing.push(missing);
        }
    }

    /// Warns. The same warning is given once.
    pub fn warn(&mut self, code: impl Into<String>, message: impl Into<String>) {
        let warning = Notice { code: code.into(), message: message.into() };
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Explains. The same note is given once.
    pub fn note(&mut self, code: impl Into<String>, message: impl Into<String>) {
        let note = Notice { code: code.into(), message: message.into() };
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds what was measured, and says why percentiles it does not have are missing.
    pub fn add_row(&mut self, row: ResultRow) {
        let index = self.results.len();
        for (name, value) in row.latency_ns.iter().flat_map(|latency| latency.percentiles()) {
            if value.is_none() {
                self.miss(
                    format!("results[{index}].latency_ns.{name}"),
                    "fewer than 10 samples lie beyond it",
                );
            }
        }
        if self.test.as_ref().is_some_and(|test| test.cpu_report) {
            self.miss_of_report(index, &row);
        }
        for (name, reason) in row.absent() {
            self.miss(format!("results[{index}].{name}"), reason);
        }
        self.results.push(row);
    }

    /// Says what a full report of CPU lacks.
    fn miss_of_report(&mut self, index: usize, row: &ResultRow) {
        for (end, cpu) in [("client", row.cpu.client), ("server", row.cpu.server)] {
            let Some(cpu) = cpu else { continue };
            for (name, has, reason) in [
                ("system_calls", cpu.system_calls.is_some(), "the `evidence` of that end says why"),
                (
                    "machine",
                    cpu.machine.is_some(),
                    "the phase was shorter than ten ticks, or /proc/stat cannot be read",
                ),
            ] {
                if !has {
                    self.miss(format!("results[{index}].cpu.{end}.{name}"), reason);
                }
            }
        }
    }

    /// Draws the conclusions from ends and rows: comparison, claims, and the status of a run with an invalid row. May be
    /// called again after more was added.
    pub fn finish(&mut self) {
        let emulated = self.is_emulated();
        self.comparison = comparison(&self.results, emulated);
        self.claims = Claims::of(self.local.as_ref(), self.remote.as_ref());
        if emulated && !self.comparison.is_empty() {
            self.miss(
                "comparison[].tcp_over_rdma",
                "numbers of an emulated device measure this tool, not a network",
            );
        }
        if self.status == Status::Ok && self.results.iter().any(|row| !row.validity.ok) {
            self.status = Status::Invalid;
        }
    }

    /// The end that had this part; `None` until it was known.
    pub fn end(&self, side: Side) -> Option<&End> {
        [&self.local, &self.remote].into_iter().flatten().find(|end| end.side == side)
    }

    /// Either end used the emulated device.
    pub fn is_emulated(&self) -> bool {
        let ends = [&self.local, &self.remote];
        ends.into_iter().flatten().filter_map(|end| end.device.as_ref()).any(|device| device.is_emulated())
    }

    /// Exit status of the process that made it: 0, 1, 2, 5 or 130. What the limits say counts only for a run that can be
    /// trusted: 1 where one failed, else 5 where one could not be judged.
    pub fn exit_status(&self) -> u8 {
        let any = |verdict| self.limits.iter().any(|limit| limit.verdict == verdict);
        match (&self.error, self.status) {
            (Some(error), _) => error.exit_status(),
            (None, Status::Ok) if any(LimitVerdict::Fail) => 1,
            (None, Status::Ok) if any(LimitVerdict::NotEvaluated) => 5,
            (None, Status::Ok) => 0,
            (None, Status::Invalid | Status::Failed) => 5,
            (None, Status::Interrupted) => 130,
        }
    }

    /// Reads a document of this format; keys it does not know are ignored.
    ///
    /// # Errors
    /// The text is not JSON, or another format, or a required value is absent.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        /// The format is told first, so that a document of another version is not called broken.
        #[derive(Deserialize)]
        struct Named {
            schema: Option<String>,
        }
        let not_ours = |cause: String| Error::usage(format!("not a {SCHEMA} document: {cause}"));
        let named: Named = serde_json::from_str(text).map_err(|e| not_ours(e.to_string()))?;
        match named.schema.as_deref() {
            Some(SCHEMA) => serde_json::from_str(text).map_err(|e| not_ours(e.to_string())),
            Some(other) => Err(not_ours(format!("its schema is '{other}'"))),
            None => Err(not_ours("it names no schema".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Step;
    use crate::measure::LatencyHistogram;
    use crate::result::{Basis, Direction, Point, Transport, Wait};

    const POINT: Point = Point {
        size_bytes: 64,
        qps: 1,
        depth: 1,
        threads: 1,
        wait: Wait::Busy,
        direction: Direction::Unidirectional,
        offered_per_s: None,
    };

    fn document() -> Document {
        Document::new(Tool::new("send_lat"), vec!["send_lat".into()], BTreeMap::new())
    }

    #[test]
    fn the_first_error_decides_status_and_exit() {
        for (error, status, exit) in [
            (Error::failed(Step::Connect, "refused"), Status::Failed, 5),
            (Error::invalid(Step::Verify, "wrong payload"), Status::Invalid, 5),
            (Error::interrupted(Step::Measure), Status::Interrupted, 130),
            (Error::usage("refused by the server"), Status::Failed, 2),
        ] {
            let mut document = document();
            document.fail(error.clone());
            document.fail(Error::failed(Step::Results, "a consequence"));
            assert_eq!((document.status, document.exit_status()), (status, exit), "{error}");
            assert_eq!(document.error, Some(error));
        }
        assert_eq!(document().exit_status(), 0);
    }

    #[test]
    fn notices_are_given_once() {
        let mut document = document();
        for _ in 0..2 {
            document.warn("preempted", "core 3 was preempted");
            document.note("same_host", "one host");
            document.miss("local.governor", "no cpufreq");
        }
        assert_eq!((document.warnings.len(), document.notes.len(), document.missing.len()), (1, 1, 1));
    }

    #[test]
    fn a_percentile_that_is_null_has_its_reason() {
        let mut histogram = LatencyHistogram::new();
        (0..1_000).for_each(|_| histogram.record(100));
        let row =
            ResultRow::new(Transport::Rdma, POINT, Side::Client).with_latency(&histogram, Basis::RoundTrip);
        let mut document = document();
        document.add_row(row.clone());
        document.add_row(row);
        let paths: Vec<_> = document.missing.iter().map(|missing| missing.path.as_str()).collect();
        let paths: Vec<_> = paths.into_iter().filter(|path| path.contains("latency_ns")).collect();
        let expected: Vec<_> = (0..2)
            .flat_map(|i| ["p99_9", "p99_99"].map(|name| format!("results[{i}].latency_ns.{name}")))
            .collect();
        assert_eq!(paths, expected);
    }

    #[test]
    fn an_invalid_row_makes_the_run_invalid_but_hides_no_error() {
        let run = |error: Option<Error>| {
            let mut document = document();
            let mut row = ResultRow::new(Transport::Rdma, POINT, Side::Client);
            row.validity.invalid("counts wrong");
            document.add_row(row);
            error.into_iter().for_each(|error| document.fail(error));
            document.finish();
            document.status
        };
        assert_eq!(run(None), Status::Invalid);
        assert_eq!(run(Some(Error::interrupted(Step::Measure))), Status::Interrupted);
    }

    #[test]
    fn another_format_is_refused_by_name() {
        let mut value = serde_json::to_value(document()).unwrap();
        value["schema"] = "verbmark.result/2".into();
        value["from_the_future"] = 1.into();
        let error = Document::from_json(&value.to_string()).unwrap_err();
        assert!(error.message.contains("'verbmark.result/2'"), "{error}");
        value["schema"] = SCHEMA.into();
        assert!(Document::from_json(&value.to_string()).is_ok(), "unknown keys are ignored");
        for text in ["", "{}", "[]", "null", "{\"schema\":\"verbmark.result/1\"}"] {
            assert!(Document::from_json(text).is_err(), "{text}");
        }
    }
}
