//! A ring of slots that are reused in turn, addressed by an ever-growing position.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Power-of-two many slots. Memory that nobody wrote is not yet backed by pages, so a deep ring costs what is used.
pub(super) struct Ring<T> {
    slots: NonNull<T>,
    mask: u32,
}

// SAFETY: the ring owns its slots and hands out shared references only.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above; what slots allow through a shared reference is theirs to say.
unsafe impl<T: Sync> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// A ring of `slots` slots, all zeroes.
    ///
    /// # Safety
    /// Zeroes must be a value of `T`.
    ///
    /// # Panics
    /// Unless `slots` is a power of two.
    pub(super) unsafe fn zeroed(slots: u32) -> Self {
        const { assert!(size_of::<T>() > 0 && !std::mem::needs_drop::<T>()) };
        assert!(slots.is_power_of_two());
        let layout = Self::layout(slots);
        // SAFETY: neither factor of the size is zero.
        let memory = unsafe { alloc_zeroed(layout) }.cast::<T>();
        let Some(slots_at) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Self { slots: slots_at, mask: slots - 1 }
    }

    fn layout(slots: u32) -> Layout {
        Layout::array::<T>(slots as usize).expect("rings are far smaller than the address space")
    }

    /// The slot of this position.
    #[inline(always)]
    pub(super) fn get(&self, position: u32) -> &T {
        // SAFETY: the mask keeps the index below the number of slots, which live as long as the ring.
        unsafe { self.slots.add((position & self.mask) as usize).as_ref() }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with the same layout; slots need no drop (asserted there).
        unsafe { dealloc(self.slots.as_ptr().cast(), Self::layout(self.mask + 1)) };
    }
}
