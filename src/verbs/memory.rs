//! Memory that a device reads and writes, and its registration.

use std::ffi::c_int;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ibverbs_sys::{ibv_access_flags, ibv_mr, ibv_pd};
use serde::{Deserialize, Serialize};

use super::device::{Context, ContextInner};
use super::mapping::{Mapping, Placement};
use super::registration::Registration;
use super::slice::Slice;
use crate::error::{Error, Result, Step};

/// Page-aligned memory of this process, zeroed and prefaulted, unmapped on drop.
///
/// It is meant to be shared with a device, so no reference into it is ever given out: bytes are copied in and out, and
/// each byte is an atomic access. What a copy sees of bytes that a device is writing at the time, or what a device
/// sends of bytes that are being written, is any mix of old and new, byte by byte; nothing worse. A completion taken
/// from a [`Cq`](super::Cq), or a byte seen by [`Region::load_acquire`] that the device wrote last, orders the bytes
/// before it. Copies go a byte at a time (about 1 GB/s and more); they are for filling and checking.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    len: usize,
}

// SAFETY: the region owns its mapping, which belongs to the process and not to a thread.
unsafe impl Send for Region {}
// SAFETY: all access to the bytes through a shared region is atomic.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes, rounded up to whole pages by the system. `mmap(2)`
    ///
    /// # Errors
    /// [`Step::RegisterMemory`]: `len` is 0, or there is not as much memory or address space.
    pub fn new(len: usize) -> Result<Self> {
        Self::placed(len, Placement::default())
    }

    /// The same in pages of a kind, on a node of the machine.
    ///
    /// # Errors
    /// As [`Region::new`]; there is not as much memory of that kind at that place.
    pub fn placed(len: usize, placement: Placement) -> Result<Self> {
        Ok(Self { mapping: Mapping::new(len, placement)?, len })
    }

    /// The same without a page brought in: each comes with the first who touches it, or pins it.
    ///
    /// # Errors
    /// As [`Region::placed`], but for memory that is missed only then.
    pub fn untouched(len: usize, placement: Placement) -> Result<Self> {
        Ok(Self { mapping: Mapping::reserve(len, placement)?, len })
    }

    /// Length in bytes, as asked for.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Start of the memory, for the device.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    /// Copies `bytes` in, starting `offset` bytes into the region.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let (head, words, tail) = words(self.cells(offset, bytes.len()));
        let (first, rest) = bytes.split_at(head.len());
        let (middle, last) = rest.split_at(words.len() * WORD);
        for (cell, &byte) in head.iter().zip(first).chain(tail.iter().zip(last)) {
            cell.store(byte, Ordering::Relaxed);
        }
        for (cell, bytes) in words.iter().zip(middle.chunks_exact(WORD)) {
            let mut word = [0; WORD];
            word.copy_from_slice(bytes);
            cell.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    /// Copies bytes out, starting `offset` bytes into the region.
    ///
    /// # Panics
    /// If the region has not as many.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let (head, words, tail) = words(self.cells(offset, into.len()));
        let (first, rest) = into.split_at_mut(head.len());
        let (middle, last) = rest.split_at_mut(words.len() * WORD);
        for (cell, byte) in head.iter().zip(first).chain(tail.iter().zip(last)) {
            *byte = cell.load(Ordering::Relaxed);
        }
        for (cell, bytes) in words.iter().zip(middle.chunks_exact_mut(WORD)) {
            bytes.copy_from_slice(&cell.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Stores one byte; whoever sees it by [`Region::load_acquire`] sees all that this thread wrote before.
    ///
    /// # Panics
    /// If `offset` is outside the region.
    #[inline]
    pub fn store_release(&self, offset: usize, value: u8) {
        self.cells(offset, 1)[0].store(value, Ordering::Release);
    }

    /// Loads one byte, again each time it is called: the way to wait for the last byte of a message. Where the device
    /// writes in order of address (RC does, on all devices that are known), the bytes before it are there too.
    ///
    /// # Panics
    /// If `offset` is outside the region.
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> u8 {
        self.cells(offset, 1)[0].load(Ordering::Acquire)
    }

    #[inline]
    fn cells(&self, offset: usize, len: usize) -> &[AtomicU8] {
        assert_within(self.len, offset, len);
        // SAFETY: within the mapping, which lives as long as `self`. Atomics may be shared with whoever else writes
        // these bytes, other threads and devices among them; an AtomicU8 has the size and alignment of a byte.
        unsafe { std::slice::from_raw_parts(self.base().as_ptr().add(offset).cast::<AtomicU8>(), len) }
    }
}

/// Bytes that are copied at a time.
const WORD: usize = size_of::<AtomicU64>();

/// The same bytes as whole words, with what stands before and behind them.
fn words(cells: &[AtomicU8]) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
    // SAFETY: any eight bytes are a valid AtomicU64, `align_to` gives only aligned ones, and both types may be shared.
    // Who writes a word while it is copied leaves some mixture of bytes, as for single bytes; the caller waits for the
    // completion that says nobody does.
    unsafe { cells.align_to() }
}

/// Panics unless `len` bytes from `offset` are within `whole` bytes.
#[inline]
pub(super) fn assert_within(whole: usize, offset: usize, len: usize) {
    if offset > whole || len > whole - offset {
        out_of_bounds(whole, offset, len);
    }
}

#[cold]
#[inline(never)]
fn out_of_bounds(whole: usize, offset: usize, len: usize) -> ! {
    panic!("{len} bytes from offset {offset} are outside a region of {whole} bytes");
}

/// What a peer may do with registered memory, or through a queue pair. Writing by the own device is always allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// RDMA READ by the peer.
    pub remote_read: bool,
    /// RDMA WRITE by the peer.
    pub remote_write: bool,
    /// Atomics by the peer.
    pub remote_atomic: bool,
}

impl Access {
    /// The flags of `ibv_access_flags`.
    pub(super) fn flags(self) -> c_int {
        let mut flags = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        for (given, flag) in [
            (self.remote_read, ibv_access_flags::IBV_ACCESS_REMOTE_READ),
            (self.remote_write, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
            (self.remote_atomic, ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC),
        ] {
            if given {
                flags |= flag;
            }
        }
        flags.0 as c_int
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("local write")?;
        for (given, name) in
            [(self.remote_read, "read"), (self.remote_write, "write"), (self.remote_atomic, "atomic")]
        {
            if given {
                write!(f, ", remote {name}")?;
            }
        }
        Ok(())
    }
}

/// Protection domain: memory and queue pairs of the same one work together. Clones share it; it is freed when the last
/// clone and all that was made in it are gone.
#[derive(Debug, Clone)]
pub struct Pd(pub(super) Arc<PdInner>);

#[derive(Debug)]
pub(super) struct PdInner {
    pub(super) raw: *mut ibv_pd,
    pub(super) context: Context,
}

// SAFETY: verbs objects may be used from any thread, and from several at once (`ibv_alloc_td(3)`).
unsafe impl Send for PdInner {}
// SAFETY: as above.
unsafe impl Sync for PdInner {}

impl PdInner {
    pub(super) fn context(&self) -> &ContextInner {
        &self.context.0
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: the domain is live and freed once; queue pairs and memory of it held it, so they are gone.
        let freed = unsafe { self.context().provider.dealloc_pd(self.raw) };
        if freed.is_err() {
            std::mem::forget(self.context.clone());
        }
        debug_assert!(freed.is_ok(), "ibv_dealloc_pd: {freed:?}");
    }
}

impl Context {
    /// Makes a protection domain. `ibv_alloc_pd(3)`
    ///
    /// # Errors
    /// [`Step::RegisterMemory`]: the device has none left.
    pub fn alloc_pd(&self) -> Result<Pd> {
        // SAFETY: the context is open and of this provider.
        let raw = unsafe { self.0.provider.alloc_pd(self.0.raw) }.map_err(|error| {
            Error::failed(Step::RegisterMemory, format!("ibv_alloc_pd({}): {error}", self.device().name()))
        })?;
        Ok(Pd(Arc::new(PdInner { raw, context: self.clone() })))
    }
}

impl Pd {
    /// Both are clones of one domain.
    pub(super) fn is_same(&self, other: &Pd) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Registers memory with the device, which pins it. `ibv_reg_mr(3)`
    ///
    /// The registration owns the memory: it lives until the last clone of the [`Mr`], and every work request bound to
    /// it, is gone and the device has let go of it.
    ///
    /// # Errors
    /// [`Step::RegisterMemory`]: longer than the device registers at once, or than this process may lock. The memory is
    /// unmapped then.
    pub fn register(&self, region: Region, access: Access) -> Result<Mr> {
        self.register_as(region, access, Registration::default())
    }
}

/// Registered memory. Clones share it; the registration ends when the last clone and the last work request bound to it
/// are gone, and the memory is unmapped after that.
#[derive(Debug, Clone)]
pub struct Mr(pub(super) Arc<MrInner>);

#[derive(Debug)]
pub(super) struct MrInner {
    pub(super) raw: *mut ibv_mr,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
    pub(super) region: ManuallyDrop<Region>,
    pub(super) pd: Pd,
}

// SAFETY: verbs objects may be used from any thread, and from several at once (`ibv_alloc_td(3)`); the region is Send
// and Sync by itself.
unsafe impl Send for MrInner {}
// SAFETY: as above.
unsafe impl Sync for MrInner {}

impl Drop for MrInner {
    fn drop(&mut self) {
        // SAFETY: the registration is live and ended once. Work requests still under way may name its key; they fail
        // with a protection error then.
        let ended = unsafe { self.pd.0.context().provider.dereg_mr(self.raw) };
        if ended.is_ok() {
            // SAFETY: dropped once, here. A successful ibv_dereg_mr is the fence: the device reads and writes this
            // memory no more, so it may be unmapped.
            unsafe { ManuallyDrop::drop(&mut self.region) };
        } else {
            // The device may still reach the memory: it stays mapped, and what the registration stands on stays open.
            std::mem::forget(self.pd.clone());
        }
        debug_assert!(ended.is_ok(), "ibv_dereg_mr: {ended:?}");
    }
}

impl Mr {
    /// The memory.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// The key for the own device.
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// The key for a peer.
    pub fn rkey(&self) -> u32 {
        self.0.rkey
    }

    /// Address of the first byte, as devices name it.
    pub fn addr(&self) -> u64 {
        self.0.region.base().as_ptr() as u64
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.0.region.len()
    }

    /// A part of the memory, for a work request.
    ///
    /// # Panics
    /// If it is not within the region, or is longer than 2 GiB, the longest message of any device.
    pub fn slice(&self, offset: usize, len: usize) -> Slice {
        Slice::new(self.clone(), offset, len)
    }

    /// `len` bytes from `offset` under this key, neither of which is checked here: the device is to judge. It refuses
    /// what the key does not give, so no memory can be reached but that of regions of the same protection domain.
    ///
    /// # Panics
    /// If it is longer than 2 GiB, the longest message of any device; when it is to be sent inline, which no device
    /// judges, and is not within the region.
    pub fn claim(&self, lkey: u32, offset: usize, len: usize) -> Slice {
        Slice::claim(self.clone(), lkey, offset, len)
    }

    /// What a peer must know to read or write the memory from `offset` on.
    ///
    /// # Panics
    /// If `offset` is beyond the end.
    pub fn remote(&self, offset: usize) -> RemoteSlice {
        assert_within(self.len(), offset, 0);
        RemoteSlice { addr: self.addr() + offset as u64, rkey: self.0.rkey }
    }

    pub(super) fn pd(&self) -> &Pd {
        &self.0.pd
    }
}

/// Memory of a peer: where it begins and the key that opens it. The peer's device checks both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteSlice {
    /// Address in the peer's process.
    pub addr: u64,
    /// Its key.
    pub rkey: u32,
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_region_is_zeroed_and_page_aligned() {
        let region = Region::new(5000).unwrap();
        assert_eq!(region.len(), 5000);
        assert_eq!(region.base().as_ptr() as usize % 4096, 0);
        let mut bytes = [1; 5000];
        region.read(0, &mut bytes);
        assert_eq!(bytes, [0; 5000]);
    }

    #[test]
    fn bytes_come_back_and_neighbours_stay() {
        let region = Region::new(16).unwrap();
        region.write(3, b"verbs");
        region.write(16, b"");
        region.store_release(15, 7);
        let mut bytes = [0; 16];
        region.read(0, &mut bytes);
        assert_eq!(&bytes, b"\0\0\0verbs\0\0\0\0\0\0\0\x07");
        assert_eq!((region.load_acquire(3), region.load_acquire(15)), (b'v', 7));
    }

    #[test]
    fn nothing_is_read_or_written_out_of_bounds() {
        let region = Region::new(16).unwrap();
        let panics = |what: &dyn Fn()| catch_unwind(AssertUnwindSafe(what)).is_err();
        assert!(panics(&|| region.write(12, &[1; 5])));
        assert!(panics(&|| region.write(17, &[])));
        assert!(panics(&|| region.read(usize::MAX, &mut [0; 2])));
        assert!(panics(&|| region.store_release(16, 1)));
        assert!(panics(&|| _ = region.load_acquire(16)));
        let mut bytes = [1; 16];
        region.read(0, &mut bytes);
        assert_eq!(bytes, [0; 16]);
    }

    #[test]
    fn what_cannot_be_mapped_is_an_error() {
        assert_eq!(Region::new(0).unwrap_err().step, Step::RegisterMemory);
        let error = Region::new(1 << 60).unwrap_err();
        assert!(error.message.starts_with("mmap(1073741824 GiB of memory): "), "{}", error.message);
    }

    #[test]
    fn access_is_told_and_passed_on() {
        let all = Access { remote_read: true, remote_write: true, remote_atomic: true };
        assert_eq!((Access::default().flags(), all.flags()), (1, 15));
        assert_eq!(all.to_string(), "local write, remote read, remote write, remote atomic");
    }
}
