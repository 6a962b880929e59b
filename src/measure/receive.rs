//! The bandwidth loop of a receiver that counts and times what arrives itself, where the sender's completions tell
//! nothing of that.

use std::time::Duration;

use super::bandwidth::{BandwidthSample, Sink, Window};
use super::clock::{Clock, Ticks};
use super::watch::{Halt, Watch};
use super::{Limit, Stop};

/// What arrives in a phase, and the window it is measured in.
///
/// With a count the window opens at once and reaches to the last arrival. With a time it opens when the first arrival
/// is as long ago as the warm-up lasts, and closes when that much time has passed, or with the last arrival before
/// that.
pub struct Receiving<'c, T> {
    ticks: T,
    clock: &'c Clock,
    stage: Stage,
    window: Option<Window>,
    /// In ticks.
    warm_up: u64,
    span: u64,
    received: u64,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Nothing has come.
    Waiting,
    /// Until then, in ticks.
    WarmingUp(u64),
    Open,
    Closed,
}

impl<'c, T: Ticks> Receiving<'c, T> {
    /// For a phase that begins now; with `None` nothing is timed.
    pub fn new(ticks: T, clock: &'c Clock, load: Option<(Limit, Stop)>) -> Self {
        let (stage, warm_up, span) = match load {
            None => (Stage::Closed, Duration::ZERO, Duration::ZERO),
            Some((_, Stop::Count(_))) => (Stage::Open, Duration::ZERO, Duration::MAX),
            Some((warm_up, Stop::After(span))) => (Stage::Waiting, warm_up.span, span),
        };
        let window = matches!(stage, Stage::Open).then(|| Window::new(clock, ticks.now()));
        let (warm_up, span) = (clock.ticks(warm_up), clock.ticks(span));
        Self { ticks, clock, stage, window, warm_up, span, received: 0 }
    }

    /// Messages so far, whether in the window or not.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Takes messages until `limit` have come, or the loop is left. It may be called again to go on.
    ///
    /// The clock is read once a batch. A receiver that lags behind takes large ones, and one that does not has the time.
    ///
    /// # Errors
    /// The reason the loop was left: [`Halt::Peer`] when the other end has told how many it sent.
    pub fn take<P: Sink, const VERIFY: bool>(
        &mut self,
        path: &mut P,
        limit: u64,
        watch: &Watch<'_>,
    ) -> Result<(), Halt> {
        while self.received < limit {
            let came = path.take::<VERIFY>(watch)?;
            self.note(self.ticks.now(), came);
            // As in `sink`.
            if watch.is_signalled() {
                return Err(Halt::Interrupted);
            }
        }
        Ok(())
    }

    #[inline]
    fn note(&mut self, now: u64, came: u64) {
        self.received += came;
        match (self.stage, &mut self.window) {
            (Stage::Open, Some(window)) => {
                let open_for = window.note(now, came).whole;
                if open_for >= self.span {
                    self.stage = Stage::Closed;
                }
            }
            (Stage::Waiting, _) => self.stage = Stage::WarmingUp(now.saturating_add(self.warm_up)),
            (Stage::WarmingUp(end), window) if now >= end => {
                *window = Some(Window::new(self.clock, now));
                self.stage = Stage::Open;
            }
            _ => {}
        }
    }

    /// What was measured; `None` if the window never opened.
    pub fn close(self) -> Option<BandwidthSample> {
        let mut sample = BandwidthSample { posted: self.received, ..BandwidthSample::default() };
        self.window?.close(self.clock, &mut sample);
        Some(sample)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::measure::clock::Epoch;

    /// A clock that a test moves.
    #[derive(Clone, Copy)]
    struct Hand(&'static std::sync::atomic::AtomicU64);

    impl Ticks for Hand {
        fn now(self) -> u64 {
            self.0.load(std::sync::atomic::Ordering::Relaxed)
        }
    }

    /// Batches that come a millisecond apart, and then silence.
    struct Batches {
        hand: Hand,
        left: Vec<u64>,
        a_millisecond: u64,
    }

    impl Sink for Batches {
        fn take<const VERIFY: bool>(&mut self, _: &Watch<'_>) -> Result<u64, Halt> {
            let came = self.left.pop().ok_or(Halt::Peer)?;
            self.hand.0.fetch_add(self.a_millisecond, std::sync::atomic::Ordering::Relaxed);
            Ok(came)
        }
        fn look<const VERIFY: bool>(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
            self.take::<VERIFY>(watch)
        }
    }

    fn measured(batches: usize, load: Option<(Limit, Stop)>) -> (u64, Option<BandwidthSample>) {
        static QUIET: AtomicBool = AtomicBool::new(false);
        let (control, _peer) = UnixStream::pair().unwrap();
        let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
        let clock = Clock::calibrate(Epoch::note(), Some("none"));
        let hand = Hand(Box::leak(Box::default()));
        let mut path =
            Batches { hand, left: vec![2; batches], a_millisecond: clock.ticks(Duration::from_millis(1)) };
        let mut arrivals = Receiving::new(hand, &clock, load);
        assert!(matches!(arrivals.take::<_, false>(&mut path, u64::MAX, &watch), Err(Halt::Peer)));
        (arrivals.received(), arrivals.close())
    }

    fn in_ms(sample: Option<&BandwidthSample>) -> Option<(u64, u64)> {
        sample.map(|sample| (sample.messages, (sample.window_ns + 500_000) / 1_000_000))
    }

    #[test]
    fn a_count_is_measured_from_the_start_to_the_last_arrival() {
        let load = Some((Stop::Count(7).into(), Stop::Count(40)));
        let (received, sample) = measured(20, load);
        assert_eq!((received, in_ms(sample.as_ref())), (40, Some((40, 20))));
        assert_eq!(measured(0, load).1.unwrap().window_ns, 0);
    }

    #[test]
    fn a_window_opens_after_the_warm_up_and_closes_on_the_clock_or_with_the_last_arrival() {
        let after = |ms| Stop::After(Duration::from_millis(ms));
        let load = Some((after(5).into(), after(10)));
        // The first batch begins the warm-up, and the sixth opens the window.
        assert_eq!(in_ms(measured(30, load).1.as_ref()), Some((20, 10)));
        assert_eq!(in_ms(measured(10, load).1.as_ref()), Some((8, 4)));
        let (received, sample) = measured(5, load);
        assert_eq!((received, sample), (10, None), "it never opened");
    }

    #[test]
    fn what_is_only_counted_has_no_window() {
        assert_eq!(measured(3, None), (6, None));
    }
}
