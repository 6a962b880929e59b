//! What held a rate is told: each limit is brought about on purpose, on the emulated device, so strongly that a loaded
//! machine does not hide it.

use crate::suite;

use crate::suite::{Files, Running, at, number, rows, text};
use serde_json::Value;

/// The words there are.
const WORDS: [&str; 6] = ["sender_core", "path", "receiver_core", "receiver_not_posting", "rate", "unclear"];

/// The document of a loopback on a device told to misbehave as `how` says.
fn document(binary: &str, how: &str, options: &str) -> (Value, String) {
    let files = Files::new();
    let mut command = suite::misbehaving(suite::line(binary, options), how);
    command.args(["--loopback", "-d", "emu0", "--json"]).arg(files.path("run.json"));
    let run = Running::start(command).finish().exits(0);
    (files.document("run.json"), run.stdout)
}

/// Runs until the verdict is `expected`, three times at most: what others take of two cores can hide it once.
#[track_caller]
fn is_limited(binary: &str, how: &str, options: &str, expected: &str) -> Value {
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (document, table) = document(binary, how, &format!("--no-tcp -D 500ms {options}"));
        let row = &rows(&document)[0];
        let verdict = text(row, "/limited_by").to_owned();
        assert!(table.contains("limited by"), "{table}");
        if verdict == expected {
            return row.clone();
        }
        seen.push(row.to_string());
    }
    panic!("{binary} {how} {options} is not limited by {expected}: {seen:#?}");
}

#[test]
fn a_sender_that_has_its_hands_full_is_the_limit() {
    let _turn = suite::turn();
    // Each post takes as long, whatever else goes on.
    let row = is_limited("write_bw", "delay=20000", "-s 64", "sender_core");
    assert!(number(&row, "/cpu/client/idle_share") <= 0.1, "{row:#}");
    assert!(at(&row, "/cpu/server/idle_share").is_null(), "{row:#}");
    is_limited("send_bw", "delay=20000", "-s 64", "sender_core");
}

#[test]
fn a_path_that_takes_its_time_is_the_limit() {
    let _turn = suite::turn();
    for (binary, options) in [
        ("write_bw", ""),
        ("read_bw", ""),
        ("send_bw", ""),
        ("send_bw", "--events"),
        ("write_bw", "--events"),
    ] {
        let row = is_limited(binary, "pace=200000", &format!("-s 64 {options}"), "path");
        assert!(number(&row, "/cpu/client/idle_share") >= 0.25, "{row:#}");
    }
}

#[test]
fn a_receiver_that_has_its_hands_full_is_the_limit() {
    let _turn = suite::turn();
    // What is outstanding keeps it at work for a tenth of a second, also while the client has no core.
    let row = is_limited("send_bw", "slow-receives=1000000", "-s 64 -r 16", "receiver_core");
    assert!(number(&row, "/cpu/server/idle_share") <= 0.1, "{row:#}");
    assert!(number(&row, "/cpu/client/idle_share") >= 0.25, "{row:#}");
}

#[test]
fn receives_that_are_not_there_are_told_from_a_core_that_is_busy() {
    let _turn = suite::turn();
    for options in ["-s 64", "-s 64 --events"] {
        let row = is_limited("send_bw", "late-receives=200000", options, "receiver_not_posting");
        assert!(number(&row, "/counters/client/receiver_not_ready") > 0.0, "{row:#}");
    }
}

#[test]
fn a_rate_that_is_kept_is_the_limit() {
    let _turn = suite::turn();
    let mut seen = Vec::new();
    for _ in 0..5 {
        let document = suite::loopback("write_bw", "-d emu0 --no-tcp -s 64 -D 500ms --rate 2000");
        seen.push(text(&rows(&document)[0], "/limited_by").to_owned());
        if seen.last().is_some_and(|verdict| verdict == "rate") {
            return;
        }
    }
    panic!("a rate of 2000 is never kept: {seen:?}");
}

#[test]
fn tcp_has_a_verdict_too_and_a_latency_test_none() {
    let _turn = suite::turn();
    for options in ["-D 200ms -s 64k --tcp-only", "-D 200ms -s 64k --tcp-only --events"] {
        let document = suite::loopback("write_bw", options);
        let row = &rows(&document)[0];
        let cores = at(&document, "/local/cpus_allowed").as_array().map_or(0, Vec::len);
        if cores > 1 {
            assert!(WORDS.contains(&text(row, "/limited_by")), "{row:#}");
            for end in ["client", "server"] {
                assert!((0.0..=1.0).contains(&number(row, &format!("/cpu/{end}/idle_share"))), "{row:#}");
            }
        }
    }
    let document = suite::loopback("send_lat", "-n 100 --tcp-only");
    assert!(at(&rows(&document)[0], "/limited_by").is_null());
    let missing = at(&document, "/missing").to_string();
    assert!(!missing.contains("limited_by") && !missing.contains("idle_share"), "{missing}");
}

#[test]
fn ends_that_share_a_core_have_no_verdict_and_the_document_says_why() {
    let _turn = suite::turn();
    let core = &at(&suite::loopback("send_lat", "-n 10 --tcp-only"), "/local/cpus_allowed")[0].to_string();
    let options = format!("-d emu0 --no-tcp -n 1000 --cpu {core} --peer-cpu {core}");
    let document = suite::loopback("send_bw", &options);
    assert!(at(&document, "/results/0/limited_by").is_null());
    let missing = at(&document, "/missing").to_string();
    for path in ["results[0].limited_by", "results[0].cpu.client.idle_share"] {
        assert!(missing.contains(path), "{path}: {missing}");
    }
}
