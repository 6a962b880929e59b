//! Many metrics together: how sure each must be, and the verdict of all.

use crate::gate::verdict::{Judgement, Verdict};

/// Metrics up to which each may be wrong as often as one alone.
const FEW: usize = 8;

/// How sure an interval must be among so many metrics: 0.99 up to eight, and beyond that so much that the errors of all
/// verdicts add up to 4 % at most. What is tolerated keeps false alarms of a job below 1 % (`docs/gating.md`).
pub fn confidence(metrics: usize) -> f64 {
    1.0 - 0.01 * FEW as f64 / metrics.max(FEW) as f64
}

/// The verdict of a job: the worst that any metric has that is not advisory. `Inconclusive` where all are advisory,
/// `NotComparable` where there is none: a gate that compared nothing must not call that a pass.
pub fn overall<'a>(judgements: impl IntoIterator<Item = &'a Judgement>) -> Verdict {
    let mut is_any = false;
    let judgements = judgements.into_iter().inspect(|_| is_any = true);
    let deciding = judgements.filter(|found| !found.advisory).map(|found| found.verdict);
    let worst = worst(deciding);
    worst.unwrap_or(if is_any { Verdict::Inconclusive } else { Verdict::NotComparable })
}

/// From the worst to the best. A regression stands whatever else went wrong; with none, a run that must not be trusted comes
/// before one that cannot be compared.
pub const WORST_FIRST: [Verdict; 6] = [
    Verdict::Regression,
    Verdict::Invalid,
    Verdict::NotComparable,
    Verdict::Inconclusive,
    Verdict::Improved,
    Verdict::Pass,
];

/// The worst of them.
pub fn worst(verdicts: impl Iterator<Item = Verdict>) -> Option<Verdict> {
    let verdicts: Vec<_> = verdicts.collect();
    WORST_FIRST.into_iter().find(|verdict| verdicts.contains(verdict))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Code;
    use crate::result::Quantity;

    #[test]
    fn more_metrics_must_be_surer_each() {
        assert_eq!([0, 1, 8].map(confidence), [0.99; 3]);
        for (metrics, tail) in [(16, 0.0025), (24, 0.001_667), (80, 0.0005)] {
            assert!(((1.0 - confidence(metrics)) / 2.0 - tail).abs() < 1e-6, "{metrics}");
        }
    }

    #[test]
    fn the_worst_that_decides_is_the_verdict_of_the_job() {
        let found = |verdict, metric: Quantity| {
            Judgement::without(&metric.rule(10.0).unwrap(), verdict, Code::Mismatch, "")
        };
        let of = |verdicts: &[Verdict]| {
            overall(&verdicts.iter().map(|&verdict| found(verdict, Quantity::P50)).collect::<Vec<_>>())
        };
        use Verdict::*;
        assert_eq!(of(&[Pass, Pass]), Pass);
        assert_eq!(of(&[Pass, Improved]), Improved);
        assert_eq!(of(&[Improved, Inconclusive]), Inconclusive);
        assert_eq!(of(&[Inconclusive, NotComparable]), NotComparable);
        assert_eq!(of(&[NotComparable, Invalid]), Invalid);
        assert_eq!(of(&[Invalid, Regression, Pass]), Regression);
        let advisory = found(Regression, Quantity::P99_9);
        assert_eq!(overall(&[advisory.clone(), found(Pass, Quantity::P50)]), Pass);
        assert_eq!(overall(&[advisory]), Inconclusive);
        assert_eq!(overall(&[]), NotComparable);
    }
}
