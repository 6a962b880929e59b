//! A history as CSV, with the configuration by which Apache Otava reads it and looks for change points.
//!
//! One row a sitting: the stored ones in order, then the candidate's own. A column is a series, and a cell the median of
//! that sitting's runs, in the unit of documents: ns, bytes a second, messages a second, ns a message. Columns keep their
//! names from gate to gate, so that rows of several files can stand below each other where their headers are equal.
//!
//! Otava refuses to read a test of which one cell is empty, and finds nothing in a column of which one cell is no number.
//! So the configuration has as many columns as most sittings have together, and the few sittings that lack one of these
//! are no rows; a comment says which.

use std::collections::BTreeMap;

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

/// What of a history Otava can read.
struct Choice<'a> {
    /// Series that every row has.
    columns: Vec<&'a Series>,
    /// The others, and why.
    left_out: Vec<(&'a Series, String)>,
    /// Stored sittings that are rows.
    rows: Vec<usize>,
}

/// Takes series one after the other, first those that most sittings have, as long as two thirds of the sittings have them
/// together with those before. A sitting that measured none of them does not count.
fn choice(gate: &Gate) -> Choice<'_> {
    let has = |series: &Series, sitting: usize| stored(gate, series, sitting).is_some();
    let all: Vec<usize> = (0..gate.sittings.len())
        .filter(|&sitting| gate.series.iter().any(|series| has(series, sitting)))
        .collect();
    let lacking = |series: &Series| all.iter().filter(|&&sitting| !has(series, sitting)).count();
    let mut sorted: Vec<&Series> = gate.series.iter().collect();
    sorted.sort_by_key(|series| lacking(series));
    let mut rows = all.clone();
    let mut left_out = Vec::new();
    for series in sorted {
        let left: Vec<usize> = rows.iter().copied().filter(|&sitting| has(series, sitting)).collect();
        if candidate(series).is_none() {
            left_out.push((series, "the candidate lacks it".to_owned()));
        } else if 3 * left.len() < 2 * all.len() {
            left_out.push((series, format!("{} of {} sittings lack it", lacking(series), all.len())));
        } else {
            rows = left;
        }
    }
    let is_column = |series: &&Series| !left_out.iter().any(|(other, _)| other.is_same(series));
    Choice { columns: gate.series.iter().filter(is_column).collect(), left_out, rows }
}

fn rows(gate: &Gate) -> Vec<Vec<String>> {
    let commit = |labels: &BTreeMap<String, String>| {
        labels.get(COMMIT).map(|commit| printable(commit)).unwrap_or_default()
    };
    let row = |sitting: usize| {
        let facts = &gate.sittings[sitting];
        let about = [facts.started_at.clone(), printable(&facts.name), commit(&facts.labels)];
        about
            .into_iter()
            .chain(gate.series.iter().map(|series| cell(stored(gate, series, sitting))))
            .collect()
    };
    let mut rows: Vec<_> = choice(gate).rows.into_iter().map(row).collect();
    let about = [gate.started_at.clone(), "candidate".to_owned(), commit(&gate.labels)];
    rows.push(about.into_iter().chain(gate.series.iter().map(|series| cell(candidate(series)))).collect());
    rows
}

/// The median of a stored sitting, where it has the metric.
fn stored(gate: &Gate, series: &Series, sitting: usize) -> Option<f64> {
    // In the other forms there is one list, of a baseline that no row is about.
    let of_sittings = gate.form == Form::Sittings && series.values_a.len() == gate.sittings.len();
    series.values_a.get(sitting).filter(|_| of_sittings).and_then(|values| median_of(values))
}

fn cell(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// The configuration in YAML: each test of the gate is one of Otava's, with its columns and their directions. `file` is the
/// CSV as Otava is to find it.
pub fn configuration(gate: &Gate, file: &str) -> String {
    let choice = choice(gate);
    let mut yaml = String::new();
    if !choice.left_out.is_empty() {
        yaml += "# Columns of the CSV that are left out, since Otava reads no column with an empty cell:\n";
    }
    for (series, why) in &choice.left_out {
        yaml += &format!("#   {}: {why}\n", name(series));
    }
    let not_rows = (0..gate.sittings.len()).filter(|sitting| !choice.rows.contains(sitting));
    let not_rows: Vec<_> = not_rows.map(|sitting| printable(&gate.sittings[sitting].name)).collect();
    if !not_rows.is_empty() {
        yaml += "# Sittings that are no rows of the CSV, since they lack a column that the others have:\n";
    }
    not_rows.iter().for_each(|name| yaml += &format!("#   {name}\n"));
    let mut tests = String::new();
    for test in &gate.tests {
        let mut columns = choice.columns.iter().filter(|series| series.test == test.name).peekable();
        if columns.peek().is_none() {
            continue;
        }
        tests += &format!("  {}:\n    type: csv\n    file: {}\n", quoted(&test.name), quoted(file));
        tests += "    time_column: time\n    attributes: [sitting, commit]\n    metrics:\n";
        for series in columns {
            let direction = if series.better == Better::Lower { -1 } else { 1 };
            tests += &format!("      {}: {{ direction: {direction}, scale: 1 }}\n", quoted(&name(series)));
        }
    }
    yaml + &if tests.is_empty() { "tests: {}\n".to_owned() } else { format!("tests:\n{tests}") }
}

/// A text as YAML has it between double quotes, which is as JSON has it.
fn quoted(text: &str) -> String {
    json!(printable(text)).to_string()
}
