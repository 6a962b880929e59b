//! Spin locks and padding: what keeps two cores that share a queue pair out of each other's cache lines.
//!
//! A lock is held for one call at most and few threads want it, so it spins; it yields after a while because the thread
//! that holds it may have lost its core. It is not fair, since a fair lock waits for threads that have lost theirs, but
//! a thread that takes it again and again makes way for one that has waited for long.

use std::cell::UnsafeCell;
use std::hint;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// A value with a pair of cache lines of its own.
///
/// 128 bytes, not 64: the adjacent-line prefetcher of x86 moves lines in pairs, and fields that different threads
/// write must not travel together.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct Padded<T>(pub T);

impl<T> Deref for Padded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Looks at a contended lock before the thread gives its core away.
const SPINS: u32 = 200;
/// Times that a thread gives its core away after unlocking, for one that starves.
const COURTESY: u32 = 64;

/// A lock that spins.
#[repr(C)]
pub(super) struct SpinLock<T> {
    locked: AtomicBool,
    /// Threads that have spun for long.
    starving: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and at most one guard exists at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// A free lock around `value`.
    pub(super) const fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), starving: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline(always)]
    pub(super) fn lock(&self) -> SpinGuard<'_, T> {
        if self.locked.swap(true, Ordering::Acquire) {
            self.wait();
        }
        SpinGuard { lock: self }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        if self.spin() {
            return;
        }
        self.starving.fetch_add(1, Ordering::Relaxed);
        loop {
            thread::yield_now();
            if self.spin() {
                break;
            }
        }
        self.starving.fetch_sub(1, Ordering::Relaxed);
    }

    /// Tries for a while; true when the lock was taken.
    fn spin(&self) -> bool {
        (0..SPINS).any(|_| {
            hint::spin_loop();
            !self.locked.load(Ordering::Relaxed) && !self.locked.swap(true, Ordering::Acquire)
        })
    }

    /// Waits a little, after unlocking, for a starving thread to take the lock.
    #[cold]
    #[inline(never)]
    fn make_way(&self) {
        for _ in 0..COURTESY {
            if self.locked.load(Ordering::Relaxed) || self.starving.load(Ordering::Relaxed) == 0 {
                return;
            }
            thread::yield_now();
        }
    }

    /// Takes the lock if it is free. Sequentially consistent, also when it fails: the caller has usually left a note
    /// for the holder, who looks for notes after [`SpinGuard::unlock_then_look`].
    pub(super) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let free = self.locked.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        // Not `then_some`: a guard made in vain would unlock when it is dropped.
        free.then(|| SpinGuard { lock: self })
    }
}

/// The right to the value, until dropped.
pub(super) struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> SpinGuard<'_, T> {
    /// Unlocks, ordered before every sequentially consistent load that follows: a note left by someone whose
    /// [`SpinLock::try_lock`] failed is seen by those loads.
    pub(super) fn unlock_then_look(self) {
        self.lock.locked.store(false, Ordering::SeqCst);
        std::mem::forget(self);
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one (see `SpinLock`).
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one (see `SpinLock`).
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.locked.store(false, Ordering::Release);
        if self.lock.starving.load(Ordering::Relaxed) > 0 {
            self.lock.make_way();
        }
    }
}

/// Locks a mutex of the control path. Nothing here leaves a value half changed, so a panic elsewhere is no reason to
/// refuse it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_is_not_taken_and_stays_held() {
        let lock = SpinLock::new(1);
        let guard = lock.lock();
        assert!(lock.try_lock().is_none() && lock.try_lock().is_none());
        drop(guard);
        assert_eq!(lock.try_lock().map(|guard| *guard), Some(1));
    }
}
