//! The bandwidth loop at a rate: messages are posted when they are due.

use super::bandwidth::{BandwidthSample, Flow, Load, Stream, Window};
use super::clock::{Clock, Ticks};
use super::paced::{Idle, OpenLoop, Progress};
use super::schedule::Pace;
use super::watch::{Halt, Waiting, Watch};
use super::{Limit, Stop};

/// Posts messages when they are due, as far as the load's depth has room for them, until the load's end.
///
/// The warm-up runs at the same rate and is waited for. With a count the window reaches to the last completion, with a
/// time it is that long, and the drain afterwards is outside it. Of the loop's own time, what is called late and missed,
/// see [`OpenLoop`].
///
/// # Errors
/// The reason the loop was left early; what was measured until then is in `sample`.
pub fn stream<P: Stream, W: Waiting, T: Ticks>(
    path: &mut P,
    ticks: T,
    clock: &Clock,
    load: &Load,
    pace: &Pace,
    watch: &Watch<'_>,
    sample: &mut BandwidthSample,
) -> Result<OpenLoop, Halt> {
    let mut run =
        Run::<P, W, T> { path, ticks, clock, depth: load.depth, pace, watch, idle: Idle::new(clock) };
    let mut unused = Window::new(clock, ticks.now());
    let warmed = run.stretch(load.warm_up, false, &mut unused, &mut sample.posted)?;
    debug_assert!(warmed.posted <= load.warm_up.messages);
    let mut window = Window::new(clock, ticks.now());
    let counts = matches!(load.stop, Stop::Count(_));
    let outcome = run.stretch(load.stop.into(), counts, &mut window, &mut sample.posted);
    window.close(clock, sample);
    outcome
}

/// What both stretches have in common.
struct Run<'a, P, W, T> {
    path: &'a mut P,
    ticks: T,
    clock: &'a Clock,
    depth: u64,
    pace: &'a Pace,
    watch: &'a Watch<'a>,
    idle: Idle<W>,
}

impl<P: Stream, W: Waiting, T: Ticks> Run<'_, P, W, T> {
    /// Posts until `limit`, and waits for what was posted: inside the window if its end `counts`. Adds to `posted`.
    fn stretch(
        &mut self,
        limit: Limit,
        counts: bool,
        window: &mut Window,
        posted: &mut u64,
    ) -> Result<OpenLoop, Halt> {
        self.path.expect(Some(limit.messages).filter(|messages| *messages < u64::MAX));
        let mut progress = Progress::new(self.clock, self.pace, self.ticks, limit);
        let mut done = 0;
        loop {
            let now = self.ticks.now();
            if progress.is_over(now) {
                break;
            }
            let mut is_idle = true;
            // A queue pair may be full where all of them together are not.
            if progress.is_due(now)
                && progress.posted() - done < self.depth
                && self.path.post(1, self.watch)? == 1
            {
                *posted += 1;
                let due = progress.post(now);
                progress.trend.add(&[now - due]);
                is_idle = false;
            }
            let new = self.path.look()?;
            if new > 0 {
                done += new;
                window.note(self.ticks.now(), new);
                self.idle.moved();
                if self.watch.is_signalled() {
                    return Err(Halt::Interrupted);
                }
            } else if is_idle && !progress.draw_ahead() {
                let looked = self.idle.turn(progress.left(now), self.watch)?;
                if looked && progress.posted() == done {
                    self.idle.moved();
                }
            }
        }
        if !counts {
            window.note(self.ticks.now(), 0);
        }
        let mut flow = Flow { posted: progress.posted(), done, depth: self.depth, limit: progress.posted() };
        let drained = flow.drain(self.path, self.watch, |new| {
            if counts {
                window.note(self.ticks.now(), new);
            }
        });
        *posted += flow.posted - progress.posted();
        drained.map(|()| progress.close())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::*;
    use crate::measure::Spin;
    use crate::measure::pipeline::tests::{Virtual, with_watch};
    use crate::measure::schedule::Arrivals;

    /// Takes `service` ticks for a message, one after the other, and tells of them `every` at a time or when asked to.
    struct Link<'a> {
        time: &'a Cell<u64>,
        service: u64,
        every: usize,
        ends: VecDeque<u64>,
        free: u64,
        asked: bool,
        deepest: usize,
        posted: u64,
    }

    impl Stream for Link<'_> {
        fn expect(&mut self, _: Option<u64>) {
            self.asked = false;
        }
        fn post(&mut self, count: u64, _: &Watch<'_>) -> Result<u64, Halt> {
            assert_eq!(count, 1, "each when it is due");
            self.free = self.free.max(self.time.get()) + self.service;
            self.ends.push_back(self.free);
            self.deepest = self.deepest.max(self.ends.len());
            self.posted += 1;
            Ok(1)
        }
        fn cover(&mut self, _: &Watch<'_>) -> Result<u64, Halt> {
            self.asked = true;
            Ok(0)
        }
        fn reap(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
            assert!(self.asked, "completions that nobody asked for never come");
            self.time.set(self.ends.front().copied().unwrap_or(0).max(self.time.get()));
            let _ = watch;
            self.look()
        }
        fn look(&mut self) -> Result<u64, Halt> {
            self.time.set(self.time.get() + 1);
            let ended = self.ends.iter().take_while(|end| **end <= self.time.get()).count();
            let told = if self.asked { ended } else { ended / self.every * self.every };
            self.ends.drain(..told);
            Ok(told as u64)
        }
    }

    fn run(service: u64, gap: u64, stop: Stop) -> (OpenLoop, BandwidthSample, u64) {
        let time = Cell::new(0);
        let link = Link {
            time: &time,
            service,
            every: 8,
            ends: VecDeque::new(),
            free: 0,
            asked: false,
            deepest: 0,
            posted: 0,
        };
        let mut link = link;
        let mut sample = BandwidthSample::default();
        let pace = Pace { rate_per_s: 1e9 / gap as f64, arrivals: Arrivals::Constant, seed: 1 };
        let load = Load { depth: 64, warm_up: Limit { messages: 10, span: Duration::from_millis(1) }, stop };
        let ticks = Virtual(&time);
        let seen = with_watch(|watch, clock| {
            stream::<_, Spin, _>(&mut link, ticks, clock, &load, &pace, watch, &mut sample)
        });
        assert_eq!((link.posted, link.ends.len()), (sample.posted, 0), "nothing is left behind");
        assert!(link.deepest <= 64);
        (seen.unwrap(), sample, 1_000_000_000 / gap)
    }

    #[test]
    fn a_rate_below_the_capacity_is_kept_and_one_above_is_missed() {
        for (service, gap, kept) in
            [(1000, 10_000, true), (1000, 1100, true), (1000, 900, false), (1000, 2, false)]
        {
            let (seen, sample, rate) = run(service, gap, Stop::Count(2000));
            assert_eq!((seen.posted, sample.messages), (2000, 2000), "exactly as many as asked");
            assert_eq!(seen.missed(rate as f64).is_none(), kept, "{gap}: {seen:?}");
            let (seen, sample, rate) = run(service, gap, Stop::After(Duration::from_millis(5)));
            assert_eq!(seen.missed(rate as f64).is_none(), kept, "{gap}: {seen:?}");
            assert!((5_000_000..5_010_000).contains(&sample.window_ns), "{}", sample.window_ns);
            let most = 5_000_000 / gap.max(service) + 1;
            assert!((most - 70..=most).contains(&sample.messages), "{gap}: {} of {most}", sample.messages);
        }
    }
}
