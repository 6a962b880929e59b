//! The decision for one metric, from the interval of the change.
//!
//! * **regression**: the whole interval is worse than the tolerance;
//! * **improved**: the whole interval is better than it;
//! * **pass**: the interval ends below the worsening that must be detected;
//! * **inconclusive**: none of these.
//!
//! Where the first and the third both hold, a regression it is. Each is wrong with 0.5 % at most at its own limit. A gate
//! may look twice, after six pairs and after more. The first look ends only what improved, or passes with an estimate
//! within the tolerance: a regression is found by one look alone, so that looking twice raises no false alarm, and what
//! seems to have changed is looked at again before it passes.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, Step};
use crate::gate::rank::MOST_RUNS;
use crate::gate::shift::{Shift, fewest_runs, median, shift};
use crate::gate::student;
use crate::gate::verdict::{Code, Judgement, Verdict};
use crate::result::Quantity;

/// Pairs of runs before the first look.
pub const FIRST_LOOK: usize = 6;

/// Pairs of runs before the last look.
pub const LAST_LOOK: usize = 15;

/// Runs of an arm without which a scatter means nothing.
pub const FEWEST_RUNS: usize = 3;

/// What is no measurement in any unit that a metric has lies outside.
const PLAUSIBLE: std::ops::RangeInclusive<f64> = 1e-9..=1e18;

/// What of one metric is tolerated, and how sure a verdict must be. Shares are of the baseline: of a latency 0.02 is 2 %
/// more, of a rate 2 % less.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// What is compared.
    pub metric: Quantity,
    /// Change that is no regression, as a share, from 0 up to 1.
    pub tolerance: f64,
    /// Worsening that a pass rules out, as a share, above the tolerance; of a rate below 1.
    pub must_detect: f64,
    /// A change below it is none, whatever its share: in the unit of the metric, 0 or more.
    pub floor: f64,
    /// Probability with which the interval holds the truth, between 0.5 and 1; half of the rest is the error of a verdict.
    pub confidence: f64,
    /// Runs of each arm without which nothing is decided, 3 to 40.
    pub minimum_runs: usize,
    /// The verdict is shown and decides nothing.
    pub advisory: bool,
}

impl Rule {
    /// A rule with an error of 0.5 % a verdict, from six runs of each arm on, without a floor.
    pub fn new(metric: Quantity, tolerance: f64, must_detect: f64) -> Self {
        Self {
            metric,
            tolerance,
            must_detect,
            floor: 0.0,
            confidence: 0.99,
            minimum_runs: FIRST_LOOK,
            advisory: false,
        }
    }

    /// # Errors
    /// A usage error that names the value out of range.
    pub fn check(&self) -> Result<()> {
        let rate = !self.metric.class().higher_is_worse();
        let wrong = |what: &str, value: f64, range: &str| {
            Err(Error::usage(format!("{what} of {} is {value}: it must be {range}", self.metric.name())))
        };
        // Finer than shares are shown elsewhere: what is just outside must not look as if it were inside.
        let percent = |share: f64| format!("{}%", (share * 1e8).round() / 1e6);
        if !(0.0..1.0).contains(&self.tolerance) {
            let (metric, found) = (self.metric.name(), percent(self.tolerance));
            return Err(Error::usage(format!(
                "tolerance of {metric} is {found}: it must be 0% or more and below 100%"
            ))
            .with_remedy(format!("write a smaller tolerance of {metric}")));
        }
        let most = if rate { 1.0 } else { 100.0 };
        if !(self.must_detect > self.tolerance && self.must_detect < most) {
            let metric = self.metric.name();
            let [found, tolerance, most] = [self.must_detect, self.tolerance, most].map(percent);
            let cause = format!(
                "must_detect of {metric} is {found}: it must be above its tolerance, {tolerance}, and below {most}"
            );
            return Err(Error::usage(cause)
                .with_remedy(format!("write another must_detect, or a smaller tolerance, of {metric}")));
        }
        if !(0.0..=*PLAUSIBLE.end()).contains(&self.floor) {
            return wrong("floor", self.floor, "0 or more");
        }
        if !(0.5..1.0).contains(&self.confidence) {
            return wrong("confidence", self.confidence, "0.5 or more and below 1");
        }
        if !(FEWEST_RUNS..=MOST_RUNS).contains(&self.minimum_runs) {
            return wrong("minimum of runs", self.minimum_runs as f64, "3 to 40");
        }
        Ok(())
    }

    /// The logarithm of a ratio that is worse by a share; negative where better.
    pub(in crate::gate) fn worse_by(&self, share: f64) -> f64 {
        if self.metric.class().higher_is_worse() { share.ln_1p() } else { -(-share).ln_1p() }
    }

    /// A worsening as a share, of the logarithm of its ratio.
    fn share(&self, worse: f64) -> f64 {
        if self.metric.class().higher_is_worse() { worse.exp_m1() } else { -(-worse).exp_m1() }
    }
}

/// Judges the runs of one metric: `a` of the baseline, `b` of the candidate, one value a run, measured in turns within one
/// sitting. Unless this is the `last` look, what seems to have changed for the worse is left inconclusive; then judge all
/// metrics again, with more runs.
///
/// # Errors
/// A usage error if the rule is out of range or an arm has not 3 to 40 runs; an invalid number if a value is none.
pub fn judge(rule: &Rule, a: &[f64], b: &[f64], last: bool) -> Result<Judgement> {
    rule.check()?;
    check(rule, "baseline", a)?;
    check(rule, "candidate", b)?;
    let ratio = shift(&logarithms(a), &logarithms(b), rule.confidence);
    let mut found = described(rule, a, b, ratio);
    let runs = a.len().min(b.len());
    if runs < rule.minimum_runs || ratio.bounds.is_none() {
        let needed = rule.minimum_runs.max(fewest_runs(rule.confidence));
        found.because(
            Code::TooFewRuns,
            format!("{} and {} runs: it takes {needed} of each", a.len(), b.len()),
        );
        return Ok(found);
    }
    // The scatter of the estimate, as a normal one with an interval of this width would have.
    let deviations = student::quantile(rule.confidence, a.len() + b.len() - 2);
    decide(rule, &mut found, [ratio, shift(a, b, rule.confidence)], deviations, last);
    Ok(found)
}

/// # Errors
/// A usage error at too few or too many runs, an invalid number at a value that is none.
pub(in crate::gate) fn check(rule: &Rule, arm: &str, values: &[f64]) -> Result<()> {
    let (metric, count) = (rule.metric.name(), values.len());
    if !(FEWEST_RUNS..=MOST_RUNS).contains(&count) {
        let error = Error::usage(format!(
            "{count} runs of the {arm} with {metric}: not {FEWEST_RUNS} to {MOST_RUNS}"
        ));
        return Err(error.with_remedy(format!("measure each arm {FIRST_LOOK} to {LAST_LOOK} times")));
    }
    match values.iter().position(|value| !PLAUSIBLE.contains(value)) {
        None => Ok(()),
        Some(i) => {
            let message = format!("run {} of the {arm} has {metric} = {}: no measurement", i + 1, values[i]);
            Err(Error::invalid(Step::Measure, message).with_remedy("leave this run out, or measure it again"))
        }
    }
}

pub(in crate::gate) fn logarithms(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value.ln()).collect()
}

/// What can be said of two arms before anything is decided.
pub(in crate::gate) fn described(rule: &Rule, a: &[f64], b: &[f64], ratio: Shift) -> Judgement {
    let mut found = Judgement {
        ratio: Some(ratio.estimate.exp()),
        lower: ratio.bounds.map(|(lower, _)| lower.exp()),
        upper: ratio.bounds.map(|(_, upper)| upper.exp()),
        reasons: Vec::new(),
        ..Judgement::without(rule, Verdict::Inconclusive, Code::TooFewRuns, "")
    };
    describe(&mut found, a, b);
    found
}

/// How many runs either arm has, their median and scatter, as far as there are any.
pub(in crate::gate) fn describe(found: &mut Judgement, a: &[f64], b: &[f64]) {
    let middle = |values: &[f64]| (!values.is_empty()).then(|| median(values));
    let scatter = |values: &[f64]| (values.len() > 1).then(|| variation(values)).filter(|cv| cv.is_finite());
    (found.n_a, found.n_b) = (a.len(), b.len());
    (found.median_a, found.median_b) = (middle(a), middle(b));
    (found.cv_a, found.cv_b) = (scatter(a), scatter(b));
}

/// Standard deviation as a share of the mean.
fn variation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt() / mean
}

/// By how much logarithms of the same ratio may differ: 0.9 is 900 to 1000, and 9 to 10. Values that tie lie on a bound.
const ROUNDING: f64 = 1e-9;

/// Decides by the intervals of a shift of logarithms and of the values themselves, which both have ends. `deviations` is
/// half the width of the first in standard deviations of its estimate.
pub(in crate::gate) fn decide(
    rule: &Rule,
    found: &mut Judgement,
    shifts: [Shift; 2],
    deviations: f64,
    last: bool,
) {
    // From here on, more is worse.
    let worse =
        shifts.map(|shift| if rule.metric.class().higher_is_worse() { shift } else { shift.reversed() });
    let [Some((low, high)), Some((least, most))] = worse.map(|shift| shift.bounds) else { return };
    let tolerated = rule.worse_by(-rule.tolerance)..=rule.worse_by(rule.tolerance);
    let worsened = low > *tolerated.end() + ROUNDING;
    let bettered = high < *tolerated.start() - ROUNDING;
    let improved = bettered && most < -rule.floor;
    let regression = worsened && least > rule.floor;
    let ruled_out = high < rule.worse_by(rule.must_detect) - ROUNDING || most < rule.floor;
    let open = !last && (regression || ruled_out && !tolerated.contains(&worse[0].estimate));
    found.verdict = match () {
        () if improved => Verdict::Improved,
        () if open => Verdict::Inconclusive,
        () if regression => Verdict::Regression,
        () if ruled_out => Verdict::Pass,
        () => Verdict::Inconclusive,
    };
    let half = (high - low) / 2.0;
    let floor = found.median_a.map_or(0.0, |median| rule.floor / median);
    let threshold = rule.worse_by(rule.tolerance).max(floor.ln_1p());
    // 1.645 deviations of the estimate: 95 of 100 fall above it.
    found.mde = Some(rule.share(threshold + half + 1.645 * half / deviations));
    if found.verdict == Verdict::Inconclusive && open {
        let (a, b) = (found.n_a, found.n_b);
        found.because(
            Code::NotLast,
            format!("changed, it seems from {a} and {b} runs: the last look decides"),
        );
    } else if found.verdict == Verdict::Inconclusive {
        let (way, share) = (rule.direction(), 100.0 * rule.share(high));
        let limit = percent(rule.must_detect);
        found.because(
            Code::TooWide,
            format!("{way} of up to {share:.1} % cannot be ruled out (must-detect {limit})"),
        );
    } else if found.verdict == Verdict::Pass && (worsened || bettered) {
        let floor = rule.metric.show(rule.floor);
        found.because(
            Code::BelowFloor,
            format!("the change is not surely above {floor}, below which it is none"),
        );
    }
}

impl Rule {
    /// What a worsening of the metric is called.
    fn direction(&self) -> &'static str {
        if self.metric.class().higher_is_worse() { "a rise" } else { "a drop" }
    }
}

/// A share as a person reads it: `2 %`, `0.5 %`.
pub(in crate::gate) fn percent(share: f64) -> String {
    format!("{} %", (share * 1e4).round() / 100.0)
}
