//! Other binaries of the suite, run as processes of their own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::error::{Error, Result, Step};
use crate::result::Document;
use crate::sys::process;

/// How often a process is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// How long a process is given to end after it was asked to.
const GRACE: Duration = Duration::from_secs(5);

/// The binary of this build, and not one of another that is found first.
///
/// # Errors
/// Usage: it is not there.
pub fn beside_us(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()
        .map_err(|error| Error::failed(Step::Arguments, format!("where this program is: {error}")))?;
    let program = own.with_file_name(name);
    if program.is_file() {
        return Ok(program);
    }
    Err(Error::usage(format!("there is no {}", program.display()))
        .with_remedy("install all binaries of the suite in one directory"))
}

/// Runs a test and gives its document. What it says on standard error is passed on, its table is not shown.
///
/// # Errors
/// It failed, took longer than `timeout`, or a signal came. Nothing of it runs on.
pub fn measure(
    program: &Path,
    words: &[OsString],
    timeout: Duration,
    signalled: &AtomicBool,
) -> Result<Document> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let files = tempfile::tempdir().map_err(|error| {
        Error::failed(Step::Output, format!("no directory for the run's document: {error}"))
    })?;
    let json = files.path().join("run.json");
    let mut command = Command::new(program);
    // As a person types it: where it lies on this machine is nothing for its document.
    command.arg0(&*name).arg("--json").arg(&json).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child = process::ends_with_us(&mut command)
        .spawn()
        .map_err(|error| Error::failed(Step::Measure, format!("{name} cannot be run: {error}")))?;
    // Its error is in the document, and said once.
    let is_error = |line: &str| line.starts_with("error: ") || line.starts_with("  try: ");
    let heard = child.stderr.take().map(|stderr| std::thread::spawn(move || pass_on(stderr, is_error)));
    let late = || {
        let seconds = timeout.as_secs_f64();
        Error::failed(Step::Measure, format!("{name} took longer than {seconds} s and was ended"))
            .with_remedy("raise --timeout")
    };
    let ended = attend(&mut child, timeout, signalled, late, || Ok(()));
    let kept = heard.and_then(|heard| heard.join().ok()).unwrap_or_default();
    let status = ended?;
    let document = std::fs::read_to_string(&json).ok().map(|text| Document::from_json(&text)).transpose()?;
    match (status.code(), document) {
        (Some(0), Some(document)) => Ok(document),
        (Some(2), None) => {
            let said = kept.first().map_or("no such options", |line| line.trim_start_matches("error: "));
            Err(Error::usage(format!("{name}: {said}")))
        }
        (_, Some(Document { error: Some(error), .. })) => Err(error),
        (_, Some(document)) => {
            let reasons = document.results.into_iter().flat_map(|row| row.validity.reasons);
            let reason = reasons.last().unwrap_or_else(|| status.to_string());
            Err(Error::invalid(Step::Measure, format!("{name}: {reason}")))
        }
        (_, None) => {
            Err(Error::failed(Step::Measure, format!("{name} wrote no document and ended with {status}")))
        }
    }
}

/// Waits for the end of a process in a group of its own, and does `meanwhile` now and then. One that is `late`, or is not
/// wanted any more, is asked to end and then killed.
///
/// # Errors
/// It was ended, or what was done meanwhile failed.
pub fn attend(
    child: &mut Child,
    timeout: Duration,
    signalled: &AtomicBool,
    late: impl Fn() -> Error,
    mut meanwhile: impl FnMut() -> Result<()>,
) -> Result<ExitStatus> {
    let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
    let mut end = Instant::now() + timeout;
    let mut reason: Option<Error> = None;
    loop {
        // In this order: after its end all that it wrote is there.
        let status = child
            .try_wait()
            .map_err(|error| Error::failed(Step::Measure, format!("lost the process: {error}")))?;
        if let Err(error) = meanwhile() {
            let _ = killpg(group, Signal::SIGKILL);
            let _ = child.wait();
            return Err(error);
        }
        if let Some(status) = status {
            return reason.map_or(Ok(status), Err);
        }
        let is_late = Instant::now() >= end;
        match reason {
            None if signalled.load(Ordering::Relaxed) => {
                reason = Some(Error::interrupted(Step::Measure));
                end = ask_to_end(group);
            }
            None if is_late => {
                reason = Some(late());
                end = ask_to_end(group);
            }
            Some(_) if is_late => {
                let _ = killpg(group, Signal::SIGKILL);
                end += GRACE;
            }
            _ => {}
        }
        std::thread::sleep(LOOK);
    }
}

/// The test writes what it has, and ends.
fn ask_to_end(group: Pid) -> Instant {
    // It may have ended by itself just now.
    let _ = killpg(group, Signal::SIGTERM);
    Instant::now() + GRACE
}

/// Passes on what a process says, line by line as it comes, but for those lines that `keeps` holds back; gives these.
pub fn pass_on(stderr: ChildStderr, keeps: impl Fn(&str) -> bool) -> Vec<String> {
    let mut kept = Vec::new();
    for line in BufReader::new(stderr).split(b'\n').map_while(std::result::Result::ok) {
        let text = String::from_utf8_lossy(&line);
        if keeps(&text) {
            kept.push(text.into_owned());
        } else {
            // Nobody reading is no failure.
            drop(std::io::stderr().write_all(&[&line[..], b"\n"].concat()));
        }
    }
    kept
}
