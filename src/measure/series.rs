//! The course of a latency run: its distribution in intervals, in memory that does not grow with the run.

use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// Length of an interval, until there are too many.
const INTERVAL: Duration = Duration::from_secs(1);

/// Most intervals kept: beyond it neighbours are merged, so that a day takes no more memory than a quarter of an hour.
const MOST: usize = 1024;

/// A stretch of the window, and the round trips that ended within it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyInterval {
    /// Since the window opened, in ns.
    pub start_ns: u64,
    /// In ns.
    pub length_ns: u64,
    /// Round trips.
    pub messages: u64,
    /// Their distribution: HdrHistogram V2, deflated.
    pub distribution: Box<[u8]>,
}

/// The intervals of a window. Each is what a histogram of the whole window has gained since the one before, so that
/// recording a sample costs no more than without.
#[derive(Debug, Clone)]
pub struct Series {
    kept: Vec<LatencyInterval>,
    /// The whole as it was when the last interval ended.
    before: Histogram<u64>,
    gained: Histogram<u64>,
    /// When the last interval ended, in ns since the window opened.
    since_ns: u64,
    /// When the window closed.
    closed_ns: u64,
    length: Duration,
}

impl Series {
    /// For a histogram with the bounds of `like`, which is empty.
    pub fn new(like: &Histogram<u64>) -> Self {
        Self {
            kept: Vec::with_capacity(MOST),
            before: Histogram::new_from(like),
            gained: Histogram::new_from(like),
            since_ns: 0,
            closed_ns: 0,
            length: INTERVAL,
        }
    }

    /// When the current interval is to end, after the window opened.
    pub fn next_end(&self) -> Duration {
        let whole = u128::from(self.since_ns) / self.length.as_nanos() + 1;
        u32::try_from(whole).map_or(Duration::MAX, |whole| self.length.saturating_mul(whole))
    }

    /// Ends the current interval at `now_ns` after the window opened, where the histogram of the whole is `whole`.
    #[cold]
    pub fn end_interval(&mut self, now_ns: u64, whole: &Histogram<u64>) {
        if self.kept.len() == MOST {
            self.merge();
        }
        let interval = self.current(now_ns, whole);
        self.kept.extend(interval);
        // Both have the same bounds.
        let _ = self.before.set_to(whole);
        self.since_ns = now_ns;
    }

    /// Notes when the window closed. The last interval ends there.
    pub fn close(&mut self, now_ns: u64) {
        self.closed_ns = now_ns;
    }

    /// All intervals of a window whose histogram is `whole`.
    pub fn intervals(&self, whole: &Histogram<u64>) -> Vec<LatencyInterval> {
        let last = self.clone().current(self.closed_ns.max(self.since_ns), whole);
        let last = last.filter(|interval| interval.messages > 0);
        self.kept.iter().cloned().chain(last).collect()
    }

    fn current(&mut self, now_ns: u64, whole: &Histogram<u64>) -> Option<LatencyInterval> {
        self.gained.set_to(whole).ok()?;
        self.gained.subtract(&self.before).ok()?;
        Some(LatencyInterval {
            start_ns: self.since_ns,
            length_ns: now_ns - self.since_ns,
            messages: self.gained.len(),
            distribution: encode(&self.gained)?,
        })
    }

    /// Joins each two neighbours. Intervals are twice as long from now on.
    fn merge(&mut self) {
        for i in 0..MOST / 2 {
            let joined = join(&self.kept[2 * i], &self.kept[2 * i + 1]);
            self.kept[i] = joined;
        }
        self.kept.truncate(MOST / 2);
        self.length = self.length.saturating_mul(2);
    }
}

fn join(first: &LatencyInterval, second: &LatencyInterval) -> LatencyInterval {
    let sum = || {
        let mut sum = decode(&first.distribution)?;
        sum.add(decode(&second.distribution)?).ok()?;
        encode(&sum)
    };
    LatencyInterval {
        start_ns: first.start_ns,
        length_ns: second.start_ns + second.length_ns - first.start_ns,
        messages: first.messages + second.messages,
        // It was encoded here, so it is read here.
        distribution: sum().unwrap_or_default(),
    }
}

fn encode(histogram: &Histogram<u64>) -> Option<Box<[u8]>> {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(histogram, &mut bytes).ok()?;
    Some(bytes.into())
}

fn decode(bytes: &[u8]) -> Option<Histogram<u64>> {
    Deserializer::new().deserialize(&mut &*bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn empty() -> Histogram<u64> {
        Histogram::new_with_bounds(1, 100 * SECOND, 3).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn the_intervals_add_up_to_the_whole(
            stretches in proptest::collection::vec(
                (1..3 * SECOND, proptest::collection::vec(1..200 * SECOND, 0..20)), 1..12),
        ) {
            let mut whole = empty();
            let mut series = Series::new(&whole);
            let mut now = 0;
            for (length, samples) in &stretches {
                now += length;
                samples.iter().for_each(|&ns| whole.saturating_record(ns));
                series.end_interval(now, &whole);
            }
            whole.saturating_record(5);
            series.close(now + 7);
            let intervals = series.intervals(&whole);
            prop_assert_eq!(intervals.len(), stretches.len() + 1);
            let mut sum = empty();
            let mut end = 0;
            for interval in &intervals {
                prop_assert_eq!(interval.start_ns, end);
                end += interval.length_ns;
                let gained = decode(&interval.distribution).unwrap();
                prop_assert_eq!(gained.len(), interval.messages);
                sum.add(gained).unwrap();
            }
            prop_assert_eq!(end, now + 7);
            prop_assert_eq!(sum, whole);
        }
    }

    #[test]
    fn a_day_takes_no_more_room_than_a_quarter_of_an_hour() {
        let mut whole = empty();
        let mut series = Series::new(&whole);
        let mut now = Duration::ZERO;
        while now < Duration::from_secs(2500) {
            now = series.next_end();
            whole.record(1000 + now.as_secs()).unwrap();
            series.end_interval(now.as_nanos() as u64, &whole);
            assert!(series.kept.len() <= MOST && series.kept.capacity() == MOST);
        }
        let intervals = series.intervals(&whole);
        assert_eq!(intervals.iter().map(|interval| interval.messages).sum::<u64>(), whole.len());
        assert_eq!(series.length, Duration::from_secs(4));
        let lengths: Vec<u64> = intervals.iter().map(|interval| interval.length_ns / SECOND).collect();
        assert!(lengths.iter().all(|length| [2, 4].contains(length)), "{lengths:?}");
    }

    #[test]
    fn an_interval_that_a_stall_stretched_is_followed_by_a_short_one() {
        let whole = empty();
        let mut series = Series::new(&whole);
        assert_eq!(series.next_end(), Duration::from_secs(1));
        series.end_interval(3 * SECOND + 1, &whole);
        assert_eq!(series.next_end(), Duration::from_secs(4));
    }
}
