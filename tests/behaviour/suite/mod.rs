//! The binaries as a user runs them: started, watched, signalled, and read, each within a deadline.

pub mod proxy;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::schema;

/// The test binaries whose messages have any size.
pub const BINARIES: [&str; 8] =
    ["send_lat", "send_bw", "write_lat", "write_bw", "write_imm_lat", "write_imm_bw", "read_lat", "read_bw"];

/// Those whose messages are one word.
pub const ATOMICS: [&str; 2] = ["atomic_lat", "atomic_bw"];

/// The one that needs no other end.
pub const REGISTRATION: &str = "reg_mr_lat";

/// How an end of this binary can wait: the option, and the word of the document. Nothing wakes who waits on memory.
pub fn waits(binary: &str) -> &'static [(&'static str, &'static str)] {
    const WAITS: [(&str, &str); 2] = [("", "busy"), ("--events", "events")];
    if binary == "write_lat" { &WAITS[..1] } else { &WAITS }
}

/// The binary that is no test.
pub const TOOL: &str = "verbmark";

/// Longest wait for anything. Only a run that hangs meets it, however loaded the machine is.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// Pause between two looks at something.
const LOOK: Duration = Duration::from_millis(5);

/// One run after the other: ends that spin for the same two cores only wait for each other.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The command of a binary, without what the environment of the test would add.
pub fn command(binary: &str) -> Command {
    let known = BINARIES.contains(&binary) || ATOMICS.contains(&binary);
    assert!(known || [REGISTRATION, TOOL].contains(&binary), "{binary}");
    // All binaries of a package are built side by side.
    let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_send_lat")).with_file_name(binary));
    command.env_remove("VERBMARK_EMULATED").stdin(Stdio::null());
    command
}

/// A binary with its options as one line.
pub fn line(binary: &str, options: &str) -> Command {
    let mut command = command(binary);
    command.args(options.split_whitespace());
    command
}

/// Runs a binary with a line of options to its end.
pub fn run(binary: &str, options: &str) -> Finished {
    Running::start(line(binary, options)).finish()
}

/// Does what it is given on the emulated device told to misbehave.
pub fn misbehaving(mut command: Command, how: &str) -> Command {
    command.env("VERBMARK_EMULATED", how);
    command
}

/// What a stream has brought so far.
#[derive(Default, Clone)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Text {
    fn collect(&self, mut stream: impl Read + Send + 'static) -> JoinHandle<()> {
        let text = self.clone();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut piece) {
                text.0.lock().expect("no reader panics").extend_from_slice(&piece[..count]);
            }
        })
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no reader panics")).into_owned()
    }
}

/// A process under way. Dropped, it is killed: a failed test leaves nothing behind.
pub struct Running {
    what: String,
    child: Child,
    since: Instant,
    out: Text,
    err: Text,
    readers: Vec<JoinHandle<()>>,
}

impl Running {
    /// Starts it, with both streams collected.
    pub fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped());
        Self::start_with_own_stdout(command)
    }

    /// Starts it with standard output as the command has it.
    pub fn start_with_own_stdout(mut command: Command) -> Self {
        let what = format!("{command:?}");
        let since = Instant::now();
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap_or_else(|e| panic!("{what}: {e}"));
        let (out, err) = (Text::default(), Text::default());
        let mut readers = vec![err.collect(child.stderr.take().expect("it is piped"))];
        readers.extend(child.stdout.take().map(|stream| out.collect(stream)));
        Self { what, child, since, out, err, readers }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a process id"))
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap_or_else(|e| panic!("{signal} to {}: {e}", self.what));
    }

    /// Still there; reaps it otherwise.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// What it has said on standard error so far.
    pub fn said(&self) -> String {
        self.err.so_far()
    }

    /// What it has shown on standard output so far.
    pub fn shown(&self) -> String {
        self.out.so_far()
    }

    /// Waits for a line on standard error that holds `part`.
    pub fn line_with(&mut self, part: &str) -> String {
        self.wait_for(part, |running| {
            let said = running.said();
            // Without its end a line may not be whole.
            let whole = &said[..said.rfind('\n').map_or(0, |end| end + 1)];
            whole.lines().find(|line| line.contains(part)).map(str::to_owned)
        })
    }

    /// Waits until `look` gives something; `what` names it when it does not.
    pub fn wait_for<T>(&mut self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let gone = !self.runs();
            if gone {
                // It may have come with its last words.
                std::thread::sleep(Duration::from_millis(100));
                if let Some(found) = look(self) {
                    return found;
                }
            }
            assert!(!gone, "{} ended before {what}: {}", self.what, self.said());
            assert!(Instant::now() < end, "{} never came to {what}: {}", self.what, self.said());
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for its end.
    pub fn finish(self) -> Finished {
        self.finish_within(DEADLINE)
    }

    /// Waits for its end, no longer than this.
    pub fn finish_within(mut self, deadline: Duration) -> Finished {
        let end = Instant::now() + deadline;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                break status;
            }
            if Instant::now() >= end {
                self.signal(Signal::SIGKILL);
                panic!("{} hangs: nothing after {deadline:?}; it said {}", self.what, self.said());
            }
            std::thread::sleep(LOOK);
        };
        let took = self.since.elapsed();
        for reader in self.readers.drain(..) {
            reader.join().expect("no reader panics");
        }
        let (stdout, stderr) = (self.out.so_far(), self.err.so_far());
        assert!(!stderr.contains("panicked at"), "{} panicked: {stderr}", self.what);
        Finished { what: self.what.clone(), status, stdout, stderr, took }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.runs() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// How a process ended, and all it said.
#[derive(Debug)]
pub struct Finished {
    pub what: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Finished {
    /// Holds it to an exit status.
    #[track_caller]
    pub fn exits(self, status: i32) -> Self {
        assert_eq!(
            self.status.code(),
            Some(status),
            "{} ended with {}\n--- standard output\n{}--- standard error\n{}",
            self.what,
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Holds standard error to each of these parts.
    #[track_caller]
    pub fn says(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stderr.contains(part), "{}: no \"{part}\" in:\n{}", self.what, self.stderr);
        }
        self
    }
}

/// A directory for the files of one test, gone with it.
pub struct Files(TempDir);

impl Files {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A document a run wrote, valid and with no key that the schema lacks.
    #[track_caller]
    pub fn document(&self, name: &str) -> Value {
        let path = self.path(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        document(&text)
    }
}

/// Reads a document and holds it to the schema.
#[track_caller]
pub fn document(text: &str) -> Value {
    let value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let errors = schema::errors(&schema::closed(), &value);
    assert!(errors.is_empty(), "{errors:#?} in {text}");
    value
}

/// Runs both ends in one process, and gives the document.
#[track_caller]
pub fn loopback(binary: &str, options: &str) -> Value {
    let files = Files::new();
    let mut command = line(binary, options);
    command.arg("--loopback").arg("--json").arg(files.path("run.json"));
    Running::start(command).finish().exits(0);
    files.document("run.json")
}

/// A server, ready to be connected to, and its port.
pub fn server(binary: &str, options: &str) -> (Running, u16) {
    let mut command = line(binary, options);
    command.args(["-p", "0"]);
    let mut server = Running::start(command);
    let port = port(&mut server);
    (server, port)
}

/// The port a server says it listens on.
pub fn port(server: &mut Running) -> u16 {
    let said = server.line_with("listening on ");
    let port = said.rsplit(' ').next().and_then(|port| port.parse().ok());
    port.unwrap_or_else(|| panic!("no port in '{said}'"))
}

/// A client of a server on this host.
pub fn client(binary: &str, host: &str, port: u16, options: &str) -> Command {
    let mut command = line(binary, options);
    command.args([host, "-p", &port.to_string()]);
    command
}

/// Says hello as a client does that wants to measure.
pub fn say_hello(port: u16) -> TcpStream {
    let hello = br#"{"ok":{"identity":{"tool":"0.1.0","boot_id":null},"purpose":{"run":{}}}}"#;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let length = (hello.len() as u32).to_be_bytes();
    stream.write_all(&[b"verbmark/1\n", &length[..], hello].concat()).expect("it reads");
    stream
}

/// Says hello and what it wants, and no more.
pub fn say_what(port: u16) -> TcpStream {
    let mut stream = say_hello(port);
    let proposal = br#"{"ok":{"verb":"send","shape":"latency","transports":["tcp"],"cores":[],"threads":1,"run_id":"0"}}"#;
    let length = (proposal.len() as u32).to_be_bytes();
    stream.write_all(&[&length[..], proposal].concat()).expect("it reads");
    stream
}

/// The string at a place of a document.
#[track_caller]
pub fn text<'a>(document: &'a Value, pointer: &str) -> &'a str {
    at(document, pointer).as_str().unwrap_or_else(|| panic!("{pointer} is no text in {document:#}"))
}

/// The number at a place of a document.
#[track_caller]
pub fn number(document: &Value, pointer: &str) -> f64 {
    at(document, pointer).as_f64().unwrap_or_else(|| panic!("{pointer} is no number in {document:#}"))
}

/// The value at a place of a document.
#[track_caller]
pub fn at<'a>(document: &'a Value, pointer: &str) -> &'a Value {
    document.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {document:#}"))
}

/// The rows of a document.
#[track_caller]
pub fn rows(document: &Value) -> &Vec<Value> {
    at(document, "/results").as_array().expect("results are a list")
}
