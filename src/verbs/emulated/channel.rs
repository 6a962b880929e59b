//! Completion channels: an event counter that `poll(2)` understands and the queue of CQs behind it.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use ibverbs_sys::{ibv_comp_channel, ibv_cq};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::completion::Cq;
use super::device::Context;
use super::sync::lock;

/// A completion channel. Its address is the `ibv_comp_channel` that callers hold.
#[repr(C)]
pub(super) struct Channel {
    ibv: UnsafeCell<ibv_comp_channel>,
    /// One unit for each entry of `events`; both change under the lock of `events`.
    counter: EventFd,
    events: Mutex<VecDeque<CqAddress>>,
    /// CQs created on this channel.
    users: AtomicU32,
    context: Arc<Context>,
}

/// A CQ as an event names it. Never dereferenced here.
#[derive(Clone, Copy, PartialEq)]
struct CqAddress(*const Cq);

// SAFETY: an address that is only compared and handed back.
unsafe impl Send for CqAddress {}
// SAFETY: `ibv` is written before the channel is shared and only read afterwards; the rest synchronises itself.
unsafe impl Sync for Channel {}
// SAFETY: nothing in it belongs to a thread; `ibv` holds an address of the context that `context` keeps alive.
unsafe impl Send for Channel {}

impl Channel {
    /// A channel of `context` with a non-blocking descriptor.
    pub(super) fn create(context: Arc<Context>) -> io::Result<*mut ibv_comp_channel> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE;
        let counter = EventFd::from_value_and_flags(0, flags)?;
        context.add_child();
        let ibv = ibv_comp_channel { context: context.as_ibv(), fd: counter.as_raw_fd(), refcnt: 0 };
        let channel = Self {
            ibv: UnsafeCell::new(ibv),
            counter,
            events: Mutex::new(VecDeque::new()),
            users: AtomicU32::new(0),
            context,
        };
        Ok(Arc::into_raw(Arc::new(channel)).cast_mut().cast())
    }

    /// Another owner of the channel behind `raw`.
    ///
    /// # Safety
    /// `raw` came from [`Channel::create`] and was not destroyed.
    pub(super) unsafe fn share(raw: *mut ibv_comp_channel) -> Arc<Self> {
        let raw = raw.cast_const().cast::<Self>();
        // SAFETY: the strong count that `create` gave to the caller is still there.
        unsafe {
            Arc::increment_strong_count(raw);
            Arc::from_raw(raw)
        }
    }

    /// Gives the channel back. EBUSY while a CQ uses it.
    ///
    /// # Safety
    /// As for [`Channel::share`], and `raw` is not used again when this succeeds.
    pub(super) unsafe fn destroy(raw: *mut ibv_comp_channel) -> io::Result<()> {
        // SAFETY: the caller's contract.
        let channel = unsafe { Self::share(raw) };
        if channel.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY.into());
        }
        channel.context.remove_child();
        // SAFETY: the strong count that `create` gave to the caller, who gives it back here.
        drop(unsafe { Arc::from_raw(raw.cast_const().cast::<Self>()) });
        Ok(())
    }

    /// The address that a CQ of this channel shows in `ibv_cq.channel`.
    pub(super) fn as_ibv(&self) -> *mut ibv_comp_channel {
        self.ibv.get()
    }

    /// A CQ was created on this channel.
    pub(super) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// That CQ is gone: its events that nobody took are too.
    pub(super) fn remove_user(&self, cq: *const Cq) {
        let mut events = lock(&self.events);
        let before = events.len();
        events.retain(|event| *event != CqAddress(cq));
        for _ in events.len()..before {
            // A unit is there for each entry, because both change under this lock.
            let _ = self.counter.read();
        }
        drop(events);
        self.users.fetch_sub(1, Ordering::Release);
    }

    /// Queues an event of `cq` and makes the descriptor readable.
    #[cold]
    pub(super) fn notify(&self, cq: *const Cq) {
        let mut events = lock(&self.events);
        events.push_back(CqAddress(cq));
        // Fails only at 2^64 - 1 events.
        let _ = self.counter.write(1);
    }

    /// Takes the oldest event; `WouldBlock` when there is none.
    pub(super) fn take(&self) -> io::Result<*mut ibv_cq> {
        let mut events = lock(&self.events);
        self.counter.read()?;
        let event = events.pop_front().ok_or(Errno::EIO)?;
        // SAFETY: a CQ removes its events before it is destroyed, under the lock that is held here.
        unsafe { (*event.0).event_taken() };
        Ok(event.0.cast_mut().cast())
    }
}
