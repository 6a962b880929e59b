//! `verbmark gate`: what fails a job, what does not, and what is left on disk. No test here asks how long anything takes:
//! where a verdict depends on a clock, only what must never be is asserted.

use crate::documents;
use crate::schema;
use crate::suite;

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::suite::{Files, Finished, Running, TOOL, at, number, text};

/// A suite that is over in a moment.
const SUITE: &str = r#"
    options = "-d emu0 -n 200 --loopback"
    runs = 3
    [[test]]
    binary = "send_lat"
    sizes = [64, "4k"]
    metrics = ["p50"]
    [[test]]
    binary = "write_bw"
    sizes = ["64k"]
    metrics = ["bw", "cpu.client"]
"#;

impl Files {
    fn suite(&self, text: &str) {
        fs::write(self.path("suite.toml"), text).unwrap();
    }

    /// The words of a gate in this directory, outside of any CI.
    fn gating(&self, words: &[&str]) -> std::process::Command {
        let mut command = suite::line(TOOL, "gate");
        command.args(words).current_dir(self.path(""));
        ["GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"].iter().for_each(|name| {
            command.env_remove(name);
        });
        command
    }

    fn gate(&self, words: &[&str]) -> Finished {
        Running::start(self.gating(words)).finish()
    }

    /// Gates, and gives the document, held to its schema and to the exit status.
    #[track_caller]
    fn gated(&self, words: &[&str], status: i32) -> Value {
        let run = self.gate(&[words, &["--json", "-"]].concat()).exits(status);
        let value: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {}", run.stdout));
        let errors = schema::errors(&schema::strict(schema::of_gates()), &value);
        assert!(errors.is_empty(), "{errors:#?} in {value:#}");
        assert_eq!(number(&value, "/exit_status"), f64::from(status), "{value:#}");
        value
    }

    /// A baseline of so many sittings, each of six runs that scatter by some percent, and differ as little from each other.
    fn baseline(&self, sittings: u64) {
        for sitting in 0..sittings {
            let factor = [1.0, 1.004, 0.997, 1.002][sitting as usize % 4];
            self.runs(&format!("base/{sitting:02}"), &documents::latency(), 100 + 10 * sitting, factor);
        }
    }
}

/// One metric of one point.
#[track_caller]
fn series<'a>(value: &'a Value, id: &str, metric: &str) -> &'a Value {
    let mut all = at(value, "/series").as_array().unwrap().iter();
    let found = all.find(|series| text(series, "/id").starts_with(id) && series["metric"] == metric);
    found.unwrap_or_else(|| panic!("no {metric} of {id} in {value:#}"))
}

#[test]
fn the_schema_is_valid_itself() {
    jsonschema::meta::validate(&schema::of_gates()).expect("draft 2020-12");
}

#[test]
fn a_doubled_latency_never_passes() {
    let _turn = suite::turn();
    let files = Files::new();
    let words = [
        "--a",
        "VERBMARK_EMULATED=delay=50000 send_lat -d emu0 -n 50 --loopback --no-tcp",
        "--b",
        "VERBMARK_EMULATED=delay=100000 send_lat -d emu0 -n 50 --loopback --no-tcp",
        "--metric",
        "p50",
        "--max-pairs",
        "6",
        "--json",
        "gate.json",
    ];
    let run = files.gate(&words);
    let value: Value = serde_json::from_str(&fs::read_to_string(files.path("gate.json")).unwrap()).unwrap();
    let verdict = text(&value, "/verdict");
    assert!(["regression", "inconclusive"].contains(&verdict), "{value:#}");
    assert_eq!(run.status.code(), Some(i32::from(verdict == "regression")));
    assert_eq!(at(&value, "/order").as_array().unwrap().len(), 12);
    assert_eq!(text(&value, "/arms/1/environment/VERBMARK_EMULATED"), "delay=100000");
}

#[test]
fn a_candidate_against_itself_never_regresses() {
    let _turn = suite::turn();
    let files = Files::new();
    files.suite(SUITE);
    let words = ["suite.toml", "--self-test", "2", "--max-pairs", "5", "--junit", "gate.xml"];
    let value = files.gated(&words, 0);
    // One case a metric, and one for the gate.
    let junit = fs::read_to_string(files.path("gate.xml")).unwrap();
    assert_eq!(junit.matches("<testcase").count(), 5, "{junit}");
    let found = at(&value, "/self_test/series").as_array().unwrap();
    assert_eq!(found.len(), 4, "{value:#}");
    for series in found {
        assert_eq!(at(series, "/ratios").as_array().unwrap().len(), 2, "{series}");
        assert!(series["verdicts"].get("regression").is_none(), "{series}");
    }
    assert_eq!(number(&value, "/self_test/rounds"), 2.0);
}

#[test]
fn what_the_arms_differ_in_is_what_is_compared() {
    let _turn = suite::turn();
    let files = Files::new();
    let words = ["--min-pairs", "3", "--max-pairs", "3"];
    let arms =
        ["--a", "send_lat -d emu0 -n 100 --loopback -I 0", "--b", "send_lat -d emu0 -n 100 --loopback"];
    let value = files.gated(&[&words[..], &arms].concat(), 0);
    let differs = at(&value, "/mismatches").as_array().unwrap();
    assert!(differs.iter().any(|found| found["field"] == "max_inline_bytes"), "{value:#}");
    assert!(differs.iter().all(|found| found["allowed"] == true), "{value:#}");
    // Three pairs are too few to say anything, and that is said.
    assert_eq!(text(&value, "/verdict"), "inconclusive");
    assert!(value.to_string().contains("it takes"), "{value:#}");
    // Both paths were measured, and both are judged.
    series(&value, "tcp/64B", "p50");
    files.gate(&[&words[..], &arms, &["--strict"]].concat()).exits(3);
}

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
    let run = files.gate(&words).exits(4);
    assert!(run.stdout.contains("kernel"), "{}", run.stdout);
    // It is advisory where it was allowed, however bad it is.
    let value = files.gated(&[&words[..], &["--allow-mismatch", "kernel"]].concat(), 0);
    assert_eq!(text(series(&value, "rdma/64B", "p50"), "/verdict"), "regression");
    assert_eq!(text(&value, "/verdict"), "inconclusive");

    // Sittings of the new kernel take the place of the old.
    files.runs("base/99", &other, 30, 1.5);
    let value = files.gated(&words, 0);
    assert_eq!(number(series(&value, "rdma/64B", "p50"), "/sittings"), 1.0);
    fs::create_dir(files.path("empty")).unwrap();
    files.gated(&["--baseline", "empty", "--candidate", "other"], 4);
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
        files.gate(&["--baseline", "base", "--candidate", name]).exits(status).says(&["run3.json"]);
    }
    // One run is no sitting.
    files.runs("one", &documents::latency(), 10, 1.0);
    (1..6).for_each(|run| fs::remove_file(files.path(&format!("one/run{run}.json"))).unwrap());
    files.gate(&["--baseline", "base", "--candidate", "one", "--strict"]).exits(3);
}

#[test]
fn limits_of_a_suite_decide() {
    let _turn = suite::turn();
    let files = Files::new();
    let with = |limits: &str| files.suite(&format!("{SUITE}limits = [{limits}]"));
    with("\"bw:min=1MBps\"");
    let value = files.gated(&["suite.toml"], 0);
    assert_eq!((text(&value, "/form"), text(&value, "/verdict")), ("limits", "pass"));
    assert_eq!(number(&value, "/limits/0/runs"), 3.0);
    with("\"bw:min=1MBps\", \"bw:min=900000Gbps\"");
    let value = files.gated(&["suite.toml", "--runs", "1"], 1);
    assert_eq!(text(&value, "/limits/1/verdict"), "fail");
    with("\"bw:min=90%link\"");
    let value = files.gated(&["suite.toml", "--runs", "1"], 5);
    assert_eq!(text(&value, "/limits/0/verdict"), "not_evaluated");
    with("\"p50:max=1us\"");
    files.gate(&["suite.toml"]).exits(2).says(&["write_bw", "does not measure that"]);
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
    running.line_with("2 tests, 40 times");
    running.signal(Signal::SIGINT);
    running.finish().exits(130);
    assert_eq!(entries(), 2, "what was interrupted is no sitting");
}

#[test]
fn an_interrupted_gate_writes_what_it_has() {
    let _turn = suite::turn();
    let files = Files::new();
    files.suite(SUITE);
    let words =
        ["suite.toml", "--self-test", "50", "--max-pairs", "3", "--json", "gate.json", "--junit", "gate.xml"];
    let mut running = Running::start(files.gating(&words));
    running.line_with("round 2 of 50");
    running.signal(Signal::SIGINT);
    running.finish().exits(130);
    let value: Value = serde_json::from_str(&fs::read_to_string(files.path("gate.json")).unwrap()).unwrap();
    assert_eq!((text(&value, "/status"), number(&value, "/exit_status")), ("interrupted", 130.0));
    assert!(fs::read_to_string(files.path("gate.xml")).unwrap().contains("<error"));
}

#[test]
fn a_test_that_fails_is_invalid_and_the_others_are_measured() {
    let _turn = suite::turn();
    let files = Files::new();
    files.suite(&format!("{SUITE}[b.environment]\nVERBMARK_EMULATED = \"corrupt=3\"\n[a]\n"));
    let words = ["suite.toml", "--min-pairs", "3", "--max-pairs", "3", "--markdown", "gate.md"];
    let value = files.gated(&[&words[..], &["--openmetrics", "gate.prom"]].concat(), 5);
    assert_eq!(text(&value, "/verdict"), "invalid");
    let read = |name: &str| fs::read_to_string(files.path(name)).unwrap();
    assert!(read("gate.md").contains("### Not measured"), "{}", read("gate.md"));
    assert!(
        read("gate.prom").contains("verbmark_gate_test_measured{test=\"send_lat\"} 0"),
        "{}",
        read("gate.prom")
    );
    for test in at(&value, "/tests").as_array().unwrap() {
        assert!(text(test, "/error/message").contains("payload"), "{test:#}");
    }
}

#[test]
fn every_output_is_written_and_a_summary_is_appended() {
    let files = Files::new();
    files.baseline(8);
    files.runs("slower", &documents::latency(), 20, 1.3);
    fs::write(files.path("summary.md"), "before\n").unwrap();
    let outputs = [
        ("--json", "gate.json", "verbmark.gate/1"),
        ("--junit", "gate.xml", "<failure"),
        ("--markdown", "gate.md", "REGRESSION"),
        ("--openmetrics", "gate.prom", "# EOF"),
        ("--otava", "gate.csv", "time,sitting,commit,"),
        ("--smaller-is-better", "smaller.json", "\"range\""),
        ("--otava-config", "gate.yaml", "send_lat.rdma.64.p50"),
        ("--bigger-is-better", "bigger.json", "["),
    ];
    let mut command = files.gating(&["--baseline", "base", "--candidate", "slower"]);
    outputs.iter().for_each(|(option, file, _)| {
        command.args([option, file]);
    });
    command.env("GITHUB_ACTIONS", "true").env("GITHUB_STEP_SUMMARY", files.path("summary.md"));
    let run = Running::start(command).finish().exits(1);
    for (option, file, part) in outputs {
        let text = fs::read_to_string(files.path(file)).unwrap_or_else(|e| panic!("{option}: {e}"));
        assert!(text.contains(part), "{option}: {text}");
    }
    let summary = fs::read_to_string(files.path("summary.md")).unwrap();
    let markdown = fs::read_to_string(files.path("gate.md")).unwrap();
    assert_eq!(summary, format!("before\n{markdown}"));
    assert!(run.stdout.contains("::error title="), "{}", run.stdout);
    // Where nobody reads them there are no commands.
    let run = files.gate(&["--baseline", "base", "--candidate", "slower"]).exits(1);
    assert!(!run.stdout.contains("::error"), "{}", run.stdout);
}

#[test]
fn an_output_that_cannot_be_written_is_told_before_anything_is_measured() {
    let files = Files::new();
    files.suite(SUITE);
    for option in ["--json", "--junit", "--markdown", "--openmetrics", "--otava", "--smaller-is-better"] {
        let run = files.gate(&["suite.toml", "--self-test", "2", option, "nowhere/file"]).exits(2);
        assert!(run.stderr.contains("nowhere/file") && !run.stderr.contains("round"), "{}", run.stderr);
    }
    files
        .gate(&["suite.toml", "--self-test", "2", "--json", "-", "--junit", "-"])
        .exits(2)
        .says(&["standard output"]);
}

#[test]
fn what_makes_no_sense_is_told_before_anything_is_measured() {
    let files = Files::new();
    files.suite(SUITE);
    fs::write(files.path("bad.toml"), "[[test]]\nbinary = \"send_lat\"\nmetrics = [\"bw\"]\n").unwrap();
    fs::write(
        files.path("twice.toml"),
        "[[test]]\nbinary = \"send_lat\"\nname = \"x\"\n[[test]]\nbinary = \"send_bw\"\nname = \"x\"\n",
    )
    .unwrap();
    let lat = "send_lat -d emu0 --loopback";
    for (words, says) in [
        (vec!["suite.toml"], "there is nothing to hold the candidate to"),
        (vec!["missing.toml"], "cannot read the suite missing.toml"),
        (vec!["bad.toml", "--self-test", "1", "--loopback"], "send_lat does not measure bw"),
        (vec!["twice.toml", "--self-test", "1", "--loopback"], "two tests of the suite are called x"),
        (vec!["--a", lat, "--b", "send_lat -d emu0"], "--b: it names no server"),
        (
            vec!["--a", lat, "--b", "send_lat --wrong --loopback"],
            "--b: send_lat: unexpected argument '--wrong'",
        ),
        (vec!["--a", lat, "--b", "ls -l"], "'ls' is no test of this suite"),
        (vec!["--a", lat, "--b", "X=1"], "it names no test"),
        (vec!["--a", lat, "--b", "send_lat 'x"], "a quote does not end"),
        (vec!["--a", lat, "--b", "/nowhere/send_lat --loopback"], "there is no /nowhere/send_lat"),
        (vec!["--a", lat, "--b", "send_bw -d emu0 --loopback"], "have no metric in common"),
        (vec!["--a", lat, "--b", "send_lat -d emu0 --loopback --json x"], "--json is for one run"),
        (vec!["--a", lat, "--b", lat, "--metric", "max"], "'max' is not a metric that is compared"),
        (
            vec!["--a", lat, "--b", lat, "--min-pairs", "9", "--max-pairs", "5"],
            "9 pairs before the first look",
        ),
        (vec!["--a", lat, "--b", lat, "--allow-mismatch", "colour"], "there is no such field"),
        (vec!["--a", lat], "--b <COMMAND>"),
        (vec!["suite.toml", "--baseline", "nowhere"], "cannot read the baseline nowhere"),
        (vec!["suite.toml", "--record", "/proc/x"], "cannot record in /proc/x"),
        (vec!["suite.toml", "--record", "x", "--json", "y"], "--record alone judges nothing"),
        (vec!["suite.toml", "--record", "x", "--keep", "y"], "cannot be used with '--keep <DIR>'"),
        (vec![], "required"),
    ] {
        let run = files.gate(&words).exits(2).says(&[says]);
        assert!(!run.stderr.contains("pairs\n") && run.stdout.is_empty(), "{}{}", run.stderr, run.stdout);
    }
}

#[test]
fn the_shipped_suites_say_what_they_would_run() {
    let files = Files::new();
    let suites = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/suites");
    let acceptance = suites.join("nic-acceptance.toml");
    let run = files.gate(&[acceptance.to_str().unwrap(), "192.0.2.1", "--dry-run"]).exits(0);
    assert!(run.stdout.contains("write_bw") && run.stdout.contains("--limit"), "{}", run.stdout);
    let pull_request = suites.join("pull-request.toml");
    let run = files.gate(&[pull_request.to_str().unwrap(), "--loopback", "--dry-run"]).exits(0);
    assert!(run.stdout.contains("  A  ") && run.stdout.contains("  B  "), "{}", run.stdout);
}
