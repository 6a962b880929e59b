//! The verdict of many metrics together.

use crate::gate::verdict::{Judgement, Verdict};

/// The verdict of a job: the first of these that any metric has that is not advisory. A regression stands whatever else
/// went wrong; with none, a run that must not be trusted comes before one that cannot be compared. `Inconclusive` where
/// all are advisory, `NotComparable` where there is none: a gate that compared nothing must not call that a pass.
///
/// No correction for the number of metrics: the tolerance and an error of 0.5 % a metric keep false alarms of 24
/// metrics below 1 % of jobs (`docs/gating.md`).
pub fn overall(judgements: &[Judgement]) -> Verdict {
    [
        Verdict::Regression,
        Verdict::Invalid,
        Verdict::NotComparable,
        Verdict::Inconclusive,
        Verdict::Improved,
        Verdict::Pass,
    ]
    .into_iter()
    .find(|&verdict| judgements.iter().any(|found| !found.advisory && found.verdict == verdict))
    .unwrap_or(if judgements.is_empty() { Verdict::NotComparable } else { Verdict::Inconclusive })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{Code, Metric};

    #[test]
    fn the_worst_that_decides_is_the_verdict_of_the_job() {
        let found = |verdict, metric: Metric| {
            Judgement::without(&metric.rule(10.0).unwrap(), verdict, Code::Mismatch, "")
        };
        let of = |verdicts: &[Verdict]| {
            overall(&verdicts.iter().map(|&verdict| found(verdict, Metric::P50)).collect::<Vec<_>>())
        };
        use Verdict::*;
        assert_eq!(of(&[Pass, Pass]), Pass);
        assert_eq!(of(&[Pass, Improved]), Improved);
        assert_eq!(of(&[Improved, Inconclusive]), Inconclusive);
        assert_eq!(of(&[Inconclusive, NotComparable]), NotComparable);
        assert_eq!(of(&[NotComparable, Invalid]), Invalid);
        assert_eq!(of(&[Invalid, Regression, Pass]), Regression);
        let advisory = found(Regression, Metric::P999);
        assert_eq!(overall(&[advisory.clone(), found(Pass, Metric::P50)]), Pass);
        assert_eq!(overall(&[advisory]), Inconclusive);
        assert_eq!(overall(&[]), NotComparable);
    }
}
