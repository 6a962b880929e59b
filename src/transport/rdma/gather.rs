//! The data path of bandwidth tests over many queue pairs, or over one that shares its receives, at the end that takes.

use std::marker::PhantomData;

use super::completion::{check_arrival, counted};
use super::gaps::{self, Landed};
use super::queue::{Queue, of_id};
use super::{Rdma, Shape, Shared, passive};
use crate::error::{Error, Result, Step};
use crate::measure::{Halt, Sink, Waiting, Watch};
use crate::ops::Op;
use crate::transport::{Aside, Checked, Counted, Gaps, Payload, Tally};
use crate::verbs::{ReceiveRing, Srq, Wc};

/// Takes messages of verb `O` that consume receives, waiting as `W` says. Where it has none, there is never one.
pub struct Gatherer<'r, O, W> {
    queues: &'r mut [Queue],
    shared: &'r Shared,
    receives: Receives,
    /// Numbers of the queue pairs in ascending order, and their indices.
    numbers: Vec<(u32, usize)>,
    wcs: Box<[Wc]>,
    size: usize,
    /// Messages of a phase that is checked, and where they are.
    landed: Vec<Landed>,
    tally: Tally,
    _types: PhantomData<(O, W)>,
}

/// Where receives are posted.
enum Receives {
    /// Each queue pair has its own.
    Own(Vec<ReceiveRing>),
    /// They are all alike.
    Shared(ReceiveRing),
}

/// Receives of a shared queue, which go through the slots of all queue pairs in turn, after those `posted`. Their
/// identifier is the slot.
pub(super) fn from_shared(srq: &Srq, shared: &Shared, posted: u64) -> ReceiveRing {
    let slots = shared.landing;
    let next = (posted % slots.count as u64) as usize;
    srq.receive_ring(shared.memory.slice(0, slots.stride), slots, next, |slot| slot as u64)
}

impl<'r, O: Op, W: Waiting> Gatherer<'r, O, W> {
    /// A path for messages of `size` bytes, at most the largest of the test.
    pub fn new(rdma: &'r mut Rdma, size: usize) -> Self {
        debug_assert_eq!(rdma.shared.shape, Shape::Bandwidth);
        Self::over(&mut rdma.queues, &rdma.shared, size)
    }

    /// The same over queue pairs that have these slots.
    pub(super) fn over(queues: &'r mut [Queue], shared: &'r Shared, size: usize) -> Self {
        let receives = match &shared.srq {
            None => Receives::Own(queues.iter().map(|queue| queue.receives(shared)).collect()),
            Some(srq) => {
                let taken: u64 = queues.iter().map(|queue| queue.taken).sum();
                Receives::Shared(from_shared(srq, shared, shared.rx_depth + taken))
            }
        };
        let mut numbers: Vec<_> =
            queues.iter().enumerate().map(|(index, queue)| (queue.qp.number(), index)).collect();
        numbers.sort_unstable();
        let (wcs, landed) = (vec![Wc::EMPTY; shared.cqe_batch].into(), Vec::new());
        let tally = Tally::default();
        Self { queues, shared, receives, numbers, wcs, size, landed, tally, _types: PhantomData }
    }

    /// Makes room for as many as have come, the first `got` completions.
    #[inline]
    fn note<const VERIFY: bool>(&mut self, got: usize) -> Result<u64, Halt> {
        if let Receives::Shared(ring) = &mut self.receives {
            ring.post(got)?;
        }
        for wc in &self.wcs[..got] {
            let index = match &mut self.receives {
                Receives::Own(rings) => {
                    let (index, _) = of_id(wc.id());
                    rings[index].post(1)?;
                    index
                }
                Receives::Shared(_) => {
                    let found = self.numbers.binary_search_by_key(&wc.qp_number(), |(number, _)| *number);
                    self.numbers[found.map_err(|_| stranger(wc))?].1
                }
            };
            let queue = &mut self.queues[index];
            let message = queue.taken;
            queue.taken += 1;
            if VERIFY {
                if !self.shared.may_lose {
                    check_arrival::<O>(wc, message, self.size, counted(message))?;
                }
                let at = match &self.receives {
                    Receives::Shared(_) if !O::FACTS.is_one_sided() => {
                        self.shared.landing.offset + wc.id() as usize * self.shared.layout.stride
                    }
                    // A WRITE lands where the sender says.
                    _ => queue.slot_offset(message),
                };
                self.landed.push(Landed::new(index, message, at, wc));
            }
        }
        Ok(got as u64)
    }
}

#[cold]
fn stranger(wc: &Wc) -> Error {
    Error::invalid(
        Step::Measure,
        format!("a receive completed for QP {:#08x}, which is none of ours", wc.qp_number()),
    )
}

impl<O, W> Counted for Gatherer<'_, O, W> {
    fn tally(&self) -> Tally {
        self.tally
    }
}

impl<O: Op, W: Waiting> Sink for Gatherer<'_, O, W> {
    #[inline]
    fn take<const VERIFY: bool>(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        let got = self.shared.arrivals().batch::<W>(&mut self.wcs, watch, &mut self.tally.empty_polls)?;
        self.note::<VERIFY>(got)
    }

    #[inline]
    fn look<const VERIFY: bool>(&mut self, _watch: &Watch<'_>) -> Result<u64, Halt> {
        if const { !O::FACTS.consumes_receives() } {
            return Ok(0);
        }
        let got = self.shared.arrivals().look(&mut self.wcs, &mut self.tally.empty_polls)?;
        self.note::<VERIFY>(got)
    }
}

impl<O, W> Payload for Gatherer<'_, O, W> {
    fn slots(&self) -> u64 {
        self.shared.landing.count as u64
    }

    fn positions(&self) -> Vec<u64> {
        self.queues.iter().map(|queue| queue.taken).collect()
    }

    // What consumes receives does not pull.
    fn stamp(&mut self, _count: u64) {}

    fn check(&mut self, _count: u64) -> Result<()> {
        std::mem::take(&mut self.landed).iter().try_for_each(|Landed { queue, message, at, .. }| {
            self.queues[*queue].check_at(self.shared, *at, *message, self.size)
        })
    }
}

impl<O: Op, W> Gaps for Gatherer<'_, O, W> {
    fn check_among(&mut self, messages: &Checked) -> Result<()> {
        let landed = std::mem::take(&mut self.landed);
        gaps::check_among::<O>(&landed, self.queues, self.shared, self.size, messages)
    }
}

impl<O: Op, W> Aside for Gatherer<'_, O, W> {
    fn prepare(&mut self, messages: &Checked) {
        passive::prepare::<O>(self.queues, self.shared, self.size, messages);
    }

    fn check(&mut self, each: &[u64], checked: Option<&Checked>) -> Result<()> {
        match checked {
            _ if !O::FACTS.consumes_receives() => {
                passive::check::<O>(self.queues, self.shared, self.size, each, checked)
            }
            Some(checked) => Payload::check(self, checked.count),
            None => Ok(()),
        }
    }
}
