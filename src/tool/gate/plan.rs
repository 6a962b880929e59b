//! What a gate will do, from what was typed and what the suite file says.

use std::path::PathBuf;
use std::time::Duration;

use super::asked::of_measured;
use super::draft::{Drafts, PlannedTest};
use super::options;
use super::outputs::place_of_new;
use super::suite::{self, Suite};
use super::typed::Typed;
use crate::cli::tool::{GateArgs, PAIRS};
use crate::error::{Error, Result};
use crate::gate::document::{ArmRecord, Form};
use crate::gate::family;
use crate::gate::rule::{FEWEST_RUNS, FIRST_LOOK, LAST_LOOK};
use crate::gate::sample::Runs;
use crate::gate::series::{Asked, POINTS};
use crate::gate::shift::fewest_runs;
use crate::result::{Notice, Quantity};
use crate::tool::compare::check_fields;
use crate::tool::sibling::Invocation;
use crate::units::counted;

/// Everything that a gate was asked to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What the candidate is held to.
    pub form: Form,
    /// The tests, in order; none where the candidate is measured already.
    pub tests: Vec<PlannedTest>,
    /// The arms: baseline and candidate, or the candidate alone.
    pub arms: Vec<ArmRecord>,
    /// Pairs before the first look.
    pub first_look: usize,
    /// Pairs before the last one.
    pub last_look: usize,
    /// Runs of each test where there are no pairs.
    pub runs: usize,
    /// Rounds of a self-test.
    pub rounds: usize,
    /// Longest time of a run.
    pub timeout: Duration,
    /// What a reader should know of what was asked for, before anything runs.
    pub notes: Vec<Notice>,
    /// Metrics and fields where there are no tests to say them.
    pub asked: Asked,
    /// What the suite asks of each binary, where the candidate is measured already.
    of_binaries: Vec<(String, Asked)>,
}

impl Plan {
    /// Decides everything that the options leave open, and looks at each command.
    ///
    /// A stored sitting has `stored_runs` runs of a test at most; `None` without any.
    ///
    /// # Errors
    /// Usage: options, suite or commands that make no sense, before anything runs.
    pub fn new(args: &GateArgs, stored_runs: Option<usize>) -> Result<Self> {
        // Points are no field that a run is told by.
        let fields = args.arms.allow_mismatch.iter().filter(|name| *name != POINTS);
        check_fields("--allow-mismatch", &fields.cloned().collect::<Vec<_>>())?;
        let suite = args.suite.as_deref().map(Suite::read).transpose()?.unwrap_or_default();
        let typed =
            |option, text: &Option<String>| text.as_deref().map(|text| Typed::new(option, text)).transpose();
        let (a, b) = (typed("--a", &args.arms.a)?, typed("--b", &args.arms.b)?);
        let form = form(args, &suite, b.as_ref())?;
        let limited = [&a, &b].map(|typed| typed.as_ref().is_some_and(Typed::has_limits));
        options::check(args, form)?;
        let (first_look, last_look) = looks(args, &suite)?;
        let given = args.measuring.runs.or(suite.runs).filter(|_| args.arms.candidate.is_none());
        let runs = runs(form, given.map(usize::from), stored_runs)?;
        let fields = suite.allow_mismatch.iter().map(|field| field.0.clone());
        let asked = Asked {
            test: String::new(),
            metrics: metrics(&args.arms.metric)?,
            is_usual: args.arms.metric.is_empty(),
            transport: None,
            tolerances: suite::tolerances(&suite.tolerance),
            // Of sittings they tell themselves how many it takes.
            minimum_runs: if form.is_paired() { first_look } else { FEWEST_RUNS },
            allowed: args.arms.allow_mismatch.iter().cloned().chain(fields).collect(),
            may_be_first: form == Form::Record || adds_to_its_baseline(args),
        };
        let drafts = Drafts { args, suite: &suite, asked: &asked, form };
        let mut of_binaries = Vec::new();
        let (arms, tests) = match b {
            Some(b) => drafts.typed(a, b)?,
            None if args.arms.candidate.is_some() => {
                of_binaries = drafts.of_binaries()?;
                Default::default()
            }
            None => drafts.of_suite()?,
        };
        let of_a_alone = limited[0] && !limited[1];
        let rounds = usize::from(args.arms.self_test.unwrap_or(1));
        let timeout = args.measuring.timeout;
        let mut notes = notes(args, &suite, form, &tests, &arms, last_look);
        if of_a_alone {
            let message = "limits of --a are not looked at: the candidate is held to its own".to_owned();
            notes.push(Notice { code: "unused".into(), message });
        }
        Ok(Self {
            form,
            tests,
            arms,
            first_look,
            last_look,
            runs,
            rounds,
            timeout,
            notes,
            asked,
            of_binaries,
        })
    }

    /// The tests of the suite that a candidate which is measured already does not have.
    pub fn missing(&self, runs: &Runs) -> Vec<String> {
        let has = |binary: &String, asked: &Asked| {
            runs.tests.iter().any(|test| match &test.name {
                Some(name) => *name == asked.test,
                None => test.binary == *binary,
            })
        };
        let missing = self.of_binaries.iter().filter(|(binary, asked)| !has(binary, asked));
        missing.map(|(_, asked)| asked.test.clone()).collect()
    }

    /// What is asked of a test that was measured already: what the suite says of its binary, or what the options do.
    ///
    /// # Errors
    /// As of [`of_measured`].
    pub fn asked_of(&self, name: &str, runs: &Runs) -> Result<Asked> {
        of_measured(&self.of_binaries, &self.asked, name, runs)
    }
}

/// Runs of each test where there are no pairs. The scatter within a sitting is a part of that between them, so that a new
/// one has no fewer runs than those that it is held to.
fn runs(form: Form, given: Option<usize>, stored: Option<usize>) -> Result<usize> {
    match (form, given, stored) {
        (Form::Sittings, Some(given), Some(stored)) if given < stored => {
            let (few, many) = (counted(given, "run"), counted(stored, "run"));
            Err(Error::usage(format!("{few} of each test, and a stored sitting has {many}"))
                .with_remedy(format!("--runs {stored}, or leave the number of runs away")))
        }
        (Form::Sittings | Form::Record, Some(given), _) if given < FEWEST_RUNS => Err(Error::usage(format!(
            "{} of each test: a sitting needs {FEWEST_RUNS} to be one",
            counted(given, "run")
        ))
        .with_remedy(format!("--runs {FIRST_LOOK}, or leave the number of runs away"))),
        (Form::Limits, given, _) => Ok(given.unwrap_or(1)),
        (_, given, stored) => Ok(given.or(stored).unwrap_or(FIRST_LOOK)),
    }
}

/// The sitting becomes one of those that it is held to.
fn adds_to_its_baseline(args: &GateArgs) -> bool {
    let real = |path: &PathBuf| {
        path.canonicalize().ok().or_else(|| place_of_new(path)).unwrap_or_else(|| path.clone())
    };
    let baseline = args.arms.baseline.as_ref().map(real);
    baseline.is_some() && baseline == args.arms.record.as_ref().map(real)
}

fn form(args: &GateArgs, suite: &Suite, b: Option<&Typed>) -> Result<Form> {
    let arms = &args.arms;
    Ok(match () {
        () if arms.self_test.is_some() => Form::SelfTest,
        () if arms.baseline.is_some() => Form::Sittings,
        () if arms.record.is_some() => Form::Record,
        () if arms.a.is_some() || suite.a.is_some() => Form::Turns,
        () if suite.has_limits() || b.is_some_and(Typed::has_limits) => Form::Limits,
        () => {
            let error = Error::usage("there is nothing to hold the candidate to");
            return Err(error.with_remedy(
                "give a baseline: --a COMMAND, an [a] in the suite, or --baseline DIR; or limits; or --self-test N",
            ));
        }
    })
}

fn looks(args: &GateArgs, suite: &Suite) -> Result<(usize, usize)> {
    let first = args.measuring.min_pairs.or(suite.min_pairs);
    let last = args.measuring.max_pairs.or(suite.max_pairs);
    let first_look = first.map_or(FIRST_LOOK.min(last.unwrap_or(u8::MAX).into()), usize::from);
    let last_look = last.map_or(LAST_LOOK.max(first_look), usize::from);
    if first_look > last_look {
        // Both were asked for: what nobody said gives way.
        let source = |option: &str, is_option: bool| match is_option {
            true => option.to_owned(),
            false => format!("{} of {}", option.trim_start_matches('-').replace('-', "_"), suite.name()),
        };
        let first = source("--min-pairs", args.measuring.min_pairs.is_some());
        let last = source("--max-pairs", args.measuring.max_pairs.is_some());
        let cause = format!(
            "{first_look} pairs before the first look ({first}), {last_look} before the last ({last})"
        );
        let remedy = format!("{} to {} each, and the first not above the last", PAIRS.start(), PAIRS.end());
        return Err(Error::usage(cause).with_remedy(remedy));
    }
    Ok((first_look, last_look))
}

/// Those of `--metric`, each once.
fn metrics(names: &[String]) -> Result<Vec<Quantity>> {
    let named =
        |name: &String| suite::metric(name).map_err(|cause| Error::usage(format!("--metric: {cause}")));
    let metrics: Vec<_> = names.iter().map(named).collect::<Result<_>>()?;
    match suite::repeated(&metrics) {
        None => Ok(metrics),
        Some(metric) => Err(Error::usage(format!("--metric names {} twice", metric.name()))
            .with_remedy("name each metric once")),
    }
}

/// Why an arm would run with the libraries of the system, where it names others: none of their directories is there, and
/// the loader says nothing.
pub fn without_libraries(arm: &ArmRecord) -> Option<String> {
    let path = arm.environment.get("LD_LIBRARY_PATH").filter(|path| !path.is_empty())?;
    let has_one = std::env::split_paths(path).any(|directory| directory.is_dir());
    (!has_one).then(|| format!("LD_LIBRARY_PATH of {} is {path}, and there is no such directory", arm.name))
}

/// What of the suite has no part in it, and what is compared that is not alike.
fn notes(
    args: &GateArgs,
    suite: &Suite,
    form: Form,
    tests: &[PlannedTest],
    arms: &[ArmRecord],
    last_look: usize,
) -> Vec<Notice> {
    let mut notes = Vec::new();
    let mut note = |code: &str, message: String| notes.push(Notice { code: code.into(), message });
    for test in tests {
        let a = test.a.as_ref().map(Invocation::name);
        if let Some(a) = a.filter(|a| *a != test.b.name()) {
            note(
                "arms",
                format!("compares {} with {a}: two tests, and not two builds of one", test.b.name()),
            );
        }
    }
    // The more metrics there are, the surer each must be, and the more pairs it takes.
    let least = fewest_runs(family::confidence(0));
    if form.is_paired() && last_look < least {
        note("undecided", format!("{last_look} pairs never decide anything: it takes {least} (--max-pairs)"));
    }
    arms.iter().filter_map(without_libraries).for_each(|cause| note("missing", cause));
    let why = match form {
        _ if args.arms.candidate.is_some() => "the candidate is measured already",
        Form::Record => "a sitting is one of the candidate",
        Form::Sittings => "the candidate is held to stored sittings",
        Form::SelfTest => "the candidate is held to itself",
        Form::Turns | Form::Limits => return notes,
    };
    if suite.a.is_some() {
        note("unused", format!("[a] of the suite is not used: {why}"));
    }
    if suite.has_limits() && (args.arms.candidate.is_some() || form == Form::SelfTest) {
        note("unused", format!("limits of the suite are not looked at: {why}"));
    }
    notes
}
