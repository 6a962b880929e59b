//! Time that passes only as a test says, and devices that keep to it.
//!
//! On a thread with virtual time a device that was told to be slow waits for nobody: what it would have waited is added to
//! the clock. A test that drives both ends on this thread sees that delay and no other, however fast the machine is and
//! whatever else runs on it. Other threads go by the real clock.

use std::cell::Cell;
use std::ffi::OsStr;
use std::marker::PhantomData;

use super::faults::Faults;

thread_local! {
    /// In ns; `None` while the thread goes by the real clock.
    static NOW: Cell<Option<u64>> = const { Cell::new(None) };
    static FAULTS: Cell<Option<Faults>> = const { Cell::new(None) };
}

/// Virtual time on this thread, for as long as this lives.
pub(crate) struct VirtualTime {
    /// It stays where its clock is.
    _thread: PhantomData<*const ()>,
}

impl VirtualTime {
    /// Begins at 0.
    pub(crate) fn begin() -> Self {
        let before = NOW.replace(Some(0));
        assert!(before.is_none(), "a thread has one clock");
        Self { _thread: PhantomData }
    }

    /// Since it began.
    pub(crate) fn ns(&self) -> u64 {
        NOW.get().unwrap_or(0)
    }

    /// Something takes this long.
    pub(crate) fn pass(&self, ns: u64) {
        Self::passes(ns);
    }

    /// Adds to the clock, if this thread has one.
    pub(super) fn passes(ns: u64) -> bool {
        let Some(now) = NOW.get() else { return false };
        NOW.set(Some(now + ns));
        true
    }

    /// Runs `open`; the devices that it opens misbehave as these words say. The environment, which says so otherwise, is
    /// that of all tests of the process.
    pub(crate) fn misbehaving<R>(&self, words: &str, open: impl FnOnce() -> R) -> R {
        FAULTS.set(Some(Faults::parse(OsStr::new(words), true).expect("words of the device")));
        let opened = open();
        FAULTS.set(None);
        opened
    }

    /// What devices opened now are told.
    pub(super) fn faults() -> Option<Faults> {
        FAULTS.get()
    }
}

impl Drop for VirtualTime {
    fn drop(&mut self) {
        NOW.set(None);
        FAULTS.set(None);
    }
}
