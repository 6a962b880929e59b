//! What holds for any runs at all.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::gate::rank::p_value;
use crate::gate::{Judgement, Rule, Verdict, judge, judge_sitting};
use crate::result::Quantity;

/// Runs of one arm: around 1 us, with ties.
fn runs() -> impl Strategy<Value = Vec<f64>> {
    let value = prop_oneof![900.0..1100.0, (900_u32..1100).prop_map(f64::from), Just(1000.0), 500.0..5000.0];
    vec(value, 3..=16)
}

fn metric() -> impl Strategy<Value = Quantity> {
    prop::sample::select(Quantity::GATED.to_vec())
}

fn rule(metric: Quantity) -> Rule {
    Rule { minimum_runs: 5, ..Rule::new(metric, 0.02, 0.10) }
}

/// From the best to the worst.
fn badness(found: &Judgement) -> usize {
    let order = [Verdict::Improved, Verdict::Pass, Verdict::Inconclusive, Verdict::Regression];
    order.iter().position(|&verdict| verdict == found.verdict).unwrap()
}

/// Equal but for the rounding of logarithms.
fn close(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => (a / b - 1.0).abs() < 1e-9,
        (a, b) => a == b,
    }
}

proptest! {
    #[test]
    fn exchanged_arms_have_the_inverse_ratio(a in runs(), b in runs(), metric in metric()) {
        let rule = Rule { floor: 20.0, ..rule(metric) };
        let (there, back) = (judge(&rule, &a, &b, true)?, judge(&rule, &b, &a, true)?);
        let inverse = |value: Option<f64>| value.map(|value| 1.0 / value);
        prop_assert!(close(there.ratio, inverse(back.ratio)));
        prop_assert!(close(there.lower, inverse(back.upper)));
        prop_assert!(close(there.upper, inverse(back.lower)));
        prop_assert!(there.verdict != Verdict::Regression || back.verdict != Verdict::Regression);
        prop_assert!((p_value(&a, &b) - p_value(&b, &a)).abs() < 1e-12);
    }

    #[test]
    fn another_unit_changes_nothing(a in runs(), b in runs(), metric in metric(), power in -8..8) {
        let unit = 2_f64.powi(power);
        let scaled = |values: &[f64]| values.iter().map(|value| value * unit).collect::<Vec<_>>();
        let one = judge(&Rule { floor: 20.0, ..rule(metric) }, &a, &b, true)?;
        let other = judge(&Rule { floor: 20.0 * unit, ..rule(metric) }, &scaled(&a), &scaled(&b), true)?;
        prop_assert_eq!(one.verdict, other.verdict);
        prop_assert!(close(one.ratio, other.ratio) && close(one.lower, other.lower));
    }

    #[test]
    fn a_slower_run_never_makes_the_verdict_better(
        a in runs(), b in runs(), which in any::<prop::sample::Index>(), factor in 1.0..2.0_f64, floor in 0.0..50.0_f64,
    ) {
        let rule = Rule { floor, ..rule(Quantity::P50) };
        let mut worse = b.clone();
        worse[which.index(b.len())] *= factor;
        let (before, after) = (judge(&rule, &a, &b, true)?, judge(&rule, &a, &worse, true)?);
        prop_assert!(badness(&before) <= badness(&after), "{before:?} {after:?}");
        prop_assert!(before.ratio <= after.ratio);
        let rate = rule_of_rate();
        let (before, after) = (judge(&rate, &a, &b, true)?, judge(&rate, &a, &worse, true)?);
        prop_assert!(badness(&before) >= badness(&after), "{before:?} {after:?}");
    }

    #[test]
    fn any_number_is_judged_or_refused_and_every_verdict_is_finite(
        a in vec(any::<f64>(), 0..42), b in vec(1e-9..1e18_f64, 3..=40), metric in metric(), last in any::<bool>(),
    ) {
        let plausible = (3..=40).contains(&a.len()) && a.iter().all(|value| (1e-9..=1e18).contains(value));
        for (a, b) in [(&a, &b), (&b, &a), (&b, &b)] {
            let refused = !plausible && !std::ptr::eq(a, b);
            for found in [judge(&rule(metric), a, b, last), judge_sitting(&rule(metric), &[a.clone(), b.clone()], b)] {
                prop_assert_eq!(found.is_err(), refused);
                let Ok(found) = found else { continue };
                for value in [found.ratio, found.lower, found.upper, found.cv_a, found.cv_b, found.mde] {
                    prop_assert!(value.is_none_or(f64::is_finite), "{:?}", found);
                }
                prop_assert!(found.lower <= found.upper);
                prop_assert!(!found.line("x").contains("NaN"));
                let text = serde_json::to_string(&found).unwrap();
                prop_assert_eq!(serde_json::from_str::<Judgement>(&text).unwrap(), found);
            }
        }
    }
}

fn rule_of_rate() -> Rule {
    rule(Quantity::Bandwidth)
}
