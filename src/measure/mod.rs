//! The measured loops, and what they are made of: clock, histogram, waiting.
//!
//! Nothing here knows a verb, a device or a socket. A path is given as a type that implements [`RoundTrip`] or
//! [`Pipeline`], or [`Stream`] and [`Sink`]; the loops are compiled for each path and contain no indirect call of their own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub mod bandwidth;
mod blocks;
pub mod both;
pub mod clock;
pub mod floor;
pub mod histogram;
pub mod jitter;
pub mod latency;
pub mod lossy;
mod medians;
pub mod paced;
pub mod paced_stream;
pub mod pipeline;
pub mod receive;
pub mod schedule;
pub mod series;
mod together;
pub mod watch;

pub use bandwidth::{BandwidthSample, Interval, Sink, Stream};
pub use both::{Both, TwoWay};
pub use clock::{Clock, ClockReport, ClockSource, Counter, Epoch, Raw, Ticks};
pub use histogram::LatencyHistogram;
pub use jitter::Jitter;
pub use latency::RoundTrip;
pub use lossy::{LossyTrip, Trips};
pub use paced::OpenLoop;
pub use pipeline::Pipeline;
pub use receive::Receiving;
pub use schedule::{Arrivals, Pace};
pub use series::LatencyInterval;
pub use together::together;
pub use watch::{FailedWork, Halt, Never, Sleep, Spin, Waiting, Wake, Watch};

/// When a measurement ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// After exactly this many messages, at least 1.
    Count(u64),
    /// When this much time has passed since the window opened.
    After(Duration),
}

/// When a stretch of messages ends: at whichever comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Messages.
    pub messages: u64,
    /// Time.
    pub span: Duration,
}

impl From<Stop> for Limit {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Count(messages) => Self { messages, span: Duration::MAX },
            Stop::After(span) => Self { messages: u64::MAX, span },
        }
    }
}
