//! Address handles: ways to a port, as datagrams name them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use ibverbs_sys::{ibv_ah, ibv_ah_attr, ibv_pd};
use nix::errno::Errno;

use super::memory::Pd;

/// A way to a port. Its address is the `ibv_ah` that callers hold. It is copied where a work request must outlive it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AddressHandle {
    ibv: ibv_ah,
    /// The way.
    pub address: ibv_ah_attr,
    /// Tells it from every other handle there was, also one at the same place in memory. Never 0.
    pub serial: u64,
}

static SERIAL: AtomicU64 = AtomicU64::new(1);

impl AddressHandle {
    /// A handle of this way. EINVAL for what a queue pair may not be given either.
    ///
    /// # Safety
    /// `ibv_create_ah(3)`: `pd` is a live domain of this provider.
    pub(super) unsafe fn create(pd: *mut ibv_pd, address: &ibv_ah_attr) -> io::Result<*mut ibv_ah> {
        // SAFETY: the caller's contract.
        let domain = unsafe { Pd::share(pd) };
        if !domain.context.accepts(address) {
            return Err(Errno::EINVAL.into());
        }
        domain.add_user();
        let ibv = ibv_ah { context: domain.context.as_ibv(), pd, handle: 0 };
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        Ok(Box::into_raw(Box::new(Self { ibv, address: *address, serial })).cast())
    }

    /// The handle behind `raw`.
    ///
    /// # Safety
    /// `raw` came from [`AddressHandle::create`] and is not destroyed while the reference is in use.
    pub(super) unsafe fn from_raw<'a>(raw: *mut ibv_ah) -> &'a Self {
        // SAFETY: the caller's contract.
        unsafe { &*raw.cast_const().cast::<Self>() }
    }

    /// Ends the handle.
    ///
    /// # Safety
    /// As for [`AddressHandle::from_raw`], and `raw` is not used again.
    pub(super) unsafe fn destroy(raw: *mut ibv_ah) {
        // SAFETY: made by `Box::into_raw`, and given back here.
        let handle = unsafe { Box::from_raw(raw.cast::<Self>()) };
        // SAFETY: a domain that is used, as by this handle, is not given back.
        unsafe { Pd::share(handle.ibv.pd) }.remove_user();
    }
}
