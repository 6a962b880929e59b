//! What `verbmark` does: one subcommand a file, none of which decides what is measured. A subcommand gives the exit status,
//! or the error that decides it.

use std::process::ExitCode;

use crate::cli::tool::{self as typed, Task};
use crate::error::Result;
use crate::suite;

pub mod audit;
pub mod compare;
pub mod devices;
pub mod doctor;
pub mod explain;
pub mod gate;
mod manual;
mod output;
mod report;
mod serve;
mod sibling;
mod test_command;

/// Runs `verbmark`.
pub fn main() -> ExitCode {
    suite::end(run())
}

fn run() -> Result<u8> {
    match typed::parse(std::env::args_os()) {
        Ok(args) => match args.task {
            Task::Audit(args) => audit::run(&args),
            Task::Compare(args) => compare::run(&args),
            Task::Devices(args) => devices::run(&args),
            Task::Doctor(args) => doctor::run(&args),
            Task::Explain(args) => explain::run(&args),
            Task::Gate(args) => gate::run(&args),
            Task::Report(args) => report::run(&args),
            Task::Serve(args) => serve::run(&args),
            Task::Man(args) => manual::pages(&args),
            Task::Completions(args) => manual::completions(&args),
        },
        Err(error) => Ok(suite::told(&error)),
    }
}
