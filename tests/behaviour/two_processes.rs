//! Server and client as two processes on one host, over TCP alone: how they find each other, what they tell each other,
//! and what a server does with everybody else who connects to it.

use crate::suite;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::suite::proxy::{From, Proxy};
use crate::suite::{
    BINARIES, Files, Running, at, client, line, port, rows, say_hello, say_what, server, text,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Runs a client against the server on `port`, and gives its document.
fn measure(binary: &str, host: &str, port: u16, options: &str) -> Value {
    let files = Files::new();
    let mut command = client(binary, host, port, &format!("--tcp-only {options}"));
    command.arg("--json").arg(files.path("client.json"));
    Running::start(command).finish().exits(0);
    files.document("client.json")
}

#[test]
fn both_ends_write_the_same_run_each_from_its_side() {
    let _turn = suite::turn();
    for binary in BINARIES {
        for (wait, _) in suite::waits(binary) {
            let files = Files::new();
            let there = files.path("server.json");
            let (server, port) = server(binary, &format!("--tcp-only --json {}", there.display()));
            let ours = measure(binary, "127.0.0.1", port, &format!("-n 40 -s 1,4k,64k --verify {wait}"));
            let served = server.finish().exits(0);
            let theirs = files.document("server.json");
            for pointer in ["/run_id", "/test", "/results", "/comparison", "/same_host", "/status"] {
                assert_eq!(at(&ours, pointer), at(&theirs, pointer), "{binary} {wait}: {pointer}");
            }
            assert_eq!((text(&ours, "/local/side"), text(&theirs, "/local/side")), ("client", "server"));
            assert_eq!(at(&ours, "/local"), at(&theirs, "/remote"), "{binary} {wait}");
            assert_eq!(at(&ours, "/remote"), at(&theirs, "/local"), "{binary} {wait}");
            assert_ne!(at(&ours, "/local/process/pid"), at(&ours, "/remote/process/pid"));
            assert_eq!(at(&ours, "/same_host"), &json!(true));
            assert!(rows(&ours).iter().all(|row| at(row, "/messages") == &json!(40)), "{ours:#}");
            for size in ["1 B", "4 KiB", "64 KiB"] {
                assert!(served.stdout.contains(size), "a server shows the table too: {}", served.stdout);
            }
        }
    }
}

#[test]
fn a_ready_server_says_where_it_listens_in_one_line() {
    let (server, port) = server("send_lat", "--tcp-only --bind 127.0.0.1");
    assert_eq!(server.said(), format!("listening on 127.0.0.1 port {port}\n"));
    let _turn = suite::turn();
    measure("send_lat", "127.0.0.1", port, "-n 10");
    let served = server.finish().exits(0);
    assert_eq!(served.stderr, format!("listening on 127.0.0.1 port {port}\n"), "nothing else goes wrong");
}

#[test]
fn a_client_may_start_first() {
    let _turn = suite::turn();
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    let client =
        Running::start(client("read_lat", "127.0.0.1", port, "--tcp-only -n 20 --connect-timeout 60"));
    std::thread::sleep(Duration::from_millis(700));
    let server = Running::start(line("read_lat", &format!("--tcp-only -p {port}")));
    client.finish().exits(0);
    server.finish().exits(0);
}

#[test]
fn nobody_there_is_an_error_after_the_connect_timeout() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    let run = Running::start(client("send_lat", "127.0.0.1", port, "--tcp-only --connect-timeout 500ms"));
    let run = run.finish().exits(5).says(&[
        "error: connect: no server answered",
        "refused",
        "try: start the server",
    ]);
    assert!(run.stderr.contains(&port.to_string()), "{}", run.stderr);
    // The last pause between attempts is left out when it would end too late.
    assert!(run.took >= Duration::from_millis(250), "it waited {:?}", run.took);
}

#[test]
fn somebody_there_who_says_nothing_is_an_error_too() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = silent.local_addr().expect("an address").port();
    let run = Running::start(client("send_lat", "127.0.0.1", port, "--tcp-only --connect-timeout 1"));
    run.finish().exits(5).says(&["error: hello: ", &port.to_string(), "said nothing"]);
}

#[test]
fn another_service_there_is_named_by_what_it_sent() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = other.local_addr().expect("an address").port();
    let banner = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().expect("the client comes");
        stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n").expect("it listens");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let run = Running::start(client("send_lat", "127.0.0.1", port, "--tcp-only --connect-timeout 1"));
    run.finish().exits(5).says(&["error: hello: ", "SSH"]);
    banner.join().expect("the banner was sent");
}

#[test]
fn another_test_is_refused_by_both_names_and_the_server_waits_on() {
    let _turn = suite::turn();
    for (served, wanted) in [("send_lat", "write_bw"), ("write_imm_bw", "read_lat")] {
        let (mut server, port) = server(served, "--tcp-only");
        let refused = Running::start(client(wanted, "127.0.0.1", port, "--tcp-only -n 10")).finish().exits(5);
        let refused =
            refused.says(&["error: peer: plan: ", &format!("serves {served}, not {wanted}"), "try: "]);
        assert!(!refused.stdout.contains("rdma"), "{}", refused.stdout);
        server.line_with("was not served");
        measure(served, "127.0.0.1", port, "-n 10");
        server.finish().exits(0).says(&[served, wanted]);
    }
}

#[test]
fn rdma_is_refused_by_a_server_without_it() {
    let _turn = suite::turn();
    let (server, port) = server("send_lat", "--tcp-only");
    let refused = Running::start(client("send_lat", "127.0.0.1", port, "-d emu0 -n 10")).finish().exits(5);
    refused.says(&["error: peer: plan: this server was started with --tcp-only and has no RDMA", "try: "]);
    measure("send_lat", "127.0.0.1", port, "-n 10");
    server.finish().exits(0);
}

#[test]
fn two_processes_are_told_that_they_cannot_meet_on_an_emulated_device() {
    let _turn = suite::turn();
    let (server, port) = server("send_lat", "-d emu0");
    let refused = Running::start(client("send_lat", "127.0.0.1", port, "-d emu0 -n 10")).finish().exits(5);
    refused.says(&["emu0 exists within one process only", "try: use --loopback"]);
    measure("send_lat", "127.0.0.1", port, "-n 10");
    server.finish().exits(0);
}

#[test]
fn an_interrupt_is_heard_where_ends_that_yield_to_each_other_never_wait_for_long() {
    let _turn = suite::turn();
    for (binary, option) in [("send_lat", ""), ("send_lat", "--depth 4"), ("send_bw", "")] {
        let (running, port) = server(binary, "--tcp-only --cpu 0");
        let options = format!("--tcp-only --cpu 0 -D 60 --stall-timeout 90 {option}");
        let measuring = Running::start(client(binary, "127.0.0.1", port, &options));
        std::thread::sleep(Duration::from_millis(700));
        running.signal(Signal::SIGINT);
        running.finish_within(Duration::from_secs(20)).exits(130);
        measuring.finish_within(Duration::from_secs(20)).exits(5);
    }
}

#[test]
fn options_that_the_client_decides_are_named_by_a_server_and_ignored() {
    let _turn = suite::turn();
    let (mut server, port) = server("send_lat", "--tcp-only -s 4k -n 7 --events --stall-timeout 20");
    let said = server.line_with("ignored");
    for option in ["--size", "--iters", "--events", "--stall-timeout"] {
        assert!(said.contains(option), "{said}");
    }
    assert!(!said.contains("--tcp-only") && !said.contains("--port"), "{said}");
    let document = measure("send_lat", "127.0.0.1", port, "-n 11 -s 32");
    assert_eq!(at(&document, "/test/sizes_bytes"), &json!([32]));
    assert_eq!(text(&document, "/test/wait"), "busy");
    assert_eq!(at(&document, "/results/0/messages"), &json!(11));
    server.finish().exits(0);
}

/// Everybody who may connect to a port that is not theirs: what they send, and whether they then close.
const STRAYS: [(&str, &[u8], bool); 10] = [
    ("a port probe", b"", true),
    ("garbage", &[0xff; 600], true),
    ("garbage that stays", &[0xff; 600], false),
    ("zeros", &[0; 64], false),
    ("our preamble and half a length", b"verbmark/1\n\0\0", false),
    ("our preamble and half a frame", b"verbmark/1\n\0\0\0\x40{\"ok\":", true),
    ("our preamble and no JSON", b"verbmark/1\n\0\0\0\x04!!!!", false),
    ("another version of us", b"verbmark/2\n\0\0\0\x02{}", false),
    ("a browser", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", false),
    ("stock perftest", b"6.06\0\0\0\0\0\0\0\0\0\0\0\0", false),
];

#[test]
fn strangers_never_end_a_server_nor_keep_a_client_waiting() {
    let _turn = suite::turn();
    let (mut server, port) = server("write_bw", "--tcp-only -v");
    let address = ("127.0.0.1", port);
    let mut silent: Vec<TcpStream> =
        (0..3).map(|_| TcpStream::connect(address).expect("it listens")).collect();
    for (who, sends, closes) in STRAYS {
        let mut stray = TcpStream::connect(address).unwrap_or_else(|e| panic!("{who}: {e}"));
        // It may hang up before it has heard all.
        let _ = stray.write_all(sends);
        if closes {
            let _ = stray.shutdown(Shutdown::Both);
        }
        silent.push(stray);
        assert!(server.runs(), "{who} ended the server: {}", server.said());
    }
    for who in ["perftest client (version 6.06)", "HTTP", "version 2 of the protocol"] {
        server.line_with(who);
    }
    let since = Instant::now();
    measure("write_bw", "127.0.0.1", port, "-n 20 -s 64");
    let took = since.elapsed();
    // The silent ones are given 5 s each to say hello; who waited for one of them would be late.
    assert!(took < Duration::from_secs(4), "a client among strangers took {took:?}");
    drop(silent);
    server.finish().exits(0);
}

#[test]
fn a_byte_that_changes_on_its_way_makes_the_run_invalid_at_both_ends() {
    let _turn = suite::turn();
    // The byte is in the third of the messages that are always checked, or in one that only --verify looks at: 16 are
    // checked and 16 are sent to warm up before those that count.
    for (binary, options, from, message) in [
        ("send_lat", "", From::Client, 3),
        ("send_lat", "", From::Server, 3),
        ("send_lat", "--verify --events", From::Client, 50),
        ("read_lat", "--verify", From::Server, 50),
        ("write_bw", "--events", From::Client, 3),
        ("write_imm_bw", "", From::Client, 3),
    ] {
        let what = format!("{binary} {options}: {from:?}'s message {message}");
        let files = Files::new();
        let json = |name: &str| format!("--json {}", files.path(name).display());
        let (server, port) = server(binary, &format!("--tcp-only {}", json("server.json")));
        let proxy = Proxy::with_wrong_byte(port, from, 64 * (message - 1) + 5);
        let options = format!("--tcp-only -s 64 -n 100 {options} {}", json("client.json"));
        let client = Running::start(client(binary, "127.0.0.1", proxy.port(), &options)).finish().exits(5);
        let server = server.finish().exits(5);
        // Who reads a message finds it wrong; the other end is told.
        let (finder, told) = if from == From::Client { ("server", "client") } else { ("client", "server") };
        for (end, is_remote) in [(finder, false), (told, true)] {
            let document = files.document(&format!("{end}.json"));
            assert_eq!(text(&document, "/status"), "invalid", "{what}: {end}: {document:#}");
            assert_eq!(at(&document, "/error/remote"), &json!(is_remote), "{what}: {end}");
            let error = text(&document, "/error/message");
            assert!(error.contains("is wrong at byte 5 of 64"), "{what}: {error}");
            let run = if end == "server" { &server } else { &client };
            assert!(run.stderr.contains(error), "{what}: {}", run.stderr);
        }
    }
}

#[test]
fn a_server_that_is_stopped_tells_the_client_it_talks_with() {
    let (server, port) = server("send_lat", "--tcp-only");
    let mut client = say_what(port);
    // Once it has an offer it waits for a test.
    let (mut heard, mut byte) = (String::new(), [0; 1]);
    while !heard.contains("shares_core") {
        client.read_exact(&mut byte).expect("an offer");
        heard.extend(byte.map(char::from));
    }
    server.signal(Signal::SIGTERM);
    server.finish().exits(130).says(&["error: plan: stopped by a signal"]);
    let mut last = String::new();
    client.read_to_string(&mut last).expect("it closes");
    assert!(last.contains("stopped by a signal"), "{last}");
}

#[test]
fn a_client_that_stops_talking_is_given_up_and_the_next_one_served() {
    let (mut server, port) = server("send_lat", "--tcp-only -v");
    // One has its turn and holds it for a while; another has none yet.
    let (_turns, _half) = (say_what(port), say_hello(port));
    server.line_with("was not served");
    let _turn = suite::turn();
    measure("send_lat", "127.0.0.1", port, "-n 10 --connect-timeout 60");
    server.finish().exits(0);
}

#[test]
fn a_second_client_at_the_same_time_is_told_and_the_first_is_not_disturbed() {
    let _turn = suite::turn();
    let (server, port) = server("send_lat", "--tcp-only");
    let files = Files::new();
    let mut first = client("send_lat", "127.0.0.1", port, "--tcp-only --events -D 3 -v");
    first.arg("--json").arg(files.path("first.json"));
    let mut first = Running::start(first);
    // Once the first is served there is a second connection of its, which the server no longer waits for afterwards.
    std::thread::sleep(Duration::from_millis(800));
    assert!(first.runs());
    let second =
        Running::start(client("send_lat", "127.0.0.1", port, "--tcp-only -n 10 --connect-timeout 1"));
    let second = second.finish().exits(5);
    assert!(second.stderr.starts_with("error: "), "{}", second.stderr);
    first.finish().exits(0);
    server.finish().exits(0);
    assert_eq!(text(&files.document("first.json"), "/status"), "ok");
}

#[test]
fn names_and_both_families_of_addresses_reach_a_server() {
    let _turn = suite::turn();
    let mut hosts = vec!["127.0.0.1", "localhost", "::ffff:127.0.0.1"];
    match TcpListener::bind("[::1]:0") {
        Ok(_) => hosts.extend(["::1", "[::1]"]),
        Err(e) => println!("IPv6 is not asked for, as this machine has none: {e}"),
    }
    for host in hosts {
        let (server, port) = server("send_lat", "--tcp-only");
        let document = measure("send_lat", host, port, "-n 10");
        let peer = text(&document, "/local/tcp/peer_address");
        assert_eq!(host.contains("::1"), peer.starts_with("[::1]"), "{host}: {peer}");
        server.finish().exits(0);
    }
}

#[test]
fn a_link_local_address_is_reached_through_the_interface_of_its_zone() {
    // Address, index, prefix, scope, flags, name; scope 20 is link-local, flag 40 still looks for a duplicate.
    let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let entry = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut usable = entry.filter(|entry| entry.len() == 6 && entry[3] == "20" && entry[4] == "80");
    let Some(entry) = usable.next() else {
        println!("not asked: this machine has no link-local address");
        return;
    };
    let address = u128::from_str_radix(entry[0], 16).expect("an address");
    let host = format!("{}%{}", std::net::Ipv6Addr::from(address), entry[5]);
    let _turn = suite::turn();
    let (server, port) = server("send_lat", "--tcp-only");
    let document = measure("send_lat", &host, port, "-n 10");
    server.finish().exits(0);
    assert!(text(&document, "/local/tcp/peer_address").starts_with("[fe80::"), "{document:#}");
    assert!(at(&document, "/local/tcp/interface").is_string(), "{document:#}");
}

#[test]
fn of_a_name_with_two_families_the_one_that_listens_is_found() {
    let Ok(both) = ("localhost", 1).to_socket_addrs() else { return };
    let families: Vec<bool> = both.map(|address| address.is_ipv4()).collect();
    let _turn = suite::turn();
    for (bind, is_ipv4) in [("127.0.0.1", true), ("::1", false)] {
        if !families.contains(&is_ipv4) {
            println!("not asked: localhost has no address of the family of {bind}");
            continue;
        }
        let (server, port) = server("send_lat", &format!("--tcp-only --bind {bind}"));
        let document = measure("send_lat", "localhost", port, "-n 10");
        assert_eq!(text(&document, "/local/tcp/peer_address").starts_with('['), !is_ipv4);
        server.finish().exits(0);
    }
}

#[test]
fn a_name_without_an_address_is_an_error() {
    let run =
        Running::start(client("send_lat", "no-such-host.invalid", 18515, "--tcp-only --connect-timeout 5"));
    run.finish().exits(5).says(&["error: connect: ", "no-such-host.invalid"]);
}

#[test]
fn a_port_that_is_taken_is_an_error_with_the_port() {
    let (_server, port) = server("send_lat", "--tcp-only");
    let run = Running::start(line("write_bw", &format!("--tcp-only -p {port}"))).finish().exits(5);
    run.says(&["error: listen: ", &format!("{port}"), "in use", "try: "]);
}

#[test]
fn a_server_is_stopped_by_a_signal_before_and_between_clients() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let files = Files::new();
        let mut command = line("read_lat", "--tcp-only -p 0 --json");
        command.arg(files.path("server.json"));
        let mut server = Running::start(command);
        port(&mut server);
        server.signal(signal);
        server.finish().exits(130).says(&["error: listen: stopped by a signal"]);
        let document = files.document("server.json");
        assert_eq!(
            (text(&document, "/status"), text(&document, "/error/kind")),
            ("interrupted", "interrupted")
        );
        assert!(at(&document, "/test").is_null() && rows(&document).is_empty());
    }
}

#[test]
fn the_client_may_say_where_the_server_runs_and_the_server_has_the_last_word() {
    let _turn = suite::turn();
    let document = suite::loopback("send_lat", "--tcp-only -n 10");
    let allowed = at(&document, "/local/cpus_allowed").as_array().expect("schema").clone();
    let (first, last) = (allowed[0].clone(), allowed[allowed.len() - 1].clone());

    let (server, port) = server("send_lat", "--tcp-only");
    let refused = client("send_lat", "127.0.0.1", port, "--tcp-only -n 10 --peer-cpu 4096");
    Running::start(refused)
        .finish()
        .exits(5)
        .says(&["error: peer: plan: core 4096 may not be used: allowed are", "try: "]);
    let document = measure("send_lat", "127.0.0.1", port, &format!("-n 10 --cpu {first} --peer-cpu {last}"));
    assert_eq!((at(&document, "/local/core"), at(&document, "/remote/core")), (&first, &last));
    server.finish().exits(0).says(&["was not served: core 4096"]);

    let (server, port) = self::server("send_lat", &format!("--tcp-only --cpu {last}"));
    let document = measure("send_lat", "127.0.0.1", port, &format!("-n 10 --cpu {first} --peer-cpu {first}"));
    assert_eq!(at(&document, "/remote/core"), &last);
    server.finish().exits(0);

    let document = suite::loopback("send_lat", &format!("--tcp-only -n 10 --cpu {last} --peer-cpu {first}"));
    assert_eq!((at(&document, "/local/core"), at(&document, "/remote/core")), (&last, &first));
}
