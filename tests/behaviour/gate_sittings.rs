//! `verbmark gate` with stored sittings: what of them a candidate is held to, what is recorded, and what never is.

use crate::compare::scale;
use crate::documents;
use crate::gate::{SUITE, series};
use crate::suite;

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::suite::{Files, Running, at, number, text};

#[test]
fn a_new_sitting_is_held_to_the_spread_between_stored_ones() {
    let files = Files::new();
    files.baseline(8);
    files.runs("same", &documents::latency(), 10, 1.001);
    files.runs("slower", &documents::latency(), 20, 1.3);
    let value = files.gated(&["--baseline", "base", "--candidate", "same"], 0);
    assert_eq!(text(&value, "/verdict"), "pass", "{value:#}");
    let p50 = series(&value, "rdma/64B", "p50");
    assert_eq!(number(p50, "/sittings"), 8.0);
    assert_eq!(at(p50, "/values_a").as_array().unwrap().len(), 8);

    let value = files.gated(&["--baseline", "base", "--candidate", "slower"], 1);
    let p50 = series(&value, "rdma/64B", "p50");
    assert_eq!(text(p50, "/verdict"), "regression");
    assert!((number(p50, "/ratio") - 1.3).abs() < 0.01, "{p50}");
    let table = files.gate(&["--baseline", "base", "--candidate", "slower"]).exits(1).stdout;
    assert!(table.contains("failed  REGRESSION  send_lat 64 B rdma p50"), "{table}");
    assert!(table.lines().last().unwrap().starts_with("verdict  REGRESSION"), "{table}");
}

#[test]
fn with_few_sittings_the_verdict_is_advisory_and_says_how_many_it_needs() {
    let files = Files::new();
    files.baseline(3);
    files.runs("slower", &documents::latency(), 20, 3.0);
    let value = files.gated(&["--baseline", "base", "--candidate", "slower"], 0);
    let p50 = series(&value, "rdma/64B", "p50");
    assert_eq!((text(p50, "/verdict"), at(p50, "/advisory")), ("regression", &json!(true)));
    assert_eq!(text(&value, "/verdict"), "inconclusive");
    let run = files.gate(&["--baseline", "base", "--candidate", "slower", "--strict"]).exits(3);
    assert!(run.stdout.contains("3 stored sittings: record 5 more"), "{}", run.stdout);
    // Why it ends so, and what it would have failed for.
    assert!(run.stdout.contains("advisory  REGRESSION  send_lat 64 B rdma p50"), "{}", run.stdout);
    let last = run.stdout.lines().last().unwrap();
    assert!(last.starts_with("verdict  INCONCLUSIVE, exit status 3: "), "{last}");
    assert!(last.contains("advisory regression"), "{last}");
    assert!(
        last.contains("nothing that decides was judged") && last.ends_with("with 3 stored sittings of 8"),
        "{last}"
    );
}

#[test]
fn what_was_not_measured_alike_is_not_compared() {
    let files = Files::new();
    files.baseline(8);
    let mut other = documents::latency();
    other.local.as_mut().unwrap().machine.kernel = Some("6.12.0".into());
    files.runs("other", &other, 20, 1.5);
    let words = ["--baseline", "base", "--candidate", "other"];
    let value = files.gated(&words, 4);
    assert_eq!(text(&value, "/verdict"), "not_comparable");
    assert!(
        text(series(&value, "rdma/64B", "p50"), "/message").contains("kernel 6.11.0-9-generic vs 6.12.0")
    );
    // All eight differ alike, which is one difference.
    let fields: Vec<_> =
        at(&value, "/mismatches").as_array().unwrap().iter().map(|of| text(of, "/field")).collect();
    assert_eq!(fields, ["kernel"], "{value:#}");
    let run = files.gate(&words).exits(4);
    assert_eq!(run.stdout.matches("not comparable  send_lat: kernel").count(), 1, "{}", run.stdout);
    // It is advisory where it was allowed, however bad it is.
    let value = files.gated(&[&words[..], &["--allow-mismatch", "kernel"]].concat(), 0);
    assert_eq!(text(series(&value, "rdma/64B", "p50"), "/verdict"), "regression");
    assert_eq!(text(&value, "/verdict"), "inconclusive");

    // Sittings of the new kernel take the place of the old.
    files.runs("base/99", &other, 30, 1.5);
    let value = files.gated(&words, 0);
    assert_eq!(number(series(&value, "rdma/64B", "p50"), "/sittings"), 1.0);
    // What differs is not compared, and so no difference of what is: a note says which are left out.
    assert_eq!(at(&value, "/mismatches"), &json!([]));
    assert_eq!(text(&value, "/notes/0/code"), "left_out", "{value:#}");
    assert!(text(&value, "/notes/0/message").contains("8 sittings, the last 07: kernel"), "{value:#}");

    // As soon as there are enough of the new kernel they decide, whatever else is allowed.
    files.runs("slower", &other, 30, 2.0);
    (0..8).for_each(|sitting| files.runs(&format!("base/9{sitting}"), &other, 300 + 10 * sitting, 1.5));
    fs::remove_dir_all(files.path("base/99")).unwrap();
    let words = ["--baseline", "base", "--candidate", "slower", "--allow-mismatch", "kernel"];
    let value = files.gated(&words, 1);
    assert_eq!(number(series(&value, "rdma/64B", "p50"), "/sittings"), 8.0, "{value:#}");
}

#[test]
fn no_broken_document_passes() {
    let files = Files::new();
    files.baseline(8);
    type Change = fn(&mut Value);
    let changes: [(&str, Change, i32); 6] = [
        ("schema", |value| value["schema"] = json!("verbmark.result/2"), 2),
        ("negative", |value| value["results"][0]["latency_ns"]["p50"] = json!(-5.0), 5),
        ("unit", |value| value["results"][0]["histogram"]["unit"] = json!("us"), 2),
        ("status", |value| value["status"] = json!("failed"), 5),
        ("text", |value| value["results"][0]["latency_ns"]["p50"] = json!("NaN"), 2),
        ("invalid", |value| value["results"][0]["validity"]["ok"] = json!(false), 5),
    ];
    for (name, change, status) in changes {
        files.runs(name, &documents::latency(), 10, 1.0);
        let path = files.path(name).join("run3.json");
        let mut value: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut value);
        fs::write(&path, value.to_string()).unwrap();
        let words = ["--baseline", "base", "--candidate", name, "--junit", "gate.xml"];
        files.gate(&words).exits(status).says(&["run3.json"]);
        // What a job publishes is red, and not what an earlier gate left.
        assert!(fs::read_to_string(files.path("gate.xml")).unwrap().contains("<error"), "{name}");
    }
    // A run that stalled has too few messages for a percentile: without it the others would look well.
    let edited = |name: &str, runs: u64, place: &str, value: Value| {
        files.runs(name, &documents::latency(), 10, 1.0);
        for run in 0..runs {
            let path = files.path(name).join(format!("run{run}.json"));
            let mut document: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            for row in document["results"].as_array_mut().unwrap() {
                // What is null as a whole has no such part.
                if let Some(found) = row.pointer_mut(place) {
                    *found = value.clone();
                }
            }
            fs::write(&path, document.to_string()).unwrap();
        }
    };
    edited("stalled", 2, "/latency_ns/p50", Value::Null);
    let value = files.gated(&["--baseline", "base", "--candidate", "stalled"], 5);
    let reason = "2 of 6 runs of the candidate had too few messages for p50";
    assert!(text(series(&value, "rdma/64B", "p50"), "/message").contains(reason), "{value:#}");
    // A cost of 0 is a value, and has no ratio, which is no end of the others.
    edited("free", 6, "/cpu/client", json!({ "ns_per_message": 0.0 }));
    let value = files.gated(&["--baseline", "base", "--candidate", "free", "--metric", "p50,cpu.client"], 0);
    assert_eq!(text(series(&value, "rdma/64B", "cpu.client"), "/reasons/0/code"), "zero", "{value:#}");
    assert_eq!(text(series(&value, "rdma/64B", "p50"), "/verdict"), "pass", "{value:#}");
    // One run is no sitting.
    files.runs("one", &documents::latency(), 10, 1.0);
    (1..6).for_each(|run| fs::remove_file(files.path(&format!("one/run{run}.json"))).unwrap());
    files.gate(&["--baseline", "base", "--candidate", "one", "--strict"]).exits(3);
}

#[test]
fn sittings_are_recorded_whole_or_not_at_all() {
    let _turn = suite::turn();
    let files = Files::new();
    files.suite(SUITE);
    let entries = || fs::read_dir(files.path("base")).map_or(0, Iterator::count);
    files
        .gate(&["suite.toml", "--record", "base", "--label", "commit=abc"])
        .exits(0)
        .says(&["1 sitting; 7 more"]);
    assert_eq!(entries(), 1);
    let sitting = fs::read_dir(files.path("base")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_dir(&sitting).unwrap().count(), 6);
    let document = suite::document(&fs::read_to_string(sitting.join("001-send_lat-b.json")).unwrap());
    assert_eq!(text(&document, "/labels/commit"), "abc");

    // Held to it and added, since nothing got worse that one sitting could tell.
    let value = files.gated(&["suite.toml", "--baseline", "base", "--record", "base"], 0);
    assert_eq!(text(&value, "/sittings/0/labels/commit"), "abc");
    assert_eq!(entries(), 2);

    let mut running = Running::start(files.gating(&["suite.toml", "--record", "base", "--runs", "40"]));
    running.line_with("2 tests, 40 runs each");
    running.signal(Signal::SIGINT);
    running.finish().exits(130);
    assert_eq!(entries(), 2, "what was interrupted is no sitting");
}

/// The stored sitting as if everything had taken `factor` of its time, under another name and with other runs.
fn resized(files: &Files, from: &Path, to: &str, factor: f64) {
    for (run, entry) in fs::read_dir(from).unwrap().enumerate() {
        let mut value: Value =
            serde_json::from_str(&fs::read_to_string(entry.unwrap().path()).unwrap()).unwrap();
        let id = text(&value, "/run_id").to_owned();
        value["run_id"] = json!(format!("{to}{}", &id[to.len()..]));
        scale(&mut value, "rdma", factor);
        files.put(&format!("{to}/{run}.json"), &value);
    }
}

#[test]
fn the_first_sitting_of_a_baseline_is_recorded_and_a_worse_one_never() {
    let _turn = suite::turn();
    let files = Files::new();
    let nightly = |status| {
        let words = ["--b", "send_lat -d emu0 -n 100 --loopback --no-tcp", "--metric", "p50", "--runs", "3"];
        files.gated(&[&words[..], &["--baseline", "base", "--record", "base"]].concat(), status)
    };
    let entries = || fs::read_dir(files.path("base")).unwrap().count();
    // There is no such directory on the first night.
    let value = nightly(0);
    assert_eq!((text(&value, "/form"), text(&value, "/verdict")), ("sittings", "inconclusive"));
    let p50 = series(&value, "rdma/64B", "p50");
    assert_eq!((at(p50, "/advisory"), number(p50, "/n_b")), (&json!(true), 3.0));
    assert!(number(p50, "/median_b") > 0.0 && at(p50, "/median_a").is_null(), "{p50:#}");
    assert!(value.to_string().contains("\"code\":\"emulated\""), "{value:#}");
    assert_eq!(entries(), 1);

    // Sittings of a machine a hundred times as fast. Two of them decide nothing, and what seems worse is one more.
    let recorded = fs::read_dir(files.path("base")).unwrap().next().unwrap().unwrap().path();
    let first = files.path("first");
    fs::rename(recorded, &first).unwrap();
    let base = |sittings: usize| {
        let faster =
            |sitting| resized(&files, &first, &format!("a{sitting}"), 0.01 + 0.00001 * sitting as f64);
        (0..sittings).for_each(faster);
        let _ = fs::remove_dir_all(files.path("base"));
        fs::create_dir(files.path("base")).unwrap();
        let place = |sitting: usize| files.path(&format!("base/{sitting}"));
        (0..sittings)
            .for_each(|sitting| fs::rename(files.path(&format!("a{sitting}")), place(sitting)).unwrap());
    };
    base(2);
    let value = nightly(0);
    let p50 = series(&value, "rdma/64B", "p50");
    assert_eq!((text(p50, "/verdict"), at(p50, "/advisory")), ("regression", &json!(true)), "{p50:#}");
    assert_eq!(entries(), 3);
    // Eight decide, and what got worse is none of them.
    base(8);
    assert_eq!(text(&nightly(1), "/verdict"), "regression");
    assert_eq!(entries(), 8);

    // Another machine's sittings: not comparable, and not recorded beside them.
    fs::remove_dir_all(files.path("base")).unwrap();
    files.runs("base/00", &documents::latency(), 100, 1.0);
    let words =
        ["--b", "send_lat -d emu0 -n 100 --loopback --no-tcp", "--baseline", "base", "--record", "base"];
    files.gate(&words).exits(4).says(&["not recorded, since the verdict is NOT COMPARABLE"]);
    assert_eq!(entries(), 1);
    // A sitting has as many runs as those that it is held to.
    files
        .gate(&[&words[..], &["--runs", "3"]].concat())
        .exits(2)
        .says(&["3 runs of each test, and a stored sitting has 6 runs", "--runs 6"]);
}

#[test]
fn a_sitting_that_is_recorded_is_held_to_its_limits_alone() {
    let _turn = suite::turn();
    let files = Files::new();
    let recorded = |limit: &str, status| {
        let b = format!("send_lat -d emu0 -n 100 --loopback --no-tcp --limit {limit}");
        files.gated(&["--b", &b, "--record", "base", "--runs", "3"], status)
    };
    let entries = || fs::read_dir(files.path("base")).unwrap().count();
    let value = recorded("p50:max=1ns", 1);
    assert_eq!((text(&value, "/form"), text(&value, "/verdict")), ("record", "regression"));
    assert_eq!(entries(), 0, "what fails its limits is no baseline");
    let value = recorded("p50:max=100000ms", 0);
    assert_eq!(text(&value, "/limits/0/verdict"), "pass");
    assert!(at(&value, "/series/0/median_b").is_number(), "{value:#}");
    assert_eq!(entries(), 1);
}

#[test]
fn without_a_stored_sitting_nothing_is_measured() {
    let files = Files::new();
    files.suite(SUITE);
    fs::create_dir_all(files.path("empty/lost+found")).unwrap();
    fs::create_dir_all(files.path("empty/notes")).unwrap();
    for baseline in ["nowhere", "empty"] {
        let value = files.gated(&["suite.toml", "--baseline", baseline, "--junit", "gate.xml"], 4);
        assert_eq!((text(&value, "/verdict"), text(&value, "/status")), ("not_comparable", "ok"));
        assert!(value.to_string().contains(&format!("no stored sitting in {baseline}")), "{value:#}");
        assert!(fs::read_to_string(files.path("gate.xml")).unwrap().contains("<error"));
    }
    let run = files.gate(&["suite.toml", "--baseline", "empty"]).exits(4);
    assert!(run.stdout.contains("notes in the baseline holds no document"), "{}", run.stdout);
    assert!(!run.stdout.contains("lost+found"), "{}", run.stdout);
}

#[test]
fn a_baseline_that_would_count_twice_or_is_none_is_refused() {
    let files = Files::new();
    files.baseline(2);
    files.runs("same", &documents::latency(), 10, 1.0);
    let held = |baseline: &str, candidate: &str, says: &[&str]| {
        files.gate(&["--baseline", baseline, "--candidate", candidate]).exits(2).says(says);
    };
    held("base", "base/01", &["has runs of the stored sitting 01", "would be held to itself"]);
    held("base/00", "same", &["it is a sitting itself", "name the directory that holds it"]);
    files.suite(SUITE);
    let nested = ["suite.toml", "--record", "base/00"];
    files.gate(&nested).exits(2).says(&["base/00 is a sitting itself", "name the directory that holds it"]);
    let few = ["suite.toml", "--record", "new", "--runs", "2"];
    files.gate(&few).exits(2).says(&["2 runs of each test: a sitting needs 3", "--runs 6"]);
    files.runs("base/copy", &documents::latency(), 110, 1.0);
    held("base", "same", &["the sittings 01 and copy of base have 6 runs in common", "remove one"]);
}

#[test]
fn a_candidate_has_as_many_runs_as_a_sitting_and_everything_that_it_has() {
    let files = Files::new();
    files.baseline(8);
    files.runs("few", &documents::latency(), 10, 1.0);
    fs::remove_file(files.path("few/run5.json")).unwrap();
    let value = files.gated(&["--baseline", "base", "--candidate", "few"], 0);
    let p50 = series(&value, "rdma/64B", "p50");
    assert_eq!(text(p50, "/verdict"), "inconclusive");
    assert!(text(p50, "/message").contains("5 runs of the candidate: it takes 6"), "{p50:#}");

    // Shorter sittings are held to each other.
    files.runs("short", &documents::latency(), 10, 1.001);
    for sitting in
        ["short", "base/00", "base/01", "base/02", "base/03", "base/04", "base/05", "base/06", "base/07"]
    {
        (3..6).for_each(|run| fs::remove_file(files.path(&format!("{sitting}/run{run}.json"))).unwrap());
    }
    let value = files.gated(&["--baseline", "base", "--candidate", "short"], 0);
    assert_eq!(text(series(&value, "rdma/64B", "p50"), "/verdict"), "pass", "{value:#}");

    // A candidate does not get better by measuring less.
    for run in 0..3 {
        let path = files.path(&format!("short/run{run}.json"));
        let mut document: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        document["results"].as_array_mut().unwrap().retain(|row| row["transport"] == "rdma");
        fs::write(&path, document.to_string()).unwrap();
    }
    let words = ["--baseline", "base", "--candidate", "short"];
    let value = files.gated(&words, 4);
    assert_eq!(text(&value, "/mismatches/0/field"), "points", "{value:#}");
    assert!(text(&value, "/mismatches/0/a/0/value").starts_with("tcp/"), "{value:#}");
    let value = files.gated(&[&words[..], &["--allow-mismatch", "points"]].concat(), 0);
    assert_eq!(text(&value, "/verdict"), "pass", "{value:#}");
}

#[test]
fn tests_of_a_suite_are_told_apart_by_their_names() {
    let _turn = suite::turn();
    let files = Files::new();
    let twins = r#"
        options = "-d emu0 -n 100 --loopback"
        runs = 3
        [[test]]
        binary = "send_lat"
        metrics = ["p50"]
        [[test]]
        name = "its twin"
        binary = "send_lat"
        metrics = ["p50"]
    "#;
    let nightly = || files.gated(&["suite.toml", "--baseline", "base", "--record", "base"], 0);
    files.suite(twins);
    nightly();
    // A test of the same options is another one, and so is one that is new.
    files.suite(&format!("{twins}[[test]]\nbinary = \"write_lat\"\nmetrics = [\"p50\"]\n"));
    let value = nightly();
    let all = at(&value, "/series").as_array().unwrap();
    let found: Vec<_> =
        all.iter().map(|of| (text(of, "/test"), number(of, "/n_a"), number(of, "/n_b"))).collect();
    assert_eq!(found, [("send_lat", 3.0, 3.0), ("its twin", 3.0, 3.0), ("write_lat", 0.0, 3.0)]);
    // A suite that became smaller is told.
    files.suite(&twins[..twins.rfind("[[test]]").unwrap()]);
    let value = nightly();
    let notes = at(&value, "/notes").to_string();
    assert!(notes.contains("only the last stored sitting has its twin: all of it"), "{notes}");
    assert!(notes.contains("only the last stored sitting has write_lat"), "{notes}");
    // Another size is as new as one more is.
    let first = &twins[..twins.rfind("[[test]]").unwrap()];
    files.suite(&first.replace("metrics", "sizes = [\"4k\"]\nmetrics"));
    let value = nightly();
    let notes = at(&value, "/notes").to_string();
    assert!(notes.contains("only the candidate has send_lat: all of it"), "{notes}");
    assert!(notes.contains("only the last stored sitting has send_lat: 64 B rdma"), "{notes}");
    assert_eq!(fs::read_dir(files.path("base")).unwrap().count(), 4);
    let labelled = ["suite.toml", "--record", "base", "--label", "gate.test=x"];
    files.gate(&labelled).exits(2).says(&["--label gate.test", "give it another name"]);
    // A candidate that lacks a test of the suite is none.
    let candidate = fs::read_dir(files.path("base")).unwrap().next().unwrap().unwrap().path();
    fs::rename(candidate, files.path("measured")).unwrap();
    files.suite(&format!("{twins}[[test]]\nbinary = \"read_lat\"\n"));
    let value = files.gated(&["suite.toml", "--baseline", "base", "--candidate", "measured"], 4);
    let missing = at(&value, "/mismatches").to_string();
    assert!(missing.contains("\"test\":\"read_lat\"") && missing.contains("all of it"), "{missing}");
}
