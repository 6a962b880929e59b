//! Latency as the document gives it: statistics divided as their basis says, and the histogram they came from, whole.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::serialization::Deserializer;
use serde::{Deserialize, Serialize};

use super::{RowInterval, TestRecord};
use crate::error::{Error, Step};
use crate::measure::{LatencyHistogram, LatencyInterval};
use crate::ops::Peer;
use crate::plan::Shape;

/// Which part of a round trip a latency stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Half of it: both ways carry the same message, so one way is taken for half.
    HalfRoundTrip,
    /// All of it.
    RoundTrip,
}

impl Basis {
    /// What a test shows: half where a closed loop at depth 1 is echoed, all of it everywhere else.
    pub fn of(test: &TestRecord) -> Self {
        let echoes = test.op.facts().peer == Peer::Echoes;
        let is_closed = test.rate_per_s.is_none() && test.rate_shares.is_empty();
        let is_alone = (test.depth, test.qps, test.threads) == (1, 1, 1);
        if echoes && test.shape == Shape::Latency && is_closed && is_alone {
            Self::HalfRoundTrip
        } else {
            Self::RoundTrip
        }
    }

    /// What a round trip is divided by.
    pub const fn divisor(self) -> f64 {
        match self {
            Self::HalfRoundTrip => 2.0,
            Self::RoundTrip => 1.0,
        }
    }
}

/// Statistics of a latency distribution, in nanoseconds, divided as `basis` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Which part of the round trip these are.
    pub basis: Basis,
    /// Round trips measured, at least 1.
    pub samples: u64,
    /// Exact smallest.
    pub min: f64,
    /// Median, within 0.1 %. Here and below `null` where fewer than ten samples lie beyond.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p99_9: Option<f64>,
    /// 99.99th percentile.
    pub p99_99: Option<f64>,
    /// Exact largest.
    pub max: f64,
    /// Exact mean.
    pub mean: f64,
    /// Sample standard deviation; `null` with one sample.
    pub stdev: Option<f64>,
}

impl Latency {
    /// The statistics of a histogram of round trips; `None` when it is empty.
    pub fn from_histogram(round_trips: &LatencyHistogram, basis: Basis) -> Option<Self> {
        let share = |ns: f64| ns / basis.divisor();
        let percentile = |quantile| round_trips.quantile(quantile).map(|ns| share(ns as f64));
        Some(Self {
            basis,
            samples: round_trips.samples(),
            min: share(round_trips.min()? as f64),
            p50: percentile(0.5),
            p90: percentile(0.9),
            p99: percentile(0.99),
            p99_9: percentile(0.999),
            p99_99: percentile(0.9999),
            max: share(round_trips.max()? as f64),
            mean: share(round_trips.mean()?),
            stdev: round_trips.stdev().map(share),
        })
    }

    /// Percentiles by the names the document gives them.
    pub fn percentiles(&self) -> [(&'static str, Option<f64>); 5] {
        [
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("p99_9", self.p99_9),
            ("p99_99", self.p99_99),
        ]
    }
}

/// A whole distribution of round trips, never divided, in a form that any HdrHistogram implementation loads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Unit of the recorded values: `ns`.
    pub unit: String,
    /// What was recorded: `round_trip`.
    pub of: String,
    /// Decimal digits kept of each value.
    pub significant_digits: u8,
    /// How the payload is written: `hdr-v2-deflate-base64`.
    pub encoding: String,
    /// The histogram itself.
    pub payload: String,
}

/// The one encoding this version writes and reads.
const ENCODING: &str = "hdr-v2-deflate-base64";

impl From<&LatencyHistogram> for Histogram {
    fn from(round_trips: &LatencyHistogram) -> Self {
        Self {
            unit: "ns".into(),
            of: "round_trip".into(),
            significant_digits: round_trips.buckets().sigfig(),
            encoding: ENCODING.into(),
            payload: round_trips.to_payload(),
        }
    }
}

impl Histogram {
    /// The buckets, for percentiles the statistics do not have, and for other formats.
    ///
    /// # Errors
    /// The payload is of another encoding, or damaged.
    pub fn decode(&self) -> Result<hdrhistogram::Histogram<u64>, Error> {
        if self.encoding != ENCODING {
            return Err(damaged(&format_args!("encoding '{}', only {ENCODING} is known", self.encoding)));
        }
        decode(&self.payload)
    }

    /// The buckets of a piece of this distribution; `None` where it was not kept.
    ///
    /// # Errors
    /// The payload is damaged.
    pub fn decode_interval(
        &self,
        interval: &RowInterval,
    ) -> Result<Option<hdrhistogram::Histogram<u64>>, Error> {
        interval.payload.as_deref().map(decode).transpose()
    }
}

fn damaged(cause: &dyn std::fmt::Display) -> Error {
    Error::failed(Step::Results, format!("a histogram payload cannot be read: {cause}"))
}

fn decode(payload: &str) -> Result<hdrhistogram::Histogram<u64>, Error> {
    let bytes = STANDARD.decode(payload).map_err(|e| damaged(&e))?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(|e| damaged(&e))
}

impl From<&LatencyInterval> for RowInterval {
    fn from(interval: &LatencyInterval) -> Self {
        Self {
            start_s: interval.start_ns as f64 / 1e9,
            seconds: interval.length_ns as f64 / 1e9,
            messages: interval.messages,
            bytes_per_s: None,
            payload: Some(STANDARD.encode(&interval.distribution)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(values: impl IntoIterator<Item = u64>) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::new();
        values.into_iter().for_each(|ns| histogram.record(ns));
        histogram
    }

    #[test]
    fn half_a_round_trip_is_half_of_every_statistic() {
        let histogram = recorded((1..=100_000).map(|i| 1_000 + i));
        let half = Latency::from_histogram(&histogram, Basis::HalfRoundTrip).unwrap();
        let whole = Latency::from_histogram(&histogram, Basis::RoundTrip).unwrap();
        assert_eq!((half.min * 2.0, half.max * 2.0, half.mean * 2.0), (whole.min, whole.max, whole.mean));
        assert_eq!(half.stdev.map(|v| v * 2.0), whole.stdev);
        for ((name, half), (_, whole)) in half.percentiles().into_iter().zip(whole.percentiles()) {
            assert!(whole.is_some(), "{name}");
            assert_eq!(half.map(|v| v * 2.0), whole, "{name}");
        }
        assert_eq!(half.samples, 100_000, "samples are round trips either way");
    }

    #[test]
    fn nothing_measured_has_no_statistics() {
        assert_eq!(Latency::from_histogram(&LatencyHistogram::new(), Basis::RoundTrip), None);
        let one = Latency::from_histogram(&recorded([7]), Basis::RoundTrip).unwrap();
        assert_eq!((one.min, one.max, one.p50, one.stdev), (7.0, 7.0, None, None));
    }

    #[test]
    fn the_payload_holds_the_whole_distribution() {
        let histogram = recorded((1..=50_000).map(|i| i * 37));
        let decoded = Histogram::from(&histogram).decode().unwrap();
        assert_eq!(decoded, *histogram.buckets());
        assert_eq!(decoded.value_at_quantile(0.99), histogram.quantile(0.99).unwrap());
    }

    #[test]
    fn a_damaged_payload_is_an_error() {
        let good = Histogram::from(&recorded([1, 2, 3]));
        let cut = Histogram { payload: good.payload[..good.payload.len() / 2].into(), ..good.clone() };
        let garbage = Histogram { payload: "not base64!".into(), ..good.clone() };
        let other = Histogram { encoding: "hdr-v0".into(), ..good };
        for broken in [cut, garbage, other] {
            assert!(broken.decode().is_err(), "{broken:?}");
        }
    }
}
