//! What a job is decided by: limits.
//!
//! * [`limit`]: one run held to fixed bounds.

pub mod limit;
