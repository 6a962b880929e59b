//! The decision rule of a gate: do two sets of runs differ, in which direction, and how sure is that?
//!
//! Numbers in, a verdict out; nothing is measured here. The unit of statistics is one run, a process and a connection of
//! its own, never one message: what follows each other within a run is alike, and runs differ more than their messages
//! tell. Each run gives one number a metric, and the rule compares the numbers of two arms.
//!
//! * [`rank`]: the exact distribution of Mann and Whitney's statistic (1947), and that of tied values.
//! * [`shift`]: by how much one arm exceeds the other: the estimate of Hodges and Lehmann (1963) and its exact interval.
//! * [`metric`], [`rule`]: what of which metric is tolerated, and the three-way decision.
//! * [`baseline`]: the same against sittings of the past, whose spread belongs in the interval.
//! * [`message`]: a judgement in one line.
//! * [`mod@order`]: which arm runs when.
//! * [`family`]: how sure each of many metrics must be, and the verdict of all.
//! * [`limit`]: one run held to fixed bounds.
//! * [`compare`]: recorded runs side by side, as far as they are comparable: [`recorded`], [`fingerprint`], [`sample`],
//!   [`many`].
//! * [`series`], [`stored`]: what of these is judged: each metric of each point, in turns or beside stored sittings.
//! * [`document`]: what a whole job found.
//! * [`output`]: the same in the formats of those who read it.
//!
//! `docs/gating.md` says why this rule, and how often it errs by simulation.

pub mod baseline;
pub mod compare;
pub mod document;
pub mod family;
pub mod fingerprint;
pub mod limit;
pub mod many;
pub mod message;
pub mod metric;
pub mod order;
pub mod output;
pub mod rank;
pub mod recorded;
pub mod rule;
pub mod sample;
pub mod series;
pub mod shift;
pub mod stored;
pub mod student;
pub mod verdict;

pub use baseline::judge_sitting;
pub use family::overall;
pub use metric::Class;
pub use order::{Arm, order};
pub use rule::{Rule, judge};
pub use verdict::{Code, Judgement, Reason, Verdict};

#[cfg(test)]
mod tests;
