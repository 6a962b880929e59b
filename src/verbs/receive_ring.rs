//! Receives that go through the slots of a region in turn, linked once and posted by one call as many as wanted.

use std::ptr::{self, NonNull};

use ibverbs_sys::{ibv_qp, ibv_recv_wr, ibv_sge};

use super::cycle::Slots;
use super::queues::Queues;
use super::receive::{Owner, PostRecv, receives_failed};
use super::shared_receive::Srq;
use super::slice::{Elements, Slice};
use crate::error::Result;

/// A work request of the receive queue for each slot, the last one linked to the first. Posting takes those that are
/// next. Memory and queue pair are kept as by [`Sender`](super::Sender).
#[derive(Debug)]
pub struct ReceiveRing {
    /// The entry of the operations table that posts to `queue`.
    operation: *const Option<PostRecv>,
    /// A queue pair, or a shared receive queue.
    queue: *mut ibv_qp,
    entries: NonNull<[Entry]>,
    next: usize,
    owner: Owner,
    /// Of the first slot: keeps the memory.
    _elements: Elements,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Entry {
    wr: ibv_recv_wr,
    sge: ibv_sge,
}

// SAFETY: the requests are this ring's own, and the queue may be posted to from any thread (`ibv_alloc_td(3)`).
unsafe impl Send for ReceiveRing {}
// SAFETY: a shared ring gives access to nothing.
unsafe impl Sync for ReceiveRing {}

impl Drop for ReceiveRing {
    fn drop(&mut self) {
        // SAFETY: came from a leaked box and is freed once. No call is reading it: each borrowed the ring.
        drop(unsafe { Box::from_raw(self.entries.as_ptr()) });
    }
}

impl ReceiveRing {
    pub(super) fn of_pair(
        qp: Queues,
        local: Slice,
        slots: Slots,
        next: usize,
        id: impl Fn(usize) -> u64,
    ) -> Self {
        assert!(!qp.shares_receives(), "the queue pair takes its receives from a shared queue");
        let elements = Elements::new(&[local], qp.pd(), qp.caps().max_recv_sge);
        // SAFETY: the queue pair is live, and so is its context; both stay so while `owner` is kept.
        let operation = unsafe { &raw const (*(*qp.raw()).context).ops.post_recv };
        Self::made(operation.cast(), qp.raw(), elements, Owner::Pair(qp), slots, next, id)
    }

    pub(super) fn of_shared(
        srq: Srq,
        local: Slice,
        slots: Slots,
        next: usize,
        id: impl Fn(usize) -> u64,
    ) -> Self {
        let elements = Elements::new(&[local], srq.pd(), srq.max_sge());
        // SAFETY: as above. The entry was found when the queue was made.
        let operation = unsafe { &raw const (*(*srq.raw()).context).ops.post_srq_recv };
        Self::made(operation.cast(), srq.raw().cast(), elements, Owner::Shared(srq), slots, next, id)
    }

    fn made(
        operation: *const Option<PostRecv>,
        queue: *mut ibv_qp,
        mut elements: Elements,
        owner: Owner,
        slots: Slots,
        next: usize,
        id: impl Fn(usize) -> u64,
    ) -> Self {
        // Panics where the last slot would not be within the region.
        let cycle = elements.cycle(slots, next);
        // SAFETY: a list has at least one element, and it is ours alone.
        let template = unsafe { *elements.list() };
        let entry = |slot| Entry {
            wr: ibv_recv_wr { wr_id: id(slot), num_sge: elements.count(), ..Default::default() },
            sge: ibv_sge { addr: cycle.slot(slot), ..template },
        };
        let entries = NonNull::from(Box::leak((0..slots.count).map(entry).collect::<Box<[_]>>()));
        let ring = Self { operation, queue, entries, next, owner, _elements: elements };
        for slot in 0..slots.count {
            // SAFETY: both are entries of the ring, which are ours alone and at addresses that stay.
            unsafe {
                (*ring.entry(slot)).wr.sg_list = &raw mut (*ring.entry(slot)).sge;
                (*ring.entry(slot)).wr.next = &raw mut (*ring.entry((slot + 1) % slots.count)).wr;
            }
        }
        ring
    }

    /// # Safety
    /// There is a slot of this number.
    #[inline]
    unsafe fn entry(&self, slot: usize) -> *mut Entry {
        // SAFETY: within the ring by this function's contract.
        unsafe { self.entries.as_ptr().cast::<Entry>().add(slot) }
    }

    /// The slot that the next receive is for.
    #[inline]
    pub fn next(&self) -> usize {
        self.next
    }

    /// Posts receives for the next `count` slots, by one call unless they are more than there are slots.
    ///
    /// # Errors
    /// [`Step::Measure`](crate::error::Step::Measure): the queue is full, or the queue pair is in no state to receive.
    #[inline]
    pub fn post(&mut self, count: usize) -> Result<()> {
        if count > self.entries.len() { self.post_rounds(count) } else { self.post_part(count) }
    }

    #[cold]
    #[inline(never)]
    fn post_rounds(&mut self, count: usize) -> Result<()> {
        let slots = self.entries.len();
        (0..count / slots).try_for_each(|_| self.post_part(slots))?;
        self.post_part(count % slots)
    }

    /// Posts at most as many as there are slots; `post` and `post_rounds` see to that.
    #[inline(always)]
    fn post_part(&mut self, count: usize) -> Result<()> {
        let slots = self.entries.len();
        if count == 0 {
            return Ok(());
        }
        let (first, mut end) = (self.next, self.next + count);
        if end > slots {
            end -= slots;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: `first` is less than `slots`, and `end` is between 1 and `slots`. The requests and their elements live
        // as long as the ring and are read by the library before it returns; the ring is cut behind the last one for
        // that call. Queue pair and what it stands on are kept by `owner`, the memory by `_elements`, past the
        // completion or up to the end of its registration. The table was found complete when the context was opened.
        let code = unsafe {
            let last = self.entry(end - 1);
            let behind = std::mem::replace(&mut (*last).wr.next, ptr::null_mut());
            let wr = &raw mut (*self.entry(first)).wr;
            let code = (*self.operation).unwrap_unchecked()(self.queue, wr, &mut bad);
            (*last).wr.next = behind;
            code
        };
        if code != 0 {
            return Err(receives_failed(&self.owner, 0, count as u32, code));
        }
        self.next = if end == slots { 0 } else { end };
        Ok(())
    }
}
