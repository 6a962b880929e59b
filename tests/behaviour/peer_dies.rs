//! One end dies, at any step: the other says at which step and why, writes its document, and ends with status 5, all
//! within a deadline. Neither hangs, neither panics, and no server ends for a client that was not agreed with.
//!
//! A proxy stands between the two and counts what they say. Each run is stopped one message later than the last, until
//! one runs through untouched.

use crate::suite;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::suite::proxy::{Frame, From, Proxy};
use crate::suite::{Files, Finished, Running, at, client, document, rows, server, text};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;

/// How one end is lost to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// The client's process is killed.
    Client,
    /// The server's process is killed.
    Server,
    /// Both live on, and every connection between them ends.
    Link,
}

const LOSSES: [Loss; 3] = [Loss::Client, Loss::Server, Loss::Link];

/// Longest a survivor may take to notice and to end, on a machine with other things to do. Less than any wait for a
/// peer that is merely silent.
const NOTICED: Duration = Duration::from_secs(12);

/// Most messages a run of one size can take; more means that it never ran through.
const MOST: usize = 60;

/// A run that is lost in place of message `passed + 1`. False when it ran through.
fn lose(binary: &str, options: &str, loss: Loss, passed: usize) -> bool {
    let what = format!("{binary} {options}: {loss:?} lost after {passed} messages");
    let files = Files::new();
    let to = |name: &str| format!("--json {}", files.path(name).display());
    let (mut server, port) = server(binary, &format!("--tcp-only {}", to("server.json")));
    // Who is to be killed is known to the proxy before there is a client to kill.
    let victim = std::sync::Arc::new(std::sync::OnceLock::new());
    let marked = victim.clone();
    let proxy = Proxy::start(port, passed, move |proxy| match loss {
        Loss::Link => proxy.cut(),
        Loss::Client | Loss::Server => {
            kill(*marked.wait(), Signal::SIGKILL).expect("the victim is our child");
            proxy.refuse();
        }
    });
    let options = format!("--tcp-only --connect-timeout 1 {options} {}", to("client.json"));
    let client = Running::start(client(binary, "127.0.0.1", proxy.port(), &options));
    victim.set(if loss == Loss::Server { server.pid() } else { client.pid() }).expect("set once");

    let client = client.finish_within(NOTICED);
    let said = proxy.frames();
    if said.len() <= passed {
        client.exits(0);
        server.finish_within(NOTICED).exits(0);
        return false;
    }
    let lost = said.last().expect("one more than passed");
    if loss == Loss::Client {
        assert!(client.status.code().is_none(), "{what}: {client:?}");
    } else {
        check_survivor(&what, client, &files.path("client.json"));
    }
    if loss == Loss::Server {
        assert!(server.finish_within(NOTICED).status.code().is_none(), "{what}");
    } else if is_goodbye(lost) {
        // It had heard that all went well, and only its own goodbye did not arrive.
        server.finish_within(NOTICED).exits(0);
    } else if said.iter().any(|frame| frame.from == From::Server && frame.has("token")) {
        check_survivor(&what, server.finish_within(NOTICED), &files.path("server.json"));
    } else {
        assert!(server.runs(), "{what}: nothing was agreed, yet the server ended");
        server.signal(Signal::SIGTERM);
        server.finish_within(NOTICED).exits(130);
        assert_eq!(text(&files.document("server.json"), "/status"), "interrupted");
    }
    true
}

/// The server's last message of a run that went well.
fn is_goodbye(frame: &Frame) -> bool {
    frame.from == From::Server && frame.message.pointer("/ok/barrier") == Some(&Value::from("finished"))
}

/// Words for what became of the peer, one of which must be in an error about it.
const CAUSES: [&str; 4] =
    ["closed the connection", "reset the connection", "closed the TCP data connection", "no server answered"];

/// Holds a survivor to its duty.
fn check_survivor(what: &str, survivor: Finished, json: &Path) {
    let said = format!("{what}: {survivor:?}");
    let survivor = survivor.exits(5);
    let json = std::fs::read_to_string(json).unwrap_or_else(|e| panic!("no document ({e}): {said}"));
    let document = document(&json);
    assert_eq!(text(&document, "/status"), "failed", "{said}");
    assert_eq!(at(&document, "/error/remote"), &Value::from(false), "{said}");
    let message = text(&document, "/error/message");
    assert!(CAUSES.iter().any(|cause| message.contains(cause)), "{said}");
    let step = text(&document, "/error/step");
    let error = survivor.stderr.lines().find(|line| line.starts_with("error: "));
    let error = error.unwrap_or_else(|| panic!("no error: {said}"));
    // The step in the words of a person: `tcp_connect` is "open TCP data connection".
    let (printed, _) = error["error: ".len()..].split_once(": ").unwrap_or_else(|| panic!("no step: {said}"));
    assert!(!printed.is_empty() && !step.is_empty(), "{said}");
    assert!(error.ends_with(message), "{said}");
}

/// How many runs go on at once: a few that spin for the same cores, many that sleep.
const SPINNING: usize = 8;
const SLEEPING: usize = 24;

/// Stops a run after each of its messages in turn, in each way, many runs at once: they mostly wait.
fn at_every_step(binary: &str, options: &str, at_once: usize) {
    let _turn = suite::turn();
    let next = AtomicUsize::new(0);
    let ran_through = LOSSES.map(|_| AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while ran_through.iter().any(|done| !done.load(Ordering::Relaxed)) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let (passed, way) = (number / LOSSES.len(), number % LOSSES.len());
                    assert!(passed < MOST, "{binary}: no run of {MOST} messages ran through");
                    if !ran_through[way].load(Ordering::Relaxed)
                        && !lose(binary, options, LOSSES[way], passed)
                    {
                        ran_through[way].store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let steps = next.load(Ordering::Relaxed) / LOSSES.len();
    assert!(steps > 20, "{binary}: only {steps} messages; a run has more");
}

#[test]
fn a_peer_dies_at_any_step_of_a_latency_test_busy() {
    at_every_step("send_lat", "-n 10 -s 64", SPINNING);
}

#[test]
fn a_peer_dies_at_any_step_of_a_latency_test_with_events() {
    at_every_step("read_lat", "-n 10 -s 64 --events", SLEEPING);
}

#[test]
fn a_peer_dies_at_any_step_of_a_bandwidth_test_busy() {
    at_every_step("write_imm_bw", "-n 10 -s 64 --verify -t 16", SPINNING);
}

#[test]
fn a_peer_dies_at_any_step_of_a_bandwidth_test_with_events() {
    at_every_step("write_bw", "-n 10 -s 64 --events", SLEEPING);
}

/// Two ends in the middle of a measurement.
struct Long {
    client: Running,
    server: Running,
    files: Files,
}

impl Long {
    /// Starts it, and returns once it has measured the first size and is in the second.
    fn with_a_row(binary: &str, wait: &str) -> Self {
        let options = format!("-D 300ms -s 64,128,256,512,1k,2k,4k,8k --warm-up 0 {wait}");
        Self::start(binary, &options, "64 B")
    }

    /// Starts it, and returns once it prints `shown` and is well inside the next point.
    fn start(binary: &str, options: &str, shown: &str) -> Self {
        let files = Files::new();
        let json = |name: &str| format!("--json {}", files.path(name).display());
        let (server, port) = server(binary, &format!("--tcp-only {}", json("server.json")));
        let options = format!("--tcp-only {options} {}", json("client.json"));
        let mut client = Running::start(client(binary, "127.0.0.1", port, &options));
        client.wait_for(shown, |client| client.shown().contains(shown).then_some(()));
        std::thread::sleep(Duration::from_millis(100));
        Self { client, server, files }
    }
}

const BUSY_AND_EVENTS: [(&str, &str); 4] =
    [("send_lat", ""), ("send_lat", "--events"), ("write_bw", ""), ("write_bw", "--events")];

#[test]
fn an_end_that_is_killed_in_the_middle_of_a_measurement_is_noticed_at_once() {
    let _turn = suite::turn();
    for (binary, wait) in BUSY_AND_EVENTS {
        for victim in [From::Client, From::Server] {
            let what = format!("{binary} {wait}: {victim:?} killed while it was measured");
            let Long { client, server, files } = Long::with_a_row(binary, wait);
            let (killed, survivor, name) = match victim {
                From::Client => (client, server, "server.json"),
                From::Server => (server, client, "client.json"),
            };
            killed.signal(Signal::SIGKILL);
            assert!(killed.finish().status.code().is_none());
            check_survivor(&what, survivor.finish_within(NOTICED), &files.path(name));
            let rows = rows(&files.document(name)).len();
            assert!(rows > 0, "{what}: what was measured before is kept");
        }
    }
}

#[test]
fn a_person_stops_a_client_and_both_ends_keep_what_was_measured() {
    let _turn = suite::turn();
    for (binary, wait) in BUSY_AND_EVENTS {
        let Long { client, server, files } = Long::with_a_row(binary, wait);
        client.signal(Signal::SIGINT);
        let client = client.finish_within(NOTICED).exits(130).says(&["error: ", "stopped by a signal"]);
        let server = server.finish_within(NOTICED).exits(5).says(&["error: peer: ", "stopped by a signal"]);
        assert!(client.stdout.contains("interrupted"), "{}", client.stdout);
        assert!(server.stdout.contains("failed"), "{}", server.stdout);
        let ours = files.document("client.json");
        let theirs = files.document("server.json");
        assert_eq!((text(&ours, "/status"), text(&theirs, "/status")), ("interrupted", "failed"));
        assert_eq!(text(&ours, "/error/kind"), "interrupted");
        assert_eq!(at(&theirs, "/error/remote"), &Value::from(true));
        assert!(!rows(&ours).is_empty(), "{binary} {wait}: {ours:#}");
        assert!(!rows(&theirs).is_empty(), "{binary} {wait}: {theirs:#}");
    }
}

#[test]
fn a_person_stops_a_server_and_its_client_hears_of_it() {
    let _turn = suite::turn();
    for (binary, wait) in BUSY_AND_EVENTS {
        let Long { client, server, files } = Long::with_a_row(binary, wait);
        server.signal(Signal::SIGTERM);
        server.finish_within(NOTICED).exits(130).says(&["error: ", "stopped by a signal"]);
        client.finish_within(NOTICED).exits(5).says(&["error: peer: ", "stopped by a signal"]);
        let [ours, theirs] = ["client.json", "server.json"].map(|name| files.document(name));
        assert_eq!((text(&ours, "/status"), text(&theirs, "/status")), ("failed", "interrupted"));
        assert!(!rows(&ours).is_empty(), "{binary} {wait}: {ours:#}");
    }
}

#[test]
fn a_second_signal_ends_a_process_at_once() {
    let (server, _) = server("send_lat", "--tcp-only");
    server.signal(Signal::SIGINT);
    server.signal(Signal::SIGINT);
    server.finish().exits(130);
}

#[test]
fn an_end_that_stands_still_is_given_up_after_the_stall_timeout() {
    let _turn = suite::turn();
    for (binary, wait) in [("send_lat", ""), ("write_bw", "--events")] {
        let options = format!("--stall-timeout 1 -D 60 {wait}");
        let Long { client, server, files } = Long::start(binary, &options, "transport");
        // A loaded machine may take as long for the messages that are checked first.
        std::thread::sleep(Duration::from_secs(1));
        // Neither closed nor reset: it is just silent.
        server.signal(Signal::SIGSTOP);
        let client = client.finish_within(NOTICED).exits(5);
        let document = files.document("client.json");
        assert_eq!(text(&document, "/status"), "failed");
        let message = text(&document, "/error/message");
        assert!(message.contains("nothing has moved for 1.") && message.contains("silent"), "{message}");
        assert!(text(&document, "/error/remedy").contains("--stall-timeout"));
        assert!(client.stderr.contains(message), "{}", client.stderr);
        let part = rows(&document);
        assert_eq!(part.len(), 1, "what was measured until then stands: {document:#}");
        assert_eq!(at(&part[0], "/validity/reasons/0"), "the run ended early");
        server.signal(Signal::SIGCONT);
        server.finish_within(NOTICED).exits(5);
    }
}
