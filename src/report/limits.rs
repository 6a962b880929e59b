//! The limits of a run in words: each that failed or could not be judged, or that all hold.

use super::numbers::{NONE, significant};
use crate::result::{Document, LimitResult, LimitVerdict};
use crate::units::{format_rate, format_size};

/// A line for each limit that did not pass at a point; one in all when every one did; none without limits.
pub fn lines(document: &Document) -> Vec<String> {
    let failing = document.limits.iter().filter(|limit| limit.verdict != LimitVerdict::Pass);
    let lines: Vec<_> = failing.map(|limit| line(document, limit)).collect();
    match document.limits.len() {
        judged if judged > 0 && lines.is_empty() => vec![format!("{judged} of {judged} passed")],
        _ => lines,
    }
}

fn line(document: &Document, limit: &LimitResult) -> String {
    let place = place(document, limit).map(|place| format!(" at {place}")).unwrap_or_default();
    outcome(limit, &place)
}

/// A limit in words; `place` is said after it.
pub fn outcome(limit: &LimitResult, place: &str) -> String {
    let name = &limit.limit;
    let by = significant(limit.by_percent, 9);
    let [value, bound] = [limit.value, limit.bound].map(|value| shown(value, &limit.unit));
    let side = if limit.value > limit.bound { "above" } else { "below" };
    match limit.verdict {
        LimitVerdict::NotEvaluated => {
            let reason = limit.reason.as_deref().unwrap_or("no reason is given");
            format!("{name} NOT EVALUATED{place}: {reason}")
        }
        LimitVerdict::Pass => format!("{name} passed{place}: {value}, {by} % {side} {bound}"),
        LimitVerdict::Fail => format!("{name} FAILED{place}: {value}, {by} % {side} {bound}"),
    }
}

/// The row in the words of the table.
fn place(document: &Document, limit: &LimitResult) -> Option<String> {
    let id = limit.point.as_ref()?;
    let Some(row) = document.results.iter().find(|row| row.id == *id) else { return Some(id.clone()) };
    let compares = document.test.as_ref().is_some_and(|test| test.compare_waits);
    let rate = row.point.offered_per_s.map(|rate| format!(", {}/s", format_rate(rate))).unwrap_or_default();
    Some(format!("{} {}{rate}", format_size(row.size_bytes), row.path(compares)))
}

fn shown(value: Option<f64>, unit: &str) -> String {
    let (scale, suffix) = match unit {
        "ns" => (1e-3, " us"),
        "bytes_per_s" => (8e-9, " Gb/s"),
        "messages_per_s" => (1.0, "/s"),
        "ns_per_message" => (1.0, " ns/msg"),
        _ => (1.0, ""),
    };
    match significant(value.map(|value| value * scale), 15) {
        none if none == NONE => none,
        number => number + suffix,
    }
}
