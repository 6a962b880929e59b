//! Services that may lose messages, both ends in one process: each verb they have is measured, what is lost is counted
//! and waited for by nobody, and what is not theirs is refused.

use crate::suite;

use std::time::Duration;

use crate::suite::{Files, Running, at, number, rows, text};
use serde_json::{Value, json};

/// Each binary with the services that its verb has besides RC.
const LEGAL: [(&str, &[&str]); 6] = [
    ("send_lat", &["UC", "UD"]),
    ("send_bw", &["UC", "UD"]),
    ("write_lat", &["UC"]),
    ("write_bw", &["UC"]),
    ("write_imm_lat", &["UC"]),
    ("write_imm_bw", &["UC"]),
];

fn legal() -> impl Iterator<Item = (&'static str, &'static str)> {
    LEGAL.into_iter().flat_map(|(binary, services)| services.iter().map(move |service| (binary, *service)))
}

/// The end whose count and clock a bandwidth test over one of these services has.
fn measured_by(binary: &str) -> &'static str {
    if ["send_bw", "write_imm_bw"].contains(&binary) { "server" } else { "client" }
}

/// Runs a loopback on the emulated device, told to misbehave as `how` says.
fn run(binary: &str, how: &str, options: &str) -> (suite::Finished, Value) {
    let files = Files::new();
    let mut command = suite::misbehaving(suite::line(binary, options), how);
    command.args(["--loopback", "--json"]).arg(files.path("run.json"));
    let run = Running::start(command).finish();
    (run, files.document("run.json"))
}

#[track_caller]
fn count(row: &Value, name: &str) -> u64 {
    at(row, &format!("/{name}")).as_u64().unwrap_or_else(|| panic!("no {name} in {row:#}"))
}

/// The row of the only RDMA point of a document.
fn rdma(document: &Value) -> &Value {
    let row = &rows(document)[0];
    assert_eq!(text(row, "/transport"), "rdma");
    row
}

#[test]
fn every_verb_is_measured_over_the_services_that_have_it() {
    let _turn = suite::turn();
    for (binary, service) in legal() {
        for &(option, wait) in suite::waits(binary) {
            // Fewer than receives are posted, so that a receiver that is slow loses none.
            let options = format!("-c {service} -d emu0 --no-tcp -s 1,64,4k -n 200 --verify {option}");
            let (finished, document) = run(binary, "", &options);
            let what = format!("{binary} {service} {wait}");
            let finished = finished.exits(0);
            assert_eq!(text(&document, "/test/connection"), service, "{what}");
            assert_eq!(at(&document, "/test/loss_timeout_s"), &json!(0.05), "{what}");
            assert_eq!(rows(&document).len(), 3, "{what}: {document:#}");
            let said = finished.stdout.contains("the rate is that of what was sent");
            assert_eq!(said, binary == "write_bw", "{what}: {}", finished.stdout);
            for row in rows(&document) {
                assert_eq!(at(row, "/validity/ok"), &json!(true), "{what}: {row:#}");
                assert_eq!(text(row, "/measured_by"), measured_by(binary), "{what}");
                assert!(number(row, "/window_s") > 0.0, "{what}: {row:#}");
                check_counts(&what, binary, row, 200);
            }
        }
    }
}

/// Holds a row of `asked` messages to counts that go together.
fn check_counts(what: &str, binary: &str, row: &Value, asked: u64) {
    let (sent, messages) = (count(row, "sent"), count(row, "messages"));
    assert!(sent >= asked, "{what}: {row:#}");
    if binary == "write_bw" {
        assert_eq!(messages, asked, "{what}");
        assert!(at(row, "/received").is_null() && at(row, "/lost").is_null(), "{what}: {row:#}");
        return;
    }
    let (received, lost) = (count(row, "received"), count(row, "lost"));
    assert_eq!(received + lost, sent, "{what}: {row:#}");
    if measured_by(binary) == "server" {
        assert_eq!((sent, messages), (asked, received), "{what}: {row:#}");
        assert!(number(row, "/bandwidth/bytes_per_s") > 0.0, "{what}: {row:#}");
        assert!(at(row, "/late_replies").is_null(), "{what}");
    } else {
        // What was lost of the warm-up is not of the samples.
        let samples = number(row, "/latency_ns/samples") as u64;
        assert!(samples == messages && messages <= received && messages + lost >= asked, "{what}: {row:#}");
        assert!(count(row, "late_replies") <= lost, "{what}: {row:#}");
    }
}

#[test]
fn what_is_lost_is_counted_said_and_waited_for_by_nobody() {
    let _turn = suite::turn();
    for (binary, service) in legal() {
        for &(option, wait) in suite::waits(binary) {
            let what = format!("{binary} {service} {wait}");
            let options =
                format!("-c {service} -d emu0 --no-tcp -s 64 -n 100 --loss-timeout 3ms --verify {option}");
            let (finished, document) = run(binary, "lose=7", &options);
            assert!(finished.took < Duration::from_secs(60), "{what}");
            finished.exits(0);
            let row = rdma(&document);
            check_counts(&what, binary, row, 100);
            if binary == "write_bw" {
                continue;
            }
            // A seventh of those there, and in a ping-pong of those back.
            let (lost, sent) = (count(row, "lost"), count(row, "sent"));
            assert!(lost >= sent / 7, "{what}: {row:#}");
            let codes: Vec<_> = at(&document, "/warnings").as_array().expect("schema").iter().collect();
            let warning = codes.iter().find(|warning| text(warning, "/code") == "loss");
            let said = format!("{lost} of {sent} messages");
            assert!(warning.is_some_and(|w| text(w, "/message").starts_with(&said)), "{what}: {codes:#?}");
            assert_eq!(at(row, "/validity/ok"), &json!(true), "{what}");
        }
    }
}

#[test]
fn replies_that_are_always_late_are_no_samples() {
    let _turn = suite::turn();
    for (binary, service) in [("send_lat", "UD"), ("write_lat", "UC")] {
        // Each message takes longer on its way than its sender waits.
        let options = format!("-c {service} -d emu0 --no-tcp -n 20 --loss-timeout 200us");
        let (finished, document) = run(binary, "delay=3000000", &options);
        match finished.status.code() {
            Some(5) => {
                finished.says(&["came, all later than 0.2 ms", "--loss-timeout"]);
                assert_eq!(text(&document, "/status"), "failed");
            }
            // A client that lost its core finds the reply at its first look.
            _ => assert!(count(rdma(&document), "late_replies") > 0, "{document:#}"),
        }
    }
}

#[test]
fn a_path_that_delivers_nothing_is_an_error_with_a_remedy() {
    let _turn = suite::turn();
    for (binary, service) in legal() {
        let options = format!("-c {service} -d emu0 --no-tcp --loss-timeout 3ms");
        let (finished, document) = run(binary, "lose=1", &options);
        let finished = finished.exits(5).says(&["messages has arrived over", service, "try -c RC"]);
        assert!(finished.took < Duration::from_secs(60), "{binary} {service}");
        assert_eq!((text(&document, "/status"), rows(&document).len()), ("failed", 0));
    }
}

#[test]
fn a_payload_that_changes_on_its_way_is_not_taken_for_a_loss() {
    let _turn = suite::turn();
    for (binary, service) in legal() {
        let (finished, document) = run(binary, "corrupt=3", &format!("-c {service} -d emu0 --no-tcp -n 100"));
        finished.exits(5).says(&["payload of message", "is wrong at byte"]);
        assert_eq!(text(&document, "/status"), "invalid", "{binary} {service}");
        assert_eq!(text(&document, "/error/step"), "check", "{binary} {service}");
    }
}

#[test]
fn a_receiver_has_a_window_of_its_own_and_the_baseline_stays_what_it_is() {
    let _turn = suite::turn();
    for (binary, service) in [("send_bw", "UD"), ("write_imm_bw", "UC")] {
        let options = format!("-c {service} -d emu0 -D 500ms --warm-up 10ms -s 1k");
        let (finished, document) = run(binary, "", &options);
        finished.exits(0);
        let row = rdma(&document);
        assert!(number(row, "/window_s") > 0.0, "{row:#}");
        let counted: f64 =
            at(row, "/intervals").as_array().expect("schema").iter().map(|i| number(i, "/messages")).sum();
        assert_eq!(counted, number(row, "/messages"), "{row:#}");
        assert!(count(row, "messages") < count(row, "received"), "a warm-up is received too: {row:#}");
        // The baseline is what it is beside RC.
        let tcp = &rows(&document)[1];
        assert_eq!((text(tcp, "/measured_by"), count(tcp, "lost")), ("client", 0), "{tcp:#}");
        assert_eq!(text(tcp, "/transport"), "tcp");
    }
}

#[test]
fn many_queue_pairs_shared_receives_and_lists_lose_alike() {
    let _turn = suite::turn();
    for (binary, options) in [
        ("send_bw", "-c UD -q 3"),
        ("send_bw", "-c UD -q 3 --srq -l 4 -e"),
        ("send_bw", "-c UC -q 3 --srq"),
        ("write_imm_bw", "-c UC -q 2 -l 8"),
        ("write_bw", "-c UC -q 3"),
    ] {
        let line = format!("{options} -d emu0 --no-tcp -s 1,1k -n 150 --verify");
        let (finished, document) = run(binary, "lose=10", &line);
        finished.exits(0);
        for row in rows(&document) {
            check_counts(&line, binary, row, 150);
        }
    }
}

#[test]
fn datagrams_end_at_the_paths_mtu() {
    let _turn = suite::turn();
    let sizes = |options: &str| {
        let (finished, document) = run("send_lat", "", &format!("-c UD --no-tcp -n 20 {options}"));
        finished.exits(0);
        rows(&document).iter().map(|row| count(row, "size_bytes")).collect::<Vec<_>>()
    };
    assert_eq!(sizes("-d emu0 -a").last(), Some(&4096));
    assert_eq!(sizes("-d emu1 -a -m 512").last(), Some(&512), "without a global route header, too");
    for options in ["-d emu0 -s 4097", "-d emu0 -m 256 -s 257"] {
        let run = suite::run("send_bw", &format!("--loopback -c UD {options}"));
        run.exits(2).says(&["a datagram is one packet", "try: use -s"]);
    }
}

#[test]
fn a_service_that_has_no_such_verb_is_refused_with_those_that_have() {
    for (binary, service, remedy) in [
        ("write_lat", "UD", "use -c RC or UC"),
        ("write_bw", "UD", "use -c RC or UC"),
        ("write_imm_lat", "UD", "use -c RC or UC"),
        ("read_lat", "UC", "use -c RC"),
        ("read_bw", "UD", "use -c RC"),
        ("atomic_lat", "UC", "use -c RC"),
        ("atomic_bw", "UD", "use -c RC"),
    ] {
        let run = suite::run(binary, &format!("--loopback -d emu0 -c {service}"));
        run.exits(2).says(&[&format!("error: arguments: {service} has no "), remedy]);
    }
}
