//! JSON for `github-action-benchmark`, as its tools `customSmallerIsBetter` and `customBiggerIsBetter` read it: a list of
//! names, values and units. That action keeps a history and draws it.

use serde::Serialize;

use super::series::{candidate, name};
use super::words::printable;
use crate::error::{Error, Result, Step};
use crate::gate::compare::Better;
use crate::gate::document::{Gate, Series};

/// One point of a curve.
#[derive(Serialize)]
struct Entry {
    name: String,
    value: f64,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<String>,
    extra: String,
}

/// The candidate's medians of all series of one direction, since the action takes one for all of a file: `Lower` for
/// `customSmallerIsBetter`, latencies and cost, `Higher` for `customBiggerIsBetter`, rates. The action refuses an empty
/// list, which is what a gate without such a series gives.
///
/// # Errors
/// A value that JSON cannot hold.
pub fn to_string(gate: &Gate, better: Better) -> Result<String> {
    let entries: Vec<_> =
        gate.series.iter().filter(|series| series.better == better).filter_map(entry).collect();
    let text = serde_json::to_string_pretty(&entries);
    text.map(|text| text + "\n").map_err(|e| Error::failed(Step::Output, format!("cannot write JSON: {e}")))
}

fn entry(series: &Series) -> Option<Entry> {
    let value = candidate(series)?;
    Some(Entry {
        name: name(series),
        value,
        unit: series.unit,
        range: spread(&series.values_b).map(|half| format!("± {half:.3}")),
        extra: printable(&series.message),
    })
}

/// Half of the distance from the least run to the largest; `None` of one run, which has no spread.
fn spread(values: &[f64]) -> Option<f64> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (values.len() > 1).then(|| (most - least) / 2.0)
}
