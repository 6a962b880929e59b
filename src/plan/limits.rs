//! Limits that have a meaning for a test.

use super::{LimitSpec, Of, Quantity, Shape, Test};
use crate::error::{Error, Result};

/// The test measures what it is held to.
///
/// # Errors
/// A latency of a bandwidth test or the other way round, with what the test has instead.
pub(super) fn check(limits: &[LimitSpec], test: &Test) -> Result<()> {
    let fits = |limit: &&LimitSpec| match test.shape {
        Shape::Latency => limit.quantity != Quantity::Bandwidth,
        Shape::Bandwidth => !limit.quantity.is_latency(),
    };
    let Some(limit) = limits.iter().find(|limit| !fits(limit)) else { return Ok(()) };
    let (has, ratio) = match test.shape {
        Shape::Latency => ("min, p50, p90, p99, p99.9, p99.99, max, mean", "tcp/rdma.p50 and the like"),
        Shape::Bandwidth => ("bw", "rdma/tcp.bw"),
    };
    let metrics =
        if limit.of == Of::Ratio { ratio.to_owned() } else { format!("{has}, rate, cpu.client, cpu.server") };
    Err(Error::usage(format!("--limit {limit}: {} does not measure that", test.binary()))
        .with_remedy(format!("metrics of this test: {metrics}")))
}
