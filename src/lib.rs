//! RDMA and TCP benchmarks of one path in one run.

pub mod error;
pub mod ops;
pub mod units;
pub mod verbs;
