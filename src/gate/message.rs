//! A judgement in one line: what, how sure, and what next.

use crate::gate::rule::percent;
use crate::gate::verdict::{Judgement, Verdict};

impl Judgement {
    /// One line for a person. `series` says what was measured: `send_lat rc 64 B`.
    pub fn line(&self, series: &str) -> String {
        let mut line = format!("{}  {series} {}", self.verdict, self.metric.name());
        if let (Some(a), Some(b), Some(ratio)) = (self.median_a, self.median_b, self.ratio) {
            line += &format!("  {} -> {}", self.metric.show(a), self.metric.show(b));
            line += &format!("  {}%", change(ratio));
            let confidence = percent(self.confidence);
            line += &match (self.lower, self.upper) {
                (Some(lower), Some(upper)) => {
                    format!(" [{confidence} CI {}..{}]", change(lower), change(upper))
                }
                _ => format!(" [no {confidence} CI]"),
            };
            line += &format!("  tolerance {}  n={}+{}", percent(self.tolerance), self.n_a, self.n_b);
            if let Some(sittings) = self.sittings {
                line += &format!(" of {sittings}+1 sittings");
            }
            let scatter = self.cv_a.into_iter().chain(self.cv_b).fold(0.0, f64::max);
            line += &format!("  run CV {:.1}%", 100.0 * scatter);
        }
        if self.advisory {
            line += "  (advisory)";
        }
        for (i, reason) in self.reasons.iter().enumerate() {
            line += if i == 0 { ": " } else { "; " };
            line += &reason.message;
        }
        if self.verdict == Verdict::Inconclusive {
            line += ". Add runs, or quiet the machine";
        }
        line
    }
}

/// A ratio as a change in percent, with its sign and without its unit.
fn change(ratio: f64) -> String {
    format!("{:+.1}", 100.0 * (ratio - 1.0))
}
