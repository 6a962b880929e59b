//! What is asked of one test: the metrics that are judged, and whether it measures them.

use crate::error::{Error, Result};
use crate::gate::sample::Runs;
use crate::gate::series::Asked;
use crate::plan::Shape;
use crate::result::Quantity;

/// The same of a test by name: the metrics that were named, or the usual ones.
///
/// # Errors
/// As of [`check`].
pub fn of_test(asked: &Asked, test: String, shape: Shape) -> Result<Asked> {
    let metrics = match &asked.metrics[..] {
        [] => Quantity::usual(shape).to_vec(),
        named => named.to_vec(),
    };
    let asked = Asked { test, metrics, ..asked.clone() };
    check(&asked, shape).map(|()| asked)
}

/// Every metric is one that the test measures, and its rule one that can be kept.
///
/// # Errors
/// Usage: the first that is not.
pub fn check(asked: &Asked, shape: Shape) -> Result<()> {
    for &metric in &asked.metrics {
        let is_measured = match shape {
            Shape::Latency => metric != Quantity::Bandwidth && metric != Quantity::Rate,
            Shape::Bandwidth => !metric.is_latency(),
        };
        if !is_measured {
            return Err(Error::usage(format!("{} does not measure {}", asked.test, metric.name()))
                .with_remedy("p50, p99 and p99.9 of a latency test, bw and rate of a bandwidth test, cpu.client and cpu.server of both"));
        }
    }
    asked.metrics.iter().filter_map(|&metric| asked.rule(metric, 0.0)).try_for_each(|rule| rule.check())
}

/// What is asked of a test that was measured already: what the suite says of the test of that name, or of its binary, or
/// what is asked of all tests.
///
/// # Errors
/// Usage: it does not measure a metric that was asked for, or the suite says two things of its binary.
pub fn of_measured(of_binaries: &[(String, Asked)], usual: &Asked, name: &str, runs: &Runs) -> Result<Asked> {
    let test = runs.tests.first();
    let is_named = test.is_some_and(|test| test.name.is_some());
    if let Some((_, named)) = of_binaries.iter().find(|(_, asked)| is_named && asked.test == name) {
        return Ok(named.clone());
    }
    let of_binary = |(binary, _): &&(String, Asked)| test.is_some_and(|test| test.binary == *binary);
    let mut asked = of_binaries.iter().filter(of_binary).map(|(_, asked)| asked);
    let Some(first) = asked.next() else {
        let shape = test.and_then(|test| test.option("shape"));
        let shape = if shape == Some("latency") { Shape::Latency } else { Shape::Bandwidth };
        return of_test(usual, name.into(), shape);
    };
    let is_same = |other: &Asked| other.metrics == first.metrics && other.tolerances == first.tolerances;
    if let Some(other) = asked.find(|other| !is_same(other)) {
        let (one, other) = (&first.test, &other.test);
        let cause = format!("the suite asks different things of {one} and {other}, which are one binary");
        return Err(Error::usage(cause)
            .with_remedy("with --candidate give them the same metrics and tolerances, or a suite each"));
    }
    Ok(Asked { test: name.into(), ..first.clone() })
}
