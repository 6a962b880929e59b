//! Who may use a server, for what, and what those cannot do to it who may not.

use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::suite::{self, Files, Running, TOOL, client, line, port, say_hello, say_what};

fn serve(options: &str) -> (Running, u16) {
    let mut server = Running::start(line(TOOL, &format!("serve --bind 127.0.0.1 -p 0 --tcp-only {options}")));
    let port = port(&mut server);
    (server, port)
}

/// Starts a client over TCP alone, which gives up soon.
fn start(port: u16, options: &str) -> Running {
    let options = format!("--tcp-only -n 20 --connect-timeout 3 {options}");
    Running::start(client("send_lat", "127.0.0.1", port, &options))
}

/// A file with a secret in it.
fn secret(files: &Files, name: &str, text: &str) -> PathBuf {
    let path = files.path(name);
    std::fs::write(&path, text).expect("a temporary file");
    path
}

#[test]
fn who_does_not_know_the_secret_is_no_client_and_who_does_is() {
    let _turn = suite::turn();
    let files = Files::new();
    let right = secret(&files, "right", "correct horse battery staple\n");
    let same = secret(&files, "same", "correct horse battery staple");
    let wrong = secret(&files, "wrong", "correct horse battery stable");
    let (mut server, port) = serve(&format!("--verbose --secret-file {}", right.display()));
    let with = |path: &PathBuf| format!("--secret-file {}", path.display());
    start(port, "").finish().exits(5).says(&["asks for a secret", "try: ", "--secret-file"]);
    server.line_with("was not served: it was asked for the secret and gave up: it was given no secret");
    let told = ["peer: ", "the client does not know the secret", "try: give both ends a file"];
    start(port, &with(&wrong)).finish().exits(5).says(&told);
    start(port, &with(&same)).finish().exits(0);
    server.line_with("send_lat over TCP: ok after");
    server.line_with("was not served: it does not know the secret");
    // One that answers at all, but not with a proof.
    let mut rogue = say_hello(port);
    let proposal = br#"{"ok":{"verb":"send"}}"#;
    rogue.write_all(&[&(proposal.len() as u32).to_be_bytes()[..], proposal].concat()).expect("it reads");
    server.line_with("did not prove that it knows the secret");
    let said = server.said();
    assert!(!said.contains("horse"), "{said}");
    server.signal(Signal::SIGTERM);
    server.finish().exits(0);
}

#[test]
fn a_server_that_asks_for_nothing_is_not_the_one_that_is_meant() {
    let _turn = suite::turn();
    let files = Files::new();
    let right = secret(&files, "right", "correct horse battery staple");
    let (mut server, port) = serve("");
    let with = format!("--secret-file {}", right.display());
    start(port, &with).finish().exits(5).says(&["asks for no secret", "try: "]);
    server.line_with("was not served: it wants a server that asks for a secret");
    drop(server);
    // Servers of one test ask, too, and so do both ends in one process.
    let (server, port) = suite::server("send_lat", &format!("--tcp-only {with}"));
    start(port, "").finish().exits(5);
    start(port, &with).finish().exits(0);
    server.finish().exits(0).says(&["was not served: it was asked for the secret and gave up"]);
    suite::run("send_lat", &format!("--loopback --tcp-only -n 20 {with}")).exits(0);
    let short = secret(&files, "short", "too short");
    suite::run(TOOL, &format!("serve --tcp-only -p 0 --secret-file {}", short.display()))
        .exits(2)
        .says(&["9 bytes", "openssl rand"]);
    suite::run("send_lat", "127.0.0.1 --tcp-only --secret-file /nowhere").exits(2).says(&["/nowhere"]);
}

#[test]
fn clients_come_from_where_they_may() {
    let _turn = suite::turn();
    let (mut server, port) = serve("--allow 10.7.0.0/16,fd00::/8");
    let told = ["peer: ", "an address that --allow does not name", "try: ", "to allow 127.0.0.1"];
    start(port, "").finish().exits(5).says(&told);
    server.line_with("was not served: it comes from an address that --allow does not name");
    // Those that come again and again have a count in place of a line.
    let strangers = (0..200).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("it listens"));
    drop(strangers.collect::<Vec<_>>());
    // Who comes last is refused last.
    start(port, "").finish().exits(5);
    server.signal(Signal::SIGTERM);
    let ended = server.finish().exits(0).says(&["201 more clients refused within a minute"]);
    assert_eq!(ended.stderr.lines().count(), 3, "{}", ended.stderr);
    let (server, port) = serve("--allow 10.7.0.0/16 --allow ::ffff:127.0.0.1");
    start(port, "").finish().exits(0);
    drop(server);
    let refused = |options: &str, says: &[&str]| {
        suite::run(TOOL, &format!("serve --tcp-only -p 0 {options}")).exits(2).says(says);
    };
    refused("--allow 10.7.0.0/33", &["10.7.0.0/33"]);
    refused("--allow 10.0.0.5/8", &["write 10.0.0.0/8 for all of that, or 10.0.0.5 for the one address"]);
    for most in ["--max-size", "--max-memory", "--max-qps", "--max-duration"] {
        refused(&format!("{most} 0"), &[most]);
    }
    suite::run("send_lat", "--loopback --allow 127.0.0.1").exits(2).says(&["--allow is for a server"]);
}

#[test]
fn a_server_keeps_its_own_limits() {
    let _turn = suite::turn();
    let (mut server, port) = serve("--max-size 4k --max-memory 1M --max-duration 2 --max-qps 4");
    let refused = |binary: &str, options: &str, says: &str| {
        let options = format!("--tcp-only --connect-timeout 3 {options}");
        Running::start(client(binary, "127.0.0.1", port, &options))
            .finish()
            .exits(5)
            .says(&["peer: ", says, "try: "]);
    };
    refused("send_lat", "-D 1 -s 64,8k", "messages of up to 4 KiB, not 8 KiB");
    refused("send_lat", "-D 1 -s 64,128,256", "up to 2 s, not 3.3 s: 3 x 1.1 s, of which 0.1 s is warm-up");
    refused("send_lat", "-D 1 --warm-up 90", "not 91 s: 1 x 91 s, of which 90 s is warm-up");
    refused("send_lat", "-D 1 --compare-wait", "not 2.2 s: 2 x 1.1 s");
    refused("send_lat", "-n 100", "a count of messages tells no time");
    refused("write_bw", "-D 1 -s 4k -q 5", "up to 4 queue pairs, not 5");
    refused("write_bw", "-D 1 -s 4k --buffers 1000", "up to 1 MiB for its buffers");
    Running::start(client("send_lat", "127.0.0.1", port, "--tcp-only -D 100ms -s 64,4k")).finish().exits(0);
    server.line_with("send_lat over TCP: ok after");
    server.signal(Signal::SIGTERM);
    server.finish().exits(0);
}

/// Open descriptors of a process.
fn descriptors(server: &Running) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("it runs").count()
}

/// Sets how many descriptors a process may open from now on.
fn limit_descriptors(server: &Running, most: usize) {
    let (pid, most) = (server.pid().to_string(), format!("--nofile={most}:"));
    let set = Command::new("prlimit").args(["--pid", &pid, &most]).status().expect("prlimit, of util-linux");
    assert!(set.success());
}

#[test]
fn without_a_descriptor_for_its_leash_a_client_is_refused() {
    let _turn = suite::turn();
    let (server, port) = serve("--max-duration 2");
    let first = say_what(port);
    let mut second = start(port, "");
    second.line_with("is busy: 1 ahead");
    let before = descriptors(&server);
    limit_descriptors(&server, 3);
    drop(first);
    second.finish().exits(5).says(&["peer: ", "no descriptor left", "try: ", "ulimit -n"]);
    limit_descriptors(&server, 2 * before);
    start(port, "").finish().exits(5).says(&["a count of messages tells no time"]);
    server.signal(Signal::SIGTERM);
    let said = server.finish().exits(0).stderr;
    // One address, and so one line; it is that of the first.
    assert!(said.contains("2 more clients refused within a minute"), "{said}");
    assert_eq!(said.lines().count(), 3, "{said}");
}

#[test]
fn ten_thousand_strangers_leave_it_serving() {
    let _turn = suite::turn();
    let (mut server, port) = serve("");
    start(port, "").finish().exits(0);
    server.line_with("ok after");
    let before = descriptors(&server);
    let mut silent = Vec::new();
    for index in 0..10_000 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        // A refused one may be closed already.
        let _ = match index % 5 {
            0 => Ok(()),
            1 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
            2 => stream.write_all(b"verbmark/1\n\0\0"),
            3 => stream.write_all(b"verbmark/1\n\xff\xff\xff\xff{"),
            _ => stream.write_all(&[0x80; 4096]),
        };
        // Some stay and say nothing more.
        if index % 100 == 0 {
            silent.push(stream);
        }
    }
    start(port, "").finish().exits(0);
    assert!(server.runs());
    drop(silent);
    start(port, "").finish().exits(0);
    server.wait_for("as few descriptors as before", |server| (descriptors(server) <= before).then_some(()));
    server.signal(Signal::SIGTERM);
    let ended = server.finish().exits(0);
    assert!(ended.stderr.lines().count() < 20, "no line for each of them: {}", ended.stderr);
}
