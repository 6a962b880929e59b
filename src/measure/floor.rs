//! What the loops cost when the path costs nothing, and what two cores cost when there is no path at all.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::bandwidth::{BandwidthSample, Load, Stream, stream};
use super::clock::{Clock, Ticks};
use super::histogram::LatencyHistogram;
use super::latency::{RoundTrip, initiate};
use super::pipeline::{self, Pipeline};
use super::watch::{Halt, Watch};
use super::{Limit, Stop};

/// A path without operations.
#[derive(Default)]
struct Null {
    posted: u64,
}

impl RoundTrip for Null {
    #[inline(always)]
    fn start(&mut self, _: &Watch<'_>) -> Result<(), Halt> {
        std::hint::black_box(());
        Ok(())
    }
    #[inline(always)]
    fn finish(&mut self, _: &Watch<'_>) -> Result<(), Halt> {
        Ok(())
    }
    #[inline(always)]
    fn settle(&mut self, _: &Watch<'_>) -> Result<(), Halt> {
        Ok(())
    }
    fn stamp(&mut self) {}
    fn check(&mut self) -> Result<(), Halt> {
        Ok(())
    }
}

impl Stream for Null {
    fn expect(&mut self, _: Option<u64>) {}
    #[inline(always)]
    fn post(&mut self, count: u64, _: &Watch<'_>) -> Result<u64, Halt> {
        for _ in 0..count {
            self.posted += 1;
            std::hint::black_box(());
        }
        Ok(count)
    }
    fn cover(&mut self, _: &Watch<'_>) -> Result<u64, Halt> {
        Ok(0)
    }
    #[inline(always)]
    fn reap(&mut self, _: &Watch<'_>) -> Result<u64, Halt> {
        self.look()
    }
    #[inline(always)]
    fn look(&mut self) -> Result<u64, Halt> {
        Ok(std::mem::take(&mut self.posted))
    }
}

impl Pipeline for Null {
    #[inline(always)]
    fn start(&mut self, _: usize, _: &Watch<'_>) -> Result<(), Halt> {
        self.posted += 1;
        std::hint::black_box(());
        Ok(())
    }
    #[inline(always)]
    fn finished(&mut self) -> Result<usize, Halt> {
        Ok(std::mem::take(&mut self.posted) as usize)
    }
    fn wait(&mut self, _: &Watch<'_>) -> Result<usize, Halt> {
        self.finished()
    }
    #[inline(always)]
    fn settle(&mut self, _: usize) -> Result<(), Halt> {
        Ok(())
    }
    fn inspect(&mut self) -> Result<(), Halt> {
        Ok(())
    }
    fn stamp(&mut self, _: usize) {}
    fn check(&mut self, _: usize) -> Result<(), Halt> {
        Ok(())
    }
}

/// What the bandwidth loop takes a message on a path that does nothing, in ns: the mean of 100,000 messages, 128 of
/// them outstanding.
pub fn stream_ns<T: Ticks>(ticks: T, clock: &Clock, watch: &Watch<'_>) -> Option<f64> {
    const MESSAGES: u64 = 100_000;
    let load = Load { depth: 128, warm_up: Stop::Count(0).into(), stop: Stop::Count(MESSAGES) };
    let mut sample = BandwidthSample::default();
    stream(&mut Null::default(), ticks, clock, &load, watch, &mut sample).ok()?;
    Some(sample.window_ns as f64 / MESSAGES as f64)
}

/// What a poll that finds nothing takes, in ns: the median of batches of 64, some microseconds to a millisecond in all.
/// `None` as soon as `poll` says that there was something.
pub fn empty_poll_ns<T: Ticks>(ticks: T, clock: &Clock, mut poll: impl FnMut() -> bool) -> Option<f64> {
    const BATCHES: usize = 33;
    const POLLS: u32 = 64;
    let mut batches = [0; BATCHES];
    for taken in &mut batches {
        let from = ticks.now();
        for _ in 0..POLLS {
            if !poll() {
                return None;
            }
        }
        *taken = ticks.now().wrapping_sub(from);
    }
    let (_, median, _) = batches.select_nth_unstable(BATCHES / 2);
    Some(clock.ns(*median) as f64 / f64::from(POLLS))
}

/// What the latency loop reads on a path that does nothing, in ns: the mean of 10,000 turns. It is what a sample of a
/// real path contains of this tool, and is not subtracted.
pub fn loop_ns<T: Ticks>(ticks: T, clock: &Clock, watch: &Watch<'_>) -> Option<f64> {
    let mut histogram = LatencyHistogram::new();
    let limit: Limit = Stop::Count(10_000).into();
    initiate::<_, _, false>(&mut Null::default(), ticks, clock, limit, watch, &mut histogram).ok()?;
    histogram.mean()
}

/// The same of the loop that may keep several messages outstanding, with one.
pub fn pipeline_ns<T: Ticks>(ticks: T, clock: &Clock, watch: &Watch<'_>) -> Option<f64> {
    let mut histogram = LatencyHistogram::new();
    let limit: Limit = Stop::Count(10_000).into();
    pipeline::initiate::<_, _, false>(&mut Null::default(), ticks, clock, 1, limit, watch, &mut histogram)
        .ok()?;
    histogram.mean()
}

/// A word that two cores pass to and fro, alone on its cache lines.
#[repr(align(256))]
struct Ball(AtomicU64);

/// Rounds of the game.
const ROUNDS: u64 = 20_000;

/// Longest game: with a core taken by someone else it would be none.
const GAME: Duration = Duration::from_millis(50);

/// How long a cache line takes from one core to another, in ns: half the mean of many round trips between this
/// thread and one that `there` has moved to another core. `None` where the game could not be finished in 50 ms.
pub fn core_to_core_ns<T: Ticks>(
    ticks: T,
    clock: &Clock,
    there: impl FnOnce() -> bool + Send,
) -> Option<f64> {
    let ball = Ball(AtomicU64::new(0));
    let over = AtomicU64::new(0);
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let far = scope.spawn(|| {
            let moved = there();
            ready.wait();
            let mut next = 1;
            while moved && next <= 2 * ROUNDS && over.load(Ordering::Relaxed) == 0 {
                if ball.0.load(Ordering::Acquire) == next {
                    ball.0.store(next + 1, Ordering::Release);
                    next += 2;
                }
            }
            moved
        });
        // Asleep: the other thread began on this core, and could not leave it while this one spun.
        ready.wait();
        let deadline = Instant::now() + GAME;
        let mut opened = ticks.now();
        let mut rounds = 0;
        'game: for round in 0..ROUNDS {
            // The first round waits for the other thread to start.
            if round == 1 {
                opened = ticks.now();
            }
            ball.0.store(2 * round + 1, Ordering::Release);
            let mut tries = 0u32;
            while ball.0.load(Ordering::Acquire) != 2 * round + 2 {
                tries += 1;
                if tries.is_multiple_of(4096) && Instant::now() > deadline {
                    break 'game;
                }
            }
            rounds = round;
        }
        let took = ticks.now().wrapping_sub(opened);
        over.store(1, Ordering::Relaxed);
        let moved = far.join().unwrap_or(false);
        (moved && rounds == ROUNDS - 1).then(|| clock.ns(took) as f64 / (2 * rounds) as f64)
    })
}
