//! What every test binary does: read the options, make a plan, run a session, write the results, and exit with the
//! status they deserve.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

use crate::error::{Error, Result, Step};
use crate::measure::Epoch;
use crate::ops::Verb;
use crate::plan::{Outputs, Plan, Shape, binary};
use crate::report::Table;
use crate::report::files::Target;
use crate::report::{csv, hlog, json, limits};
use crate::result::{Document, LimitVerdict};
use crate::session::{self, Observer, Process};
use crate::{cli, gate, plan};

/// The test binaries, a file of `src/bin` each.
pub const TESTS: &[(Verb, Shape)] = &[
    (Verb::Send, Shape::Latency),
    (Verb::Send, Shape::Bandwidth),
    (Verb::Write, Shape::Latency),
    (Verb::Write, Shape::Bandwidth),
    (Verb::WriteImm, Shape::Latency),
    (Verb::WriteImm, Shape::Bandwidth),
    (Verb::Read, Shape::Latency),
    (Verb::Read, Shape::Bandwidth),
    (Verb::FetchAdd, Shape::Latency),
    (Verb::FetchAdd, Shape::Bandwidth),
];

/// Runs the binary of `verb` and `shape`.
pub fn main(verb: Verb, shape: Shape) -> ExitCode {
    let epoch = Epoch::note();
    end(run(verb, shape, epoch))
}

/// The status a process ends with, after it has said what failed.
pub fn end(result: Result<u8>) -> ExitCode {
    let status = match result {
        Ok(status) => status,
        Err(error) => {
            complain(&error);
            error.exit_status()
        }
    };
    ExitCode::from(status)
}

/// The command of a binary, as `--help` and the manual show it.
pub fn command(verb: Verb, shape: Shape) -> clap::Command {
    cli::command(leak(binary(verb, shape)), leak(about(verb, shape)))
}

/// Reads the command line of a binary; `words` begins with the program's name.
///
/// # Errors
/// clap's error, which also carries `--help` and `--version`.
pub fn parse(
    verb: Verb,
    shape: Shape,
    words: impl IntoIterator<Item = OsString>,
) -> Result<cli::Typed, clap::Error> {
    cli::parse(leak(binary(verb, shape)), leak(about(verb, shape)), words)
}

/// clap keeps names for the life of the process.
fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

fn about(verb: Verb, shape: Shape) -> String {
    let what = match shape {
        Shape::Latency => "Latency",
        Shape::Bandwidth => "Bandwidth",
    };
    let facts = verb.facts();
    let title = if facts.is_atomic() { "atomic operations" } else { facts.title };
    format!("{what} of {title}, beside TCP between the same two ends")
}

fn run(verb: Verb, shape: Shape, epoch: Epoch) -> Result<u8> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let typed = match parse(verb, shape, words.iter().cloned()) {
        Ok(typed) => typed,
        Err(error) => return Ok(told(&error)),
    };
    let plan = plan::resolve(typed, verb, shape, random_seed()?)?;
    let outputs = Files::open(&plan.outputs)?;
    let signalled = catch_signals()?;
    let command: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let terminal = Terminal::new(&plan, &outputs);
    let process = Process { command: &command, epoch, signalled, observer: &terminal };
    let mut document = session::run(&plan, &process);
    document.limits = gate::limit::evaluate(&document, &plan.limits);
    terminal.finish(&document);
    if let Some(error) = &document.error {
        complain(error);
    }
    terminal.say_limits(&document);
    let written = outputs.write(&document).and(terminal.shown());
    let status = document.exit_status();
    match written {
        Ok(()) => Ok(status),
        // The run's own failure is the more important one.
        Err(error) if status == 0 => Err(error),
        Err(error) => {
            complain(&error);
            Ok(status)
        }
    }
}

/// Prints what clap has to say instead of options, and gives the exit status.
pub fn told(error: &clap::Error) -> u8 {
    // Help and version are no errors, and go to standard output; nobody reading them is no failure.
    let _ = error.print();
    if error.use_stderr() { 2 } else { 0 }
}

/// Says on standard error what failed, and what to do about it.
pub fn complain(error: &Error) {
    let mut lines = format!("error: {error}\n");
    if let Some(remedy) = &error.remedy {
        lines += &format!("  try: {remedy}\n");
    }
    let _ = std::io::stderr().write_all(lines.as_bytes());
}

/// What a run draws from unless it is told.
///
/// # Errors
/// The kernel gives no random numbers.
pub fn random_seed() -> Result<u64> {
    getrandom::u64().map_err(|error| Error::failed(Step::Arguments, format!("no random numbers: {error}")))
}

/// The command line of this process, as documents tell it.
pub fn command_line() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// A line about what goes on, on a terminal alone; it is gone again at the end. It has no thread of its own.
pub fn progress() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        .with_finish(ProgressFinish::AndClear);
    if let Ok(style) = ProgressStyle::with_template("{msg}") {
        bar.set_style(style);
    }
    bar
}

/// Ctrl-C, SIGTERM and the end of the terminal ask the run to stop, by the flag; a second one ends the process at once.
///
/// # Errors
/// The kernel takes no handler.
pub fn catch_signals() -> Result<&'static AtomicBool> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let flag = std::sync::Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first signal finds the flag unset, and only sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())
            .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
            .map_err(|error| Error::failed(Step::Arguments, format!("signal handler: {error}")))?;
    }
    Ok(&*Box::leak(Box::new(flag)))
}

/// The files a run writes.
#[derive(Debug)]
pub struct Files {
    json: Option<Target>,
    csv: Option<Target>,
    hlog: Option<Target>,
}

impl Files {
    /// Looks at each before anything is measured, so that a long run does not end with nowhere to go.
    ///
    /// # Errors
    /// Why one of them could not be written.
    pub fn open(outputs: &Outputs) -> Result<Self> {
        let open = |name: &Option<OsString>| match name {
            Some(name) => {
                let target = Target::from(name.as_os_str());
                target.check()?;
                Ok(Some(target))
            }
            None => Ok(None),
        };
        Ok(Self { json: open(&outputs.json)?, csv: open(&outputs.csv)?, hlog: open(&outputs.hlog)? })
    }

    /// One of them is standard output, which then has no room for a table.
    pub fn take_stdout(&self) -> bool {
        [&self.json, &self.csv, &self.hlog].into_iter().flatten().any(|target| *target == Target::Stdout)
    }

    /// Writes each.
    ///
    /// # Errors
    /// The first that could not be written.
    pub fn write(&self, document: &Document) -> Result<()> {
        if let Some(output) = &self.json {
            output.write(json::to_string(document)?.as_bytes())?;
        }
        if let Some(output) = &self.csv {
            output.write(csv::to_string(document)?.as_bytes())?;
        }
        if let Some(output) = &self.hlog {
            output.write(hlog::to_string(document)?.as_bytes())?;
        }
        Ok(())
    }
}

/// What a person sees while the run goes on: the table on standard output as it grows, progress on a terminal.
struct Terminal {
    verbose: bool,
    shows_table: bool,
    bar: ProgressBar,
    table: Mutex<Option<Shown>>,
    /// Why a part of the table could not be shown.
    unshown: OnceLock<Error>,
}

/// The table, and how many of the document's rows it shows.
struct Shown {
    table: Table,
    rows: usize,
}

impl Terminal {
    fn new(plan: &Plan, files: &Files) -> Self {
        Self {
            verbose: plan.site.verbose,
            shows_table: !files.take_stdout(),
            bar: progress(),
            table: Mutex::new(None),
            unshown: OnceLock::new(),
        }
    }

    /// Where there is no table, limits that did not pass are said all the same.
    fn say_limits(&self, document: &Document) {
        let is_told = document.limits.iter().all(|limit| limit.verdict == LimitVerdict::Pass);
        let has_table = self.shows_table && document.test.is_some();
        if !is_told && !has_table {
            limits::lines(document).iter().for_each(|line| self.say(&format!("limit: {line}")));
        }
    }

    fn shown(&self) -> Result<()> {
        self.unshown.get().cloned().map_or(Ok(()), Err)
    }

    fn print(&self, text: &str) {
        // Who closed the pipe has seen enough; the run and its files go on.
        self.bar.suspend(|| {
            if let Err(error) = Target::Stdout.offer(text.as_bytes()) {
                let _ = self.unshown.set(error);
            }
        });
    }

    fn with_table(&self, document: &Document, show: impl FnOnce(&mut Shown) -> String) {
        if !self.shows_table {
            return;
        }
        let mut table = match self.table.lock() {
            Ok(table) => table,
            Err(poisoned) => poisoned.into_inner(),
        };
        let mut text = String::new();
        let shown = table.get_or_insert_with(|| {
            let table = Table::new(document, width());
            text += table.header();
            Shown { table, rows: 0 }
        });
        text += &show(shown);
        self.print(&text);
    }

    /// The rows not shown yet, and the end of the table.
    fn finish(&self, document: &Document) {
        self.bar.finish_and_clear();
        if document.test.is_some() {
            self.measured(document);
            self.with_table(document, |shown| shown.table.footer(document));
        }
    }
}

impl Observer for Terminal {
    fn say(&self, line: &str) {
        self.bar.suspend(|| {
            let _ = writeln!(std::io::stderr(), "{line}");
        });
    }

    fn explain(&self, line: &str) {
        if self.verbose {
            self.say(line);
        }
    }

    fn connected(&self, document: &Document) {
        self.with_table(document, |_| String::new());
    }

    fn measuring(&self, what: &str, done: usize, of: usize) {
        let line = format!("measuring {what} ({} of {of})", done + 1);
        self.explain(&line);
        self.bar.set_message(line);
        self.bar.tick();
    }

    fn measured(&self, document: &Document) {
        self.with_table(document, |shown| {
            let rows = &document.results[shown.rows..];
            shown.rows = document.results.len();
            if rows.is_empty() { String::new() } else { shown.table.point(rows) }
        });
    }
}

/// Columns of the terminal the table goes to; without one it is as wide as it likes to be.
pub fn width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let (_, columns) = console::Term::stdout().size_checked()?;
    Some(columns.into())
}
