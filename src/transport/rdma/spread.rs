//! The data path of bandwidth tests over many queue pairs, at the end that posts.

use std::collections::VecDeque;
use std::marker::PhantomData;

use super::layout::share;
use super::posting::{Lists, Posting};
use super::queue::{Queue, of_id};
use super::{Rdma, Shape, Shared};
use crate::error::Result;
use crate::measure::{Halt, Stream, Waiting, Watch};
use crate::ops::Op;
use crate::transport::{Counted, Payload, Tally};
use crate::verbs::Wc;

/// Posts messages of verb `O` to the queue pairs in turn, but for those that are full.
pub struct Spreader<'r, O, W> {
    queues: &'r mut [Queue],
    shared: &'r Shared,
    postings: Vec<Lists>,
    turns: Turns,
    wcs: Box<[Wc]>,
    size: usize,
    tally: Tally,
    _types: PhantomData<(O, W)>,
}

/// Whose turn it is: a queue pair that is full is not asked again before it has room.
struct Turns {
    waiting: VecDeque<usize>,
    is_waiting: Box<[bool]>,
}

impl Turns {
    fn new(queues: usize) -> Self {
        Self { waiting: (0..queues).collect(), is_waiting: vec![true; queues].into() }
    }

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let next = self.waiting.pop_front()?;
        self.is_waiting[next] = false;
        Some(next)
    }

    #[inline]
    fn wait(&mut self, queue: usize) {
        if !std::mem::replace(&mut self.is_waiting[queue], true) {
            self.waiting.push_back(queue);
        }
    }
}

impl<'r, O: Op, W: Waiting> Spreader<'r, O, W> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        debug_assert_eq!(rdma.shared.shape, Shape::Bandwidth);
        Self::over(&mut rdma.queues, &rdma.shared, size)
    }

    /// The same over queue pairs that have these slots.
    pub(super) fn over(queues: &'r mut [Queue], shared: &'r Shared, size: usize) -> Self {
        let postings = queues.iter().map(|queue| Lists::new::<O>(queue, shared, size)).collect();
        let turns = Turns::new(queues.len());
        let wcs = vec![Wc::EMPTY; shared.cqe_batch].into();
        Self { queues, shared, postings, turns, wcs, size, tally: Tally::default(), _types: PhantomData }
    }

    /// Notes that the first `got` completions have come; returns how many messages they end.
    #[inline]
    fn note(&mut self, got: usize) -> u64 {
        let mut new = 0;
        for wc in &self.wcs[..got] {
            let (index, done) = of_id(wc.id());
            let queue = &mut self.queues[index];
            new += done - queue.reaped;
            queue.reaped = done;
            self.turns.wait(index);
        }
        new
    }
}

impl<O, W> Counted for Spreader<'_, O, W> {
    fn tally(&self) -> Tally {
        self.tally
    }
}

impl<O: Op, W: Waiting> Stream for Spreader<'_, O, W> {
    fn expect(&mut self, messages: Option<u64>) {
        let queues = self.queues.len();
        for (index, queue) in self.queues.iter_mut().enumerate() {
            queue.expect(messages.map(|messages| share(messages, index, queues)));
        }
        self.turns = Turns::new(queues);
    }

    #[inline]
    fn post(&mut self, count: u64, _watch: &Watch<'_>) -> Result<u64, Halt> {
        let mut left = count;
        while left > 0
            && let Some(index) = self.turns.next()
        {
            let queue = &mut self.queues[index];
            let room = queue.room(self.shared.depth);
            let run = room.min(left).min(self.shared.post_list as u64);
            self.postings[index].post::<O>(queue, run)?;
            left -= run;
            if room > run {
                self.turns.wait(index);
            }
        }
        Ok(count - left)
    }

    fn cover(&mut self, _watch: &Watch<'_>) -> Result<u64, Halt> {
        let mut posted = 0;
        for (queue, posting) in self.queues.iter_mut().zip(&mut self.postings) {
            if queue.needs_cover(self.shared.depth) {
                posting.post::<O>(queue, 1)?;
                posted += 1;
            }
        }
        Ok(posted)
    }

    #[inline]
    fn reap(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        let got = self.shared.sends().batch::<W>(&mut self.wcs, watch, &mut self.tally.empty_polls)?;
        Ok(self.note(got))
    }

    #[inline]
    fn look(&mut self) -> Result<u64, Halt> {
        let got = self.shared.sends().look(&mut self.wcs, &mut self.tally.empty_polls)?;
        Ok(self.note(got))
    }
}

impl<O: Op, W> Payload for Spreader<'_, O, W> {
    fn slots(&self) -> u64 {
        (self.shared.layout.slots * self.queues.len()) as u64
    }

    fn positions(&self) -> Vec<u64> {
        self.queues.iter().map(|queue| queue.sent).collect()
    }

    fn stamp(&mut self, count: u64) {
        for (index, queue) in self.queues.iter().enumerate() {
            let part = share(count, index, self.queues.len());
            queue.stamp_next(self.shared, queue.sent, part, self.size, O::FACTS.pulls());
        }
    }

    fn check(&mut self, count: u64) -> Result<()> {
        for (index, queue) in self.queues.iter().enumerate() {
            queue.check_sent::<O>(self.shared, share(count, index, self.queues.len()), self.size)?;
        }
        Ok(())
    }
}
