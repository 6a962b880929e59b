//! Atomic operations: every one works on the same word of the server, in the order in which it was posted, and brings
//! back what was there; nobody else counts them, so that the word must.

use crate::suite;

use crate::suite::{ATOMICS, Files, Running, at, client, loopback, number, rows, server, text};
use serde_json::json;

const OPERATIONS: [&str; 2] = ["fetch_add", "compare_swap"];

#[test]
fn every_operation_is_counted_by_the_word_over_both_paths() {
    let _turn = suite::turn();
    for binary in ATOMICS {
        for operation in OPERATIONS {
            for (option, wait) in [("", "busy"), ("--events", "events")] {
                let document = loopback(binary, &format!("-d emu0 -A {operation} -n 1000 --verify {option}"));
                assert_eq!(text(&document, "/status"), "ok", "{binary}");
                assert_eq!(text(&document, "/test/op"), operation);
                assert_eq!(text(&document, "/test/wait"), wait);
                assert_eq!(at(&document, "/test/sizes_bytes"), &json!([8]));
                assert_eq!(rows(&document).len(), 2);
                for row in rows(&document) {
                    assert_eq!(number(row, "/messages"), 1000.0, "{binary} {operation}: {row}");
                }
            }
        }
    }
}

#[test]
fn a_chain_of_swaps_holds_at_any_depth_signal_interval_and_number_in_flight() {
    let _turn = suite::turn();
    for line in ["-n 1 -t 1 -Q 1", "-n 129 -t 7 -Q 3 -o 1", "-n 1000 -t 300 -Q 300 -o 16", "-D 100ms -t 64"] {
        for operation in OPERATIONS {
            let document = loopback("atomic_bw", &format!("-d emu0 --no-tcp -A {operation} {line}"));
            assert_eq!(text(&document, "/status"), "ok", "{operation} {line}");
        }
    }
}

#[test]
fn a_server_serves_the_operation_that_the_client_names_as_perftest_does_too() {
    let _turn = suite::turn();
    for (named, operation) in [("CMP_AND_SWP", "compare_swap"), ("fetch_and_add", "fetch_add")] {
        let (running, port) = server("atomic_lat", "--tcp-only");
        let files = Files::new();
        let mut command = client("atomic_lat", "127.0.0.1", port, &format!("--tcp-only -n 50 -A {named}"));
        command.arg("--json").arg(files.path("run.json"));
        Running::start(command).finish().exits(0);
        running.finish().exits(0);
        assert_eq!(text(&files.document("run.json"), "/test/op"), operation);
    }
}

#[test]
fn a_word_that_is_not_what_it_must_be_makes_the_run_invalid() {
    let _turn = suite::turn();
    for binary in ATOMICS {
        for operation in OPERATIONS {
            let line = format!("--loopback -d emu0 --no-tcp -n 100 -A {operation}");
            let run = Running::start(suite::misbehaving(suite::line(binary, &line), "corrupt=3")).finish();
            run.exits(5).says(&["the word is", "atomic operations"]);
        }
    }
}
