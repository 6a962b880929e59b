//! `docs/result.schema.json` describes what is written: all of it, and nothing broken passes.

use crate::documents;
use crate::schema;

use crate::schema::{errors, schema};
use serde_json::{Value, json};
use verbmark::registration;
use verbmark::report::{csv, json as to_json};
use verbmark::result::Document;
use verbmark::tool::{audit, devices, doctor, explain};

/// A document as a reader finds it.
fn written(document: &Document) -> Value {
    serde_json::from_str(&to_json::to_string(document).unwrap()).unwrap()
}

#[test]
fn the_schema_is_valid_itself() {
    jsonschema::meta::validate(&schema()).expect("draft 2020-12");
}

#[test]
fn every_kind_of_document_validates() {
    let validator = schema::for_readers();
    for (name, document) in documents::all() {
        let errors = errors(&validator, &written(&document));
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
}

#[test]
fn every_key_that_is_written_is_described() {
    let validator = schema::closed();
    for (name, document) in documents::all() {
        let errors = errors(&validator, &written(&document));
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
}

/// Holds a document to the schema that it names, and those within it to theirs; a build that is not optimised measures
/// nothing worth keeping.
fn recorded_is_valid(value: &Value, path: &str) {
    let schema = match value["schema"].as_str() {
        Some(registration::SCHEMA) => schema::of_registration(),
        Some(audit::SCHEMA) => schema::of_audits(),
        Some(explain::SCHEMA) => schema::of_explanations(),
        Some(devices::SCHEMA) => schema::of_devices(),
        Some(doctor::SCHEMA) => schema::of_doctors(),
        _ => {
            Document::from_json(&value.to_string()).unwrap_or_else(|e| panic!("{path}: {e}"));
            schema::schema()
        }
    };
    assert_eq!(errors(&schema::strict(schema), value), [""; 0], "{path}");
    if let Some(optimised) = value.pointer("/local/process/optimised") {
        assert_eq!(optimised, &json!(true), "{path}");
    }
    let within = |key: &str| value[key].as_array().cloned().unwrap_or_default();
    within("scenes").iter().for_each(|scene| recorded_is_valid(&scene["document"], path));
    within("audits").iter().for_each(|audit| recorded_is_valid(audit, path));
}

#[test]
fn recorded_runs_validate() {
    let results = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let folders = std::fs::read_dir(results).expect("recorded runs").flatten().map(|entry| entry.path());
    let mut recorded = 0;
    for file in folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten() {
        let path = file.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = std::fs::read_to_string(&path).expect("it is there");
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            recorded_is_valid(&value, &path.display().to_string());
            recorded += 1;
        }
    }
    assert!(recorded > 0, "there is one at least");
}

#[test]
fn readers_need_not_know_what_is_added() {
    let mut value = written(&documents::latency());
    value["added"] = json!({"deep": 1});
    value["results"][0]["latency_ns"]["p99_999"] = json!(1.0);
    value["local"]["device"]["temperature_c"] = json!(40);
    assert_eq!(errors(&schema::for_readers(), &value), [""; 0]);
}

#[test]
fn what_a_machine_does_not_tell_may_be_null_and_no_limit_has_a_word() {
    let base = written(&documents::latency());
    for (pointer, value) in [
        ("/local/host", json!(null)),
        ("/local/cpus_allowed", json!(null)),
        ("/local/memlock_bytes", json!(null)),
        ("/local/memlock_bytes", json!("unlimited")),
        ("/test/warm_up", json!({"messages": 100, "seconds": 0.1})),
        ("/test/warm_up", json!({"messages": null, "seconds": 0})),
        ("/floor", json!(null)),
    ] {
        let value = with(&base, pointer, value);
        assert_eq!(errors(&schema::for_readers(), &value), [""; 0], "{pointer}");
    }
}

/// The latency document with the value at `pointer` replaced.
fn with(base: &Value, pointer: &str, replacement: Value) -> Value {
    let mut value = base.clone();
    *value.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = replacement;
    value
}

#[test]
fn broken_values_do_not_validate() {
    let validator = schema::for_readers();
    let latency = written(&documents::latency());
    let broken = [
        ("/schema", json!("verbmark.result/2")),
        ("/tool/name", json!("perftest")),
        ("/command", json!("send_lat -s 64")),
        ("/run_id", json!("0123")),
        ("/run_id", json!("0123456789ABCDEF0123456789ABCDEF")),
        ("/labels", json!({"n": 1})),
        ("/started_at", json!("2026-11-29 16:45:42")),
        ("/started_at", json!("2026-13-29T16:45:42Z")),
        ("/status", json!("passed")),
        ("/status", json!("failed")),
        ("/error", json!({"step": "measure", "message": "x", "remedy": null, "remote": false})),
        ("/missing", json!([{"path": "results[0].late"}])),
        ("/warnings", json!(["core 3 was preempted"])),
        ("/warnings/0/code", json!("Not A Code")),
        ("/test", json!(null)),
        ("/test/shape", json!("throughput")),
        ("/test/stop", json!({"messages": 1, "seconds": 1.0})),
        ("/test/stop", json!({"messages": null, "seconds": null})),
        ("/test/warm_up", json!({"messages": null, "seconds": null})),
        ("/test/warm_up", json!({"messages": 16, "seconds": "100 ms"})),
        ("/test/sizes_bytes", json!([0])),
        ("/local/side", json!("left")),
        ("/local/host", json!("")),
        ("/local/memlock_bytes", json!("infinite")),
        ("/local/memlock_bytes", json!(-1)),
        ("/local/cpus_allowed", json!([])),
        ("/local/device/is_software", json!("no")),
        ("/local/device/link_layer", json!("RoCE")),
        ("/local/device/gid/type", json!("RoCEv2")),
        ("/local/device/path_mtu_bytes", json!(1500)),
        ("/local/device/port", json!(0)),
        ("/local/tcp/same_link", json!("yes")),
        ("/same_host", json!(0)),
        ("/results/0/id", json!("64")),
        ("/results/0/transport", json!("roce")),
        ("/results/0/messages", json!(null)),
        ("/results/0/messages", json!(-1)),
        ("/results/0/messages", json!(1.5)),
        ("/results/0/late", json!("none")),
        ("/results/0/window_s", json!(-0.1)),
        ("/results/0/measured_by", json!("both")),
        ("/results/0/point/offered_per_s", json!(0)),
        ("/results/0/latency_ns/basis", json!("one_way")),
        ("/results/0/latency_ns/samples", json!(0)),
        ("/results/0/latency_ns/p99", json!("-")),
        ("/results/0/latency_ns/max", json!(null)),
        ("/results/0/histogram", json!(null)),
        ("/results/0/histogram/unit", json!("us")),
        ("/results/0/histogram/payload", json!("")),
        ("/results/0/bandwidth", json!(0)),
        ("/results/0/cpu/client", json!({})),
        ("/results/0/counters/client", json!({"retries": null})),
        ("/results/0/validity", json!({"ok": false, "reasons": ["loss"]})),
        ("/comparison/0/rdma", json!("tcp/64B")),
        ("/comparison/0/tcp_over_rdma", json!(-1)),
        ("/claims/zero_copy", json!(null)),
        ("/claims/reason", json!("")),
    ];
    for (pointer, replacement) in broken {
        let value = with(&latency, pointer, replacement.clone());
        assert!(!validator.is_valid(&value), "{pointer} = {replacement} passed");
    }
    let claimed = with(&latency, "/claims/zero_copy", json!(true));
    assert!(validator.is_valid(&claimed), "hardware may be found to copy nothing");
    for unfit in [json!(true), json!(null)] {
        let value = with(&claimed, "/remote/device/is_software", unfit.clone());
        assert!(!validator.is_valid(&value), "zero copy was claimed with is_software {unfit}");
    }
    let failed = written(&documents::failed_before_plan());
    assert!(!validator.is_valid(&with(&failed, "/error", json!(null))), "a failure without an error passed");
    assert!(!validator.is_valid(&with(&failed, "/error/step", json!("Open Device"))));
}

/// Keys that came after the first recorded runs, whose documents stay valid without them.
const ADDED: &[&str] = &[
    "/limits",
    "/test/depth",
    "/test/rate_per_s",
    "/test/arrivals",
    "/test/rate_shares",
    "/test/post_list",
    "/test/cqe_batch",
    "/test/shared_receive",
    "/test/buffers",
    "/test/traffic_class",
    "/test/flow_label",
    "/test/hop_limit",
    "/test/relaxed_ordering",
    "/test/on_demand_paging",
    "/test/bidirectional",
    "/test/compare_waits",
    "/results/0/directions",
    "/results/0/overlap",
    "/test/tcp",
    "/test/loss_timeout_s",
    "/results/0/late_replies",
    "/local/tcp/send_buffer_bytes",
    "/local/tcp/receive_buffer_bytes",
    "/local/tcp/congestion",
    "/local/tcp/busy_poll_us",
    "/local/buffers",
    "/local/device/pkey_index",
    "/local/device/pkey",
    "/results/0/intervals/0/payload",
    "/results/0/cpu/client/idle_share",
    "/results/0/cpu/client/user_ns_per_message",
    "/results/0/cpu/client/system_ns_per_message",
    "/results/0/cpu/client/ns_per_byte",
    "/results/0/cpu/client/user_ns_per_byte",
    "/results/0/cpu/client/system_ns_per_byte",
    "/results/0/cpu/client/instructions",
    "/results/0/cpu/client/cycles",
    "/results/0/cpu/client/counts_user_only",
    "/results/0/cpu/client/system_calls",
    "/results/0/cpu/client/machine",
    "/local/evidence",
    "/local/fingerprint",
    "/local/idle_machine",
    "/test/cpu_report",
    "/results/0/threads",
];

#[test]
fn a_key_left_out_does_not_validate() {
    let validator = schema::for_readers();
    let mut removed = 0;
    for document in [documents::latency(), documents::bandwidth(), documents::failed_mid_run()] {
        let value = written(&document);
        for parent in [
            "",
            "/tool",
            "/error",
            "/test",
            "/test/stop",
            "/test/tcp",
            "/test/warm_up",
            "/local",
            "/local/buffers",
            "/local/clock",
            "/local/fingerprint",
            "/local/fingerprint/pcie",
            "/local/device",
            "/local/device/gid",
            "/local/tcp",
            "/local/process",
            "/results/0",
            "/results/0/point",
            "/results/0/latency_ns",
            "/results/0/histogram",
            "/results/0/bandwidth",
            "/results/0/intervals/0",
            "/results/0/uncertainty",
            "/results/0/cpu",
            "/results/0/cpu/client",
            "/results/0/counters",
            "/results/0/validity",
            "/comparison/0",
            "/claims",
        ] {
            let Some(object) = value.pointer(parent).and_then(Value::as_object) else { continue };
            for key in object.keys() {
                let mut without = value.clone();
                without.pointer_mut(parent).and_then(Value::as_object_mut).unwrap().remove(key);
                let place = format!("{parent}/{key}");
                let may_lack = ADDED.contains(&place.as_str());
                assert_eq!(validator.is_valid(&without), may_lack, "without {place}");
                removed += 1;
            }
        }
    }
    assert!(removed > 200, "{removed}");
}

/// The names of all properties, wherever they are defined.
fn property_names(schema: &Value, names: &mut Vec<String>) {
    if let Some(map) = schema.as_object() {
        if let Some(properties) = map.get("properties").and_then(Value::as_object) {
            names.extend(properties.keys().cloned());
        }
        map.values().for_each(|inner| property_names(inner, names));
    }
    schema.as_array().into_iter().flatten().for_each(|inner| property_names(inner, names));
}

#[test]
fn the_manual_describes_every_key_and_column() {
    let manual = include_str!("../../docs/formats.md");
    let mut names = Vec::new();
    property_names(&schema(), &mut names);
    assert!(names.len() > 100);
    for name in &names {
        assert!(
            manual.contains(&format!("`{name}")) || manual.contains(&format!("{name}`")),
            "{name} is not described"
        );
    }
    for (column, path) in csv::columns() {
        // A column is described by its path, so each of its keys has to be.
        let described =
            path.rsplit(['.', ']']).next().is_some_and(|key| names.iter().any(|name| name == key));
        assert!(described, "{column} shows {path}, which the schema does not have");
    }
}
