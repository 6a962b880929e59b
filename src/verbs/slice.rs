//! Parts of registered memory as work requests name them.

use std::ffi::c_int;
use std::ptr::NonNull;

use ibverbs_sys::ibv_sge;

use super::cycle::{Cycle, Slots};
use super::memory::{Mr, Pd, assert_within};

/// Part of a memory region; keeps it registered.
#[derive(Debug, Clone)]
pub struct Slice {
    mr: Mr,
    lkey: u32,
    offset: usize,
    len: u32,
}

/// The longest message there is: 2^31 bytes.
const LONGEST: usize = 1 << 31;

impl Slice {
    pub(super) fn new(mr: Mr, offset: usize, len: usize) -> Self {
        assert_within(mr.len(), offset, len);
        let lkey = mr.lkey();
        Self::claim(mr, lkey, offset, len)
    }

    /// See [`Mr::claim`].
    pub(super) fn claim(mr: Mr, lkey: u32, offset: usize, len: usize) -> Self {
        assert!(len <= LONGEST, "{len} bytes are more than a message can have");
        Self { mr, lkey, offset, len: len as u32 }
    }

    /// # Panics
    /// If it is a claim to bytes outside of its region.
    pub(super) fn assert_within_region(&self) {
        assert_within(self.mr.len(), self.offset, self.len as usize);
    }

    fn sge(&self) -> ibv_sge {
        ibv_sge { addr: self.mr.addr().wrapping_add(self.offset as u64), length: self.len, lkey: self.lkey }
    }
}

/// So that a work request of one slice is made from the slice alone.
impl From<Slice> for Vec<Slice> {
    fn from(slice: Slice) -> Self {
        vec![slice]
    }
}

/// Where a request's slice may be moved to.
#[derive(Debug)]
struct Bounds {
    base: u64,
    last_offset: usize,
    mr: Mr,
}

impl Bounds {
    fn of(slice: &Slice) -> Self {
        Self {
            base: slice.mr.addr(),
            last_offset: slice.mr.len().saturating_sub(slice.len as usize),
            mr: slice.mr.clone(),
        }
    }

    #[inline]
    fn address(&self, offset: usize) -> u64 {
        if offset > self.last_offset {
            self.beyond(offset);
        }
        self.base + offset as u64
    }

    #[cold]
    #[inline(never)]
    fn beyond(&self, offset: usize) -> ! {
        panic!(
            "a slice at offset {offset} is outside a region of {} bytes, where it begins at {} at the latest",
            self.mr.len(),
            self.last_offset
        );
    }
}

/// The scatter/gather elements of a work request, at addresses that stay. They keep the memory registered.
///
/// An element of length 0 means 2^31 bytes to some devices, so empty slices stand behind the others and are not
/// counted.
#[derive(Debug)]
pub(super) struct Elements {
    list: NonNull<[ibv_sge]>,
    /// Those that have bytes.
    count: c_int,
    total: u64,
    /// The first slice, one load nearer to the loops than the others.
    first: NonNull<ibv_sge>,
    bounds: Bounds,
    others: Box<[(NonNull<ibv_sge>, Bounds)]>,
}

// SAFETY: the list is its own, and nothing in it belongs to a thread.
unsafe impl Send for Elements {}
// SAFETY: shared elements are only pointed to, not read.
unsafe impl Sync for Elements {}

impl Drop for Elements {
    fn drop(&mut self) {
        // SAFETY: came from a leaked box and is freed once. Work requests that point to it belong to the same owner,
        // and no call is reading them: each borrowed that owner.
        drop(unsafe { Box::from_raw(self.list.as_ptr()) });
    }
}

impl Elements {
    /// # Panics
    /// If there are no slices, or more of them than `most`; if they are together longer than a message can be; if the
    /// memory is of another domain than `pd`.
    pub(super) fn new(slices: &[Slice], pd: &Pd, most: u32) -> Self {
        assert!(!slices.is_empty(), "a work request needs a slice of memory, if of length 0");
        let same_domain = slices.iter().all(|slice| slice.mr.pd().is_same(pd));
        assert!(same_domain, "the memory is of another protection domain than the queue");
        let total: u64 = slices.iter().map(|slice| u64::from(slice.len)).sum();
        assert!(total <= LONGEST as u64, "{total} bytes are more than a message can have");
        let (full, empty): (Vec<_>, Vec<_>) =
            (0..slices.len()).partition(|&index| slices.get(index).is_some_and(|slice| slice.len > 0));
        assert!(full.len() <= most as usize, "{} slices are more than the {most} granted", full.len());
        let count = full.len() as c_int;
        let order: Vec<usize> = full.into_iter().chain(empty).collect();
        let elements: Box<[ibv_sge]> = order.iter().map(|&index| slices[index].sge()).collect();
        let list = NonNull::from(Box::leak(elements));
        let place = |slice: usize| {
            let place = order.iter().position(|&index| index == slice).unwrap_or_default();
            // SAFETY: within the list, which is never empty.
            unsafe { list.cast::<ibv_sge>().add(place) }
        };
        Self {
            list,
            count,
            total,
            first: place(0),
            bounds: Bounds::of(&slices[0]),
            others: (1..slices.len()).map(|index| (place(index), Bounds::of(&slices[index]))).collect(),
        }
    }

    /// For `sg_list` of a work request.
    pub(super) fn list(&self) -> *mut ibv_sge {
        self.list.cast().as_ptr()
    }

    /// For `num_sge`.
    pub(super) fn count(&self) -> c_int {
        self.count
    }

    /// Bytes of all together.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Moves the first slice to `offset` bytes from the start of its region.
    ///
    /// # Panics
    /// If it would not be within.
    #[inline]
    pub(super) fn move_first(&mut self, offset: usize) {
        let address = self.bounds.address(offset);
        // SAFETY: within the list, which is alive and ours alone.
        unsafe { (*self.first.as_ptr()).addr = address };
    }

    /// The address of the first slice.
    #[inline]
    pub(super) fn first_address(&self) -> u64 {
        // SAFETY: within the list, which is alive and ours alone.
        unsafe { (*self.first.as_ptr()).addr }
    }

    /// Moves the first slice along its cycle.
    ///
    /// # Safety
    /// The address is one of a cycle of [`Elements::cycle`].
    #[inline]
    pub(super) unsafe fn put_first(&mut self, address: u64) {
        // SAFETY: within the list, which is alive and ours alone.
        unsafe { (*self.first.as_ptr()).addr = address };
    }

    /// Divides the region of the first slice, and moves that to a slot. Returns the way through the slots.
    ///
    /// # Panics
    /// If there is no such slot, or the slice would not be within the region in the last one.
    pub(super) fn cycle(&mut self, slots: Slots, slot: usize) -> Cycle {
        let cycle = Cycle::new(self.bounds.base, self.bounds.last_offset, slots, slot);
        self.move_first(slots.offset + slot * slots.stride);
        cycle
    }

    /// Where the region of the first slice begins.
    pub(super) fn base(&self) -> u64 {
        self.bounds.base
    }

    /// Moves a slice by its index, in the order in which they were given.
    ///
    /// # Panics
    /// If there is no such slice, or it would not be within its region.
    #[inline]
    pub(super) fn move_slice(&mut self, index: usize, offset: usize) {
        let Some(other) = index.checked_sub(1) else { return self.move_first(offset) };
        let (element, bounds) = &self.others[other];
        let address = bounds.address(offset);
        // SAFETY: within the list, which is alive and ours alone.
        unsafe { (*element.as_ptr()).addr = address };
    }
}
