//! The schemas of `docs`, as readers of documents use them and as this suite does, which knows every key.

use std::collections::BTreeSet;

use jsonschema::Validator;
use serde_json::{Map, Value, json};

pub fn schema() -> Value {
    serde_json::from_str(include_str!("../../../docs/result.schema.json")).expect("the schema is JSON")
}

/// `docs/devices.schema.json`, as [`schema`] is that of a run.
pub fn of_devices() -> Value {
    serde_json::from_str(include_str!("../../../docs/devices.schema.json")).expect("the schema is JSON")
}

/// `docs/doctor.schema.json`, likewise.
pub fn of_doctors() -> Value {
    serde_json::from_str(include_str!("../../../docs/doctor.schema.json")).expect("the schema is JSON")
}

/// `docs/audit.schema.json`, likewise.
pub fn of_audits() -> Value {
    serde_json::from_str(include_str!("../../../docs/audit.schema.json")).expect("the schema is JSON")
}

/// `docs/explain.schema.json`, likewise.
pub fn of_explanations() -> Value {
    serde_json::from_str(include_str!("../../../docs/explain.schema.json")).expect("the schema is JSON")
}

/// `docs/registration.schema.json`, likewise.
pub fn of_registration() -> Value {
    serde_json::from_str(include_str!("../../../docs/registration.schema.json")).expect("the schema is JSON")
}

/// `docs/compare.schema.json`, likewise.
pub fn of_comparisons() -> Value {
    serde_json::from_str(include_str!("../../../docs/compare.schema.json")).expect("the schema is JSON")
}

/// `docs/gate.schema.json`, likewise.
pub fn of_gates() -> Value {
    serde_json::from_str(include_str!("../../../docs/gate.schema.json")).expect("the schema is JSON")
}

/// What a reader validates with: keys it does not know are fine.
pub fn for_readers() -> Validator {
    jsonschema::draft202012::new(&schema()).expect("the schema is a schema")
}

/// What this suite validates with: a key that is not described is an error.
pub fn closed() -> Validator {
    strict(schema())
}

/// A schema with no room for keys that it does not describe.
pub fn strict(mut schema: Value) -> Validator {
    close(&mut schema);
    jsonschema::draft202012::new(&schema).expect("the schema is a schema")
}

/// Every subschema that has `properties` forbids others.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            // Conditions repeat only the keys they are about.
            let conditions = ["if", "then", "else", "oneOf", "allOf"];
            map.iter_mut()
                .filter(|(key, _)| !conditions.contains(&key.as_str()))
                .for_each(|(_, inner)| close(inner));
            // A key named `properties` would be told from the keyword by not holding schemas; there is none.
            if map.contains_key("properties") && map.contains_key("required") {
                // A document within a document has a schema of its own, and says so by leaving room.
                map.entry("additionalProperties").or_insert(json!(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// What is wrong with a document, with the place of each error.
pub fn errors(validator: &Validator, value: &Value) -> Vec<String> {
    validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// Reads a document, holds it to its schema, and each `null` of it to an entry in `missing`, but for those keys of an object
/// that `may_be_null` lets go.
#[track_caller]
pub fn explained(text: &str, schema: Value, may_be_null: fn(&Map<String, Value>, &str) -> bool) -> Value {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let errors = errors(&strict(schema), &value);
    assert!(errors.is_empty(), "{errors:#?} in {text}");
    let mut nulls = BTreeSet::new();
    collect_nulls(&value, "", may_be_null, &mut nulls);
    let missing = value["missing"].as_array().expect("a list");
    let path = |entry: &Value| entry["path"].as_str().expect("a path").to_owned();
    let explained: BTreeSet<String> = missing.iter().map(path).collect();
    assert_eq!(explained, nulls, "what is null, and what is explained");
    value
}

fn collect_nulls(
    value: &Value,
    path: &str,
    may_be_null: fn(&Map<String, Value>, &str) -> bool,
    nulls: &mut BTreeSet<String>,
) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                if !(inner.is_null() && may_be_null(map, key)) {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    collect_nulls(inner, &path, may_be_null, nulls);
                }
            }
        }
        Value::Array(items) => {
            let each = items.iter().enumerate();
            each.for_each(|(index, inner)| {
                collect_nulls(inner, &format!("{path}[{index}]"), may_be_null, nulls)
            });
        }
        Value::Null => drop(nulls.insert(path.into())),
        _ => {}
    }
}
