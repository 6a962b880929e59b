//! Latency distributions in constant memory: an HDR histogram plus the exact extremes it would round.

use std::time::Duration;

use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

use super::medians::Medians;
use super::series::{LatencyInterval, Series};

/// Largest recordable round trip: 100 s. A longer one is clipped into the last bucket; the exact maximum keeps it.
const HIGHEST_NS: u64 = 100_000_000_000;

/// Significant decimal digits: a recorded value is off by at most 0.1 %.
pub const SIGNIFICANT_DIGITS: u8 = 3;

/// Samples of a block. Loops keep them aside and record them together: 8 kB, which stays in the first-level cache.
pub const BLOCK: usize = 1024;

/// A percentile is given only where at least this many samples lie beyond it.
const SAMPLES_BEYOND: f64 = 10.0;

/// Round trips in nanoseconds, never halved.
#[derive(Debug, Clone)]
pub struct LatencyHistogram {
    buckets: Histogram<u64>,
    min: u64,
    max: u64,
    sum: u128,
    sum_of_squares: f64,
    medians: Medians,
    series: Option<Series>,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl LatencyHistogram {
    /// An empty histogram. Allocates its whole memory (about 240 kB) at once and touches it.
    pub fn new() -> Self {
        let buckets = Histogram::new_with_bounds(1, HIGHEST_NS, SIGNIFICANT_DIGITS)
            .expect("the bounds are constants that hdrhistogram accepts");
        Self {
            buckets,
            min: u64::MAX,
            max: 0,
            sum: 0,
            sum_of_squares: 0.0,
            medians: Medians::default(),
            series: None,
        }
    }

    /// The same, which keeps the course of the run as well: see [`LatencyHistogram::intervals`].
    pub fn with_intervals() -> Self {
        let mut histogram = Self::new();
        histogram.series = Some(Series::new(&histogram.buckets));
        histogram
    }

    /// Adds one round trip. Allocates nothing.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.record_all([ns]);
    }

    /// Adds round trips. Allocates nothing.
    #[inline]
    pub fn record_all(&mut self, samples: impl IntoIterator<Item = u64>) {
        let (mut min, mut max) = (self.min, self.max);
        let (mut sum, mut sum_of_squares) = (0, 0.0);
        for ns in samples {
            self.buckets.saturating_record(ns.max(1));
            min = min.min(ns);
            max = max.max(ns);
            sum += u128::from(ns);
            sum_of_squares += (ns as f64) * (ns as f64);
        }
        (self.min, self.max) = (min, max);
        self.sum += sum;
        self.sum_of_squares += sum_of_squares;
    }

    /// Notes the median of a block of round trips that followed each other, each `ns` of a tick count. Reorders the
    /// block. Allocates nothing.
    #[inline]
    pub fn record_block(&mut self, block: &mut [u64], ns: impl Fn(u64) -> u64) {
        self.record_chunk::<BLOCK>(block, ns);
    }

    /// The same in chunks of another length. One histogram takes chunks of one length.
    #[inline]
    pub fn record_chunk<const WHOLE: usize>(&mut self, chunk: &mut [u64], ns: impl Fn(u64) -> u64) {
        self.record_all(chunk.iter().map(|&ticks| ns(ticks)));
        if chunk.len() == WHOLE {
            self.note_median(chunk, ns);
        }
    }

    /// Notes the median of a whole block or chunk. Reorders it.
    #[inline]
    pub fn note_median(&mut self, block: &mut [u64], ns: impl Fn(u64) -> u64) {
        let (_, median, _) = block.select_nth_unstable(block.len() / 2);
        self.medians.push(ns(*median) as f64);
    }

    /// When the current interval is to end, after the window opened; [`Duration::MAX`] where none are kept.
    pub fn next_interval_end(&self) -> Duration {
        self.series.as_ref().map_or(Duration::MAX, Series::next_end)
    }

    /// Ends the current interval at `now_ns` after the window opened.
    pub fn end_interval(&mut self, now_ns: u64) {
        if let Some(series) = &mut self.series {
            series.end_interval(now_ns, &self.buckets);
        }
    }

    /// The window closed at `now_ns` after it opened.
    pub fn close(&mut self, now_ns: u64) {
        if let Some(series) = &mut self.series {
            series.close(now_ns);
        }
    }

    /// The window in intervals of a second, doubled as often as needed to keep the list short; the last one is shorter.
    /// Empty where none were kept.
    pub fn intervals(&self) -> Vec<LatencyInterval> {
        self.series.as_ref().map(|series| series.intervals(&self.buckets)).unwrap_or_default()
    }

    /// Half the width in ns of a 95 % interval around the median: from the spread between slices of the run where it
    /// has eight of them, and at least what as many independent samples would have (the binomial interval of a
    /// quantile). `None` below twenty samples.
    pub fn median_half_width(&self) -> Option<f64> {
        let samples = self.samples() as f64;
        if samples < 2.0 * SAMPLES_BEYOND {
            return None;
        }
        let ranks = 0.98 / samples.sqrt();
        let [low, high] = [0.5 - ranks, 0.5 + ranks].map(|quantile| self.buckets.value_at_quantile(quantile));
        let independent = (high - low) as f64 / 2.0;
        Some(self.medians.half_width().map_or(independent, |slices| slices.max(independent)))
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.buckets.len()
    }

    /// Exact smallest round trip in ns; `None` without samples.
    pub fn min(&self) -> Option<u64> {
        (self.samples() > 0).then_some(self.min)
    }

    /// Exact largest round trip in ns; `None` without samples.
    pub fn max(&self) -> Option<u64> {
        (self.samples() > 0).then_some(self.max)
    }

    /// Exact mean in ns; `None` without samples.
    pub fn mean(&self) -> Option<f64> {
        (self.samples() > 0).then(|| self.sum as f64 / self.samples() as f64)
    }

    /// Sample standard deviation in ns; `None` below two samples.
    pub fn stdev(&self) -> Option<f64> {
        let n = self.samples() as f64;
        let mean = self.mean().filter(|_| n >= 2.0)?;
        Some(((self.sum_of_squares - n * mean * mean).max(0.0) / (n - 1.0)).sqrt())
    }

    /// The value in ns that a share `quantile` (0 to 1) of the samples does not exceed, within 0.1 %; `None` where
    /// fewer than ten samples lie beyond it.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let beyond = self.samples() as f64 * (1.0 - quantile);
        // A tenth of a sample forgives the rounding of 1 - 0.999.
        (beyond + 0.1 >= SAMPLES_BEYOND)
            .then(|| self.buckets.value_at_quantile(quantile).clamp(self.min, self.max))
    }

    /// HdrHistogram V2, deflated, in base64: what other implementations load.
    pub fn to_payload(&self) -> String {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&self.buckets, &mut bytes)
            .expect("writing to memory cannot fail, and counts fit");
        base64::engine::general_purpose::STANDARD.encode(bytes)
    }

    /// The buckets, for writers of other formats.
    pub fn buckets(&self) -> &Histogram<u64> {
        &self.buckets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_are_exact_and_percentiles_need_ten_samples_beyond() {
        let mut histogram = LatencyHistogram::new();
        for ns in 1..=1000 {
            histogram.record(ns * 1001);
        }
        assert_eq!(histogram.min(), Some(1001));
        assert_eq!(histogram.max(), Some(1_001_000));
        assert!(histogram.quantile(0.99).is_some(), "ten samples lie beyond");
        assert_eq!(histogram.quantile(0.999), None, "one sample lies beyond");
        let p50 = histogram.quantile(0.5).unwrap() as f64;
        assert!((p50 / 500_500.0 - 1.0).abs() < 0.002, "{p50}");
    }

    #[test]
    fn deviation_keeps_fractions_of_a_microsecond() {
        let mut histogram = LatencyHistogram::new();
        for ns in [2050, 2150, 2250, 2350, 2450, 2550, 2650, 2750, 2900] {
            histogram.record(ns);
        }
        let stdev = histogram.stdev().unwrap();
        assert!((stdev - 283.3).abs() < 0.1, "{stdev}");
    }

    #[test]
    fn a_median_that_wanders_is_less_sure_than_its_samples_say() {
        let block = |around: u64| std::array::from_fn::<_, BLOCK, _>(|i| around + i as u64 % 16);
        let half_width = |wanders: u64| {
            let mut histogram = LatencyHistogram::new();
            for i in 0..64 {
                let mut block = block(1000 + i / 8 % 2 * wanders);
                histogram.record_all(block);
                histogram.note_median(&mut block, |ticks| ticks);
            }
            assert_eq!(histogram.samples(), 64 * BLOCK as u64);
            histogram.median_half_width().unwrap()
        };
        assert!(half_width(0) <= 1.0, "{}", half_width(0));
        assert!(half_width(200) > 20.0, "{}", half_width(200));
    }

    #[test]
    fn few_samples_have_a_wide_interval_and_fewer_none() {
        let mut histogram = LatencyHistogram::new();
        histogram.record_all((1..20).map(|i| i * 100));
        assert_eq!(histogram.median_half_width(), None);
        histogram.record(2000);
        // Ranks 6 and 14 of 20.
        assert!((350.0..550.0).contains(&histogram.median_half_width().unwrap()));
    }

    #[test]
    fn an_empty_histogram_has_no_numbers() {
        let histogram = LatencyHistogram::new();
        assert_eq!(
            (histogram.min(), histogram.max(), histogram.mean(), histogram.stdev()),
            (None, None, None, None)
        );
        assert_eq!(histogram.quantile(0.5), None);
    }

    #[test]
    fn a_sample_beyond_the_range_is_clipped_but_its_maximum_is_kept() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(HIGHEST_NS * 3);
        assert_eq!(histogram.max(), Some(HIGHEST_NS * 3));
        assert_eq!(histogram.samples(), 1);
    }
}
