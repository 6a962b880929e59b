//! The results as CSV, in the way of the other tests.

use serde_json::Value;

use super::Document;
use crate::error::{Error, Step};
use crate::report::csv;

/// Paths from the document's root.
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
    "test.memory",
    "local.host",
    "local.buffers.page_bytes",
    "local.device.name",
    "local.device.provider",
];

/// Paths from a result.
const ROW: &[&str] = &[
    "id",
    "operation",
    "size_bytes",
    "pages",
    "paging",
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
    "break_even.uses",
];

/// A header and one row a result; the break-even stands with the registration.
///
/// # Errors
/// The document cannot be written.
pub fn to_string(document: &Document) -> Result<String, Error> {
    let mut run = serde_json::to_value(document)
        .map_err(|cause| Error::failed(Step::Output, format!("cannot write CSV: {cause}")))?;
    let found = run["break_even"].take();
    for row in run["results"].as_array_mut().into_iter().flatten() {
        let own = found.as_array().into_iter().flatten().find(|found| found["register"] == row["id"]);
        row["break_even"] = own.cloned().unwrap_or(Value::Null);
    }
    csv::rows(&run, RUN, ROW)
}
