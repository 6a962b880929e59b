//! What a gate will do, from what was typed and what the suite file says.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::counted;
use super::suite::{self, Metric, Suite, TypedArm, TypedTest, TypedTolerance};
use crate::cli::tool::GateArgs;
use crate::error::{Error, Result};
use crate::gate::Arm;
use crate::gate::document::{ArmRecord, Form};
use crate::gate::rule::{FEWEST_RUNS, FIRST_LOOK, LAST_LOOK};
use crate::gate::sample::Runs;
use crate::gate::series::{Asked, POINTS, Tolerance};
use crate::ops::Verb;
use crate::plan::{self as test_plan, Role, Shape};
use crate::result::{Of, Quantity, Transport};
use crate::tool::compare::check_fields;
use crate::tool::sibling::{self, Invocation};
use crate::tool::test_command;

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
    /// Metrics and fields where there are no tests to say them.
    pub asked: Asked,
}

/// A test, and how each arm runs it.
#[derive(Debug, Clone)]
pub struct PlannedTest {
    /// What of it is judged; its name stands there.
    pub asked: Asked,
    /// The baseline's command.
    pub a: Option<Invocation>,
    /// The candidate's.
    pub b: Invocation,
}

impl PlannedTest {
    /// The command of an arm; the candidate's where there is one alone.
    pub fn command(&self, arm: Arm) -> &Invocation {
        self.a.as_ref().filter(|_| arm == Arm::A).unwrap_or(&self.b)
    }
}

impl Plan {
    /// Decides everything that the options leave open, and looks at each command.
    ///
    /// A stored sitting has `stored_runs` runs of a test at most; `None` without any.
    ///
    /// # Errors
    /// Usage: options, suite or commands that make no sense, before anything runs.
    pub fn new(args: &GateArgs, stored_runs: Option<usize>) -> Result<Self> {
        check_allowed("--allow-mismatch", &args.arms.allow_mismatch)?;
        let suite = args.suite.as_deref().map(Suite::read).transpose()?.unwrap_or_default();
        check_allowed("allow_mismatch of the suite:", &suite.allow_mismatch)?;
        let allowed = [&args.arms.allow_mismatch[..], &suite.allow_mismatch].concat();
        let form = form(args, &suite)?;
        let is_paired = matches!(form, Form::Turns | Form::SelfTest);
        let (first_look, last_look) = looks(args, &suite)?;
        let given = args.measuring.runs.or(suite.runs).filter(|_| args.arms.candidate.is_none());
        let runs = runs(form, given.map(usize::from), stored_runs)?;
        let asked = Asked {
            test: String::new(),
            metrics: args.arms.metric.iter().map(|name| metric(name)).collect::<Result<_>>()?,
            is_usual: args.arms.metric.is_empty(),
            transport: None,
            tolerances: tolerances(&suite.tolerance),
            // Of sittings they tell themselves how many it takes.
            minimum_runs: if is_paired { first_look } else { FEWEST_RUNS },
            allowed,
            may_be_first: form == Form::Record || adds_to_its_baseline(args),
        };
        let drafts = Drafts { args, suite: &suite, asked: &asked, form };
        let (arms, tests) = match (&args.arms.b, &args.arms.candidate) {
            (Some(b), _) => drafts.typed(args.arms.a.as_deref(), b)?,
            (None, Some(_)) => Default::default(),
            (None, None) => drafts.of_suite()?,
        };
        let rounds = usize::from(args.arms.self_test.unwrap_or(1));
        let timeout = args.measuring.timeout;
        Ok(Self { form, tests, arms, first_look, last_look, runs, rounds, timeout, asked })
    }

    /// What is asked of a test that was measured already.
    ///
    /// # Errors
    /// Usage: it does not measure a metric that was asked for.
    pub fn asked_of(&self, name: &str, runs: &Runs) -> Result<Asked> {
        let shape = runs.tests.first().and_then(|test| test.option("shape"));
        let shape = if shape == Some("latency") { Shape::Latency } else { Shape::Bandwidth };
        of_test(&self.asked, name.into(), shape)
    }
}

/// The same of a test by name: the metrics that were named, or the usual ones.
fn of_test(asked: &Asked, test: String, shape: Shape) -> Result<Asked> {
    let metrics = match &asked.metrics[..] {
        [] => Quantity::usual(shape).to_vec(),
        named => named.to_vec(),
    };
    let asked = Asked { test, metrics, ..asked.clone() };
    check(&asked, shape).map(|()| asked)
}

/// As of [`check_fields`], and points, which no run is told by.
fn check_allowed(option: &str, names: &[String]) -> Result<()> {
    let fields: Vec<_> = names.iter().filter(|name| *name != POINTS).cloned().collect();
    check_fields(option, &fields)
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
        (Form::Limits, given, _) => Ok(given.unwrap_or(1)),
        (_, given, stored) => Ok(given.or(stored).unwrap_or(FIRST_LOOK)),
    }
}

/// The sitting becomes one of those that it is held to.
fn adds_to_its_baseline(args: &GateArgs) -> bool {
    // One that does not exist yet has no other name.
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    args.arms
        .record
        .as_ref()
        .is_some_and(|record| args.arms.baseline.as_ref().map(real) == Some(real(record)))
}

fn form(args: &GateArgs, suite: &Suite) -> Result<Form> {
    let has_limits = suite.test.iter().any(|test| !test.limits.is_empty());
    let arms = &args.arms;
    Ok(match () {
        () if arms.self_test.is_some() => Form::SelfTest,
        () if arms.baseline.is_some() => Form::Sittings,
        () if arms.record.is_some() => Form::Record,
        () if arms.a.is_some() || suite.a.is_some() => Form::Turns,
        () if has_limits || arms.b.as_deref().is_some_and(|b| b.contains("--limit")) => Form::Limits,
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
    let is_possible = |pairs: usize| (3..=40).contains(&pairs);
    if !is_possible(first_look) || !is_possible(last_look) || first_look > last_look {
        return Err(Error::usage(format!(
            "{first_look} pairs before the first look, {last_look} before the last"
        ))
        .with_remedy("3 to 40 each, and the first not above the last"));
    }
    Ok((first_look, last_look))
}

fn metric(name: &str) -> Result<Quantity> {
    suite::metric(name).map_err(|cause| Error::usage(format!("--metric: {cause}")))
}

fn tolerances(typed: &BTreeMap<Metric, TypedTolerance>) -> BTreeMap<Quantity, Tolerance> {
    typed.iter().map(|(metric, typed)| (metric.0, (*typed).into())).collect()
}

/// Makes tests of what was typed.
struct Drafts<'a> {
    args: &'a GateArgs,
    suite: &'a Suite,
    asked: &'a Asked,
    form: Form,
}

/// A command as it was typed in one option.
struct Typed {
    arm: TypedArm,
    binary: String,
    invocation: Invocation,
}

impl Drafts<'_> {
    /// Of the commands on the command line.
    fn typed(&self, a: Option<&str>, b: &str) -> Result<(Vec<ArmRecord>, Vec<PlannedTest>)> {
        let a = a.map(|text| self.command("--a", text)).transpose()?;
        let b = self.command("--b", b)?;
        let look_at = |option, of: &Typed| self.look_at(option, &of.binary, &of.arm, &of.invocation);
        let (_, shape) = look_at("--b", &b)?;
        let mut name = b.binary.clone();
        if let Some(a) = &a {
            let (_, other) = look_at("--a", a)?;
            if other != shape {
                return Err(Error::usage(format!("{} and {} have no metric in common", a.binary, b.binary))
                    .with_remedy("compare two latency tests, or two bandwidth tests"));
            }
            if a.binary != b.binary {
                name = format!("{} against {}", b.binary, a.binary);
            }
        }
        let asked = of_test(self.asked, name, shape)?;
        let arms = a.iter().map(|a| record(Arm::A, &a.arm)).chain([record(Arm::B, &b.arm)]).collect();
        Ok((arms, vec![PlannedTest { asked, a: a.map(|a| a.invocation), b: b.invocation }]))
    }

    /// A command as it stands in one option: variables, a binary, its options.
    fn command(&self, option: &str, text: &str) -> Result<Typed> {
        let unfit = |cause: &str| {
            Error::usage(format!("{option} '{text}': {cause}"))
                .with_remedy("write it as in --b 'VAR=1 send_lat -s 64 --loopback'")
        };
        let words = shlex::split(text).ok_or_else(|| unfit("a quote does not end"))?;
        let variables: Vec<_> = words.iter().map_while(|word| variable(word)).collect();
        let (program, options) =
            words[variables.len()..].split_first().ok_or_else(|| unfit("it names no test"))?;
        let (programs, binary) = match Path::new(program).parent() {
            Some(directory) if program.contains('/') => (Some(directory.into()), file_name(program)),
            _ => (None, program.clone()),
        };
        let environment: BTreeMap<_, _> = variables.into_iter().collect();
        let arm = TypedArm { name: None, programs, environment, options: options.to_vec() };
        let invocation = Invocation {
            program: program_of(arm.programs.as_deref(), &binary)?,
            environment: arm.environment.clone(),
            words: self.labels().chain(options.iter().map(OsString::from)).collect(),
        };
        Ok(Typed { arm, binary, invocation })
    }

    /// Of the suite file.
    fn of_suite(&self) -> Result<(Vec<ArmRecord>, Vec<PlannedTest>)> {
        let a = self.suite.a.as_ref().filter(|_| self.form == Form::Turns);
        let candidate = self.suite.b.clone().unwrap_or_default();
        let mut names = HashSet::new();
        let mut tests = Vec::new();
        for typed in &self.suite.test {
            let (_, shape) = test_command::named(&typed.binary)?;
            let name = match &typed.name {
                Some(name) => name.clone(),
                None => (1..)
                    .map(|n| numbered(&typed.binary, n))
                    .find(|name| !names.contains(name))
                    .unwrap_or_default(),
            };
            if !names.insert(name.clone()) {
                return Err(Error::usage(format!("two tests of the suite are called {name}"))
                    .with_remedy("give each a name of its own"));
            }
            let mut asked = Asked {
                test: name,
                metrics: metrics(typed, shape),
                is_usual: typed.metrics.is_none(),
                ..self.asked.clone()
            };
            asked.tolerances.extend(tolerances(&typed.tolerance));
            check(&asked, shape)?;
            let place = format!("the test {}", asked.test);
            let looked_at = |arm: &TypedArm| {
                let invocation = self.invocation(typed, arm)?;
                self.look_at(&place, &typed.binary, arm, &invocation).map(|_| invocation)
            };
            let (a, b) = (a.map(looked_at).transpose()?, looked_at(&candidate)?);
            let is_tcp_only = b.words.iter().any(|word| word == "--tcp-only");
            asked.transport = (!self.suite.tcp && !is_tcp_only).then_some(Transport::Rdma);
            tests.push(PlannedTest { asked, a, b });
        }
        let arms = a.map(|a| record(Arm::A, a)).into_iter().chain([record(Arm::B, &candidate)]);
        Ok((arms.collect(), tests))
    }

    fn invocation(&self, typed: &TypedTest, arm: &TypedArm) -> Result<Invocation> {
        let mut words: Vec<OsString> = self.labels().collect();
        words.extend(
            [&self.suite.options, &arm.options, &typed.options].into_iter().flatten().map(OsString::from),
        );
        if !typed.sizes.is_empty() {
            let sizes: Vec<_> = typed.sizes.iter().map(suite::Size::to_string).collect();
            words.extend(["-s".into(), sizes.join(",").into()]);
        }
        // What is held to itself is held to nothing else.
        if self.form != Form::SelfTest {
            words.extend(typed.limits.iter().flat_map(|limit| ["--limit".into(), limit.into()]));
        }
        let names = |option: &str| words.iter().any(|word| word == option);
        if !self.suite.tcp && !needs_tcp(typed) && !names("--no-tcp") && !names("--tcp-only") {
            words.push("--no-tcp".into());
        }
        match &self.args.host {
            // What begins like an option is none.
            Some(host) => words.extend(["--".into(), host.into()]),
            None if self.args.loopback => words.push("--loopback".into()),
            None => {}
        }
        let program = program_of(arm.programs.as_deref(), &typed.binary)?;
        Ok(Invocation { program, environment: arm.environment.clone(), words })
    }

    fn labels(&self) -> impl Iterator<Item = OsString> {
        let labels = self.args.output.labels.iter();
        labels.flat_map(|(key, value)| ["--label".into(), format!("{key}={value}").into()])
    }

    /// Looks at a command before anything runs. Another build may know other options: it says so itself.
    fn look_at(
        &self,
        place: &str,
        binary: &str,
        arm: &TypedArm,
        invocation: &Invocation,
    ) -> Result<(Verb, Shape)> {
        let (verb, shape) = test_command::named(binary)?;
        if arm.programs.is_some() {
            return Ok((verb, shape));
        }
        let at = |error: Error| Error { message: format!("{place}: {}", error.message), ..error };
        let typed = test_command::read(verb, shape, &invocation.words).map_err(at)?;
        if let Some(option) = test_command::output(&typed) {
            return Err(Error::usage(format!("{place}: {option} is for one run, and a gate makes many"))
                .with_remedy("leave it away; --keep DIR keeps the document of every run"));
        }
        let plan = test_plan::resolve(typed, verb, shape, 0).map_err(at)?;
        match plan.role {
            Role::Server => Err(Error::usage(format!("{place}: it names no server, and would wait as one"))
                .with_remedy("add the host on which `verbmark serve` runs, or --loopback")),
            _ => Ok((verb, shape)),
        }
    }
}

/// The metrics of a test of the suite.
fn metrics(typed: &TypedTest, shape: Shape) -> Vec<Quantity> {
    match &typed.metrics {
        Some(named) => named.iter().map(|metric| metric.0).collect(),
        None => Quantity::usual(shape).to_vec(),
    }
}

/// Every metric is one that the test measures, and its rule one that can be kept.
fn check(asked: &Asked, shape: Shape) -> Result<()> {
    for &metric in &asked.metrics {
        let is_measured = match shape {
            Shape::Latency => metric != Quantity::Bandwidth && metric != Quantity::Rate,
            Shape::Bandwidth => !metric.is_latency(),
        };
        if !is_measured {
            return Err(Error::usage(format!("{} does not measure {}", asked.test, metric.name()))
                .with_remedy("p50, p99 and p99.9 of a latency test, bw and rate of a bandwidth test, cpu.client and cpu.server of both"));
        }
    }
    let rules = asked.metrics.iter().filter_map(|&metric| asked.rule(metric, 0.0));
    rules.map(|rule| rule.check()).collect::<Result<Vec<()>>>()?;
    Ok(())
}

/// One of its limits is about TCP.
fn needs_tcp(typed: &TypedTest) -> bool {
    let limits = typed.limits.iter().filter_map(|limit| limit.parse::<crate::result::LimitSpec>().ok());
    limits.into_iter().any(|limit| limit.of != Of::Rdma)
}

fn record(arm: Arm, typed: &TypedArm) -> ArmRecord {
    let usual = if arm == Arm::A { "baseline" } else { "candidate" };
    ArmRecord {
        arm,
        name: typed.name.clone().unwrap_or_else(|| usual.into()),
        environment: typed.environment.clone(),
        programs: typed.programs.as_ref().map(|directory| directory.display().to_string()),
        options: typed.options.clone(),
        busy_cores: None,
        stolen_share: None,
    }
}

fn program_of(programs: Option<&Path>, binary: &str) -> Result<PathBuf> {
    let Some(directory) = programs else {
        test_command::named(binary)?;
        return sibling::beside_us(binary);
    };
    let program = directory.join(binary);
    if program.is_file() {
        return Ok(program);
    }
    Err(Error::usage(format!("there is no {}", program.display()))
        .with_remedy("name a directory in which all binaries of the suite are"))
}

fn file_name(program: &str) -> String {
    Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// `NAME=value`, as a shell takes it before a command.
fn variable(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    let mut characters = name.chars();
    let is_name = characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|character| character.is_ascii_alphanumeric() || character == '_');
    is_name.then(|| (name.into(), value.into()))
}

fn numbered(binary: &str, number: usize) -> String {
    if number == 1 { binary.into() } else { format!("{binary} {number}") }
}
