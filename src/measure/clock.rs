//! The clock of the timed spans: the processor's counter where it can be trusted, else `CLOCK_MONOTONIC_RAW`.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::sys::counter;

/// Where ticks come from, as a type, so that a loop is compiled for one source.
pub trait Ticks: Copy {
    /// The time in ticks of this source.
    fn now(self) -> u64;
}

/// The processor's counter.
#[derive(Debug, Clone, Copy)]
pub struct Counter;

impl Ticks for Counter {
    #[inline(always)]
    fn now(self) -> u64 {
        counter::read()
    }
}

/// `CLOCK_MONOTONIC_RAW` in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Raw;

impl Ticks for Raw {
    #[inline]
    fn now(self) -> u64 {
        raw_ns()
    }
}

/// Which clock a run used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockSource {
    /// Invariant TSC.
    Tsc,
    /// Arm's virtual counter.
    Cntvct,
    /// `CLOCK_MONOTONIC_RAW`, read through the vDSO or by a system call.
    MonotonicRaw,
}

/// Chosen at each reading: for what reads the clock seldom.
impl Ticks for ClockSource {
    #[inline]
    fn now(self) -> u64 {
        match self {
            Self::MonotonicRaw => Raw.now(),
            Self::Tsc | Self::Cntvct => Counter.now(),
        }
    }
}

/// What a run says of its clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClockReport {
    /// The source used.
    pub source: ClockSource,
    /// Ticks a second.
    pub hz: f64,
    /// What one reading costs, in ns: the median over batches. It is part of every latency; nothing is subtracted.
    pub reading_ns: f64,
    /// How far the rate at the end of the run was from the rate used, in parts per million; `None` for
    /// `CLOCK_MONOTONIC_RAW`, which is its own reference.
    pub calibration_ppm: Option<f64>,
}

/// A calibrated clock: turns ticks into nanoseconds.
#[derive(Debug, Clone)]
pub struct Clock {
    source: ClockSource,
    /// Nanoseconds per tick, times 2^32.
    scale: u64,
    start: Pair,
    reading_ns: f64,
}

/// One moment on both clocks.
#[derive(Debug, Clone, Copy)]
struct Pair {
    ticks: u64,
    raw_ns: u64,
}

/// Shortest stretch the rate is taken from: an error of 50 ns at either end is 10 ppm of it.
const CALIBRATION: Duration = Duration::from_millis(10);

/// A rate that moved more than this during a run makes the run invalid.
pub const TOLERATED_PPM: f64 = 500.0;

/// The first moment of a process, from which the rate is taken when the clock is needed.
#[derive(Debug, Clone, Copy)]
pub struct Epoch(Pair);

impl Epoch {
    /// Notes the moment. Taken at process start, it lets set-up time serve as calibration time.
    pub fn note() -> Self {
        Self(Pair::read())
    }
}

impl Clock {
    /// Chooses the source and takes its rate between `epoch` and now, spinning on for at most 10 ms if less has
    /// passed. `kernel_clocksource` is `/sys/devices/system/clocksource/clocksource0/current_clocksource`: a kernel
    /// that does not trust the TSC is believed.
    pub fn calibrate(epoch: Epoch, kernel_clocksource: Option<&str>) -> Self {
        let source = choose(kernel_clocksource);
        let Epoch(start) = epoch;
        let mut scale = 1 << 32;
        if source != ClockSource::MonotonicRaw {
            while raw_ns() - start.raw_ns < CALIBRATION.as_nanos() as u64 {
                std::hint::spin_loop();
            }
            scale = rate(start, Pair::read());
        }
        let mut clock = Self { source, scale, start, reading_ns: 0.0 };
        clock.reading_ns = clock.cost_of_reading();
        clock
    }

    /// The source in use.
    pub fn source(&self) -> ClockSource {
        self.source
    }

    /// Ticks a second.
    pub fn hz(&self) -> f64 {
        1e9 * (1u64 << 32) as f64 / self.scale as f64
    }

    /// Nanoseconds in a span of ticks.
    #[inline]
    pub fn ns(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.scale)) >> 32) as u64
    }

    /// Ticks in a span of time.
    pub fn ticks(&self, span: Duration) -> u64 {
        let ticks = (span.as_nanos() << 32) / u128::from(self.scale);
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Nanoseconds from the epoch to a moment in ticks.
    pub fn since_epoch(&self, ticks: u64) -> u64 {
        match self.source {
            ClockSource::MonotonicRaw => ticks.saturating_sub(self.start.raw_ns),
            ClockSource::Tsc | ClockSource::Cntvct => self.ns(ticks.saturating_sub(self.start.ticks)),
        }
    }

    /// What the run says of its clock, with the rate compared once more over the whole run.
    pub fn report(&self) -> ClockReport {
        let calibration_ppm = (self.source != ClockSource::MonotonicRaw).then(|| {
            let whole_run = rate(self.start, Pair::read());
            (whole_run as f64 / self.scale as f64 - 1.0) * 1e6
        });
        ClockReport { source: self.source, hz: self.hz(), reading_ns: self.reading_ns, calibration_ppm }
    }

    fn cost_of_reading(&self) -> f64 {
        match self.source {
            ClockSource::MonotonicRaw => self.cost_of(Raw),
            ClockSource::Tsc | ClockSource::Cntvct => self.cost_of(Counter),
        }
    }

    fn cost_of<T: Ticks>(&self, ticks: T) -> f64 {
        const BATCH: u32 = 64;
        let mut batches = [0u64; 33];
        for batch in &mut batches {
            let start = ticks.now();
            for _ in 1..BATCH {
                std::hint::black_box(ticks.now());
            }
            *batch = ticks.now().wrapping_sub(start);
        }
        batches.sort_unstable();
        self.ns(batches[batches.len() / 2] * 1000) as f64 / 1000.0 / f64::from(BATCH)
    }
}

fn choose(kernel_clocksource: Option<&str>) -> ClockSource {
    match kernel_clocksource {
        // kvm-clock and Hyper-V's pages are computed from the TSC; a kernel that offers them has found it usable.
        Some("tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page")
            if cfg!(target_arch = "x86_64") && counter::is_invariant() =>
        {
            ClockSource::Tsc
        }
        Some("arch_sys_counter") if cfg!(target_arch = "aarch64") => ClockSource::Cntvct,
        _ => ClockSource::MonotonicRaw,
    }
}

fn raw_ns() -> u64 {
    match clock_gettime(ClockId::CLOCK_MONOTONIC_RAW) {
        Ok(time) => time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64,
        Err(_) => unreachable!("Linux has had CLOCK_MONOTONIC_RAW since 2.6.28"),
    }
}

impl Pair {
    /// Both clocks at one moment: of several tries the one where the two readings lay closest.
    fn read() -> Self {
        let mut best = (u64::MAX, Self { ticks: 0, raw_ns: 0 });
        for _ in 0..16 {
            let before = counter::read();
            let raw_ns = raw_ns();
            let width = counter::read().wrapping_sub(before);
            if width < best.0 {
                best = (width, Self { ticks: before + width / 2, raw_ns });
            }
        }
        best.1
    }
}

/// Nanoseconds per tick between two moments, times 2^32.
fn rate(from: Pair, to: Pair) -> u64 {
    let ticks = u128::from(to.ticks.saturating_sub(from.ticks).max(1));
    ((u128::from(to.raw_ns - from.raw_ns) << 32) / ticks) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_agree_on_a_stretch_of_time() {
        let clock = Clock::calibrate(Epoch::note(), Some("tsc"));
        let from = (counter::read(), raw_ns());
        while raw_ns() - from.1 < 20_000_000 {}
        let to = (counter::read(), raw_ns());
        if clock.source() == ClockSource::Tsc {
            let (counted, reference) = (clock.ns(to.0 - from.0) as f64, (to.1 - from.1) as f64);
            assert!((counted / reference - 1.0).abs() < 0.01, "{counted} against {reference}");
        }
        assert!(clock.report().reading_ns > 0.0);
    }

    #[test]
    fn a_kernel_that_distrusts_the_counter_is_believed() {
        assert_eq!(choose(Some("hpet")), ClockSource::MonotonicRaw);
        assert_eq!(choose(None), ClockSource::MonotonicRaw);
    }

    #[test]
    fn a_month_of_ticks_does_not_overflow() {
        let clock = Clock {
            source: ClockSource::Tsc,
            scale: (1u64 << 32) / 4,
            start: Pair { ticks: 0, raw_ns: 0 },
            reading_ns: 0.0,
        };
        let month = Duration::from_secs(31 * 24 * 3600);
        assert_eq!(clock.ns(clock.ticks(month)), month.as_nanos() as u64);
    }
}
