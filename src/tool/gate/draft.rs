//! The tests of a plan, from commands as they were typed and from a suite file.

use std::collections::HashSet;
use std::ffi::OsString;

use super::asked::{check, of_test};
use super::suite::{Suite, TypedArm, TypedTest, is_measured, names, tolerances};
use super::typed::Typed;
use crate::cli;
use crate::cli::tool::GateArgs;
use crate::error::{Error, Result};
use crate::gate::Arm;
use crate::gate::document::{ArmRecord, Form};
use crate::gate::series::Asked;
use crate::plan::{self as test_plan, Role, Shape};
use crate::result::{Of, Quantity, Transport};
use crate::tool::sibling::{self, Invocation};
use crate::tool::test_command;

/// Makes tests of what was typed.
pub struct Drafts<'a> {
    /// The options.
    pub args: &'a GateArgs,
    /// The suite; without a test where none was named.
    pub suite: &'a Suite,
    /// What is asked of all tests.
    pub asked: &'a Asked,
    /// What the candidate is held to.
    pub form: Form,
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

impl Drafts<'_> {
    /// Of the commands on the command line.
    ///
    /// # Errors
    /// Usage: one of them makes no sense, or the two have nothing in common.
    pub fn typed(&self, a: Option<Typed>, b: Typed) -> Result<(Vec<ArmRecord>, Vec<PlannedTest>)> {
        let mut name = b.binary.clone();
        if let Some(a) = &a {
            if a.shape != b.shape {
                return Err(Error::usage(format!("{} and {} have no metric in common", a.binary, b.binary))
                    .with_remedy("compare two latency tests, or two bandwidth tests"));
            }
            if a.binary != b.binary {
                name = format!("{} against {}", b.binary, a.binary);
            }
        }
        let asked = of_test(self.asked, name, b.shape)?;
        let arms = a.iter().map(|a| record(Arm::A, &a.arm)).chain([record(Arm::B, &b.arm)]).collect();
        let invocation = |typed: &Typed| {
            let words = self.labels().chain(typed.arm.options.iter().map(OsString::from)).collect();
            let environment = typed.arm.environment.clone();
            let invocation = Invocation { program: typed.program.clone(), environment, words };
            look_at(typed.option, &typed.binary, &typed.arm, &invocation).map(|()| invocation)
        };
        let b = invocation(&b)?;
        let a = a.as_ref().map(invocation).transpose()?;
        Ok((arms, vec![PlannedTest { asked, a, b }]))
    }

    /// Of the suite file.
    ///
    /// # Errors
    /// Usage: what of it makes no sense, with its place.
    pub fn of_suite(&self) -> Result<(Vec<ArmRecord>, Vec<PlannedTest>)> {
        let a = self.suite.a.as_ref().filter(|_| self.form == Form::Turns);
        let candidate = self.suite.b.clone().unwrap_or_default();
        let mut tests = Vec::new();
        for Draft { typed, place, shape, mut asked } in self.drafts()? {
            let looked_at = |arm: &TypedArm, header: &str| {
                let place = format!("{place}{header}");
                let limited =
                    self.invocation(typed, arm, shape, true).map_err(|error| error.within(&place))?;
                look_at(&place, &typed.binary, arm, &limited)?;
                // What is held to itself is held to nothing else.
                let is_limited = self.form != Form::SelfTest;
                self.invocation(typed, arm, shape, is_limited)
            };
            let a = a.map(|a| looked_at(a, ", [a]")).transpose()?;
            let b = looked_at(&candidate, if self.suite.b.is_some() { ", [b]" } else { "" })?;
            let is_tcp_only = names(&b.words, "--tcp-only");
            asked.transport = asked.transport.filter(|_| !is_tcp_only);
            tests.push(PlannedTest { asked, a, b });
        }
        let arms = a.map(|a| record(Arm::A, a)).into_iter().chain([record(Arm::B, &candidate)]);
        Ok((arms.collect(), tests))
    }

    /// What the suite asks of each binary, test by test.
    ///
    /// # Errors
    /// As of [`Drafts::of_suite`].
    pub fn of_binaries(&self) -> Result<Vec<(String, Asked)>> {
        let drafts = self.drafts()?.into_iter();
        Ok(drafts.map(|draft| (draft.typed.binary.clone(), draft.asked)).collect())
    }

    /// The tests of the suite, and what is asked of each.
    fn drafts(&self) -> Result<Vec<Draft<'_>>> {
        self.suite.check_arms()?;
        self.suite.check_floors()?;
        let mut named = HashSet::new();
        let mut drafts: Vec<Draft<'_>> = Vec::new();
        for test in &self.suite.test {
            let typed = test.get_ref();
            let (_, shape) = test_command::named(&typed.binary)?;
            let usual = || {
                let mut names = (1..).map(|n| numbered(&typed.binary, n));
                names.find(|name| !named.contains(name)).unwrap_or_default()
            };
            let name = typed.name.clone().unwrap_or_else(usual);
            let place = format!("{}: test {name}", self.suite.place(test));
            if !named.insert(name.clone()) {
                return Err(Error::usage(format!("{place}: two tests of the suite are called {name}"))
                    .with_remedy("give each a name of its own"));
            }
            let mut asked = Asked {
                test: name,
                metrics: typed.metrics.clone().unwrap_or_else(|| Quantity::usual(shape).to_vec()),
                is_usual: typed.metrics.is_none(),
                transport: (!self.suite.tcp).then_some(Transport::Rdma),
                ..self.asked.clone()
            };
            asked.tolerances.extend(tolerances(&typed.tolerance));
            check(&asked, shape).map_err(|error| error.within(&place))?;
            let own = self.suite.unjudged(&typed.tolerance, &asked.metrics).next();
            if let Some((at, metric)) = own {
                let judged: Vec<_> = asked.metrics.iter().map(|metric| metric.name()).collect();
                let cause =
                    format!("{at}: test {}: a tolerance for {metric}, which it does not judge", asked.test);
                return Err(Error::usage(cause).with_remedy(format!(
                    "leave it away, or add {metric} to its metrics: {}",
                    judged.join(", ")
                )));
            }
            drafts.push(Draft { typed, place, shape, asked });
        }
        let all: Vec<_> = drafts.iter().flat_map(|draft| draft.asked.metrics.iter().copied()).collect();
        if let Some((at, metric)) = self.suite.unjudged(&self.suite.tolerance, &all).next() {
            let cause = format!("{at}: a tolerance for {metric}, which no test of the suite judges");
            return Err(Error::usage(cause)
                .with_remedy(format!("leave it away, or add {metric} to the metrics of a test")));
        }
        Ok(drafts)
    }

    fn invocation(
        &self,
        typed: &TypedTest,
        arm: &TypedArm,
        shape: Shape,
        is_limited: bool,
    ) -> Result<Invocation> {
        let limits = typed.limits.iter().map(|limit| &limit.0);
        let own = [&self.suite.options, &arm.options, &typed.options];
        let mut words: Vec<OsString> = self.labels().collect();
        words.extend(own.into_iter().flatten().map(OsString::from));
        self.suite.check_paths(&words, limits.clone())?;
        if let Some(sizes) = &typed.sizes {
            self.suite.check_sizes(typed, arm, shape)?;
            words.extend(["-s".into(), sizes.into()]);
        }
        if is_limited {
            words.extend(limits.clone().flat_map(|limit| ["--limit".into(), limit.to_string().into()]));
        }
        let needs_tcp = self.suite.tcp || limits.clone().any(|limit| limit.of != Of::Rdma);
        if !needs_tcp && !names(&words, "--no-tcp") && !names(&words, "--tcp-only") {
            words.push("--no-tcp".into());
        }
        match &self.args.host {
            // What begins like an option is none.
            Some(host) => words.extend(["--".into(), host.into()]),
            None if self.args.loopback => words.push("--loopback".into()),
            None => {}
        }
        let program = sibling::program(arm.programs.as_deref(), &typed.binary)?;
        Ok(Invocation { program, environment: arm.environment.clone(), words })
    }

    fn labels(&self) -> impl Iterator<Item = OsString> {
        let labels = self.args.output.labels.iter();
        labels.flat_map(|(key, value)| ["--label".into(), format!("{key}={value}").into()])
    }
}

/// A test of the suite before its commands.
struct Draft<'a> {
    typed: &'a TypedTest,
    place: String,
    shape: Shape,
    asked: Asked,
}

/// Looks at a command before anything runs. Another build may know other options, and says so itself.
fn look_at(place: &str, binary: &str, arm: &TypedArm, invocation: &Invocation) -> Result<()> {
    match looked_at(binary, invocation) {
        Ok(typed) => check_use(typed).map_err(|error| error.within(place)),
        Err(_) if arm.programs.is_some() => Ok(()),
        Err(error) => Err(error.within(place)),
    }
}

/// A command as this build reads it.
fn looked_at(binary: &str, invocation: &Invocation) -> Result<(cli::Typed, test_plan::Plan)> {
    let (verb, shape) = test_command::named(binary)?;
    let typed = test_command::read(verb, shape, &invocation.words)?;
    let plan = test_plan::resolve(typed.clone(), verb, shape, 0)?;
    Ok((typed, plan))
}

/// It is a run that a gate can make, and that measures what it is held to.
fn check_use((typed, plan): (cli::Typed, test_plan::Plan)) -> Result<()> {
    if let Some(option) = test_command::output(&typed) {
        return Err(Error::usage(format!("{option} is for one run, and a gate makes many"))
            .with_remedy("leave it away; --keep DIR keeps the document of every run"));
    }
    if plan.role == Role::Server {
        return Err(Error::usage("it names no server, and would wait as one")
            .with_remedy("add the host on which `verbmark serve` runs, or --loopback"));
    }
    let has = |transport| plan.test.transports.contains(&transport);
    match plan.limits.iter().find(|limit| !is_measured(limit, has(Transport::Rdma), has(Transport::Tcp))) {
        None => Ok(()),
        Some(limit) => Err(Error::usage(format!("--limit {limit} is about a path that is not measured"))
            .with_remedy("leave it away, or --no-tcp or --tcp-only")),
    }
}

fn record(arm: Arm, typed: &TypedArm) -> ArmRecord {
    ArmRecord {
        arm,
        name: typed.name_as(arm).into(),
        environment: typed.environment.clone(),
        programs: typed.programs.as_ref().map(|directory| directory.display().to_string()),
        options: typed.options.clone(),
        busy_cores: None,
        stolen_share: None,
    }
}

fn numbered(binary: &str, number: usize) -> String {
    if number == 1 { binary.into() } else { format!("{binary} {number}") }
}
