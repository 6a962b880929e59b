//! Latency with several messages outstanding, and with messages that are due: every verb over both paths, on the
//! emulated device, with payloads checked, exact counts, and a schedule that is either kept or called missed.

use crate::suite;

use crate::suite::{ATOMICS, BINARIES, Files, Running, at, loopback, number, rows, text};
use serde_json::{Value, json};

fn latency_binaries() -> impl Iterator<Item = &'static str> {
    BINARIES.into_iter().chain(ATOMICS).filter(|binary| binary.ends_with("_lat"))
}

/// Options that a binary takes: atomic operations have one size.
fn sizes(binary: &str) -> &'static str {
    if binary == "atomic_lat" { "" } else { "-s 1,64,4k" }
}

/// The document of a run whose schedule may be missed: then it is invalid, and the exit status says so.
#[track_caller]
fn paced(binary: &str, options: &str) -> Value {
    let files = Files::new();
    let mut command = suite::line(binary, &format!("--loopback -d emu0 {options}"));
    command.arg("--json").arg(files.path("run.json"));
    let run = Running::start(command).finish();
    let document = files.document("run.json");
    let status = if text(&document, "/status") == "ok" { 0 } else { 5 };
    run.exits(status);
    assert!(["ok", "invalid"].contains(&text(&document, "/status")), "{document:#}");
    assert!(at(&document, "/error").is_null(), "a missed schedule is no failure: {document:#}");
    document
}

/// A path must not be judged by a machine that takes its core away: the schedule was kept, or the row says that it was
/// not, with both rates.
fn kept(row: &Value) -> bool {
    let is_ok = at(row, "/validity/ok") == &json!(true);
    if is_ok {
        let [offered, achieved] = ["/point/offered_per_s", "/achieved_per_s"].map(|rate| number(row, rate));
        let (messages, window) = (number(row, "/messages"), number(row, "/window_s"));
        // A hundredth, one at either end, and what chance does to a random schedule.
        let off = (achieved - offered).abs() * window;
        assert!(off <= 2.0 + 0.02 * messages + 6.0 * messages.sqrt(), "{off}: {row:#}");
    } else {
        let reasons = at(row, "/validity/reasons").to_string();
        assert!(reasons.contains("offered") && reasons.contains("posted"), "{reasons}");
    }
    is_ok
}

#[test]
fn every_verb_keeps_several_messages_outstanding_and_checks_each() {
    let _turn = suite::turn();
    for binary in latency_binaries() {
        for &(option, wait) in suite::waits(binary) {
            for (depth, count) in [(8, 1000), (3, 100), (2, 1), (100, 250)] {
                let options =
                    format!("-d emu0 {} --depth {depth} -n {count} --verify {option}", sizes(binary));
                let document = loopback(binary, &options);
                assert_eq!(text(&document, "/status"), "ok");
                assert_eq!(at(&document, "/test/depth"), &json!(depth));
                for row in rows(&document) {
                    let what = format!("{binary} {wait} at depth {depth}: {row:#}");
                    assert_eq!(at(row, "/messages"), &json!(count), "{what}");
                    assert_eq!(at(row, "/latency_ns/samples"), &json!(count), "{what}");
                    assert_eq!(at(row, "/point/depth"), &json!(depth), "{what}");
                    assert_eq!(text(row, "/latency_ns/basis"), "round_trip", "{what}");
                    assert!(text(row, "/id").contains(&format!("/depth{depth}/")), "{what}");
                    assert!(at(row, "/late").is_null(), "{what}");
                    let received = at(row, "/received");
                    assert!(received.is_null() || received == at(row, "/sent"), "{what}");
                }
            }
        }
    }
}

#[test]
fn queues_of_every_length_and_messages_of_every_size_are_kept_apart() {
    let _turn = suite::turn();
    for (binary, options) in [
        ("send_lat", "-t 4 -r 4 --depth 4 -Q 4 -n 500"),
        ("write_lat", "-t 1 -r 1 --depth 1 -Q 1 --rate 1M -n 200"),
        ("write_lat", "--depth 4 -s 1,2,64 -n 3000"),
        ("write_imm_lat", "-t 512 --depth 500 -n 1200"),
        ("read_lat", "--depth 128 -o 1 -n 500"),
        ("atomic_lat", "--depth 64 -n 500 -A compare_swap"),
        // More than any socket holds: who sends must read meanwhile.
        ("send_lat", "--tcp-only --depth 16 -s 1M -n 32"),
        ("send_lat", "--tcp-only --depth 16 -s 1M -n 32 --events"),
        ("read_lat", "--tcp-only --depth 16 -s 1M -n 16 --tcp-sndbuf 64k"),
    ] {
        let document = paced(binary, &format!("--verify --warm-up 10ms {options}"));
        assert!(
            options.contains("--rate") || text(&document, "/status") == "ok",
            "{binary} {options}: {document:#}"
        );
        let count = number(&document, "/test/stop/messages");
        assert!(rows(&document).iter().all(|row| number(row, "/messages") == count), "{binary} {options}");
    }
}

#[test]
fn a_rate_that_is_low_is_kept_and_one_that_is_impossible_is_not() {
    let _turn = suite::turn();
    for binary in latency_binaries() {
        let arrivals = if binary == "read_lat" { "--arrivals poisson" } else { "" };
        let low = paced(binary, &format!("--rate 1k -n 300 --verify {arrivals}"));
        for row in rows(&low) {
            assert_eq!(at(row, "/messages"), &json!(300));
            assert!(text(row, "/id").ends_with("/rate1000"), "{row:#}");
            assert!(at(row, "/late").is_u64(), "{row:#}");
            assert_eq!(text(row, "/latency_ns/basis"), "round_trip");
            kept(row);
        }
        let options = "--rate 900M -D 30ms --warm-up 10ms";
        let impossible = paced(binary, options);
        assert_eq!(text(&impossible, "/status"), "invalid", "{binary}");
        for row in rows(&impossible) {
            assert!(!kept(row), "{binary}: {row:#}");
            assert!(number(row, "/late") > 0.0, "{row:#}");
        }
    }
}

#[test]
fn trips_go_over_many_queue_pairs_in_turn() {
    let _turn = suite::turn();
    for binary in latency_binaries() {
        for &(option, _) in suite::waits(binary) {
            for (options, count) in [("-q 3 --depth 4", 100), ("-q 5", 7), ("-q 40 -t 16 --depth 2", 300)] {
                let options = format!("-d emu0 {} {options} -n {count} --verify {option}", sizes(binary));
                let document = loopback(binary, &options);
                for row in rows(&document) {
                    let queue_pairs =
                        if text(row, "/transport") == "tcp" { 1.0 } else { number(&document, "/test/qps") };
                    assert_eq!(number(row, "/point/qps"), queue_pairs, "{options}: {row:#}");
                    assert_eq!(number(row, "/messages"), f64::from(count), "{binary} {options}: {row:#}");
                    assert_eq!(text(row, "/latency_ns/basis"), "round_trip", "{binary} {options}");
                }
            }
        }
        let paced = paced(binary, "-q 4 --depth 8 --rate 2k -n 200 --verify");
        assert!(rows(&paced).iter().all(|row| number(row, "/messages") == 200.0), "{paced:#}");
    }
}

#[test]
fn a_stream_keeps_a_rate_or_says_that_it_did_not() {
    let _turn = suite::turn();
    for binary in BINARIES.into_iter().chain(ATOMICS).filter(|binary| binary.ends_with("_bw")) {
        let size = if binary == "atomic_bw" { "" } else { "-s 4k" };
        for options in ["", "-q 3 --verify", "--arrivals poisson"] {
            let low = paced(binary, &format!("{size} {options} --rate 4k -n 400"));
            for row in rows(&low) {
                assert_eq!(number(row, "/messages"), 400.0, "{binary} {options}: {row:#}");
                assert!(text(row, "/id").ends_with("/rate4000") && at(row, "/late").is_u64(), "{row:#}");
                kept(row);
            }
        }
        let impossible = paced(binary, &format!("{size} --rate 900M -D 30ms --warm-up 10ms"));
        assert_eq!(text(&impossible, "/status"), "invalid", "{binary}");
        assert!(rows(&impossible).iter().all(|row| !kept(row)), "{binary}: {impossible:#}");
    }
}

#[test]
fn a_sweep_measures_the_capacity_and_then_shares_of_it() {
    let _turn = suite::turn();
    for (binary, options) in [("send_lat", "--depth 16"), ("read_lat", "")] {
        let options = format!("--rate-sweep 20%,50%,199% -D 60ms --warm-up 10ms {options}");
        // The last share is more than there is.
        let swept = paced(binary, &options);
        assert_eq!(text(&swept, "/status"), "invalid", "{binary}");
        assert_eq!(at(&swept, "/test/rate_shares"), &json!([0.2, 0.5, 1.99]));
        let rows = rows(&swept);
        let order: Vec<_> = rows.iter().map(|row| text(row, "/transport")).collect();
        assert_eq!(order, ["rdma", "tcp"].repeat(4), "{binary}");
        let ids: std::collections::BTreeSet<_> = rows.iter().map(|row| text(row, "/id")).collect();
        assert_eq!(ids.len(), 8, "{ids:?}");
        for path in 0..2 {
            let capacity = &rows[path];
            assert!(
                at(capacity, "/point/offered_per_s").is_null() && !text(capacity, "/id").contains("/rate")
            );
            for (share, row) in [0.2, 0.5, 1.99].into_iter().zip(rows[path + 2..].iter().step_by(2)) {
                let offered = number(row, "/point/offered_per_s");
                let ratio = offered / (share * number(capacity, "/achieved_per_s"));
                assert!((0.99..1.01).contains(&ratio), "{share} of the capacity: {row:#}");
                assert!(text(row, "/id").ends_with(&format!("/rate{offered}")), "{row:#}");
                assert_eq!(at(row, "/point/depth"), at(capacity, "/point/depth"));
                kept(row);
            }
        }
        // The capacities are compared: they are of one point.
        let compared = at(&swept, "/comparison").as_array().expect("schema");
        assert!(compared.iter().any(|of| text(of, "/rdma") == text(&rows[0], "/id")), "{compared:#?}");
    }
}

#[test]
fn the_table_says_how_messages_were_sent_and_what_was_achieved() {
    let _turn = suite::turn();
    let run = suite::run("send_lat", "--loopback -d emu0 -n 200 --depth 4").exits(0);
    assert!(run.stdout.starts_with("send_lat  RC  busy polling  closed loop, depth 4"), "{}", run.stdout);
    assert!(run.stdout.contains("latency in us, the whole round trip"), "{}", run.stdout);
    let run =
        suite::run("send_lat", "--loopback -d emu0 -D 20ms --warm-up 10ms --rate 500M --no-tcp").exits(5);
    for said in
        ["open loop, depth 128  500,000,000/s constant", "offered 500,000,000/s, achieved ", "INVALID"]
    {
        assert!(run.stdout.contains(said), "{said}: {}", run.stdout);
    }
    let run = suite::run("read_lat", "--loopback -d emu0 --no-tcp -n 2000 --depth 32 -o 4").exits(0);
    assert!(run.stdout.contains("at most -o 4 of the 32 outstanding"), "{}", run.stdout);
}

#[test]
fn what_makes_no_sense_is_refused_with_what_to_change() {
    for (binary, options, word) in [
        ("send_bw", "--depth 8", "use -t"),
        ("send_lat", "--depth 0", "--depth"),
        ("send_lat", "--rate 0", "--rate"),
        ("send_lat", "--rate 10G", "10k"),
        ("send_lat", "--rate 1k --events", "spins"),
        ("send_lat", "--rate-sweep 10%..95% -a", "one size"),
        ("send_lat", "--rate-sweep 95%..10%", "smaller share"),
        ("send_lat", "--rate-sweep 50% --rate 1k", "--rate"),
        ("send_lat", "--arrivals poisson", "--rate"),
        ("send_bw", "--rate 1k -l 4", "leave -l away"),
        ("send_bw", "--rate 2", "-Q 1"),
        ("send_lat", "--depth 8 --srq", "leave --srq away"),
        ("send_lat", "--arrivals bursty --rate 1k", "poisson"),
    ] {
        let run = suite::run(binary, &format!("--loopback -d emu0 {options}")).exits(2);
        assert!(run.stderr.contains(word), "{binary} {options}: {}", run.stderr);
    }
}
