//! Receiving: work requests that are built once and patched.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use ibverbs_sys::{ibv_qp, ibv_recv_wr};

use super::post::{Partial, leak, post_failed};
use super::queues::Queues;
use super::shared_receive::Srq;
use super::slice::{Elements, Slice};
use crate::error::{Error, Result};

/// Receives posted by one call of the library at most.
const CHAIN: usize = 32;

/// A work request of the receive queue, built once and posted any number of times. Its memory and queue pair are kept
/// as by [`Sender`](super::Sender).
#[derive(Debug)]
pub struct Receiver {
    /// The entry of the operations table that posts to `queue`.
    operation: *const Option<PostRecv>,
    /// A queue pair, or a shared receive queue.
    queue: *mut ibv_qp,
    requests: NonNull<Requests>,
    elements: Elements,
    owner: Owner,
}

/// `post_recv` of the operations table. `post_srq_recv` differs in what its first parameter points to, which is no
/// difference to a caller (see "ABI compatibility" in the documentation of `fn`).
pub(super) type PostRecv =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// Whose receives they are; kept for the memory's sake and for messages.
#[derive(Debug)]
pub(super) enum Owner {
    Pair(Queues),
    Shared(Srq),
}

/// Requests that all point to the same elements, at addresses that stay. The first is the one that
/// [`Receiver::post`] posts and others are made like.
type Requests = [ibv_recv_wr; CHAIN];

// SAFETY: the requests are this receiver's own, and the queue may be posted to from any thread
// (`ibv_alloc_td(3)`).
unsafe impl Send for Receiver {}
// SAFETY: a shared receiver gives access to nothing.
unsafe impl Sync for Receiver {}

impl Drop for Receiver {
    fn drop(&mut self) {
        // SAFETY: came from `Box::into_raw` and is freed once. No call is reading it: each borrowed the receiver.
        drop(unsafe { Box::from_raw(self.requests.as_ptr()) });
    }
}

impl Receiver {
    pub(super) fn new(qp: Queues, local: &[Slice]) -> Self {
        assert!(!qp.shares_receives(), "the queue pair takes its receives from a shared queue");
        let elements = Elements::new(local, qp.pd(), qp.caps().max_recv_sge);
        // SAFETY: the queue pair is live, and so is its context; both stay so while `owner` is kept.
        let operation = unsafe { &raw const (*(*qp.raw()).context).ops.post_recv };
        Self::made(operation.cast(), qp.raw(), elements, Owner::Pair(qp))
    }

    pub(super) fn shared(srq: Srq, local: &[Slice]) -> Self {
        let elements = Elements::new(local, srq.pd(), srq.max_sge());
        // SAFETY: as above. The entry was found when the queue was made.
        let operation = unsafe { &raw const (*(*srq.raw()).context).ops.post_srq_recv };
        Self::made(operation.cast(), srq.raw().cast(), elements, Owner::Shared(srq))
    }

    fn made(
        operation: *const Option<PostRecv>,
        queue: *mut ibv_qp,
        elements: Elements,
        owner: Owner,
    ) -> Self {
        let request =
            ibv_recv_wr { sg_list: elements.list(), num_sge: elements.count(), ..Default::default() };
        Self { operation, queue, requests: leak([request; CHAIN]), elements, owner }
    }

    /// The request of this index.
    ///
    /// # Safety
    /// It is less than [`CHAIN`].
    #[inline]
    unsafe fn wr(&mut self, index: usize) -> *mut ibv_recv_wr {
        // SAFETY: the array is alive, and the index within it by this function's contract.
        unsafe { self.requests.as_ptr().cast::<ibv_recv_wr>().add(index) }
    }

    /// Posts one receive. `ibv_post_recv(3)`
    ///
    /// # Errors
    /// [`Step::Measure`](crate::error::Step::Measure): the queue is full, or the queue pair is in no state to receive.
    #[inline]
    pub fn post(&mut self) -> Result<()> {
        // Written by the library only when it refuses a request, and not read here.
        let mut bad = MaybeUninit::uninit();
        // SAFETY: index 0 is within the array, whose first request has no next one between calls.
        let code = unsafe { self.post_chain(bad.as_mut_ptr()) };
        if code != 0 {
            return Err(self.failed(0, 1, code));
        }
        Ok(())
    }

    /// Posts `n` receives into the same memory, with as few calls as possible.
    ///
    /// # Errors
    /// As [`Receiver::post`], with how many were posted.
    pub fn post_many(&mut self, n: u32) -> Result<(), Partial> {
        let mut posted = 0;
        while posted < n {
            let link = ((n - posted) as usize).min(CHAIN);
            let mut bad = ptr::null_mut();
            // SAFETY: all indices are less than `link`, so within the array. The chain ends at its last request, and is
            // undone after the call, which has read it by then.
            let code = unsafe {
                let first = self.wr(0);
                for i in 1..link {
                    (*self.wr(i)).wr_id = (*first).wr_id;
                    (*self.wr(i - 1)).next = self.wr(i);
                }
                (*self.wr(link - 1)).next = ptr::null_mut();
                let code = self.post_chain(&mut bad);
                (*first).next = ptr::null_mut();
                code
            };
            if code != 0 {
                let taken = (0..link).position(|i| {
                    // SAFETY: within the array.
                    let wr = unsafe { self.wr(i) };
                    ptr::eq(wr, bad)
                });
                let posted = posted + taken.unwrap_or(0) as u32;
                return Err(Partial { posted, error: self.failed(posted, n, code) });
            }
            posted += link as u32;
        }
        Ok(())
    }

    /// Posts the first request and those it is linked to.
    ///
    /// # Safety
    /// The chain ends within the array.
    #[inline]
    unsafe fn post_chain(&mut self, bad: *mut *mut ibv_recv_wr) -> c_int {
        // SAFETY: the requests and their elements live as long as the receiver and are read by the library before it
        // returns. Queue pair and what it stands on are kept by `owner`, the memory by `elements`, past the completion
        // or up to the end of its registration. The table was found complete when the context was opened.
        unsafe {
            let first = self.wr(0);
            (*self.operation).unwrap_unchecked()(self.queue, first, bad)
        }
    }

    /// Sets the number that comes back in the completion.
    #[inline]
    pub fn set_id(&mut self, wr_id: u64) {
        // SAFETY: the array is not empty, and ours alone.
        unsafe { (*self.wr(0)).wr_id = wr_id };
    }

    /// Moves the request to other memory of the same length: the first slice to `local_offset` bytes from the start of
    /// its region.
    ///
    /// # Panics
    /// If the slice would not be within its region.
    #[inline]
    pub fn move_to(&mut self, local_offset: usize) {
        self.elements.move_first(local_offset);
    }

    /// Moves one slice, by its index in the order in which they were given.
    ///
    /// # Panics
    /// If there is no such slice, or it would not be within its region.
    #[inline]
    pub fn move_slice(&mut self, index: usize, local_offset: usize) {
        self.elements.move_slice(index, local_offset);
    }

    fn failed(&self, posted: u32, of: u32, code: c_int) -> Error {
        receives_failed(&self.owner, posted, of, code)
    }
}

/// The error of a post of receives.
#[cold]
#[inline(never)]
pub(super) fn receives_failed(owner: &Owner, posted: u32, of: u32, code: c_int) -> Error {
    match owner {
        Owner::Pair(qp) => {
            let values = format!("{posted} of {of} posted, max_recv_wr {}", qp.caps().max_recv_wr);
            post_failed("ibv_post_recv", Some(qp), &values, code)
        }
        Owner::Shared(srq) => {
            let values = format!("{posted} of {of} posted, max_wr {}", srq.max_wr());
            post_failed("ibv_post_srq_recv", None, &values, code)
        }
    }
}
