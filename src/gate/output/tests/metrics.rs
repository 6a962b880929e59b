//! OpenMetrics, read back.

use std::collections::{BTreeMap, BTreeSet};

use super::sample::{self, HOSTILE};
use crate::gate::output::openmetrics;

/// A sample: family, labels, value.
type Sample = (String, BTreeMap<String, String>, f64);

#[track_caller]
fn sample_of(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let (name, rest) = series.split_once('{').unwrap_or((series, "}"));
    let mut labels = BTreeMap::new();
    let mut rest = rest.strip_suffix('}').unwrap();
    while let Some((label, quoted)) = rest.split_once("=\"") {
        let mut text = String::new();
        let mut chars = quoted.char_indices();
        let end = loop {
            match chars.next().unwrap_or_else(|| panic!("no end: {line}")) {
                (_, '\\') => match chars.next().unwrap().1 {
                    'n' => text.push('\n'),
                    c => text.push(c),
                },
                (at, '"') => break at,
                (_, c) => text.push(c),
            }
        };
        assert!(labels.insert(label.trim_start_matches(',').into(), text).is_none(), "{line}");
        rest = &quoted[end + 1..];
    }
    assert_eq!(rest, "", "{line}");
    (name.into(), labels, value.parse().unwrap())
}

fn samples(text: &str) -> Vec<Sample> {
    text.lines().filter(|line| !line.starts_with('#')).map(sample_of).collect()
}

#[test]
fn families_stand_together_and_no_sample_is_there_twice() {
    for (name, gate) in sample::all() {
        let text = openmetrics::to_string(&gate);
        assert!(text.ends_with("# EOF\n"), "{name}: {text}");
        let mut known = BTreeSet::new();
        let mut family = String::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                family = help.split(' ').next().unwrap().into();
                assert!(known.insert(family.clone()), "{name}: {family} twice");
            } else if !line.starts_with('#') {
                assert_eq!(sample_of(line).0, family, "{name}");
            }
        }
        let samples = samples(&text);
        let distinct: BTreeSet<_> = samples.iter().map(|(name, labels, _)| (name, labels)).collect();
        assert_eq!(distinct.len(), samples.len(), "{name}");
    }
}

#[test]
fn values_are_in_base_units_and_what_was_not_had_has_no_line() {
    let samples = samples(&openmetrics::to_string(&sample::turns()));
    let of = |family: &str, metric: &str, role: &str| -> Vec<f64> {
        let found = samples.iter().filter(|(name, labels, _)| {
            name == family && labels["metric"] == metric && labels.get("role").is_none_or(|is| is == role)
        });
        found.map(|sample| sample.2).collect()
    };
    let baseline = of("verbmark_latency_seconds", "p99", "baseline");
    assert!((baseline[0] - 4.004e-6).abs() < 1e-12, "{baseline:?}");
    let candidate = of("verbmark_latency_seconds", "p99", "candidate");
    assert!((candidate[0] - 6.006e-6).abs() < 1e-12, "{candidate:?}");
    assert!((of("verbmark_cpu_seconds_per_message", "cpu.client", "candidate")[0] - 410.41e-9).abs() < 1e-12);
    // The one that was not comparable has no median.
    assert_eq!(of("verbmark_bandwidth_bytes_per_second", "bw", "candidate").len(), 1);
    assert!((of("verbmark_gate_change_ratio", "p99", "")[0] - 1.5).abs() < 0.01);
    assert!(
        of("verbmark_gate_change_lower_ratio", "p99", "")[0]
            < of("verbmark_gate_change_upper_ratio", "p99", "")[0]
    );
    let failed = openmetrics::to_string(&sample::failed());
    assert!(
        !failed.contains("verbmark_latency") && failed.contains("verbmark_gate_status{status=\"failed\"} 1")
    );
}

#[test]
fn one_state_of_a_set_holds_and_labels_are_read_back() {
    let gate = sample::turns();
    let samples = samples(&openmetrics::to_string(&gate));
    for (family, sets) in [
        ("verbmark_gate_verdict", 1),
        ("verbmark_gate_series_verdict", gate.series.len()),
        ("verbmark_gate_limit_verdict", gate.limits.len()),
        ("verbmark_gate_status", 1),
    ] {
        let holds = samples.iter().filter(|(name, _, value)| name == family && *value == 1.0).count();
        assert_eq!(holds, sets, "{family}");
    }
    // By the names of the document.
    let outcome = |limit: &str| -> Vec<&str> {
        let of_limit = samples.iter().filter(|(name, labels, value)| {
            name == "verbmark_gate_limit_verdict" && labels["limit"] == limit && *value == 1.0
        });
        of_limit.map(|(_, labels, _)| labels["verdict"].as_str()).collect()
    };
    for limit in &gate.limits {
        let written = serde_json::to_value(limit.result.verdict).unwrap();
        assert_eq!(outcome(&limit.result.limit), [written.as_str().unwrap()], "{limit:?}");
    }
    let tests: BTreeSet<_> = samples.iter().filter_map(|(_, labels, _)| labels.get("test")).collect();
    let hostile = HOSTILE.replace(['\0', '\r', '\t', '\u{1b}', '\u{fffe}', '\u{2028}'], "\u{fffd}");
    assert_eq!(tests, BTreeSet::from([&"send_lat".to_owned(), &"write_lat".to_owned(), &hostile]));
}
