//! Several threads an end: each has its paths, all are begun together, and what is counted is the sum.

use crate::suite;

use std::time::Duration;

use crate::suite::{Files, Running, at, client, loopback, number, rows, run, server, text};
use nix::sys::signal::Signal;
use serde_json::Value;

const BANDWIDTH: [&str; 5] = ["send_bw", "write_bw", "write_imm_bw", "read_bw", "atomic_bw"];

fn sums_up(document: &Value, threads: usize, messages: f64, what: &str) {
    assert_eq!(text(document, "/status"), "ok", "{what}");
    for row in rows(document) {
        let each = at(row, "/threads").as_array().expect("a list");
        assert_eq!(each.len(), threads, "{what}: {row}");
        assert_eq!(each.iter().map(|thread| number(thread, "/messages")).sum::<f64>(), messages, "{what}");
        assert_eq!(number(row, "/messages"), messages, "{what}");
        assert_eq!(number(row, "/point/threads"), threads as f64, "{what}");
        let intervals = at(row, "/intervals").as_array().expect("a list");
        assert_eq!(intervals.iter().map(|part| number(part, "/messages")).sum::<f64>(), messages, "{what}");
    }
}

#[test]
fn every_verb_is_counted_exactly_over_both_paths() {
    let _turn = suite::turn();
    for binary in BANDWIDTH {
        for option in ["", "--events", "-q 3 -l 4", "-q 2 --srq"] {
            if option.ends_with("--srq") && !binary.starts_with("send") {
                continue;
            }
            let size = if binary.starts_with("atomic") { "" } else { "-s 4k" };
            let line = format!("-d emu0 --verify --threads 3 -n 1000 {size} {option}");
            sums_up(&loopback(binary, &line), 3, 1000.0, &format!("{binary} {line}"));
        }
    }
}

#[test]
fn windows_of_a_duration_lie_in_that_of_all() {
    let _turn = suite::turn();
    let document = loopback("write_bw", "-d emu0 --no-tcp --threads 2 -D 200ms");
    let row = &rows(&document)[0];
    for thread in at(row, "/threads").as_array().expect("a list") {
        assert!(number(thread, "/window_s") >= 0.2, "{row}");
        assert!(number(thread, "/window_s") <= number(row, "/window_s"), "{row}");
    }
}

#[test]
fn two_processes_have_as_many_paths_as_threads() {
    let _turn = suite::turn();
    for binary in ["send_bw", "read_bw"] {
        let (running, port) = server(binary, "--tcp-only");
        let files = Files::new();
        let line = "--tcp-only --threads 4 -n 4000 -s 4k --verify";
        let mut command = client(binary, "127.0.0.1", port, line);
        command.arg("--json").arg(files.path("run.json"));
        Running::start(command).finish().exits(0);
        running.finish().exits(0);
        sums_up(&files.document("run.json"), 4, 4000.0, binary);
    }
}

#[test]
fn a_server_is_interrupted_in_the_middle_of_a_stream() {
    let _turn = suite::turn();
    for wait in ["", "--events"] {
        let (running, port) = server("send_bw", "--tcp-only");
        let mut command =
            client("send_bw", "127.0.0.1", port, &format!("--tcp-only --threads 2 -D 30 {wait}"));
        command.arg("--stall-timeout").arg("40");
        let client = Running::start(command);
        std::thread::sleep(Duration::from_secs(1));
        running.signal(Signal::SIGINT);
        running.finish_within(Duration::from_secs(10)).exits(130);
        client.finish_within(Duration::from_secs(10)).exits(5);
    }
}

#[test]
fn what_threads_cannot_do_is_refused() {
    let _turn = suite::turn();
    for (binary, line, word) in [
        ("send_lat", "--threads 2", "--threads 2 is for bandwidth tests"),
        ("send_bw", "--threads 4 -n 3", "leaves some of --threads 4 without a message"),
        ("send_bw", "--threads 0", "--threads"),
        ("send_bw", "--threads 257", "--threads"),
    ] {
        run(binary, &format!("--loopback {line}")).exits(2).says(&[word]);
    }
    run("write_bw", "--loopback -d emu0 --no-tcp --threads 3 -q 700").exits(5).says(&[
        "2100 queue pairs",
        "2048 (max_qp)",
        "lower -q or --threads",
    ]);
}
