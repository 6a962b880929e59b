//! `reg_mr_lat`: what it measures, leaves out and refuses, on the emulated device, whose numbers decide nothing here.
//! The tables stand in `tests/tables`; `UPDATE_TABLES=1 cargo test --test behaviour registration::` writes them anew.

use crate::schema;
use crate::suite;

use std::collections::BTreeSet;
use std::io::Cursor;
use std::path::Path;

use crate::suite::{Files, Finished, REGISTRATION, Running, TOOL, at, line, misbehaving, number, rows, text};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use verbmark::registration::{Document, render};

/// Values that are `null` where there is nothing to say, and need no reason.
const MAY_BE_NULL: &[&str] = &["error", "remedy", "local"];

/// Reads a document, holds it to the schema and each `null` of it to a reason.
#[track_caller]
fn document(text: &str) -> Value {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let errors = schema::errors(&schema::strict(schema::of_registration()), &value);
    assert!(errors.is_empty(), "{errors:#?} in {text}");
    let missing = at(&value, "/missing").as_array().expect("a list");
    let explained: BTreeSet<&str> = missing.iter().map(|entry| self::text(entry, "/path")).collect();
    for (index, row) in rows(&value).iter().enumerate() {
        for (key, inner) in row.as_object().expect("an object") {
            let is_copy = row["operation"] == "copy" && ["pages", "paging"].contains(&key.as_str());
            let path = format!("results[{index}].{key}");
            assert!(!inner.is_null() || is_copy || explained.contains(path.as_str()), "{path} of {value:#}");
        }
        for (key, inner) in row["latency_ns"].as_object().into_iter().flatten() {
            let path = format!("results[{index}].latency_ns.{key}");
            assert!(!inner.is_null() || explained.contains(path.as_str()), "{path} of {value:#}");
        }
    }
    for key in value["local"].as_object().into_iter().flatten().filter(|(_, v)| v.is_null()).map(|(k, _)| k) {
        assert!(explained.contains(format!("local.{key}").as_str()), "local.{key} of {value:#}");
    }
    let alone = value.as_object().expect("an object").iter().filter(|(_, inner)| inner.is_null());
    assert!(alone.map(|(key, _)| key.as_str()).all(|key| MAY_BE_NULL.contains(&key)), "{value:#}");
    value
}

/// Runs it on a device that misbehaves in this way, or in none.
fn run(how: &str, options: &str) -> Finished {
    let _turn = suite::turn();
    let command = line(REGISTRATION, &format!("-d emu0 {options}"));
    Running::start(if how.is_empty() { command } else { misbehaving(command, how) }).finish()
}

/// The same, with its document, which must be of a run that ends with this status.
#[track_caller]
fn measured(how: &str, options: &str, status: i32) -> Value {
    document(&run(how, &format!("{options} --json -")).exits(status).stdout)
}

fn ids(document: &Value) -> Vec<&str> {
    rows(document).iter().map(|row| text(row, "/id")).collect()
}

#[test]
fn the_schema_is_valid_itself() {
    jsonschema::meta::validate(&schema::of_registration()).expect("draft 2020-12");
}

#[test]
fn every_kind_of_memory_is_registered_and_copied_exactly_as_often_as_asked() {
    let document = measured("", "-s 100,64k -n 200", 0);
    let expected: Vec<_> = [100, 65536]
        .iter()
        .flat_map(|size| {
            let of = move |kind| ["register", "deregister"].map(move |call| format!("{call}/{size}B/{kind}"));
            let kinds = ["touched/pinned", "untouched/pinned", "touched/on_demand", "untouched/on_demand"];
            kinds.into_iter().flat_map(of).chain([format!("copy/{size}B")])
        })
        .collect();
    assert_eq!(ids(&document), expected);
    for row in rows(&document) {
        let payload = STANDARD.decode(text(row, "/histogram/payload")).expect("base64");
        let calls: Histogram<u64> =
            Deserializer::new().deserialize(&mut Cursor::new(payload)).expect("a histogram");
        assert_eq!((calls.len(), number(row, "/latency_ns/samples")), (200, 200.0), "{row:#}");
        let (median, shown) = (calls.value_at_quantile(0.5) as f64, number(row, "/latency_ns/p50"));
        assert!((median / shown - 1.0).abs() < 0.002, "{median} and {shown}");
        assert!(at(row, "/latency_ns/p99").is_null(), "200 samples leave two beyond it");
    }
    let found = at(&document, "/break_even").as_array().expect("schema");
    assert_eq!(found.len(), 8, "each kind of memory of each size");
    assert!(found.iter().all(|found| at(found, "/metric") == "p50" && at(found, "/uses").is_null()));
    assert!(number(&found[0], "/copy_ns") > 0.0);
    assert_eq!(number(&document, "/local/buffers/page_bytes"), 4096.0);
    assert_eq!(text(&document, "/status"), "ok");
}

#[test]
fn what_is_chosen_is_measured_alone() {
    for (options, kinds) in [
        ("--touch yes", &["touched/pinned", "touched/on_demand"][..]),
        ("--touch no --odp", &["untouched/on_demand"]),
        ("--odp", &["touched/on_demand", "untouched/on_demand"]),
    ] {
        let document = measured("", &format!("-s 4k -n 1 {options}"), 0);
        let registered: Vec<_> =
            ids(&document).into_iter().filter_map(|id| id.strip_prefix("register/4096B/")).collect();
        assert_eq!(registered, kinds, "{options}");
    }
    let core = measured("", "-s 4k -n 1 --cpu 0 --label a=b", 0);
    assert_eq!((at(&core, "/local/core"), at(&core, "/labels/a")), (&json!(0), &json!("b")));
}

#[test]
fn a_time_ends_a_measurement_too() {
    let document = measured("", "-s 4k -D 5ms --touch yes", 0);
    assert_eq!(at(&document, "/test/stop"), &json!({"samples": null, "seconds": 0.005}));
    assert!(rows(&document).iter().all(|row| number(row, "/latency_ns/samples") >= 1.0));
}

#[test]
fn the_table_says_that_the_device_is_emulated_and_shows_no_break_even() {
    let run = run("", "-s 4k,64k -n 30 -v").exits(0).says(&["core ", "on-demand paging"]);
    for part in ["EMULATED  emu0", "pins nothing", "4 KiB", "untouched, on demand", "copy"] {
        assert!(run.stdout.contains(part), "no {part} in {}", run.stdout);
    }
    assert!(!run.stdout.contains("pays  "), "{}", run.stdout);
    let untouched = run.stdout.lines().find(|line| line.contains("untouched ")).expect("a line");
    assert!(untouched.ends_with('-'), "{untouched}");
}

#[test]
fn without_a_device_of_its_own_a_machine_has_the_emulated_one() {
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        println!("not asked: this machine has RDMA devices");
        return;
    }
    let _turn = suite::turn();
    let run = suite::run(REGISTRATION, "-s 4k -n 2").exits(0);
    assert!(run.stdout.contains("EMULATED  emu0"), "{}", run.stdout);
}

#[test]
fn on_demand_paging_that_is_not_there_is_said_and_refused_where_it_is_all() {
    let document = measured("no-odp", "-s 4k -n 20", 0);
    assert!(!ids(&document).iter().any(|id| id.ends_with("on_demand")), "{document:#}");
    assert_eq!(at(&document, "/test/paging"), &json!(["pinned"]));
    assert_eq!(text(&document, "/notes/1/code"), "no_on_demand_paging");
    run("no-odp", "-s 4k -n 20 --odp")
        .exits(5)
        .says(&["emu0 does no on-demand paging", "try: leave --odp away"]);
}

#[test]
fn sizes_beyond_a_limit_are_left_out_with_the_reason_and_the_others_stand() {
    let document = measured("memlock=65536,no-odp", "-s 4k..256k -n 20", 0);
    for row in rows(&document) {
        let fits = number(row, "/size_bytes") <= 65536.0 || text(row, "/operation") == "copy";
        assert_eq!(at(row, "/latency_ns").is_object(), fits, "{row:#}");
    }
    let warnings = at(&document, "/warnings").as_array().expect("schema").iter();
    let cut: Vec<_> = warnings.filter(|warning| text(warning, "/code") == "not_measured").collect();
    assert_eq!(cut.len(), 1, "{cut:#?}");
    for part in ["128 KiB, 256 KiB", "RLIMIT_MEMLOCK", "ulimit -l"] {
        assert!(text(cut[0], "/message").contains(part), "no {part} in {}", cut[0]);
    }
    let unpinned = measured("memlock=65536", "-s 64k,128k -n 2", 0);
    let lacks = |id: &str| rows(&unpinned).iter().any(|row| row["id"] == id && row["latency_ns"].is_null());
    assert!(lacks("register/131072B/touched/pinned") && !lacks("register/131072B/touched/on_demand"));
}

#[test]
fn a_size_alone_beyond_the_limit_is_the_failure_that_names_it() {
    for (how, options) in [("memlock=65536,no-odp", "-s 128k"), ("no-memlock", "-s 4k,64k")] {
        let document = measured(how, &format!("{options} -n 2"), 5);
        assert_eq!(text(&document, "/status"), "failed");
        assert_eq!(text(&document, "/error/step"), "register_memory");
        assert!(text(&document, "/error/message").contains("RLIMIT_MEMLOCK"), "{document:#}");
        assert!(text(&document, "/error/remedy").contains("ulimit -l unlimited"));
        run(how, &format!("{options} -n 2")).exits(5).says(&["ibv_reg_mr", "try: "]);
    }
}

#[test]
fn a_registration_that_is_not_what_was_asked_for_makes_the_run_invalid() {
    let document = measured("short-mr", "-s 4k -n 20", 5);
    assert_eq!((text(&document, "/status"), text(&document, "/error/kind")), ("invalid", "invalid"));
    assert!(text(&document, "/error/message").contains("not what was asked for"));
}

#[test]
fn huge_pages_are_used_or_refused_with_what_to_reserve() {
    let finished = run("", "-s 4k -n 5 --hugepages --json -");
    if finished.status.code() == Some(0) {
        let value = document(&finished.stdout);
        assert_eq!(text(&value, "/test/memory"), "huge_pages");
        assert!(number(&value, "/local/buffers/page_bytes") > 65536.0);
    } else {
        finished.exits(5).says(&["huge pages", "try: "]);
    }
}

#[test]
fn a_signal_keeps_what_was_measured() {
    let _turn = suite::turn();
    let files = Files::new();
    let mut command = line(REGISTRATION, "-d emu0 -s 4k -D 60 --touch yes -v --json");
    command.arg(files.path("run.json"));
    let mut running = Running::start(command);
    running.line_with("on-demand paging");
    std::thread::sleep(std::time::Duration::from_millis(200));
    running.signal(Signal::SIGINT);
    let run = running.finish().exits(130);
    let document = document(&std::fs::read_to_string(files.path("run.json")).expect("a document"));
    assert_eq!(text(&document, "/status"), "interrupted");
    assert_eq!(ids(&document), ["register/4096B/touched/pinned", "deregister/4096B/touched/pinned"]);
    assert!(run.stdout.contains("interrupted: what is shown"), "{}", run.stdout);
}

#[test]
fn the_csv_has_a_row_a_result_and_one_of_a_failure() {
    let _turn = suite::turn();
    let files = Files::new();
    let mut command = line(REGISTRATION, "-d emu0 -s 4k -n 20 --csv -");
    command.arg("--json").arg(files.path("run.json"));
    let run = Running::start(command).finish().exits(0);
    let document = document(&std::fs::read_to_string(files.path("run.json")).expect("a document"));
    let mut reader = csv::Reader::from_reader(run.stdout.as_bytes());
    let names: Vec<String> = reader.headers().expect("a header").iter().map(str::to_owned).collect();
    let records: Vec<_> =
        reader.records().map(|record| record.expect("every record has every column")).collect();
    let column = |name: &str| names.iter().position(|column| column == name).expect("it is there");
    let told: Vec<_> = records.iter().map(|record| &record[column("id")]).collect();
    assert_eq!(told, ids(&document));
    assert_eq!(&records[0][column("latency_ns_p50")], at(&rows(&document)[0], "/latency_ns/p50").to_string());
    assert_eq!(&records[0][column("run_id")], text(&document, "/run_id"));
    let failed = suite::run(REGISTRATION, "-d nosuch0 --csv -").exits(5);
    assert_eq!(failed.stdout.lines().count(), 2, "{}", failed.stdout);
    assert!(failed.stdout.contains("failed,open_device,"), "{}", failed.stdout);
}

#[test]
fn a_report_is_what_the_run_itself_wrote() {
    let _turn = suite::turn();
    let files = Files::new();
    let mut command = line(REGISTRATION, "-d emu0 -s 4k,64k -n 30");
    for (option, name) in [("--json", "run.json"), ("--csv", "run.csv")] {
        command.arg(option).arg(files.path(name));
    }
    let run = Running::start(command).finish().exits(0);
    let mut report = line(TOOL, "report");
    report.arg(files.path("run.json")).arg("--csv").arg(files.path("again.csv"));
    assert_eq!(Running::start(report).finish().exits(0).stdout, run.stdout);
    let read = |name| std::fs::read_to_string(files.path(name)).expect("a CSV");
    assert_eq!(read("run.csv"), read("again.csv"));
    let mut report = line(TOOL, "report --hlog -");
    report.arg(files.path("run.json"));
    Running::start(report).finish().exits(2).says(&["no interval log", "--hlog"]);
}

#[test]
fn tables_are_those_on_file_and_no_wider_than_they_may_be() {
    let recorded = include_str!("../../results/2026-11-registration/rxe0.json");
    let document = Document::from_json(recorded).expect("it is read").expect("a registration's");
    assert_eq!(
        serde_json::to_value(&document).expect("JSON"),
        serde_json::from_str::<Value>(recorded).expect("JSON")
    );
    for width in [None, Some(80), Some(100)] {
        let table = render(&document, width);
        let suffix = width.map(|width| format!("-{width}")).unwrap_or_default();
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/tables/registration{suffix}.txt"));
        if std::env::var_os("UPDATE_TABLES").is_some() {
            std::fs::write(&path, &table).expect("the tables are part of the source tree");
        }
        assert_eq!(table, std::fs::read_to_string(&path).unwrap_or_default(), "{}", path.display());
        let widest = table.lines().map(str::len).max().unwrap_or_default();
        assert!(width.is_none_or(|width| widest <= width), "{widest} columns in\n{table}");
    }
}

#[test]
fn what_is_wrong_is_named_and_ends_with_status_2() {
    for (options, named) in [
        ("-s 0", "at least 1 byte"),
        ("-s 2G", "2G"),
        ("-a -s 4k", "--size"),
        ("-n 0", "--iters"),
        ("-n 1 -D 1", "--duration"),
        ("-D 0", "--duration"),
        ("--touch maybe", "maybe"),
        ("--cpu 5000", "core 5000 may not be used"),
        ("--numa 1023", "--numa 1023"),
        ("--json - --csv -", "--json and --csv"),
        ("--json /nowhere/run.json", "/nowhere/run.json"),
        ("--label novalue", "KEY=VALUE"),
        ("127.0.0.1", "127.0.0.1"),
        ("--loopback", "--loopback"),
    ] {
        let run = run("", options).exits(2).says(&["error:", named]);
        assert!(run.stdout.is_empty(), "{options}: {}", run.stdout);
    }
}

#[test]
fn the_manual_describes_every_key() {
    let manual = include_str!("../../docs/formats.md");
    let mut names = Vec::new();
    property_names(&schema::of_registration(), &mut names);
    assert!(names.len() > 60, "{}", names.len());
    for name in names {
        assert!(
            manual.contains(&format!("`{name}")) || manual.contains(&format!("{name}`")),
            "{name} is not described"
        );
    }
}

fn property_names(schema: &Value, names: &mut Vec<String>) {
    if let Some(map) = schema.as_object() {
        if let Some(properties) = map.get("properties").and_then(Value::as_object) {
            names.extend(properties.keys().cloned());
        }
        map.values().for_each(|inner| property_names(inner, names));
    }
    schema.as_array().into_iter().flatten().for_each(|inner| property_names(inner, names));
}
