//! A new sitting against stored ones.
//!
//! A machine differs from one sitting to the next: another kernel page layout, another neighbour, another temperature.
//! Within one sitting nothing shows that, and more runs of it make the mistake surer, not smaller. So each stored sitting
//! is one value, the median of its runs, and the question is whether the new one belongs among them: a prediction
//! interval. With S sittings whose medians (of logarithms) have the mean y and the standard deviation s, a further one lies
//! within `y ± t s sqrt(1 + 1/S)`, where t is Student's with S - 1 degrees of freedom (Hahn, Meeker: Statistical Intervals,
//! section 4.8). The spread within sittings is part of s, so that the new one must have as many runs.

use crate::error::{Error, Result};
use crate::gate::rule::{Rule, check, decide, described, judge, logarithms};
use crate::gate::shift::{Shift, median};
use crate::gate::student;
use crate::gate::verdict::{Code, Judgement};
use crate::units::counted;

/// Sittings without which a verdict is advisory. The interval of 99 % is 11.5 deviations either way with three of them,
/// 5.0 with five, 3.7 with eight, and never below 2.6.
pub const FEWEST_SITTINGS: usize = 8;

/// How many more than `stored` it takes, in words; `None` where there are enough.
pub fn more_sittings(stored: usize) -> Option<String> {
    let missing = FEWEST_SITTINGS.checked_sub(stored).filter(|missing| *missing > 0)?;
    Some(format!("{missing} more for a verdict that decides"))
}

/// Sittings that are looked at for how many would do.
const MOST_SITTINGS: usize = 100;

/// Judges a new sitting against stored ones, each with one value a run. Below [`FEWEST_SITTINGS`] the verdict is advisory;
/// with one there is no spread between sittings, and it is that of [`judge`] and advisory.
///
/// # Errors
/// As [`judge`], for each sitting; a usage error if there is none.
pub fn judge_sitting(rule: &Rule, sittings: &[Vec<f64>], new: &[f64]) -> Result<Judgement> {
    rule.check()?;
    let Some(longest) = sittings.iter().map(Vec::len).max() else {
        let error = Error::usage(format!("no stored sitting has {}", rule.metric.name()));
        return Err(error.with_remedy("record a baseline first"));
    };
    for (i, sitting) in sittings.iter().enumerate() {
        check(rule, &format!("baseline's sitting {}", i + 1), sitting)?;
    }
    check(rule, "candidate", new)?;
    let mut found = match sittings {
        [only] => judge(rule, only, new, true)?,
        _ => {
            let ratio =
                prediction(sittings.iter().map(|sitting| logarithms(sitting)), &logarithms(new), rule);
            let difference = prediction(sittings.iter().cloned(), new, rule);
            let mut found = described(rule, &sittings.concat(), new, ratio);
            // What the change is against: every sitting counts once, however many runs it has.
            found.median_a = Some((median(&logarithms(new)) - ratio.estimate).exp());
            if new.len() < longest {
                let message = format!(
                    "{} runs of the candidate: it takes {longest}, as in a stored sitting",
                    new.len()
                );
                found.because(Code::TooFewRuns, message);
            } else {
                let deviations = student::quantile(rule.confidence, sittings.len() - 1);
                decide(rule, &mut found, [ratio, difference], deviations, true);
            }
            let is_too_wide = found.reasons.iter().any(|reason| reason.code == Code::TooWide);
            if let (true, Some((lower, upper))) = (is_too_wide, ratio.bounds) {
                let half = |count: usize| deviations_of(rule.confidence, count);
                let spread = (upper - lower) / 2.0 / half(sittings.len());
                let narrow = |count: &usize| spread * half(*count) < rule.worse_by(rule.must_detect);
                let more = sittings.len() + 1..=MOST_SITTINGS.max(2 * sittings.len());
                // A spread that would do for a pass is no hindrance: the change is.
                if sittings.len() >= FEWEST_SITTINGS && !narrow(&sittings.len()) {
                    let message = match more.into_iter().find(narrow) {
                        Some(count) => format!("sittings that differ so much must be {count}"),
                        None => "sittings differ too much for any number of them: measure both arms in one"
                            .to_owned(),
                    };
                    found.because(Code::SittingsDiffer, message);
                }
            }
            found
        }
    };
    found.sittings = Some(sittings.len());
    if let Some(more) = more_sittings(sittings.len()) {
        found.advisory = true;
        let stored = counted(sittings.len(), "stored sitting");
        found.because(Code::TooFewSittings, format!("{stored}: record {more}"));
    }
    Ok(found)
}

/// The shift of a new sitting against the mean of others, with the interval in which one more of them would lie.
fn prediction(sittings: impl Iterator<Item = Vec<f64>>, new: &[f64], rule: &Rule) -> Shift {
    let medians: Vec<f64> = sittings.map(|sitting| median(&sitting)).collect();
    let count = medians.len() as f64;
    let mean = medians.iter().sum::<f64>() / count;
    let variance = medians.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let estimate = median(new) - mean;
    let half = deviations_of(rule.confidence, medians.len()) * variance.sqrt();
    Shift { estimate, bounds: Some((estimate - half, estimate + half)) }
}

/// Half the width of the interval of `count` sittings, in their standard deviations.
fn deviations_of(confidence: f64, count: usize) -> f64 {
    student::quantile(confidence, count - 1) * (1.0 + 1.0 / count as f64).sqrt()
}
