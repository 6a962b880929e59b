//! The samples of a latency loop on their way into its histogram: block by block, outside any timed span.

use std::time::Duration;

use super::clock::Clock;
use super::histogram::{BLOCK, LatencyHistogram};

/// A window under way, whose samples are in ticks.
pub(super) struct Blocks<'a> {
    histogram: &'a mut LatencyHistogram,
    clock: &'a Clock,
    opened: u64,
    deadline: u64,
    interval_end: u64,
    block: [u64; BLOCK],
    held: usize,
}

impl<'a> Blocks<'a> {
    /// For a window that opens at `opened` and is over after `span`.
    pub(super) fn new(
        clock: &'a Clock,
        histogram: &'a mut LatencyHistogram,
        opened: u64,
        span: Duration,
    ) -> Self {
        let deadline = opened.saturating_add(clock.ticks(span));
        let mut blocks =
            Self { histogram, clock, opened, deadline, interval_end: 0, block: [0; BLOCK], held: 0 };
        blocks.begin_interval();
        blocks
    }

    fn begin_interval(&mut self) {
        let end = self.clock.ticks(self.histogram.next_interval_end());
        self.interval_end = self.opened.saturating_add(end);
    }

    /// Room for the next samples, at most `most` of them.
    pub(super) fn room(&mut self, most: u64) -> &mut [u64] {
        let room = (BLOCK - self.held).min(usize::try_from(most).unwrap_or(BLOCK));
        &mut self.block[self.held..self.held + room]
    }

    /// When to stop sampling, and to record what there is.
    pub(super) fn pause(&self) -> u64 {
        self.deadline.min(self.interval_end)
    }

    /// Records the first `used` of the samples that there was room for.
    pub(super) fn record(&mut self, used: usize) {
        let (clock, fresh) = (self.clock, &self.block[self.held..self.held + used]);
        self.histogram.record_all(fresh.iter().map(|&taken| clock.ns(taken)));
        self.held += used;
        if self.held == BLOCK {
            self.histogram.note_median(&mut self.block, |taken| clock.ns(taken));
            self.held = 0;
        }
    }

    /// Whether the window is over at `now`; an interval that is ends there.
    pub(super) fn is_over(&mut self, now: u64) -> bool {
        if now >= self.deadline {
            return true;
        }
        if now >= self.interval_end {
            self.histogram.end_interval(self.clock.ns(now.wrapping_sub(self.opened)));
            self.begin_interval();
        }
        false
    }

    /// The window closed at `now`.
    pub(super) fn close(self, now: u64) {
        self.histogram.close(self.clock.ns(now.wrapping_sub(self.opened)));
    }
}
