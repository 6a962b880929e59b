//! `verbmark serve`: any test, many clients, until it is stopped.

use std::io::{Read, Write};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::suite::{
    self, ATOMICS, BINARIES, Files, Running, TOOL, at, client, line, port, say_hello, say_what,
};

fn serve(options: &str) -> (Running, u16) {
    let mut server = Running::start(line(TOOL, &format!("serve --bind 127.0.0.1 -p 0 {options}")));
    let port = port(&mut server);
    (server, port)
}

/// Starts a client of a server on this host, over TCP alone.
fn start(binary: &str, port: u16, options: &str) -> Running {
    Running::start(client(binary, "127.0.0.1", port, &format!("--tcp-only {options}")))
}

/// Starts a client that measures until it is stopped, and waits until it does.
fn start_long(binary: &str, port: u16, options: &str) -> Running {
    let mut client = start(binary, port, &format!("-D 90 --events {options}"));
    client.wait_for("its table", |client| client.shown().contains("transport").then_some(()));
    client
}

/// Stops such a client.
fn stop(client: Running) {
    client.signal(Signal::SIGINT);
    client.finish().exits(130);
}

/// Waits until a server has said this of so many clients.
fn has_served(server: &mut Running, clients: usize, how: &str) {
    server.wait_for(how, |server| {
        let lines = server.said().lines().filter(|line| line.contains(how)).count();
        (lines >= clients).then_some(())
    });
}

#[test]
fn every_test_is_served_by_one_server_with_a_line_for_each() {
    let _turn = suite::turn();
    let (mut server, port) = serve("--tcp-only");
    for binary in BINARIES.iter().chain(&ATOMICS) {
        start(binary, port, "-n 20").finish().exits(0);
        let said = server.line_with(&format!("{binary} over TCP: ok after "));
        assert!(said.starts_with("client 127.0.0.1:"), "{said}");
    }
    // Who wants what is not there, or goes away, is told or noticed, and the next one is served.
    Running::start(client("send_lat", "127.0.0.1", port, "-d emu0 -n 10"))
        .finish()
        .exits(5)
        .says(&["--tcp-only and has no RDMA"]);
    stop(start_long("write_bw", port, ""));
    server.line_with("write_bw over TCP: failed after ");
    start("read_bw", port, "-n 20 --threads 2 --compare-wait").finish().exits(0);
    start("send_bw", port, "-n 20 -b").finish().exits(0);
    has_served(&mut server, 12, ": ok after ");
    let said = server.said();
    server.signal(Signal::SIGTERM);
    let ended = server.finish().exits(0);
    assert_eq!(ended.stderr, said, "a stop between two clients is no error");
    assert_eq!(ended.stderr.lines().count(), 1 + 10 + 1 + 1 + 2, "{said}");
    assert!(ended.stdout.is_empty());
}

#[test]
fn a_server_with_a_device_serves_tcp_and_refuses_what_cannot_meet() {
    let _turn = suite::turn();
    let (mut server, port) = serve("-d emu0");
    let refused = Running::start(client("send_lat", "127.0.0.1", port, "-d emu0 -n 10")).finish().exits(5);
    refused.says(&["emu0 exists within one process only"]);
    server.line_with("was not served");
    start("send_lat", port, "-n 20").finish().exits(0);
    server.signal(Signal::SIGINT);
    server.finish().exits(0);
}

/// The cores that the first thread of a process may use.
fn cores_of(process: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.expect("a list of cores").trim().to_owned()
}

#[test]
fn who_comes_while_another_is_served_waits_and_is_told_how_many_are_ahead() {
    let _turn = suite::turn();
    let (mut server, port) = serve("--tcp-only");
    let everywhere = cores_of("self");
    assert_eq!(cores_of(&server.pid().to_string()), everywhere);
    let first = start_long("send_lat", port, "");
    // Longer than these wait for a server to appear.
    let mut second = start("send_bw", port, "-n 20 --connect-timeout 100ms");
    second.line_with("is busy: 1 ahead of this client, waiting");
    let mut third = start("read_lat", port, "-n 20 --connect-timeout 100ms");
    third.line_with("is busy: 2 ahead of this client, waiting");
    // One that is gone before its turn holds nobody up.
    let gone = start("write_lat", port, "-n 20");
    std::thread::sleep(Duration::from_millis(300));
    gone.signal(Signal::SIGKILL);
    let door = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    assert!(door.contains("\nThreads:\t2\n"), "one waits and one measures: {door}");
    if everywhere.contains(['-', ',']) {
        assert_ne!(
            cores_of(&server.pid().to_string()),
            everywhere,
            "who waits keeps off a core that measures"
        );
    }
    stop(first);
    second.finish().exits(0);
    let third = third.finish().exits(0);
    assert!(third.stderr.contains("is busy: 1 ahead of this client, waiting"), "{}", third.stderr);
    has_served(&mut server, 2, ": ok after ");
    let order = ["send_lat", "send_bw", "read_lat"].map(|name| server.said().find(name));
    assert!(order.is_sorted(), "first come, first served: {}", server.said());
    server.wait_for("the one that is gone", |server| (server.said().lines().count() == 5).then_some(()));
    server
        .wait_for("an idle door", |server| (cores_of(&server.pid().to_string()) == everywhere).then_some(()));
    server.signal(Signal::SIGTERM);
    server.finish().exits(0);
}

#[test]
fn without_a_queue_who_comes_while_another_is_served_is_refused() {
    let _turn = suite::turn();
    let (mut server, port) = serve("--tcp-only --no-queue");
    let first = start_long("send_lat", port, "");
    let second = start("send_bw", port, "-n 20").finish().exits(5);
    second.says(&["this server is busy with another client", "try: "]);
    server.line_with("was not served: this server is busy");
    stop(first);
    // No sooner is it free than the next one comes.
    for _ in 0..3 {
        start("send_lat", port, "-n 20").finish().exits(0);
    }
    server.signal(Signal::SIGTERM);
    server.finish().exits(0);
}

#[test]
fn a_queue_has_an_end_and_who_is_in_it_is_told_when_the_server_stops() {
    let (mut server, port) = serve("--tcp-only");
    // One that has only said hello has no place in it.
    let mut silent = say_hello(port);
    // Each says what it wants and no more: the server waits for the test of the first one.
    let mut clients: Vec<_> = (0..66).map(|_| say_what(port)).collect();
    server.line_with("was not served: this server is busy, and 64 clients wait already");
    server.signal(Signal::SIGTERM);
    // Nothing had been agreed with anybody.
    server.finish().exits(0);
    let mut heard = clients.iter_mut().map(|client| {
        let mut said = Vec::new();
        client.read_to_end(&mut said).expect("it closes");
        String::from_utf8_lossy(&said).into_owned()
    });
    assert!(heard.by_ref().take(65).all(|said| said.contains("the server was stopped by a signal")));
    assert!(heard.all(|said| said.contains("64 clients wait already")));
    let mut said = Vec::new();
    silent.read_to_end(&mut said).expect("it closes");
    assert!(String::from_utf8_lossy(&said).contains("the server was stopped by a signal"));
}

#[test]
fn a_server_that_is_stopped_tells_all_its_clients() {
    let _turn = suite::turn();
    let (server, port) = serve("--tcp-only");
    let files = Files::new();
    let served = start_long("send_lat", port, &format!("--json {}", files.path("run.json").display()));
    let mut waiting = start("send_bw", port, "-n 20");
    waiting.line_with("is busy: 1 ahead");
    server.signal(Signal::SIGTERM);
    served.finish().exits(5).says(&["error: peer: ", "the server was stopped"]);
    waiting.finish().exits(5).says(&["error: peer: ", "the server was stopped"]);
    server.finish().exits(130).says(&["send_lat over TCP: failed after", "stopped by a signal"]);
    assert_eq!(at(&files.document("run.json"), "/error/remote"), &json!(true));
}

/// Open descriptors, and kB of memory.
fn held(server: &Running) -> (usize, u64) {
    let process = format!("/proc/{}", server.pid());
    let descriptors = std::fs::read_dir(format!("{process}/fd")).expect("it runs").count();
    let status = std::fs::read_to_string(format!("{process}/status")).expect("it runs");
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    (descriptors, kilobytes.and_then(|kilobytes| kilobytes.parse().ok()).expect("VmRSS"))
}

#[test]
fn fifty_tests_leave_nothing_behind() {
    let _turn = suite::turn();
    let (mut server, port) = serve("-d emu0");
    // A few at once: their starts overlap, and their order is that of the queue.
    let measure = |server: &mut Running, clients: usize, before: usize| {
        for _ in 0..clients / 5 {
            let runs = ["send_lat", "read_lat", "send_bw", "send_lat", "write_bw"];
            let runs = runs.map(|binary| start(binary, port, "-n 10 -s 32k -t 4 --warm-up 0 --events"));
            runs.into_iter().for_each(|run| drop(run.finish().exits(0)));
        }
        has_served(server, before + clients, ": ok after ");
    };
    measure(&mut server, 10, 0);
    let (descriptors, kilobytes) = held(&server);
    measure(&mut server, 40, 10);
    let (descriptors_after, kilobytes_after) = held(&server);
    assert_eq!(descriptors_after, descriptors);
    // Each has some 100 kB of buffers.
    assert!(kilobytes_after < kilobytes + 2048, "{kilobytes} kB, then {kilobytes_after} kB");
    server.signal(Signal::SIGTERM);
    server.finish().exits(0);
}

/// `cargo test --test behaviour -- --ignored --nocapture serve::a_thousand` prints what `results/` has of it.
#[test]
#[ignore = "takes minutes: a thousand tests, and ten thousand connections of strangers between them"]
fn a_thousand_tests_leave_nothing_behind() {
    let _turn = suite::turn();
    let (mut server, port) = serve("-d emu0");
    println!("{:>5}  {:>8}  {:>11}  {:>9}", "tests", "strangers", "descriptors", "memory kB");
    let mut least = None;
    for hundreds in 0..=10 {
        if hundreds > 0 {
            for _ in 0..20 {
                let runs = ["send_lat", "read_lat", "send_bw", "write_lat", "write_bw"];
                let runs = runs.map(|binary| start(binary, port, "-n 10 -s 32k -t 4 --warm-up 0"));
                runs.into_iter().for_each(|run| drop(run.finish().exits(0)));
                for stranger in 0..50 {
                    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
                    // A refused one may be closed already.
                    let _ = stream.write_all(&b"verbmark/1\n\0\0\0\x10{"[..stranger % 16]);
                }
            }
            has_served(&mut server, 100 * hundreds, ": ok after ");
        }
        // What has just been closed is let go within a moment.
        std::thread::sleep(Duration::from_secs(6));
        let (descriptors, kilobytes) = held(&server);
        println!("{:>5}  {:>8}  {descriptors:>11}  {kilobytes:>9}", 100 * hundreds, 1000 * hundreds);
        if hundreds == 1 {
            least = Some((descriptors, kilobytes));
        }
        if let Some((before, memory)) = least {
            assert_eq!(descriptors, before);
            assert!(kilobytes < memory + 4096, "{memory} kB, then {kilobytes} kB");
        }
    }
    server.signal(Signal::SIGTERM);
    server.finish().exits(0);
}

#[test]
fn what_cannot_be_served_is_said_at_once() {
    let (server, port) = serve("--tcp-only");
    suite::run(TOOL, &format!("serve --tcp-only --bind 127.0.0.1 -p {port}"))
        .exits(5)
        .says(&["in use", "try: "]);
    suite::run(TOOL, "serve --tcp-only --cpu 5000 -p 0").exits(2).says(&["core 5000 may not be used"]);
    suite::run(TOOL, "serve -d nosuch -p 0").exits(5).says(&["nosuch"]);
    suite::run(TOOL, "serve -d emu0 --tcp-only").exits(2).says(&["--tcp-only"]);
    suite::run(TOOL, "serve --connect-timeout 5").exits(2).says(&["--connect-timeout"]);
    suite::run(TOOL, "serve -p 70000").exits(2).says(&["--port"]);
    drop(server);
}
