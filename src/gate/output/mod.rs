//! What a gate found, in the formats of those who read it. Each is a pure function of the [`Gate`](super::document::Gate).
//!
//! | module | who reads it |
//! |---|---|
//! | [`junit`] | test reports of GitLab, Jenkins, Azure, Buildkite |
//! | [`markdown`] | the summary of a GitHub step, or anybody |
//! | [`annotations`] | GitHub, from the step's standard output |
//! | [`openmetrics`] | Prometheus, and the text-file collector of its node exporter |
//! | [`otava`] | Apache Otava, which looks for change points in a history |
//! | [`benchmark_action`] | `github-action-benchmark`, which draws a history |
//!
//! [`words`] has the lines that they share with each other and with the text of a terminal.
//!
//! Names are those of users and of other machines, so that each format has its own escaping. A value that could not be had
//! is left out, never 0.

pub mod annotations;
pub mod benchmark_action;
pub mod junit;
pub mod markdown;
pub mod openmetrics;
pub mod otava;
mod series;
pub mod words;

#[cfg(test)]
pub(crate) mod tests;
