//! What is compared: one number a run, its direction, and what of a change is tolerated unless a user says otherwise.

use crate::gate::rule::Rule;
use crate::result::{Quantity, Shape};

/// The kind of a metric: which direction is worse, and whether the clock limits what can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

impl Quantity {
    /// Those that have a rule, in the order in which they are shown. Of the others the longest latency is one sample, and
    /// grows with the length of a run; the rest says what these say.
    pub const GATED: [Self; 7] =
        [Self::P50, Self::P99, Self::P99_9, Self::Bandwidth, Self::Rate, Self::CpuClient, Self::CpuServer];

    /// What of a test is compared unless a user says otherwise.
    pub const fn usual(shape: Shape) -> &'static [Self] {
        match shape {
            Shape::Latency => &[Self::P50, Self::P99],
            Shape::Bandwidth => &[Self::Bandwidth],
        }
    }

    /// The kind of metric.
    pub const fn class(self) -> Class {
        match self {
            Self::Bandwidth | Self::Rate => Class::Rate,
            Self::CpuClient | Self::CpuServer => Class::Cost,
            _ => Class::Latency,
        }
    }

    /// What its values are in, in documents.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "bytes_per_s",
            Self::Rate => "messages_per_s",
            Self::CpuClient | Self::CpuServer => "ns_per_message",
            _ => "ns",
        }
    }

    /// The rule of this metric unless a user sets another; `None` for what is never compared. `clock_ns` is what a
    /// reading of the clock costs: a change of latency below two readings, or below 20 ns, is none.
    pub fn rule(self, clock_ns: f64) -> Option<Rule> {
        let (tolerance, must_detect) = match self {
            Self::P50 | Self::Bandwidth | Self::Rate | Self::CpuClient | Self::CpuServer => (0.02, 0.10),
            Self::P99 => (0.05, 0.20),
            Self::P99_9 => (0.10, 0.50),
            Self::Min | Self::P90 | Self::P99_99 | Self::Max | Self::Mean => return None,
        };
        let floor = if self.class() == Class::Latency { LEAST_FLOOR_NS.max(2.0 * clock_ns) } else { 0.0 };
        // Runs of usual length hold few samples beyond it.
        let advisory = self == Self::P99_9;
        Some(Rule { floor, advisory, ..Rule::new(self, tolerance, must_detect) })
    }

    /// A value as a person reads it, to three digits: `2.31 us`, `391 Gb/s`, `0.746 Mmsg/s`, `210 ns`.
    pub fn show(self, value: f64) -> String {
        let (scaled, unit) = match self {
            Self::Bandwidth => (value * 8e-9, "Gb/s"),
            Self::Rate => (value * 1e-6, "Mmsg/s"),
            Self::CpuClient | Self::CpuServer => (value, "ns"),
            _ => (value * 1e-3, "us"),
        };
        // Of 0 there is no digit to begin with.
        let decimals = if scaled > 0.0 { (2.0 - scaled.log10().floor()).clamp(0.0, 9.0) } else { 0.0 };
        format!("{scaled:.*} {unit}", decimals as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_documents_is_the_one_that_is_typed() {
        for (name, quantity) in Quantity::ALL {
            assert_eq!(serde_json::to_string(&quantity).unwrap(), format!("\"{name}\""));
        }
    }

    #[test]
    fn values_are_shown_to_three_digits() {
        for (metric, value, shown) in [
            (Quantity::P50, 2310.0, "2.31 us"),
            (Quantity::P99, 145.0, "0.145 us"),
            (Quantity::P99, 29_392_000.0, "29392 us"),
            (Quantity::Bandwidth, 48.9e9, "391 Gb/s"),
            (Quantity::Rate, 746e3, "0.746 Mmsg/s"),
            (Quantity::CpuClient, 13_450.0, "13450 ns"),
            (Quantity::CpuServer, 0.0, "0 ns"),
        ] {
            assert_eq!(metric.show(value), shown);
        }
    }

    #[test]
    fn the_floor_is_two_readings_of_the_clock_and_never_below_20_ns() {
        assert_eq!(Quantity::P50.rule(9.5).unwrap().floor, 20.0);
        assert_eq!(Quantity::P99.rule(41.0).unwrap().floor, 82.0);
        assert_eq!(Quantity::Bandwidth.rule(41.0).unwrap().floor, 0.0);
    }

    #[test]
    fn what_is_gated_is_what_has_a_rule() {
        for (name, quantity) in Quantity::ALL {
            assert_eq!(quantity.rule(10.0).is_some(), Quantity::GATED.contains(&quantity), "{name}");
        }
    }
}
