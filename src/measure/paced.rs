//! The open loop: messages go when they are due, however long the earlier ones take.

use std::time::Duration;

use super::Limit;
use super::clock::{Clock, Ticks};
use super::histogram::LatencyHistogram;
use super::pipeline::{Outstanding, Pending, Pipeline};
use super::schedule::{Pace, Schedule};
use super::watch::{Halt, Never, Waiting, Watch};

/// What an open loop saw besides latencies.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OpenLoop {
    /// Messages posted.
    pub posted: u64,
    /// From the start of the schedule to its end: to the last post where a count ended the run, else as long as asked.
    pub window_ns: u64,
    /// Posted more than one mean gap after they were due: by then the next message of a constant schedule was due, too.
    pub late: u64,
    /// How much of the window's schedule was posted in it, 0 to 1. Below 1 where the last messages were late.
    pub share: f64,
    /// The least latency (in a bandwidth test: the least time from due to posted) of the first and of the last quarter of
    /// the messages in ns, where it grew from quarter to quarter and to more than twice the first and a mean gap: not
    /// even a moment was left to catch up.
    pub growth: Option<(u64, u64)>,
}

/// A schedule of which less than this share was kept was missed.
const KEPT: f64 = 0.99;

impl OpenLoop {
    /// Messages a second in the window.
    pub fn achieved_per_s(&self) -> f64 {
        self.posted as f64 * 1e9 / self.window_ns.max(1) as f64
    }

    /// Why the schedule was not kept, or `None`.
    pub fn missed(&self, rate_per_s: f64) -> Option<String> {
        if self.posted == 0 {
            return Some("no message was due in the whole window: it is too short for the rate".into());
        }
        let rates = format!("offered {rate_per_s:.0}/s, posted {:.0}/s", self.achieved_per_s());
        if self.share < KEPT {
            return Some(format!(
                "the schedule was missed: {rates}; {:.1} % of it was posted in its time",
                self.share * 100.0
            ));
        }
        self.growth.map(|(first, last)| {
            format!(
                "the schedule was missed: {rates}, and the backlog grew to the end: in its first quarter messages were \
                 at the least {:.1} us behind when they were due, in the last {:.1} us",
                first as f64 / 1e3,
                last as f64 / 1e3
            )
        })
    }
}

/// The least latencies of equal numbers of messages that followed each other.
#[derive(Debug)]
pub(super) struct Trend {
    least: Vec<u64>,
    /// Messages of each.
    each: u64,
    current: (u64, u64),
}

/// Most values kept: beyond it neighbours are merged.
const MOST_LEAST: usize = 64;

/// Fewest messages that have a trend.
const FEWEST: usize = 16;

impl Trend {
    pub(super) fn new() -> Self {
        Self { least: Vec::with_capacity(MOST_LEAST), each: 1, current: (0, u64::MAX) }
    }

    pub(super) fn add(&mut self, samples: &[u64]) {
        for sample in samples {
            self.current = (self.current.0 + 1, self.current.1.min(*sample));
            if self.current.0 == self.each {
                self.least.push(self.current.1);
                self.current = (0, u64::MAX);
            }
            if self.least.len() == MOST_LEAST {
                self.least = self.least.chunks(2).map(|pair| pair[0].min(pair[1])).collect();
                self.least.reserve_exact(MOST_LEAST);
                self.each *= 2;
            }
        }
    }

    /// The least of the first and of the last quarter, if it grew as [`OpenLoop::growth`] says.
    pub(super) fn growth(&self, gap: u64) -> Option<(u64, u64)> {
        if self.least.len() < FEWEST {
            return None;
        }
        let quarter = self.least.len() / 4;
        // What is left over belongs to the first.
        let (first, rest) = self.least.split_at(self.least.len() - 3 * quarter);
        let of = |part: &[u64]| part.iter().copied().min().unwrap_or(0);
        let mut quarters = [of(first), 0, 0, 0];
        for (least, part) in quarters[1..].iter_mut().zip(rest.chunks(quarter)) {
            *least = of(part);
        }
        let [first, .., last] = quarters;
        (quarters.is_sorted_by(|a, b| a < b) && last > 2 * first + gap).then_some((first, last))
    }
}

/// How far an open loop has come on its schedule, in ticks, and how well it kept it.
pub(super) struct Progress<'a> {
    clock: &'a Clock,
    schedule: Schedule,
    /// Between two messages, in the mean.
    gap: u64,
    start: u64,
    deadline: u64,
    messages: u64,
    /// When the next message is due.
    due: u64,
    /// When the last one was due, and when it was posted.
    last: (u64, u64),
    /// Of what shows a backlog.
    pub(super) trend: Trend,
    seen: OpenLoop,
}

impl<'a> Progress<'a> {
    /// The loop begins now.
    pub(super) fn new<T: Ticks>(clock: &'a Clock, pace: &Pace, ticks: T, limit: Limit) -> Self {
        let mut schedule = Schedule::new(pace, clock.hz());
        let start = ticks.now();
        Self {
            clock,
            gap: schedule.mean_gap(),
            start,
            deadline: start.saturating_add(clock.ticks(limit.span)),
            messages: limit.messages,
            due: start.saturating_add(schedule.next_due()),
            last: (start, start),
            trend: Trend::new(),
            seen: OpenLoop::default(),
            schedule,
        }
    }

    /// No more is to be posted.
    #[inline]
    pub(super) fn is_over(&self, now: u64) -> bool {
        now >= self.deadline || self.seen.posted == self.messages
    }

    #[inline]
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.due <= now
    }

    /// Until the next message is due.
    #[inline]
    pub(super) fn left(&self, now: u64) -> u64 {
        self.due.saturating_sub(now)
    }

    /// Messages posted.
    #[inline]
    pub(super) fn posted(&self) -> u64 {
        self.seen.posted
    }

    /// Counts the message that is due as posted at `now`; returns when it was due.
    #[inline]
    pub(super) fn post(&mut self, now: u64) -> u64 {
        let due = self.due;
        self.seen.posted += 1;
        self.seen.late += u64::from(now - due > self.gap);
        self.last = (due, now);
        self.due = self.start.saturating_add(self.schedule.next_due());
        due
    }

    /// [`Schedule::draw_ahead`]
    #[inline]
    pub(super) fn draw_ahead(&mut self) -> bool {
        self.schedule.draw_ahead()
    }

    /// What was seen of the loop, which is over.
    pub(super) fn close(self) -> OpenLoop {
        // Up to its next message, and no further than asked for, the schedule was kept.
        let (kept, end) = if self.seen.posted == self.messages {
            self.last
        } else {
            (self.due.min(self.deadline), self.deadline)
        };
        let ns = |ticks| self.clock.ns(ticks);
        OpenLoop {
            window_ns: ns(end - self.start),
            share: (kept - self.start) as f64 / (end - self.start).max(1) as f64,
            growth: self.trend.growth(self.gap).map(|(first, last)| (ns(first), ns(last))),
            ..self.seen
        }
    }
}

/// A look around takes a system call. It waits for a moment when nothing is due for this long.
const LOOK: Duration = Duration::from_micros(20);

/// But not longer than for as many times as it is due.
const MOST_PUT_OFF: u32 = 64;

/// Sends messages when they are due until `limit`, at most `depth` of them outstanding, and waits for the last.
///
/// A message that finds no room goes as soon as there is some. A sample reaches from the moment the message was due to
/// the moment the loop saw the trip end, so that what made it late is in it. Nothing is due after the limit's time. The
/// loop never sleeps; `W` says whether it yields its core. With `VERIFY` each message is stamped before and checked
/// after, which the schedule does not wait for.
///
/// # Errors
/// The reason the loop was left early; what was measured until then is in `histogram`.
#[allow(clippy::too_many_arguments)] // each is one thing the loop is given or gives
pub fn initiate<P: Pipeline, W: Waiting, T: Ticks, const VERIFY: bool>(
    path: &mut P,
    ticks: T,
    clock: &Clock,
    depth: u32,
    pace: &Pace,
    limit: Limit,
    watch: &Watch<'_>,
    histogram: &mut LatencyHistogram,
) -> Result<OpenLoop, Halt> {
    let mut pending = Pending::new();
    let mut outstanding = Outstanding::new(depth, path.lanes());
    let mut idle = Idle::<W>::new(clock);
    let mut progress = Progress::new(clock, pace, ticks, limit);
    let mut turn = || -> Result<bool, Halt> {
        let now = ticks.now();
        let is_over = progress.is_over(now);
        let is_due = progress.is_due(now) && !is_over && outstanding.has_room();
        if is_due {
            let lane = outstanding.next;
            if VERIFY {
                path.stamp(lane);
            }
            path.start(lane, watch)?;
            outstanding.push(progress.post(now));
        }
        let ended = path.finished()?;
        if ended > 0 {
            let now = ticks.now();
            for index in 0..ended {
                if pending.is_full() {
                    pending.record(clock, histogram).into_iter().for_each(|chunk| progress.trend.add(chunk));
                }
                pending.push(now.wrapping_sub(outstanding.pop(path.lane(index))));
            }
            path.settle(ended)?;
            if VERIFY {
                path.check(ended)?;
            }
            idle.moved();
            if watch.is_signalled() {
                return Err(Halt::Interrupted);
            }
        } else if !is_due {
            if is_over && outstanding.count == 0 {
                return Ok(false);
            }
            let busy = match pending.record(clock, histogram) {
                Some(chunk) => {
                    progress.trend.add(chunk);
                    true
                }
                None => progress.draw_ahead(),
            };
            if !busy && idle.turn(progress.left(now), watch)? {
                path.inspect()?;
                // Nothing is waited for but time.
                if outstanding.count == 0 {
                    idle.moved();
                }
            }
        }
        Ok(true)
    };
    let outcome = loop {
        match turn() {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(halt) => break Err(halt),
        }
    };
    pending.record_rest(clock, histogram, |rest| progress.trend.add(rest));
    let seen = progress.close();
    // One interval: to end one within would keep what is due waiting.
    histogram.close(seen.window_ns);
    outcome.map(|()| seen)
}

/// What an open loop does between two messages when there is nothing to do.
pub(super) struct Idle<W> {
    wait: W,
    turns: u32,
    look: u64,
}

impl<W: Waiting> Idle<W> {
    pub(super) fn new(clock: &Clock) -> Self {
        Self { wait: W::default(), turns: 0, look: clock.ticks(LOOK) }
    }

    /// Something has moved, or nothing could: the wait begins anew.
    #[inline]
    pub(super) fn moved(&mut self) {
        self.wait = W::default();
    }

    /// One empty turn; the next message is due in `left` ticks. Whether this was a look around.
    #[inline]
    pub(super) fn turn(&mut self, left: u64, watch: &Watch<'_>) -> Result<bool, Halt> {
        self.turns += 1;
        let is_time = self.turns >= W::polls(watch)
            && (left >= self.look || self.turns / MOST_PUT_OFF >= W::polls(watch));
        if !is_time {
            return Ok(false);
        }
        self.turns = 0;
        self.wait.idle(&mut Never, watch)
    }
}

#[cfg(test)]
mod tests;
