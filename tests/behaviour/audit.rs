//! `verbmark audit`: system calls a message at each end and over each path, under a real strace, and what it says where
//! it cannot trace.

use crate::schema;
use crate::suite;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::suite::{Files, Finished, Running, TOOL, at, number, port, text};

/// Calls a message that are the control connection's, and a look around of who waits long on a busy machine.
const REST: f64 = 0.1;

fn audit(options: &str) -> Finished {
    suite::run(TOOL, &format!("audit {options}"))
}

/// Audits into a document.
#[track_caller]
fn audited(test: &str) -> Value {
    let _turn = suite::turn();
    document(&audit(&format!("--json - -- {test}")).exits(0).stdout)
}

/// Holds a document to the schema, and each `null` of it to a reason.
#[track_caller]
fn document(text: &str) -> Value {
    // TCP has no device, and a run that went well no error.
    schema::explained(text, schema::of_audits(), |_, key| ["error", "remedy", "device"].contains(&key))
}

/// Calls a message that did something, by one name or all, but for offers of a core that two threads share.
#[track_caller]
fn done(document: &Value, run: usize, end: &str, name: Option<&str>) -> f64 {
    let calls = at(document, &format!("/runs/{run}/{end}/system_calls/by_name")).as_array().expect("a list");
    let chosen = calls.iter().filter(|call| match name {
        Some(name) => call["name"] == name,
        None => call["name"] != "sched_yield",
    });
    let did = chosen.map(|call| number(call, "/calls") - number(call, "/found_nothing"));
    did.sum::<f64>() / number(document, &format!("/runs/{run}/{end}/system_calls/messages"))
}

#[track_caller]
fn assert_about(value: f64, expected: f64) {
    assert!((expected..expected + REST).contains(&value), "{value} calls a message, and not {expected}");
}

#[test]
fn the_schema_is_valid_itself() {
    jsonschema::meta::validate(&schema::of_audits()).expect("draft 2020-12");
}

#[test]
fn a_spinning_ping_pong_makes_one_send_and_one_receive_over_tcp_and_no_call_over_memory() {
    let audit = audited("send_lat --loopback -d emu0");
    assert_eq!(text(&audit, "/status"), "ok");
    assert_eq!(
        at(&audit, "/test"),
        &json!({
            "binary": "send_lat", "op": "send", "shape": "latency", "connection": "RC", "wait": "busy", "size_bytes": 64,
        })
    );
    assert_eq!((text(&audit, "/runs/0/transport"), text(&audit, "/runs/1/transport")), ("rdma", "tcp"));
    for end in ["client", "server"] {
        assert_about(done(&audit, 0, end, None), 0.0);
        assert_about(done(&audit, 1, end, None), 2.0);
        assert_about(done(&audit, 1, end, Some("sendto")), 1.0);
        assert_about(done(&audit, 1, end, Some("recvfrom")), 1.0);
        let device = at(&audit, &format!("/runs/0/{end}/device"));
        assert_eq!(device, &json!({ "name": "emu0", "provider": "emulated", "is_software": true }));
        assert_eq!(number(&audit, &format!("/runs/0/{end}/derived_copies/per_message")), 1.0);
        assert_eq!(number(&audit, &format!("/runs/1/{end}/derived_copies/per_message")), 2.0);
    }
    assert_eq!(number(&audit, "/runs/1/client/system_calls/messages"), 1000.0);
    // The warm-up is in the server's phase.
    assert!(number(&audit, "/runs/1/server/system_calls/messages") > 1000.0);
    let whole = audit.to_string();
    for time in ["_ns", "_s\"", "per_s"] {
        assert!(!whole.contains(time), "{time} in an audit: {whole}");
    }
}

#[test]
fn a_sleeping_ping_pong_makes_the_same_calls_and_finds_something_with_each() {
    let audit = audited("send_lat --loopback --tcp-only --events -n 200");
    for end in ["client", "server"] {
        assert_about(done(&audit, 0, end, Some("sendto")), 1.0);
        assert_about(done(&audit, 0, end, Some("recvfrom")), 1.0);
    }
    assert_eq!(at(&audit, "/runs").as_array().unwrap().len(), 1);
}

#[test]
fn measuring_threads_are_of_the_end_that_started_them() {
    let audit = audited("send_bw --loopback --tcp-only --threads 2 -s 64 -n 400 --events");
    assert_about(done(&audit, 0, "client", Some("sendto")), 1.0);
    // The server acknowledges what it has read, several messages at once.
    assert!(done(&audit, 0, "server", Some("recvfrom")) <= 1.0 + REST);
    assert_eq!(number(&audit, "/runs/0/server/derived_copies/per_message"), 1.0);
}

#[test]
fn a_table_is_shown_without_times() {
    let _turn = suite::turn();
    let shown = audit("-- read_lat --loopback -d emu1 -n 100").exits(0).stdout;
    for part in ["read_lat  RC", "rdma  client", "tcp   client", "sendto", "derived", "SOFTWARE RDMA (emu1"] {
        assert!(shown.contains(part), "no {part} in\n{shown}");
    }
    assert!(!shown.contains(" us") && !shown.contains("p50"), "{shown}");
}

#[test]
fn options_of_one_path_do_not_stop_the_run_of_the_other() {
    let audit = audited("send_bw --loopback -d emu0 -c UD --events -n 200 --tcp-sndbuf 64k");
    let command = |run| at(&audit, &format!("/runs/{run}/command")).to_string();
    assert_eq!(at(&audit, "/runs/0/command/0"), "send_bw", "as typed, and not where it lies");
    assert!(command(0).contains("UD") && !command(0).contains("sndbuf"), "{}", command(0));
    assert!(!command(1).contains("UD") && command(1).contains("sndbuf"), "{}", command(1));
    assert_eq!(number(&audit, "/test/size_bytes"), 1024.0);
}

/// A server's audit, the port it listens on, and its document once it has ended.
fn server(files: &Files, test: &str) -> (Running, u16) {
    let mut command = suite::line(TOOL, "audit --json");
    command.arg(files.path("server.json")).arg("--").args(test.split_whitespace());
    let mut server = Running::start(command);
    let port = port(&mut server);
    (server, port)
}

fn read(files: &Files) -> Value {
    document(&std::fs::read_to_string(files.path("server.json")).unwrap())
}

#[test]
fn two_processes_are_audited_each_on_its_own_side() {
    let _turn = suite::turn();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let files = Files::new();
    let (server, port) = server(&files, &format!("send_lat --tcp-only --bind 127.0.0.1 -p {free}"));
    let client =
        audit(&format!("--json - -- send_lat 127.0.0.1 --tcp-only -p {port} -n 200 --events")).exits(0);
    server.finish().exits(0);
    let (client, server) = (document(&client.stdout), read(&files));
    assert_about(done(&client, 0, "client", Some("sendto")), 1.0);
    assert_about(done(&server, 0, "server", Some("sendto")), 1.0);
    assert_eq!(at(&client, "/test"), at(&server, "/test"));
    for (audit, other, role) in [(&client, "server", "as the server"), (&server, "client", "as the client")] {
        assert!(at(audit, &format!("/runs/0/{other}/system_calls")).is_null());
        assert!(text(audit, "/missing/0/reason").contains(role), "{audit:#}");
        assert_eq!(number(audit, &format!("/runs/0/{other}/derived_copies/per_message")), 2.0);
    }
}

#[test]
fn a_client_that_measures_more_than_one_phase_is_told_of() {
    let _turn = suite::turn();
    let files = Files::new();
    let (server, port) = server(&files, "send_lat --tcp-only -p 0");
    suite::run("send_lat", &format!("127.0.0.1 --tcp-only -p {port} -n 20 -s 1,2 --events")).exits(0);
    server.finish().exits(5).says(&["2 results", "one measured phase"]);
    assert_eq!(text(&read(&files), "/status"), "failed");
}

#[test]
fn what_cannot_be_audited_is_a_usage_error() {
    for (options, named) in [
        ("", "TEST"),
        ("send_lat --loopback", "send_lat"),
        ("-- ls", "'ls' is no test of this suite"),
        ("-- ./send_lat", "'./send_lat'"),
        ("-- verbmark devices", "'verbmark'"),
        ("-- send_lat --loopback --json run.json", "--json"),
        ("-- send_lat --loopback --csv -", "--csv"),
        ("-- send_lat --loopback --hlog x", "--hlog"),
        ("-- send_lat --loopback --verify", "--verify"),
        ("-- send_lat --loopback -s 1,2", "2 sizes"),
        ("-- send_lat --loopback -a", "sizes"),
        ("-- send_lat --loopback --rate 1000", "--rate"),
        ("-- send_lat --loopback --no-such-option", "--no-such-option"),
        ("-- send_lat --help", "--help"),
        ("-- send_lat -p 0", "-p 0"),
        ("-- send_lat --loopback -t 8 -Q 9", "-Q 9"),
        ("--timeout 0 -- send_lat --loopback", "--timeout"),
        ("--json /nowhere/audit.json -- send_lat --loopback", "/nowhere/audit.json"),
    ] {
        let run = audit(options).exits(2).says(&[named]);
        assert!(run.stdout.is_empty(), "{options}: {}", run.stdout);
    }
}

#[test]
fn a_test_that_fails_passes_its_reason_and_status_on() {
    let failed = audit("--json - -- send_lat 127.0.0.1 -p 1 --connect-timeout 0.1 --tcp-only").exits(5);
    let failed = failed.says(&["error: connect:", "send_lat failed under strace"]);
    let document = document(&failed.stdout);
    assert!(text(&document, "/error/message").contains("send_lat"));
    assert!(at(&document, "/runs").as_array().unwrap().is_empty());
    audit("-- send_lat --loopback --cpu 5000 --no-tcp").exits(2).says(&["core 5000", "says above"]);
}

/// An audit with a `strace` of these shell commands, or none at all.
fn with_strace(script: Option<&str>) -> Finished {
    let files = Files::new();
    if let Some(script) = script {
        let path = files.path("strace");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = suite::line(TOOL, "audit --json - -- send_lat --loopback --tcp-only");
    command.env("PATH", files.path(""));
    Running::start(command).finish().exits(5)
}

#[test]
fn no_strace_and_no_ptrace_are_said_with_what_to_do() {
    let none = with_strace(None).says(&["strace is not installed", "apt install strace"]);
    assert!(at(&document(&none.stdout), "/tracer").is_null());
    let refused = "[ \"$1\" = -V ] && echo 'strace -- version 6.1' && exit\n\
                   echo 'strace: attach: ptrace(PTRACE_SEIZE, 7): Operation not permitted' >&2\nexit 1";
    let refused = with_strace(Some(refused)).says(&["Operation not permitted", "ptrace_scope"]);
    assert_eq!(text(&document(&refused.stdout), "/tracer/version"), "6.1");
    with_strace(Some("exit 1")).says(&["strace -V"]);
}

/// The port can be bound: nobody who listened there runs on.
fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

#[test]
fn a_run_that_takes_too_long_is_ended() {
    let files = Files::new();
    let mut command = suite::line(TOOL, "audit --timeout 1 --json");
    command.arg(files.path("server.json")).args("-- send_lat --tcp-only -p 0".split(' '));
    let mut server = Running::start(command);
    let port = port(&mut server);
    server.finish().exits(5).says(&["longer than 1 s", "--timeout"]);
    assert!(is_free(port));
    assert_eq!(text(&read(&files), "/status"), "failed");
}

#[test]
fn a_signal_ends_the_test_too() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let files = Files::new();
        let (server, port) = server(&files, "send_lat --tcp-only -p 0");
        server.signal(signal);
        server.finish().exits(130);
        assert!(is_free(port));
        assert_eq!(text(&read(&files), "/status"), "interrupted");
    }
}
