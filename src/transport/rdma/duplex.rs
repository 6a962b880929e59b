//! The data path of bandwidth tests in both directions at once.

use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};

use super::gather::Gatherer;
use super::posting::Single;
use super::spread::Spreader;
use super::stream::{Streamer, Taker};
use super::{Rdma, Shared};
use crate::error::{Error, Result};
use crate::measure::{Halt, Sink, Stream, TwoWay, Waiting, Wake, Watch};
use crate::ops::Op;
use crate::transport::{Aside, Checked, Counted, Exchanged, Payload, Tally};

/// Posts messages of verb `O` on `P` and takes those of the peer from `Q`, over the same queue pairs.
pub struct Duplex<'r, O, P, Q> {
    out: P,
    into: Q,
    shared: &'r Shared,
    _verb: PhantomData<O>,
}

impl<'r, O: Op, W: Waiting> Duplex<'r, O, Streamer<'r, O, W, Single>, Taker<'r, O, W>> {
    /// A path for messages of `size` bytes over one queue pair with receives of its own. The test is bidirectional.
    pub fn over_one(rdma: &'r mut Rdma, size: usize) -> Self {
        let Rdma { queues, taking, shared } = rdma;
        let shared = &*shared;
        let out = Streamer::over(&mut queues[0], shared, size);
        let into = Taker::over(&mut taking[0], shared, size);
        Self { out, into, shared, _verb: PhantomData }
    }
}

impl<'r, O: Op, W: Waiting> Duplex<'r, O, Spreader<'r, O, W>, Gatherer<'r, O, W>> {
    /// A path for messages of `size` bytes over any queue pairs. The test is bidirectional.
    pub fn over_all(rdma: &'r mut Rdma, size: usize) -> Self {
        let Rdma { queues, taking, shared } = rdma;
        let shared = &*shared;
        let out = Spreader::over(queues, shared, size);
        let into = Gatherer::over(taking, shared, size);
        Self { out, into, shared, _verb: PhantomData }
    }
}

impl<O, P, Q> Wake for Duplex<'_, O, P, Q> {
    fn arm(&mut self) -> Result<(), Error> {
        self.shared.send_cq.arm()?;
        self.shared.recv_cq.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.send_channel.as_ref().map(AsFd::as_fd)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        // The channel of both completion queues.
        self.shared.sends().disarm()
    }

    fn check(&self) -> Result<(), Error> {
        self.shared.sends().check()
    }
}

impl<O: Op, P: Stream, Q: Sink> TwoWay for Duplex<'_, O, P, Q> {
    fn expect(&mut self, messages: Option<u64>) {
        self.out.expect(messages);
    }

    #[inline(always)]
    fn post(&mut self, count: u64, watch: &Watch<'_>) -> Result<u64, Halt> {
        self.out.post(count, watch)
    }

    fn cover(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        self.out.cover(watch)
    }

    #[inline(always)]
    fn reap(&mut self) -> Result<u64, Halt> {
        self.out.look()
    }

    #[inline(always)]
    fn take<const VERIFY: bool>(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        self.into.look::<VERIFY>(watch)
    }

    #[inline(always)]
    fn has_moved(&mut self) -> bool {
        false
    }
}

impl<O, P: Counted, Q: Counted> Counted for Duplex<'_, O, P, Q> {
    fn tally(&self) -> Tally {
        Tally {
            empty_polls: self.out.tally().empty_polls + self.into.tally().empty_polls,
            ..Tally::default()
        }
    }
}

impl<O: Op, P: Payload, Q: Payload + Aside> Exchanged for Duplex<'_, O, P, Q> {
    const IS_TOLD: bool = O::FACTS.consumes_receives();

    fn slots(&self) -> u64 {
        self.out.slots()
    }

    fn sent(&self) -> Vec<u64> {
        self.out.positions()
    }

    fn stamp(&mut self, count: u64) {
        self.out.stamp(count);
        self.into.prepare(&Checked { first: self.into.positions(), count });
    }

    fn check(&mut self, each: &[u64], checked: Option<u64>) -> Result<()> {
        if let (Some(count), true) = (checked, O::FACTS.pulls()) {
            self.out.check(count)?;
        }
        let checked = checked.map(|count| Checked { first: self.into.positions(), count });
        Aside::check(&mut self.into, each, checked.as_ref())
    }
}
