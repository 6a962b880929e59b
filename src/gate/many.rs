//! The shift between two arms of any number of runs: the same estimate and interval as [`shift`](super::shift), without
//! laying out all differences. 5,000 runs a side have 25 million.
//!
//! A difference of a given rank is found by bisection: how many of them lie at or below a value takes one walk through both
//! sorted arms. Where the exact distribution is too large to be counted, its normal approximation says how many
//! differences the interval leaves out (Lehmann: Nonparametrics, section 1.3); with more than eight runs on the smaller
//! side and dozens on the larger that is within a rank or two.

use super::rank;
use super::shift::Shift;

/// Confidence of the interval.
pub const CONFIDENCE: f64 = 0.95;

/// The 97.5th percentile of the normal distribution, which goes with [`CONFIDENCE`].
const Z: f64 = 1.959_964;

/// Runs of the smaller arm up to which the distribution is counted, whatever the larger one has.
const FEW: usize = 8;

/// The shift of `b` against `a`, with an interval of [`CONFIDENCE`]. Each arm has at least one value, all finite.
pub fn shift(a: &[f64], b: &[f64]) -> Shift {
    let (mut a, mut b) = (a.to_vec(), b.to_vec());
    a.sort_unstable_by(f64::total_cmp);
    b.sort_unstable_by(f64::total_cmp);
    let pairs = a.len() * b.len();
    let estimate = match pairs % 2 {
        1 => ranked(&a, &b, pairs / 2 + 1),
        _ => (ranked(&a, &b, pairs / 2) + ranked(&a, &b, pairs / 2 + 1)) / 2.0,
    };
    let bounds =
        depth(a.len(), b.len()).map(|depth| (ranked(&a, &b, depth), ranked(&a, &b, pairs + 1 - depth)));
    Shift { estimate, bounds }
}

/// Rank from either end of the difference that ends the interval.
fn depth(n: usize, m: usize) -> Option<usize> {
    if n.min(m) <= FEW || n.max(m) <= rank::MOST_RUNS {
        return rank::depth(n, m, (1.0 - CONFIDENCE) / 2.0);
    }
    Some(approximate_depth(n, m))
}

/// The same by the normal approximation.
fn approximate_depth(n: usize, m: usize) -> usize {
    let (n, m) = (n as f64, m as f64);
    let left_out = n * m / 2.0 - Z * (n * m * (n + m + 1.0) / 12.0).sqrt() - 0.5;
    left_out.max(0.0) as usize + 1
}

/// The difference of this rank, from 1, among all of `b` less `a`; both sorted.
fn ranked(a: &[f64], b: &[f64], rank: usize) -> f64 {
    // The order of floating-point numbers is that of their bits, once negative ones are turned over.
    let (mut low, mut high) = (bits(b[0] - a[a.len() - 1]), bits(b[b.len() - 1] - a[0]));
    while low < high {
        // Between two numbers of which the sum may not fit.
        let middle = ((i128::from(low) + i128::from(high)) >> 1) as i64;
        if at_most(a, b, number(middle)) >= rank { high = middle } else { low = middle + 1 }
    }
    number(low)
}

/// How many differences are no more than `most`.
fn at_most(a: &[f64], b: &[f64], most: f64) -> usize {
    let (mut count, mut below) = (0, 0);
    for a in a {
        while below < b.len() && b[below] - a <= most {
            below += 1;
        }
        count += below;
    }
    count
}

/// A number as an integer of the same order.
fn bits(number: f64) -> i64 {
    // Both zeros are one.
    let bits = (number + 0.0).to_bits() as i64;
    if bits < 0 { i64::MIN - bits } else { bits }
}

fn number(bits: i64) -> f64 {
    f64::from_bits(if bits < 0 { i64::MIN - bits } else { bits } as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::shift as exact;
    use proptest::prelude::*;

    fn values(most: usize) -> impl Strategy<Value = Vec<f64>> {
        // Small whole numbers tie, as percentiles of a histogram do.
        prop::collection::vec(prop_oneof![(-5..5_i32).prop_map(f64::from), -1e3..1e3_f64], 1..=most)
    }

    proptest! {
        #[test]
        fn few_runs_have_the_exact_shift(a in values(rank::MOST_RUNS), b in values(rank::MOST_RUNS)) {
            prop_assert_eq!(shift(&a, &b), exact::shift(&a, &b, CONFIDENCE));
        }

        #[test]
        fn arms_that_change_places_turn_the_shift_over(a in values(300), b in values(300)) {
            let (there, back) = (shift(&a, &b), shift(&b, &a));
            prop_assert_eq!(there.estimate, -back.estimate);
            prop_assert_eq!(there.bounds, back.bounds.map(|(low, high)| (-high, -low)));
        }

        #[test]
        fn a_number_keeps_its_place_as_bits(a in prop::num::f64::NORMAL, b in prop::num::f64::NORMAL) {
            prop_assert_eq!(number(bits(a)), a);
            prop_assert_eq!(bits(a) < bits(b), a < b);
        }
    }

    #[test]
    fn the_approximation_meets_the_exact_rank_where_both_are_known() {
        for (n, m) in [(12, 40), (20, 40), (40, 40)] {
            let approximate = approximate_depth(n, m) as i64;
            let exact = rank::depth(n, m, 0.025).unwrap() as i64;
            assert!((approximate - exact).abs() <= 2, "{n} {m}: {approximate}, exactly {exact}");
        }
        assert_eq!(depth(3, 5_000).map(|depth| depth > 1), Some(true));
    }
}
