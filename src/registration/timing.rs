//! The timed calls. Between two readings of the clock stands the call, and nothing else.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::document::{Pages, Paging};
use crate::error::{Error, Result, Step};
use crate::measure::{Clock, ClockSource, Counter, LatencyHistogram, Raw, Stop, Ticks};
use crate::verbs::{Access, Bytes, Mr, Pd, Placement, Region, Registration};

/// Calls before those that count: at most so many, and no more once this time has passed. There is always one.
pub const WARM_UP: (u64, Duration) = (16, Duration::from_millis(50));

/// What is registered, and how.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Bytes.
    pub len: usize,
    /// Pages of which kind, and where.
    pub placement: Placement,
    /// Whether they are there before the call.
    pub pages: Pages,
    /// Whether the device pins them.
    pub paging: Paging,
}

/// How long each of the two calls took.
#[derive(Debug, Clone, Default)]
pub struct Registrations {
    /// `ibv_reg_mr(3)`
    pub register: LatencyHistogram,
    /// `ibv_dereg_mr(3)`
    pub deregister: LatencyHistogram,
}

/// Measures by one clock until it is enough.
#[derive(Debug, Clone, Copy)]
pub struct Timing<'a> {
    /// Calibrated.
    pub clock: &'a Clock,
    /// When it is enough.
    pub stop: Stop,
    /// Set by a signal.
    pub signalled: &'a AtomicBool,
}

impl Timing<'_> {
    /// Registers and ends that again. Pages that are there are those of one buffer; those that are not, of a new
    /// mapping each time. What was recorded before an error stands.
    ///
    /// # Errors
    /// There is no such memory, the device refuses it, or has registered something else.
    pub fn registrations(&self, pd: &Pd, case: Case, into: &mut Registrations) -> Result<()> {
        match self.clock.source() {
            ClockSource::MonotonicRaw => self.registrations_by(Raw, pd, case, into),
            ClockSource::Tsc | ClockSource::Cntvct => self.registrations_by(Counter, pd, case, into),
        }
    }

    fn registrations_by<T: Ticks>(
        &self,
        ticks: T,
        pd: &Pd,
        case: Case,
        into: &mut Registrations,
    ) -> Result<()> {
        let how = Registration { on_demand: case.paging == Paging::OnDemand, relaxed_ordering: false };
        let mut kept = None;
        self.repeat(|counts| {
            let region = match (kept.take(), case.pages) {
                (Some(region), _) => region,
                (None, Pages::Touched) => Region::placed(case.len, case.placement)?,
                (None, Pages::Untouched) => Region::untouched(case.len, case.placement)?,
            };
            let (mr, registered) = pd.register_timed(region, Access::default(), how, || ticks.now())?;
            check(&mr, counts)?;
            let (region, deregistered) = mr.deregister_timed(|| ticks.now())?;
            kept = (case.pages == Pages::Touched).then_some(region);
            if counts {
                for (histogram, [from, to]) in
                    [(&mut into.register, registered), (&mut into.deregister, deregistered)]
                {
                    histogram.record(self.clock.ns(to.wrapping_sub(from)));
                }
            }
            Ok(())
        })
    }

    /// Copies from one buffer to another, both touched, the same two each time: as warm as caches of their size can be.
    ///
    /// # Errors
    /// There is no such memory, or the copy is not what was copied.
    pub fn copies(&self, len: usize, placement: Placement, into: &mut LatencyHistogram) -> Result<()> {
        let (mut source, mut target) = (Bytes::new(len, placement)?, Bytes::new(len, placement)?);
        source.fill(0x5a);
        let (from, to) = (&source[..], &mut target[..]);
        match self.clock.source() {
            ClockSource::MonotonicRaw => self.copies_by(Raw, from, to, into)?,
            ClockSource::Tsc | ClockSource::Cntvct => self.copies_by(Counter, from, to, into)?,
        }
        if source[..] != target[..] {
            return Err(Error::invalid(
                Step::Verify,
                format!("a copy of {len} bytes differs from its source"),
            ));
        }
        Ok(())
    }

    fn copies_by<T: Ticks>(
        &self,
        ticks: T,
        from: &[u8],
        to: &mut [u8],
        into: &mut LatencyHistogram,
    ) -> Result<()> {
        self.repeat(|counts| {
            let start = ticks.now();
            to.copy_from_slice(from);
            black_box(&mut *to);
            let end = ticks.now();
            if counts {
                into.record(self.clock.ns(end.wrapping_sub(start)));
            }
            Ok(())
        })
    }

    /// Does it until it is enough, and says whether it counts. A signal ends it between two times.
    fn repeat(&self, mut once: impl FnMut(bool) -> Result<()>) -> Result<()> {
        let mut time = |counts| {
            if self.signalled.load(Ordering::Relaxed) {
                return Err(Error::interrupted(Step::Measure));
            }
            once(counts)
        };
        let begun = Instant::now();
        for _ in 0..WARM_UP.0 {
            time(false)?;
            if begun.elapsed() >= WARM_UP.1 {
                break;
            }
        }
        let (begun, mut done) = (Instant::now(), 0);
        loop {
            time(true)?;
            done += 1;
            let enough = match self.stop {
                Stop::Count(count) => done >= count,
                Stop::After(span) => begun.elapsed() >= span,
            };
            if enough {
                return Ok(());
            }
        }
    }
}

/// The device has registered what it was told to. In the warm-up its bytes are used, too: memory that is not there until
/// the device pins it must not be touched by anybody else before its registration ends.
fn check(mr: &Mr, counts: bool) -> Result<()> {
    let last = mr.len() - 1;
    if !counts {
        mr.region().store_release(0, 1);
        mr.region().store_release(last, 2);
    }
    let usable =
        counts || last == 0 || (mr.region().load_acquire(0), mr.region().load_acquire(last)) == (1, 2);
    if usable && mr.is_as_asked() {
        return Ok(());
    }
    let asked = format!("{} bytes at {:#x}", mr.len(), mr.addr());
    Err(Error::invalid(
        Step::Check,
        format!("ibv_reg_mr(): what is registered is not what was asked for, {asked}"),
    )
    .with_remedy(
        "see whether driver and rdma-core are of one version, and report it to the driver's authors",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Epoch;
    use crate::verbs;

    fn timed(stop: Stop, signalled: &AtomicBool, pages: Pages) -> (Result<()>, Registrations) {
        let clock = Clock::calibrate(Epoch::note(), Some("tsc"));
        let pd = verbs::find("emu0").unwrap().open().unwrap().alloc_pd().unwrap();
        let timing = Timing { clock: &clock, stop, signalled };
        let case = Case { len: 5000, placement: Placement::default(), pages, paging: Paging::Pinned };
        let mut samples = Registrations::default();
        (timing.registrations(&pd, case, &mut samples), samples)
    }

    #[test]
    fn exactly_as_many_calls_count_as_were_asked_for() {
        for pages in [Pages::Touched, Pages::Untouched] {
            let (outcome, samples) = timed(Stop::Count(37), &AtomicBool::new(false), pages);
            outcome.unwrap();
            assert_eq!((samples.register.samples(), samples.deregister.samples()), (37, 37));
        }
    }

    #[test]
    fn the_shortest_time_has_a_sample_and_a_signal_ends_the_longest() {
        let (outcome, samples) =
            timed(Stop::After(Duration::from_nanos(1)), &AtomicBool::new(false), Pages::Touched);
        outcome.unwrap();
        assert_eq!(samples.register.samples(), 1);
        let month = Stop::After(Duration::from_secs(31 * 24 * 3600));
        let (outcome, samples) = timed(month, &AtomicBool::new(true), Pages::Untouched);
        assert_eq!(outcome.unwrap_err().exit_status(), 130);
        assert_eq!(samples.register.samples(), 0);
    }
}
