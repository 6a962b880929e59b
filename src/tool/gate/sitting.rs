//! One sitting: runs of every test, each a process of its own, one after the other, in turns where there are two arms.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use indicatif::ProgressBar;

use super::plan::Plan;
use crate::error::{Error, Kind, Result, Step};
use crate::gate::Arm;
use crate::gate::document::ArmRecord;
use crate::gate::recorded::{Recorded, Refusal, TEST_LABEL};
use crate::gate::sample::Runs;
use crate::host::MachineMeter;
use crate::report::Target;
use crate::result::LimitResult;
use crate::suite;
use crate::tool::sibling;

/// What was measured.
#[derive(Debug)]
pub struct Sitting<'a> {
    plan: &'a Plan,
    signalled: &'a AtomicBool,
    /// Where documents are kept.
    directory: Option<PathBuf>,
    /// One entry a test of the plan.
    pub tests: Vec<Measured>,
    /// Which arm ran when, of the test that ran longest.
    pub order: Vec<Arm>,
    busy: [Busy; 2],
    said: HashSet<String>,
    /// Number of the last run.
    pub count: usize,
    /// Never touched while something is measured.
    bar: ProgressBar,
}

/// The runs of one test.
#[derive(Debug, Default)]
pub struct Measured {
    /// Of the baseline.
    pub a: Runs,
    /// Of the candidate.
    pub b: Runs,
    /// What became of the limits in each run of the candidate.
    pub limits: Vec<Vec<LimitResult>>,
    /// Why it is not measured any more.
    pub error: Option<Error>,
}

/// What all cores of the machine did during the runs of an arm.
#[derive(Debug, Clone, Copy, Default)]
struct Busy {
    window_ns: f64,
    busy_ns: f64,
    stolen_ns: f64,
}

impl<'a> Sitting<'a> {
    /// One in which nothing was measured yet, and whose runs are numbered from one after `count`. With a directory, which
    /// exists, every document is kept there.
    pub fn new(plan: &'a Plan, directory: Option<&Path>, signalled: &'a AtomicBool, count: usize) -> Self {
        Self {
            plan,
            signalled,
            directory: directory.map(Path::to_path_buf),
            tests: plan.tests.iter().map(|_| Measured::default()).collect(),
            order: Vec::new(),
            busy: [Busy::default(); 2],
            said: HashSet::new(),
            count,
            bar: suite::progress(),
        }
    }

    /// Runs every test that `goes_on` once, as each arm in turn. What goes wrong with a test is its own end, and not that of
    /// the others.
    ///
    /// # Errors
    /// Nothing more can be measured: a signal came, options are no use, or a document cannot be kept.
    pub fn round(&mut self, arms: &[Arm], goes_on: impl Fn(usize) -> bool) -> Result<()> {
        for test in (0..self.tests.len()).filter(|&test| goes_on(test)) {
            for &arm in arms {
                if self.tests[test].error.is_none() {
                    self.run(test, arm)?;
                }
            }
        }
        self.order.extend(arms);
        Ok(())
    }

    fn run(&mut self, test: usize, arm: Arm) -> Result<()> {
        let planned = &self.plan.tests[test];
        let letter = if arm == Arm::A { "a" } else { "b" };
        self.bar.set_message(format!("run {}: {} ({letter})", self.count + 1, planned.asked.test));
        self.bar.tick();
        let meter = MachineMeter::start();
        let mut invocation = planned.command(arm).clone();
        // Whatever else its options are, a stored run says of which test it is.
        let label = format!("{TEST_LABEL}={}", planned.asked.test);
        invocation.words.splice(..0, ["--label".into(), label.into()]);
        let measured = sibling::measure(&invocation, self.plan.timeout, self.signalled, |_| true);
        if let Ok(spent) = meter.and_then(|meter| meter.stop()) {
            let busy = &mut self.busy[usize::from(arm == Arm::B)];
            busy.window_ns += spent.window_s * 1e9;
            busy.busy_ns += (spent.user_ns + spent.system_ns + spent.irq_ns + spent.softirq_ns) as f64;
            busy.stolen_ns += spent.steal_ns as f64;
        }
        let name = &planned.asked.test;
        let measured = match measured {
            Ok(measured) => measured,
            Err(error) if matches!(error.kind, Kind::Usage | Kind::Interrupted) => return Err(error),
            Err(error) => {
                self.say(&format!("{name}: {error}"));
                error.remedy.iter().for_each(|remedy| self.say(&format!("  try: {remedy}")));
                self.tests[test].error = Some(error);
                return Ok(());
            }
        };
        for line in &measured.said {
            // The same from every run, or nearly.
            if self.said.insert(line.clone()) {
                self.say(&format!("{name}: {line}"));
            }
        }
        self.count += 1;
        let file = format!("{:03}-{}-{letter}.json", self.count, plain_name(name));
        let shown = match &self.directory {
            None => format!("run {} ({name}, {letter})", self.count),
            Some(directory) => keep(&directory.join(file), &measured.text)?,
        };
        let Measured { a, b, limits, error } = &mut self.tests[test];
        let runs = if arm == Arm::A { a } else { b };
        let added = match Recorded::read(measured.text.as_bytes()) {
            Ok(recorded) => runs.add(&recorded, &shown),
            Err(Refusal::OtherSchema(cause) | Refusal::Broken(cause) | Refusal::Untrusted(cause)) => {
                Err(cause)
            }
        };
        match added {
            Ok(()) if arm == Arm::B => limits.push(measured.document.limits),
            Ok(()) => {}
            Err(cause) => *error = Some(Error::invalid(Step::Measure, format!("{shown}: {cause}"))),
        }
        Ok(())
    }

    /// A line for who waits, above the progress of a terminal.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| say(line));
    }

    /// What the whole machine did during the runs of an arm.
    pub fn describe(&self, arm: &mut ArmRecord) {
        let Busy { window_ns, busy_ns, stolen_ns } = self.busy[usize::from(arm.arm == Arm::B)];
        if window_ns > 0.0 {
            arm.busy_cores = Some(busy_ns / window_ns);
            arm.stolen_share = Some(stolen_ns / (busy_ns + stolen_ns).max(1.0));
        }
    }
}

/// Writes a document whole or not at all, and gives its name.
fn keep(path: &Path, text: &str) -> Result<String> {
    Target::Path(path.into()).write(text.as_bytes()).map(|()| path.display().to_string())
}

/// A name that is one of a file on any system.
fn plain_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect()
}

/// A line for who waits.
pub fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
