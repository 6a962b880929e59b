//! What many gates of a candidate against itself say of the machine: how often they failed, and what must be tolerated on
//! it.

use std::collections::BTreeMap;

use crate::gate::Verdict;
use crate::gate::document::{SelfTest, SelfTestSeries, Series};
use crate::gate::family::WORST_FIRST;

/// Each metric of each point over all rounds.
pub fn summary(rounds: &[Vec<Series>]) -> SelfTest {
    let first = rounds.first().into_iter().flatten();
    let series = first.map(|series| of_series(series, rounds)).collect();
    SelfTest { rounds: rounds.len(), series }
}

fn of_series(first: &Series, rounds: &[Vec<Series>]) -> SelfTestSeries {
    let of_rounds = rounds.iter().filter_map(|round| round.iter().find(|series| series.is_same(first)));
    let all: Vec<_> = of_rounds.map(|series| &series.judgement).collect();
    let mut verdicts = BTreeMap::<Verdict, usize>::new();
    for judgement in &all {
        *verdicts.entry(judgement.verdict).or_default() += 1;
    }
    let largest = |values: &mut dyn Iterator<Item = f64>| values.reduce(f64::max);
    let ratios: Vec<f64> = all.iter().filter_map(|judgement| judgement.ratio).collect();
    SelfTestSeries {
        test: first.test.clone(),
        id: first.id.clone(),
        metric: first.judgement.metric,
        verdicts,
        cv: largest(&mut all.iter().flat_map(|judgement| [judgement.cv_a, judgement.cv_b]).flatten()),
        // Either way: which arm was called the candidate is chance.
        tolerance: largest(&mut ratios.iter().map(|ratio| ratio.ln().abs().exp_m1())),
        must_detect: largest(&mut all.iter().filter_map(|judgement| judgement.mde)),
        ratios,
    }
}

/// Each metric in the round in which it fared worst, so that a verdict of all rounds is one of these.
pub fn worst(rounds: Vec<Vec<Series>>) -> Vec<Series> {
    let place = |series: &Series| WORST_FIRST.iter().position(|verdict| *verdict == series.judgement.verdict);
    let mut worst: Vec<Series> = Vec::new();
    for series in rounds.into_iter().flatten() {
        match worst.iter().position(|one| one.is_same(&series)) {
            Some(at) if place(&series) < place(&worst[at]) => worst[at] = series,
            Some(_) => {}
            None => worst.push(series),
        }
    }
    worst
}
