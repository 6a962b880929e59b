//! The document itself, held to its schema.

use serde_json::{Value, json};

use super::sample;

#[path = "../../../../tests/behaviour/schema/mod.rs"]
#[allow(dead_code)]
mod schema;

fn described() -> Value {
    serde_json::from_str(include_str!("../../../../docs/gate.schema.json")).expect("the schema is JSON")
}

#[test]
fn the_schema_is_valid_itself() {
    jsonschema::meta::validate(&described()).expect("draft 2020-12");
}

#[test]
fn every_form_of_gate_is_as_the_schema_describes_it() {
    let validator = schema::strict(described());
    for (name, gate) in sample::all() {
        let value = serde_json::to_value(&gate).unwrap();
        let errors = schema::errors(&validator, &value);
        assert!(errors.is_empty(), "{name}: {errors:#?} in {value:#}");
    }
}

#[test]
fn the_schema_refuses_what_no_gate_writes() {
    let validator = schema::strict(described());
    let good = serde_json::to_value(sample::turns()).unwrap();
    for (place, wrong) in [
        ("/form", json!("turn")),
        ("/verdict", json!("worse")),
        ("/exit_status", json!(2.5)),
        ("/error", json!({"message": "without a step"})),
        ("/status", json!("failed")),
        ("/arms/0/arm", json!("C")),
        ("/order/0", json!("a")),
        ("/tests/0/fingerprint/kernel", json!(6)),
        ("/series/0/metric", json!("p98")),
        ("/series/0/median_a", json!(-1)),
        ("/series/0/unit", json!("us")),
        ("/series/0/values_a", json!([1.0])),
        ("/series/0/point/wait", json!("sleep")),
        ("/series/0/another", json!(1)),
        ("/limits/0/verdict", json!("ok")),
        ("/self_test", json!({"rounds": 1, "series": []})),
        ("/another", json!(1)),
    ] {
        let mut value = good.clone();
        match value.pointer_mut(place) {
            Some(found) => *found = wrong,
            None => {
                let (parent, key) = place.rsplit_once('/').unwrap();
                value.pointer_mut(parent).unwrap()[key] = wrong;
            }
        }
        assert!(!schema::errors(&validator, &value).is_empty(), "{place} may be anything");
    }
}
