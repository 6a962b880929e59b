//! `reg_mr_lat`: what registering memory costs, and from how many uses of a buffer on that is less than copying into
//! one that is registered already.
//!
//! Options become a [`Plan`], a run of it fills a [`Document`], and the table and the files come from that alone.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use crate::cli::registration as typed;
use crate::error::{Error, Result};
use crate::measure::Epoch;
use crate::report::{Target, json};
use crate::suite;

pub mod csv;
mod document;
mod plan;
mod run;
mod table;
mod timing;

pub use document::{
    BreakEven, Device, Document, Extent, Local, Metric, Operation, Pages, Paging, ResultRow, SCHEMA,
    Statistics, TestRecord,
};
pub use plan::Plan;
pub use table::{Table, render};

/// Its name.
pub const BINARY: &str = "reg_mr_lat";

/// The command, as `--help` and the manual show it.
pub fn command() -> clap::Command {
    typed::command()
}

/// Runs `reg_mr_lat`.
pub fn main() -> ExitCode {
    let epoch = Epoch::note();
    suite::end(main_from(epoch))
}

fn main_from(epoch: Epoch) -> Result<u8> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let plan = match typed::parse(words.iter().cloned()) {
        Ok(args) => Plan::resolve(args)?,
        Err(error) => return Ok(suite::told(&error)),
    };
    let [json_to, csv_to] =
        [&plan.outputs.json, &plan.outputs.csv].map(|name| name.as_deref().map(Target::from));
    for target in [&json_to, &csv_to].into_iter().flatten() {
        target.check()?;
    }
    let signalled = suite::catch_signals()?;
    let command = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let shows_table = ![&json_to, &csv_to].into_iter().flatten().any(|target| *target == Target::Stdout);
    let mut screen = Screen { verbose: plan.verbose, shows_table, table: None, unshown: OnceCell::new() };
    let document = run::run(&plan, command, epoch, signalled, &mut screen);
    screen.finish(&document);
    if let Some(error) = &document.error {
        suite::complain(error);
    }
    let status = document.exit_status();
    let shown = screen.unshown.into_inner().map_or(Ok(()), Err);
    match write(&document, json_to, csv_to).and(shown) {
        Ok(()) => Ok(status),
        // The run's own failure is the more important one.
        Err(error) if status == 0 => Err(error),
        Err(error) => {
            suite::complain(&error);
            Ok(status)
        }
    }
}

fn write(document: &Document, json_to: Option<Target>, csv_to: Option<Target>) -> Result<()> {
    if let Some(target) = json_to {
        target.write(json::to_string(document)?.as_bytes())?;
    }
    if let Some(target) = csv_to {
        target.write(csv::to_string(document)?.as_bytes())?;
    }
    Ok(())
}

/// What a person sees while the run goes on.
struct Screen {
    verbose: bool,
    shows_table: bool,
    table: Option<Table>,
    /// Why a part of the table could not be shown.
    unshown: OnceCell<Error>,
}

impl Screen {
    /// A line for who asked for `-v`.
    fn explain(&self, line: &str) {
        if self.verbose {
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    /// Device and test are known.
    fn begin(&mut self, document: &Document) {
        let table = Table::new(document, suite::width());
        self.print(table.header());
        self.table = Some(table);
    }

    /// A size has been measured.
    fn measured(&self, document: &Document, size_bytes: u64) {
        if let Some(table) = &self.table {
            self.print(&table.size(document, size_bytes));
        }
    }

    fn finish(&self, document: &Document) {
        if let Some(table) = &self.table {
            self.print(&table.footer(document));
        }
    }

    fn print(&self, text: &str) {
        // Who closed the pipe has seen enough; the run and its files go on.
        if self.shows_table
            && let Err(error) = Target::Stdout.offer(text.as_bytes())
        {
            let _ = self.unshown.set(error);
        }
    }
}
