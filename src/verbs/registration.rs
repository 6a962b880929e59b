//! What may be asked of a registration, besides who may do what with the memory.

use std::ffi::c_int;

use ibverbs_sys::ibv_access_flags;

/// How memory is registered, beyond who may do what with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registration {
    /// The device may let its writes overtake each other on the way to memory (`IBV_ACCESS_RELAXED_ORDERING`). Kernels
    /// and devices that cannot do that leave it out without a word.
    pub relaxed_ordering: bool,
    /// Pages are not pinned; the device has them brought in when it meets one that is not there
    /// (`IBV_ACCESS_ON_DEMAND`).
    pub on_demand: bool,
}

impl Registration {
    pub(super) fn flags(self) -> c_int {
        let mut flags = ibv_access_flags(0);
        if self.relaxed_ordering {
            flags |= ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
        }
        if self.on_demand {
            flags |= ibv_access_flags::IBV_ACCESS_ON_DEMAND;
        }
        flags.0 as c_int
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_memory_is_registered_adds_to_the_flags() {
        let how = Registration { relaxed_ordering: true, on_demand: true };
        assert_eq!((Registration::default().flags(), how.flags()), (0, 1 << 20 | 1 << 6));
    }
}
