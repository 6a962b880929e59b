//! A peer that dies in the middle of a long measurement, where no message passes: the survivor notices, says so, and
//! keeps what it measured. A client that is interrupted keeps it too, and tells its server.

mod schema;
mod suite;

use std::time::Duration;

use nix::sys::signal::Signal;
use suite::{Files, Running, at, rows, text};

/// Longest a survivor may take.
const SURVIVES_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    Client,
    Server,
}

fn has_said_why(stderr: &str, document: &serde_json::Value, context: &str) {
    assert!(stderr.contains("error: "), "{context}: {stderr}");
    assert_eq!(text(document, "/status"), "failed", "{context}");
    assert!(!text(document, "/error/step").is_empty(), "{context}");
    assert!(stderr.contains(text(document, "/error/message")), "{context}: {stderr}");
}

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
    client.wait_for("its table", |client| client.printed().contains("tcp over").then_some(()));
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
        client.wait_for("its table", |client| client.printed().contains("tcp over").then_some(()));
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
