//! `verbmark report`: from the document of a run comes what the run itself showed and wrote.

use crate::documents;
use crate::suite;

use std::process::Stdio;

use crate::suite::{Files, Running, TOOL, line, turn};
use verbmark::report::{json, render};

#[test]
fn a_report_is_what_the_run_itself_wrote() {
    let _turn = turn();
    for (binary, options) in [("send_lat", "-n 2000 -s 64,4k"), ("write_bw", "-n 500 -s 64k")] {
        let files = Files::new();
        let mut run = line(binary, &format!("--loopback {options}"));
        for (option, name) in [("--json", "run.json"), ("--csv", "run.csv"), ("--hlog", "run.hlog")] {
            run.arg(option).arg(files.path(name));
        }
        let run = Running::start(run).finish().exits(0);

        let mut report = line(TOOL, "report");
        report.arg(files.path("run.json"));
        for (option, name) in [("--csv", "again.csv"), ("--hlog", "again.hlog")] {
            report.arg(option).arg(files.path(name));
        }
        let report = Running::start(report).finish().exits(0);
        assert_eq!(report.stdout, run.stdout);
        for (first, again) in [("run.csv", "again.csv"), ("run.hlog", "again.hlog")] {
            let read = |name| std::fs::read_to_string(files.path(name)).unwrap();
            assert_eq!(read(first), read(again), "{binary} {again}");
        }
    }
}

#[test]
fn every_kind_of_document_can_be_shown_again() {
    let files = Files::new();
    for (name, document) in documents::all() {
        std::fs::write(files.path("run.json"), json::to_string(&document).unwrap()).unwrap();
        let mut report = line(TOOL, "report");
        report.arg(files.path("run.json"));
        let report = Running::start(report).finish().exits(0);
        assert_eq!(report.stdout, render(&document, None), "{name}");
        let told = document.error.as_ref().is_none_or(|error| report.stderr.contains(&error.message));
        assert!(told, "{name}: {}", report.stderr);
    }
}

#[test]
fn standard_input_and_standard_output_are_taken_by_name() {
    let files = Files::new();
    let (_, document) = documents::all().into_iter().next().unwrap();
    std::fs::write(files.path("run.json"), json::to_string(&document).unwrap()).unwrap();
    let mut report = line(TOOL, "report - --csv -");
    report.stdin(Stdio::from(std::fs::File::open(files.path("run.json")).unwrap()));
    let report = Running::start(report).finish().exits(0);
    assert!(report.stdout.contains("latency_ns_p50"), "the table is in the CSV's place: {}", report.stdout);
}

#[test]
fn what_is_no_document_is_refused_by_name() {
    let files = Files::new();
    std::fs::write(files.path("devices.json"), r#"{"schema":"verbmark.devices/1"}"#).unwrap();
    let mut report = line(TOOL, "report");
    report.arg(files.path("devices.json"));
    Running::start(report).finish().exits(2).says(&["devices.json", "verbmark.devices/1"]);
    suite::run(TOOL, "report /nowhere/run.json").exits(2).says(&["/nowhere/run.json", "--json"]);
    suite::run(TOOL, "report /nowhere/run.json --csv - --hlog -").exits(2).says(&["--csv and --hlog"]);
    suite::run(TOOL, "report").exits(2).says(&["FILE"]);
}
