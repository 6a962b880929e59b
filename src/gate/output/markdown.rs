//! Markdown as GitHub shows it, for `$GITHUB_STEP_SUMMARY` or a comment: the verdict, then tables, the worst rows first.
//!
//! GitHub drops a summary above 1 MiB, of all writers of a step together. So this is never above [`LARGEST`], and each
//! section says how many rows it left out.

use std::fmt::Write;

use super::series::{beyond_size, candidate};
use super::words::{self, is_printable};
use crate::gate::compare::Mismatch;
use crate::gate::document::{Gate, LimitOutcome, SelfTestSeries, Series, TestEntry, Trouble};
use crate::gate::message::change;
use crate::gate::verdict::Verdict;
use crate::units::format_size;

/// Most bytes of the text.
pub const LARGEST: usize = 256 << 10;

/// Characters of a cell, or of a line of its own: a name may be of any length.
const LONGEST: usize = 300;

/// The text.
pub fn to_string(gate: &Gate) -> String {
    let mut out = format!("## verbmark gate: {}\n", escaped(&words::headline(gate)));
    if let Some(error) = &gate.error {
        let _ = writeln!(out, "\n**{}**", escaped(&words::error(error)));
    }
    section(&mut out, "Not measured", NOT_MEASURED, gate.tests.iter().filter_map(not_measured));
    let itself = gate.self_test.iter().flat_map(|found| &found.series);
    section(&mut out, "Against itself", SELF_TEST, itself.map(self_test_row));
    let series = worst_first(gate);
    section(&mut out, "Metrics", SERIES, series.iter().map(|series| series_row(series)));
    let mut limits: Vec<_> = gate.limits.iter().collect();
    limits.sort_by_key(|limit| limit.result.verdict.rank());
    section(&mut out, "Limits", LIMIT, limits.into_iter().map(limit_row));
    section(&mut out, "Not measured alike", MISMATCH, gate.mismatches.iter().map(mismatch_row));
    section(&mut out, "Differences that may be", MISMATCH, gate.differences.iter().map(mismatch_row));
    let notes = gate.notes.iter().map(|note| row([note.code.clone(), note.message.clone()]));
    section(&mut out, "Notes", &["code", "note"], notes);
    out
}

const NOT_MEASURED: &[&str] = &["test", "runs of the baseline", "runs of the candidate", "cause", "remedy"];
const SERIES: &[&str] =
    &["test", "size", "path", "metric", "baseline", "candidate", "change [interval]", "verdict"];
const LIMIT: &[&str] = &["test", "limit", "point", "value", "bound", "outcome"];
const MISMATCH: &[&str] = &["test", "field", "end", "baseline", "candidate", "allowed"];
const SELF_TEST: &[&str] =
    &["test", "point", "metric", "run CV", "verdicts", "largest change", "tolerance", "must detect"];

/// A table below its heading, or nothing without rows. It takes half of the room that is left at most, so that every
/// section has some.
fn section(out: &mut String, title: &str, columns: &[&str], rows: impl Iterator<Item = String>) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    let end = out.len() + LARGEST.saturating_sub(out.len()) / 2;
    let _ = write!(out, "\n### {title}\n\n{}|{}\n", row(columns), "---|".repeat(columns.len()));
    let mut left_out = 0;
    for row in rows {
        if left_out > 0 || out.len() + row.len() > end {
            left_out += 1;
        } else {
            *out += &row;
        }
    }
    if left_out > 0 {
        let _ = writeln!(out, "\nand {left_out} more, in the JSON document");
    }
}

/// Those that the job fails for, then those that could not be told, then those that would be worth a look but decide
/// nothing, then the rest.
fn worst_first(gate: &Gate) -> Vec<&Series> {
    let mut sorted: Vec<_> = gate
        .troubles()
        .into_iter()
        .filter_map(|trouble| match trouble {
            Trouble::Series(series) => Some(series),
            Trouble::Limit(_) | Trouble::Test(_) => None,
        })
        .collect();
    let is_trouble = |series: &Series| !series.judgement.advisory && series.judgement.verdict.is_trouble();
    let mut rest: Vec<_> = gate.series.iter().filter(|series| !is_trouble(series)).collect();
    rest.sort_by_key(|series| {
        let found = &series.judgement;
        let rank = match found.verdict {
            Verdict::Inconclusive => 0,
            _ if words::is_advisory_trouble(series) => 1,
            _ => 2,
        };
        (rank, found.advisory)
    });
    sorted.append(&mut rest);
    sorted
}

fn series_row(series: &Series) -> String {
    let found = &series.judgement;
    let show = |value: Option<f64>| value.map_or("-".into(), |value| found.metric.show(value));
    let size: Vec<_> =
        std::iter::once(format_size(series.point.size_bytes)).chain(beyond_size(&series.point)).collect();
    let change = match (found.ratio, found.lower, found.upper) {
        (Some(ratio), Some(lower), Some(upper)) => {
            format!("{} [{} to {}]", change(ratio), change(lower), change(upper))
        }
        (Some(ratio), ..) => format!("{} [none]", change(ratio)),
        _ => "-".into(),
    };
    let reasons: Vec<_> = found.reasons.iter().map(|reason| reason.message.as_str()).collect();
    let advisory = if found.advisory { " (advisory)" } else { "" };
    let colon = if reasons.is_empty() { "" } else { ": " };
    row([
        series.test.clone(),
        size.join(" "),
        series.transport.name().into(),
        found.metric.name().into(),
        show(found.median_a),
        show(candidate(series)),
        change,
        format!("{}{advisory}{colon}{}", found.verdict, reasons.join("; ")),
    ])
}

fn limit_row(limit: &LimitOutcome) -> String {
    let result = &limit.result;
    let outcome = words::outcome(result.verdict);
    let outcome = match (&result.reason, result.by_percent) {
        (Some(reason), _) => format!("{outcome}: {reason}"),
        (None, Some(_)) => format!("{outcome}, {}", words::beside_bound(limit)),
        _ => outcome.into(),
    };
    row([
        limit.test.clone(),
        result.limit.clone(),
        result.point.as_deref().map_or_else(|| "-".into(), words::point),
        words::limit_value(result.value, &result.unit),
        words::limit_value(result.bound, &result.unit),
        outcome,
    ])
}

fn mismatch_row(of: &Mismatch) -> String {
    row([
        of.test.as_str(),
        &of.field,
        of.end.unwrap_or("-"),
        &words::values(&of.a),
        &words::values(&of.b),
        if of.allowed { "yes" } else { "no" },
    ])
}

/// A test that was not measured to its end.
fn not_measured(test: &TestEntry) -> Option<String> {
    let error = test.error.as_ref()?;
    Some(row([
        test.name.clone(),
        test.runs_a.to_string(),
        test.runs_b.to_string(),
        error.to_string(),
        error.remedy.clone().unwrap_or_else(|| "-".into()),
    ]))
}

fn self_test_row(found: &SelfTestSeries) -> String {
    row([
        found.test.clone(),
        words::point(&found.id),
        found.metric.name().into(),
        words::share(found.cv),
        words::rounds(found),
        words::share(found.tolerance),
        words::suggested(found.suggested_tolerance),
        words::suggested(found.suggested_must_detect),
    ])
}

fn row<T: AsRef<str>>(cells: impl IntoIterator<Item = T>) -> String {
    let cells: Vec<_> = cells.into_iter().map(|cell| escaped(cell.as_ref())).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Text that is shown as it is: nothing in it ends a cell or a line, or means anything to Markdown or HTML. Cut off where
/// it is too long.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, c) in text.chars().enumerate() {
        match c {
            _ if index == LONGEST => {
                out.push('…');
                break;
            }
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '\n' | '\r' | '\t' => out.push(' '),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '~' | '$' => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            _ => out.push(char::REPLACEMENT_CHARACTER),
        }
    }
    out
}
