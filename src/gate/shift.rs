//! By how much one arm exceeds the other, and between which bounds that surely lies.
//!
//! The estimate is the median of all differences between a run of one arm and a run of the other (J. L. Hodges, E. L.
//! Lehmann: Estimates of location based on rank tests, Annals of Mathematical Statistics 34, 1963). Its interval is made of
//! the shifts that the exact test of Mann and Whitney does not reject: two of the sorted differences (Lehmann:
//! Nonparametrics, sections 2.5 and 2.6). Neither assumes a distribution, and one run in ten that went wrong moves them
//! little. Ends belong to the interval, so that with tied values it holds the truth rather more often than it says.
//!
//! Of logarithms the shift is a ratio.

use crate::gate::rank;

/// A shift of the second arm against the first, in the unit of the values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shift {
    /// The estimate.
    pub estimate: f64,
    /// Both ends of the interval; `None` where the runs are too few for this confidence.
    pub bounds: Option<(f64, f64)>,
}

impl Shift {
    /// The same shift seen from the other arm.
    pub(in crate::gate) fn reversed(self) -> Self {
        Self { estimate: -self.estimate, bounds: self.bounds.map(|(lower, upper)| (-upper, -lower)) }
    }
}

/// The shift of `b` against `a`, with an interval that holds the truth with probability `confidence` (0.99) or more. Each
/// arm has 1 to [`rank::MOST_RUNS`] finite values.
pub fn shift(a: &[f64], b: &[f64], confidence: f64) -> Shift {
    let mut differences: Vec<f64> = b.iter().flat_map(|b| a.iter().map(move |a| b - a)).collect();
    differences.sort_unstable_by(f64::total_cmp);
    let bounds = rank::depth(a.len(), b.len(), (1.0 - confidence) / 2.0)
        .map(|depth| (differences[depth - 1], differences[differences.len() - depth]));
    Shift { estimate: middle(&differences), bounds }
}

/// Runs of each arm without which there is no interval of this confidence, at any scatter: 4 for 0.95, 5 for 0.99.
pub fn fewest_runs(confidence: f64) -> usize {
    let enough = |&n: &usize| rank::depth(n, n, (1.0 - confidence) / 2.0).is_some();
    (1..rank::MOST_RUNS).find(enough).unwrap_or(rank::MOST_RUNS)
}

/// The median of sorted values.
fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 }
}

/// The median of values, of which there is one at least.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    middle(&sorted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_is_the_median_of_all_differences() {
        // Differences: 3 4 5, 2 3 4, 0 1 2.
        let found = shift(&[1.0, 2.0, 4.0], &[4.0, 5.0, 6.0], 0.9);
        assert_eq!(found, Shift { estimate: 3.0, bounds: Some((0.0, 5.0)) });
        assert_eq!(shift(&[1.0, 2.0, 4.0], &[4.0, 5.0, 6.0], 0.95).bounds, None);
    }

    #[test]
    fn equal_values_have_a_shift_of_nothing_and_are_sure_of_it() {
        assert_eq!(shift(&[7.0; 6], &[7.0; 6], 0.99), Shift { estimate: 0.0, bounds: Some((0.0, 0.0)) });
        assert_eq!(shift(&[7.0; 6], &[9.0; 6], 0.99), Shift { estimate: 2.0, bounds: Some((2.0, 2.0)) });
    }

    #[test]
    fn one_wrong_run_of_six_moves_little() {
        let a = [100.0, 101.0, 102.0, 103.0, 104.0, 105.0];
        let b = [100.5, 101.5, 102.5, 103.5, 104.5, 1e6];
        let found = shift(&a, &b, 0.99);
        assert!(found.estimate < 2.0 && found.bounds.unwrap().1 < 1e6 - 100.0, "{found:?}");
    }

    #[test]
    fn an_interval_needs_a_few_runs_however_far_apart() {
        assert_eq!([0.8, 0.9, 0.95, 0.99, 0.999].map(fewest_runs), [3, 3, 4, 5, 7]);
    }

    /// The test that the interval inverts, with ties: the shifts outside are those it rejects.
    #[test]
    fn an_interval_holds_the_shifts_that_the_test_does_not_reject() {
        let a = [100.0, 103.0, 101.0, 108.0, 104.0, 102.0, 99.0];
        let b = [104.0, 107.0, 110.0, 103.0, 109.0, 105.5, 101.0];
        let (lower, upper) = shift(&a, &b, 0.95).bounds.unwrap();
        let p = |shift: f64| rank::p_value(&a, &b.map(|value| value - shift));
        assert!(p(lower - 0.01) <= 0.05 && p(upper + 0.01) <= 0.05);
        assert!(p(lower + 0.01) > 0.05 && p(upper - 0.01) > 0.05);
    }
}
