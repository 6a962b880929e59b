//! What a gate found, in lines that all formats and the text of a terminal share.

use crate::error::Error;
use crate::gate::baseline::FEWEST_SITTINGS;
use crate::gate::compare::Mismatch;
use crate::gate::document::{Form, Gate, LimitOutcome, SelfTestSeries, Series, TestEntry};
use crate::gate::family::WORST_FIRST;
use crate::gate::message::MOST_PERCENT;
use crate::gate::rule::percent;
use crate::gate::sample::Met;
use crate::gate::series::is_of_the_arms;
use crate::gate::verdict::Verdict;
use crate::result::{LimitVerdict, Quantity, Status};
use crate::units::{counted, format_size};

/// Values of a field that are shown.
const MOST_VALUES: usize = 3;

/// How the gate ended, what that was made of, and why nothing was decided where everything is advisory, one line:
/// `REGRESSION, exit status 1: 4 metrics (1 regression, 2 pass, 1 advisory regression)`.
pub fn headline(gate: &Gate) -> String {
    let series = gate.series.iter().map(|series| &series.judgement);
    let [deciding, advisory] =
        [false, true].map(|is| series.clone().filter(move |of| of.advisory == is).map(|of| of.verdict));
    let verdicts = WORST_FIRST.map(|verdict| (verdict, found(verdict)));
    let advisory =
        counts(&verdicts, advisory).into_iter().map(|(count, name)| (count, format!("advisory {name}")));
    let metrics = listed(counts(&verdicts, deciding).into_iter().chain(advisory));
    let outcomes = LimitVerdict::ALL.map(|(_, verdict)| (verdict, outcome(verdict).to_owned()));
    let limits = listed(counts(&outcomes, gate.limits.iter().map(|limit| limit.result.verdict)));
    let spoilt = gate.tests.iter().filter(|test| test.error.is_some()).count();
    let rounds = gate.self_test.as_ref().map(|of| format!("{} against itself", counted(of.rounds, "round")));
    let parts: Vec<_> = [
        rounds,
        (!metrics.is_empty()).then(|| match gate.form {
            Form::Record => counted(gate.series.len(), "metric"),
            _ => format!("{} ({metrics})", counted(gate.series.len(), "metric")),
        }),
        (!limits.is_empty()).then(|| format!("{} ({limits})", counted(gate.limits.len(), "limit"))),
        (spoilt > 0).then(|| format!("{} not measured to the end", counted(spoilt, "test"))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let what = if parts.is_empty() { "nothing was judged".into() } else { parts.join(", ") };
    let why = undecided(gate)
        .filter(|_| gate.form != Form::Record)
        .map(|why| format!("; {why}"))
        .unwrap_or_default();
    format!("{}, exit status {}: {what}{why}", ended(gate), gate.exit_status)
}

/// The verdict in capitals, or how the gate broke off.
pub(super) fn ended(gate: &Gate) -> String {
    match gate.status {
        Status::Failed => "FAILED".into(),
        // Its limits are held, or there are none.
        Status::Ok if gate.form == Form::Record && gate.verdict == Verdict::Inconclusive => "RECORDED".into(),
        Status::Interrupted => "INTERRUPTED".into(),
        Status::Ok | Status::Invalid => gate.verdict.to_string(),
    }
}

/// The verdict; `None` of a gate that broke off before anything was judged.
pub(super) fn verdict(gate: &Gate) -> Option<Verdict> {
    let came_to_its_end = matches!(gate.status, Status::Ok | Status::Invalid);
    (came_to_its_end || !gate.series.is_empty() || !gate.limits.is_empty()).then_some(gate.verdict)
}

/// Why a gate that judged metrics decided nothing: they are advisory, all of them.
fn undecided(gate: &Gate) -> Option<String> {
    let is_all = !gate.series.is_empty() && gate.series.iter().all(|series| series.judgement.advisory);
    if !is_all || verdict(gate) != Some(Verdict::Inconclusive) {
        return None;
    }
    let fewest = gate.series.iter().filter_map(|series| series.judgement.sittings).min();
    // In turns a field of which each arm has one value is what is compared.
    let of_the_arms = |of: &Mismatch| gate.form == Form::Turns && is_of_the_arms(&of.a, &of.b);
    let because = match fewest.filter(|count| *count < FEWEST_SITTINGS) {
        Some(count) => format!(", with {} of {FEWEST_SITTINGS}", counted(count, "stored sitting")),
        None if gate.mismatches.iter().any(|of| of.allowed && !of_the_arms(of)) => {
            ", since a field that differs was allowed to".into()
        }
        None => String::new(),
    };
    let all = match gate.series.len() {
        1 => "the only metric is advisory".to_owned(),
        many => format!("all {many} metrics are advisory"),
    };
    let nothing = if gate.limits.is_empty() { "nothing" } else { "no metric" };
    Some(format!("{nothing} that decides was judged: {all}{because}"))
}

/// Whether a series is advisory and would have failed the job otherwise.
pub fn is_advisory_trouble(series: &Series) -> bool {
    let found = &series.judgement;
    found.advisory && found.verdict.is_trouble()
}

/// What was found of a metric.
pub fn found(verdict: Verdict) -> String {
    verdict.name().replace('_', " ")
}

/// What became of a limit.
pub(super) fn outcome(verdict: LimitVerdict) -> &'static str {
    match verdict {
        LimitVerdict::Pass => "passed",
        LimitVerdict::Fail => "failed",
        LimitVerdict::NotEvaluated => "not evaluated",
    }
}

/// How many there are of each, in words, without those of which there is none.
fn counts<T: PartialEq>(all: &[(T, String)], met: impl Iterator<Item = T>) -> Vec<(usize, String)> {
    let met: Vec<T> = met.collect();
    let count = |of: &T| met.iter().filter(|value| *value == of).count();
    all.iter().map(|(of, words)| (count(of), words.clone())).filter(|(count, _)| *count > 0).collect()
}

fn listed(counts: impl IntoIterator<Item = (usize, String)>) -> String {
    let said: Vec<_> = counts.into_iter().map(|(count, name)| format!("{count} {name}")).collect();
    said.join(", ")
}

/// Rounds of a self-test by verdict: `1 regression, 4 pass`.
pub(super) fn rounds(of: &SelfTestSeries) -> String {
    let rounds = |verdict| Some((*of.verdicts.get(&verdict)?, found(verdict)));
    listed(WORST_FIRST.into_iter().filter_map(rounds))
}

/// How a metric behaved where nothing changed, one line.
pub(super) fn self_test(of: &SelfTestSeries) -> String {
    let [cv, largest] = [of.cv, of.tolerance].map(share);
    let [tolerance, must_detect] = [of.suggested_tolerance, of.suggested_must_detect].map(suggested);
    format!(
        "against itself {}: run CV {cv}, largest change {largest}, tolerance {tolerance}, must detect {must_detect}",
        rounds(of)
    )
}

/// Why nothing is suggested of a metric that was measured.
pub fn unsuggested(of: &SelfTestSeries) -> Option<String> {
    let is_measured = of.tolerance.is_some() && of.suggested_tolerance.is_none();
    let what = || format!("{} {} {}", of.test, point(&of.id), of.metric.name());
    is_measured
        .then(|| format!("{}: runs scatter more than any tolerance allows for, so leave it out", what()))
}

/// What a suite should say: `4 %`, or `-`.
pub fn suggested(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), percent)
}

/// A share that was measured: `1.3 %`, or `-`.
pub fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{:.1} %", 100.0 * share))
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

/// Why a test was not measured to its end, and what to do, one line.
pub fn test(of: &TestEntry) -> String {
    let cause = of.error.as_ref().map(error).unwrap_or_default();
    format!("{} was not measured to its end: {cause}", of.name)
}

/// A limit at a point, as [`Judgement::line`](crate::gate::Judgement::line) tells of a metric.
pub fn limit(of: &LimitOutcome) -> String {
    let result = &of.result;
    let place = result.point.as_ref().map(|id| format!(" at {}", point(id))).unwrap_or_default();
    let name = format!("{} {}{place}", of.test, result.limit);
    let runs = if of.runs > 1 { format!(" (median of {} runs)", of.runs) } else { String::new() };
    let value = limit_value(result.value, &result.unit);
    match result.verdict {
        LimitVerdict::Pass => format!("PASS  {name}: {value}, {}{runs}", beside_bound(of)),
        LimitVerdict::Fail => format!("LIMIT FAILED  {name}: {value}, {}{runs}", beside_bound(of)),
        LimitVerdict::NotEvaluated => {
            let reason = result.reason.as_deref().unwrap_or("no reason is given");
            format!("LIMIT NOT EVALUATED  {name}: {reason}")
        }
    }
}

/// On which side of its bound a value lies, and how far: `24.0 % above 5.00 us`.
pub(super) fn beside_bound(of: &LimitOutcome) -> String {
    let result = &of.result;
    let bound = limit_value(result.bound, &result.unit);
    let side = if result.value > result.bound { "above" } else { "below" };
    match result.by_percent {
        Some(by) if by < 999.95 => format!("{by:.1} % {side} {bound}"),
        Some(by) if by < MOST_PERCENT => format!("{by:.0} % {side} {bound}"),
        // Below it there is no more than all of it.
        Some(by) => format!("{:.0} times {bound}", by / 100.0 + 1.0),
        None => format!("{side} {bound}"),
    }
}

/// The id of a point in words, without what is as usual: `64 B rdma`, `64 KiB rdma, depth 128, events`.
pub fn point(id: &str) -> String {
    in_words(id).unwrap_or_else(|| id.to_owned())
}

fn in_words(id: &str) -> Option<String> {
    let mut parts = id.split('/');
    let (transport, size) = (parts.next()?, parts.next()?.strip_suffix('B')?.parse().ok()?);
    let mut words = vec![format!("{} {transport}", format_size(size))];
    for part in parts {
        let (name, number) = part.split_at(part.find(|c: char| c.is_ascii_digit()).unwrap_or(part.len()));
        match (name, number) {
            ("qps" | "depth" | "threads", "1") | ("busy" | "unidirectional", "") => {}
            ("qps", count) => words.push(format!("{count} QPs")),
            ("depth", count) => words.push(format!("depth {count}")),
            ("threads", count) => words.push(format!("{count} threads")),
            ("bidirectional", "") => words.push("both ways".into()),
            ("rate", rate) => words.push(format!("{rate}/s")),
            _ => words.push(part.into()),
        }
    }
    Some(words.join(", "))
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

/// A hard field that differs, one line.
pub(super) fn mismatch(of: &Mismatch) -> String {
    let end = of.end.map(|end| format!(" of the {end}")).unwrap_or_default();
    let allowed = if of.allowed { " (allowed)" } else { "" };
    format!("{} {}{end}: {} against {}{allowed}", of.test, of.field, values(&of.a), values(&of.b))
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
