//! The exact distribution of Mann and Whitney's statistic: of all ways in which the runs of two arms that do not differ can
//! be ranked, how many are as lopsided as this one?
//!
//! H. B. Mann, D. R. Whitney: On a test of whether one of two random variables is stochastically larger than the other,
//! Annals of Mathematical Statistics 18 (1947). Tied values get the mean of their ranks, and their distribution is that of
//! all ways to deal these very ranks to the arms (E. L. Lehmann: Nonparametrics, 1975, section 1.4).

/// Runs of an arm at most: what an exact count is cheap for, and far more than a decision needs.
pub const MOST_RUNS: usize = 40;

/// How many of the n * m differences between two arms, sorted, an interval leaves out at each end, plus one: its ends are
/// the differences of this rank from below and from above, and each is wrong with probability `tail` at most. `None` where
/// even the outermost differences are wrong more often: the runs are too few.
pub fn depth(n: usize, m: usize, tail: f64) -> Option<usize> {
    // A tail of 5 % is one way in twenty, however 0.05 is rounded.
    let allowed = tail * total(n, m) as f64 * (1.0 + 1e-9);
    let mut below = 0;
    let depth = ways(n, m).into_iter().take_while(|&count| {
        below += count;
        below as f64 <= allowed
    });
    Some(depth.count()).filter(|&depth| depth > 0)
}

/// Ways in which u of the n * m pairs have the run of the first arm above that of the second, for u up to half of the
/// pairs; the other half is its mirror. The coefficients of the product of (1 - q^(m+i)) / (1 - q^i).
fn ways(n: usize, m: usize) -> Vec<i128> {
    let mut ways = vec![0; n * m / 2 + 1];
    ways[0] = 1;
    for i in 1..=n {
        for u in (m + i..ways.len()).rev() {
            ways[u] -= ways[u - m - i];
        }
        for u in i..ways.len() {
            ways[u] += ways[u - i];
        }
    }
    ways
}

/// Ways to choose n of n + m.
fn total(n: usize, m: usize) -> i128 {
    (1..=n).fold(1, |total, i| total * (m + i) as i128 / i as i128)
}

/// The probability, of both sides together, that ranks are dealt to two arms as lopsidedly as here or more, if the arms do
/// not differ; ties count as such. Decides nothing in a gate, where a difference may be sure and too small to matter.
///
/// Each arm has 1 to [`MOST_RUNS`] values.
pub fn p_value(a: &[f64], b: &[f64]) -> f64 {
    let ranks = doubled_mid_ranks(a, b);
    let seen: usize = ranks[..a.len()].iter().sum();
    let most: usize = ranks.iter().sum();
    // dealt[k][s]: ways to deal k of the ranks so far to the first arm, with the sum s.
    let mut dealt = vec![vec![0.0; most + 1]; a.len() + 1];
    dealt[0][0] = 1.0;
    for &rank in &ranks {
        for k in (0..a.len()).rev() {
            let (less, more) = dealt.split_at_mut(k + 1);
            for (from, to) in less[k].iter().zip(&mut more[0][rank..]) {
                *to += from;
            }
        }
    }
    let sums = &dealt[a.len()];
    let (below, above): (f64, f64) = (sums[..=seen].iter().sum(), sums[seen..].iter().sum());
    (2.0 * below.min(above) / sums.iter().sum::<f64>()).min(1.0)
}

/// Twice the rank of each value among all, those of `a` first; a tie has the mean of the ranks that it takes up.
fn doubled_mid_ranks(a: &[f64], b: &[f64]) -> Vec<usize> {
    let all = || a.iter().chain(b);
    all()
        .map(|value| {
            let below = all().filter(|&other| other < value).count();
            let equal = all().filter(|&other| other == value).count();
            2 * below + equal + 1
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All subsets of `n` of the ranks, one by one.
    fn enumerated(a: &[f64], b: &[f64]) -> f64 {
        let ranks = doubled_mid_ranks(a, b);
        let sum = |set: u32| (0..ranks.len()).filter(|i| set >> i & 1 == 1).map(|i| ranks[i]).sum::<usize>();
        let sets = (0..1_u32 << ranks.len()).filter(|set| set.count_ones() as usize == a.len());
        let sums: Vec<usize> = sets.map(sum).collect();
        let seen = sum((1 << a.len()) - 1);
        let below = sums.iter().filter(|&&sum| sum <= seen).count();
        let above = sums.iter().filter(|&&sum| sum >= seen).count();
        (2.0 * below.min(above) as f64 / sums.len() as f64).min(1.0)
    }

    #[test]
    fn probabilities_are_those_of_counting_every_way_with_ties_and_without() {
        for (a, b) in [
            (vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0, 7.0]),
            (vec![1.0, 5.0, 3.0, 9.0], vec![4.0, 2.0, 6.0, 7.0, 8.0]),
            (vec![1.0, 1.0, 2.0, 3.0], vec![1.0, 2.0, 2.0, 3.0, 3.0]),
            (vec![1.0; 5], vec![1.0; 4]),
            (vec![2.0; 5], vec![1.0; 5]),
        ] {
            assert_eq!(p_value(&a, &b), enumerated(&a, &b), "{a:?} {b:?}");
        }
        assert_eq!(p_value(&[1.0; 3], &[1.0; 3]), 1.0);
    }

    #[test]
    fn a_tie_has_the_mean_of_its_ranks() {
        // Ranks 1, 2.5, 2.5, 5, 5, 5.
        assert_eq!(doubled_mid_ranks(&[3.0, 1.0, 2.0], &[3.0, 2.0, 3.0]), [10, 2, 5, 10, 5, 10]);
    }

    #[test]
    fn the_smallest_probabilities_are_those_of_the_tables() {
        let apart = |n: usize| {
            let a: Vec<f64> = (0..n).map(|i| i as f64).collect();
            let b: Vec<f64> = a.iter().map(|value| value + 1000.0).collect();
            p_value(&a, &b) / 2.0
        };
        for (n, table) in [(3, 0.05), (4, 0.01429), (5, 0.003968), (6, 0.001082), (40, 9.3e-24)] {
            assert!((apart(n) / table - 1.0).abs() < 0.01, "{n}: {}", apart(n));
        }
    }

    #[test]
    fn an_interval_leaves_out_what_the_tables_say() {
        // Critical values of U, one-sided 0.5 % and 2.5 % (Mann and Whitney; Lehmann, table B), plus one.
        for (n, m, tail, table) in [
            (4, 4, 0.005, None),
            (5, 5, 0.005, Some(1)),
            (6, 6, 0.005, Some(3)),
            (10, 10, 0.005, Some(17)),
            (15, 15, 0.005, Some(52)),
            (20, 20, 0.005, Some(106)),
            (3, 3, 0.025, None),
            (4, 4, 0.025, Some(1)),
            (10, 10, 0.025, Some(24)),
            (5, 8, 0.025, Some(7)),
        ] {
            assert_eq!(depth(n, m, tail), table, "{n} {m} {tail}");
            assert_eq!(depth(m, n, tail), table, "{m} {n} {tail}");
        }
    }

    #[test]
    fn both_counts_agree_up_to_the_most_runs() {
        for (n, m) in [(3, 5), (7, 7), (12, 15), (MOST_RUNS, MOST_RUNS)] {
            let tail = ways(n, m)[..=n].iter().sum::<i128>() as f64 / total(n, m) as f64;
            // One run of `a` is above n of `b`, the others above none.
            let a: Vec<f64> = (0..n).map(|i| if i == 0 { n as f64 + 0.5 } else { -(i as f64) }).collect();
            let b: Vec<f64> = (1..=m).map(|i| i as f64).collect();
            assert!((p_value(&a, &b) / 2.0 / tail - 1.0).abs() < 1e-9, "{n} {m}");
        }
    }
}
