//! Asynchronous events: what a device has to say outside of any completion queue.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

use ibverbs_sys::ibv_event_type;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::sync::lock;

/// What happened, and to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AsyncEvent {
    pub kind: ibv_event_type,
    /// Of the queue pair or port it is about; 0 if it is about neither.
    pub number: u32,
    /// Address of the object it is about, only to be compared; 0 for the device.
    pub object: usize,
}

/// The events of a context that nobody took.
pub(super) struct AsyncEvents {
    /// One unit for each entry of `events`; both change under its lock.
    counter: EventFd,
    events: Mutex<VecDeque<AsyncEvent>>,
}

impl AsyncEvents {
    /// None yet.
    pub(super) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE;
        Ok(Self { counter: EventFd::from_value_and_flags(0, flags)?, events: Mutex::new(VecDeque::new()) })
    }

    /// Adds an event and makes the descriptor readable.
    #[cold]
    pub(super) fn raise(&self, event: AsyncEvent) {
        let mut events = lock(&self.events);
        events.push_back(event);
        // Fails only at 2^64 - 1 events.
        let _ = self.counter.write(1);
    }

    /// Takes the oldest event; `WouldBlock` when there is none.
    pub(super) fn take(&self) -> io::Result<AsyncEvent> {
        let mut events = lock(&self.events);
        self.counter.read()?;
        events.pop_front().ok_or_else(|| Errno::EIO.into())
    }

    /// An object is gone, and its events with it.
    pub(super) fn forget(&self, object: usize) {
        let mut events = lock(&self.events);
        let before = events.len();
        events.retain(|event| event.object != object);
        for _ in events.len()..before {
            // A unit is there for each entry, because both change under this lock.
            let _ = self.counter.read();
        }
    }

    /// The descriptor, which does not block.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.counter.as_fd()
    }
}
