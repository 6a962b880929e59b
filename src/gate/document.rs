//! The document of a gate: `verbmark.gate/1`, described in `docs/formats.md` and `docs/gate.schema.json`.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Serialize;

use super::compare::{Better, Mismatch};
use super::family;
use super::order::Arm;
use super::verdict::{Judgement, Verdict};
use crate::error::{Error, Kind};
use crate::result::{LimitResult, LimitVerdict, Notice, Point, Status, Tool, Transport, timestamp};
use crate::units::format_size;

/// Name and version of the format.
pub const SCHEMA: &str = "verbmark.gate/1";

/// What a candidate is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// A baseline that was measured in turns with it.
    Turns,
    /// Sittings of the past.
    Sittings,
    /// Limits alone.
    Limits,
    /// Itself, to see how often that fails.
    SelfTest,
    /// Nothing but its limits: it is recorded.
    Record,
}

impl Form {
    /// Two arms take turns, be they one and the same.
    pub fn is_paired(self) -> bool {
        matches!(self, Self::Turns | Self::SelfTest)
    }
}

/// A gate that was run, and what it found.
#[derive(Debug, Clone, Serialize)]
pub struct Gate {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What wrote it.
    pub tool: Tool,
    /// The command line.
    pub command: Vec<String>,
    /// What a user wrote on it with `--label`.
    pub labels: BTreeMap<String, String>,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// How long it took, in seconds.
    pub duration_s: f64,
    /// Whether it came to its end, and what it measured may be trusted.
    pub status: Status,
    /// Why it did not.
    pub error: Option<Error>,
    /// What the candidate was held to.
    pub form: Form,
    /// Of all metrics and limits together; a limit that failed counts as a regression.
    pub verdict: Verdict,
    /// How the process ended.
    pub exit_status: u8,
    /// The suite file; `null` without one.
    pub suite: Option<String>,
    /// What was measured: baseline and candidate, or the candidate alone.
    pub arms: Vec<ArmRecord>,
    /// What the order was drawn from; `null` where there was no order.
    pub seed: Option<u32>,
    /// Which arm ran when, of each test.
    pub order: Vec<Arm>,
    /// The stored sittings, in order.
    pub sittings: Vec<Sitting>,
    /// The tests, in order.
    pub tests: Vec<TestEntry>,
    /// Hard fields in which baseline and candidate differ.
    pub mismatches: Vec<Mismatch>,
    /// Soft fields that do.
    pub differences: Vec<Mismatch>,
    /// Each metric of each point of each test.
    pub series: Vec<Series>,
    /// Each limit at each point of each test.
    pub limits: Vec<LimitOutcome>,
    /// How often a candidate failed against itself; `null` in the other forms.
    pub self_test: Option<SelfTest>,
    /// What a reader should know.
    pub notes: Vec<Notice>,
}

/// One of the two that are compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArmRecord {
    /// Which.
    pub arm: Arm,
    /// What it is called.
    pub name: String,
    /// Variables of the environment that it sets.
    pub environment: BTreeMap<String, String>,
    /// Where its programs lie; `null` for those beside this one.
    pub programs: Option<String>,
    /// Options that it adds.
    pub options: Vec<String>,
    /// Processor time of the whole machine during its runs, in cores; `null` where it was not to be read.
    pub busy_cores: Option<f64>,
    /// Share of that time that the hypervisor took; `null` likewise.
    pub stolen_share: Option<f64>,
}

/// A stored sitting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sitting {
    /// Its directory.
    pub name: String,
    /// RFC 3339, UTC: the start of its first run.
    pub started_at: String,
    /// What its first run was labelled with.
    pub labels: BTreeMap<String, String>,
    /// How many runs it has.
    pub runs: usize,
}

/// One test of the suite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TestEntry {
    /// What it is called, unlike any other.
    pub name: String,
    /// The binary, such as `send_lat`.
    pub binary: String,
    /// Its command lines as they were run, by arm.
    pub commands: BTreeMap<String, Vec<String>>,
    /// Runs of the baseline in this sitting.
    pub runs_a: usize,
    /// Runs of the candidate.
    pub runs_b: usize,
    /// Options and machine of the candidate: the hard fields, by name.
    pub fingerprint: BTreeMap<String, String>,
    /// Why it was not measured to its end.
    pub error: Option<Error>,
}

/// One metric of one point of one test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// Name of the test.
    pub test: String,
    /// Id of the candidate's point.
    pub id: String,
    /// The path.
    pub transport: Transport,
    /// What was varied.
    pub point: Point,
    /// Unit of the values and medians.
    pub unit: &'static str,
    /// The direction that is an improvement.
    pub better: Better,
    /// Metric, verdict, and the numbers behind it.
    #[serde(flatten)]
    pub judgement: Judgement,
    /// One value a run of the baseline; of stored sittings a list for each of [`Gate::sittings`], in their order, empty
    /// where that one lacks the metric.
    pub values_a: Vec<Vec<f64>>,
    /// One value a run of the candidate.
    pub values_b: Vec<f64>,
    /// The verdict in one line, for people.
    pub message: String,
}

impl Series {
    /// The same metric of the same point of the same test.
    pub fn is_same(&self, other: &Self) -> bool {
        self.test == other.test && self.id == other.id && self.judgement.metric == other.judgement.metric
    }

    /// What was measured, in words: `send_lat 64 B rdma`.
    pub fn title(&self) -> String {
        format!("{} {} {}", self.test, format_size(self.point.size_bytes), self.transport.name())
    }
}

/// A limit at one point of a test: the median of its runs beside the bound.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitOutcome {
    /// Name of the test.
    pub test: String,
    /// Runs that were held to it.
    pub runs: usize,
    /// What became of it.
    #[serde(flatten)]
    pub result: LimitResult,
}

/// A candidate against itself, many times.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SelfTest {
    /// How many times.
    pub rounds: usize,
    /// Each metric of each point: one for each of [`Gate::series`].
    pub series: Vec<SelfTestSeries>,
}

/// How one metric behaved where nothing changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SelfTestSeries {
    /// Name of the test.
    pub test: String,
    /// Id of the point.
    pub id: String,
    /// What was compared, as [`Judgement::metric`].
    pub metric: crate::result::Quantity,
    /// Rounds by verdict.
    pub verdicts: BTreeMap<Verdict, usize>,
    /// Standard deviation of runs as a share of their mean, the largest of a round.
    pub cv: Option<f64>,
    /// The change that was found in each round, B / A, where there was none.
    pub ratios: Vec<f64>,
    /// The least tolerance, as a share, beyond which no round's change lay.
    pub tolerance: Option<f64>,
    /// The worsening, as a share, that 95 of 100 gates would have found in the worst round.
    pub must_detect: Option<f64>,
    /// What a suite should tolerate, as a share: [`Self::tolerance`] in whole percent, and no less than is usual. `None`
    /// where nothing was compared, or runs scatter more than any rule can allow for.
    pub suggested_tolerance: Option<f64>,
    /// What a suite should say must be detected: [`Self::must_detect`] likewise, and above the tolerance. `None` also where
    /// runs were too few for it.
    pub suggested_must_detect: Option<f64>,
}

impl SelfTestSeries {
    /// It tells of the same metric of the same point of the same test.
    pub fn is_of(&self, series: &Series) -> bool {
        self.test == series.test && self.id == series.id && self.metric == series.judgement.metric
    }
}

impl Gate {
    /// One that has just begun.
    pub fn new(form: Form, command: Vec<String>) -> Self {
        Self {
            schema: SCHEMA,
            tool: Tool::new("verbmark"),
            command,
            labels: BTreeMap::new(),
            started_at: timestamp(SystemTime::now()),
            duration_s: 0.0,
            status: Status::Ok,
            error: None,
            form,
            verdict: Verdict::NotComparable,
            exit_status: 0,
            suite: None,
            arms: Vec::new(),
            seed: None,
            order: Vec::new(),
            sittings: Vec::new(),
            tests: Vec::new(),
            mismatches: Vec::new(),
            differences: Vec::new(),
            series: Vec::new(),
            limits: Vec::new(),
            self_test: None,
            notes: Vec::new(),
        }
    }

    /// Ends it with an error, of which the first stands. What was measured before stands, too.
    pub fn fail(&mut self, error: Error) {
        if self.error.is_none() {
            self.status = if error.kind == Kind::Interrupted { Status::Interrupted } else { Status::Failed };
            self.error = Some(error);
        }
    }

    /// Something of it could not be written: one that passed fails. What was found otherwise is the more important.
    pub fn unwritten(&mut self, error: Error) {
        if self.exit_status == 0 {
            self.exit_status = error.exit_status();
        }
        self.fail(error);
    }

    /// Adds what a reader should know, once.
    pub fn note(&mut self, code: &str, message: impl Into<String>) {
        let notice = Notice { code: code.into(), message: message.into() };
        if !self.notes.contains(&notice) {
            self.notes.push(notice);
        }
    }

    /// Draws the conclusion: verdict and exit status.
    pub fn conclude(&mut self, strict: bool) {
        let of_limit = |limit: &LimitOutcome| match limit.result.verdict {
            LimitVerdict::Pass => Verdict::Pass,
            LimitVerdict::Fail => Verdict::Regression,
            LimitVerdict::NotEvaluated => Verdict::Invalid,
        };
        let spoilt = self.tests.iter().filter(|test| test.error.is_some()).map(|_| Verdict::Invalid);
        let others = self.limits.iter().map(of_limit).chain(spoilt);
        let judged = family::overall(self.series.iter().map(|series| &series.judgement));
        // What was not asked for is not missed, and what ended early has not been found to differ.
        let asks_for_limits_alone = matches!(self.form, Form::Limits | Form::Record);
        let judged = match self.series.is_empty() {
            true if asks_for_limits_alone && !self.limits.is_empty() => None,
            true if self.error.is_some() => Some(Verdict::Inconclusive),
            _ => Some(judged),
        };
        let unlike = self.mismatches.iter().filter(|mismatch| !mismatch.allowed);
        let unlike = unlike.map(|_| Verdict::NotComparable);
        self.verdict = family::worst(others.chain(judged).chain(unlike)).unwrap_or(Verdict::NotComparable);
        if self.verdict == Verdict::Invalid && self.error.is_none() {
            self.status = Status::Invalid;
        }
        self.exit_status = match &self.error {
            Some(error) => error.exit_status(),
            None => self.verdict.exit_status(strict),
        };
    }

    /// What a job fails for, the worst first: regressions by how far they are, failed limits, tests that could not be
    /// measured, then what could not be judged.
    pub fn troubles(&self) -> Vec<Trouble<'_>> {
        let is_trouble = |found: &Judgement| !found.advisory && found.verdict.is_trouble();
        let of_series = self.series.iter().filter(|series| is_trouble(&series.judgement)).map(|series| {
            let rank = match series.judgement.verdict {
                Verdict::Regression => 0,
                Verdict::Invalid => 2,
                _ => 3,
            };
            (rank, Trouble::Series(series))
        });
        let of_limits = self.limits.iter().filter(|limit| limit.result.verdict != LimitVerdict::Pass);
        let of_limits = of_limits.map(|limit| (1 + limit.result.verdict.rank(), Trouble::Limit(limit)));
        let of_tests = self.tests.iter().filter(|test| test.error.is_some());
        let of_tests = of_tests.map(|test| (2, Trouble::Test(test)));
        let mut troubles: Vec<_> = of_series.chain(of_limits).chain(of_tests).collect();
        troubles.sort_by(|(one, a), (other, b)| one.cmp(other).then(b.size().total_cmp(&a.size())));
        troubles.into_iter().map(|(_, trouble)| trouble).collect()
    }
}

/// What a job fails for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trouble<'a> {
    /// A metric.
    Series(&'a Series),
    /// A limit.
    Limit(&'a LimitOutcome),
    /// A test that could not be measured to its end.
    Test(&'a TestEntry),
}

impl Trouble<'_> {
    /// How far it is off, in percent.
    fn size(&self) -> f64 {
        match self {
            Self::Series(series) => series.judgement.ratio.map_or(0.0, |ratio| 100.0 * (ratio - 1.0).abs()),
            Self::Limit(limit) => limit.result.by_percent.unwrap_or(0.0),
            // Before the metrics that it spoilt.
            Self::Test(_) => f64::INFINITY,
        }
    }
}
