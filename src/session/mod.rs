//! Who does what when: client, server and loopback. A session fills a result document and never fails to return one.

use std::sync::atomic::AtomicBool;

use crate::error::Error;
use crate::measure::Epoch;
use crate::plan::{Plan, Role};
use crate::result::{Document, Tool};

mod at_client;
mod at_server;
mod both;
mod client;
mod ends;
mod establish;
mod lane;
mod loopback;
mod lossy;
mod meter;
mod phase;
mod pipeline;
mod refusals;
mod rest;
mod row;
mod serve;
mod server;
mod team;
mod threads;

pub use serve::{Ending, serve};

#[cfg(test)]
mod tests;

/// What a session tells while it runs. Called between measurements, never inside one.
pub trait Observer: Sync {
    /// A line for standard error that everyone should see, such as where a server listens.
    fn say(&self, line: &str);
    /// A line for who asked for `-v`.
    fn explain(&self, line: &str);
    /// Both ends are connected; the document has all that stands in a table's head.
    fn connected(&self, document: &Document);
    /// A point is about to be measured: the `done`th of `of`.
    fn measuring(&self, what: &str, done: usize, of: usize);
    /// A size has been measured over all its paths.
    fn measured(&self, document: &Document);
}

/// What a process brings to a session.
#[derive(Clone, Copy)]
pub struct Process<'a> {
    /// The command line, for the document.
    pub command: &'a [String],
    /// When the process began, on both clocks.
    pub epoch: Epoch,
    /// Set by a signal that asks the process to stop.
    pub signalled: &'static AtomicBool,
    /// Who hears of what happens.
    pub observer: &'a dyn Observer,
}

/// Does what the plan says, and returns the document of it, finished: also of a run that failed.
pub fn run(plan: &Plan, process: &Process<'_>) -> Document {
    let mut document = new_document(plan, process);
    let outcome = match &plan.role {
        Role::Client(host) => client::run(plan, host, process, &mut document),
        Role::Server => server::run(plan, process, &mut document),
        Role::Loopback => loopback::run(plan, process, &mut document),
    };
    finish(&mut document, outcome);
    document
}

fn new_document(plan: &Plan, process: &Process<'_>) -> Document {
    Document::new(
        Tool::new(plan.test.binary()),
        process.command.to_vec(),
        plan.labels.iter().cloned().collect(),
    )
}

fn finish(document: &mut Document, outcome: Result<(), Error>) {
    if let Err(error) = outcome {
        document.fail(error);
    }
    document.finish();
}
