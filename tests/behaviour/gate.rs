//! `verbmark gate`: what fails a job, what does not, and what is left on disk. No test here asks how long anything takes:
//! where a verdict depends on a clock, only what must never be is asserted.

use crate::documents;
use crate::schema;
use crate::suite;

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::suite::{Files, Finished, Running, TOOL, at, number, text};

/// A suite that is over in a moment.
pub const SUITE: &str = r#"
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
    pub fn suite(&self, text: &str) {
        fs::write(self.path("suite.toml"), text).unwrap();
    }

    /// The words of a gate in this directory, outside of any CI.
    pub fn gating(&self, words: &[&str]) -> std::process::Command {
        let mut command = suite::line(TOOL, "gate");
        command.args(words).current_dir(self.path(""));
        ["GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"].iter().for_each(|name| {
            command.env_remove(name);
        });
        command
    }

    pub fn gate(&self, words: &[&str]) -> Finished {
        Running::start(self.gating(words)).finish()
    }

    /// Gates, and gives the document, held to its schema and to the exit status.
    #[track_caller]
    pub fn gated(&self, words: &[&str], status: i32) -> Value {
        let run = self.gate(&[words, &["--json", "-"]].concat()).exits(status);
        let value: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {}", run.stdout));
        let errors = schema::errors(&schema::strict(schema::of_gates()), &value);
        assert!(errors.is_empty(), "{errors:#?} in {value:#}");
        assert_eq!(number(&value, "/exit_status"), f64::from(status), "{value:#}");
        value
    }

    /// A baseline of so many sittings, each of six runs that scatter by some percent, and differ as little from each other.
    pub fn baseline(&self, sittings: u64) {
        for sitting in 0..sittings {
            let factor = [1.0, 1.004, 0.997, 1.002][sitting as usize % 4];
            self.runs(&format!("base/{sitting:02}"), &documents::latency(), 100 + 10 * sitting, factor);
        }
    }
}

/// One metric of one point.
#[track_caller]
pub fn series<'a>(value: &'a Value, id: &str, metric: &str) -> &'a Value {
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
    let command = at(&value, "/tests/0/commands/b").as_array().unwrap();
    assert_eq!(command[..3], ["VERBMARK_EMULATED=delay=100000", "send_lat", "-d"]);
}

#[test]
fn a_candidate_against_itself_never_regresses() {
    let _turn = suite::turn();
    let files = Files::new();
    files.suite(SUITE);
    let words =
        ["suite.toml", "--self-test", "2", "--max-pairs", "5", "--junit", "gate.xml", "--keep", "kept"];
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
    // Two rounds of five pairs of two tests; another gate's documents are not put beside them.
    assert_eq!(fs::read_dir(files.path("kept")).unwrap().count(), 40);
    files.gate(&words).exits(2).says(&["cannot keep documents beside kept/001-send_lat-"]);
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
    // A limit that holds is no comparison.
    let few = [
        "--a",
        "send_lat -d emu0 -n 10 --loopback --no-tcp -I 0",
        "--b",
        "send_lat -d emu0 -n 10 --loopback --no-tcp --limit max:max=900ms",
    ];
    files.gated(&[&words[..], &few].concat(), 4);
    // Three pairs are too few to say anything, and that is said.
    assert_eq!(text(&value, "/verdict"), "inconclusive");
    assert!(value.to_string().contains("it takes"), "{value:#}");
    // Both paths were measured, and both are judged.
    series(&value, "tcp/64B", "p50");
    files.gate(&[&words[..], &arms, &["--strict"]].concat()).exits(3);
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
    let value = files.gated(&["suite.toml", "--min-pairs", "3", "--max-pairs", "3"], 5);
    assert_eq!((text(&value, "/verdict"), text(&value, "/status")), ("invalid", "invalid"));
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
    let mut command = files.gating(&["suite.toml", "--self-test", "2"]);
    command.env("GITHUB_STEP_SUMMARY", files.path("nowhere/summary.md"));
    Running::start(command).finish().exits(2).says(&["GITHUB_STEP_SUMMARY", "nowhere/summary.md"]);
}

#[test]
fn an_output_that_cannot_be_written_fails_a_gate_that_passed_and_the_document_says_so() {
    let files = Files::new();
    files.baseline(8);
    for (factor, status) in [(1.0, 5), (1.3, 1)] {
        files.runs("new", &documents::latency(), 10, factor);
        let words =
            ["--baseline", "base", "--candidate", "new", "--junit", "gate.xml", "--markdown", "/dev/full"];
        let value = files.gated(&words, status);
        let junit = fs::read_to_string(files.path("gate.xml")).unwrap();
        assert!(
            junit.contains("<error") && junit.contains("/dev/full"),
            "what was written before says so: {junit}"
        );
        assert_eq!(text(&value, "/status"), "failed");
        assert!(text(&value, "/error/message").contains("/dev/full"), "{value:#}");
    }
}

#[test]
fn documents_that_cannot_be_kept_any_more_end_a_gate_with_a_document() {
    let _turn = suite::turn();
    let files = Files::new();
    files.suite(SUITE);
    let kept = files.path("kept");
    let words = ["suite.toml", "--self-test", "40", "--keep", "kept", "--json", "gate.json"];
    let mut running = Running::start(files.gating(&words));
    running.line_with("round 2");
    while kept.exists() {
        // One may be written meanwhile.
        let _ = fs::remove_dir_all(&kept);
    }
    running.finish().exits(5).says(&["kept/0"]);
    let value: Value = serde_json::from_str(&fs::read_to_string(files.path("gate.json")).unwrap()).unwrap();
    assert_eq!((text(&value, "/status"), number(&value, "/exit_status")), ("failed", 5.0));
    assert!(!at(&value, "/series").as_array().unwrap().is_empty(), "what was measured stands");
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
        (vec!["--a", lat, "--b", "/nowhere/send_lat --loopback"], "--b: there is no directory /nowhere"),
        (vec!["--a", lat, "--b", "send_bw -d emu0 --loopback"], "have no metric in common"),
        (vec!["--a", lat, "--b", "send_lat -d emu0 --loopback --json x"], "--json is for one run"),
        (vec!["--a", lat, "--b", lat, "--metric", "max"], "'max' is not a metric that is compared"),
        (
            vec!["--a", lat, "--b", lat, "--min-pairs", "9", "--max-pairs", "5"],
            "9 pairs before the first look",
        ),
        (vec!["--a", lat, "--b", lat, "--allow-mismatch", "colour"], "there is no such field"),
        (vec!["--a", lat], "--b <COMMAND>"),
        (vec!["suite.toml", "--record", "x", "--keep", "y"], "cannot be used with '--keep <DIR>'"),
        (vec![], "required"),
    ] {
        let run = files.gate(&words).exits(2).says(&[says]);
        assert!(!run.stderr.contains("pairs\n") && run.stdout.is_empty(), "{}{}", run.stderr, run.stdout);
    }
    // What is the machine's fault is told by the outputs as well.
    let run = files.gate(&["suite.toml", "--record", "/proc/x"]).exits(2).says(&["cannot record in /proc/x"]);
    assert!(run.stdout.contains("verdict  FAILED, exit status 2"), "{}", run.stdout);
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
