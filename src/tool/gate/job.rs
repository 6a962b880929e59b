//! One gate from its plan to its document: sittings are measured, or read, and judged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::cli::tool::GateArgs;
use crate::error::{Error, Result};
use crate::gate::compare::{EMULATED, UNOPTIMISED};
use crate::gate::document::{Form, Gate, TestEntry};
use crate::gate::fingerprint::Field;
use crate::gate::limit;
use crate::gate::output::words;
use crate::gate::sample::{Runs, joined};
use crate::gate::series::{Gathered, POINTS};
use crate::gate::stored::lost;
use crate::gate::{Arm, Verdict, order};
use crate::suite as binaries;
use crate::units::counted;

use super::baseline::Baseline;
use super::candidate::Candidate;
use super::draft::PlannedTest;
use super::plan::Plan;
use super::self_test;
use super::sitting::{Sitting, say};

/// What is done, and with what.
pub struct Job<'a> {
    /// The options.
    pub args: &'a GateArgs,
    /// What was decided.
    pub plan: &'a Plan,
    /// The stored sittings.
    pub baseline: &'a Baseline,
    /// Where documents are kept.
    pub directory: Option<PathBuf>,
    /// A person wants it to end.
    pub signalled: &'a AtomicBool,
}

impl<'a> Job<'a> {
    /// Holds the candidate to what it must keep.
    pub fn hold(&self, candidate: Option<Candidate>, seed: u32) -> Gate {
        let began = Instant::now();
        let mut gate = self.begin();
        let outcome = match (self.plan.form, candidate) {
            (Form::SelfTest, _) => self.against_itself(&mut gate, seed),
            (Form::Turns, _) => self.in_turns(&mut gate, seed),
            (Form::Sittings, _) if self.lacks_baseline() => {
                self.without_baseline(&mut gate);
                Ok(())
            }
            (Form::Sittings, Some(candidate)) => {
                self.measured_already(&mut gate, candidate);
                Ok(())
            }
            (Form::Sittings | Form::Record, _) => self.new_sitting(&mut gate),
            (Form::Limits, _) => self.limits(&mut gate),
        };
        if let Err(error) = outcome {
            gate.fail(error);
        }
        gate.duration_s = began.elapsed().as_secs_f64();
        gate.conclude(self.args.output.strict);
        gate
    }

    /// A gate that ends before anything is held to anything.
    pub fn refuse(&self, error: Error) -> Gate {
        let mut gate = self.begin();
        gate.fail(error);
        gate.conclude(self.args.output.strict);
        gate
    }

    fn begin(&self) -> Gate {
        let mut gate = Gate::new(self.plan.form, binaries::command_line());
        gate.labels = self.args.output.labels.iter().cloned().collect();
        gate.suite = self.args.suite.as_ref().map(|path| path.display().to_string());
        gate.arms = self.plan.arms.clone();
        gate.sittings = self.baseline.sittings.iter().map(|stored| stored.facts.clone()).collect();
        for other in &self.baseline.others {
            gate.note("no_sitting", format!("{other} in the baseline holds no document: left out"));
        }
        gate.notes.extend(self.plan.notes.iter().cloned());
        gate
    }

    /// There is no stored sitting, and this one will not be the first.
    fn lacks_baseline(&self) -> bool {
        self.baseline.sittings.is_empty() && !self.plan.asked.may_be_first
    }

    fn without_baseline(&self, gate: &mut Gate) {
        let directory = self.args.arms.baseline.as_deref().unwrap_or(Path::new(""));
        let message = format!(
            "there is no stored sitting in {}, and nothing was measured: --record adds one",
            directory.display()
        );
        gate.note("no_baseline", message);
    }

    /// A sitting whose runs are numbered after so many.
    fn sitting(&self, runs: usize) -> Sitting<'a> {
        Sitting::new(self.plan, self.directory.as_deref(), self.signalled, runs)
    }

    fn in_turns(&self, gate: &mut Gate, seed: u32) -> Result<()> {
        gate.seed = Some(seed);
        let mut sitting = self.sitting(0);
        let outcome = take_turns(self.plan, &mut sitting, seed);
        gate.order = sitting.order.clone();
        let gathered = gather(self.plan, &sitting);
        self.conclude(gate, &sitting, gathered, outcome.is_ok());
        outcome
    }

    fn new_sitting(&self, gate: &mut Gate) -> Result<()> {
        let mut sitting = self.sitting(0);
        let outcome = self.one_after_the_other(&mut sitting, gate);
        let stored = self.stored();
        let mut gathered = Gathered::default();
        for (planned, measured) in self.plan.tests.iter().zip(&sitting.tests) {
            match &measured.error {
                Some(error) => gathered.spoilt(&planned.asked, &measured.b, &error.to_string()),
                None => gathered.against_sittings(&planned.asked, &stored, &measured.b),
            }
        }
        // A suite may have become smaller, and who reads the verdict should know.
        let new: Vec<_> = sitting.tests.iter().map(|measured| &measured.b).collect();
        let latest = self.baseline.latest().filter(|_| outcome.is_ok());
        let is_planned = |test: &str| self.plan.tests.iter().any(|planned| planned.asked.test == test);
        let lost = latest.map(|latest| lost(latest, &new)).unwrap_or_default();
        // One that failed to be measured is told elsewhere.
        for lone in lost.into_iter().filter(|lone| lone.id.is_some() || !is_planned(&lone.test)) {
            let what = lone.id.as_deref().map_or_else(|| "all of it".into(), words::point);
            gate.note("lost", format!("only the last stored sitting has {}: {what}", lone.test));
        }
        self.conclude(gate, &sitting, gathered, outcome.is_ok());
        outcome
    }

    fn stored(&self) -> Vec<&Runs> {
        self.baseline.sittings.iter().map(|stored| &stored.runs).collect()
    }

    fn measured_already(&self, gate: &mut Gate, candidate: Candidate) {
        if let Some(first) = candidate.first {
            gate.started_at = first.started_at;
            // What was typed now is the later word.
            first.labels.into_iter().for_each(|(key, value)| {
                gate.labels.entry(key).or_insert(value);
            });
        }
        let stored = self.stored();
        let mut gathered = Gathered::default();
        gathered.mismatches.extend(candidate.lost);
        for (asked, runs) in &candidate.tests {
            gathered.against_sittings(asked, &stored, runs);
            let binary = runs.tests.first().map(|test| test.binary.clone()).unwrap_or_default();
            let entry = entry(asked.test.clone(), binary, &Runs::default(), runs);
            // A test that was one of several knows of all their runs.
            gate.tests.push(TestEntry { runs_b: runs.most_of_a_point(), ..entry });
        }
        self.judge(gate, gathered, true);
    }

    fn limits(&self, gate: &mut Gate) -> Result<()> {
        let mut sitting = self.sitting(0);
        let outcome = self.one_after_the_other(&mut sitting, gate);
        let mut gathered = Gathered::default();
        sitting.tests.iter().for_each(|measured| gathered.observe(&measured.b));
        self.conclude(gate, &sitting, gathered, outcome.is_ok());
        outcome
    }

    /// Every test as often as a sitting has runs. A round of all before the next, so that what disturbs for a while
    /// disturbs a run of each and not all of one.
    fn one_after_the_other(&self, sitting: &mut Sitting<'_>, gate: &mut Gate) -> Result<()> {
        let (tests, runs) = (self.plan.tests.len(), self.plan.runs);
        sitting.say(&format!("{}, {} each", counted(tests, "test"), counted(runs, "run")));
        let outcome = (0..runs).try_for_each(|_| sitting.round(&[Arm::B], |_| true));
        gate.order = sitting.order.clone();
        outcome
    }

    fn against_itself(&self, gate: &mut Gate, seed: u32) -> Result<()> {
        gate.seed = Some(seed);
        let mut rounds = Vec::new();
        let mut outcome = Ok(());
        let mut runs = 0;
        for round in 0..self.plan.rounds {
            say(&format!("round {} of {}", round + 1, self.plan.rounds));
            let mut sitting = self.sitting(runs);
            outcome = take_turns(self.plan, &mut sitting, seed.wrapping_add(round as u32));
            runs = sitting.count;
            if outcome.is_err() {
                break;
            }
            // The last round stands for all, besides the table of them, and what went wrong in another.
            let before = std::mem::take(&mut gate.tests);
            gate.order = sitting.order.clone();
            self.conclude(gate, &sitting, gather(self.plan, &sitting), true);
            for (test, before) in gate.tests.iter_mut().zip(before) {
                test.error = before.error.or(test.error.take());
                test.runs_a += before.runs_a;
                test.runs_b += before.runs_b;
            }
            rounds.push(std::mem::take(&mut gate.series));
        }
        gate.mismatches.clear();
        gate.differences.clear();
        let found = self_test::summary(&rounds);
        gate.series = self_test::worst(rounds);
        gate.limits = self_test::worst_limits(std::mem::take(&mut gate.limits));
        gate.self_test = Some(found);
        outcome
    }

    /// What was measured, and what follows from it.
    fn conclude(&self, gate: &mut Gate, sitting: &Sitting<'_>, gathered: Gathered, last: bool) {
        for arm in &mut gate.arms {
            sitting.describe(arm);
        }
        for (planned, measured) in self.plan.tests.iter().zip(&sitting.tests) {
            let (name, binary) = (planned.asked.test.clone(), planned.b.name().into_owned());
            let mut entry = entry(name, binary, &measured.a, &measured.b);
            entry.commands = commands(planned);
            entry.error = measured.error.clone();
            gate.tests.push(entry);
            gate.limits.extend(match measured.error.is_some() && measured.limits.is_empty() {
                true => {
                    let typed = planned.b.limits();
                    let limits: Vec<_> = typed.iter().filter_map(|limit| limit.parse().ok()).collect();
                    limit::of_none(&planned.asked.test, &limits)
                }
                false => limit::over_runs(&planned.asked.test, &measured.limits),
            });
        }
        self.judge(gate, gathered, last);
    }

    fn judge(&self, gate: &mut Gate, mut gathered: Gathered, last: bool) {
        gate.mismatches = std::mem::take(&mut gathered.mismatches);
        if !last {
            // What has not run yet is not lacking.
            gate.mismatches.retain(|mismatch| mismatch.field != POINTS);
        }
        gate.differences = std::mem::take(&mut gathered.differences);
        if gathered.is_emulated {
            gate.note("emulated", EMULATED);
        }
        if gathered.is_unoptimised {
            gate.note("unoptimised", UNOPTIMISED);
        }
        for what in gathered.unmeasured.drain(..) {
            gate.note("unmeasured", format!("{what} is not judged: runs are too short for it (-D, -n)"));
        }
        for lone in gathered.uncompared.drain(..) {
            let what = lone.id.as_deref().map_or_else(|| "all of it".into(), words::point);
            gate.note("uncompared", format!("only the candidate has {}: {what}", lone.test));
        }
        for left_out in gathered.left_out.drain(..) {
            let names: Vec<_> =
                left_out.sittings.iter().map(|&at| self.baseline.sittings[at].facts.name.as_str()).collect();
            let (test, reason) = (left_out.test, left_out.reason);
            let message = match &names[..] {
                [name] => format!("{test} is not held to the sitting {name}: {reason}"),
                _ => format!(
                    "{test} is not held to {} sittings, the last {}: {reason}",
                    names.len(),
                    names[names.len() - 1]
                ),
            };
            gate.note("left_out", message);
        }
        gate.series = gathered.judge(last);
    }
}

/// Both arms in turns: all tests before the first look, and after it those that are open.
fn take_turns(plan: &Plan, sitting: &mut Sitting<'_>, seed: u32) -> Result<()> {
    let Plan { first_look, last_look, .. } = *plan;
    let order = order(seed.into(), last_look);
    let mut pairs = order.chunks(2);
    let tests = plan.tests.len();
    let pairs_shown = match first_look == last_look {
        true => format!("{first_look} pairs"),
        false => format!("{first_look} to {last_look} pairs"),
    };
    sitting.say(&format!("{}, {pairs_shown}", counted(tests, "test")));
    pairs.by_ref().take(first_look).try_for_each(|pair| sitting.round(pair, |_| true))?;
    if first_look == last_look {
        return Ok(());
    }
    let series = gather(plan, sitting).judge(false);
    let is_open = |test: usize| {
        let of_test = series.iter().filter(|series| series.test == plan.tests[test].asked.test);
        of_test
            .filter(|series| !series.judgement.advisory)
            .any(|series| matches!(series.judgement.verdict, Verdict::Inconclusive | Verdict::Regression))
    };
    let open: Vec<bool> = (0..tests).map(is_open).collect();
    let left = open.iter().filter(|is_open| **is_open).count();
    if left == 0 {
        let failed = sitting.tests.iter().filter(|measured| measured.error.is_some()).count();
        if failed < tests {
            sitting.say(&format!("{} decided after {first_look} pairs", counted(tests - failed, "test")));
        }
        return Ok(());
    }
    sitting.say(&format!("{left} of {} open after {first_look} pairs", counted(tests, "test")));
    pairs.try_for_each(|pair| sitting.round(pair, |test| open[test]))
}

fn gather(plan: &Plan, sitting: &Sitting<'_>) -> Gathered {
    let mut gathered = Gathered::default();
    for (planned, measured) in plan.tests.iter().zip(&sitting.tests) {
        let both = measured.a.count().min(measured.b.count()) > 0;
        match &measured.error {
            Some(error) => gathered.spoilt(&planned.asked, &measured.b, &error.to_string()),
            None if both => gathered.in_turns(&planned.asked, &measured.a, &measured.b),
            None => {}
        }
    }
    gathered
}

/// A test as the document has it.
fn entry(name: String, binary: String, a: &Runs, b: &Runs) -> TestEntry {
    let test = b.tests.first();
    let named = |field: &Field| match field.end {
        Some(end) => format!("{end}.{}", field.name),
        None => field.name.to_string(),
    };
    let options = test.into_iter().flat_map(|test| &test.options);
    let options = options.map(|(field, value)| (named(field), value.clone()));
    let environment = test.into_iter().flat_map(|test| &test.environment.0);
    let environment = environment.map(|(field, met)| (named(field), joined(met)));
    TestEntry {
        name,
        binary,
        commands: BTreeMap::new(),
        runs_a: a.count(),
        runs_b: b.count(),
        fingerprint: options.chain(environment).collect(),
        error: None,
    }
}

/// The command lines of a test, by arm.
fn commands(planned: &PlannedTest) -> BTreeMap<String, Vec<String>> {
    let a = planned.a.iter().map(|a| ("a".to_owned(), a.command()));
    a.chain([("b".to_owned(), planned.b.command())]).collect()
}
