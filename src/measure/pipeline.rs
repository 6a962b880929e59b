//! The latency loop with several messages outstanding: a closed loop at a depth.

use super::Limit;
use super::clock::{Clock, Ticks};
use super::histogram::{BLOCK, LatencyHistogram};
use super::watch::{Halt, Watch};

/// The end that sends, with several round trips under way. They end in the order in which they began.
pub trait Pipeline {
    /// Sends the next message.
    ///
    /// # Errors
    /// The path failed, or could not take the message in time.
    fn start(&mut self, watch: &Watch<'_>) -> Result<(), Halt>;

    /// How many further trips have ended, without waiting.
    ///
    /// # Errors
    /// The path failed.
    fn finished(&mut self) -> Result<u64, Halt>;

    /// Waits until at least one further trip has ended, and returns how many have.
    ///
    /// # Errors
    /// The reason to leave the loop.
    fn wait(&mut self, watch: &Watch<'_>) -> Result<u64, Halt>;

    /// What must be done for `ended` trips and need not be timed, before as many are started anew.
    ///
    /// # Errors
    /// The path failed.
    fn settle(&mut self, ended: u64, watch: &Watch<'_>) -> Result<(), Halt>;

    /// Looks for a failure that [`Pipeline::finished`] would not see. Called when nothing has ended for a while.
    ///
    /// # Errors
    /// The path failed.
    fn look(&mut self) -> Result<(), Halt>;

    /// Writes a pattern that names the next message into what `start` will send.
    fn stamp(&mut self);

    /// Compares what the next trip that has ended brought, and is not yet checked, with the pattern it must bear.
    ///
    /// # Errors
    /// [`Error`](crate::error::Error) of kind `Invalid`: the payload is not what was sent.
    fn check(&mut self) -> Result<(), Halt>;
}

/// Since when each message outstanding is under way, in their order.
#[derive(Debug)]
pub(super) struct Outstanding {
    since: Box<[u64]>,
    oldest: usize,
    pub(super) count: usize,
}

impl Outstanding {
    pub(super) fn new(depth: usize) -> Self {
        Self { since: vec![0; depth].into(), oldest: 0, count: 0 }
    }

    pub(super) fn has_room(&self) -> bool {
        self.count < self.since.len()
    }

    /// One more since `ticks`. There must be room.
    #[inline]
    pub(super) fn push(&mut self, ticks: u64) {
        let at = self.oldest + self.count;
        let at = if at < self.since.len() { at } else { at - self.since.len() };
        self.since[at] = ticks;
        self.count += 1;
    }

    /// The oldest is not outstanding any more.
    #[inline]
    pub(super) fn pop(&mut self) -> u64 {
        let since = self.since[self.oldest];
        self.oldest = if self.oldest + 1 < self.since.len() { self.oldest + 1 } else { 0 };
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

/// Keeps `depth` messages outstanding until `limit`, waits for the last of them, and returns how many there were.
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
    let outcome = keep::<P, T, VERIFY>(path, ticks, clock, depth, limit, watch, histogram, &mut pending);
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
    let mut outstanding = Outstanding::new(depth as usize);
    let deadline = ticks.now().saturating_add(clock.ticks(limit.span));
    let (mut started, mut ended, mut is_over) = (0, 0, false);
    loop {
        while outstanding.has_room() && started < limit.messages && !is_over {
            if VERIFY {
                path.stamp();
            }
            outstanding.push(ticks.now());
            path.start(watch)?;
            started += 1;
        }
        if ended == started {
            return Ok(ended);
        }
        let new = take(path, clock, watch, histogram, pending)?;
        let now = ticks.now();
        for _ in 0..new {
            if pending.is_full() {
                pending.record(clock, histogram);
            }
            pending.push(now.wrapping_sub(outstanding.pop()));
        }
        ended += new;
        path.settle(new, watch)?;
        if VERIFY {
            (0..new).try_for_each(|_| path.check())?;
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
) -> Result<u64, Halt> {
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
