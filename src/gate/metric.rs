//! What is compared: one number a run, its direction, and what of a change is tolerated unless a user says otherwise.

use serde::{Deserialize, Serialize};

use crate::gate::rule::Rule;

/// A number that each run gives once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The median latency, ns.
    P50,
    /// The 99th percentile of latency, ns.
    P99,
    /// The 99.9th percentile of latency, ns: advisory, since runs of usual length hold few samples beyond it.
    #[serde(rename = "p99_9")]
    P999,
    /// The longest latency, ns: never compared, since it is one sample and grows with the length of a run.
    Max,
    /// Payload, bytes per second.
    Throughput,
    /// Messages per second.
    MsgRate,
    /// CPU time of one end a message, ns.
    CpuNsPerMessage,
}

/// The kind of a metric: which direction is worse, and whether the clock limits what can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Higher is worse; read from a clock.
    Latency,
    /// Lower is worse.
    Rate,
    /// Higher is worse.
    Cost,
}

impl Class {
    /// Whether a higher value is the worse one.
    pub fn higher_is_worse(self) -> bool {
        self != Class::Rate
    }
}

/// A change of latency below it is none, whatever the clock, ns.
const LEAST_FLOOR_NS: f64 = 20.0;

impl Metric {
    /// All metrics, in the order in which they are shown.
    pub const ALL: [Metric; 7] = [
        Metric::P50,
        Metric::P99,
        Metric::P999,
        Metric::Max,
        Metric::Throughput,
        Metric::MsgRate,
        Metric::CpuNsPerMessage,
    ];

    /// The kind of metric.
    pub fn class(self) -> Class {
        match self {
            Metric::P50 | Metric::P99 | Metric::P999 | Metric::Max => Class::Latency,
            Metric::Throughput | Metric::MsgRate => Class::Rate,
            Metric::CpuNsPerMessage => Class::Cost,
        }
    }

    /// The name in documents and options.
    pub fn name(self) -> &'static str {
        match self {
            Metric::P50 => "p50",
            Metric::P99 => "p99",
            Metric::P999 => "p99_9",
            Metric::Max => "max",
            Metric::Throughput => "throughput",
            Metric::MsgRate => "msg_rate",
            Metric::CpuNsPerMessage => "cpu_ns_per_message",
        }
    }

    /// The rule of this metric unless a user sets another; `None` for what is never compared. `clock_ns` is what a
    /// reading of the clock costs: a change of latency below two readings, or below 20 ns, is none.
    pub fn rule(self, clock_ns: f64) -> Option<Rule> {
        let (tolerance, must_detect) = match self {
            Metric::P50 | Metric::Throughput | Metric::MsgRate | Metric::CpuNsPerMessage => (0.02, 0.10),
            Metric::P99 => (0.05, 0.20),
            Metric::P999 => (0.10, 0.50),
            Metric::Max => return None,
        };
        let floor = if self.class() == Class::Latency { LEAST_FLOOR_NS.max(2.0 * clock_ns) } else { 0.0 };
        let advisory = self == Metric::P999;
        Some(Rule { floor, advisory, ..Rule::new(self, tolerance, must_detect) })
    }

    /// A value as a person reads it, to three digits: `2.31 us`, `391 Gb/s`, `0.746 Mmsg/s`, `210 ns`.
    pub fn show(self, value: f64) -> String {
        let (scaled, unit) = match self {
            Metric::Throughput => (value * 8e-9, "Gb/s"),
            Metric::MsgRate => (value * 1e-6, "Mmsg/s"),
            Metric::CpuNsPerMessage => (value, "ns"),
            _ => (value * 1e-3, "us"),
        };
        let decimals = (2.0 - scaled.log10().floor()).clamp(0.0, 9.0);
        format!("{scaled:.*} {unit}", decimals as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_one_that_documents_have() {
        for metric in Metric::ALL {
            assert_eq!(serde_json::to_string(&metric).unwrap(), format!("\"{}\"", metric.name()));
        }
    }

    #[test]
    fn values_are_shown_to_three_digits() {
        for (metric, value, shown) in [
            (Metric::P50, 2310.0, "2.31 us"),
            (Metric::P99, 145.0, "0.145 us"),
            (Metric::P99, 29_392_000.0, "29392 us"),
            (Metric::Throughput, 48.9e9, "391 Gb/s"),
            (Metric::MsgRate, 746e3, "0.746 Mmsg/s"),
            (Metric::CpuNsPerMessage, 13_450.0, "13450 ns"),
        ] {
            assert_eq!(metric.show(value), shown);
        }
    }

    #[test]
    fn the_floor_is_two_readings_of_the_clock_and_never_below_20_ns() {
        assert_eq!(Metric::P50.rule(9.5).unwrap().floor, 20.0);
        assert_eq!(Metric::P99.rule(41.0).unwrap().floor, 82.0);
        assert_eq!(Metric::Throughput.rule(41.0).unwrap().floor, 0.0);
        assert_eq!(Metric::Max.rule(9.5), None);
    }
}
