//! A judgement in one line: what, how sure, and what next.

use crate::gate::rule::percent;
use crate::gate::verdict::{Code, Judgement, Reason, Verdict};

/// Changes in percent from which on a factor says more.
pub(in crate::gate) const MOST_PERCENT: f64 = 9_999.5;

/// Ratios below which a change in percent would be shown as all of it.
const LEAST_RATIO: f64 = 0.000_5;

impl Judgement {
    /// One line for a person. `series` says what was measured: `send_lat rc 64 B`.
    pub fn line(&self, series: &str) -> String {
        let mut line = format!("{}  {series} {}", self.verdict, self.metric.name());
        if let (Some(a), Some(b), Some(ratio)) = (self.median_a, self.median_b, self.ratio) {
            line += &format!("  {} -> {}", self.metric.show(a), self.metric.show(b));
            line += &format!("  {}", change(ratio));
            let confidence = percent(self.confidence);
            line += &match (self.lower, self.upper) {
                (Some(lower), Some(upper)) => {
                    format!(" [{confidence} CI {} .. {}]", change(lower), change(upper))
                }
                _ => format!(" [no {confidence} CI]"),
            };
            line += &format!("  tolerance {}  n={}+{}", percent(self.tolerance), self.n_a, self.n_b);
            if let Some(sittings) = self.sittings {
                line += &format!(" of {sittings}+1 sittings");
            }
            let scatter = self.cv_a.into_iter().chain(self.cv_b).fold(0.0, f64::max);
            line += &format!("  run CV {:.1} %", 100.0 * scatter);
        }
        if self.advisory {
            line += "  (advisory)";
        }
        for (i, reason) in self.reasons.iter().enumerate() {
            line += if i == 0 { ": " } else { "; " };
            line += &reason.message;
        }
        let is_wide =
            |reason: &Reason| matches!(reason.code, Code::TooWide | Code::TooFewRuns | Code::NotLast);
        let has_other_remedy = self.reasons.iter().any(|reason| reason.code == Code::SittingsDiffer);
        if self.verdict == Verdict::Inconclusive && self.reasons.iter().any(is_wide) && !has_other_remedy {
            line += ". Add runs, or quiet the machine";
        }
        line
    }
}

/// A ratio of 0 or more as a change with its sign: `+11.7 %`, `+2400 %`. As a factor where percent are no help: `x250`, and
/// `1/2500` of what is nearly gone.
pub fn change(ratio: f64) -> String {
    let percent = 100.0 * (ratio - 1.0);
    if ratio > 0.0 && ratio < LEAST_RATIO {
        return format!("1/{}", factor(ratio.recip()));
    }
    match percent.abs() {
        // No sign before nothing.
        size if size < 0.05 => "0.0 %".into(),
        size if size < 999.95 => format!("{percent:+.1} %"),
        size if size < MOST_PERCENT => format!("{percent:+.0} %"),
        _ => format!("x{}", factor(ratio)),
    }
}

fn factor(factor: f64) -> String {
    if factor < 1e7 { format!("{factor:.0}") } else { format!("{factor:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::change;

    #[test]
    fn a_change_is_read_at_any_size() {
        for (ratio, shown) in [
            (1.117, "+11.7 %"),
            (0.9996, "0.0 %"),
            (0.9, "-10.0 %"),
            (10.99, "+999.0 %"),
            (10.9996, "+1000 %"),
            (25.0, "+2400 %"),
            (100.9, "+9990 %"),
            (250.0, "x250"),
            (3e9, "x3.0e9"),
            (0.001, "-99.9 %"),
            (0.000_4, "1/2500"),
            (0.0, "-100.0 %"),
        ] {
            assert_eq!(change(ratio), shown, "{ratio}");
        }
    }
}
