//! What became of the limits that a run was held to.

use serde::{Deserialize, Serialize};

/// A limit beside the value of one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitResult {
    /// As typed, such as `p99:max=5us`.
    pub limit: String,
    /// Id of the row, for a ratio that of the RDMA row; `null` where no row is there to be judged.
    pub point: Option<String>,
    /// What `value` and `bound` are in: `ns`, `bytes_per_s`, `messages_per_s`, `ns_per_message` or `ratio`.
    pub unit: String,
    /// What was measured; `null` when it was not.
    pub value: Option<f64>,
    /// What it was held to; `null` where it is a share of a link whose rate is not known.
    pub bound: Option<f64>,
    /// The outcome.
    pub verdict: LimitVerdict,
    /// Why it could not be judged; `null` when it was.
    pub reason: Option<String>,
    /// How far the value lies from the bound, to either side, in percent of the bound; `null` when it was not judged.
    pub by_percent: Option<f64>,
}

/// The outcome of a limit at one point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitVerdict {
    /// On the allowed side of the bound, or on it.
    Pass,
    /// Beyond the bound.
    Fail,
    /// Nothing can be said, and so it has not passed.
    NotEvaluated,
}

impl LimitVerdict {
    /// Every outcome and its name in documents, the worst first.
    pub const ALL: [(&str, Self); 3] =
        [("fail", Self::Fail), ("not_evaluated", Self::NotEvaluated), ("pass", Self::Pass)];

    /// Its place among them: 0 for the worst.
    pub fn rank(self) -> usize {
        Self::ALL.iter().position(|(_, verdict)| *verdict == self).unwrap_or(Self::ALL.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_named_as_documents_name_it_and_the_worst_is_first() {
        for (name, verdict) in LimitVerdict::ALL {
            assert_eq!(serde_json::to_string(&verdict).unwrap(), format!("\"{name}\""));
        }
        let [failed, unjudged, passed] =
            [LimitVerdict::Fail, LimitVerdict::NotEvaluated, LimitVerdict::Pass].map(LimitVerdict::rank);
        assert!(failed < unjudged && unjudged < passed);
    }
}
