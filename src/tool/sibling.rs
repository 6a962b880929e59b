//! Other binaries of the suite, run as processes of their own.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{AccessFlags, Pid, access};

use crate::error::{Error, Result, Step};
use crate::result::{Document, Status};
use crate::sys::process;

/// How often a process is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// How long what a process said may take to arrive after its end.
const LAST_WORDS: Duration = Duration::from_secs(1);

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
    if is_executable(&program) {
        return Ok(program);
    }
    Err(Error::usage(format!("{name} is not beside this program: there is no {} to run", program.display()))
        .with_remedy("install all binaries of the suite in one directory"))
}

/// A binary of a directory, or of this build where none is named.
///
/// # Errors
/// Usage: it is not there, or cannot be run.
pub fn program(directory: Option<&Path>, binary: &str) -> Result<PathBuf> {
    let Some(directory) = directory else { return beside_us(binary) };
    let shown = directory.display();
    let program = directory.join(binary);
    let cause = match () {
        () if is_executable(&program) => return Ok(program),
        () if !directory.exists() => format!("there is no directory {shown}, and so no {binary} in it"),
        () if !directory.is_dir() => format!("{shown} is no directory"),
        () if !program.exists() => format!("there is no {binary} in {shown}"),
        () => format!("{} is no program that can be run", program.display()),
    };
    Err(Error::usage(cause).with_remedy("name a directory, as seen from here, with the binaries of a build"))
}

/// There is such a file, and this user may run it.
fn is_executable(program: &Path) -> bool {
    program.is_file() && access(program, AccessFlags::X_OK).is_ok()
}

/// A test to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// The binary.
    pub program: PathBuf,
    /// Variables of its environment, besides ours.
    pub environment: BTreeMap<String, String>,
    /// Its options.
    pub words: Vec<OsString>,
}

impl Invocation {
    /// The limits among its options, as typed.
    pub fn limits(&self) -> Vec<String> {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        let apart = words.windows(2).filter(|pair| pair[0] == "--limit").map(|pair| pair[1].to_string());
        let joined = words.iter().filter_map(|word| word.strip_prefix("--limit=").map(str::to_owned));
        apart.chain(joined).collect()
    }

    /// The binary as a person types it: where it lies on this machine is nothing for a document.
    pub fn name(&self) -> Cow<'_, str> {
        self.program.file_name().unwrap_or_default().to_string_lossy()
    }

    /// The command as a document has it: assignments, the program by its path where it is another build's, and its words.
    pub fn command(&self) -> Vec<String> {
        let environment = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let name = self.name();
        let is_ours = beside_us(&name).is_ok_and(|ours| ours == self.program);
        let program = if is_ours { name.into_owned() } else { self.program.display().to_string() };
        let words = self.words.iter().map(|word| word.to_string_lossy().into_owned());
        environment.chain([program]).chain(words).collect()
    }

    /// Before a command a shell takes an assignment to this name; to others it does not.
    pub fn is_shell_name(name: &str) -> bool {
        let mut characters = name.chars();
        characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && characters.all(|character| character.is_ascii_alphanumeric() || character == '_')
    }
}

/// What a run gave.
#[derive(Debug)]
pub struct Measured {
    /// Its document.
    pub document: Document,
    /// The same as it was written.
    pub text: String,
    /// What it said on standard error and was held back.
    pub said: Vec<String>,
}

/// Runs a test and gives its document. Its table is not shown; of what it says on standard error, lines that `holds_back`
/// names are kept, and the others passed on.
///
/// # Errors
/// It failed, took longer than `timeout`, or a signal came. Nothing of it runs on.
pub fn measure(
    invocation: &Invocation,
    timeout: Duration,
    signalled: &AtomicBool,
    holds_back: fn(&str) -> bool,
) -> Result<Measured> {
    let name = invocation.name();
    let files = tempfile::tempdir().map_err(|error| {
        Error::failed(Step::Output, format!("no directory for the run's document: {error}"))
            .with_remedy("let TMPDIR name a directory that can be written")
    })?;
    let json = files.path().join("run.json");
    let mut command = Command::new(&invocation.program);
    command.arg0(&*name).arg("--json").arg(&json).args(&invocation.words);
    command.envs(&invocation.environment);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child = process::ends_with_us(&mut command)
        .spawn()
        .map_err(|error| Error::failed(Step::Measure, format!("{name} cannot be run: {error}")))?;
    // Its error is in the document, and said once.
    let keeps = move |line: &str| is_error(line) || holds_back(line);
    let (speaks, heard) = mpsc::channel();
    if let Some(stderr) = child.stderr.take() {
        std::thread::spawn(move || drop(speaks.send(pass_on(stderr, keeps))));
    }
    let late = || {
        let seconds = timeout.as_secs_f64();
        Error::failed(Step::Measure, format!("{name} took longer than {seconds} s and was ended"))
            .with_remedy("raise --timeout")
    };
    let ended = attend(&mut child, timeout, signalled, late, || Ok(()));
    let group = group_of(&child);
    let heard = heard.recv_timeout(LAST_WORDS).or_else(|_| {
        // It left a process behind, which has its standard error still.
        let _ = killpg(group, Signal::SIGKILL);
        heard.recv_timeout(GRACE)
    });
    let (errors, said): (Vec<_>, Vec<_>) =
        heard.unwrap_or_default().into_iter().partition(|line| is_error(line));
    let status = ended?;
    let text = std::fs::read_to_string(&json).ok();
    let document = text.as_deref().map(Document::from_json).transpose()?;
    match (status.code(), document) {
        // Limits do not make a run one that failed.
        (Some(0 | 1 | 5), Some(document)) if document.status == Status::Ok => {
            Ok(Measured { document, text: text.unwrap_or_default(), said })
        }
        (Some(2), None) => {
            let said = errors.first().map_or("no such options", |line| line.trim_start_matches("error: "));
            Err(Error::usage(format!("{name}: {said}")))
        }
        (_, Some(Document { error: Some(error), .. })) => Err(error),
        (_, Some(document)) => {
            let reasons = document.results.into_iter().flat_map(|row| row.validity.reasons);
            let reason = reasons.last().unwrap_or_else(|| status.to_string());
            Err(Error::invalid(Step::Measure, format!("{name}: {reason}")))
        }
        (_, None) => {
            let cause = format!("{name} wrote no document and ended with {status}");
            let said = errors.iter().map(|line| line.trim_start_matches("error: "));
            let said: Vec<_> = said.filter(|line| !line.starts_with("  try: ")).collect();
            let told = if said.is_empty() { cause } else { format!("{cause}: {}", said.join("; ")) };
            Err(Error::failed(Step::Measure, told).with_remedy("run it by itself, and see what it says"))
        }
    }
}

fn is_error(line: &str) -> bool {
    line.starts_with("error: ") || line.starts_with("  try: ")
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
    let group = group_of(child);
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

/// A process that was started as the first of a group.
fn group_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
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
