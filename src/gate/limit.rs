//! Limits of one run: each metric that has a bound, at every point that was measured.
//!
//! What cannot be judged has not passed: too few samples for a percentile, a link whose rate is only nominal, a ratio that
//! would compare this tool with the kernel.

use super::document::LimitOutcome;
use super::shift::median;
use crate::result::{
    Bound, BoundSide, Direction, Document, LimitResult, LimitSpec, LimitVerdict, Of, Quantity, ResultRow,
    Status, Transport,
};

/// Every limit at every point of a finished document, in order. A limit without a row to judge has one entry, which says so.
pub fn evaluate(document: &Document, limits: &[LimitSpec]) -> Vec<LimitResult> {
    limits.iter().flat_map(|limit| at_every_point(document, limit)).collect()
}

/// Limits of several runs of a test, as [`evaluate`] gave them for each: the median of the values beside the bound. One that
/// could not be judged in a run is not judged at all.
pub fn over_runs(test: &str, runs: &[Vec<LimitResult>]) -> Vec<LimitOutcome> {
    let is_same =
        |one: &LimitResult, other: &LimitResult| (&one.limit, &one.point) == (&other.limit, &other.point);
    // A point may be missing in the first run.
    let mut limits: Vec<&LimitResult> = Vec::new();
    for limit in runs.iter().flatten() {
        if !limits.iter().any(|known| is_same(known, limit)) {
            limits.push(limit);
        }
    }
    let outcome = |limit: &LimitResult| {
        let same = |other: &&LimitResult| is_same(other, limit);
        let all: Vec<&LimitResult> = runs.iter().filter_map(|run| run.iter().find(same)).collect();
        LimitOutcome { test: test.into(), runs: all.len(), result: together(&all, limit) }
    };
    limits.into_iter().map(outcome).collect()
}

/// Limits of a test no run of which came to its end.
pub fn of_none(test: &str, limits: &[LimitSpec]) -> Vec<LimitOutcome> {
    let outcome = |limit: &LimitSpec| LimitOutcome {
        test: test.into(),
        runs: 0,
        result: Found::default().unjudged(limit, "the test was not measured"),
    };
    limits.iter().map(outcome).collect()
}

fn together(all: &[&LimitResult], first: &LimitResult) -> LimitResult {
    if let Some(unjudged) = all.iter().find(|limit| limit.verdict == LimitVerdict::NotEvaluated) {
        return (*unjudged).clone();
    }
    let values: Vec<f64> = all.iter().filter_map(|limit| limit.value).collect();
    let (Some(bound), Ok(spec), false) =
        (first.bound, first.limit.parse::<LimitSpec>(), values.len() < all.len())
    else {
        // Another build wrote it: what cannot be checked is no verdict.
        let reason = Some("its document has no value or no bound for it".to_owned());
        return LimitResult { verdict: LimitVerdict::NotEvaluated, reason, ..first.clone() };
    };
    let value = median(&values);
    LimitResult {
        value: Some(value),
        verdict: verdict(&spec, value, bound),
        by_percent: Some((value / bound - 1.0).abs() * 100.0),
        ..first.clone()
    }
}

fn verdict(limit: &LimitSpec, value: f64, bound: f64) -> LimitVerdict {
    let passes = match limit.side {
        BoundSide::Min => value >= bound,
        BoundSide::Max => value <= bound,
    };
    if passes { LimitVerdict::Pass } else { LimitVerdict::Fail }
}

fn at_every_point(document: &Document, limit: &LimitSpec) -> Vec<LimitResult> {
    let (transport, path) = match limit.of {
        Of::Rdma | Of::Ratio => (Transport::Rdma, "RDMA"),
        Of::Tcp => (Transport::Tcp, "TCP"),
    };
    let rows = document.results.iter().filter(|row| row.transport == transport);
    let mut judged: Vec<_> = rows.map(|row| at(document, limit, row)).collect();
    if matches!(document.status, Status::Failed | Status::Interrupted) {
        judged.push(Found::default().unjudged(limit, "the run ended before every point was measured"));
    } else if judged.is_empty() {
        judged.push(Found::default().unjudged(limit, &format!("no {path} path was measured")));
    }
    judged
}

/// What there is of one point.
#[derive(Debug, Default)]
struct Found {
    point: Option<String>,
    value: Option<f64>,
    bound: Option<f64>,
}

impl Found {
    fn unjudged(self, limit: &LimitSpec, reason: &str) -> LimitResult {
        let Self { point, value, bound } = self;
        LimitResult {
            limit: limit.to_string(),
            point,
            unit: unit(limit).into(),
            value,
            bound,
            verdict: LimitVerdict::NotEvaluated,
            reason: Some(reason.into()),
            by_percent: None,
        }
    }
}

fn at(document: &Document, limit: &LimitSpec, row: &ResultRow) -> LimitResult {
    let bound = match limit.bound {
        Bound::Value(value) => Ok(value),
        Bound::OfLink(share) => link(document, row).map(|rate| share * rate),
    };
    let value = match limit.of {
        Of::Rdma | Of::Tcp => absolute(row, limit.quantity),
        Of::Ratio => ratio(document, limit.quantity, row),
    };
    let point = Some(row.id.clone());
    match (value, bound) {
        (Ok(value), Ok(bound)) if row.validity.ok => LimitResult {
            limit: limit.to_string(),
            point,
            unit: unit(limit).into(),
            value: Some(value),
            bound: Some(bound),
            verdict: verdict(limit, value, bound),
            reason: None,
            by_percent: Some((value / bound - 1.0).abs() * 100.0),
        },
        (value, bound) => {
            let invalid = (!row.validity.ok).then(|| format!("invalid: {}", row.validity.reasons.join("; ")));
            let why = invalid.or_else(|| value.clone().err()).or_else(|| bound.clone().err());
            let found = Found { point, value: value.ok(), bound: bound.ok() };
            found.unjudged(limit, &why.unwrap_or_default())
        }
    }
}

/// The unit of a limit's value in documents.
fn unit(limit: &LimitSpec) -> &'static str {
    if limit.of == Of::Ratio { "ratio" } else { limit.quantity.unit() }
}

/// A value of one row, or why there is none.
fn absolute(row: &ResultRow, quantity: Quantity) -> Result<f64, String> {
    let latency = row.latency_ns.as_ref();
    let bandwidth = row.bandwidth.as_ref();
    let value = match quantity {
        Quantity::Min => latency.map(|l| l.min),
        Quantity::P50 => latency.and_then(|l| l.p50),
        Quantity::P90 => latency.and_then(|l| l.p90),
        Quantity::P99 => latency.and_then(|l| l.p99),
        Quantity::P99_9 => latency.and_then(|l| l.p99_9),
        Quantity::P99_99 => latency.and_then(|l| l.p99_99),
        Quantity::Max => latency.map(|l| l.max),
        Quantity::Mean => latency.map(|l| l.mean),
        Quantity::Bandwidth => bandwidth.and_then(|b| b.bytes_per_s),
        Quantity::Rate => bandwidth.map_or(row.achieved_per_s, |b| b.messages_per_s),
        Quantity::CpuClient => row.cpu.client.and_then(|cpu| cpu.ns_per_message),
        Quantity::CpuServer => row.cpu.server.and_then(|cpu| cpu.ns_per_message),
    };
    value.filter(|value| value.is_finite()).ok_or_else(|| match latency {
        Some(latency) if quantity.is_latency() => {
            format!("too few samples ({}): fewer than 10 lie beyond it", latency.samples)
        }
        _ => "this run has no such value".into(),
    })
}

/// A ratio as the table shows it, or why it shows none.
fn ratio(document: &Document, quantity: Quantity, row: &ResultRow) -> Result<f64, String> {
    let (metric, inverted) = match quantity {
        Quantity::Min => ("latency_ns.min", false),
        Quantity::P50 => ("latency_ns.p50", false),
        Quantity::P90 => ("latency_ns.p90", false),
        Quantity::P99 => ("latency_ns.p99", false),
        Quantity::P99_9 => ("latency_ns.p99_9", false),
        Quantity::P99_99 => ("latency_ns.p99_99", false),
        Quantity::Mean => ("latency_ns.mean", false),
        Quantity::Bandwidth => ("bandwidth.bytes_per_s", true),
        // Not typed: a limit on them is refused as it is read.
        Quantity::Max | Quantity::Rate | Quantity::CpuClient | Quantity::CpuServer => ("", false),
    };
    let compared = document.comparison.iter().find(|of| of.rdma == row.id && of.metric == metric);
    let compared = compared.ok_or_else(|| "no TCP path was measured beside it".to_owned())?;
    let shown = compared.tcp_over_rdma.map(|ratio| if inverted { ratio.recip() } else { ratio });
    shown.filter(|ratio| ratio.is_finite()).ok_or_else(|| {
        if document.is_emulated() {
            "an emulated device has no ratio: its numbers measure this tool, not a network".into()
        } else if compared.rdma_value.is_none() || compared.tcp_value.is_none() {
            "a path has too few samples for it".into()
        } else {
            "the two rows are not comparable".into()
        }
    })
}

/// What the link carries in bytes a second, of both directions where both are measured; or why that is not known.
fn link(document: &Document, row: &ResultRow) -> Result<f64, String> {
    let ends = [("local", &document.local), ("remote", &document.remote)];
    let mut slowest = f64::INFINITY;
    for (name, end) in ends {
        let device = end.as_ref().and_then(|end| end.device.as_ref());
        let device =
            device.ok_or_else(|| format!("the {name} end has no RDMA port, whose rate it would be"))?;
        if device.is_software != Some(false) {
            return Err(format!(
                "{} is not known to be hardware, and its link rate is nominal at best",
                device.name
            ));
        }
        let rate = device.rate_gbps.filter(|rate| *rate > 0.0);
        let rate = rate.ok_or_else(|| format!("the port of {} does not tell its rate", device.name))?;
        slowest = slowest.min(rate);
    }
    let directions = match row.point.direction {
        Direction::Unidirectional => 1.0,
        Direction::Bidirectional => 2.0,
    };
    Ok(directions * slowest * 1e9 / 8.0)
}
