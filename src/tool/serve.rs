//! `verbmark serve`: any test for any client, one after the other, until it is stopped.

use std::io::Write;

use crate::cli::tool::ServeArgs;
use crate::error::Result;
use crate::measure::Epoch;
use crate::plan::{Most, Site};
use crate::result::Document;
use crate::session::{self, Ending, Observer, Process};
use crate::suite;

/// Exit status of a server that was stopped while it served.
const INTERRUPTED: u8 = 130;

/// Serves, and gives the exit status: stopped between two clients it did as asked.
///
/// # Errors
/// It cannot listen, or its device cannot be used.
pub fn run(args: &ServeArgs) -> Result<u8> {
    let &ServeArgs { max_size: size, max_memory: memory, max_duration: duration, max_qps: qps, .. } = args;
    let site = Site {
        most: Most { size, memory, duration, spare: Most::SPARE, qps },
        ..Site::of_server(args.endpoint.clone(), args.tcp_only, args.verbose)
    };
    let command = suite::command_line();
    let voice = Voice { verbose: args.verbose };
    let signalled = suite::catch_signals()?;
    let process = Process { command: &command, epoch: Epoch::note(), signalled, observer: &voice };
    match session::serve(&site, !args.no_queue, &process)? {
        Ending::Idle => Ok(0),
        Ending::Cut => Ok(INTERRUPTED),
    }
}

/// A line a client on standard error, and no tables: those are the client's.
struct Voice {
    verbose: bool,
}

impl Observer for Voice {
    fn say(&self, line: &str) {
        // One write a line: two threads speak.
        let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
    }

    fn explain(&self, line: &str) {
        if self.verbose {
            self.say(line);
        }
    }

    fn connected(&self, _: &Document) {}
    fn measuring(&self, _: &str, _: usize, _: usize) {}
    fn measured(&self, _: &Document) {}
}
