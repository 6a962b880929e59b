//! What a gate found, in lines that several formats show.

use crate::error::Error;
use crate::gate::compare::Mismatch;
use crate::gate::document::{Form, Gate, LimitOutcome, TestEntry};
use crate::gate::sample::Met;
use crate::gate::verdict::Verdict;
use crate::result::{LimitVerdict, Quantity, Status};

/// Values of a field that are shown.
const MOST_VALUES: usize = 3;

/// The verdict and what it was made of, one line: `REGRESSION, exit status 1: 3 metrics (1 regression, 2 pass)`.
pub(super) fn headline(gate: &Gate) -> String {
    let ended = match gate.status {
        Status::Failed => "FAILED".into(),
        Status::Interrupted => "INTERRUPTED".into(),
        Status::Ok | Status::Invalid => gate.verdict.to_string(),
    };
    let series = gate.series.iter().map(|series| &series.judgement);
    let advisory = series.clone().filter(|found| found.advisory).count();
    let deciding = series.filter(|found| !found.advisory);
    let mut metrics = counts(Verdict::ALL, deciding.map(|found| found.verdict));
    if advisory > 0 {
        metrics.push(format!("{advisory} advisory"));
    }
    let limits = counts(LIMITS, gate.limits.iter().map(|limit| limit.result.verdict));
    let rounds = gate.self_test.as_ref().map(|of| format!("{} rounds against itself", of.rounds));
    let parts: Vec<_> = [
        rounds,
        (!metrics.is_empty()).then(|| format!("{} metrics ({})", gate.series.len(), metrics.join(", "))),
        (!limits.is_empty()).then(|| format!("{} limits ({})", gate.limits.len(), limits.join(", "))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let found = if parts.is_empty() { "nothing was judged".into() } else { parts.join(", ") };
    format!("{ended}, exit status {}: {found}", gate.exit_status)
}

/// Outcomes of a limit, by name.
pub(super) const LIMITS: [(&str, LimitVerdict); 3] = [
    ("passed", LimitVerdict::Pass),
    ("failed", LimitVerdict::Fail),
    ("not evaluated", LimitVerdict::NotEvaluated),
];

/// How many there are of each, without those of which there is none.
fn counts<T: PartialEq + Copy, const N: usize>(
    names: [(&str, T); N],
    found: impl Iterator<Item = T>,
) -> Vec<String> {
    let found: Vec<T> = found.collect();
    let count = |of: T| found.iter().filter(|value| **value == of).count();
    names.iter().map(|&(name, of)| (name, count(of))).filter(|(_, count)| *count > 0).map(said).collect()
}

fn said((name, count): (&str, usize)) -> String {
    format!("{count} {}", name.replace('_', " "))
}

/// What a candidate is held to, as documents name it.
pub(super) fn form(form: Form) -> &'static str {
    match form {
        Form::Turns => "turns",
        Form::Sittings => "sittings",
        Form::Limits => "limits",
        Form::SelfTest => "self_test",
        Form::Record => "record",
    }
}

/// Cause and remedy, one line.
pub(super) fn error(error: &Error) -> String {
    match &error.remedy {
        Some(remedy) => format!("{error}; {remedy}"),
        None => error.to_string(),
    }
}

/// Why a test was not measured to its end, one line.
pub(super) fn test(of: &TestEntry) -> String {
    let cause = of.error.as_ref().map(error).unwrap_or_default();
    format!("{} was not measured to its end: {cause}", of.name)
}

/// A limit at a point, as [`Judgement::line`](crate::gate::Judgement::line) tells of a metric.
pub(super) fn limit(of: &LimitOutcome) -> String {
    let result = &of.result;
    let place = result.point.as_ref().map(|point| format!(" at {point}")).unwrap_or_default();
    let name = format!("{} {}{place}", of.test, result.limit);
    let reason = || result.reason.as_deref().unwrap_or("no reason is given");
    let value = || limit_value(result.value, &result.unit);
    match result.verdict {
        LimitVerdict::Pass => format!("PASS  {name}: {}", value()),
        LimitVerdict::Fail => {
            let by = result.by_percent.map(|by| format!(", {by:.1}% beyond")).unwrap_or_default();
            format!("LIMIT FAILED  {name}: {}{by} {}", value(), limit_value(result.bound, &result.unit))
        }
        LimitVerdict::NotEvaluated => format!("LIMIT NOT EVALUATED  {name}: {}", reason()),
    }
}

/// A value of a limit, or its bound, as a person reads it.
pub(super) fn limit_value(value: Option<f64>, unit: &str) -> String {
    let Some(value) = value else { return "-".into() };
    match unit {
        "ns" => Quantity::P50.show(value),
        "bytes_per_s" => Quantity::Bandwidth.show(value),
        "messages_per_s" => Quantity::Rate.show(value),
        "ns_per_message" => Quantity::CpuClient.show(value),
        _ => format!("{value:.3}"),
    }
}

/// A field that differs, one line.
pub(super) fn mismatch(of: &Mismatch) -> String {
    let end = of.end.map(|end| format!(" of the {end}")).unwrap_or_default();
    format!("{} {}{end}: {} against {}", of.test, of.field, values(&of.a), values(&of.b))
}

/// The first few values, and how many more there are.
pub(super) fn values(met: &[Met]) -> String {
    let mut shown: Vec<_> = met.iter().take(MOST_VALUES).map(|met| met.value.clone()).collect();
    if met.is_empty() {
        shown.push("none".into());
    }
    if met.len() > MOST_VALUES {
        shown.push(format!("{} more", met.len() - MOST_VALUES));
    }
    shown.join(", ")
}

/// Whether a character may stand in a line of text: a terminal obeys control characters, and XML and YAML know no
/// non-characters.
pub(super) fn is_printable(c: char) -> bool {
    !(c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}'))
}

/// One line of text that commands nobody.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}
