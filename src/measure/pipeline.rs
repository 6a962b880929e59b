//! The latency loop with several messages outstanding: a closed loop at a depth.

use super::Limit;
use super::clock::{Clock, Ticks};
use super::histogram::{BLOCK, LatencyHistogram};
use super::watch::{Halt, Watch};

/// The end that sends, with several round trips under way on each of one or more lanes. On a lane they end in the order
/// in which they began.
pub trait Pipeline {
    /// How many lanes there are. Messages are dealt out to them in turn.
    fn lanes(&self) -> usize {
        1
    }

    /// Sends the next message on a lane.
    ///
    /// # Errors
    /// The path failed, or could not take the message in time.
    fn start(&mut self, lane: usize, watch: &Watch<'_>) -> Result<(), Halt>;

    /// How many further trips have ended, without waiting.
    ///
    /// # Errors
    /// The path failed.
    fn finished(&mut self) -> Result<usize, Halt>;

    /// Waits until at least one further trip has ended, and returns how many have.
    ///
    /// # Errors
    /// The reason to leave the loop.
    fn wait(&mut self, watch: &Watch<'_>) -> Result<usize, Halt>;

    /// The lane of one of the trips that have ended last, by its index.
    fn lane(&self, _ended: usize) -> usize {
        0
    }

    /// What must be done for the `ended` trips that have ended last and need not be timed, before others are started.
    ///
    /// # Errors
    /// The path failed.
    fn settle(&mut self, ended: usize) -> Result<(), Halt>;

    /// Looks for a failure that [`Pipeline::finished`] would not see. Called when nothing has ended for a while.
    ///
    /// # Errors
    /// The path failed.
    fn inspect(&mut self) -> Result<(), Halt>;

    /// Writes a pattern that names the next message on a lane into what `start` will send.
    fn stamp(&mut self, lane: usize);

    /// Compares what the `ended` trips that have ended last brought with the patterns they must bear.
    ///
    /// # Errors
    /// [`Error`](crate::error::Error) of kind `Invalid`: the payload is not what was sent.
    fn check(&mut self, ended: usize) -> Result<(), Halt>;
}

/// Since when each message outstanding is under way, lane by lane in their order.
#[derive(Debug)]
pub(super) struct Outstanding {
    since: Box<[u64]>,
    depth: usize,
    /// Of each lane the oldest one's place, and how many there are.
    lanes: Box<[(usize, usize)]>,
    /// The lane whose turn it is.
    pub(super) next: usize,
    pub(super) count: usize,
}

impl Outstanding {
    pub(super) fn new(depth: u32, lanes: usize) -> Self {
        let depth = depth as usize;
        Self {
            since: vec![0; depth * lanes].into(),
            depth,
            lanes: vec![(0, 0); lanes].into(),
            next: 0,
            count: 0,
        }
    }

    /// The lane whose turn it is has room for a message.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.lanes[self.next].1 < self.depth
    }

    /// One more since `ticks` on the lane whose turn it is. There must be room.
    #[inline]
    pub(super) fn push(&mut self, ticks: u64) {
        let (oldest, count) = &mut self.lanes[self.next];
        let at = *oldest + *count;
        let at = if at < self.depth { at } else { at - self.depth };
        *count += 1;
        self.since[self.next * self.depth + at] = ticks;
        self.next = if self.next + 1 < self.lanes.len() { self.next + 1 } else { 0 };
        self.count += 1;
    }

    /// The oldest of a lane is not outstanding any more.
    #[inline]
    pub(super) fn pop(&mut self, lane: usize) -> u64 {
        let (oldest, count) = &mut self.lanes[lane];
        let since = self.since[lane * self.depth + *oldest];
        *oldest = if *oldest + 1 < self.depth { *oldest + 1 } else { 0 };
        *count -= 1;
        self.count -= 1;
        since
    }
}

/// Samples recorded at a time. A whole block would keep the messages outstanding waiting for some 20 us.
const CHUNK: usize = 32;

/// Samples that are not yet in the histogram: a loop records them while it has nothing else to do.
#[derive(Debug)]
pub(super) struct Pending {
    ticks: Box<[u64; BLOCK]>,
    made: usize,
    recorded: usize,
}

impl Pending {
    pub(super) fn new() -> Self {
        Self { ticks: Box::new([0; BLOCK]), made: 0, recorded: 0 }
    }

    /// Adds a sample. There must be room: see [`Pending::is_full`].
    #[inline]
    pub(super) fn push(&mut self, ticks: u64) {
        self.ticks[self.made % BLOCK] = ticks;
        self.made += 1;
    }

    pub(super) fn is_full(&self) -> bool {
        self.made - self.recorded == BLOCK
    }

    /// Records the next chunk if there is a whole one, and returns it.
    #[inline]
    pub(super) fn record(&mut self, clock: &Clock, histogram: &mut LatencyHistogram) -> Option<&[u64]> {
        if self.made - self.recorded < CHUNK {
            return None;
        }
        let at = self.recorded % BLOCK;
        let chunk = &mut self.ticks[at..at + CHUNK];
        histogram.record_chunk::<CHUNK>(chunk, |taken| clock.ns(taken));
        self.recorded += CHUNK;
        Some(chunk)
    }

    /// Records what is left. Nothing is under way any more.
    pub(super) fn record_rest(
        &mut self,
        clock: &Clock,
        histogram: &mut LatencyHistogram,
        mut each: impl FnMut(&[u64]),
    ) {
        while let Some(chunk) = self.record(clock, histogram) {
            each(chunk);
        }
        let at = self.recorded % BLOCK;
        let rest = &mut self.ticks[at..at + (self.made - self.recorded)];
        histogram.record_chunk::<CHUNK>(rest, |taken| clock.ns(taken));
        each(rest);
        self.recorded = self.made;
    }
}

/// Keeps `depth` messages outstanding on each lane until `limit`, waits for the last of them, and returns how many there were.
///
/// Each sample reaches from just before its post to the moment the loop saw it end. With `VERIFY` each message is
/// stamped before and checked after. Samples go into `histogram` as nanoseconds, while nothing has ended.
///
/// # Errors
/// The reason the loop was left early; what was measured until then is in `histogram`.
pub fn initiate<P: Pipeline, T: Ticks, const VERIFY: bool>(
    path: &mut P,
    ticks: T,
    clock: &Clock,
    depth: u32,
    limit: Limit,
    watch: &Watch<'_>,
    histogram: &mut LatencyHistogram,
) -> Result<u64, Halt> {
    let mut pending = Pending::new();
    let opened = ticks.now();
    let outcome = keep::<P, T, VERIFY>(path, ticks, clock, depth, limit, watch, histogram, &mut pending);
    // One interval: to end one within would keep the messages outstanding waiting.
    histogram.close(clock.ns(ticks.now().wrapping_sub(opened)));
    pending.record_rest(clock, histogram, |_| {});
    outcome
}

#[allow(clippy::too_many_arguments)] // a loop of its own, for what must be recorded however it ends
fn keep<P: Pipeline, T: Ticks, const VERIFY: bool>(
    path: &mut P,
    ticks: T,
    clock: &Clock,
    depth: u32,
    limit: Limit,
    watch: &Watch<'_>,
    histogram: &mut LatencyHistogram,
    pending: &mut Pending,
) -> Result<u64, Halt> {
    let mut outstanding = Outstanding::new(depth, path.lanes());
    let deadline = ticks.now().saturating_add(clock.ticks(limit.span));
    let (mut started, mut ended, mut is_over) = (0, 0, false);
    loop {
        while outstanding.has_room() && started < limit.messages && !is_over {
            let lane = outstanding.next;
            if VERIFY {
                path.stamp(lane);
            }
            outstanding.push(ticks.now());
            path.start(lane, watch)?;
            started += 1;
        }
        if ended == started {
            return Ok(ended);
        }
        let new = take(path, clock, watch, histogram, pending)?;
        let now = ticks.now();
        for index in 0..new {
            if pending.is_full() {
                pending.record(clock, histogram);
            }
            pending.push(now.wrapping_sub(outstanding.pop(path.lane(index))));
        }
        ended += new as u64;
        path.settle(new)?;
        if VERIFY {
            path.check(new)?;
        }
        is_over = now >= deadline;
        if watch.is_signalled() {
            return Err(Halt::Interrupted);
        }
    }
}

/// Waits for the next trips to end, and records meanwhile.
#[inline]
fn take<P: Pipeline>(
    path: &mut P,
    clock: &Clock,
    watch: &Watch<'_>,
    histogram: &mut LatencyHistogram,
    pending: &mut Pending,
) -> Result<usize, Halt> {
    loop {
        match path.finished()? {
            0 if pending.record(clock, histogram).is_some() => {}
            0 => return path.wait(watch),
            ended => return Ok(ended),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
