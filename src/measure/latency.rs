//! The latency loop: a closed loop at depth 1, and the end that answers it.

use super::Limit;
use super::blocks::Blocks;
use super::clock::{Clock, Ticks};
use super::histogram::{BLOCK, LatencyHistogram};
use super::watch::{Halt, Watch};

/// One message there and, for verbs that echo, one back.
///
/// Only `start` and `finish` are timed. The rest of a path's work, such as posting receives again, belongs into
/// `settle`.
pub trait RoundTrip {
    /// Sends the next message.
    ///
    /// # Errors
    /// The path failed, or could not take the message in time.
    fn start(&mut self, watch: &Watch<'_>) -> Result<(), Halt>;

    /// Waits for the message that ends this trip: the reply, the completion, or at the answering end the request.
    ///
    /// # Errors
    /// The reason to leave the loop.
    fn finish(&mut self, watch: &Watch<'_>) -> Result<(), Halt>;

    /// What must be done after each message and need not be timed.
    ///
    /// # Errors
    /// The path failed.
    fn settle(&mut self, watch: &Watch<'_>) -> Result<(), Halt>;

    /// Writes a pattern that names the next message into what `start` will send.
    fn stamp(&mut self);

    /// Compares what `finish` brought with the pattern it must bear.
    ///
    /// # Errors
    /// [`Error`](crate::error::Error) of kind `Invalid`: the payload is not what was sent.
    fn check(&mut self) -> Result<(), Halt>;
}

/// Sends messages one at a time until `limit`, and returns how many round trips were made.
///
/// With `VERIFY` each message is stamped before and checked after, outside the timed span. Round trips go into
/// `histogram` as nanoseconds.
///
/// # Errors
/// The reason the loop was left early; what was measured until then is in `histogram`.
pub fn initiate<P: RoundTrip, T: Ticks, const VERIFY: bool>(
    path: &mut P,
    ticks: T,
    clock: &Clock,
    limit: Limit,
    watch: &Watch<'_>,
    histogram: &mut LatencyHistogram,
) -> Result<u64, Halt> {
    let mut blocks = Blocks::new(clock, histogram, ticks.now(), limit.span);
    let outcome = fill_blocks::<P, T, VERIFY>(path, ticks, limit.messages, watch, &mut blocks);
    blocks.close(ticks.now());
    outcome
}

fn fill_blocks<P: RoundTrip, T: Ticks, const VERIFY: bool>(
    path: &mut P,
    ticks: T,
    count: u64,
    watch: &Watch<'_>,
    blocks: &mut Blocks<'_>,
) -> Result<u64, Halt> {
    let mut made = 0;
    loop {
        let pause = blocks.pause();
        let (used, outcome) = fill::<P, T, VERIFY>(path, ticks, blocks.room(count - made), pause, watch);
        blocks.record(used);
        made += used as u64;
        let now = outcome?;
        if made >= count || blocks.is_over(now) {
            return Ok(made);
        }
        if watch.is_signalled() {
            return Err(Halt::Interrupted);
        }
    }
}

/// Fills a block with the ticks of one round trip each, until one ends at `deadline` or later. Returns how many were
/// made, and what time it is.
///
/// A function of its own, called once a block: the registers are the loop's alone.
#[inline(never)]
fn fill<P: RoundTrip, T: Ticks, const VERIFY: bool>(
    path: &mut P,
    ticks: T,
    block: &mut [u64],
    deadline: u64,
    watch: &Watch<'_>,
) -> (usize, Result<u64, Halt>) {
    let room = block.len();
    let mut slots = block.iter_mut();
    while let Some(slot) = slots.next() {
        match trip::<P, T, VERIFY>(path, ticks, watch, slot) {
            Ok(now) if now < deadline => {}
            Ok(now) => return (room - slots.len(), Ok(now)),
            Err(halt) => return (room - slots.len() - 1, Err(halt)),
        }
    }
    (room, Ok(ticks.now()))
}

/// One timed round trip; returns the moment it ended.
#[inline(always)]
fn trip<P: RoundTrip, T: Ticks, const VERIFY: bool>(
    path: &mut P,
    ticks: T,
    watch: &Watch<'_>,
    slot: &mut u64,
) -> Result<u64, Halt> {
    if VERIFY {
        path.stamp();
    }
    let from = ticks.now();
    path.start(watch)?;
    path.finish(watch)?;
    let to = ticks.now();
    *slot = to.wrapping_sub(from);
    path.settle(watch)?;
    if VERIFY {
        path.check()?;
    }
    Ok(to)
}

/// Answers each message until the loop is left, which is how it always ends: by [`Halt::Peer`] when the other end has
/// finished. Returns how many were answered, and why it ended.
pub fn respond<P: RoundTrip, const VERIFY: bool>(path: &mut P, watch: &Watch<'_>) -> (u64, Halt) {
    let mut answered = 0;
    loop {
        for _ in 0..BLOCK {
            if let Err(halt) = answer::<P, VERIFY>(path, watch) {
                return (answered, halt);
            }
            answered += 1;
        }
        // Where messages come without a pause, no wait looks for it.
        if watch.is_signalled() {
            return (answered, Halt::Interrupted);
        }
    }
}

#[inline(always)]
fn answer<P: RoundTrip, const VERIFY: bool>(path: &mut P, watch: &Watch<'_>) -> Result<(), Halt> {
    path.finish(watch)?;
    if VERIFY {
        path.check()?;
        path.stamp();
    }
    path.start(watch)?;
    path.settle(watch)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;
    use crate::measure::Stop;
    use crate::measure::clock::{Counter, Epoch};

    /// A path that notes the order of the calls, and ends with a halt after `left` messages.
    struct Notes {
        calls: Vec<&'static str>,
        left: u64,
    }

    impl RoundTrip for Notes {
        fn start(&mut self, _: &Watch<'_>) -> Result<(), Halt> {
            self.calls.push("start");
            Ok(())
        }
        fn finish(&mut self, _: &Watch<'_>) -> Result<(), Halt> {
            self.left = self.left.checked_sub(1).ok_or(Halt::Peer)?;
            self.calls.push("finish");
            Ok(())
        }
        fn settle(&mut self, _: &Watch<'_>) -> Result<(), Halt> {
            self.calls.push("settle");
            Ok(())
        }
        fn stamp(&mut self) {
            self.calls.push("stamp");
        }
        fn check(&mut self) -> Result<(), Halt> {
            self.calls.push("check");
            Ok(())
        }
    }

    fn with_watch<R>(run: impl FnOnce(&Watch<'_>, &Clock) -> R) -> R {
        static QUIET: AtomicBool = AtomicBool::new(false);
        let (control, _peer) = UnixStream::pair().unwrap();
        let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
        run(&watch, &Clock::calibrate(Epoch::note(), Some("tsc")))
    }

    #[test]
    fn exactly_as_many_round_trips_as_asked() {
        with_watch(|watch, clock| {
            for count in [1, 2, 1023, 1024, 1025, 5000] {
                let mut histogram = LatencyHistogram::new();
                let mut path = Notes { calls: vec![], left: u64::MAX };
                let made = initiate::<_, _, false>(
                    &mut path,
                    Counter,
                    clock,
                    Stop::Count(count).into(),
                    watch,
                    &mut histogram,
                );
                assert_eq!(made.unwrap(), count);
                assert_eq!(histogram.samples(), count);
                assert_eq!(path.calls.len() as u64, 3 * count, "neither stamped nor checked");
            }
        });
    }

    #[test]
    fn time_ends_a_run_after_the_round_trip_that_passed_it() {
        with_watch(|watch, clock| {
            let mut histogram = LatencyHistogram::new();
            let mut path = Notes { calls: vec![], left: u64::MAX };
            let limit = Stop::After(Duration::ZERO).into();
            let made =
                initiate::<_, _, false>(&mut path, Counter, clock, limit, watch, &mut histogram).unwrap();
            assert_eq!((made, histogram.samples()), (1, 1));
        });
    }

    #[test]
    fn a_series_holds_every_round_trip_once() {
        with_watch(|watch, clock| {
            let mut histogram = LatencyHistogram::with_intervals();
            let mut path = Notes { calls: vec![], left: u64::MAX };
            let limit = Stop::Count(3000).into();
            initiate::<_, _, false>(&mut path, Counter, clock, limit, watch, &mut histogram).unwrap();
            let intervals = histogram.intervals();
            assert_eq!(intervals.iter().map(|interval| interval.messages).sum::<u64>(), 3000);
            assert_eq!(intervals[0].start_ns, 0);
        });
    }

    #[test]
    fn stamping_and_checking_stand_outside_the_timed_span() {
        with_watch(|watch, clock| {
            let mut path = Notes { calls: vec![], left: u64::MAX };
            initiate::<_, _, true>(
                &mut path,
                Counter,
                clock,
                Stop::Count(1).into(),
                watch,
                &mut LatencyHistogram::new(),
            )
            .unwrap();
            assert_eq!(path.calls, ["stamp", "start", "finish", "settle", "check"]);
            let mut path = Notes { calls: vec![], left: 1 };
            let (answered, halt) = respond::<_, true>(&mut path, watch);
            assert_eq!(path.calls, ["finish", "check", "stamp", "start", "settle"]);
            assert_eq!(answered, 1);
            assert!(matches!(halt, Halt::Peer));
        });
    }

    #[test]
    fn what_was_measured_before_a_halt_is_kept() {
        with_watch(|watch, clock| {
            let mut histogram = LatencyHistogram::new();
            let mut path = Notes { calls: vec![], left: 1500 };
            let outcome = initiate::<_, _, false>(
                &mut path,
                Counter,
                clock,
                Stop::Count(2000).into(),
                watch,
                &mut histogram,
            );
            assert!(matches!(outcome, Err(Halt::Peer)));
            assert_eq!(histogram.samples(), 1500);
        });
    }
}
