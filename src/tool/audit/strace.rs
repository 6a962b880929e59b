//! A test under strace: started, watched, and ended within its time.

use std::ffi::{OsString, c_int};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::trace::Trace;
use crate::error::{Error, Result, Step};
use crate::result::Document;
use crate::tool::sibling;

/// Most bytes that the pipe is asked to hold between two looks at it (it is not waited for: a wake-up for each line would
/// slow the test down further); what any user may have (`pipe(7)`).
const PIPE: c_int = 1 << 20;

/// Readings in a row, which take more than that.
const READINGS: u32 = 64;

/// What strace's own words begin with.
const STRACE: &str = "strace: ";

/// What came of a traced run that ended well.
#[derive(Debug)]
pub struct Traced {
    /// What it did.
    pub trace: Trace,
    /// What it measured.
    pub document: Document,
}

/// The version of strace, such as `6.1`.
///
/// # Errors
/// There is none that could be run.
pub fn version() -> Result<String> {
    let said =
        Command::new("strace").arg("-V").stdin(Stdio::null()).output().map_err(|error| not_run(&error))?;
    let text = String::from_utf8_lossy(&said.stdout);
    let version = text.lines().next().and_then(|line| line.split_once("version "));
    version.map(|(_, version)| version.trim().to_owned()).ok_or_else(|| {
        Error::failed(Step::Measure, format!("strace -V ended with {} and names no version", said.status))
            .with_remedy(INSTALL)
    })
}

const INSTALL: &str = "install strace: apt install strace";

fn not_run(error: &std::io::Error) -> Error {
    let error = match error.kind() {
        ErrorKind::NotFound => "strace is not installed".into(),
        _ => format!("strace cannot be run: {error}"),
    };
    Error::failed(Step::Measure, error).with_remedy(INSTALL)
}

/// Runs `program` with `words` under strace. What it says on standard error is passed on; its table is not, since
/// its times mean nothing.
///
/// # Errors
/// It could not be traced, failed itself, took longer than `timeout`, or a signal came. Nothing of it runs on.
pub fn run(program: &Path, words: &[OsString], timeout: Duration, signalled: &AtomicBool) -> Result<Traced> {
    let files = tempfile::tempdir().map_err(|error| no_pipe(&error))?;
    let (pipe, json) = (files.path().join("trace"), files.path().join("run.json"));
    mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|errno| no_pipe(&errno.into()))?;
    // Opened first, and without waiting for a writer, who may never come.
    let mut reader = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&pipe)
        .map_err(|error| no_pipe(&error))?;
    // A smaller one only makes strace wait.
    let _ = fcntl(&reader, FcntlArg::F_SETPIPE_SZ(PIPE));
    let mut child = Command::new("strace")
        // Threads too; neither arguments in full nor signals, which are not looked at.
        .args(["-f", "-qq", "-s", "16", "-e", "verbose=none", "-e", "signal=none", "-o"])
        .arg(&pipe)
        .arg("--")
        .arg(program)
        .arg("--json")
        .arg(&json)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // Of its own, which can be ended as a whole. Ctrl-C reaches it through us, and so once.
        .process_group(0)
        .spawn()
        .map_err(|error| not_run(&error))?;
    let heard = child
        .stderr
        .take()
        .map(|stderr| std::thread::spawn(move || sibling::pass_on(stderr, |line| line.starts_with(STRACE))));
    let mut trace = Trace::default();
    let late = || took_too_long(timeout);
    let ended = sibling::attend(&mut child, timeout, signalled, late, || drain(&mut reader, &mut trace));
    let complaints = heard.and_then(|heard| heard.join().ok()).unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let status = ended?;
    let document = std::fs::read_to_string(&json).ok();
    match (status.code(), document) {
        (Some(0), Some(document)) => Ok(Traced { trace, document: Document::from_json(&document)? }),
        (_, None) if !complaints.is_empty() => Err(not_traced(&complaints)),
        (code, document) => {
            let reason = document.and_then(|text| Document::from_json(&text).ok()).and_then(untrusted);
            Err(failed(&name, code, reason.unwrap_or_else(|| status.to_string())))
        }
    }
}

/// Why a run that came to its end must not be trusted.
fn untrusted(document: Document) -> Option<String> {
    let rows = document.results.into_iter().filter(|row| !row.validity.ok);
    rows.flat_map(|row| row.validity.reasons).next()
}

fn no_pipe(error: &std::io::Error) -> Error {
    Error::failed(Step::Measure, format!("no pipe for the trace: {error}"))
        .with_remedy("set TMPDIR to a directory that this user may write to")
}

fn drain(reader: &mut File, trace: &mut Trace) -> Result<()> {
    let mut piece = [0; 1 << 16];
    for _ in 0..READINGS {
        match reader.read(&mut piece) {
            // No writer: none yet, or none any more.
            Ok(0) => return Ok(()),
            Ok(count) => trace.feed(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(broken(&error)),
        }
    }
    Ok(())
}

fn broken(error: &std::io::Error) -> Error {
    Error::failed(Step::Measure, format!("lost strace: {error}"))
}

fn took_too_long(timeout: Duration) -> Error {
    Error::failed(Step::Measure, format!("the traced run took longer than {} s and was ended", timeout.as_secs_f64()))
        .with_remedy(
            "raise --timeout, or lower -n; a server waits for one client a path: give both ends the same of --no-tcp \
             and --tcp-only",
        )
}

fn not_traced(complaints: &[String]) -> Error {
    let error = Error::failed(
        Step::Measure,
        format!(
            "strace cannot trace: {}",
            complaints.iter().map(|line| line.trim_start_matches(STRACE)).collect::<Vec<_>>().join("; ")
        ),
    );
    if complaints.iter().any(|complaint| complaint.contains("not permitted")) {
        return error.with_remedy(
            "ptrace(2) must be allowed: sysctl kernel.yama.ptrace_scope=1 or less, and in a container --cap-add SYS_PTRACE",
        );
    }
    error.with_remedy("see that `strace true` works")
}

/// The test's own error has been passed on; this one gives its status.
fn failed(name: &str, code: Option<i32>, reason: String) -> Error {
    match code {
        Some(2) => Error::usage(format!("{name} takes no such options, as it says above")),
        Some(130) => Error::interrupted(Step::Measure),
        _ => Error::failed(Step::Measure, format!("{name} failed under strace: {reason}"))
            .with_remedy(
                "see what it says above, and whether it works without an audit; an end that spins on a socket may be \
                 too slow when traced, and one that sleeps (--events) is not",
            ),
    }
}
