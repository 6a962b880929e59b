//! Queue pairs: what one is made of, and its creation and end.
//!
//! A queue pair is shared by up to four threads at a time: its owner posting, its owner polling, and the same two of
//! its peer. Fields are grouped by who writes them, each group on its own cache lines; the layout is worth more than
//! any lock here.
//!
//! Locks are taken in this order: a send queue, then one responder (the peer's, or, with that given back, the own),
//! then a shared receive queue or a CQ or anything of the control path. Nobody holds two send queues or two responders.
//!
//! A peer is kept alive by whoever sends to it. Destroying a queue pair turns it into one that does not answer.

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ibverbs_sys::{
    ibv_event_type, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};
use nix::errno::Errno;

use super::async_event::AsyncEvent;
use super::completion::Cq;
use super::memory::Pd;
use super::receive_queue::ReceiveQueue;
use super::responder::Responder;
use super::send_queue::SendQueue;
use super::shared_receive::SharedReceives;
use super::sync::{Padded, SpinLock};
use super::{limits, numbers};

/// The service a queue pair gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// Connected and acknowledged (RC).
    Reliable,
    /// Connected, nothing acknowledged (UC).
    Unreliable,
    /// Not connected, each message to whom it names (UD).
    Datagram,
}

impl Transport {
    /// `None` for what the device does not have.
    fn from_raw(raw: ibv_qp_type::Type) -> Option<Self> {
        match raw {
            ibv_qp_type::IBV_QPT_RC => Some(Self::Reliable),
            ibv_qp_type::IBV_QPT_UC => Some(Self::Unreliable),
            ibv_qp_type::IBV_QPT_UD => Some(Self::Datagram),
            _ => None,
        }
    }
}

/// A queue pair. Its address is the `ibv_qp` that callers hold.
#[repr(C)]
pub(super) struct Qp {
    // Never written after creation, but for `ibv.state`, which nothing here reads.
    ibv: UnsafeCell<ibv_qp>,
    /// What remote ends address.
    pub number: u32,
    /// What was granted.
    pub caps: ibv_qp_cap,
    /// What it promises.
    pub transport: Transport,
    /// Every send completes, whatever its flags say.
    pub signal_all: bool,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Where its receives come from, if not from `receive`, which is empty then.
    pub shared: Option<Arc<SharedReceives>>,
    /// Which keys it may use.
    pub pd: Arc<Pd>,
    /// Itself, for those who must find it later.
    pub this: Weak<Qp>,

    /// Attributes as last set; held for the whole of a transition.
    pub attributes: Mutex<ibv_qp_attr>,
    /// An `ibv_qp_state`. Also written by whoever finds an error.
    pub state: Padded<AtomicU32>,

    /// Written by the owner when it posts, and by those who continue for it.
    pub send: Padded<SpinLock<SendQueue>>,
    /// Sends whose slots were given back, written by whoever polls.
    pub sends_released: Padded<AtomicU32>,

    /// Written by the owner when it posts.
    pub receive: ReceiveQueue,

    /// Written by the peer's sends.
    pub responder: Padded<SpinLock<Responder>>,
    /// The peer has a send for which no receive was posted. Written by the peer, read whenever a receive is posted.
    pub awaited: Padded<AtomicBool>,
    /// A note for the holder of `send`: deferred sends are worth another try.
    pub kicked: Padded<AtomicBool>,
}

// SAFETY: `ibv` is written before the queue pair is shared, except its `state` field, which is only written, under the
// lock of `attributes`. The rest synchronises itself.
unsafe impl Sync for Qp {}
// SAFETY: nothing in it belongs to a thread; the raw pointers in `ibv` are never followed here.
unsafe impl Send for Qp {}

impl Qp {
    /// A queue pair in RESET; what was granted is written back.
    ///
    /// # Safety
    /// `ibv_create_qp(3)`: `pd`, both CQs, and the shared receive queue if there is one, are live objects of this
    /// provider.
    pub(super) unsafe fn create(pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> io::Result<*mut ibv_qp> {
        // SAFETY: the caller's contract.
        let pd = unsafe { Pd::share(pd) };
        let transport = Transport::from_raw(init.qp_type).ok_or(Errno::EOPNOTSUPP)?;
        if init.send_cq.is_null() || init.recv_cq.is_null() {
            return Err(Errno::EINVAL.into());
        }
        let faults = &pd.context.faults;
        if !init.srq.is_null() {
            // As libibverbs says: not looked at then.
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
        }
        let caps = grant(&init.cap, faults.no_inline).ok_or(Errno::EINVAL)?;
        if faults.fail_qp {
            return Err(Errno::ENOMEM.into());
        }
        let number = numbers::take().ok_or(Errno::ENOMEM)?;
        // SAFETY: the caller's contract.
        let (send_cq, recv_cq) = unsafe { (Cq::share(init.send_cq), Cq::share(init.recv_cq)) };
        // SAFETY: the caller's contract.
        let shared = (!init.srq.is_null()).then(|| unsafe { SharedReceives::share(init.srq) });
        // SAFETY: integers, pointers and POSIX mutex and condition, for all of which zero is a value.
        let mut ibv: ibv_qp = unsafe { MaybeUninit::zeroed().assume_init() };
        ibv.context = pd.context.as_ibv();
        ibv.qp_context = init.qp_context;
        ibv.pd = pd.as_ibv();
        ibv.send_cq = init.send_cq;
        ibv.recv_cq = init.recv_cq;
        ibv.srq = init.srq;
        ibv.handle = number;
        ibv.qp_num = number;
        ibv.state = ibv_qp_state::IBV_QPS_RESET;
        ibv.qp_type = init.qp_type;
        init.cap = caps;

        pd.add_user();
        send_cq.add_user();
        recv_cq.add_user();
        if let Some(queue) = &shared {
            queue.add_user();
        }
        // SAFETY: integers and a GID.
        let attributes: ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        let qp = Arc::new_cyclic(|this| Self {
            ibv: UnsafeCell::new(ibv),
            number,
            caps,
            transport,
            signal_all: init.sq_sig_all != 0,
            send: Padded(SpinLock::new(SendQueue::new(caps.max_send_wr, transport, &pd.context.faults))),
            send_cq,
            recv_cq,
            shared,
            pd,
            this: this.clone(),
            attributes: Mutex::new(attributes),
            state: Padded(AtomicU32::new(ibv_qp_state::IBV_QPS_RESET)),
            sends_released: Padded::default(),
            receive: ReceiveQueue::new(caps.max_recv_wr),
            responder: Padded(SpinLock::new(Responder::new())),
            awaited: Padded::default(),
            kicked: Padded::default(),
        });
        numbers::publish(&qp);
        Ok(Arc::into_raw(qp).cast_mut().cast())
    }

    /// The queue pair behind `raw`.
    ///
    /// # Safety
    /// `raw` came from [`Qp::create`] and is not destroyed while the reference is in use.
    #[inline(always)]
    pub(super) unsafe fn from_raw<'a>(raw: *mut ibv_qp) -> &'a Self {
        // SAFETY: the caller's contract.
        unsafe { &*raw.cast_const().cast::<Self>() }
    }

    /// Ends the queue pair: outstanding work is dropped, its completions are withdrawn, its peer gets no answer any
    /// more. After it returns no memory is touched on its behalf.
    ///
    /// # Safety
    /// As for [`Qp::from_raw`], and `raw` is not used again.
    pub(super) unsafe fn destroy(raw: *mut ibv_qp) {
        // SAFETY: the strong count that `create` gave to the caller, who gives it back here.
        let qp = unsafe { Arc::from_raw(raw.cast_const().cast::<Self>()) };
        qp.reset();
        qp.pd.context.events.forget(raw.addr());
        numbers::give_back(qp.number);
        qp.send_cq.remove_user();
        qp.recv_cq.remove_user();
        if let Some(queue) = &qp.shared {
            queue.remove_user();
        }
        qp.pd.remove_user();
    }

    /// The state as others see it now.
    #[inline(always)]
    pub(super) fn state(&self) -> ibv_qp_state::Type {
        // Sequentially consistent: a receive posted before this look is found by whoever moves to ERR after it.
        self.state.load(Ordering::SeqCst)
    }

    /// Writes the state where callers may look for it.
    ///
    /// # Safety
    /// The caller holds the lock of `attributes`.
    pub(super) unsafe fn show_state(&self, state: ibv_qp_state::Type) {
        // SAFETY: the caller's contract makes this the only writer, and nothing here reads the field.
        unsafe { (&raw mut (*self.ibv.get()).state).write(state) };
    }

    /// A completion of work request number `index` was polled: its slot and all before it are free.
    #[inline(always)]
    pub(super) fn release(&self, index: u32, receive: bool) {
        let released = if receive { &self.receive.released } else { &self.sends_released };
        released.store(index.wrapping_add(1), Ordering::Release);
    }

    /// Raises an asynchronous event of this queue pair.
    #[cold]
    pub(super) fn raise(&self, kind: ibv_event_type) {
        let object = ptr::from_ref(self).addr();
        self.pd.context.events.raise(AsyncEvent { kind, number: self.number, object });
    }

    /// Returns when nobody who held the lock of the send queue at the time of the call holds it any more.
    pub(super) fn wait_for_send_queue(&self) {
        self.unlock_send(self.send.lock());
    }
}

/// Rounds what is asked for up to what the device has; `None` when it does not have it.
fn grant(asked: &ibv_qp_cap, no_inline: bool) -> Option<ibv_qp_cap> {
    let most_inline = if no_inline { 0 } else { limits::MAX_INLINE };
    let most_sge = limits::MAX_SGE as u32;
    if asked.max_send_wr > limits::MAX_QP_WR
        || asked.max_recv_wr > limits::MAX_QP_WR
        || asked.max_send_sge > most_sge
        || asked.max_recv_sge > most_sge
        || asked.max_inline_data > most_inline
    {
        return None;
    }
    let queue = |depth: u32| if depth == 0 { 0 } else { depth.next_power_of_two() };
    Some(ibv_qp_cap {
        max_send_wr: queue(asked.max_send_wr),
        max_recv_wr: queue(asked.max_recv_wr),
        max_send_sge: asked.max_send_sge.max(1),
        max_recv_sge: asked.max_recv_sge.max(1),
        max_inline_data: asked.max_inline_data.next_multiple_of(32).min(most_inline),
    })
}
