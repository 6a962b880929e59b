//! `verbmark gate`: is a candidate slower than its baseline, by more than anybody would accept? The exit status decides.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::cli::tool::GateArgs;
use crate::error::{Error, Result};
use crate::gate::baseline::FEWEST_SITTINGS;
use crate::gate::compare::{EMULATED, UNOPTIMISED};
use crate::gate::document::{Form, Gate, Series, TestEntry};
use crate::gate::family;
use crate::gate::fingerprint::Field;
use crate::gate::limit::over_runs;
use crate::gate::sample::{Met, Runs};
use crate::gate::series::Gathered;
use crate::gate::{Arm, Verdict, order};
use crate::report::Target;
use crate::suite as binaries;

mod baseline;
mod candidate;
mod draft;
mod options;
mod outputs;
mod plan;
mod preview;
mod self_test;
mod sitting;
mod suite;
mod table;

pub use plan::{Plan, PlannedTest};
pub use suite::Suite;

use baseline::{Baseline, Unfinished};
use candidate::Candidate;
use outputs::Outputs;
use sitting::{Sitting, say};

/// Gates, and gives the exit status.
///
/// # Errors
/// The options, the suite, the baseline or the candidate are no use, or an output could not be written: before anything is
/// measured. What goes wrong later is told by the outputs.
pub fn run(args: &GateArgs) -> Result<u8> {
    let outputs = Outputs::open(&args.output)?;
    let baseline = args.arms.baseline.as_deref().map(Baseline::read).transpose()?.unwrap_or_default();
    let plan = Plan::new(args, baseline.runs_of_a_sitting())?;
    let candidate = args.arms.candidate.as_deref();
    let candidate = candidate.map(|path| Candidate::read(path, &plan, &baseline)).transpose()?;
    if args.measuring.dry_run {
        let shown = preview::preview(args, &plan, &baseline, candidate.as_ref(), binaries::width());
        return Target::Stdout.offer(shown.as_bytes()).map(|()| 0);
    }
    let unfinished = args.arms.record.as_deref().map(Unfinished::begin).transpose()?;
    let directory = match (&unfinished, &args.measuring.keep) {
        (Some(unfinished), _) => Some(unfinished.path().to_path_buf()),
        (None, Some(directory)) => Some(create(directory)?),
        (None, None) => None,
    };
    let seed = match args.measuring.seed {
        Some(seed) => seed,
        None => binaries::random_seed()? as u32,
    };
    let signalled = binaries::catch_signals()?;
    let mut gate = Job { args, plan: &plan, baseline: &baseline, directory, signalled }.hold(candidate, seed);
    if let Some(error) = &gate.error {
        binaries::complain(error);
    }
    let added = unfinished.map_or(Ok(()), |unfinished| add_unless_worse(&gate, &plan, unfinished));
    if let Err(error) = added {
        binaries::complain(&error);
        gate.unwritten(error);
    }
    outputs.write(&mut gate);
    Ok(gate.exit_status)
}

/// What is done, and with what.
struct Job<'a> {
    args: &'a GateArgs,
    plan: &'a Plan,
    baseline: &'a Baseline,
    directory: Option<PathBuf>,
    signalled: &'a AtomicBool,
}

impl<'a> Job<'a> {
    /// Holds the candidate to what it must keep.
    fn hold(&self, candidate: Option<Candidate>, seed: u32) -> Gate {
        let began = Instant::now();
        let mut gate = Gate::new(self.plan.form, binaries::command_line());
        gate.labels = self.args.output.labels.iter().cloned().collect();
        gate.suite = self.args.suite.as_ref().map(|path| path.display().to_string());
        gate.arms = self.plan.arms.clone();
        gate.sittings = self.baseline.sittings.iter().map(|stored| stored.facts.clone()).collect();
        for other in &self.baseline.others {
            gate.note("no_sitting", format!("{other} in the baseline holds no document: left out"));
        }
        let outcome = match (self.plan.form, candidate) {
            (Form::SelfTest, _) => self.against_itself(&mut gate, seed),
            (Form::Turns, _) => self.in_turns(&mut gate, seed),
            (Form::Sittings, _) if self.lacks_baseline() => {
                self.without_baseline(&mut gate);
                Ok(())
            }
            (Form::Sittings, Some(candidate)) => self.measured_already(&mut gate, candidate),
            (Form::Sittings | Form::Record, _) => self.new_sitting(&mut gate),
            (Form::Limits, _) => self.limits(&mut gate),
        };
        if let Err(error) = outcome {
            gate.fail(error);
        }
        gate.notes.extend(self.plan.notes.iter().cloned());
        gate.duration_s = began.elapsed().as_secs_f64();
        gate.conclude(self.args.output.strict);
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
        self.conclude(gate, &sitting, gathered, outcome.is_ok())?;
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
        self.conclude(gate, &sitting, gathered, outcome.is_ok())?;
        outcome
    }

    fn stored(&self) -> Vec<&Runs> {
        self.baseline.sittings.iter().map(|stored| &stored.runs).collect()
    }

    fn measured_already(&self, gate: &mut Gate, candidate: Candidate) -> Result<()> {
        if let Some(first) = candidate.first {
            gate.started_at = first.started_at;
            gate.labels.extend(first.labels);
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
        self.judge(gate, gathered, true)
    }

    fn limits(&self, gate: &mut Gate) -> Result<()> {
        let mut sitting = self.sitting(0);
        let outcome = self.one_after_the_other(&mut sitting, gate);
        let mut gathered = Gathered::default();
        sitting.tests.iter().for_each(|measured| gathered.observe(&measured.b));
        self.conclude(gate, &sitting, gathered, outcome.is_ok())?;
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
        for lone in gathered.uncompared.drain(..) {
            let what = lone.id.map_or_else(|| "it".to_owned(), |id| format!("the point {id}"));
            gate.note("uncompared", format!("{}: the baseline does not have {what}", lone.test));
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
    let a = planned.a.iter().map(|a| ("a".to_owned(), preview::command(a)));
    a.chain([("b".to_owned(), preview::command(&planned.b))]).collect()
}

/// A sitting that is worse than the baseline is none, also where the verdict decides nothing because there are few
/// sittings: the first of them would else hide what got worse on the second night.
fn add_unless_worse(gate: &Gate, plan: &Plan, unfinished: Unfinished) -> Result<()> {
    let never_decides = |series: &Series| {
        let planned = plan.tests.iter().find(|planned| planned.asked.test == series.test);
        let rule = planned.and_then(|planned| planned.asked.rule(series.judgement.metric, 0.0));
        rule.is_some_and(|rule| rule.advisory)
    };
    let of_series = gate.series.iter().filter(|series| !never_decides(series));
    let verdicts = of_series.map(|series| series.judgement.verdict).chain([gate.verdict]);
    let worst = family::worst(verdicts).unwrap_or(gate.verdict);
    let refusal = match worst {
        _ if gate.error.is_some() => "it was not measured to its end".to_owned(),
        Verdict::Regression | Verdict::Invalid | Verdict::NotComparable => format!("the verdict is {worst}"),
        Verdict::Inconclusive | Verdict::Improved | Verdict::Pass => {
            return add(&gate.started_at, unfinished);
        }
    };
    let alone =
        if gate.form == Form::Sittings { "; --record without --baseline adds it whatever it is" } else { "" };
    say(&format!("not recorded, since {refusal}{alone}"));
    Ok(())
}

fn add(started_at: &str, unfinished: Unfinished) -> Result<()> {
    let (place, count) = unfinished.add(started_at)?;
    let missing = FEWEST_SITTINGS.saturating_sub(count);
    let more =
        if missing > 0 { format!("; {missing} more for a verdict that decides") } else { String::new() };
    say(&format!("recorded {}: {}{more}", place.display(), counted(count, "sitting")));
    Ok(())
}

/// A directory for the documents of this gate alone: their names are numbers, which another gate has used, too.
fn create(directory: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| {
        Error::usage(format!("cannot keep documents in {}: {error}", directory.display()))
            .with_remedy("name a directory that can be written")
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    match crate::tool::compare::documents(directory).map_err(failed)?.first() {
        None => Ok(directory.into()),
        Some(document) => Err(Error::usage(format!("cannot keep documents beside {}", document.display()))
            .with_remedy("name a directory for this gate alone, which need not exist yet")),
    }
}

/// `1 test`, `2 tests`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
