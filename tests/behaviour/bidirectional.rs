//! Both directions at once, on the emulated device and over TCP: every verb, either way of waiting, one queue pair and
//! many. Counts are exact each way, payloads are checked both ways, and nothing hangs.

use crate::suite;

use std::time::Duration;

use crate::suite::{Files, Running, at, client, loopback, number, rows, server, text};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const BINARIES: [&str; 5] = ["send_bw", "write_bw", "write_imm_bw", "read_bw", "atomic_bw"];

/// Holds every row of a document to both directions, each of `count` messages where a count was given.
fn check(document: &Value, count: Option<u64>) {
    assert_eq!(text(document, "/status"), "ok", "{document:#}");
    assert_eq!(at(document, "/test/bidirectional"), &json!(true));
    let missing = at(document, "/missing").as_array().expect("a list");
    for (index, row) in rows(document).iter().enumerate() {
        assert_eq!(text(row, "/point/direction"), "bidirectional");
        assert!(text(row, "/id").ends_with("/bidirectional"), "{row:#}");
        assert_eq!(at(row, "/validity/ok"), &json!(true), "{row:#}");
        assert_eq!(text(row, "/directions/0/from"), "client");
        assert_eq!(text(row, "/directions/1/from"), "server");
        let each = |name: &str| [0, 1].map(|way| number(row, &format!("/directions/{way}/{name}")));
        for messages in each("messages") {
            assert!(count.map_or(messages > 0.0, |count| messages == count as f64), "{row:#}");
        }
        assert_eq!(number(row, "/messages"), each("messages").iter().sum::<f64>());
        let rates = each("bytes_per_s");
        assert!(rates.iter().all(|rate| *rate > 0.0), "{row:#}");
        assert_eq!(number(row, "/bandwidth/bytes_per_s"), rates.iter().sum::<f64>());
        assert!(each("window_s").iter().all(|window| *window > 0.0), "{row:#}");
        assert!(number(row, "/sent") >= number(row, "/messages"), "{row:#}");
        match at(row, "/overlap/share") {
            Value::Null => {
                let path = format!("results[{index}].overlap.share");
                assert!(missing.iter().any(|missing| missing["path"] == path.as_str()), "{document:#}");
            }
            share => assert!((0.0..=1.0).contains(&share.as_f64().expect("a number")), "{row:#}"),
        }
        // A socket is read by its end; a passive target of RDMA is not told.
        let is_told =
            text(row, "/transport") == "tcp" || ["send", "write_imm"].contains(&text(document, "/test/op"));
        let counted = if is_told { (at(row, "/sent"), &json!(0)) } else { (&Value::Null, &Value::Null) };
        assert_eq!((at(row, "/received"), at(row, "/lost")), counted, "{row:#}");
    }
}

/// Sizes a binary can have, besides its default.
fn sizes(binary: &str) -> &'static str {
    if binary == "atomic_bw" { "" } else { "-s 1,4k" }
}

#[test]
fn every_verb_goes_both_ways_with_exact_counts_and_checked_payloads() {
    let _turn = suite::turn();
    for binary in BINARIES {
        for wait in ["", "--events"] {
            for queues in ["-q 1", "-q 8", "-q 3 -l 4 -t 8 --buffers 8"] {
                let options = format!("-b -d emu0 -n 150 {} --verify {wait} {queues}", sizes(binary));
                check(&loopback(binary, &options), Some(150));
            }
        }
    }
}

#[test]
fn shared_receives_serve_the_peers_direction_alone() {
    let _turn = suite::turn();
    for binary in ["send_bw", "write_imm_bw"] {
        for wait in ["", "--events"] {
            for queues in ["-q 1", "-q 8 -r 64"] {
                let options = format!("-b -d emu0 --no-tcp --srq -n 300 -s 1,4k --verify {wait} {queues}");
                check(&loopback(binary, &options), Some(300));
            }
        }
    }
}

#[test]
fn counts_are_exact_wherever_they_fall_and_with_the_smallest_queues() {
    let _turn = suite::turn();
    for binary in BINARIES {
        for count in [1, 33, 129] {
            check(&loopback(binary, &format!("-b -d emu0 -n {count}")), Some(count));
        }
        check(&loopback(binary, "-b -d emu0 -n 50 -t 1 -r 1 -Q 1 --verify"), Some(50));
    }
}

#[test]
fn a_time_opens_a_window_each_way() {
    let _turn = suite::turn();
    for (binary, wait) in [("send_bw", ""), ("write_bw", "--events -q 8"), ("read_bw", "")] {
        let document = loopback(binary, &format!("-b -d emu0 -D 60ms --warm-up 10ms {wait}"));
        check(&document, None);
        for row in rows(&document) {
            for way in [0, 1] {
                assert!(number(row, &format!("/directions/{way}/window_s")) >= 0.06, "{row:#}");
            }
        }
    }
}

/// Each end has megabytes to send that the other's socket does not take.
#[test]
fn large_messages_through_small_sockets_do_not_hold_each_other_up() {
    let _turn = suite::turn();
    for binary in ["send_bw", "read_bw"] {
        for wait in ["", "--events"] {
            let options =
                format!("-b --tcp-only -n 12 -s 1M --tcp-sndbuf 64k --tcp-rcvbuf 64k --verify -t 4 {wait}");
            check(&loopback(binary, &options), Some(12));
        }
    }
}

#[test]
fn two_processes_tell_each_other_of_both_directions() {
    let _turn = suite::turn();
    for wait in ["", "--events"] {
        let files = Files::new();
        let json = |name: &str| format!("--json {}", files.path(name).display());
        let (server, port) = server("write_bw", &format!("--tcp-only {}", json("server.json")));
        let options = format!("-b --tcp-only -D 50ms -s 4k {wait} {}", json("client.json"));
        let client = Running::start(client("write_bw", "127.0.0.1", port, &options)).finish().exits(0);
        server.finish().exits(0);
        let ours = files.document("client.json");
        check(&ours, None);
        assert_eq!(rows(&ours), rows(&files.document("server.json")), "both ends have the same numbers");
        assert!(client.stdout.contains("client -> server ") && client.stdout.contains("server -> client "));
    }
}

#[test]
fn an_end_that_is_killed_is_noticed_by_one_that_streams() {
    let _turn = suite::turn();
    for (wait, kills_server) in [("", true), ("--events", true), ("", false), ("--events", false)] {
        let files = Files::new();
        let json = |name: &str| format!("--json {}", files.path(name).display());
        let (server, port) = server("send_bw", &format!("--tcp-only {}", json("server.json")));
        let options = format!("-b --tcp-only -D 200ms -s 64,4k,8k,16k,32k {wait} {}", json("client.json"));
        let mut client = Running::start(client("send_bw", "127.0.0.1", port, &options));
        client.wait_for("a row", |client| client.shown().contains("64 B").then_some(()));
        let (killed, survivor, name) =
            if kills_server { (server, client, "client.json") } else { (client, server, "server.json") };
        killed.signal(Signal::SIGKILL);
        assert!(killed.finish().status.code().is_none());
        survivor.finish_within(Duration::from_secs(12)).exits(5);
        let document = files.document(name);
        assert_eq!(text(&document, "/status"), "failed");
        assert!(!rows(&document).is_empty(), "what was measured before is kept: {document:#}");
    }
}

#[test]
fn a_device_that_fails_ends_both_directions_long_before_the_stall_timeout() {
    let _turn = suite::turn();
    for option in ["", "--events", "-q 3"] {
        let command = suite::line("send_bw", &format!("--loopback -d emu0 --no-tcp -n 6000 -b {option}"));
        let command = suite::misbehaving(command, "device-fatal-after=500");
        let ended = Running::start(command).finish_within(Duration::from_secs(9)).exits(5);
        ended.says(&["the device failed"]);
    }
}

#[test]
fn what_does_not_go_with_both_directions_is_refused() {
    for (binary, options, word) in [
        ("send_lat", "-b --loopback", "bandwidth tests"),
        ("write_bw", "-b --loopback --tcp-zerocopy", "--tcp-zerocopy"),
        ("write_bw", "-b --loopback --threads 2", "--threads"),
        ("send_bw", "-b --loopback -c UD -s 64", "-c RC"),
        ("write_bw", "-b --loopback --rate 1000", "--rate"),
        ("write_bw", "-b --loopback --rate-sweep 0.5", "--rate"),
    ] {
        suite::run(binary, options).exits(2).says(&["error: ", word]);
    }
}
