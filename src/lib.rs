//! verbmark
pub mod cli;
pub mod error;
pub mod measure;
pub mod ops;
pub mod plan;
pub mod sys;
pub mod units;
