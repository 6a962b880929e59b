//! What many gates of a candidate against itself say of the machine: how often they failed, and what must be tolerated on
//! it.

use std::collections::BTreeMap;

use crate::gate::document::{LimitOutcome, SelfTest, SelfTestSeries, Series};
use crate::gate::family::WORST_FIRST;
use crate::gate::{Judgement, Rule, Verdict};
use crate::result::Quantity;

/// Each metric of each point over all rounds, in the order of [`worst`].
pub fn summary(rounds: &[Vec<Series>]) -> SelfTest {
    let mut known: Vec<&Series> = Vec::new();
    for series in rounds.iter().flatten() {
        // A round may lack what another has.
        if !known.iter().any(|one| one.is_same(series)) {
            known.push(series);
        }
    }
    let series = known.into_iter().map(|series| of_series(series, rounds)).collect();
    SelfTest { rounds: rounds.len(), series }
}

/// Each metric in the round in which it fared worst, so that a verdict of all rounds is one of these.
pub fn worst(rounds: Vec<Vec<Series>>) -> Vec<Series> {
    let rank = |series: &Series| WORST_FIRST.iter().position(|verdict| *verdict == series.judgement.verdict);
    worst_of(rounds.into_iter().flatten(), Series::is_same, rank)
}

/// Each limit at each point in the round in which it fared worst.
pub fn worst_limits(all: Vec<LimitOutcome>) -> Vec<LimitOutcome> {
    let is_same = |one: &LimitOutcome, other: &LimitOutcome| {
        one.test == other.test
            && one.result.limit == other.result.limit
            && one.result.point == other.result.point
    };
    worst_of(all, is_same, |limit| limit.result.verdict.rank())
}

/// Of those that are the same the one of the lowest rank, and of these the first.
fn worst_of<T, R: PartialOrd>(
    all: impl IntoIterator<Item = T>,
    is_same: impl Fn(&T, &T) -> bool,
    rank: impl Fn(&T) -> R,
) -> Vec<T> {
    let mut worst: Vec<T> = Vec::new();
    for one in all {
        match worst.iter_mut().find(|known| is_same(known, &one)) {
            Some(known) if rank(&one) < rank(known) => *known = one,
            Some(_) => {}
            None => worst.push(one),
        }
    }
    worst
}

fn of_series(one: &Series, rounds: &[Vec<Series>]) -> SelfTestSeries {
    let of_rounds = rounds.iter().filter_map(|round| round.iter().find(|series| series.is_same(one)));
    let all: Vec<&Judgement> = of_rounds.map(|series| &series.judgement).collect();
    let mut verdicts = BTreeMap::<Verdict, usize>::new();
    for judgement in &all {
        *verdicts.entry(judgement.verdict).or_default() += 1;
    }
    let largest = |values: &mut dyn Iterator<Item = f64>| values.reduce(f64::max);
    let ratios: Vec<f64> = all.iter().filter_map(|judgement| judgement.ratio).collect();
    let metric = one.judgement.metric;
    // Either way: which arm was called the candidate is chance.
    let tolerance = largest(&mut ratios.iter().map(|ratio| ratio.ln().abs().exp_m1()));
    let must_detect = largest(&mut all.iter().filter_map(|judgement| judgement.mde));
    let suggested = tolerance.and_then(|tolerance| suggested(metric, tolerance, must_detect));
    SelfTestSeries {
        test: one.test.clone(),
        id: one.id.clone(),
        metric,
        verdicts,
        cv: largest(&mut all.iter().flat_map(|judgement| [judgement.cv_a, judgement.cv_b]).flatten()),
        ratios,
        tolerance,
        must_detect,
        suggested_tolerance: suggested.map(|(tolerance, _)| tolerance),
        suggested_must_detect: suggested
            .map(|(_, must_detect)| must_detect)
            .filter(|_| must_detect.is_some()),
    }
}

/// Whole percent for a suite, as shares: what no round went beyond, and what it would have found; never below the usual
/// ones. `None` where no rule can be so wide.
fn suggested(metric: Quantity, tolerance: f64, must_detect: Option<f64>) -> Option<(f64, f64)> {
    let usual = metric.rule(0.0)?;
    // A hundredth of a percent is noise of the arithmetic: 3 % is not to become 4.
    let whole = |share: f64| (100.0 * share - 0.01).ceil();
    let tolerance = whole(tolerance.max(usual.tolerance));
    let must_detect = whole(must_detect.unwrap_or(0.0).max(usual.must_detect)).max(tolerance + 1.0);
    let (tolerance, must_detect) = (tolerance / 100.0, must_detect / 100.0);
    Rule::new(metric, tolerance, must_detect).check().is_ok().then_some((tolerance, must_detect))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_suggested_is_whole_percent_and_a_rule_that_can_be_written() {
        let of = |metric, tolerance, must_detect| suggested(metric, tolerance, must_detect);
        assert_eq!(of(Quantity::P50, 0.001, Some(0.02)), Some((0.02, 0.10)), "as usual");
        assert_eq!(of(Quantity::P50, 0.031, Some(0.123)), Some((0.04, 0.13)));
        assert_eq!(of(Quantity::P50, 0.03, None), Some((0.03, 0.10)));
        assert_eq!(of(Quantity::P99, 0.30, Some(0.1)), Some((0.30, 0.31)));
        assert_eq!(
            of(Quantity::Bandwidth, 0.99, Some(0.5)),
            None,
            "a rate cannot drop by more than all of it"
        );
        assert_eq!(of(Quantity::P50, 1.5, Some(3.0)), None);
        assert_eq!(of(Quantity::Max, 0.1, Some(0.2)), None, "never compared");
    }

    #[test]
    fn the_worst_of_the_same_takes_the_place_of_the_first() {
        let all = [("a", 2), ("b", 1), ("a", 0), ("b", 1), ("a", 1)];
        let is_same = |one: &(&str, i32), other: &(&str, i32)| one.0 == other.0;
        assert_eq!(worst_of(all, is_same, |of| of.1), [("a", 0), ("b", 1)]);
    }
}
