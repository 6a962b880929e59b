//! A peer that dies at any step: whoever is left says at which, ends with status 5 within a deadline, and writes its
//! document. A server that had agreed to nothing yet goes on serving.
//!
//! Between client and server stands a relay that counts the frames of the control connection. After the nth it kills
//! one of them, for every n until a run completes untouched: that is every step there is.

mod schema;
mod suite;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use suite::{Files, Running, at, rows, text};

/// Longest a survivor may take: connecting again and waiting for a last word are part of it.
const SURVIVES_FOR: Duration = Duration::from_secs(60);

/// Bytes of the line that both ends begin with.
const PREAMBLE: usize = "verbmark/1\n".len();

/// Counts frames, and kills when enough have passed.
struct Scythe {
    /// Frames still to pass.
    left: Mutex<usize>,
    /// Whom to kill; 0 until it is known.
    victim: AtomicI32,
}

impl Scythe {
    fn strike(&self) {
        let pid = self.victim.load(Ordering::SeqCst);
        assert_ne!(pid, 0, "the victim is known before it connects");
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }

    /// Lets a frame pass if it is one of those that may, and strikes after the last. False: it must not pass.
    fn pass(&self, forward: impl FnOnce()) -> bool {
        let mut left = self.left.lock().unwrap();
        if *left == 0 {
            return false;
        }
        forward();
        *left -= 1;
        if *left == 0 {
            self.strike();
        }
        true
    }
}

/// Starts a relay to `server`; the first connection is the control connection. Returns its port.
fn relay(server: u16, scythe: Arc<Scythe>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let Ok(client) = client else { return };
            let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { return };
            for stream in [&client, &server] {
                stream.set_nodelay(true).unwrap();
            }
            let ways = [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
            if number == 0 && *scythe.left.lock().unwrap() == 0 {
                scythe.strike();
            }
            for (from, to) in ways {
                let scythe = (number == 0).then(|| scythe.clone());
                std::thread::spawn(move || {
                    let _ = match scythe {
                        Some(scythe) => forward_frames(&from, &to, &scythe),
                        None => forward_bytes(&from, &to),
                    };
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    port
}

fn forward_bytes(mut from: &TcpStream, mut to: &TcpStream) -> std::io::Result<()> {
    let mut piece = [0; 65536];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(()),
            count => to.write_all(&piece[..count])?,
        }
    }
}

fn forward_frames(mut from: &TcpStream, mut to: &TcpStream, scythe: &Scythe) -> std::io::Result<()> {
    let mut preamble = [0; PREAMBLE];
    from.read_exact(&mut preamble)?;
    to.write_all(&preamble)?;
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let mut frame = length.to_vec();
        frame.resize(4 + u32::from_be_bytes(length) as usize, 0);
        from.read_exact(&mut frame[4..])?;
        let mut sent = Ok(());
        if !scythe.pass(|| sent = to.write_all(&frame)) {
            // The survivor must find out by the connection's end, not by a frame that came too late.
            return Ok(());
        }
        sent?;
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    Client,
    Server,
}

/// One run whose `victim` is killed after `frames` frames. True when it completed before.
fn run(binary: &str, options: &str, victim: Victim, frames: usize) -> bool {
    let context = format!("{binary} {options}: the {victim:?} dies after frame {frames}");
    let files = Files::new();
    let mut command = suite::line(binary, "--tcp-only -v -p 0 --json");
    command.arg(files.path("server.json"));
    let mut server = Running::start(command);
    let port = suite::port(&mut server);
    let scythe = Arc::new(Scythe { left: Mutex::new(frames), victim: AtomicI32::new(server.pid().as_raw()) });
    let relay = relay(port, scythe.clone());
    let mut command =
        suite::client(binary, "127.0.0.1", relay, &format!("--tcp-only --connect-timeout 2 {options}"));
    command.arg("--json").arg(files.path("client.json"));
    if victim == Victim::Client {
        // The relay cannot strike before it knows whom: it needs the lock for that.
        let lock = scythe.left.lock().unwrap();
        let client = Running::start(command);
        scythe.victim.store(client.pid().as_raw(), Ordering::SeqCst);
        drop(lock);
        let client = client.finish_within(SURVIVES_FOR);
        if client.status.code() == Some(0) {
            server.finish_within(SURVIVES_FOR).exits(0);
            return true;
        }
        assert_eq!(client.status.code(), None, "{context}: killed, not {}\n{}", client.status, client.stderr);
        survives_as_server(server, &files, &context);
    } else {
        let client = Running::start(command).finish_within(SURVIVES_FOR);
        if client.status.code() == Some(0) {
            server.finish_within(SURVIVES_FOR);
            return true;
        }
        assert_eq!(client.status.code(), Some(5), "{context}: {}", client.stderr);
        has_said_why(&client.stderr, &files.document("client.json"), &context);
    }
    false
}

fn survives_as_server(mut server: Running, files: &Files, context: &str) {
    let goes_on = |server: &Running| {
        let said = server.said();
        said.contains("was not served") || said.contains("ignored a connection")
    };
    while server.runs() && !goes_on(&server) {
        std::thread::sleep(Duration::from_millis(5));
        assert!(server.age() < SURVIVES_FOR, "{context}: neither an end nor a word: {}", server.said());
    }
    if server.runs() {
        server.signal(Signal::SIGTERM);
        server.finish_within(SURVIVES_FOR).exits(130);
        return;
    }
    let server = server.finish_within(SURVIVES_FOR);
    let document = files.document("server.json");
    if server.status.code() == Some(0) {
        // The client's last word had come through: for the server the run was complete.
        assert_eq!(text(&document, "/status"), "ok", "{context}");
        assert_eq!(rows(&document).len(), 1, "{context}");
        return;
    }
    let server = server.exits(5);
    has_said_why(&server.stderr, &document, context);
}

fn has_said_why(stderr: &str, document: &serde_json::Value, context: &str) {
    assert!(stderr.contains("error: "), "{context}: {stderr}");
    assert_eq!(text(document, "/status"), "failed", "{context}");
    assert!(!text(document, "/error/step").is_empty(), "{context}");
    assert!(stderr.contains(text(document, "/error/message")), "{context}: {stderr}");
}

/// Kills the victim after each frame in turn; returns at how many steps that was.
fn at_every_step(binary: &str, options: &str, victim: Victim) {
    let _turn = suite::turn();
    let mut frames = 0;
    while !run(binary, options, victim, frames) {
        frames += 1;
        assert!(frames < 200, "the run never completes");
    }
    assert!(frames > 15, "only {frames} steps were seen");
}

#[test]
fn a_client_dies_at_any_step_of_a_latency_test() {
    at_every_step("send_lat", "-n 20 -s 64", Victim::Client);
}

#[test]
fn a_server_dies_at_any_step_of_a_latency_test() {
    at_every_step("send_lat", "-n 20 -s 64 --events", Victim::Server);
}

#[test]
fn a_client_dies_at_any_step_of_a_bandwidth_test() {
    at_every_step("write_bw", "-n 20 -s 4k --events --verify", Victim::Client);
}

#[test]
fn a_server_dies_at_any_step_of_a_bandwidth_test() {
    at_every_step("write_bw", "-n 20 -s 4k --verify", Victim::Server);
}

/// In the middle of a long measurement, where no frame passes.
fn while_measuring(binary: &str, options: &str, victim: Victim) {
    let _turn = suite::turn();
    let context = format!("{binary} {options}: the {victim:?} dies while measuring");
    let files = Files::new();
    let mut command = suite::line(binary, "--tcp-only -p 0 --json");
    command.arg(files.path("server.json"));
    let mut server = Running::start(command);
    let port = suite::port(&mut server);
    let mut command = suite::client(binary, "127.0.0.1", port, &format!("--tcp-only -D 120 {options}"));
    command.arg("--json").arg(files.path("client.json"));
    let mut client = Running::start(command);
    client.wait_for("its table", |client| client.shown().contains("tcp over").then_some(()));
    std::thread::sleep(Duration::from_millis(700));
    if victim == Victim::Client {
        client.signal(Signal::SIGKILL);
        let server = server.finish_within(SURVIVES_FOR).exits(5);
        has_said_why(&server.stderr, &files.document("server.json"), &context);
    } else {
        server.signal(Signal::SIGKILL);
        let client = client.finish_within(SURVIVES_FOR).exits(5);
        let document = files.document("client.json");
        has_said_why(&client.stderr, &document, &context);
        assert_eq!(rows(&document).len(), 1, "{context}: what was measured until then stands");
        assert_eq!(text(&document, "/error/step"), "measure", "{context}");
    }
}

#[test]
fn either_end_dies_in_mid_measurement() {
    for victim in [Victim::Client, Victim::Server] {
        for (binary, options) in
            [("send_lat", ""), ("send_lat", "--events"), ("write_bw", ""), ("write_bw", "--events")]
        {
            while_measuring(binary, options, victim);
        }
    }
}

#[test]
fn an_interrupted_client_keeps_what_it_measured_and_tells_its_server() {
    let _turn = suite::turn();
    for (binary, signal) in [("send_lat", Signal::SIGINT), ("write_bw", Signal::SIGTERM)] {
        let files = Files::new();
        let mut command = suite::line(binary, "--tcp-only -p 0 --json");
        command.arg(files.path("server.json"));
        let mut server = Running::start(command);
        let port = suite::port(&mut server);
        let mut command = suite::client(binary, "127.0.0.1", port, "--tcp-only -D 120");
        command.arg("--json").arg(files.path("client.json"));
        let mut client = Running::start(command);
        client.wait_for("its table", |client| client.shown().contains("tcp over").then_some(()));
        std::thread::sleep(Duration::from_millis(700));
        client.signal(signal);
        let client = client.finish_within(SURVIVES_FOR).exits(130);
        let document = files.document("client.json");
        assert_eq!(text(&document, "/status"), "interrupted");
        assert_eq!(rows(&document).len(), 1, "{}", client.stderr);
        let server = server.finish_within(SURVIVES_FOR).exits(5).says(&["peer: ", "signal"]);
        let document = files.document("server.json");
        assert_eq!(text(&document, "/status"), "failed", "{}", server.stderr);
        assert_eq!(at(&document, "/error/remote"), true);
    }
}
