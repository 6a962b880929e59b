//! What several threads measured at the same time, as one.

use super::bandwidth::{BandwidthSample, Interval};
use super::clock::Clock;

/// Length of an interval of the sum, in ns.
const INTERVAL_NS: u64 = 100_000_000;

/// Most intervals, as in a thread's own series.
const MOST_INTERVALS: u64 = 1024;

/// All messages, in the window from the first thread's start to the last one's end. A message of a thread's interval
/// is counted where the interval lies, in parts where it crosses from one of ours to the next.
pub fn together(samples: &[BandwidthSample], clock: &Clock) -> BandwidthSample {
    let Some(first) = samples.iter().map(|sample| sample.opened).min() else {
        return BandwidthSample::default();
    };
    let offset = |sample: &BandwidthSample| clock.ns(sample.opened - first);
    let window_ns = samples.iter().map(|sample| offset(sample) + sample.window_ns).max().unwrap_or(0);
    let length = INTERVAL_NS.max(window_ns.div_ceil(MOST_INTERVALS));
    let mut parts = vec![0.0; window_ns.div_ceil(length) as usize];
    for sample in samples {
        for interval in &sample.intervals {
            deal(&mut parts, length, offset(sample) + interval.start_ns, interval);
        }
    }
    BandwidthSample {
        messages: samples.iter().map(|sample| sample.messages).sum(),
        opened: first,
        window_ns,
        posted: samples.iter().map(|sample| sample.posted).sum(),
        intervals: whole(&parts, length, window_ns),
    }
}

/// Adds the messages of an interval that begins at `start` to the parts that it covers.
fn deal(parts: &mut [f64], length: u64, start: u64, interval: &Interval) {
    let end = start + interval.length_ns.max(1);
    let rate = interval.messages as f64 / (end - start) as f64;
    for (index, part) in parts.iter_mut().enumerate().skip((start / length) as usize) {
        let (from, to) = (index as u64 * length, (index as u64 + 1) * length);
        if from >= end {
            break;
        }
        *part += rate * (to.min(end) - from.max(start)) as f64;
    }
}

/// Rounds the parts so that nothing is lost in all.
fn whole(parts: &[f64], length: u64, window_ns: u64) -> Vec<Interval> {
    let (mut sum, mut given) = (0.0, 0);
    let interval = |(index, part): (usize, &f64)| {
        sum += part;
        let messages = (sum.round() as u64).saturating_sub(given);
        given += messages;
        let start_ns = index as u64 * length;
        Interval { start_ns, length_ns: length.min(window_ns - start_ns), messages }
    };
    parts.iter().enumerate().map(interval).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::measure::Epoch;

    fn sample(clock: &Clock, opened_ms: u64, rates: &[u64]) -> BandwidthSample {
        let interval = |(i, messages): (usize, &u64)| Interval {
            start_ns: i as u64 * INTERVAL_NS,
            length_ns: INTERVAL_NS,
            messages: *messages,
        };
        BandwidthSample {
            messages: rates.iter().sum(),
            opened: 1_000_000 + clock.ticks(Duration::from_millis(opened_ms)),
            window_ns: rates.len() as u64 * INTERVAL_NS,
            posted: rates.iter().sum(),
            intervals: rates.iter().enumerate().map(interval).collect(),
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_between_threads(
            threads in prop::collection::vec((0u64..50, prop::collection::vec(0u64..1_000_000, 1..20)), 1..6),
        ) {
            let clock = Clock::calibrate(Epoch::note(), Some("tsc"));
            let samples: Vec<_> = threads.iter().map(|(at, rates)| sample(&clock, *at, rates)).collect();
            let sum = together(&samples, &clock);
            let messages: u64 = threads.iter().flat_map(|(_, rates)| rates).sum();
            prop_assert_eq!(sum.messages, messages);
            prop_assert_eq!(sum.intervals.iter().map(|interval| interval.messages).sum::<u64>(), messages);
            prop_assert_eq!(sum.intervals.iter().map(|interval| interval.length_ns).sum::<u64>(), sum.window_ns);
        }
    }

    #[test]
    fn rates_of_threads_that_began_together_add_up_interval_by_interval() {
        let clock = Clock::calibrate(Epoch::note(), Some("tsc"));
        let sum = together(&[sample(&clock, 0, &[10, 20]), sample(&clock, 0, &[1, 2])], &clock);
        assert_eq!(sum.intervals.iter().map(|interval| interval.messages).collect::<Vec<_>>(), [11, 22]);
        assert_eq!(together(&[], &clock), BandwidthSample::default());
    }
}
