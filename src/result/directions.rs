//! The two directions of a bidirectional row, and how far their windows were open together.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Bandwidth, ResultRow, RowInterval};
use crate::plan::Side;

/// One direction of a bidirectional test: the count and the clock of the end that sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirectionRow {
    /// The end that sent.
    pub from: Side,
    /// Messages completed in its window.
    pub messages: u64,
    /// When its window opened, in seconds after the client's run started, on the client's clock.
    pub start_s: Option<f64>,
    /// Length of its window.
    pub window_s: f64,
    /// Payload moved in it.
    #[serde(flatten)]
    pub bandwidth: Bandwidth,
    /// Its window in pieces of 100 ms, in order.
    pub intervals: Vec<RowInterval>,
}

impl DirectionRow {
    /// From what the end that sent has counted.
    pub fn new(
        from: Side,
        size_bytes: u64,
        messages: u64,
        window: Duration,
        intervals: Vec<RowInterval>,
    ) -> Self {
        let bandwidth = Bandwidth::new(messages, size_bytes, window, &intervals);
        Self { from, messages, start_s: None, window_s: window.as_secs_f64(), bandwidth, intervals }
    }
}

/// How far the windows of both directions were open at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// The time both were open, as a part of the longer window; `null` where the clocks' offset is not known well enough.
    pub share: Option<f64>,
    /// The server's clock less the client's, each counting from the start of its process.
    pub offset_ns: i64,
    /// It may be off by as much, either way.
    pub uncertainty_ns: u64,
}

/// A window on the client's clock, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// When it opened.
    pub start_ns: i64,
    /// Its length.
    pub length_ns: u64,
}

/// A share is given where the offset is known to this part of the shorter window.
const KNOWN_TO: f64 = 0.01;

impl Overlap {
    /// Of two windows, one of which was read from another clock with this offset.
    pub fn of(client: Span, server: Span, offset_ns: i64, uncertainty_ns: u64) -> Self {
        let end = |span: Span| i128::from(span.start_ns) + i128::from(span.length_ns);
        let start = i128::from(client.start_ns.max(server.start_ns));
        let both = (end(client).min(end(server)) - start).max(0);
        let (shorter, longer) =
            (client.length_ns.min(server.length_ns), client.length_ns.max(server.length_ns));
        let is_known = shorter > 0 && uncertainty_ns as f64 <= KNOWN_TO * shorter as f64;
        Self { share: is_known.then(|| both as f64 / longer as f64), offset_ns, uncertainty_ns }
    }
}

impl ResultRow {
    /// Makes it the row of both directions: counts and rates are sums, its window is the client's. With one direction
    /// alone, of a run that ended early, there is no sum.
    #[must_use]
    pub fn with_directions(mut self, directions: Vec<DirectionRow>, overlap: Option<Overlap>) -> Self {
        let sum = |rate: fn(&Bandwidth) -> Option<f64>| -> Option<f64> {
            directions.iter().map(|direction| rate(&direction.bandwidth)).sum()
        };
        self.bandwidth = (directions.len() == 2).then(|| Bandwidth {
            bytes_per_s: sum(|bandwidth| bandwidth.bytes_per_s),
            messages_per_s: sum(|bandwidth| bandwidth.messages_per_s),
            interval_min_bytes_per_s: None,
        });
        self.messages = directions.iter().map(|direction| direction.messages).sum();
        self.achieved_per_s = self.bandwidth.and_then(|bandwidth| bandwidth.messages_per_s);
        self.intervals = Vec::new();
        self.directions = directions;
        self.overlap = overlap;
        self
    }

    /// As [`ResultRow::absent`], of what only a bidirectional row has.
    pub(super) fn absent_of_directions(&self, expect: &mut impl FnMut(bool, &str, &'static str)) {
        let early = "the run ended before both directions were measured";
        expect(self.bandwidth.is_some(), "bandwidth", early);
        match &self.overlap {
            None => expect(false, "overlap", early),
            Some(overlap) => {
                let vague = "the offset of the two clocks is not known to 1 % of the window";
                expect(overlap.share.is_some(), "overlap.share", vague);
            }
        }
        for (index, direction) in self.directions.iter().enumerate() {
            let path = |name: &str| format!("directions[{index}].{name}");
            expect(direction.start_s.is_some(), &path("start_s"), early);
            let has_least = direction.bandwidth.interval_min_bytes_per_s.is_some();
            expect(has_least, &path("interval_min_bytes_per_s"), "the window has no two whole intervals");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start_ms: i64, length_ms: u64) -> Span {
        Span { start_ns: start_ms * 1_000_000, length_ns: length_ms * 1_000_000 }
    }

    #[test]
    fn the_share_is_of_the_longer_window() {
        let share = |a, b| Overlap::of(a, b, 0, 0).share;
        assert_eq!(share(span(0, 100), span(0, 100)), Some(1.0));
        assert_eq!(share(span(0, 100), span(25, 100)), Some(0.75));
        assert_eq!(share(span(25, 50), span(0, 100)), Some(0.5));
        assert_eq!(share(span(0, 100), span(100, 100)), Some(0.0));
        assert_eq!(share(span(0, 100), span(300, 100)), Some(0.0));
        assert_eq!(share(span(-50, 100), span(0, 100)), Some(0.5));
    }

    #[test]
    fn there_is_none_where_the_clocks_do_not_tell() {
        let share = |uncertainty| Overlap::of(span(0, 100), span(0, 200), 7, uncertainty).share;
        assert_eq!(share(1_000_000), Some(0.5));
        assert_eq!(share(1_000_001), None);
        assert_eq!(Overlap::of(span(0, 0), span(0, 1), 0, 0).share, None);
    }
}
