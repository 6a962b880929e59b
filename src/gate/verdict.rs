//! What a comparison of one metric found, as it stands in documents.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::gate::rule::Rule;
use crate::result::Quantity;

/// What became of a metric, or of a whole job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better by more than the tolerance, surely.
    Improved,
    /// A worsening that must be detected is ruled out.
    Pass,
    /// Worse by more than the tolerance, surely.
    Regression,
    /// The runs scatter too much, or are too few, to say either.
    Inconclusive,
    /// The two arms were not measured alike.
    NotComparable,
    /// A run must not be trusted.
    Invalid,
}

impl Verdict {
    /// Every verdict and its name in documents.
    pub const ALL: [(&str, Self); 6] = [
        ("improved", Self::Improved),
        ("pass", Self::Pass),
        ("regression", Self::Regression),
        ("inconclusive", Self::Inconclusive),
        ("not_comparable", Self::NotComparable),
        ("invalid", Self::Invalid),
    ];

    /// Its name in documents.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, verdict)| *verdict == self).map_or("", |(name, _)| name)
    }

    /// A job fails for it, whether `strict` or not.
    pub fn is_trouble(self) -> bool {
        matches!(self, Verdict::Regression | Verdict::Invalid | Verdict::NotComparable)
    }

    /// Exit status of a job that ends so: 0, 1 for a regression, 4, 5, and 3 for an inconclusive one that is `strict`.
    pub fn exit_status(self, strict: bool) -> u8 {
        match self {
            Verdict::Improved | Verdict::Pass => 0,
            Verdict::Regression => 1,
            Verdict::Inconclusive => 3 * u8::from(strict),
            Verdict::NotComparable => 4,
            Verdict::Invalid => 5,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Improved => "IMPROVED",
            Verdict::Pass => "PASS",
            Verdict::Regression => "REGRESSION",
            Verdict::Inconclusive => "INCONCLUSIVE",
            Verdict::NotComparable => "NOT COMPARABLE",
            Verdict::Invalid => "INVALID",
        })
    }
}

/// Why a verdict is not a plain one, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// Fewer runs than the rule asks for.
    TooFewRuns,
    /// Fewer sittings than a spread between them can be told from.
    TooFewSittings,
    /// Something seems to have changed, which only the last look decides.
    NotLast,
    /// A worsening that must be detected cannot be ruled out.
    TooWide,
    /// Beyond the tolerance, and below what the clock can tell.
    BelowFloor,
    /// The two arms were not measured alike; the message names the fields.
    Mismatch,
    /// A run that must not be trusted; the message says which and why.
    InvalidRun,
    /// A value is 0, of which there is no ratio.
    Zero,
    /// Sittings differ too much: the message says how many would do, or that none would.
    SittingsDiffer,
}

/// Why a verdict is not a plain one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// For programs.
    pub code: Code,
    /// For people: cause and values, one line.
    pub message: String,
}

/// What a comparison of one metric found. Arm A is the baseline, B the candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// What was compared.
    pub metric: Quantity,
    /// What was found.
    pub verdict: Verdict,
    /// The verdict is shown and decides nothing.
    pub advisory: bool,
    /// Probability with which the interval holds the true ratio: 0.99.
    pub confidence: f64,
    /// B / A, the estimate of Hodges and Lehmann; `None` where nothing was compared.
    pub ratio: Option<f64>,
    /// Lower end of the interval of the ratio; `None` where the runs are too few for one.
    pub lower: Option<f64>,
    /// Upper end.
    pub upper: Option<f64>,
    /// Runs of A.
    pub n_a: usize,
    /// Runs of B.
    pub n_b: usize,
    /// Sittings that A was measured in, where their spread is part of the interval.
    pub sittings: Option<usize>,
    /// Standard deviation of A's runs, as a share of their mean.
    pub cv_a: Option<f64>,
    /// The same of B's.
    pub cv_b: Option<f64>,
    /// Median of A's runs, in the unit of the metric.
    pub median_a: Option<f64>,
    /// The same of B's.
    pub median_b: Option<f64>,
    /// Change that is no regression, as a share.
    pub tolerance: f64,
    /// Worsening that a pass rules out, as a share.
    pub must_detect: f64,
    /// Change that is none, in the unit of the metric.
    pub floor: f64,
    /// Worsening that as many runs of this scatter would call a regression 95 times in 100, as a share.
    pub mde: Option<f64>,
    /// Why the verdict is not a plain one.
    pub reasons: Vec<Reason>,
}

impl Judgement {
    /// A metric that was not compared: not comparable, or invalid.
    pub fn without(rule: &Rule, verdict: Verdict, code: Code, message: impl Into<String>) -> Self {
        Self {
            metric: rule.metric,
            verdict,
            advisory: rule.advisory,
            confidence: rule.confidence,
            ratio: None,
            lower: None,
            upper: None,
            n_a: 0,
            n_b: 0,
            sittings: None,
            cv_a: None,
            cv_b: None,
            median_a: None,
            median_b: None,
            tolerance: rule.tolerance,
            must_detect: rule.must_detect,
            floor: rule.floor,
            mde: None,
            reasons: vec![Reason { code, message: message.into() }],
        }
    }

    /// Adds why.
    pub(in crate::gate) fn because(&mut self, code: Code, message: impl Into<String>) {
        self.reasons.push(Reason { code, message: message.into() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_named_as_documents_name_it() {
        for (name, verdict) in Verdict::ALL {
            assert_eq!(serde_json::to_string(&verdict).unwrap(), format!("\"{name}\""));
            assert_eq!(verdict.name(), name);
        }
    }
}
