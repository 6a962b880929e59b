//! What a run writes beside its table: documents, CSV and interval logs of real runs, of those that go well and those
//! that fail; where they go, and what happens when they cannot.

use crate::suite;

use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::process::{Command, Stdio};

use crate::suite::{BINARIES, Files, Finished, Running, at, client, document, line, number, rows, text};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use serde_json::{Value, json};

/// Records of a CSV, each as the pairs of a column and its cell.
fn records(text: &str) -> Vec<Vec<(String, String)>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names: Vec<String> = reader.headers().expect("a header").iter().map(str::to_owned).collect();
    let pair =
        |record: csv::StringRecord| names.iter().cloned().zip(record.iter().map(str::to_owned)).collect();
    reader.records().map(|record| pair(record.expect("every record has every column"))).collect()
}

fn cell<'a>(record: &'a [(String, String)], column: &str) -> &'a str {
    let found = record.iter().find(|(name, _)| name == column);
    &found.unwrap_or_else(|| panic!("no column {column}")).1
}

#[test]
fn the_three_files_of_a_run_tell_the_same() {
    let _turn = suite::turn();
    for binary in BINARIES {
        let files = Files::new();
        let mut command =
            line(binary, "--loopback -d emu0 -s 64,4k -n 300 --label commit=a1b2,c3 --label who=me");
        for option in ["json", "csv", "hlog"] {
            command.arg(format!("--{option}")).arg(files.path(option));
        }
        let run = Running::start(command).finish().exits(0);
        assert!(run.stdout.contains("rdma"), "the table is shown beside files: {}", run.stdout);
        let document = files.document("json");
        assert_eq!(at(&document, "/labels"), &json!({"commit": "a1b2,c3", "who": "me"}));
        assert!(text(&document, "/command/0").ends_with(binary));
        let records = records(&fs::read_to_string(files.path("csv")).expect("a CSV"));
        assert_eq!(records.len(), rows(&document).len(), "{binary}");
        for (record, row) in records.iter().zip(rows(&document)) {
            assert_eq!(cell(record, "run_id"), text(&document, "/run_id"));
            assert_eq!(cell(record, "id"), text(row, "/id"));
            assert_eq!(cell(record, "messages"), at(row, "/messages").to_string());
            let p50 = row.pointer("/latency_ns/p50").map_or(String::new(), Value::to_string);
            assert_eq!(cell(record, "latency_ns_p50"), p50, "{binary}");
            let rate = row.pointer("/bandwidth/bytes_per_s").map_or(String::new(), Value::to_string);
            assert_eq!(cell(record, "bandwidth_bytes_per_s"), rate, "{binary}");
        }
        let log = fs::read_to_string(files.path("hlog")).expect("a log");
        let tagged = log.lines().filter(|line| line.starts_with("Tag=")).count();
        let histograms = rows(&document).iter().filter(|row| at(row, "/histogram").is_object()).count();
        assert_eq!(tagged, histograms, "{binary}: {log}");
        assert_eq!(histograms, if binary.ends_with("_lat") { 4 } else { 0 }, "{binary}");
    }
}

#[test]
fn a_histogram_holds_every_round_trip_undivided() {
    let _turn = suite::turn();
    for (binary, divisor) in [("send_lat", 2.0), ("read_lat", 1.0)] {
        let document = suite::loopback(binary, "-d emu0 -n 2500");
        for row in rows(&document) {
            let payload = STANDARD.decode(text(row, "/histogram/payload")).expect("base64");
            let histogram: Histogram<u64> =
                Deserializer::new().deserialize(&mut Cursor::new(payload)).expect("a histogram");
            assert_eq!(histogram.len(), 2500, "{binary}");
            assert_eq!(histogram.len() as f64, number(row, "/latency_ns/samples"));
            for (quantile, name) in [(0.5, "p50"), (0.9, "p90"), (0.99, "p99")] {
                let whole = histogram.value_at_quantile(quantile) as f64;
                let shown = number(row, &format!("/latency_ns/{name}")) * divisor;
                assert!((whole / shown - 1.0).abs() < 0.002, "{binary} {name}: {whole} and {shown}");
            }
            // 2,500 samples leave 2.5 beyond the 99.9th percentile.
            assert!(at(row, "/latency_ns/p99_9").is_null(), "{binary}");
            let missing = at(&document, "/missing").as_array().expect("schema");
            let path = |index: usize| format!("results[{index}].latency_ns.p99_9");
            assert!((0..2).all(|index| missing.iter().any(|missing| text(missing, "/path") == path(index))));
        }
    }
}

/// Runs that fail before anything is measured, and what their error says.
fn failures() -> Vec<(&'static str, Command, Vec<&'static str>)> {
    let unused =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let emulated = |options: &str, how: &str| suite::misbehaving(line("send_lat", options), how);
    vec![
        ("open_device", line("send_lat", "--loopback -d mlx5_77"), vec!["mlx5_77", "emu0", "emu1"]),
        (
            "connect",
            client("send_lat", "127.0.0.1", unused, "--tcp-only --connect-timeout 300ms"),
            vec!["127.0.0.1", "refused"],
        ),
        ("register_memory", emulated("--loopback -d emu0", "no-memlock"), vec!["RLIMIT_MEMLOCK"]),
        ("check", emulated("--loopback -d emu0", "corrupt=5"), vec!["payload of message"]),
    ]
}

/// Holds a failed run to its document.
#[track_caller]
fn check_failure(run: &Finished, document: &Value, step: &str, says: &[&str]) {
    let status = text(document, "/status");
    assert_eq!(status, if step == "check" { "invalid" } else { "failed" });
    assert_eq!(text(document, "/error/step"), step, "{document:#}");
    let message = text(document, "/error/message");
    assert!(run.stderr.contains(message), "{}", run.stderr);
    for part in says {
        assert!(message.contains(part), "no {part} in {message}");
    }
    let remedy = text(document, "/error/remedy");
    assert!(run.stderr.contains(&format!("try: {remedy}")), "{}", run.stderr);
}

#[test]
fn a_run_that_fails_writes_all_its_files_too() {
    let _turn = suite::turn();
    for (step, mut command, says) in failures() {
        let files = Files::new();
        for option in ["json", "csv", "hlog"] {
            command.arg(format!("--{option}")).arg(files.path(option));
        }
        let run = Running::start(command).finish().exits(5);
        let document = files.document("json");
        check_failure(&run, &document, step, &says);
        let records = records(&fs::read_to_string(files.path("csv")).expect("a CSV"));
        assert_eq!(records.len(), 1, "a CSV is never empty");
        assert_eq!(cell(&records[0], "status"), text(&document, "/status"));
        assert_eq!(cell(&records[0], "error_step"), step);
        assert_eq!(cell(&records[0], "error_message"), text(&document, "/error/message"));
        assert!(fs::read_to_string(files.path("hlog")).expect("a log").starts_with('#'));
    }
}

#[test]
fn without_a_device_a_client_and_a_server_say_what_to_do() {
    if fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        println!("not asked: this machine has RDMA devices");
        return;
    }
    for options in ["127.0.0.1 --connect-timeout 1", "-p 0"] {
        let files = Files::new();
        let mut command = line("send_lat", options);
        command.arg("--json").arg(files.path("run.json"));
        let run = Running::start(command).finish().exits(5);
        check_failure(&run, &files.document("run.json"), "open_device", &[]);
        assert!(
            run.stderr.contains("--tcp-only"),
            "{options}: what works without one is named: {}",
            run.stderr
        );
    }
}

#[test]
fn a_document_on_standard_output_is_all_that_is_there() {
    let _turn = suite::turn();
    for options in ["--json -", "--json /dev/stdout", "--json - -v"] {
        let run = suite::run("send_lat", &format!("--loopback -d emu0 -n 40 {options}")).exits(0);
        let document = document(&run.stdout);
        assert_eq!(rows(&document).len(), 2);
        assert!(run.stdout.starts_with('{') && run.stdout.ends_with("}\n"), "{}", run.stdout);
    }
    let run = suite::run("write_bw", "--loopback -d emu0 -n 40 --csv -").exits(0);
    assert_eq!(records(&run.stdout).len(), 2, "{}", run.stdout);
    let run = suite::run("send_lat", "--loopback -d emu0 -n 40 --hlog -").exits(0);
    assert!(run.stdout.starts_with('#') && run.stdout.contains("Tag=rdma/64B/"), "{}", run.stdout);
}

#[test]
fn the_document_of_a_failure_on_standard_output_is_all_that_is_there() {
    let _turn = suite::turn();
    for (step, mut command, says) in failures() {
        let run = Running::start({
            command.args(["--json", "-"]);
            command
        });
        let run = run.finish().exits(5);
        let document = document(&run.stdout);
        check_failure(&run, &document, step, &says);
    }
}

#[test]
fn an_output_that_cannot_be_written_ends_the_run_before_it_measures() {
    let files = Files::new();
    fs::write(files.path("file"), "").expect("a file");
    let no_directory = files.path("nowhere/run.json");
    let below_a_file = files.path("file/run.json");
    for place in [no_directory, below_a_file, files.path("")] {
        for option in ["--json", "--csv", "--hlog"] {
            // Minutes, if it measured.
            let mut command = line("send_lat", "--loopback -d emu0 -D 300");
            command.arg(option).arg(&place);
            let run = Running::start(command).finish().exits(2);
            let run = run.says(&["error: write output: cannot write", "try: "]);
            assert!(run.stdout.is_empty(), "{}", run.stdout);
        }
    }
}

#[test]
fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
    let _turn = suite::turn();
    let files = Files::new();
    let long = "x".repeat(100_000);
    fs::write(files.path("run.json"), long).expect("a file");
    let mut command = line("send_lat", "--loopback -d emu0 -n 20 --tcp-only --json");
    command.arg(files.path("run.json"));
    Running::start(command).finish().exits(0);
    files.document("run.json");
    let names: Vec<_> =
        fs::read_dir(files.path("")).expect("a directory").flatten().map(|e| e.file_name()).collect();
    assert_eq!(names, ["run.json"]);
}

#[test]
fn a_full_disk_is_an_error_of_the_output_and_the_table_stands() {
    let _turn = suite::turn();
    let run = suite::run("send_lat", "--loopback -d emu0 -n 20 --json /dev/full").exits(5);
    let run = run.says(&["error: write output: cannot write /dev/full", "No space left", "try: "]);
    assert!(run.stdout.contains("tcp/rdma"), "{}", run.stdout);
    // On standard output itself: the document is what the run was for.
    let mut command = line("send_lat", "--loopback -d emu0 -n 20 --json -");
    command.stdout(File::options().write(true).open("/dev/full").expect("it exists"));
    Running::start_with_own_stdout(command).finish().exits(5).says(&["cannot write standard output"]);
}

#[test]
fn a_table_that_cannot_be_shown_is_an_error_and_the_files_stand() {
    let _turn = suite::turn();
    let files = Files::new();
    let json = files.path("run.json");
    let json = json.to_str().expect("a plain path");
    for (binary, options) in [
        ("send_lat", format!("--loopback -d emu0 -n 20 --json {json}")),
        (suite::TOOL, format!("report {json}")),
        (suite::TOOL, format!("compare {json} {json} --json {json}.compare")),
        (suite::TOOL, "devices".into()),
        (suite::REGISTRATION, "-d emu0 -n 20 -s 4k".into()),
    ] {
        let mut command = line(binary, &options);
        command.stdout(File::options().write(true).open("/dev/full").expect("it exists"));
        let run = Running::start_with_own_stdout(command).finish().exits(5);
        run.says(&["cannot write standard output", "No space left"]);
        assert_eq!(text(&files.document("run.json"), "/status"), "ok", "{options}");
        let mut command = line(binary, &options);
        command.stdout(closed_pipe());
        Running::start_with_own_stdout(command).finish().exits(0);
    }
}

#[test]
fn what_is_shown_is_plain_text_in_any_locale() {
    let _turn = suite::turn();
    for (binary, options, status) in [
        ("send_lat", "--loopback -d emu0 -n 20", 0),
        ("send_lat", "--loopback -s 64kB", 2),
        (suite::TOOL, "devices", 0),
        (suite::TOOL, "gate --help", 0),
        (suite::TOOL, "gate missing.toml", 2),
    ] {
        for (name, value) in
            [("LC_ALL", "C"), ("LC_ALL", "de_DE.UTF-8"), ("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")]
        {
            let mut command = line(binary, options);
            command.env(name, value).env("TERM", "xterm-256color");
            let run = Running::start(command).finish().exits(status);
            for text in [&run.stdout, &run.stderr] {
                let is_plain = |c: char| c == '\n' || matches!(c, ' '..='~');
                assert!(text.chars().all(is_plain), "{name}={value} {binary} {options}: {text:?}");
            }
        }
    }
}

/// A pipe that nobody reads any more.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn a_reader_that_has_gone_spoils_neither_the_run_nor_its_files() {
    let _turn = suite::turn();
    for binary in ["send_lat", "write_bw"] {
        let files = Files::new();
        let mut command = line(binary, "--loopback -d emu0 -n 20 -s 64,128 --json");
        command.arg(files.path("run.json")).stdout(closed_pipe());
        Running::start_with_own_stdout(command).finish().exits(0);
        assert_eq!(rows(&files.document("run.json")).len(), 4);
    }
    // Where the document itself was for that reader, it cannot be called done.
    let mut command = line("send_lat", "--loopback -d emu0 -n 20 --json -");
    command.stdout(closed_pipe());
    Running::start_with_own_stdout(command).finish().exits(5).says(&["its reader has gone"]);
    for option in ["--help", "--version"] {
        let mut command = line("send_lat", option);
        command.stdout(closed_pipe());
        Running::start_with_own_stdout(command).finish().exits(0);
    }
}

#[test]
fn a_named_pipe_is_written_as_it_stands() {
    let _turn = suite::turn();
    let files = Files::new();
    let pipe = files.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let mut command = line("send_lat", "--loopback -d emu0 -n 20 --json");
    command.arg(&pipe);
    let run = Running::start(command);
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        File::open(pipe).expect("the FIFO").read_to_string(&mut text).expect("a document");
        text
    });
    run.finish().exits(0);
    document(&reader.join().expect("it was read"));
}
