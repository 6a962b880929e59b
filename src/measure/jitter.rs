//! What takes a core away from a thread that never sleeps: the gaps between two readings of the clock.
//!
//! The idea is that of sysjitter. A gap is as long as one turn of the loop, some tens of ns, unless something else ran:
//! an interrupt, another thread, the firmware, the hypervisor. All gaps are recorded, and recording is part of the next
//! gap, so that there is no moment at which nobody looks.

use std::time::Duration;

use super::clock::{Clock, Ticks};
use super::histogram::LatencyHistogram;

/// Gaps longer than this are counted: a round trip over RDMA takes less.
pub const THRESHOLD: Duration = Duration::from_micros(10);

/// More such gaps a second than this disturb percentiles up to the 99.9th of short round trips.
pub const TOLERATED_PER_S: f64 = 100.0;

/// The gaps that were seen on a core.
#[derive(Debug)]
pub struct Jitter {
    /// How long was looked, in ns.
    pub window_ns: u64,
    /// Gaps longer than [`THRESHOLD`].
    pub over: u64,
    /// All gaps, in ns.
    pub gaps: LatencyHistogram,
}

impl Jitter {
    /// Looks for `span` at the core that the calling thread is on, which is to be pinned to it. Spins.
    pub fn probe<T: Ticks>(ticks: T, clock: &Clock, span: Duration) -> Self {
        let mut gaps = LatencyHistogram::new();
        let (threshold, span) = (THRESHOLD.as_nanos() as u64, clock.ticks(span));
        let start = ticks.now();
        let (mut last, mut over) = (start, 0);
        while last.wrapping_sub(start) < span {
            let now = ticks.now();
            let gap = clock.ns(now.wrapping_sub(last));
            gaps.record(gap);
            over += u64::from(gap > threshold);
            last = now;
        }
        Self { window_ns: clock.ns(last.wrapping_sub(start)), over, gaps }
    }

    /// Gaps longer than [`THRESHOLD`] a second.
    pub fn over_per_s(&self) -> f64 {
        if self.window_ns == 0 { 0.0 } else { self.over as f64 * 1e9 / self.window_ns as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Epoch, Raw};
    use std::cell::Cell;

    /// A clock that goes 50 ns a reading, and now and then 20 us.
    #[derive(Clone, Copy)]
    struct Stumbling<'a>(&'a Cell<u64>);

    impl Ticks for Stumbling<'_> {
        fn now(self) -> u64 {
            let reading = self.0.get();
            self.0.set(reading + 1);
            reading * 50 + reading / 1000 * 20_000
        }
    }

    /// One tick is one ns.
    fn in_ns() -> Clock {
        Clock::calibrate(Epoch::note(), None)
    }

    #[test]
    fn each_gap_is_seen_and_long_ones_are_counted() {
        let readings = Cell::new(0);
        let jitter = Jitter::probe(Stumbling(&readings), &in_ns(), Duration::from_millis(7));
        assert_eq!(jitter.window_ns, 7_000_000);
        assert_eq!((jitter.over, jitter.gaps.samples()), (100, 100_000));
        assert_eq!((jitter.gaps.min(), jitter.gaps.max()), (Some(50), Some(20_050)));
        assert!((jitter.over_per_s() - 100.0 / 0.007).abs() < 1.0);
    }

    #[test]
    fn a_real_clock_ends_it_as_well() {
        let jitter = Jitter::probe(Raw, &in_ns(), Duration::from_millis(2));
        assert!(jitter.window_ns >= 2_000_000 && jitter.gaps.samples() > 10, "{jitter:?}");
    }
}
