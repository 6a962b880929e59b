//! Single verdicts, their reasons and their lines.

use crate::error::Kind;
use crate::gate::{Code, Judgement, Rule, Verdict, judge, judge_sitting};
use crate::result::Quantity;

/// Runs around `center`, a per mille apart.
fn around(center: f64, runs: usize) -> Vec<f64> {
    (0..runs).map(|i| center * (1.0 + 0.001 * (i as f64 - runs as f64 / 2.0))).collect()
}

fn p50() -> Rule {
    Quantity::P50.rule(10.0).unwrap()
}

#[test]
fn a_verdict_is_the_place_of_the_interval() {
    for (factor, verdict) in [
        (0.80, Verdict::Improved),
        (0.99, Verdict::Pass),
        (1.01, Verdict::Pass),
        (1.025, Verdict::Pass),
        (1.05, Verdict::Regression),
        (1.20, Verdict::Regression),
    ] {
        let found = judge(&p50(), &around(5000.0, 15), &around(5000.0 * factor, 15), true).unwrap();
        assert_eq!(found.verdict, verdict, "{factor}: {found:?}");
        // Of a rate the same change is the opposite.
        let rate = Quantity::Rate.rule(10.0).unwrap();
        let found = judge(&rate, &around(5000.0 * factor, 15), &around(5000.0, 15), true).unwrap();
        assert_eq!(found.verdict, verdict, "{factor}: {found:?}");
    }
}

#[test]
fn a_share_of_a_rate_is_what_it_lost() {
    let rate = Rule { tolerance: 0.5, ..Quantity::Bandwidth.rule(10.0).unwrap() };
    let rate = Rule { must_detect: 0.9, ..rate };
    for (factor, verdict) in
        [(0.52, Verdict::Pass), (0.48, Verdict::Regression), (1.48, Verdict::Pass), (1.52, Verdict::Improved)]
    {
        let found = judge(&rate, &around(5e9, 15), &around(5e9 * factor, 15), true).unwrap();
        assert_eq!(found.verdict, verdict, "{factor}");
    }
}

#[test]
fn a_regression_is_decided_at_the_last_look_alone() {
    let found = judge(&p50(), &around(5000.0, 6), &around(6000.0, 6), false).unwrap();
    assert_eq!((found.verdict, found.reasons[0].code), (Verdict::Inconclusive, Code::NotLast));
    for (factor, verdict) in [(0.8, Verdict::Improved), (1.0, Verdict::Pass)] {
        let found = judge(&p50(), &around(5000.0, 6), &around(5000.0 * factor, 6), false).unwrap();
        assert_eq!(found.verdict, verdict);
    }
}

#[test]
fn few_runs_decide_nothing_and_say_how_many_it_takes() {
    let found = judge(&p50(), &around(5000.0, 5), &around(9000.0, 15), true).unwrap();
    assert_eq!(found.verdict, Verdict::Inconclusive);
    assert_eq!(found.reasons[0].message, "5 and 15 runs: it takes 6 of each");
    assert!(found.lower.is_some(), "5 runs have an interval");
    let found =
        judge(&Rule { minimum_runs: 3, ..p50() }, &around(5000.0, 4), &around(9000.0, 4), true).unwrap();
    assert_eq!((found.verdict, found.lower, found.mde), (Verdict::Inconclusive, None, None));
    assert_eq!(found.reasons[0].message, "4 and 4 runs: it takes 5 of each");
}

#[test]
fn below_the_floor_a_change_is_none() {
    // 10 ns of 100.
    let found = judge(&p50(), &around(100.0, 15), &around(110.0, 15), true).unwrap();
    assert_eq!((found.verdict, found.reasons[0].code), (Verdict::Pass, Code::BelowFloor));
    let found = judge(&p50(), &around(100.0, 15), &around(130.0, 15), true).unwrap();
    assert_eq!(found.verdict, Verdict::Regression);
    let found = judge(&p50(), &around(110.0, 15), &around(100.0, 15), true).unwrap();
    assert_eq!((found.verdict, found.reasons[0].code), (Verdict::Pass, Code::BelowFloor));
}

#[test]
fn equal_values_pass() {
    let found = judge(&p50(), &[1000.0; 6], &[1000.0; 6], false).unwrap();
    assert_eq!((found.verdict, found.ratio, found.lower), (Verdict::Pass, Some(1.0), Some(1.0)));
    let found = judge(&p50(), &[1000.0; 6], &[1100.0; 6], true).unwrap();
    assert_eq!(found.verdict, Verdict::Regression);
}

#[test]
fn what_is_no_measurement_is_an_error_with_its_run() {
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300] {
        let mut b = around(5000.0, 6);
        b[3] = wrong;
        let error = judge(&p50(), &around(5000.0, 6), &b, true).unwrap_err();
        assert_eq!(error.kind, Kind::Invalid);
        assert_eq!(error.message, format!("run 4 of the candidate has p50 = {wrong}: no measurement"));
    }
    for runs in [0, 1, 2, 41] {
        let error = judge(&p50(), &around(5000.0, runs), &around(5000.0, 6), true).unwrap_err();
        assert_eq!(error.kind, Kind::Usage);
        assert_eq!(error.message, format!("{runs} runs of the baseline with p50: not 3 to 40"));
    }
    assert_eq!(judge_sitting(&p50(), &[], &around(5000.0, 6)).unwrap_err().kind, Kind::Usage);
}

#[test]
fn a_rule_out_of_range_is_a_usage_error_with_its_value() {
    for (rule, message) in [
        (Rule { tolerance: 1.0, ..p50() }, "tolerance of p50 is 100%: it must be 0% or more and below 100%"),
        (
            Rule { tolerance: f64::NAN, ..p50() },
            "tolerance of p50 is NaN%: it must be 0% or more and below 100%",
        ),
        (
            Rule { must_detect: 0.02, ..p50() },
            "must_detect of p50 is 2%: it must be above its tolerance, 2%, and below 10000%",
        ),
        (Rule { floor: -1.0, ..p50() }, "floor of p50 is -1: it must be 0 or more"),
        (Rule { confidence: 99.0, ..p50() }, "confidence of p50 is 99: it must be 0.5 or more and below 1"),
        (Rule { minimum_runs: 2, ..p50() }, "minimum of runs of p50 is 2: it must be 3 to 40"),
        (
            Rule::new(Quantity::Bandwidth, 0.02, 1.0),
            "must_detect of bw is 100%: it must be above its tolerance, 2%, and below 100%",
        ),
    ] {
        assert_eq!(judge(&rule, &[1.0; 6], &[1.0; 6], true).unwrap_err().message, message);
    }
}

#[test]
fn few_sittings_are_advisory_and_say_how_many_are_missing() {
    let stored = |count: usize| (0..count).map(|i| around(5000.0 + 5.0 * i as f64, 6)).collect::<Vec<_>>();
    for (count, said) in [
        (1, "1 stored sitting: record 7"),
        (3, "3 stored sittings: record 5"),
        (7, "7 stored sittings: record 1"),
    ] {
        let found = judge_sitting(&p50(), &stored(count), &around(5000.0, 6)).unwrap();
        assert!(found.advisory);
        let message = &found.reasons.last().unwrap().message;
        assert_eq!(*message, format!("{said} more for a verdict that decides"));
    }
    let found = judge_sitting(&p50(), &stored(8), &around(5000.0, 6)).unwrap();
    assert_eq!((found.verdict, found.advisory, found.sittings), (Verdict::Pass, false, Some(8)));
    let found = judge_sitting(&p50(), &stored(8), &around(5600.0, 6)).unwrap();
    assert_eq!((found.verdict, found.advisory), (Verdict::Regression, false));
    let found = judge_sitting(&p50(), &stored(8), &around(5600.0, 5)).unwrap();
    assert_eq!((found.verdict, found.reasons[0].code), (Verdict::Inconclusive, Code::TooFewRuns));
}

#[test]
fn sittings_that_differ_say_how_many_would_do_if_any_number_would() {
    let stored = |spread: f64| (0..8).map(|i| around(5000.0 + spread * f64::from(i), 6)).collect::<Vec<_>>();
    let said = |spread: f64| {
        let found = judge_sitting(&p50(), &stored(spread), &around(5000.0 + 3.5 * spread, 6)).unwrap();
        (found.verdict, found.reasons.last().unwrap().message.clone())
    };
    assert_eq!(said(60.0), (Verdict::Inconclusive, "sittings that differ so much must be 11".to_owned()));
    let (verdict, message) = said(200.0);
    assert_eq!(verdict, Verdict::Inconclusive);
    assert_eq!(message, "sittings differ too much for any number of them: measure both arms in one");
}

#[test]
fn a_line_says_what_how_sure_and_what_next() {
    let line = |rule: &Rule, a: &[f64], b: &[f64]| judge(rule, a, b, true).unwrap().line("send_lat rc 64 B");
    assert_eq!(
        line(&p50(), &around(2310.0, 15), &around(2580.0, 15)),
        "REGRESSION  send_lat rc 64 B p50  2.31 us -> 2.58 us  +11.7 % [99 % CI +11.1 % .. +12.2 %]  tolerance 2 %  n=15+15  \
         run CV 0.4 %"
    );
    let rate = Quantity::Bandwidth.rule(10.0).unwrap();
    let wide: Vec<f64> = (0..15).map(|i| 5e9 * (1.0 + 0.03 * f64::from(i % 7))).collect();
    assert_eq!(
        line(&rate, &wide, &around(5.1e9, 15)),
        "INCONCLUSIVE  send_lat rc 64 B bw  43.6 Gb/s -> 40.8 Gb/s  -6.1 % [99 % CI -11.1 % .. -0.6 %]  tolerance 2 %  \
         n=15+15  run CV 5.9 %: a drop of up to 11.1 % cannot be ruled out (must-detect 10 %). Add runs, or quiet the \
         machine"
    );
    assert_eq!(
        line(&p50(), &around(100.0, 6), &around(106.0, 6)),
        "PASS  send_lat rc 64 B p50  0.1000 us -> 0.106 us  +6.0 % [99 % CI +5.6 % .. +6.4 %]  tolerance 2 %  n=6+6  \
         run CV 0.2 %: the change is not surely above 0.0200 us, below which it is none"
    );
    assert_eq!(
        line(&p50(), &around(2310.0, 3), &around(2310.0, 3)),
        "INCONCLUSIVE  send_lat rc 64 B p50  2.31 us -> 2.31 us  0.0 % [no 99 % CI]  tolerance 2 %  n=3+3  \
         run CV 0.1 %: 3 and 3 runs: it takes 6 of each. Add runs, or quiet the machine"
    );
    let found = judge_sitting(&p50(), &[around(2310.0, 6), around(2320.0, 6)], &around(2310.0, 6)).unwrap();
    assert_eq!(
        found.line("send_lat"),
        "INCONCLUSIVE  send_lat p50  2.31 us -> 2.31 us  -0.2 % [99 % CI -21.4 % .. +26.6 %]  tolerance 2 %  n=12+6 of 2+1 \
         sittings  run CV 0.3 %  (advisory): a rise of up to 26.6 % cannot be ruled out (must-detect 10 %); 2 stored \
         sittings: record 6 more for a verdict that decides. Add runs, or quiet the machine"
    );
    let kernel = "kernel 6.8.0-45 vs 6.11.0-9, mtu 1500 vs 4096";
    let found = Judgement::without(&p50(), Verdict::NotComparable, Code::Mismatch, kernel);
    assert_eq!(found.line("send_lat"), format!("NOT COMPARABLE  send_lat p50: {kernel}"));
}
