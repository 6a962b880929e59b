//! Going through the slots of a region, message by message.

/// Equal parts of a region, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// Where the first one begins, in bytes from the region's start.
    pub offset: usize,
    /// Bytes from one to the next.
    pub stride: usize,
    /// How many.
    pub count: usize,
}

/// Addresses that a request goes through in turn.
#[derive(Debug)]
pub(super) struct Cycle {
    stride: u64,
    first: u64,
    end: u64,
}

impl Cycle {
    /// Stays at every address.
    pub(super) const NONE: Self = Self { stride: 0, first: 0, end: u64::MAX };

    /// Through the slots of a region that begins at `base`, where a slice may begin `last_offset` bytes behind that at
    /// the latest.
    ///
    /// # Panics
    /// If there is no slot of this number, or the last one begins too late.
    pub(super) fn new(base: u64, last_offset: usize, slots: Slots, slot: usize) -> Self {
        let Slots { offset, stride, count } = slots;
        assert!(slot < count, "slot {slot} of {count} does not exist");
        let last = stride.checked_mul(count - 1).and_then(|last| last.checked_add(offset));
        assert!(
            last.is_some_and(|last| last <= last_offset),
            "{count} slots, one every {stride} bytes from {offset} on, do not fit: the last may begin at {last_offset}"
        );
        let first = base + offset as u64;
        Self { stride: stride as u64, first, end: first + (stride * count) as u64 }
    }

    /// Where a slot begins.
    ///
    /// # Panics
    /// If there is no slot of this number.
    pub(super) fn slot(&self, slot: usize) -> u64 {
        let addr = self.first + slot as u64 * self.stride;
        assert!(addr < self.end, "slot {slot} does not exist");
        addr
    }

    /// The address behind this one, which is one of the cycle.
    #[inline]
    pub(super) fn after(&self, addr: u64) -> u64 {
        let next = addr + self.stride;
        if next == self.end { self.first } else { next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_slot_is_followed_by_the_first() {
        let cycle = Cycle::new(4096, 300, Slots { offset: 0, stride: 128, count: 3 }, 2);
        assert_eq!([4096, 4224, 4352].map(|addr| cycle.after(addr)), [4224, 4352, 4096]);
        assert_eq!((cycle.slot(0), cycle.slot(2)), (4096, 4352));
        let behind = Cycle::new(4096, 556, Slots { offset: 256, stride: 128, count: 3 }, 0);
        assert_eq!((behind.slot(0), behind.after(4608)), (4352, 4352));
        assert_eq!(Cycle::NONE.after(4096), 4096);
    }

    #[test]
    #[should_panic = "3 slots, one every 128 bytes from 128 on, do not fit: the last may begin at 383"]
    fn slots_beyond_the_region_are_refused() {
        Cycle::new(4096, 383, Slots { offset: 128, stride: 128, count: 3 }, 0);
    }

    #[test]
    #[should_panic = "slot 3 of 3 does not exist"]
    fn a_slot_that_does_not_exist_is_refused() {
        Cycle::new(4096, 1000, Slots { offset: 0, stride: 128, count: 3 }, 3);
    }
}
