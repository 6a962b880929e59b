//! Completion queues: a ring that any thread may push to and any thread may poll.
//!
//! Each entry fills one cache line and carries the turn at which it was written, so a poller that waits reads that
//! line and no other. Two locks, one for pushing and one for polling, never held by the same thread except when a
//! queue pair's entries are withdrawn.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ibverbs_sys::{IBV_EVENT_CQ_ERR, ibv_cq, ibv_wc, ibv_wc_opcode, ibv_wc_status};
use nix::errno::Errno;

use super::async_event::AsyncEvent;
use super::channel::Channel;
use super::device::Context;
use super::limits;
use super::queue_pair::Qp;
use super::ring::Ring;
use super::sync::{Padded, SpinLock, lock};

/// Twin of `ibv_wc`, whose fields are private in the bindings.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Completion {
    pub wr_id: u64,
    pub status: ibv_wc_status::Type,
    pub opcode: ibv_wc_opcode::Type,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Network byte order, as in the work request.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(
        size_of::<Completion>() == size_of::<ibv_wc>() && align_of::<Completion>() == align_of::<ibv_wc>()
    );
    assert!(offset_of!(Completion, imm_data) == offset_of!(ibv_wc, imm_data));
    assert!(offset_of!(Completion, qp_num) == offset_of!(ibv_wc, qp_num));
    assert!(offset_of!(Completion, src_qp) == offset_of!(ibv_wc, src_qp));
    assert!(offset_of!(Completion, wc_flags) == offset_of!(ibv_wc, wc_flags));
    assert!(offset_of!(Completion, pkey_index) == offset_of!(ibv_wc, pkey_index));
    assert!(offset_of!(Completion, slid) == offset_of!(ibv_wc, slid));
    assert!(offset_of!(Completion, sl) == offset_of!(ibv_wc, sl));
    assert!(offset_of!(Completion, dlid_path_bits) == offset_of!(ibv_wc, dlid_path_bits));
    // The private fields come first and fill 24 bytes in the order of `struct ibv_wc` in verbs.h.
    assert!(offset_of!(Completion, status) == 8 && offset_of!(Completion, opcode) == 12);
    assert!(offset_of!(Completion, vendor_err) == 16 && offset_of!(Completion, byte_len) == 20);
    assert!(offset_of!(ibv_wc, imm_data) == 24);
    assert!(size_of::<Entry>() == 64);
};

/// The bit of a completion's opcode that tells a receive from a send.
const RECEIVE: ibv_wc_opcode::Type = ibv_wc_opcode::IBV_WC_RECV;

/// A slot of the ring. All zeroes is a slot never written.
#[repr(C, align(64))]
struct Entry {
    /// Position in the stream of completions, plus one, modulo 2^32: written last.
    turn: AtomicU32,
    /// Position of the work request in its queue.
    index: UnsafeCell<u32>,
    /// Whose it is, to release the slot in the work queue; null when it was withdrawn.
    owner: UnsafeCell<*const Qp>,
    completion: UnsafeCell<Completion>,
}

/// State of those who push.
struct Tail {
    /// Completions ever pushed.
    next: u32,
    /// Completions polled, when last looked.
    polled: u32,
}

/// State of those who poll.
#[repr(C)]
struct Head {
    /// Completions ever polled. Written under `lock`, read by anyone.
    next: AtomicU32,
    lock: SpinLock<()>,
}

/// A completion queue. Its address is the `ibv_cq` that callers hold.
#[repr(C)]
pub(super) struct Cq {
    ibv: UnsafeCell<ibv_cq>,
    ring: Ring<Entry>,
    /// Entries granted: one less than the ring has.
    depth: u32,
    channel: Option<Arc<Channel>>,
    context: Arc<Context>,
    /// Queue pairs created on this queue; one that uses it for both directions counts twice.
    users: AtomicU32,
    /// Events handed out, less those acknowledged.
    unacknowledged: AtomicU32,
    /// A completion was lost.
    overflowed: AtomicBool,
    head: Padded<Head>,
    tail: Padded<SpinLock<Tail>>,
    /// 0, or one of the two below.
    armed: Padded<AtomicU32>,
    /// Entries of `waiting`.
    waiters: AtomicU32,
    /// Send queues that complete here and hold work for which the peer had no receive.
    waiting: Mutex<Vec<Weak<Qp>>>,
}

/// Armed for the next solicited completion or error.
const ARMED_SOLICITED: u32 = 1;
/// Armed for the next completion.
const ARMED_ANY: u32 = 2;

// SAFETY: entries change only under the lock of `tail`, before their turn is published, and are read under the lock
// of `head`, after; `ibv` is written before the queue is shared. The rest synchronises itself.
unsafe impl Sync for Cq {}
// SAFETY: nothing in it belongs to a thread; owners of entries withdraw them before they go away.
unsafe impl Send for Cq {}

impl Cq {
    /// A queue with room for at least `depth` completions. EINVAL for none or too many.
    pub(super) fn create(
        context: Arc<Context>,
        depth: u32,
        channel: Option<Arc<Channel>>,
    ) -> io::Result<*mut ibv_cq> {
        if depth == 0 || depth > limits::MAX_CQE {
            return Err(Errno::EINVAL.into());
        }
        let slots = (depth + 1).next_power_of_two();
        // SAFETY: `ibv_cq` holds integers, pointers and POSIX mutex and condition, for all of which zero is a value.
        let mut ibv: ibv_cq = unsafe { MaybeUninit::zeroed().assume_init() };
        ibv.context = context.as_ibv();
        ibv.cqe = (slots - 1) as c_int;
        if let Some(channel) = &channel {
            ibv.channel = channel.as_ibv();
            channel.add_user();
        }
        context.add_child();
        let cq = Self {
            ibv: UnsafeCell::new(ibv),
            // SAFETY: zeroes are a slot never written (see `Entry`).
            ring: unsafe { Ring::zeroed(slots) },
            depth: slots - 1,
            channel,
            context,
            users: AtomicU32::new(0),
            unacknowledged: AtomicU32::new(0),
            overflowed: AtomicBool::new(false),
            head: Padded(Head { next: AtomicU32::new(0), lock: SpinLock::new(()) }),
            tail: Padded(SpinLock::new(Tail { next: 0, polled: 0 })),
            armed: Padded(AtomicU32::new(0)),
            waiters: AtomicU32::new(0),
            waiting: Mutex::new(Vec::new()),
        };
        Ok(Arc::into_raw(Arc::new(cq)).cast_mut().cast())
    }

    /// The queue behind `raw`.
    ///
    /// # Safety
    /// `raw` came from [`Cq::create`] and is not destroyed while the reference is in use.
    #[inline(always)]
    pub(super) unsafe fn from_raw<'a>(raw: *mut ibv_cq) -> &'a Self {
        // SAFETY: the caller's contract.
        unsafe { &*raw.cast_const().cast::<Self>() }
    }

    /// Another owner of the queue behind `raw`.
    ///
    /// # Safety
    /// As for [`Cq::from_raw`], for the duration of the call.
    pub(super) unsafe fn share(raw: *mut ibv_cq) -> Arc<Self> {
        let raw = raw.cast_const().cast::<Self>();
        // SAFETY: the strong count that `create` gave to the caller is still there.
        unsafe {
            Arc::increment_strong_count(raw);
            Arc::from_raw(raw)
        }
    }

    /// Gives the queue back. EBUSY while a queue pair uses it, or while an event of it is not acknowledged
    /// (libibverbs would wait, for ever if the caller is the one to acknowledge).
    ///
    /// # Safety
    /// As for [`Cq::from_raw`], and `raw` is not used again when this succeeds.
    pub(super) unsafe fn destroy(raw: *mut ibv_cq) -> io::Result<()> {
        // SAFETY: the caller's contract.
        let cq = unsafe { Self::share(raw) };
        if cq.users.load(Ordering::Acquire) > 0 || cq.unacknowledged.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY.into());
        }
        if let Some(channel) = &cq.channel {
            channel.remove_user(&*cq);
        }
        cq.context.events.forget(raw.addr());
        cq.context.remove_child();
        // SAFETY: the strong count that `create` gave to the caller, who gives it back here.
        drop(unsafe { Arc::from_raw(raw.cast_const().cast::<Self>()) });
        Ok(())
    }

    /// A direction of a queue pair completes here from now on.
    pub(super) fn add_user(&self) {
        let users = self.users.fetch_add(1, Ordering::Relaxed) + 1;
        // So that a send queue that must wait finds room in the list.
        lock(&self.waiting).reserve(users as usize);
    }

    /// That direction is gone.
    pub(super) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::Release);
    }

    /// Adds the completion of work request number `index` of `owner`'s send or receive queue, and an event if the
    /// queue is armed for it; errors count as solicited. False when it was lost because the queue is full.
    #[inline]
    pub(super) fn push(
        &self,
        completion: &Completion,
        owner: *const Qp,
        index: u32,
        solicited: bool,
    ) -> bool {
        let mut tail = self.tail.lock();
        let position = tail.next;
        if position.wrapping_sub(tail.polled) >= self.depth {
            // A queue that lost one stays full: what came later would hide the loss.
            if !self.overflowed.load(Ordering::Relaxed) {
                tail.polled = self.head.next.load(Ordering::Acquire);
            }
            if position.wrapping_sub(tail.polled) >= self.depth {
                drop(tail);
                self.overflow();
                return false;
            }
        }
        let entry = self.ring.get(position);
        // SAFETY: the entry was polled or never used (checked above), and only the holder of `tail` writes entries.
        unsafe {
            *entry.index.get() = index;
            *entry.owner.get() = owner;
            *entry.completion.get() = *completion;
        }
        tail.next = position.wrapping_add(1);
        if let Some(channel) = &self.channel {
            // Before the look at `armed` in one total order: whoever arms and then polls sees this entry or is seen.
            entry.turn.store(tail.next, Ordering::SeqCst);
            drop(tail);
            if self.armed.load(Ordering::SeqCst) != 0 {
                self.fire(channel, solicited || completion.status != ibv_wc_status::IBV_WC_SUCCESS);
            }
        } else {
            entry.turn.store(tail.next, Ordering::Release);
        }
        true
    }

    /// Queues an event if the queue is armed for this completion, and disarms it.
    #[cold]
    fn fire(&self, channel: &Channel, solicited: bool) {
        let fired = self.armed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |armed| match armed {
            0 => None,
            ARMED_SOLICITED if !solicited => None,
            _ => Some(0),
        });
        if fired.is_ok() {
            channel.notify(self);
        }
    }

    /// A completion was lost: polls fail once the queue is empty, and the device has an asynchronous event.
    #[cold]
    fn overflow(&self) {
        if !self.overflowed.swap(true, Ordering::Release) {
            let object = ptr::from_ref(self).addr();
            self.context.events.raise(AsyncEvent { kind: IBV_EVENT_CQ_ERR, number: 0, object });
        }
        if let Some(channel) = &self.channel {
            // A sleeper must come and see.
            if self.armed.swap(0, Ordering::SeqCst) != 0 {
                channel.notify(self);
            }
        }
    }

    /// Asks for one event at the next completion, or the next solicited one. Wider requests win.
    pub(super) fn arm(&self, solicited_only: bool) {
        self.armed.fetch_max(if solicited_only { ARMED_SOLICITED } else { ARMED_ANY }, Ordering::SeqCst);
    }

    /// An event of this queue was taken from the channel.
    pub(super) fn event_taken(&self) {
        self.unacknowledged.fetch_add(1, Ordering::Relaxed);
    }

    /// So many events were acknowledged.
    pub(super) fn acknowledge(&self, count: u32) {
        self.unacknowledged.fetch_sub(count, Ordering::Release);
    }

    /// Moves up to `room` completions to `into`; negative when completions were lost.
    ///
    /// # Safety
    /// `into` has room for that many.
    #[inline]
    unsafe fn poll(&self, room: u32, into: *mut Completion) -> c_int {
        let mut position = self.head.next.load(Ordering::Relaxed);
        // Sequentially consistent because arming comes before it (see `push`).
        if self.ring.get(position).turn.load(Ordering::SeqCst) != position.wrapping_add(1) {
            return self.poll_empty();
        }
        let guard = self.head.lock.lock();
        position = self.head.next.load(Ordering::Relaxed);
        let mut count = 0;
        while count < room {
            let entry = self.ring.get(position);
            if entry.turn.load(Ordering::SeqCst) != position.wrapping_add(1) {
                break;
            }
            position = position.wrapping_add(1);
            // SAFETY: the entry is published and stays until `head.next` passes it, which only the holder of this
            // lock does. Its owner is alive: a queue pair withdraws its entries before it goes away.
            unsafe {
                if let Some(owner) = (*entry.owner.get()).as_ref() {
                    let completion = entry.completion.get();
                    into.add(count as usize).write(*completion);
                    count += 1;
                    owner.release(*entry.index.get(), (*completion).opcode & RECEIVE != 0);
                }
            }
        }
        self.head.next.store(position, Ordering::Release);
        drop(guard);
        count as c_int
    }

    #[cold]
    #[inline(never)]
    fn poll_empty(&self) -> c_int {
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.progress_waiters();
        }
        if self.overflowed.load(Ordering::Acquire) { -(Errno::EOVERFLOW as c_int) } else { 0 }
    }

    /// Lets each send queue that waits for a receive of its peer try again.
    fn progress_waiters(&self) {
        let mut next = 0;
        loop {
            let waiter = match lock(&self.waiting).get(next) {
                None => return,
                Some(waiter) => waiter.upgrade(),
            };
            if let Some(qp) = waiter {
                qp.kick();
            }
            next += 1;
        }
    }

    /// This send queue waits, and polling should let it try again.
    pub(super) fn add_waiter(&self, qp: Weak<Qp>) {
        let mut waiting = lock(&self.waiting);
        waiting.push(qp);
        self.waiters.store(waiting.len() as u32, Ordering::Relaxed);
    }

    /// This send queue waits no more.
    pub(super) fn remove_waiter(&self, qp: *const Qp) {
        let mut waiting = lock(&self.waiting);
        waiting.retain(|waiter| waiter.as_ptr() != qp);
        self.waiters.store(waiting.len() as u32, Ordering::Relaxed);
    }

    /// Withdraws what `owner` has in the queue. Nothing of it is pushed any more.
    pub(super) fn withdraw(&self, owner: *const Qp) {
        let _polling = self.head.lock.lock();
        let tail = self.tail.lock();
        let mut position = self.head.next.load(Ordering::Relaxed);
        while position != tail.next {
            let slot = self.ring.get(position).owner.get();
            // SAFETY: both locks are held, so nobody reads or writes entries.
            unsafe {
                if *slot == owner {
                    *slot = ptr::null();
                }
            }
            position = position.wrapping_add(1);
        }
    }
}

/// `ibv_context_ops.poll_cq`
///
/// # Safety
/// `ibv_poll_cq(3)`: `cq` is a queue of this provider and `wc` has room for `count` completions.
pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's contract; `Completion` has the layout of `ibv_wc` (asserted above).
    unsafe { Cq::from_raw(cq).poll(count.max(0) as u32, wc.cast()) }
}

/// `ibv_context_ops.req_notify_cq`
///
/// # Safety
/// `ibv_req_notify_cq(3)`: `cq` is a queue of this provider.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { Cq::from_raw(cq) }.arm(solicited_only != 0);
    0
}
