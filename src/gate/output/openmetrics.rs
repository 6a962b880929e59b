//! Gauges in the text format of OpenMetrics, which readers of Prometheus' older text format take, too: no `UNIT`, no time
//! of a sample, and a set of states is a gauge with a label that is 1 for the one that holds.
//!
//! Units are base units: seconds, bytes a second, messages a second, ratios. Labels say what was measured, never when or in
//! which run, so that a series goes on from gate to gate. What could not be had has no line.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::UNIX_EPOCH;

use super::series::candidate;
use super::words::{self, is_printable};
use crate::gate::document::{Gate, SelfTestSeries, Series};
use crate::gate::metric::Class;
use crate::gate::verdict::Verdict;
use crate::result::{Direction, LimitVerdict, Quantity, Status, Wait};

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;

/// How a gate ended, by name.
const STATUSES: [(&str, Status); 4] = [
    ("ok", Status::Ok),
    ("invalid", Status::Invalid),
    ("failed", Status::Failed),
    ("interrupted", Status::Interrupted),
];

/// The text, with its `# EOF`.
pub fn to_string(gate: &Gate) -> String {
    let mut out = String::new();
    medians(&mut out, gate);
    changes(&mut out, gate);
    verdicts(&mut out, gate);
    circumstances(&mut out, gate);
    self_test(&mut out, gate);
    let began = humantime::parse_rfc3339(&gate.started_at).ok();
    let began = began.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_secs_f64());
    let began = began.map(|seconds| (Labels::new(), seconds));
    family(&mut out, "verbmark_gate_timestamp_seconds", "When the gate began, Unix time.", began);
    let took = [(Labels::new(), gate.duration_s)];
    family(&mut out, "verbmark_gate_duration_seconds", "How long the gate took.", took);
    let exit = [(Labels::new(), f64::from(gate.exit_status))];
    family(&mut out, "verbmark_gate_exit_status", "Exit status of the gate.", exit);
    out + "# EOF\n"
}

/// Median of the runs of each arm.
fn medians(out: &mut String, gate: &Gate) {
    for (name, help, holds) in [
        ("verbmark_latency_seconds", "Percentile of latency, the median of runs.", Class::Latency),
        (
            "verbmark_cpu_seconds_per_message",
            "CPU time of an end for a message, the median of runs.",
            Class::Cost,
        ),
    ] {
        let series = gate.series.iter().filter(|series| series.judgement.metric.class() == holds);
        // Nanoseconds: divided, since a product with 1e-9 would not be the nearest number.
        family(out, name, help, series.flat_map(|series| by_role(series, |ns| ns / 1e9)));
    }
    for (name, help, metric) in [
        ("verbmark_bandwidth_bytes_per_second", "Payload, the median of runs.", Quantity::Bandwidth),
        ("verbmark_messages_per_second", "Messages, the median of runs.", Quantity::Rate),
    ] {
        let series = gate.series.iter().filter(|series| series.judgement.metric == metric);
        family(out, name, help, series.flat_map(|series| by_role(series, |value| value)));
    }
}

fn by_role(series: &Series, scaled: fn(f64) -> f64) -> Vec<(Labels, f64)> {
    let roles = [("baseline", series.judgement.median_a), ("candidate", candidate(series))];
    let sample = |(role, value): (&str, Option<f64>)| {
        let mut labels = labels(series);
        match series.judgement.metric {
            Quantity::CpuClient => labels.push(("end", "client".into())),
            Quantity::CpuServer => labels.push(("end", "server".into())),
            _ => {}
        }
        labels.push(("role", role.into()));
        value.map(|value| (labels, scaled(value)))
    };
    roles.into_iter().filter_map(sample).collect()
}

/// The change and its interval.
fn changes(out: &mut String, gate: &Gate) {
    type Of = fn(&Series) -> Option<f64>;
    let families: [(&str, &str, Of); 3] = [
        ("verbmark_gate_change_ratio", "Candidate over baseline.", |of| of.judgement.ratio),
        ("verbmark_gate_change_lower_ratio", "Lower end of its interval.", |of| of.judgement.lower),
        ("verbmark_gate_change_upper_ratio", "Upper end of its interval.", |of| of.judgement.upper),
    ];
    for (name, help, of) in families {
        let samples = gate.series.iter().filter_map(|series| Some((labels(series), of(series)?)));
        family(out, name, help, samples);
    }
}

/// What was found of each series and limit, and of all.
fn verdicts(out: &mut String, gate: &Gate) {
    let series = gate.series.iter().flat_map(|series| {
        let mut labels = labels(series);
        labels.push(("advisory", series.judgement.advisory.to_string()));
        states(&labels, "verdict", Verdict::ALL, series.judgement.verdict)
    });
    family(out, "verbmark_gate_series_verdict", "1 for the verdict of a metric at a point.", series);
    let limits = gate.limits.iter().flat_map(|limit| {
        let point = limit.result.point.clone().unwrap_or_default();
        let labels =
            vec![("test", limit.test.clone()), ("point", point), ("limit", limit.result.limit.clone())];
        states(&labels, "verdict", LimitVerdict::ALL, limit.result.verdict)
    });
    family(out, "verbmark_gate_limit_verdict", "1 for the outcome of a limit at a point.", limits);
    let whole = words::verdict(gate).map(|verdict| states(&Labels::new(), "verdict", Verdict::ALL, verdict));
    family(
        out,
        "verbmark_gate_verdict",
        "1 for the verdict of all metrics and limits.",
        whole.unwrap_or_default(),
    );
    let ended = states(&Labels::new(), "status", STATUSES, gate.status);
    family(out, "verbmark_gate_status", "1 for how the gate ended.", ended);
}

/// Which tests were measured, what of them differs, and what a reader should know. Why a test was not measured, and values
/// that differ, are no labels: they would begin a new series each time.
fn circumstances(out: &mut String, gate: &Gate) {
    let measured = gate.tests.iter().map(|test| {
        (vec![("test", test.name.clone())], f64::from(u8::from(test.error.is_none() && gate.error.is_none())))
    });
    family(out, "verbmark_gate_test_measured", "1 for a test that was measured to its end.", measured);
    let mismatches = gate.mismatches.iter().map(|of| {
        let end = of.end.unwrap_or_default().to_owned();
        let allowed = of.allowed.to_string();
        let field = ("field", of.field.clone());
        (vec![("test", of.test.clone()), field, ("end", end), ("allowed", allowed)], 1.0)
    });
    family(out, "verbmark_gate_mismatch", "1 for a field in which the arms differ.", mismatches);
    // Several notes may be of one code.
    let codes: BTreeSet<&str> = gate.notes.iter().map(|note| note.code.as_str()).collect();
    let notes = codes.into_iter().map(|code| (vec![("code", code.to_owned())], 1.0));
    family(out, "verbmark_gate_note", "1 for what a reader should know.", notes);
}

/// How metrics behaved where nothing changed.
fn self_test(out: &mut String, gate: &Gate) {
    type Of = fn(&SelfTestSeries) -> Option<f64>;
    let families: [(&str, &str, Of); 4] = [
        ("verbmark_self_test_run_cv_ratio", "Scatter of runs, the largest of a round.", |of| of.cv),
        ("verbmark_self_test_largest_change_ratio", "Largest change of a round, either way.", |of| {
            of.tolerance
        }),
        ("verbmark_self_test_tolerance_ratio", "What a suite should tolerate.", |of| of.suggested_tolerance),
        ("verbmark_self_test_must_detect_ratio", "What must be detected.", |of| of.suggested_must_detect),
    ];
    let Some(found) = &gate.self_test else { return };
    let labels = |of: &SelfTestSeries| -> Labels {
        vec![("test", of.test.clone()), ("point", of.id.clone()), ("metric", of.metric.name().into())]
    };
    for (name, help, of) in families {
        family(out, name, help, found.series.iter().filter_map(|series| Some((labels(series), of(series)?))));
    }
    let rounds = found.series.iter().flat_map(|series| {
        Verdict::ALL.map(|(name, verdict)| {
            let mut labels = labels(series);
            labels.push(("verdict", name.into()));
            (labels, series.verdicts.get(&verdict).copied().unwrap_or(0) as f64)
        })
    });
    family(out, "verbmark_self_test_rounds", "Rounds that ended so.", rounds);
}

fn states<T: PartialEq + Copy, const N: usize>(
    labels: &Labels,
    label: &'static str,
    all: [(&str, T); N],
    holds: T,
) -> Vec<(Labels, f64)> {
    let of = |(name, state): (&str, T)| {
        let mut labels = labels.clone();
        labels.push((label, name.into()));
        (labels, f64::from(u8::from(state == holds)))
    };
    all.into_iter().map(of).collect()
}

/// What was measured: the same of one series in every family, so that they can be joined.
fn labels(series: &Series) -> Labels {
    let point = &series.point;
    let wait = match point.wait {
        Wait::Busy => "busy",
        Wait::Events => "events",
    };
    let direction = match point.direction {
        Direction::Unidirectional => "unidirectional",
        Direction::Bidirectional => "bidirectional",
    };
    let mut labels = vec![
        ("test", series.test.clone()),
        ("transport", series.transport.name().into()),
        ("size_bytes", point.size_bytes.to_string()),
        ("qps", point.qps.to_string()),
        ("depth", point.depth.to_string()),
        ("threads", point.threads.to_string()),
        ("wait", wait.into()),
        ("direction", direction.into()),
    ];
    labels.extend(point.offered_per_s.map(|rate| ("offered_per_second", rate.to_string())));
    labels.push(("metric", series.judgement.metric.name().into()));
    labels
}

/// A family: its lines stand together, and it has none without a sample.
fn family(out: &mut String, name: &str, help: &str, samples: impl IntoIterator<Item = (Labels, f64)>) {
    let mut samples = samples.into_iter().filter(|(_, value)| value.is_finite()).peekable();
    if samples.peek().is_none() {
        return;
    }
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
    for (labels, value) in samples {
        let labels: Vec<_> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(out, "{name}{labels} {value}");
    }
}

/// The value of a label between its quotes. Other characters that end a line for some reader are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out += r"\\",
            '"' => out += r#"\""#,
            '\n' => out += r"\n",
            c if is_printable(c) => out.push(c),
            _ => out.push(char::REPLACEMENT_CHARACTER),
        }
    }
    out
}
