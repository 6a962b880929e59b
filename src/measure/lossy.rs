//! The latency loop of a path that may lose messages: no wait is longer than a message may take, and no reply is taken
//! for that to another message.

use std::time::Duration;

use super::Limit;
use super::blocks::Blocks;
use super::clock::{Clock, Ticks};
use super::histogram::LatencyHistogram;
use super::latency::RoundTrip;
use super::watch::{Halt, Watch};

/// A round trip whose messages carry a number that comes back with the reply.
///
/// At the end that begins, [`RoundTrip::finish`] waits for any message; at the other end a trip is as on any path.
pub trait LossyTrip: RoundTrip {
    /// What [`RoundTrip::finish`] brought is the reply to the message sent last, and not a late one to another.
    fn is_reply(&self) -> bool;

    /// What must be done after a message that counts as lost, in place of [`RoundTrip::settle`].
    ///
    /// # Errors
    /// The path failed.
    fn give_up(&mut self, watch: &Watch<'_>) -> Result<(), Halt>;
}

/// What became of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trips {
    /// Sent.
    pub begun: u64,
    /// Answered in time.
    pub made: u64,
    /// Replies that came when their message counted as lost already.
    pub late: u64,
}

/// Sends messages one at a time until `limit`, which counts those sent. A message that has no reply after `patience`
/// counts as lost; it is in no histogram. Otherwise as [`initiate`](super::latency::initiate), and adds to `trips`.
///
/// # Errors
/// The reason the loop was left early; [`Halt::Stalled`] when none was answered for the stall timeout of `watch`.
#[expect(clippy::too_many_arguments, reason = "those of the loop without loss, and two for the loss")]
pub fn initiate<P: LossyTrip, T: Ticks, const VERIFY: bool>(
    path: &mut P,
    ticks: T,
    clock: &Clock,
    limit: Limit,
    patience: Duration,
    watch: &Watch<'_>,
    histogram: &mut LatencyHistogram,
    trips: &mut Trips,
) -> Result<(), Halt> {
    let end = trips.begun.saturating_add(limit.messages);
    let mut blocks = Blocks::new(clock, histogram, ticks.now(), limit.span);
    let mut pace = Pace { ticks, clock, pause: blocks.pause(), end, patience, silent_since: None };
    let outcome = pace.fill_blocks::<P, VERIFY>(path, watch, &mut blocks, trips);
    blocks.close(ticks.now());
    outcome
}

/// When the loop ends, and a trip.
struct Pace<'c, T> {
    ticks: T,
    clock: &'c Clock,
    /// In ticks: then something is to be done between two trips.
    pause: u64,
    /// Messages sent.
    end: u64,
    patience: Duration,
    /// Since when nothing was answered.
    silent_since: Option<std::time::Instant>,
}

impl<T: Ticks> Pace<'_, T> {
    fn fill_blocks<P: LossyTrip, const VERIFY: bool>(
        &mut self,
        path: &mut P,
        watch: &Watch<'_>,
        blocks: &mut Blocks<'_>,
        trips: &mut Trips,
    ) -> Result<(), Halt> {
        loop {
            self.pause = blocks.pause();
            let before = trips.made;
            let outcome = self.fill::<P, VERIFY>(path, blocks.room(u64::MAX), watch, trips);
            blocks.record((trips.made - before) as usize);
            outcome?;
            if trips.begun >= self.end || blocks.is_over(self.ticks.now()) {
                return Ok(());
            }
            if watch.is_signalled() {
                return Err(Halt::Interrupted);
            }
        }
    }

    /// Fills a block with the ticks of the trips that are made, up to the next pause.
    #[inline(never)]
    fn fill<P: LossyTrip, const VERIFY: bool>(
        &mut self,
        path: &mut P,
        block: &mut [u64],
        watch: &Watch<'_>,
        trips: &mut Trips,
    ) -> Result<(), Halt> {
        for slot in block {
            while !self.trip::<P, VERIFY>(path, watch, trips, slot)? {
                watch.look(&mut self.silent_since)?;
                if self.pauses(trips) {
                    return Ok(());
                }
            }
            self.silent_since = None;
            trips.made += 1;
            if self.pauses(trips) {
                return Ok(());
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn pauses(&self, trips: &Trips) -> bool {
        trips.begun >= self.end || self.ticks.now() >= self.pause
    }

    /// One timed round trip; false if it was lost.
    #[inline(always)]
    fn trip<P: LossyTrip, const VERIFY: bool>(
        &self,
        path: &mut P,
        watch: &Watch<'_>,
        trips: &mut Trips,
        slot: &mut u64,
    ) -> Result<bool, Halt> {
        if VERIFY {
            path.stamp();
        }
        trips.begun += 1;
        let from = self.ticks.now();
        path.start(watch)?;
        let mut left = self.patience;
        loop {
            match path.finish(&watch.with_stall(left)) {
                Ok(()) => {}
                Err(Halt::Stalled(_)) => {
                    path.give_up(watch)?;
                    return Ok(false);
                }
                Err(halt) => return Err(halt),
            }
            let taken = self.ticks.now().wrapping_sub(from);
            path.settle(watch)?;
            if path.is_reply() {
                if VERIFY {
                    path.check()?;
                }
                *slot = taken;
                return Ok(true);
            }
            trips.late += 1;
            left = self.patience.saturating_sub(Duration::from_nanos(self.clock.ns(taken)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::measure::Stop;
    use crate::measure::clock::{Counter, Epoch};

    /// A path on which each message meets the next fate of a script, again and again.
    #[derive(Default)]
    struct Script {
        fates: Vec<Fate>,
        sent: u64,
        /// Numbers of replies that are about to come.
        coming: VecDeque<u64>,
        /// Replies that come after the next message was sent.
        late: VecDeque<u64>,
        came: u64,
        checked: Vec<u64>,
        receives: i64,
        given_up: u64,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Fate {
        Arrives,
        Lost,
        Late,
    }

    impl RoundTrip for Script {
        fn start(&mut self, _: &Watch<'_>) -> Result<(), Halt> {
            self.coming.append(&mut self.late);
            self.sent += 1;
            match self.fates[(self.sent as usize - 1) % self.fates.len()] {
                Fate::Arrives => self.coming.push_back(self.sent),
                Fate::Late => self.late.push_back(self.sent),
                Fate::Lost => {}
            }
            Ok(())
        }
        fn finish(&mut self, _: &Watch<'_>) -> Result<(), Halt> {
            self.came = self.coming.pop_front().ok_or(Halt::Stalled(Duration::ZERO))?;
            self.receives -= 1;
            Ok(())
        }
        fn settle(&mut self, _: &Watch<'_>) -> Result<(), Halt> {
            self.receives += 1;
            Ok(())
        }
        fn stamp(&mut self) {}
        fn check(&mut self) -> Result<(), Halt> {
            self.checked.push(self.came);
            Ok(())
        }
    }

    impl LossyTrip for Script {
        fn is_reply(&self) -> bool {
            self.came == self.sent
        }
        fn give_up(&mut self, _: &Watch<'_>) -> Result<(), Halt> {
            self.given_up += 1;
            Ok(())
        }
    }

    fn run(path: &mut Script, limit: Limit, stall: Duration) -> (Result<(), Halt>, Trips, u64) {
        static QUIET: AtomicBool = AtomicBool::new(false);
        let (control, _peer) = UnixStream::pair().unwrap();
        let watch = Watch::new(control.as_fd(), &QUIET, stall);
        let clock = Clock::calibrate(Epoch::note(), Some("tsc"));
        let (mut histogram, mut trips) = (LatencyHistogram::with_intervals(), Trips::default());
        let patience = Duration::from_secs(1);
        let outcome = initiate::<_, _, true>(
            path,
            Counter,
            &clock,
            limit,
            patience,
            &watch,
            &mut histogram,
            &mut trips,
        );
        let in_intervals: u64 = histogram.intervals().iter().map(|interval| interval.messages).sum();
        assert_eq!(in_intervals, histogram.samples(), "the course of the run is kept as without loss");
        (outcome, trips, histogram.samples())
    }

    #[test]
    fn late_replies_are_counted_and_never_taken_for_others() {
        use Fate::{Arrives, Late, Lost};
        for (fates, made, late) in [
            (vec![Arrives], 3000, 0),
            (vec![Arrives, Lost], 1500, 0),
            (vec![Late, Arrives, Arrives], 2000, 1000),
            // The last one comes when nobody waits any more.
            (vec![Late, Late, Lost], 0, 2000),
        ] {
            let mut path = Script { fates, ..Script::default() };
            let (outcome, trips, samples) = run(&mut path, Stop::Count(3000).into(), Duration::from_secs(60));
            outcome.unwrap();
            assert_eq!(trips, Trips { begun: 3000, made, late });
            assert_eq!((samples, path.sent), (made, 3000));
            assert!(path.checked.is_sorted() && path.checked.len() as u64 == made);
            assert_eq!(path.given_up, 3000 - made);
            assert_eq!(path.receives, 0, "each message that came had its receive posted again");
        }
    }

    #[test]
    fn a_path_that_loses_everything_stalls_or_runs_out_of_time() {
        let mut path = Script { fates: vec![Fate::Lost], ..Script::default() };
        let (outcome, trips, _) = run(&mut path, Stop::Count(u64::MAX).into(), Duration::from_millis(2));
        assert!(matches!(outcome, Err(Halt::Stalled(_))), "{outcome:?}");
        assert_eq!((trips.made, trips.late), (0, 0));
        let limit = Stop::After(Duration::from_millis(2)).into();
        let (outcome, trips, _) = run(&mut path, limit, Duration::from_secs(60));
        assert!(outcome.is_ok() && trips.begun > 0 && trips.made == 0, "{outcome:?} {trips:?}");
    }
}
