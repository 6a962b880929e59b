//! The results as CSV: one row a result, one fixed set of columns.
//!
//! A column is a path in the JSON document with its dots written `_`, and a cell is what JSON has there. So the two cannot
//! disagree, and what `docs/formats.md` says of one holds for the other.

use serde_json::Value;

use crate::error::{Error, Step};
use crate::result::Document;

/// Paths from the document's root: the same in every row of a run.
const RUN: &[&str] = &[
    "schema",
    "run_id",
    "started_at",
    "tool.version",
    "tool.binary",
    "labels",
    "status",
    "error.step",
    "error.message",
    "test.op",
    "test.shape",
    "test.connection",
    "local.side",
    "local.host",
    "local.device.name",
    "local.device.provider",
    "remote.host",
    "remote.device.name",
    "remote.device.provider",
    "same_host",
];

/// Paths from a result.
const ROW: &[&str] = &[
    "id",
    "transport",
    "point.size_bytes",
    "point.qps",
    "point.depth",
    "point.threads",
    "point.wait",
    "point.direction",
    "point.offered_per_s",
    "size_bytes",
    "measured_by",
    "messages",
    "sent",
    "received",
    "lost",
    "late_replies",
    "start_s",
    "window_s",
    "achieved_per_s",
    "late",
    "latency_ns.basis",
    "latency_ns.samples",
    "latency_ns.min",
    "latency_ns.p50",
    "latency_ns.p90",
    "latency_ns.p99",
    "latency_ns.p99_9",
    "latency_ns.p99_99",
    "latency_ns.max",
    "latency_ns.mean",
    "latency_ns.stdev",
    "bandwidth.bytes_per_s",
    "bandwidth.messages_per_s",
    "bandwidth.interval_min_bytes_per_s",
    "overlap.share",
    "overlap.offset_ns",
    "overlap.uncertainty_ns",
    "limited_by",
    "uncertainty.clock_ns",
    "uncertainty.loop_ns",
    "uncertainty.quantisation",
    "uncertainty.calibration_ppm",
    "uncertainty.median_interval_ns",
    "cpu.client.cpu_ns",
    "cpu.client.user_ns",
    "cpu.client.system_ns",
    "cpu.client.ns_per_message",
    "cpu.client.user_ns_per_message",
    "cpu.client.system_ns_per_message",
    "cpu.client.ns_per_byte",
    "cpu.client.user_ns_per_byte",
    "cpu.client.system_ns_per_byte",
    "cpu.client.voluntary_switches",
    "cpu.client.involuntary_switches",
    "cpu.client.page_faults",
    "cpu.client.empty_polls",
    "cpu.client.idle_share",
    "cpu.client.instructions",
    "cpu.client.cycles",
    "cpu.client.counts_user_only",
    "cpu.client.system_calls",
    "cpu.client.machine.window_s",
    "cpu.client.machine.softirq_ns",
    "cpu.client.machine.irq_ns",
    "cpu.client.machine.system_ns",
    "cpu.client.machine.user_ns",
    "cpu.client.machine.steal_ns",
    "cpu.server.cpu_ns",
    "cpu.server.user_ns",
    "cpu.server.system_ns",
    "cpu.server.ns_per_message",
    "cpu.server.user_ns_per_message",
    "cpu.server.system_ns_per_message",
    "cpu.server.ns_per_byte",
    "cpu.server.user_ns_per_byte",
    "cpu.server.system_ns_per_byte",
    "cpu.server.voluntary_switches",
    "cpu.server.involuntary_switches",
    "cpu.server.page_faults",
    "cpu.server.empty_polls",
    "cpu.server.idle_share",
    "cpu.server.instructions",
    "cpu.server.cycles",
    "cpu.server.counts_user_only",
    "cpu.server.system_calls",
    "cpu.server.machine.window_s",
    "cpu.server.machine.softirq_ns",
    "cpu.server.machine.irq_ns",
    "cpu.server.machine.system_ns",
    "cpu.server.machine.user_ns",
    "cpu.server.machine.steal_ns",
    "validity.ok",
    "validity.reasons",
];

/// Each column's name and the path it shows; paths from a result begin with `results[].`.
pub fn columns() -> impl Iterator<Item = (String, String)> {
    let run = RUN.iter().map(|path| (name(path), (*path).into()));
    run.chain(ROW.iter().map(|path| (name(path), format!("results[].{path}"))))
}

/// The name of the column that shows `path`.
fn name(path: &str) -> String {
    path.replace('.', "_")
}

/// A header and one row a result. A run without results has one row all the same, which says how it ended.
///
/// # Errors
/// The document cannot be written.
pub fn to_string(document: &Document) -> Result<String, Error> {
    rows(&serde_json::to_value(document).map_err(|e| broken(&e))?, RUN, ROW)
}

/// The same of any document that has `results`: the values at paths from its root, and from each result.
///
/// # Errors
/// The rows cannot be written.
pub fn rows(run: &Value, of_run: &[&str], of_row: &[&str]) -> Result<String, Error> {
    let none = [Value::Null];
    let rows = run["results"].as_array().filter(|rows| !rows.is_empty()).map_or(&none[..], Vec::as_slice);

    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(of_run.iter().chain(of_row).map(|path| name(path))).map_err(|e| broken(&e))?;
    for row in rows {
        let cells =
            of_run.iter().map(|path| cell(run, path)).chain(of_row.iter().map(|path| cell(row, path)));
        writer.write_record(cells).map_err(|e| broken(&e))?;
    }
    let bytes = writer.into_inner().map_err(|e| broken(&e))?;
    String::from_utf8(bytes).map_err(|e| broken(&e))
}

fn broken(cause: &dyn std::fmt::Display) -> Error {
    Error::failed(Step::Output, format!("cannot write CSV: {cause}"))
}

/// The value at `path` as text: nothing for `null`, a list of texts separated by `; `, an object as JSON.
fn cell(root: &Value, path: &str) -> String {
    match path.split('.').fold(root, |value, key| &value[key]) {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let texts: Vec<_> =
                items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), Into::into)).collect();
            texts.join("; ")
        }
        other => other.to_string(),
    }
}
