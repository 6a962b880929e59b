//! `verbmark devices`: what it says of a machine's ports, to people and to programs. The tables stand in
//! `tests/devices`; `UPDATE_TABLES=1 cargo test --test behaviour devices::` writes them anew.

use crate::schema;
use crate::suite;

use std::path::Path;

use crate::suite::{Files, Finished, Running, TOOL, at, misbehaving, text};
use serde_json::{Value, json};
use verbmark::tool::devices::{Listing, render};

/// Hardware with a port that is down, a device that may not be opened, iWARP, and software without an IP address.
const SEVERAL: &str = include_str!("../devices/several.json");

/// Keys that are `null` where there is nothing to say, and need no reason.
const MAY_BE_NULL: &[&str] = &["error", "advice", "remedy"];

/// Holds a document to the schema, and each `null` of it to a reason.
#[track_caller]
fn document(text: &str) -> Value {
    schema::explained(text, schema::of_devices(), |map, key| {
        let ethernet = map.get("link_layer") == Some(&json!("Ethernet"));
        let infiniband = map.get("type") == Some(&json!("IB"));
        MAY_BE_NULL.contains(&key) || key == "lid" && ethernet || key == "netdev" && infiniband
    })
}

fn devices(options: &str) -> Finished {
    suite::run(TOOL, &format!("devices {options}"))
}

fn misbehaving_devices(how: &str, options: &str) -> Finished {
    Running::start(misbehaving(suite::line(TOOL, &format!("devices {options}")), how)).finish()
}

#[test]
fn the_schema_is_valid_itself() {
    jsonschema::meta::validate(&schema::of_devices()).expect("draft 2020-12");
}

#[test]
fn the_schema_sees_what_is_wrong() {
    let validator = schema::strict(schema::of_devices());
    let good: Value = serde_json::from_str(SEVERAL).unwrap();
    for (place, wrong) in [
        ("/schema", json!("verbmark.devices/2")),
        ("/devices/0/provider_kind", json!("real")),
        ("/devices/0/node_guid", json!("0x0c42a10300651f3a")),
        ("/devices/0/limits", Value::Null),
        ("/devices/0/ports/0/state", json!("down")),
        ("/devices/0/ports/1/usable", json!(true)),
        ("/devices/0/ports/0/lid", json!(3)),
        ("/devices/0/ports/0/active_mtu_bytes", json!(1500)),
        ("/devices/0/ports/0/unknown_key", json!(1)),
    ] {
        let mut value = good.clone();
        let (parent, key) = place.rsplit_once('/').unwrap();
        value.pointer_mut(parent).unwrap()[key] = wrong;
        assert!(!validator.is_valid(&value), "{place}");
    }
}

#[test]
fn a_listing_is_read_as_it_is_written() {
    let value = document(SEVERAL);
    let listing: Listing = serde_json::from_str(SEVERAL).unwrap();
    assert_eq!(serde_json::to_value(&listing).unwrap(), value);
}

#[test]
fn tables_are_those_on_file_and_no_wider_than_they_may_be() {
    let listing: Listing = serde_json::from_str(SEVERAL).unwrap();
    for width in [None, Some(80), Some(60)] {
        let table = render(&listing, width);
        let suffix = width.map(|width| format!("-{width}")).unwrap_or_default();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/devices/several{suffix}.txt"));
        if std::env::var_os("UPDATE_TABLES").is_some() {
            std::fs::write(&path, &table).expect("the tables are part of the source tree");
        }
        assert_eq!(table, std::fs::read_to_string(&path).unwrap_or_default(), "{}", path.display());
        let widest = table.lines().map(str::len).max().unwrap_or_default();
        assert!(width.is_none_or(|width| widest <= width), "{widest} columns in\n{table}");
    }
}

#[test]
fn every_device_and_port_is_told_to_people_and_programs() {
    let listed = devices("--json").exits(0);
    assert!(listed.stderr.is_empty(), "{}", listed.stderr);
    let value = document(&listed.stdout);
    let table = devices("").exits(0).stdout;
    for device in at(&value, "/devices").as_array().unwrap() {
        let name = text(device, "/name");
        assert!(table.contains(name), "{name} in {table}");
        for port in at(device, "/ports").as_array().unwrap() {
            let line = format!("{name}/{}", at(port, "/number"));
            assert!(table.lines().any(|told| told.starts_with(&line)), "{line} in {table}");
            for gid in at(port, "/gids").as_array().into_iter().flatten() {
                assert!(table.contains(text(gid, "/address")), "{gid} in {table}");
            }
        }
    }
    let real = at(&value, "/devices").as_array().unwrap().iter().any(|device| device["emulated"] == false);
    assert_eq!(at(&value, "/advice").is_null(), real, "advice is for machines without a device");
    assert_eq!(table.contains("--tcp-only"), !real, "{table}");
}

#[test]
fn the_emulated_devices_are_marked_and_never_offered() {
    let value = document(&devices("--json").exits(0).stdout);
    let emulated =
        at(&value, "/devices").as_array().unwrap().iter().filter(|device| device["emulated"] == true);
    let names: Vec<_> = emulated
        .map(|device| {
            assert_eq!(text(device, "/provider_kind"), "software");
            assert_eq!(at(device, "/ports/0/usable"), &json!(false));
            assert_eq!(text(device, "/ports/0/reason/code"), "emulated");
            text(device, "/name")
        })
        .collect();
    assert_eq!(names, ["emu0", "emu1"]);
    let table = devices("-d emu0").exits(0).stdout;
    assert!(table.contains("EMULATED") && !table.contains("emu1"), "{table}");
}

#[test]
fn what_is_in_the_way_is_named_with_what_to_do() {
    for (how, code, part) in [
        ("port-down", "not_active", "ip link set"),
        ("no-memlock", "memory", "RLIMIT_MEMLOCK"),
        ("", "emulated", "--loopback"),
    ] {
        let value = document(&misbehaving_devices(how, "-d emu0 --json").exits(0).stdout);
        let port = at(&value, "/devices/0/ports/0");
        assert_eq!(text(port, "/reason/code"), code, "{how}");
        assert_eq!(at(port, "/usable"), &json!(false));
        let table = misbehaving_devices(how, "-d emu0").exits(0).stdout;
        assert!(table.contains(part), "{how}: {table}");
    }
}

#[test]
fn a_device_that_cannot_be_opened_is_listed_all_the_same() {
    let value = document(&misbehaving_devices("nonsense", "-d emu0 --json").exits(0).stdout);
    assert!(text(&value, "/devices/0/error/message").contains("emu0"));
    let table = misbehaving_devices("nonsense", "-d emu0").exits(0).stdout;
    assert!(table.contains("VERBMARK_EMULATED"), "{table}");
}

#[test]
fn a_device_that_is_not_there_is_a_failure_and_has_a_document() {
    let none = devices("-d nosuch0 --json").exits(5).says(&["nosuch0", "emu0"]);
    let value = document(&none.stdout);
    assert!(text(&value, "/error/message").contains("nosuch0"));
    assert!(devices("-d nosuch0").exits(5).stdout.is_empty());
}

#[test]
fn a_file_is_written_beside_the_table() {
    let files = Files::new();
    let mut command = suite::line(TOOL, "devices --json");
    command.arg(files.path("devices.json"));
    let run = Running::start(command).finish().exits(0);
    assert!(run.stdout.contains("emu0"), "{}", run.stdout);
    document(&std::fs::read_to_string(files.path("devices.json")).unwrap());
    devices("--json /nowhere/devices.json").exits(2).says(&["/nowhere/devices.json"]);
}
