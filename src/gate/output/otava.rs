//! A history as CSV, with the configuration by which Apache Otava reads it and looks for change points.
//!
//! One row a sitting: the stored ones in order, then the candidate's own. A column is a series, and a cell the median of
//! that sitting's runs, in the unit of documents: ns, bytes a second, messages a second, ns a message. Columns keep their
//! names from gate to gate, so that rows of several files can stand below each other where their headers are equal.

use serde_json::json;

use super::series::{candidate, median_of, name};
use super::words::printable;
use crate::error::{Error, Result, Step};
use crate::gate::compare::Better;
use crate::gate::document::{Form, Gate, Series};

/// The label that names a version of what is measured.
const COMMIT: &str = "commit";

/// Columns before those of the series: when a sitting began (RFC 3339, UTC), its name, and its label `commit`.
pub const ATTRIBUTES: [&str; 3] = ["time", "sitting", COMMIT];

/// The CSV.
///
/// # Errors
/// The rows cannot be written.
pub fn to_string(gate: &Gate) -> Result<String> {
    let broken =
        |cause: &dyn std::fmt::Display| Error::failed(Step::Output, format!("cannot write CSV: {cause}"));
    let mut writer = csv::Writer::from_writer(Vec::new());
    let names = gate.series.iter().map(name);
    let header: Vec<_> = ATTRIBUTES.iter().map(|&name| name.to_owned()).chain(names).collect();
    writer.write_record(header).map_err(|e| broken(&e))?;
    for row in rows(gate) {
        writer.write_record(row).map_err(|e| broken(&e))?;
    }
    let bytes = writer.into_inner().map_err(|e| broken(&e))?;
    String::from_utf8(bytes).map_err(|e| broken(&e))
}

fn rows(gate: &Gate) -> Vec<Vec<String>> {
    let commit = |labels: &std::collections::BTreeMap<String, String>| {
        labels.get(COMMIT).map(|commit| printable(commit)).unwrap_or_default()
    };
    let mut rows: Vec<_> = gate
        .sittings
        .iter()
        .enumerate()
        .map(|(index, sitting)| {
            let about = [sitting.started_at.clone(), printable(&sitting.name), commit(&sitting.labels)];
            let values = gate.series.iter().map(|series| cell(stored(gate, series, index)));
            about.into_iter().chain(values).collect()
        })
        .collect();
    let about = [gate.started_at.clone(), "candidate".to_owned(), commit(&gate.labels)];
    rows.push(about.into_iter().chain(gate.series.iter().map(|series| cell(candidate(series)))).collect());
    rows
}

/// The median of a stored sitting, where it has the metric.
fn stored(gate: &Gate, series: &Series, index: usize) -> Option<f64> {
    // In the other forms there is one list, of a baseline that no row is about.
    let of_sittings = gate.form == Form::Sittings && series.values_a.len() == gate.sittings.len();
    series.values_a.get(index).filter(|_| of_sittings).and_then(|values| median_of(values))
}

fn cell(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// The configuration in YAML: each test of the gate is one of Otava's, with its columns and their directions. `file` is the
/// CSV as Otava is to find it. Otava refuses a column with an empty cell, so one that a sitting lacks is left out.
pub fn configuration(gate: &Gate, file: &str) -> String {
    let is_whole = |series: &Series| {
        let stored = (0..gate.sittings.len()).all(|index| stored(gate, series, index).is_some());
        stored && candidate(series).is_some()
    };
    let mut yaml = String::from("tests:\n");
    for test in &gate.tests {
        let series: Vec<_> =
            gate.series.iter().filter(|series| series.test == test.name && is_whole(series)).collect();
        if series.is_empty() {
            continue;
        }
        yaml += &format!("  {}:\n    type: csv\n    file: {}\n", quoted(&test.name), quoted(file));
        yaml += "    time_column: time\n    attributes: [sitting, commit]\n    metrics:\n";
        for series in series {
            let direction = if series.better == Better::Lower { -1 } else { 1 };
            yaml += &format!("      {}: {{ direction: {direction}, scale: 1 }}\n", quoted(&name(series)));
        }
    }
    if yaml.ends_with("tests:\n") { "tests: {}\n".into() } else { yaml }
}

/// A text as YAML has it between double quotes, which is as JSON has it.
fn quoted(text: &str) -> String {
    json!(printable(text)).to_string()
}
