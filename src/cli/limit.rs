//! Limits that a run is held to: `p99:max=5us`, `bw:min=90%link`, `tcp/rdma.p50:min=3`. No character of them means anything
//! to a shell.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Every metric with its units, for who mistyped one.
const METRICS: &str = "metrics: min, p50, p90, p99, p99.9, p99.99, max, mean in ns, us or ms; bw in Gbps, MBps, GiBps or \
                       %link; rate in /s, k/s or M/s; cpu.client, cpu.server in ns a message; any of them with tcp. before \
                       it; and ratios, which have no unit: tcp/rdma.p50 and the like, rdma/tcp.bw";

/// One limit, as typed.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitSpec {
    text: String,
    /// Whose value it is.
    pub of: Of,
    /// What is held to it.
    pub quantity: Quantity,
    /// Which side of the bound is allowed.
    pub side: BoundSide,
    /// The bound itself.
    pub bound: Bound,
}

/// Whose value a limit is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// The RDMA path's.
    Rdma,
    /// The TCP path's.
    Tcp,
    /// The ratio of both, above 1 where RDMA is better.
    Ratio,
}

/// What a limit, or a comparison, is about. Latencies are divided as they are displayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Quantity {
    Min,
    P50,
    P90,
    P99,
    #[serde(rename = "p99.9")]
    P99_9,
    #[serde(rename = "p99.99")]
    P99_99,
    Max,
    Mean,
    /// Payload bytes a second.
    #[serde(rename = "bw")]
    Bandwidth,
    /// Messages a second.
    Rate,
    /// CPU time of the client's threads for a message.
    #[serde(rename = "cpu.client")]
    CpuClient,
    /// Of the server's.
    #[serde(rename = "cpu.server")]
    CpuServer,
}

/// The side of the bound on which a value passes; the bound itself passes, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundSide {
    /// Not below it.
    Min,
    /// Not above it.
    Max,
}

/// A bound, more than zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// In the unit that documents have: nanoseconds, bytes a second, messages a second, or none.
    Value(f64),
    /// A share of the link's data rate; 1 is all of it.
    OfLink(f64),
}

impl Quantity {
    /// Every quantity and its name.
    pub const ALL: [(&str, Self); 12] = [
        ("min", Self::Min),
        ("p50", Self::P50),
        ("p90", Self::P90),
        ("p99", Self::P99),
        ("p99.9", Self::P99_9),
        ("p99.99", Self::P99_99),
        ("max", Self::Max),
        ("mean", Self::Mean),
        ("bw", Self::Bandwidth),
        ("rate", Self::Rate),
        ("cpu.client", Self::CpuClient),
        ("cpu.server", Self::CpuServer),
    ];

    /// Only latency tests have it.
    pub const fn is_latency(self) -> bool {
        !matches!(self, Self::Bandwidth | Self::Rate | Self::CpuClient | Self::CpuServer)
    }

    /// Its units and what one of them is in the unit of documents.
    const fn units(self) -> &'static [(&'static str, f64)] {
        match self {
            Self::Bandwidth => &[("Gbps", 1e9 / 8.0), ("MBps", 1e6), ("GiBps", (1_u64 << 30) as f64)],
            Self::Rate => &[("/s", 1.0), ("k/s", 1e3), ("M/s", 1e6)],
            Self::CpuClient | Self::CpuServer => &[("ns", 1.0)],
            _ => &[("ns", 1.0), ("us", 1e3), ("ms", 1e6)],
        }
    }

    /// The table shows its ratio by this name before the dot.
    const fn ratio(self) -> Option<&'static str> {
        match self {
            Self::Bandwidth => Some("rdma/tcp"),
            // One event, or not beside each other in the table.
            Self::Max | Self::Rate | Self::CpuClient | Self::CpuServer => None,
            _ => Some("tcp/rdma"),
        }
    }

    /// The quantity of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, quantity)| *quantity)
    }

    /// Its name, in options and in documents.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, quantity)| *quantity == self).map_or("", |(name, _)| name)
    }
}

impl fmt::Display for LimitSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for LimitSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("write METRIC:max=VALUE or METRIC:min=VALUE, as in p99:max=5us; {METRICS}");
        let (metric, rest) = text.split_once(':').ok_or_else(form)?;
        let (side, value) = rest.split_once('=').ok_or_else(form)?;
        let side = match side {
            "min" => BoundSide::Min,
            "max" => BoundSide::Max,
            _ => return Err(form()),
        };
        let (of, quantity) = parse_metric(metric)?;
        let bound = parse_bound(value, of, quantity)?;
        Ok(Self { text: text.into(), of, quantity, side, bound })
    }
}

fn parse_metric(text: &str) -> Result<(Of, Quantity), String> {
    let unknown = || format!("'{text}' is not a metric; {METRICS}");
    for ratio in ["tcp/rdma", "rdma/tcp"] {
        let Some(name) = text.strip_prefix(ratio).and_then(|rest| rest.strip_prefix('.')) else { continue };
        let quantity = Quantity::named(name).ok_or_else(unknown)?;
        return match quantity.ratio() {
            Some(shown) if shown == ratio => Ok((Of::Ratio, quantity)),
            Some(shown) => {
                Err(format!("'{text}' is the other way round in the table: write {shown}.{name}; {METRICS}"))
            }
            None => Err(format!("'{text}': {name} has no ratio in the table; {METRICS}")),
        };
    }
    match text.strip_prefix("tcp.") {
        Some(name) => Ok((Of::Tcp, Quantity::named(name).ok_or_else(unknown)?)),
        None => Ok((Of::Rdma, Quantity::named(text).ok_or_else(unknown)?)),
    }
}

/// Largest bound in the unit of documents: more than any clock or link shows.
const MOST: f64 = 1e18;

fn parse_bound(text: &str, of: Of, quantity: Quantity) -> Result<Bound, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let wrong = |why: &str| format!("'{text}' {why}; {METRICS}");
    let number: f64 = digits.parse().map_err(|_| wrong("has no number"))?;
    let bound = match (of, unit) {
        (Of::Ratio, "") => Bound::Value(number),
        (Of::Ratio, _) => return Err(wrong("has a unit, and a ratio has none")),
        (_, "%link") if quantity == Quantity::Bandwidth => Bound::OfLink(number / 100.0),
        _ => {
            let units = quantity.units();
            let known = units.iter().find(|(name, _)| *name == unit);
            let (_, scale) = known.ok_or_else(|| {
                let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
                wrong(&format!("needs one of these units: {}", names.join(", ")))
            })?;
            Bound::Value(number * scale)
        }
    };
    match bound {
        Bound::Value(value) | Bound::OfLink(value) if value > 0.0 && value <= MOST => Ok(bound),
        _ => Err(wrong("limits nothing: more than 0 and at most 10^18 are bounds")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<LimitSpec, String> {
        text.parse()
    }

    #[test]
    fn limits_are_read_in_the_units_of_documents() {
        use {Bound::*, BoundSide::*, Quantity as Q};
        for (text, of, quantity, side, bound) in [
            ("p99:max=5us", Of::Rdma, Q::P99, Max, Value(5_000.0)),
            ("tcp.p99.9:max=1.5ms", Of::Tcp, Q::P99_9, Max, Value(1.5e6)),
            ("bw:min=90%link", Of::Rdma, Q::Bandwidth, Min, OfLink(0.9)),
            ("bw:min=100Gbps", Of::Rdma, Q::Bandwidth, Min, Value(1.25e10)),
            ("tcp.bw:min=2GiBps", Of::Tcp, Q::Bandwidth, Min, Value(2_147_483_648.0)),
            ("rate:min=1.5M/s", Of::Rdma, Q::Rate, Min, Value(1.5e6)),
            ("cpu.server:max=300ns", Of::Rdma, Q::CpuServer, Max, Value(300.0)),
            ("tcp/rdma.p50:min=3", Of::Ratio, Q::P50, Min, Value(3.0)),
            ("rdma/tcp.bw:min=1.5", Of::Ratio, Q::Bandwidth, Min, Value(1.5)),
        ] {
            let limit = read(text).unwrap();
            assert_eq!((limit.of, limit.quantity, limit.side, limit.bound), (of, quantity, side, bound));
            assert_eq!(limit.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_limit_is_told_what_would_be() {
        for text in [
            "",
            "p99",
            "p99:max",
            "p99=5us",
            "p99:most=5us",
            "p98:max=5us",
            "P99:max=5us",
            "p99:max=5",
            "p99:max=us",
            "p99:max=5 us",
            "p99:max=-5us",
            "p99:max=0us",
            "p99:max=1e3us",
            "p99:max=1.2.3us",
            "p99:max=infus",
            "p99:max=5us ",
            "p99:max=50%link",
            "bw:min=90%",
            "bw:min=10G",
            "rate:min=1000",
            "cpu.client:max=5us",
            "tcp/rdma.p50:min=3us",
            "tcp/rdma.bw:min=3",
            "rdma/tcp.p50:min=3",
            "tcp/rdma.max:min=3",
            "tcp/rdma.rate:min=3",
            "rdma.p50:max=1us",
            "p99:max=9999999999999999999us",
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains("metrics: min, p50") && error.contains("rdma/tcp.bw"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,24}", tail in "[a-z0-9./:=%]{0,24}") {
            let _ = read(&text);
            let _ = read(&format!("p99:max={tail}"));
            let _ = read(&tail);
        }

        #[test]
        fn every_metric_takes_every_one_of_its_units_and_no_other(
            which in 0..Quantity::ALL.len(),
            unit in prop::sample::select(vec!["ns", "us", "ms", "Gbps", "MBps", "GiBps", "/s", "k/s", "M/s", "%link", ""]),
            number in 1..1_000_000_u32,
            tcp in any::<bool>(),
        ) {
            let (name, quantity) = Quantity::ALL[which];
            let text = format!("{}{name}:max={number}{unit}", if tcp { "tcp." } else { "" });
            let scale = quantity.units().iter().find(|(known, _)| *known == unit).map(|(_, scale)| scale);
            match (scale, unit == "%link" && quantity == Quantity::Bandwidth) {
                (Some(scale), _) => {
                    prop_assert_eq!(read(&text).unwrap().bound, Bound::Value(f64::from(number) * scale));
                }
                (None, true) => {
                    prop_assert_eq!(read(&text).unwrap().bound, Bound::OfLink(f64::from(number) / 100.0));
                }
                (None, false) => prop_assert!(read(&text).is_err()),
            }
        }
    }
}
