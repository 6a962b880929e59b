//! One measured point over one transport.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Basis, Cpu, DirectionRow, Histogram, Latency, Overlap};
use crate::measure::LatencyHistogram;
use crate::plan::{Side, Transport, Wait};

/// Which ends send payload at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// One at a time.
    Unidirectional,
    /// Both at once (`-b`).
    Bidirectional,
}

/// Where in the space of parameters a row was measured. Rows of the two transports with equal points are compared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Payload of one message.
    pub size_bytes: u64,
    /// Queue pairs, or TCP connections.
    pub qps: u32,
    /// Most messages outstanding on each.
    pub depth: u32,
    /// Threads an end.
    pub threads: u32,
    /// How both ends waited.
    pub wait: Wait,
    /// Which ends sent.
    pub direction: Direction,
    /// Rate of an open loop in messages a second; `null` for a closed one.
    pub offered_per_s: Option<f64>,
}

impl Point {
    /// The same point but for the queue pairs: one connection may stand beside many.
    pub fn is_beside(&self, other: &Self) -> bool {
        *self == Self { qps: self.qps, ..*other }
    }

    /// Beside it in a table: the same point but for the queue pairs and the way of waiting.
    pub fn is_grouped_with(&self, other: &Self) -> bool {
        self.is_beside(&Self { wait: self.wait, ..*other })
    }

    /// A name that is the same in every run of this point, so that rows of two runs can be matched:
    /// `rdma/64B/qps1/depth1/threads1/busy/unidirectional`, with `/rate1000` for an open loop.
    pub fn id(&self, transport: Transport) -> String {
        let transport = transport.name();
        let wait = match self.wait {
            Wait::Busy => "busy",
            Wait::Events => "events",
        };
        let direction = match self.direction {
            Direction::Unidirectional => "unidirectional",
            Direction::Bidirectional => "bidirectional",
        };
        let Self { size_bytes, qps, depth, threads, .. } = self;
        let rate = self.offered_per_s.map(|rate| format!("/rate{rate}")).unwrap_or_default();
        format!("{transport}/{size_bytes}B/qps{qps}/depth{depth}/threads{threads}/{wait}/{direction}{rate}")
    }
}

/// One measured point over one transport.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultRow {
    /// [`Point::id`].
    pub id: String,
    /// The path.
    pub transport: Transport,
    /// What was varied.
    pub point: Point,
    /// Payload of one message: the point's, where readers look first.
    pub size_bytes: u64,
    /// Whose count and clock these are.
    pub measured_by: Side,
    /// Messages measured: round trips in a latency test, messages completed in the window in a bandwidth test.
    pub messages: u64,
    /// Messages posted where loss is possible.
    pub sent: Option<u64>,
    /// Messages that arrived there.
    pub received: Option<u64>,
    /// Sent and never received; of a ping-pong that may lose messages, those whose reply did not come in time.
    pub lost: Option<u64>,
    /// Replies that came when their message counted as lost already; `null` where none is waited for so.
    #[serde(default)]
    pub late_replies: Option<u64>,
    /// When the window opened, in seconds after the run started.
    pub start_s: Option<f64>,
    /// Length of the measured window.
    pub window_s: Option<f64>,
    /// Messages a second in the window.
    pub achieved_per_s: Option<f64>,
    /// Messages of an open loop that were posted after they were due.
    pub late: Option<u64>,
    /// Statistics, divided as their basis says; `null` in a bandwidth test.
    pub latency_ns: Option<Latency>,
    /// The whole distribution, not divided; `null` in a bandwidth test.
    pub histogram: Option<Histogram>,
    /// `null` in a latency test. In a bidirectional one the sum of both directions.
    pub bandwidth: Option<Bandwidth>,
    /// The window in pieces, in order: of 100 ms in a bandwidth test, of a second in a latency test. Empty in a
    /// bidirectional test, whose directions have their own.
    pub intervals: Vec<RowInterval>,
    /// Each direction of a bidirectional test, the client's first; empty in others.
    #[serde(default)]
    pub directions: Vec<DirectionRow>,
    /// `null` where messages went one way at a time.
    #[serde(default)]
    pub overlap: Option<Overlap>,
    /// What each of the client's threads measured, where there are several; `bandwidth` is all of it in the window from
    /// the first one's start to the last one's end.
    #[serde(default)]
    pub threads: Vec<ThreadRate>,
    /// What held the rate of a bandwidth test where it was: [`LimitedBy::name`](super::LimitedBy::name).
    pub limited_by: Option<String>,
    /// How far the clock and the loop themselves blur the numbers.
    pub uncertainty: Uncertainty,
    /// CPU spent in the window.
    pub cpu: Cpu,
    /// How the device's or the kernel's counters moved.
    pub counters: Counters,
    /// Whether to believe it.
    pub validity: Validity,
}

impl ResultRow {
    /// A row of which nothing is known yet but what was to be measured.
    pub fn new(transport: Transport, point: Point, measured_by: Side) -> Self {
        Self {
            id: point.id(transport),
            transport,
            point,
            size_bytes: point.size_bytes,
            measured_by,
            messages: 0,
            sent: None,
            received: None,
            lost: None,
            late_replies: None,
            start_s: None,
            window_s: None,
            achieved_per_s: None,
            late: None,
            latency_ns: None,
            histogram: None,
            bandwidth: None,
            intervals: Vec::new(),
            directions: Vec::new(),
            overlap: None,
            threads: Vec::new(),
            limited_by: None,
            uncertainty: Uncertainty::default(),
            cpu: Cpu::default(),
            counters: Counters::default(),
            validity: Validity::default(),
        }
    }

    /// Sets the length of the window and, from it and `messages`, the achieved rate.
    #[must_use]
    pub fn with_window(mut self, messages: u64, window: Duration) -> Self {
        self.messages = messages;
        self.window_s = Some(window.as_secs_f64());
        self.achieved_per_s = per_second(messages as f64, window);
        self
    }

    /// Sets the distribution: statistics, histogram, and what its buckets blur.
    #[must_use]
    pub fn with_latency(mut self, round_trips: &LatencyHistogram, basis: Basis) -> Self {
        self.latency_ns = Latency::from_histogram(round_trips, basis);
        self.histogram = Some(round_trips.into());
        self.intervals = round_trips.intervals().iter().map(RowInterval::from).collect();
        self.uncertainty.quantisation = Some(QUANTISATION);
        self.uncertainty.median_interval_ns = round_trips.median_half_width().map(|ns| ns / basis.divisor());
        self
    }
}

impl ResultRow {
    /// The path in words; with how it was waited on where the ways of waiting are `compared`.
    pub fn path(&self, compared: bool) -> &'static str {
        match (self.transport, self.point.wait) {
            (Transport::Rdma, Wait::Events) if compared => "rdma events",
            (Transport::Tcp, Wait::Events) if compared => "tcp events",
            (transport, _) => transport.name(),
        }
    }

    /// Takes the distributions of the intervals out: they may be too large for a message to the other end.
    pub fn take_interval_payloads(&mut self) -> Vec<Option<String>> {
        self.intervals.iter_mut().map(|interval| interval.payload.take()).collect()
    }

    /// Puts them back.
    pub fn put_interval_payloads(&mut self, payloads: Vec<Option<String>>) {
        for (interval, payload) in self.intervals.iter_mut().zip(payloads) {
            interval.payload = payload;
        }
    }

    /// What this row should have and has not, and why. Values that its kind of test never has are not among them.
    pub(super) fn absent(&self) -> Vec<(String, &'static str)> {
        let mut absent = Vec::new();
        let mut expect = |has: bool, name: &str, reason| {
            if !has {
                absent.push((name.to_owned(), reason));
            }
        };
        if self.bandwidth.is_some() {
            let undecided = match self.point.direction {
                Direction::Unidirectional => "an end did not count what a verdict rests on",
                Direction::Bidirectional => "no verdict is drawn where both ends send and take",
            };
            expect(self.limited_by.is_some(), "limited_by", undecided);
        }
        expect(self.window_s.is_some(), "window_s", "the run ended before the window closed");
        expect(self.achieved_per_s.is_some(), "achieved_per_s", "the run ended before the window closed");
        expect(self.start_s.is_some(), "start_s", "the run ended before the window closed");
        expect(self.received.is_some(), "received", "the target is not told of these messages");
        expect(self.lost.is_some(), "lost", "the target is not told of these messages");
        let own_reference = "CLOCK_MONOTONIC_RAW is its own reference";
        expect(self.uncertainty.calibration_ppm.is_some(), "uncertainty.calibration_ppm", own_reference);
        if self.latency_ns.is_some() {
            let few = "fewer than 20 samples tell nothing of their median";
            expect(self.uncertainty.median_interval_ns.is_some(), "uncertainty.median_interval_ns", few);
        }
        if let Some(bandwidth) = &self.bandwidth {
            let short = match self.point.direction {
                Direction::Unidirectional => "the window has no two whole intervals",
                Direction::Bidirectional => "each direction has intervals of its own",
            };
            expect(bandwidth.interval_min_bytes_per_s.is_some(), "bandwidth.interval_min_bytes_per_s", short);
        }
        if self.point.direction == Direction::Bidirectional {
            self.absent_of_directions(&mut expect);
        }
        for (end, cpu) in [("client", &self.cpu.client), ("server", &self.cpu.server)] {
            let Some(cpu) = cpu else {
                expect(false, &format!("cpu.{end}"), "the run ended before this end reported");
                continue;
            };
            for (name, has, reason) in cpu.absent() {
                expect(has, &format!("cpu.{end}.{name}"), reason);
            }
            let untimed = match self.point.direction {
                Direction::Unidirectional => "this end takes no part, or shares its core with the other",
                Direction::Bidirectional => "what an empty poll of both directions costs is not known",
            };
            expect(cpu.idle_share.is_some(), &format!("cpu.{end}.idle_share"), untimed);
        }
        for (end, counters) in [("client", &self.counters.client), ("server", &self.counters.server)] {
            expect(
                counters.is_some(),
                &format!("counters.{end}"),
                "nothing counts on this path, or the run ended early",
            );
        }
        absent
    }
}

/// Relative width of a bucket at three significant digits.
const QUANTISATION: f64 = 0.001;

/// `count` a second, `None` when no time has passed.
fn per_second(count: f64, window: Duration) -> Option<f64> {
    (!window.is_zero()).then(|| count / window.as_secs_f64())
}

/// Payload moved in the window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Payload bytes a second: neither headers nor retransmissions.
    pub bytes_per_s: Option<f64>,
    /// Messages a second.
    pub messages_per_s: Option<f64>,
    /// The slowest interval; `null` without two whole ones.
    pub interval_min_bytes_per_s: Option<f64>,
}

impl Bandwidth {
    /// From a count over a window, and the rates of its intervals. The slowest is taken over whole intervals only: a
    /// last one shorter than all before it by more than a tenth is the cut-off end of the window. A longer one is
    /// whole: a stall stretched it.
    pub fn new(messages: u64, size_bytes: u64, window: Duration, intervals: &[RowInterval]) -> Self {
        let whole = match intervals.split_last() {
            Some((last, before)) => {
                let shortest = before.iter().map(|i| i.seconds).fold(f64::INFINITY, f64::min);
                if last.seconds < 0.9 * shortest { before } else { intervals }
            }
            None => intervals,
        };
        let rates: Vec<f64> = whole.iter().filter_map(|i| i.bytes_per_s).collect();
        Self {
            bytes_per_s: per_second(messages as f64 * size_bytes as f64, window),
            messages_per_s: per_second(messages as f64, window),
            interval_min_bytes_per_s: (rates.len() >= 2)
                .then(|| rates.iter().copied().fold(f64::MAX, f64::min)),
        }
    }
}

/// A piece of the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowInterval {
    /// Seconds after the window opened.
    pub start_s: f64,
    /// Its length.
    pub seconds: f64,
    /// Messages completed in it.
    pub messages: u64,
    /// Payload bytes a second in it; `null` in a latency test.
    pub bytes_per_s: Option<f64>,
    /// Distribution of the round trips in it, encoded as the row's; `null` in a bandwidth test.
    #[serde(default)]
    pub payload: Option<String>,
}

/// The rate of one thread, in its own window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThreadRate {
    /// The core it ran on; `null` when not known.
    pub core: Option<usize>,
    /// Messages completed in its window.
    pub messages: u64,
    /// Length of its window.
    pub window_s: f64,
    /// Payload bytes a second.
    pub bytes_per_s: Option<f64>,
    /// Messages a second.
    pub messages_per_s: Option<f64>,
}

/// How far the numbers are blurred by what measures them. Nothing is subtracted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Uncertainty {
    /// One reading of the clock.
    pub clock_ns: Option<f64>,
    /// One turn of the loop around an operation that does nothing: in a latency test what it would read, in a
    /// bandwidth test what a message would take.
    pub loop_ns: Option<f64>,
    /// Relative width of a histogram bucket.
    pub quantisation: Option<f64>,
    /// How far the clock's rate moved against the reference over the run, in parts per million.
    pub calibration_ppm: Option<f64>,
    /// Half the width of a 95 % interval around the median, divided as the latency is, from this run alone; `null` in a
    /// bandwidth test.
    pub median_interval_ns: Option<f64>,
}

/// Movement of counters over the window, by end. The names are the device's or the kernel's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// `null` when they could not be read.
    pub client: Option<BTreeMap<String, u64>>,
    /// `null` when they could not be read.
    pub server: Option<BTreeMap<String, u64>>,
}

/// Whether a row may be believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validity {
    /// False: counts, payload, schedule or clock were wrong, and the number means nothing.
    pub ok: bool,
    /// Why not; with `ok`, what disturbed the measurement.
    pub reasons: Vec<String>,
}

impl Default for Validity {
    fn default() -> Self {
        Self { ok: true, reasons: Vec::new() }
    }
}

impl Validity {
    /// Notes a disturbance; the row stays valid.
    pub fn disturbed(&mut self, reason: impl Into<String>) {
        self.reasons.push(reason.into());
    }

    /// The row must not be believed.
    pub fn invalid(&mut self, reason: impl Into<String>) {
        self.ok = false;
        self.reasons.push(reason.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(start: u32, seconds: f64, rate: f64) -> RowInterval {
        RowInterval {
            start_s: f64::from(start) * 0.1,
            seconds,
            messages: 1,
            bytes_per_s: Some(rate),
            payload: None,
        }
    }

    #[test]
    fn the_slowest_interval_is_a_whole_one() {
        let window = Duration::from_millis(220);
        let intervals = [interval(0, 0.1, 900.0), interval(1, 0.1, 800.0), interval(2, 0.02, 10.0)];
        assert_eq!(Bandwidth::new(2, 100, window, &intervals).interval_min_bytes_per_s, Some(800.0));
        assert_eq!(Bandwidth::new(2, 100, window, &intervals[..1]).interval_min_bytes_per_s, None);
        let stalled = [interval(0, 0.1, 900.0), interval(1, 0.4, 50.0), interval(5, 0.1, 900.0)];
        assert_eq!(Bandwidth::new(2, 100, window, &stalled).interval_min_bytes_per_s, Some(50.0));
    }

    #[test]
    fn no_time_gives_no_rate() {
        let none = Bandwidth::new(5, 64, Duration::ZERO, &[]);
        assert_eq!((none.bytes_per_s, none.messages_per_s), (None, None));
        let some = Bandwidth::new(500, 64, Duration::from_millis(500), &[]);
        assert_eq!((some.bytes_per_s, some.messages_per_s), (Some(64_000.0), Some(1000.0)));
    }
}
