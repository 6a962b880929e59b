//! `verbmark explain`: the whole story in one run, and claims that stand on evidence or are withheld.

use serde_json::{Value, json};
use verbmark::tool::explain::{Explanation, Verdict, claims};

use crate::schema;
use crate::suite;
use crate::suite::{Files, Running, TOOL, at, line, text};

/// A recorded explanation, which tests below change.
const RECORDED: &str = include_str!("../../results/2026-11-concepts-emulated/explain.json");

fn claim<'a>(document: &'a Value, name: &str) -> &'a Value {
    let claims = at(document, "/claims").as_array().expect("a list");
    claims.iter().find(|claim| claim["name"] == name).unwrap_or_else(|| panic!("no claim {name}"))
}

/// Holds it, and every document within it, to their schemas.
fn valid(document: &Value) {
    let held = |schema: Value, value: &Value| {
        let errors = schema::errors(&schema::strict(schema), value);
        assert!(errors.is_empty(), "{errors:#?}");
    };
    held(schema::of_explanations(), document);
    for scene in at(document, "/scenes").as_array().expect("a list") {
        held(schema::schema(), &scene["document"]);
    }
    for audit in at(document, "/audits").as_array().expect("a list") {
        held(schema::of_audits(), audit);
    }
}

#[test]
fn the_whole_story_is_told_and_nothing_is_claimed_of_an_emulated_device() {
    let _turn = suite::turn();
    let files = Files::new();
    let json = files.path("explain.json");
    let mut command = line(TOOL, "explain --loopback -d emu0 -D 12ms");
    command.arg("--json").arg(&json);
    let run = Running::start(command).finish().exits(0);
    let document: Value =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("it is there")).expect("JSON");
    valid(&document);
    for scene in at(&document, "/scenes").as_array().expect("a list") {
        assert!(!text(scene, "/document/command/0").contains('/'), "as typed, and not where it lies");
    }
    for part in ["rdma polling", "tcp blocking", "1. ", "2. ", "3. ", "4. ", "5. ", "6. ", "WITHHELD  "] {
        assert!(run.stdout.contains(part), "no {part} in {}", run.stdout);
    }
    assert_eq!(at(&document, "/slopes").as_array().map(Vec::len), Some(4));
    assert_eq!(at(&document, "/audits").as_array().map(Vec::len), Some(2));
    for name in ["kernel_bypass", "zero_copy", "one_sided", "lower_latency", "polling_over_rdma"] {
        assert_eq!(text(claim(&document, name), "/verdict"), "withheld", "{name}");
        assert!(text(claim(&document, name), "/reason").contains("emulated"), "{name}");
    }
    // The conclusions follow from what is in the document, and from nothing else.
    let mut read: Explanation = serde_json::from_value(document.clone()).expect("it reads back");
    read.conclude();
    assert_eq!(serde_json::to_value(&read.claims).expect("JSON"), document["claims"]);
    let again = Running::start(line(TOOL, &format!("report {}", json.display()))).finish().exits(0);
    assert_eq!(again.stdout, run.stdout);
}

#[test]
fn what_it_is_asked_must_make_sense() {
    for (options, part) in [
        ("explain", "--loopback"),
        ("explain h --loopback", "cannot be used with"),
        ("explain --loopback -D 0", "--duration"),
        ("explain --loopback -p 0", "--port"),
    ] {
        suite::run(TOOL, options).exits(2).says(&[part]);
    }
    let run = suite::run(TOOL, "explain --loopback -d nodevice0").exits(5);
    run.says(&["nodevice0"]);
    // The runs are given the secret.
    suite::run(TOOL, "explain --loopback -d emu0 --secret-file /nowhere")
        .exits(2)
        .says(&["--secret-file /nowhere"]);
}

/// The recorded run as it would be between two hosts with hardware, and with these changes.
fn on_hardware(change: impl FnOnce(&mut Value)) -> Vec<verbmark::tool::explain::Claim> {
    let mut value: Value = serde_json::from_str(RECORDED).expect("JSON");
    for scene in value["scenes"].as_array_mut().expect("a list") {
        let of_reads = scene["name"] == "reads";
        let document = &mut scene["document"];
        document["same_host"] = json!(false);
        for end in ["local", "remote"] {
            let device = &mut document[end]["device"];
            device["name"] = json!("mlx5_0");
            device["provider"] = json!("mlx5_core");
            device["is_software"] = json!(false);
        }
        for row in document["results"].as_array_mut().expect("a list") {
            // Whatever the recording machine did: narrow intervals, and sleeping that leaves the core.
            row["uncertainty"]["median_interval_ns"] = json!(1.0);
            if row["point"]["wait"] == "events" {
                row["cpu"]["client"]["cpu_ns"] = json!(1000);
            }
            if row["transport"] == "rdma" && of_reads {
                row["cpu"]["server"]["ns_per_message"] = json!(0.1);
            }
        }
    }
    for slope in value["slopes"].as_array_mut().expect("a list") {
        let rdma = slope["transport"] == "rdma";
        slope["interval"] = if rdma { json!([-0.001, 0.001]) } else { json!([0.1, 0.2]) };
    }
    for audit in value["audits"].as_array_mut().expect("a list") {
        for run in audit["runs"].as_array_mut().expect("a list") {
            if run["transport"] == "rdma" {
                for end in ["client", "server"] {
                    run[end]["system_calls"]["per_message"] = json!(3.001);
                    // What looks around and finds nothing is slowed down by who traces it, and is no part of a message.
                    run[end]["system_calls"]["found_nothing_per_message"] = json!(3.0);
                }
            }
        }
    }
    change(&mut value);
    claims(&serde_json::from_value::<Explanation>(value).expect("it is an explanation"))
}

fn verdict(claims: &[verbmark::tool::explain::Claim], name: &str) -> (Verdict, String) {
    let claim = claims.iter().find(|claim| claim.name == name).expect("it is one of them");
    assert!(!claim.evidence.is_empty(), "{name} stands on nothing");
    (claim.verdict, claim.reason.clone().unwrap_or_default())
}

#[test]
fn on_hardware_a_claim_stands_as_long_as_its_evidence_does() {
    let all = on_hardware(|_| ());
    for name in
        ["kernel_bypass", "zero_copy", "tcp_cost_per_byte", "one_sided", "lower_latency", "polling_over_rdma"]
    {
        assert_eq!(verdict(&all, name), (Verdict::Shown, String::new()), "{name}");
    }
    type Change = fn(&mut Value);
    let changes: [(&str, Change, &str); 10] = [
        (
            "kernel_bypass",
            |v| v["audits"][0]["runs"][0]["client"]["system_calls"]["per_message"] = json!(4.0),
            "client makes 1",
        ),
        (
            "kernel_bypass",
            |v| v["audits"][0]["runs"][0]["server"]["system_calls"] = json!(null),
            "server's system calls were not counted",
        ),
        (
            "kernel_bypass",
            |v| v["scenes"][0]["document"]["remote"]["device"]["is_software"] = json!(null),
            "",
        ),
        ("zero_copy", |v| v["slopes"][0]["interval"] = json!([0.01, 0.03]), "not flat"),
        ("zero_copy", |v| v["slopes"][1]["interval"] = json!([-0.1, 0.1]), "not flat"),
        ("tcp_cost_per_byte", |v| v["slopes"][2]["interval"] = json!([-0.1, 0.2]), "includes 0"),
        (
            "lower_latency",
            |v| v["scenes"][0]["document"]["results"][0]["latency_ns"]["p50"] = json!(null),
            "too few messages of 64 B",
        ),
        (
            "polling_over_rdma",
            |v| v["scenes"][0]["document"]["results"][2]["uncertainty"]["median_interval_ns"] = json!(1e9),
            "not further apart",
        ),
        (
            "polling_over_rdma",
            |v| {
                v["scenes"][0]["document"]["results"][2]["cpu"]["client"]["cpu_ns"] =
                    json!(900_000_000_000u64)
            },
            "no more of a core",
        ),
        ("lower_latency", |v| v["scenes"][0]["document"]["same_host"] = json!(true), "on one host"),
    ];
    for (name, change, part) in changes {
        let (verdict, reason) = verdict(&on_hardware(change), name);
        assert_eq!(verdict, Verdict::Withheld, "{name}");
        assert!(reason.contains(part), "{name}: {reason}");
    }
}
