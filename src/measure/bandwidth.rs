//! The bandwidth loop: a window kept full, and the end that takes the messages.

use std::time::Duration;

use super::clock::{Clock, Ticks};
use super::watch::{Halt, Watch};
use super::{Limit, Stop};

/// The end that posts.
pub trait Stream {
    /// Tells how many messages the coming stretch has, so that the last of them ask for their completion whatever their
    /// turn; `None` where that is not known beforehand.
    fn expect(&mut self, messages: Option<u64>);

    /// Posts up to `count` messages and returns how many: fewer only where those that are outstanding must complete
    /// first.
    ///
    /// # Errors
    /// The path failed.
    fn post(&mut self, count: u64, watch: &Watch<'_>) -> Result<u64, Halt>;

    /// Posts what it takes for everything posted to complete, as far as there is room, and returns how many that were.
    ///
    /// # Errors
    /// The path failed.
    fn cover(&mut self, watch: &Watch<'_>) -> Result<u64, Halt>;

    /// Waits until at least one more message is complete, and returns how many are.
    ///
    /// # Errors
    /// The reason to leave the loop.
    fn reap(&mut self, watch: &Watch<'_>) -> Result<u64, Halt>;

    /// Returns how many more messages are complete, without waiting.
    ///
    /// # Errors
    /// The path failed.
    fn look(&mut self) -> Result<u64, Halt>;
}

/// The end that takes messages which announce themselves. With `VERIFY` what the arrival itself carries (length,
/// immediate data) is compared with what it must be.
pub trait Sink {
    /// Waits until at least one more message has arrived, makes room for as many, and returns how many came.
    ///
    /// # Errors
    /// The reason to leave the loop.
    fn take<const VERIFY: bool>(&mut self, watch: &Watch<'_>) -> Result<u64, Halt>;

    /// Takes what has arrived, makes room for as many, and returns how many came, without waiting.
    ///
    /// # Errors
    /// The path failed, or what came is wrong.
    fn look<const VERIFY: bool>(&mut self, watch: &Watch<'_>) -> Result<u64, Halt>;
}

/// A stretch of the window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Since the window opened, in ns.
    pub start_ns: u64,
    /// In ns.
    pub length_ns: u64,
    /// Completed within it.
    pub messages: u64,
}

/// What a bandwidth loop saw.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BandwidthSample {
    /// Completed inside the window.
    pub messages: u64,
    /// When the window opened, in ticks of the clock.
    pub opened: u64,
    /// Length of the window in ns.
    pub window_ns: u64,
    /// Posted in all: before, inside and after the window.
    pub posted: u64,
    /// The window in stretches of 100 ms (doubled as often as needed to keep the list short); the last one is shorter.
    pub intervals: Vec<Interval>,
}

/// Shortest interval of the time series.
const INTERVAL: Duration = Duration::from_millis(100);

/// Most intervals kept: beyond it neighbours are merged, so that a day takes no more memory than a minute.
const MOST_INTERVALS: usize = 1024;

/// The clock is read about this often while a window is open: often enough to place its end, too seldom to cost.
const SLICE: Duration = Duration::from_micros(50);

/// How often a stream that never waits looks around: where messages may be lost they are complete once they are sent, to
/// a peer that is gone, too.
const LOOK: Duration = Duration::from_millis(100);

/// What a stream is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Messages kept outstanding, at least 1.
    pub depth: u64,
    /// When the warm-up ends.
    pub warm_up: Limit,
    /// When the measurement ends.
    pub stop: Stop,
}

/// Keeps a window of messages outstanding until the load's end.
///
/// With a count the pipe is drained after the warm-up, and the window reaches from the first post to the last
/// completion. With a time the warm-up runs on without a pause, the window opens on a full pipe, and the drain
/// afterwards is outside it.
///
/// # Errors
/// The reason the loop was left early; what was measured until then is in `sample`.
pub fn stream<P: Stream, T: Ticks>(
    path: &mut P,
    ticks: T,
    clock: &Clock,
    load: &Load,
    watch: &Watch<'_>,
    sample: &mut BandwidthSample,
) -> Result<(), Halt> {
    let mut flow = Flow { posted: 0, done: 0, depth: load.depth, limit: u64::MAX };
    let outcome = warm_up_and_measure(path, ticks, clock, load, watch, &mut flow, sample);
    sample.posted = flow.posted;
    outcome
}

fn warm_up_and_measure<P: Stream, T: Ticks>(
    path: &mut P,
    ticks: T,
    clock: &Clock,
    load: &Load,
    watch: &Watch<'_>,
    flow: &mut Flow,
    sample: &mut BandwidthSample,
) -> Result<(), Halt> {
    let mut unused = Window::new(clock, ticks.now());
    let counted = |messages: u64| Some(messages).filter(|messages| *messages < u64::MAX);
    if let Stop::Count(count) = load.stop {
        // No more than asked for: a window of large messages on a slow path would take many times as long.
        flow.limit = load.warm_up.messages;
        path.expect(counted(load.warm_up.messages));
        flow.run(path, ticks, &mut unused, clock, load.warm_up, watch)?;
        flow.drain(path, watch, |_| {})?;
        flow.limit = flow.posted + count;
        path.expect(Some(count));
    } else {
        path.expect(None);
        flow.run(path, ticks, &mut unused, clock, load.warm_up, watch)?;
    }
    let mut window = Window::new(clock, ticks.now());
    let outcome = flow.run(path, ticks, &mut window, clock, load.stop.into(), watch);
    window.close(clock, sample);
    outcome?;
    flow.drain(path, watch, |_| {})
}

/// Posts `count` messages, for which there must be room, and waits until they are complete.
///
/// # Errors
/// The reason to leave the wait.
pub fn batch<P: Stream>(path: &mut P, count: u64, watch: &Watch<'_>) -> Result<(), Halt> {
    path.expect(Some(count));
    let posted = path.post(count, watch)?;
    debug_assert_eq!(posted, count, "a batch is no more than there is room for");
    let mut done = 0;
    while done < count {
        done += path.reap(watch)?;
    }
    Ok(())
}

/// How far a stream has come.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) posted: u64,
    pub(super) done: u64,
    pub(super) depth: u64,
    /// Nothing is posted beyond this many.
    pub(super) limit: u64,
}

impl Flow {
    /// Runs until `limit`, looking at the clock once a slice.
    fn run<P: Stream, T: Ticks>(
        &mut self,
        path: &mut P,
        ticks: T,
        window: &mut Window,
        clock: &Clock,
        limit: Limit,
        watch: &Watch<'_>,
    ) -> Result<(), Halt> {
        let (end, span) = (self.done.saturating_add(limit.messages), clock.ticks(limit.span));
        let (short, seldom) = (clock.ticks(SLICE), clock.ticks(LOOK));
        let (mut slice, mut looked) = (1, ticks.now());
        while self.done < end {
            let before = self.done;
            self.advance(path, end.min(self.done + slice), watch)?;
            let now = ticks.now();
            let elapsed = window.note(now, self.done - before);
            if elapsed.whole >= span {
                break;
            }
            if now.wrapping_sub(looked) >= seldom {
                looked = now;
                watch.look(&mut None)?;
            }
            slice = if elapsed.last < short { slice * 2 } else { (slice / 2).max(1) };
            if watch.is_signalled() {
                return Err(Halt::Interrupted);
            }
        }
        Ok(())
    }

    /// The loop: post what the window has room for, wait for completions.
    #[inline]
    fn advance<P: Stream>(&mut self, path: &mut P, until: u64, watch: &Watch<'_>) -> Result<(), Halt> {
        while self.done < until {
            let room = (self.depth - (self.posted - self.done)).min(self.limit - self.posted);
            if room > 0 {
                self.posted += path.post(room, watch)?;
            }
            self.done += path.reap(watch)?;
        }
        Ok(())
    }

    /// Waits for everything posted, and tells `ended` of each batch. Messages more may be needed to ask for the completions
    /// that cover the last.
    pub(super) fn drain<P: Stream>(
        &mut self,
        path: &mut P,
        watch: &Watch<'_>,
        mut ended: impl FnMut(u64),
    ) -> Result<(), Halt> {
        loop {
            self.posted += path.cover(watch)?;
            if self.done == self.posted {
                return Ok(());
            }
            let new = path.reap(watch)?;
            self.done += new;
            ended(new);
        }
    }
}

/// An open window and its time series.
pub(super) struct Window {
    pub(super) opened: u64,
    latest: u64,
    messages: u64,
    series: Vec<(u64, u64, u64)>,
    current: (u64, u64),
    interval: u64,
}

/// Ticks since the window opened, and since the slice began.
pub(super) struct Elapsed {
    pub(super) whole: u64,
    last: u64,
}

impl Window {
    pub(super) fn new(clock: &Clock, now: u64) -> Self {
        Self {
            opened: now,
            latest: now,
            messages: 0,
            series: Vec::with_capacity(MOST_INTERVALS),
            current: (now, 0),
            interval: clock.ticks(INTERVAL),
        }
    }

    /// Counts a slice of `messages` that ended at `now`.
    pub(super) fn note(&mut self, now: u64, messages: u64) -> Elapsed {
        let elapsed = Elapsed { whole: now.wrapping_sub(self.opened), last: now.wrapping_sub(self.latest) };
        self.latest = now;
        self.messages += messages;
        self.current.1 += messages;
        if now.wrapping_sub(self.current.0) >= self.interval {
            self.end_interval(now);
        }
        elapsed
    }

    fn end_interval(&mut self, now: u64) {
        if self.series.len() == MOST_INTERVALS {
            for i in 0..MOST_INTERVALS / 2 {
                let (a, b) = (self.series[2 * i], self.series[2 * i + 1]);
                self.series[i] = (a.0, a.1 + b.1, a.2 + b.2);
            }
            self.series.truncate(MOST_INTERVALS / 2);
            self.interval *= 2;
        }
        self.series.push((self.current.0, now.wrapping_sub(self.current.0), self.current.1));
        self.current = (now, 0);
    }

    pub(super) fn close(mut self, clock: &Clock, sample: &mut BandwidthSample) {
        if self.latest != self.current.0 {
            self.end_interval(self.latest);
        }
        sample.messages = self.messages;
        sample.opened = self.opened;
        sample.window_ns = clock.ns(self.latest.wrapping_sub(self.opened));
        sample.intervals = self
            .series
            .iter()
            .map(|&(start, length, messages)| Interval {
                start_ns: clock.ns(start.wrapping_sub(self.opened)),
                length_ns: clock.ns(length),
                messages,
            })
            .collect();
    }
}

/// Takes messages until `limit` have come since the phase began, or the loop is left. Adds to `taken`.
///
/// # Errors
/// The reason the loop was left: [`Halt::Peer`] when the other end has told how many it sent.
pub fn sink<P: Sink, const VERIFY: bool>(
    path: &mut P,
    limit: u64,
    watch: &Watch<'_>,
    taken: &mut u64,
) -> Result<(), Halt> {
    while *taken < limit {
        *taken += path.take::<VERIFY>(watch)?;
        // Where messages come without a pause, no wait looks for it.
        if watch.is_signalled() {
            return Err(Halt::Interrupted);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::*;
    use crate::measure::clock::{Counter, Epoch};

    /// A device that completes in order, `burst` completions a poll, each signalled one covering those before it.
    #[derive(Default)]
    struct Device {
        posted: u64,
        signalled: Vec<u64>,
        done: u64,
        every: u64,
        burst: usize,
        deepest: u64,
        depth: u64,
        end: u64,
        last_signalled: u64,
    }

    impl Stream for Device {
        fn expect(&mut self, messages: Option<u64>) {
            self.end = messages.map_or(u64::MAX, |messages| self.posted + messages);
        }
        fn post(&mut self, count: u64, _: &Watch<'_>) -> Result<u64, Halt> {
            for _ in 0..count {
                self.posted += 1;
                if self.posted.is_multiple_of(self.every) || self.posted == self.end {
                    self.signalled.push(self.posted);
                    self.last_signalled = self.posted;
                }
            }
            self.deepest = self.deepest.max(self.posted - self.done);
            assert!(self.deepest <= self.depth);
            Ok(count)
        }
        fn cover(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
            if self.last_signalled == self.posted || self.posted - self.done == self.depth {
                return Ok(0);
            }
            self.end = self.posted + 1;
            self.post(1, watch)
        }
        fn reap(&mut self, _: &Watch<'_>) -> Result<u64, Halt> {
            assert!(!self.signalled.is_empty(), "a wait for a completion nobody asked for never ends");
            self.look()
        }
        fn look(&mut self) -> Result<u64, Halt> {
            let taken = self.signalled.drain(..self.burst.min(self.signalled.len()));
            let done = taken.max().unwrap_or(self.done);
            let new = done - self.done;
            self.done = done;
            Ok(new)
        }
    }

    fn run(device: &mut Device, warm_up: Stop, stop: Stop) -> BandwidthSample {
        static QUIET: AtomicBool = AtomicBool::new(false);
        let (control, _peer) = UnixStream::pair().unwrap();
        let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
        let clock = Clock::calibrate(Epoch::note(), Some("tsc"));
        let mut sample = BandwidthSample::default();
        let load = Load { depth: device.depth, warm_up: warm_up.into(), stop };
        stream(device, Counter, &clock, &load, &watch, &mut sample).unwrap();
        sample
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_count_depth_and_signal_interval_completes_exactly(
            count in 1u64..5000, depth in 1u64..300, every in 1u64..300, burst in 1usize..20, warm in 0u64..500,
        ) {
            let every = every.min(depth);
            let mut device = Device { every, burst, depth, ..Device::default() };
            let sample = run(&mut device, Stop::Count(warm), Stop::Count(count));
            prop_assert_eq!(sample.messages, count);
            prop_assert_eq!(device.done, device.posted);
            prop_assert_eq!(sample.posted, device.posted);
            prop_assert!((count + warm..=count + warm + 1).contains(&device.posted));
            prop_assert_eq!(sample.intervals.iter().map(|i| i.messages).sum::<u64>(), count);
        }

        #[test]
        fn a_timed_run_leaves_nothing_behind(depth in 1u64..300, every in 1u64..300, burst in 1usize..20) {
            let every = every.min(depth);
            let mut device = Device { every, burst, depth, ..Device::default() };
            let sample = run(&mut device, Stop::After(Duration::from_micros(50)), Stop::After(Duration::from_micros(200)));
            prop_assert_eq!(device.done, device.posted);
            prop_assert!(sample.messages <= device.posted);
            prop_assert!(sample.window_ns >= 200_000);
        }
    }

    #[test]
    fn a_stream_that_never_waits_hears_of_a_peer_that_is_gone() {
        static QUIET: AtomicBool = AtomicBool::new(false);
        let (control, peer) = UnixStream::pair().unwrap();
        drop(peer);
        let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
        let clock = Clock::calibrate(Epoch::note(), Some("tsc"));
        for (warm_up, stop) in [(Duration::ZERO, 3600), (Duration::from_secs(3600), 1)] {
            let mut device = Device { every: 1, burst: 16, depth: 16, ..Device::default() };
            let load = Load {
                depth: 16,
                warm_up: Stop::After(warm_up).into(),
                stop: Stop::After(Duration::from_secs(stop)),
            };
            let mut sample = BandwidthSample::default();
            let outcome = stream(&mut device, Counter, &clock, &load, &watch, &mut sample);
            assert!(matches!(outcome, Err(Halt::Peer)), "{outcome:?}");
            assert_eq!(sample.posted, device.posted, "what was sent until then is known");
        }
    }

    #[test]
    fn a_long_series_is_merged_and_keeps_its_sum() {
        let clock = Clock::calibrate(Epoch::note(), Some("tsc"));
        let step = clock.ticks(INTERVAL);
        let mut window = Window::new(&clock, 0);
        for i in 1..=5000u64 {
            window.note(i * step, 3);
        }
        let mut sample = BandwidthSample::default();
        window.close(&clock, &mut sample);
        assert!(sample.intervals.len() <= MOST_INTERVALS);
        assert_eq!(sample.intervals.iter().map(|i| i.messages).sum::<u64>(), 15000);
        assert_eq!(sample.messages, 15000);
    }
}
