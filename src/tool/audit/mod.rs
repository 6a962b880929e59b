//! `verbmark audit`: a test run once more under strace, for what its numbers rest on and no clock shows: the system calls
//! that each message takes at each end and over each path, and the copies that follow from the path.

use std::sync::atomic::AtomicBool;

use crate::cli::tool::AuditArgs;
use crate::error::{Kind, Result};
use crate::suite;
use crate::tool::output::Output;

mod record;
mod request;
mod strace;
mod table;
mod trace;

pub use record::{
    Audit, AuditedCopies, AuditedDevice, AuditedEnd, AuditedRun, AuditedTest, SCHEMA, SystemCall,
    SystemCalls, Tracer,
};
pub use request::Request;
pub use table::render;

/// Audits, and gives the exit status.
///
/// # Errors
/// The test's options are no use, a run failed, or the document could not be written.
pub fn run(args: &AuditArgs) -> Result<u8> {
    let output = Output::open(args.json.as_deref())?;
    let request = Request::new(&args.test, args.timeout)?;
    let audit = run_traced(&request, suite::catch_signals()?);
    if audit.error.as_ref().is_some_and(|error| error.kind == Kind::Usage) {
        return audit.error.map_or(Ok(0), Err);
    }
    if !audit.runs.is_empty() {
        output.show(|| render(&audit, suite::width()));
    }
    output.write(&audit)?;
    audit.error.map_or(Ok(0), Err)
}

/// Runs the test once for each path under strace. What went wrong is in the audit, beside what was traced before.
/// `signalled` ends a run under way.
pub fn run_traced(request: &Request, signalled: &AtomicBool) -> Audit {
    let command = suite::command_line();
    let mut audit = Audit::new(command);
    if let Err(error) = trace_all(&mut audit, request, signalled) {
        audit.fail(error);
    }
    audit
}

fn trace_all(audit: &mut Audit, request: &Request, signalled: &AtomicBool) -> Result<()> {
    audit.tracer = Some(Tracer { name: "strace".into(), version: strace::version()? });
    for words in &request.runs {
        let traced = strace::run(&request.program, words, request.timeout, signalled)?;
        audit.add(&request.role, &traced)?;
    }
    Ok(())
}
