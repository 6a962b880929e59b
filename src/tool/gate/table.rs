//! What a person sees of a gate.

use crate::gate::baseline::more_sittings;
use crate::gate::compare::Mismatch;
use crate::gate::document::{ArmRecord, Form, Gate, SelfTestSeries, Series, Trouble};
use crate::gate::output::words::{self, share};
use crate::gate::{Arm, Code, Verdict};
use crate::report::text::{columns, labelled, plain, wrap};
use crate::result::LimitVerdict;
use crate::tool::compare::{between, limited, percent};
use crate::units::{counted, format_size};

/// The whole of it, no line of text wider than `width` where words allow it. Rows are as wide as they are.
pub fn render(gate: &Gate, width: Option<usize>) -> String {
    let mut out = wrap(&format!("gate  {}", header(gate)), 6, width);
    let mut say = |label: &str, text: &str| out += &labelled(label, text, width);
    for arm in &gate.arms {
        say(letter(arm.arm), &description(arm));
    }
    for of_test in gate.series.chunk_by(|one, other| one.test == other.test) {
        out += &format!("\n{}\n\n{}", plain(&of_test[0].test), rows(of_test));
    }
    if let Some(found) = gate.self_test.as_ref().filter(|found| !found.series.is_empty()) {
        out += &format!("\n{}", scatter(&found.series));
    }
    if !gate.series.is_empty() {
        out += "\n";
    }
    let mut say = |label: &str, text: &str| out += &labelled(label, text, width);
    let is_turns = gate.form == Form::Turns;
    let (first, second) = if is_turns { ("A", "B") } else { ("the baseline", "the candidate") };
    let (made, found): (Vec<_>, Vec<_>) =
        gate.mismatches.iter().cloned().partition(|mismatch| mismatch.allowed);
    let fields = |of: &[Mismatch]| limited(between(of, first, second));
    fields(&made).iter().for_each(|line| say("differs", line));
    fields(&found).iter().for_each(|line| say("not comparable", line));
    fields(&gate.differences).iter().for_each(|line| say("note", line));
    gate.notes.iter().for_each(|note| say("note", &note.message));
    let itself = gate.self_test.iter().flat_map(|found| &found.series);
    limited(itself.filter_map(words::unsuggested).collect()).iter().for_each(|line| say("note", line));
    let kept = gate.limits.iter().filter(|limit| limit.result.verdict == LimitVerdict::Pass);
    kept.for_each(|limit| say("limit", &words::limit(limit)));
    // A sitting that is only recorded leaves nothing open.
    let judged = gate.series.iter().filter(|_| gate.form != Form::Record);
    limited(judged.filter_map(open_line).collect()).iter().for_each(|line| say("open", line));
    if let Some(missing) = missing_sittings(gate) {
        say("advisory", &missing);
    }
    let advisory = gate.series.iter().filter(|series| words::is_advisory_trouble(series));
    let advisory = advisory.map(|series| series.message.clone());
    limited(advisory.collect()).iter().for_each(|line| say("advisory", line));
    let troubles = gate.troubles().into_iter().map(trouble_line);
    limited(troubles.collect()).iter().for_each(|line| say("failed", line));
    say("verdict", &words::headline(gate));
    out
}

fn letter(arm: Arm) -> &'static str {
    if arm == Arm::A { "A" } else { "B" }
}

fn header(gate: &Gate) -> String {
    let runs: usize = gate.tests.iter().map(|test| test.runs_a + test.runs_b).sum();
    let form = match (gate.form, &gate.self_test) {
        (Form::Turns, _) => "baseline and candidate in turns".to_owned(),
        (Form::Sittings, _) => format!("against {}", counted(gate.sittings.len(), "stored sitting")),
        (Form::Limits, _) => "limits".to_owned(),
        (Form::Record, _) => "a sitting that is recorded".to_owned(),
        (Form::SelfTest, None) => "the candidate against itself".to_owned(),
        (Form::SelfTest, Some(found)) => {
            format!("the candidate against itself, {}, the worst shown", counted(found.rounds, "round"))
        }
    };
    let seed = gate.seed.map(|seed| format!("   seed {seed}")).unwrap_or_default();
    let tests = counted(gate.tests.len(), "test");
    format!("{form}   {tests}, {}, {:.0} s{seed}", counted(runs, "run"), gate.duration_s)
}

/// What an arm is, and how busy the machine was during its runs.
fn description(arm: &ArmRecord) -> String {
    let environment = arm.environment.iter().map(|(name, value)| format!("{name}={value}"));
    let programs = arm.programs.iter().map(|directory| format!("programs of {directory}"));
    let what: Vec<_> = environment.chain(programs).chain(arm.options.iter().cloned()).collect();
    let mut line = format!("{}  {}", arm.name, what.join(" "));
    if let Some(cores) = arm.busy_cores {
        line += &format!("   {cores:.1} cores busy");
    }
    if let Some(stolen) = arm.stolen_share.filter(|share| *share >= 0.001) {
        line += &format!(", {:.1} % of it stolen by the hypervisor", 100.0 * stolen);
    }
    line
}

/// The rows of one test.
fn rows(of_test: &[Series]) -> String {
    let sure = of_test.iter().map(|series| series.judgement.confidence).next().unwrap_or(0.99);
    let interval = format!("{} % interval", (sure * 1e4).round() / 100.0);
    let titles = ["size", "transport", "metric", "baseline", "candidate", "change", &interval, "runs", ""];
    let mut lines = vec![titles.map(str::to_owned)];
    let mut before: Option<&Series> = None;
    for series in of_test {
        let found = &series.judgement;
        let is_new = before.is_none_or(|before| before.id != series.id);
        before = Some(series);
        let only_new = |text: String| if is_new { text } else { String::new() };
        let show = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| found.metric.show(value));
        lines.push([
            only_new(format_size(series.point.size_bytes)),
            only_new(series.transport.name().to_owned()),
            found.metric.name().to_owned(),
            show(found.median_a),
            show(found.median_b),
            percent(found.ratio),
            match (found.lower, found.upper) {
                (Some(lower), Some(upper)) => format!("{} .. {}", percent(Some(lower)), percent(Some(upper))),
                _ => "-".into(),
            },
            format!("{}+{}", found.n_a, found.n_b),
            verdict(series),
        ]);
    }
    columns(&lines, &[1, 2, 8])
}

fn verdict(series: &Series) -> String {
    let advisory = if series.judgement.advisory { ", advisory" } else { "" };
    format!("{}{advisory}", words::found(series.judgement.verdict))
}

/// Why a metric is neither better nor worse nor the same.
fn open_line(series: &Series) -> Option<String> {
    let found = &series.judgement;
    let reasons =
        found.reasons.iter().filter(|reason| reason.code != Code::TooFewSittings || found.ratio.is_none());
    let reasons: Vec<_> = reasons.map(|reason| reason.message.as_str()).collect();
    (found.verdict == Verdict::Inconclusive && !reasons.is_empty())
        .then(|| format!("{} {}: {}", series.title(), found.metric.name(), reasons.join("; ")))
}

/// Said once for all of them.
fn missing_sittings(gate: &Gate) -> Option<String> {
    let sittings = gate.series.iter().filter_map(|series| series.judgement.sittings).min()?;
    let more = more_sittings(sittings)?;
    Some(format!("{}: record {more}, with --record", counted(sittings, "stored sitting")))
}

/// How the metrics behaved where nothing changed, and what follows for a suite.
fn scatter(series: &[SelfTestSeries]) -> String {
    let titles =
        ["test", "point", "metric", "run CV", "largest change", "tolerance", "must detect", "regressions"];
    let mut lines = vec![titles.map(str::to_owned)];
    for found in series {
        lines.push([
            plain(&found.test),
            words::point(&found.id),
            found.metric.name().into(),
            share(found.cv),
            share(found.tolerance),
            words::suggested(found.suggested_tolerance),
            words::suggested(found.suggested_must_detect),
            found.verdicts.get(&Verdict::Regression).copied().unwrap_or(0).to_string(),
        ]);
    }
    columns(&lines, &[0, 1, 2])
}

fn trouble_line(trouble: Trouble<'_>) -> String {
    match trouble {
        Trouble::Series(series) => series.message.clone(),
        Trouble::Limit(limit) => words::limit(limit),
        Trouble::Test(test) => words::test(test),
    }
}
