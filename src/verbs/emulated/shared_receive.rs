//! Shared receive queues: receives that several queue pairs take, each the oldest there is.
//!
//! A place is free as soon as a message took its receive. Filling and taking happen under one lock, behind every other
//! lock of the data path.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ibverbs_sys::{
    IBV_EVENT_SRQ_LIMIT_REACHED, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_wc_opcode, ibv_wc_status,
};
use nix::errno::Errno;

use super::async_event::AsyncEvent;
use super::limits;
use super::memory::{self, Pd, Pieces};
use super::queue_pair::{Qp, Transport};
use super::receive_queue::Receive;
use super::responder::{INVALID_REQUEST, OPERATION_FAILED, Refusal, Responder};
use super::sync::{SpinLock, lock};
use super::wire::{self, Request};

/// A shared receive queue. Its address is the `ibv_srq` that callers hold.
#[repr(C)]
pub(super) struct SharedReceives {
    ibv: UnsafeCell<ibv_srq>,
    depth: u32,
    max_sge: u32,
    /// Which keys its receives may name.
    pub pd: Arc<Pd>,
    /// Queue pairs that take from it.
    users: AtomicU32,
    receives: SpinLock<Receives>,
    /// `waiting` is not empty.
    awaited: AtomicBool,
    /// Queue pairs whose peers have sends for which there was no receive.
    waiting: Mutex<Vec<Weak<Qp>>>,
}

/// What is posted.
struct Receives {
    /// Room for `depth`, so that nothing is allocated under the lock.
    list: VecDeque<Receive>,
    /// When fewer are left there is an event, once; 0 for none.
    limit: u32,
}

// SAFETY: `ibv` is written before the queue is shared and only read afterwards; the rest synchronises itself.
unsafe impl Sync for SharedReceives {}
// SAFETY: nothing in it belongs to a thread; the entries of receives are numbers that are checked against keys.
unsafe impl Send for SharedReceives {}

impl SharedReceives {
    /// An empty queue; what was granted is written back. EINVAL for what the device does not have.
    ///
    /// # Safety
    /// `ibv_create_srq(3)`: `pd` is a live domain of this provider.
    pub(super) unsafe fn create(pd: *mut ibv_pd, attr: &mut ibv_srq_attr) -> io::Result<*mut ibv_srq> {
        if !(1..=limits::MAX_QP_WR).contains(&attr.max_wr) || attr.max_sge > limits::MAX_SGE as u32 {
            return Err(Errno::EINVAL.into());
        }
        attr.max_wr = attr.max_wr.next_power_of_two();
        attr.max_sge = attr.max_sge.max(1);
        // SAFETY: the caller's contract.
        let domain = unsafe { Pd::share(pd) };
        domain.add_user();
        // SAFETY: integers, pointers and POSIX mutex and condition, for all of which zero is a value.
        let mut ibv: ibv_srq = unsafe { MaybeUninit::zeroed().assume_init() };
        ibv.context = domain.context.as_ibv();
        ibv.pd = pd;
        let queue = Self {
            ibv: UnsafeCell::new(ibv),
            depth: attr.max_wr,
            max_sge: attr.max_sge,
            pd: domain,
            users: AtomicU32::new(0),
            receives: SpinLock::new(Receives {
                list: VecDeque::with_capacity(attr.max_wr as usize),
                limit: attr.srq_limit,
            }),
            awaited: AtomicBool::new(false),
            waiting: Mutex::new(Vec::new()),
        };
        Ok(Arc::into_raw(Arc::new(queue)).cast_mut().cast())
    }

    /// Another owner of the queue behind `raw`.
    ///
    /// # Safety
    /// `raw` came from [`SharedReceives::create`] and was not destroyed.
    pub(super) unsafe fn share(raw: *mut ibv_srq) -> Arc<Self> {
        let raw = raw.cast_const().cast::<Self>();
        // SAFETY: the strong count that `create` gave to the caller is still there.
        unsafe {
            Arc::increment_strong_count(raw);
            Arc::from_raw(raw)
        }
    }

    /// Gives the queue back. EBUSY while a queue pair takes from it.
    ///
    /// # Safety
    /// As for [`SharedReceives::share`], and `raw` is not used again when this succeeds.
    pub(super) unsafe fn destroy(raw: *mut ibv_srq) -> io::Result<()> {
        // SAFETY: the caller's contract.
        let queue = unsafe { Self::share(raw) };
        if queue.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY.into());
        }
        queue.pd.context.events.forget(raw.addr());
        queue.pd.remove_user();
        // SAFETY: the strong count that `create` gave to the caller, who gives it back here.
        drop(unsafe { Arc::from_raw(raw.cast_const().cast::<Self>()) });
        Ok(())
    }

    /// A queue pair takes from here from now on.
    pub(super) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// That queue pair is gone.
    pub(super) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::Release);
    }

    /// The oldest receive.
    pub(super) fn take(&self) -> Option<Receive> {
        let mut receives = self.receives.lock();
        let taken = receives.list.pop_front();
        let reached = receives.list.len() < receives.limit as usize;
        if reached {
            receives.limit = 0;
        }
        drop(receives);
        if reached {
            let object = ptr::from_ref(self).addr();
            let event = AsyncEvent { kind: IBV_EVENT_SRQ_LIMIT_REACHED, number: 0, object };
            self.pd.context.events.raise(event);
        }
        taken
    }

    /// Asks for one event when a message leaves fewer receives than this. EINVAL for more than there is room for.
    pub(super) fn set_limit(&self, limit: u32) -> io::Result<()> {
        if limit > self.depth {
            return Err(Errno::EINVAL.into());
        }
        self.receives.lock().limit = limit;
        Ok(())
    }

    /// A receive that was taken and not used is the oldest again.
    pub(super) fn give_back(&self, receive: Receive) {
        self.receives.lock().list.push_front(receive);
    }

    /// Asks whoever posts a receive here to kick those who send to `qp`. The caller must look for a receive once more.
    pub(super) fn await_receive(&self, qp: &Weak<Qp>) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|waiter| Weak::ptr_eq(waiter, qp)) {
            waiting.push(qp.clone());
        }
        // Before that look. Whoever posted before it is found by it; whoever posts after it has the lock after it, and
        // so sees this.
        self.awaited.store(true, Ordering::SeqCst);
    }

    /// Kicks all who wait. No lock may be held.
    #[cold]
    fn kick_waiters(&self) {
        let waiting = {
            let mut waiting = lock(&self.waiting);
            self.awaited.store(false, Ordering::SeqCst);
            mem::take(&mut *waiting)
        };
        for qp in waiting {
            if let Some(qp) = qp.upgrade() {
                qp.kick_waiter();
            }
        }
    }

    /// Adds receives from the list, up to the first that cannot be posted.
    ///
    /// # Safety
    /// As for [`post_srq_recv`].
    unsafe fn fill(&self, mut wr: *mut ibv_recv_wr) -> Result<(), (*mut ibv_recv_wr, Errno)> {
        let mut receives = self.receives.lock();
        // SAFETY: the caller's list, for each step of this loop.
        while let Some(request) = unsafe { wr.as_ref() } {
            if !(0..=self.max_sge as c_int).contains(&request.num_sge) {
                return Err((wr, Errno::EINVAL));
            }
            if receives.list.len() >= self.depth as usize {
                return Err((wr, Errno::ENOMEM));
            }
            // SAFETY: the caller's list; the number of entries was checked.
            receives.list.push_back(unsafe { Receive::new(request) });
            wr = request.next;
        }
        Ok(())
    }
}

/// `ibv_context_ops.post_srq_recv`
///
/// # Safety
/// `ibv_post_srq_recv(3)`: `srq` is a queue of this provider, the list is well-formed, and the memory it names stays
/// until the receives complete or the queue is destroyed.
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's contract.
    let queue = unsafe { &*srq.cast_const().cast::<SharedReceives>() };
    // SAFETY: as above.
    let result = unsafe { queue.fill(wr) };
    if queue.awaited.load(Ordering::SeqCst) {
        queue.kick_waiters();
    }
    match result {
        Ok(()) => 0,
        Err((at, errno)) => {
            // SAFETY: the caller gives a place for it.
            unsafe { *bad = at };
            errno as c_int
        }
    }
}

impl Qp {
    /// Serves a message that needs a receive, when the queue pair's own queue has none.
    ///
    /// # Safety
    /// As for [`Qp::respond`].
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn serve_from_shared(
        &self,
        responder: &Responder,
        request: &Request<'_>,
    ) -> Result<(), Refusal> {
        let queue = self.shared.as_ref().ok_or(Refusal::NotReady)?;
        let receive = queue.take().ok_or(Refusal::NotReady)?;
        let opcode = if wire::is_send(request.opcode) {
            if receive.room() < request.local.total {
                match self.transport {
                    Transport::Reliable => self.fail_shared(&receive, ibv_wc_status::IBV_WC_LOC_LEN_ERR),
                    _ => queue.give_back(receive),
                }
                return Err(INVALID_REQUEST);
            }
            let mut into = Pieces::new();
            // SAFETY: the caller's contract.
            let found = unsafe { self.scatter(&queue.pd, &receive, request.local.total, &mut into) };
            if found.is_none() {
                self.fail_shared(&receive, ibv_wc_status::IBV_WC_LOC_PROT_ERR);
                return Err(OPERATION_FAILED);
            }
            // SAFETY: both sides were found by their keys, and there is room.
            unsafe { memory::copy(request.local.as_slice(), into.as_slice()) };
            ibv_wc_opcode::IBV_WC_RECV
        } else {
            // SAFETY: the caller's contract.
            if let Err(refusal) = unsafe { self.write(responder, request) } {
                queue.give_back(receive);
                return Err(refusal);
            }
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM
        };
        let completion = self.arrival(&receive, request, opcode);
        // There is no place in the own queue that polling could give back: the first stands for it.
        let kept = self.recv_cq.push(&completion, self, 0, request.solicited);
        if kept { Ok(()) } else { Err(OPERATION_FAILED) }
    }

    /// Completes a receive that was taken with an error.
    #[cold]
    pub(super) fn fail_shared(&self, receive: &Receive, status: ibv_wc_status::Type) {
        let completion = wire::completion(receive.wr_id, ibv_wc_opcode::IBV_WC_RECV, status, self.number);
        // A lost completion changes nothing: the queue pair is on its way to ERR.
        self.recv_cq.push(&completion, self, 0, false);
    }
}
