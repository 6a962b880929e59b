//! `verbmark gate`: is a candidate slower than its baseline, by more than anybody would accept? The exit status decides.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::cli::tool::GateArgs;
use crate::error::{Error, Kind, Result};
use crate::gate::baseline::FEWEST_SITTINGS;
use crate::gate::compare::{EMULATED, UNOPTIMISED};
use crate::gate::document::{Form, Gate, TestEntry};
use crate::gate::fingerprint::Field;
use crate::gate::limit::over_runs;
use crate::gate::output::words;
use crate::gate::sample::{Met, Runs};
use crate::gate::series::Gathered;
use crate::gate::{Arm, Verdict, order};
use crate::suite as binaries;

mod baseline;
mod outputs;
mod plan;
mod self_test;
mod sitting;
mod suite;
mod table;

pub use plan::{Plan, PlannedTest};
pub use suite::Suite;
pub use table::render;

use baseline::{Stored, Unfinished};
use outputs::Outputs;
use sitting::{Sitting, say};

/// Gates, and gives the exit status.
///
/// # Errors
/// The options, the suite or the baseline are no use, nothing could be measured, or an output cannot be written.
pub fn run(args: &GateArgs) -> Result<u8> {
    let outputs = Outputs::open(&args.output)?;
    let plan = Plan::new(args)?;
    if args.measuring.dry_run {
        return outputs.show(&table::preview(&plan)).map(|()| 0);
    }
    if plan.form.is_none() && !outputs.are_none() {
        return Err(Error::usage("--record alone judges nothing, and there is nothing to write")
            .with_remedy("leave the outputs away, or hold the sitting to stored ones with --baseline"));
    }
    let stored = args.arms.baseline.as_deref().map(baseline::stored).transpose()?.unwrap_or_default();
    let unfinished = args.arms.record.as_deref().map(Unfinished::begin).transpose()?;
    let directory = match (&unfinished, &args.measuring.keep) {
        (Some(unfinished), _) => Some(unfinished.path().to_path_buf()),
        (None, Some(directory)) => Some(create(directory)?),
        (None, None) => None,
    };
    let job = Job { args, plan: &plan, stored: &stored, directory, signalled: binaries::catch_signals()? };
    let Some(form) = plan.form else { return job.record(unfinished) };

    let seed = match args.measuring.seed {
        Some(seed) => seed,
        None => binaries::random_seed()? as u32,
    };
    let gate = job.hold(form, seed)?;
    let shown = outputs.show(&render(&gate, binaries::width()));
    let added = unfinished.map_or(Ok(()), |unfinished| add_unless_worse(&gate, unfinished));
    let written = outputs.write(&gate);
    if let Some(error) = &gate.error {
        binaries::complain(error);
    }
    match shown.and(added).and(written) {
        Ok(()) => Ok(gate.exit_status),
        // What was found is the more important.
        Err(error) if gate.exit_status == 0 => Err(error),
        Err(error) => {
            binaries::complain(&error);
            Ok(gate.exit_status)
        }
    }
}

/// What is done, and with what.
struct Job<'a> {
    args: &'a GateArgs,
    plan: &'a Plan,
    stored: &'a [Stored],
    directory: Option<PathBuf>,
    signalled: &'a AtomicBool,
}

impl<'a> Job<'a> {
    /// Measures a sitting and adds it to its baseline.
    fn record(&self, unfinished: Option<Unfinished>) -> Result<u8> {
        let mut sitting = self.sitting();
        let mut gate = Gate::new(Form::Sittings, binaries::command_line());
        self.one_after_the_other(&mut sitting, &mut gate)?;
        if let Some(error) = sitting.tests.into_iter().find_map(|test| test.error) {
            return Err(error);
        }
        let Some(unfinished) = unfinished else { return Ok(0) };
        add(&gate.started_at, unfinished).map(|()| 0)
    }

    /// Holds the candidate to what it must keep.
    fn hold(&self, form: Form, seed: u32) -> Result<Gate> {
        let began = Instant::now();
        let mut gate = Gate::new(form, binaries::command_line());
        gate.labels = self.args.output.labels.iter().cloned().collect();
        gate.suite = self.args.suite.as_ref().map(|path| path.display().to_string());
        gate.arms = self.plan.arms.clone();
        gate.sittings = self.stored.iter().map(|stored| stored.facts.clone()).collect();
        let outcome = match (form, &self.args.arms.candidate) {
            (Form::SelfTest, _) => self.against_itself(&mut gate, seed),
            (Form::Turns, _) => self.in_turns(&mut gate, seed),
            (Form::Sittings, Some(candidate)) => self.measured_already(&mut gate, candidate),
            (Form::Sittings, None) => self.new_sitting(&mut gate),
            (Form::Limits, _) => self.limits(&mut gate),
        };
        match outcome {
            Err(error) if error.kind == Kind::Interrupted => gate.fail(error),
            other => other?,
        }
        gate.duration_s = began.elapsed().as_secs_f64();
        gate.conclude(self.args.output.strict);
        Ok(gate)
    }

    fn sitting(&self) -> Sitting<'a> {
        Sitting::new(self.plan, self.directory.as_deref(), self.signalled)
    }

    fn in_turns(&self, gate: &mut Gate, seed: u32) -> Result<()> {
        gate.seed = Some(seed);
        let mut sitting = self.sitting();
        let outcome = take_turns(self.plan, &mut sitting, seed);
        gate.order = sitting.order.clone();
        let gathered = gather(self.plan, &sitting);
        self.conclude(gate, &sitting, gathered, outcome.is_ok())?;
        outcome
    }

    fn new_sitting(&self, gate: &mut Gate) -> Result<()> {
        let mut sitting = self.sitting();
        let outcome = self.one_after_the_other(&mut sitting, gate);
        let stored: Vec<_> = self.stored.iter().map(|stored| &stored.runs).collect();
        let mut gathered = Gathered::default();
        for (planned, measured) in self.plan.tests.iter().zip(&sitting.tests) {
            match &measured.error {
                Some(error) => gathered.spoilt(&planned.asked, &measured.b, &error.to_string()),
                None => gathered.against_sittings(&planned.asked, &stored, &measured.b),
            }
        }
        self.conclude(gate, &sitting, gathered, outcome.is_ok())?;
        outcome
    }

    fn measured_already(&self, gate: &mut Gate, candidate: &Path) -> Result<()> {
        let runs = crate::tool::compare::runs(candidate.as_os_str())?.runs;
        if let Some(first) = &runs.first {
            gate.started_at = first.started_at.clone();
            gate.labels.extend(first.labels.clone());
        }
        let stored: Vec<_> = self.stored.iter().map(|stored| &stored.runs).collect();
        let mut gathered = Gathered::default();
        for (name, runs) in runs.into_tests() {
            let asked = self.plan.asked_of(&name, &runs)?;
            gathered.against_sittings(&asked, &stored, &runs);
            let binary = runs.tests.first().map(|test| test.binary.clone()).unwrap_or_default();
            gate.tests.push(entry(name, binary, &Runs::default(), &runs));
        }
        self.judge(gate, gathered, true)
    }

    fn limits(&self, gate: &mut Gate) -> Result<()> {
        let mut sitting = self.sitting();
        let outcome = self.one_after_the_other(&mut sitting, gate);
        self.conclude(gate, &sitting, Gathered::default(), outcome.is_ok())?;
        outcome
    }

    /// Every test as often as a sitting has runs. A round of all before the next, so that what disturbs for a while
    /// disturbs a run of each and not all of one.
    fn one_after_the_other(&self, sitting: &mut Sitting<'_>, gate: &mut Gate) -> Result<()> {
        let (tests, runs) = (self.plan.tests.len(), self.plan.runs);
        sitting.say(&format!("{}, {runs} times", counted(tests, "test")));
        let outcome = (0..runs).try_for_each(|_| sitting.round(&[Arm::B], |_| true));
        gate.order = sitting.order.clone();
        outcome
    }

    fn against_itself(&self, gate: &mut Gate, seed: u32) -> Result<()> {
        gate.seed = Some(seed);
        let mut rounds = Vec::new();
        let mut outcome = Ok(());
        for round in 0..self.plan.rounds {
            say(&format!("round {} of {}", round + 1, self.plan.rounds));
            let mut sitting = self.sitting();
            outcome = take_turns(self.plan, &mut sitting, seed.wrapping_add(round as u32));
            if outcome.is_err() {
                break;
            }
            // The last round stands for all, besides the table of them.
            gate.tests.clear();
            gate.notes.clear();
            gate.order = sitting.order.clone();
            self.conclude(gate, &sitting, gather(self.plan, &sitting), true)?;
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
    fn conclude(&self, gate: &mut Gate, sitting: &Sitting<'_>, gathered: Gathered, last: bool) -> Result<()> {
        for arm in &mut gate.arms {
            sitting.describe(arm);
        }
        for (planned, measured) in self.plan.tests.iter().zip(&sitting.tests) {
            let (name, binary) = (planned.asked.test.clone(), planned.b.name().into_owned());
            let mut entry = entry(name, binary, &measured.a, &measured.b);
            entry.commands = commands(planned);
            entry.error = measured.error.clone();
            gate.tests.push(entry);
            gate.limits.extend(over_runs(&planned.asked.test, &measured.limits));
        }
        self.judge(gate, gathered, last)
    }

    fn judge(&self, gate: &mut Gate, mut gathered: Gathered, last: bool) -> Result<()> {
        gate.mismatches = std::mem::take(&mut gathered.mismatches);
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
        // Stored sittings may hold more than is asked for now.
        let is_turns = gate.form == Form::Turns;
        for lone in gathered.uncompared.drain(..).filter(|lone| !lone.in_a || is_turns) {
            let what = lone.id.as_deref().map_or_else(|| "all of it".into(), words::point);
            let place = if lone.in_a { "baseline" } else { "candidate" };
            gate.note("uncompared", format!("only the {place} has {}: {what}", lone.test));
        }
        gate.series = gathered.judge(last)?;
        Ok(())
    }
}

/// Both arms in turns: all tests before the first look, and after it those that are open.
fn take_turns(plan: &Plan, sitting: &mut Sitting<'_>, seed: u32) -> Result<()> {
    let Plan { first_look, last_look, .. } = *plan;
    let order = order(seed.into(), last_look);
    let mut pairs = order.chunks(2);
    let tests = plan.tests.len();
    sitting.say(&format!("{}, {first_look} to {last_look} pairs", counted(tests, "test")));
    pairs.by_ref().take(first_look).try_for_each(|pair| sitting.round(pair, |_| true))?;
    if first_look == last_look {
        return Ok(());
    }
    let series = gather(plan, sitting).judge(false)?;
    let is_open = |test: usize| {
        let of_test = series.iter().filter(|series| series.test == plan.tests[test].asked.test);
        of_test
            .filter(|series| !series.judgement.advisory)
            .any(|series| matches!(series.judgement.verdict, Verdict::Inconclusive | Verdict::Regression))
    };
    let open: Vec<bool> = (0..tests).map(is_open).collect();
    let left = open.iter().filter(|is_open| **is_open).count();
    if left == 0 {
        sitting.say(&format!("decided after {first_look} pairs"));
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
    let values = |met: &[Met]| met.iter().map(|met| met.value.as_str()).collect::<Vec<_>>().join(", ");
    let options = test.into_iter().flat_map(|test| &test.options);
    let options = options.map(|(field, value)| (named(field), value.clone()));
    let environment = test.into_iter().flat_map(|test| &test.environment.0);
    let environment = environment.map(|(field, met)| (named(field), values(met)));
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
    let line = |invocation: &super::sibling::Invocation| {
        let words = invocation.words.iter().map(|word| word.to_string_lossy().into_owned());
        std::iter::once(invocation.name().into_owned()).chain(words).collect()
    };
    let a = planned.a.iter().map(|a| ("a".to_owned(), line(a)));
    a.chain([("b".to_owned(), line(&planned.b))]).collect()
}

/// A sitting that is worse is no baseline.
fn add_unless_worse(gate: &Gate, unfinished: Unfinished) -> Result<()> {
    match gate.verdict {
        _ if gate.error.is_some() => Ok(()),
        Verdict::Regression | Verdict::Invalid => {
            say(&format!("not recorded, since the verdict is {}", gate.verdict));
            Ok(())
        }
        _ => add(&gate.started_at, unfinished),
    }
}

fn add(started_at: &str, unfinished: Unfinished) -> Result<()> {
    let (place, count) = unfinished.add(started_at)?;
    let missing = FEWEST_SITTINGS.saturating_sub(count);
    let more =
        if missing > 0 { format!("; {missing} more for a verdict that decides") } else { String::new() };
    say(&format!("recorded {}: {}{more}", place.display(), counted(count, "sitting")));
    Ok(())
}

fn create(directory: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(directory).map_err(|error| {
        Error::usage(format!("cannot keep documents in {}: {error}", directory.display()))
            .with_remedy("name a directory that can be written")
    })?;
    Ok(directory.into())
}

/// `1 test`, `2 tests`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
