//! Protection domains, memory regions, the table of keys, and the copies a device makes.
//!
//! A data path looks a key up and uses the memory behind it while it holds the lock of its send queue. So whoever
//! takes a region out of the table, and then takes and drops the lock of every send queue once, knows that nobody
//! touches that memory any more. This costs the data path nothing.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use ibverbs_sys::{ibv_access_flags, ibv_mr, ibv_pd, ibv_sge};
use nix::errno::Errno;

use super::device::Context;
use super::limits;
use super::numbers;
use super::sync::lock;

/// A protection domain. Its address is the `ibv_pd` that callers hold.
#[repr(C)]
pub(super) struct Pd {
    ibv: ibv_pd,
    /// The device it belongs to.
    pub context: Arc<Context>,
    /// Memory regions and queue pairs.
    users: AtomicU32,
}

// SAFETY: `ibv` is written before the domain is shared and only read afterwards; the rest synchronises itself.
unsafe impl Sync for Pd {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Pd {}

impl Pd {
    /// A domain of `context`.
    pub(super) fn allocate(context: Arc<Context>) -> *mut ibv_pd {
        context.add_child();
        let ibv = ibv_pd { context: context.as_ibv(), handle: 0 };
        Arc::into_raw(Arc::new(Self { ibv, context, users: AtomicU32::new(0) })).cast_mut().cast()
    }

    /// Another owner of the domain behind `raw`.
    ///
    /// # Safety
    /// `raw` came from [`Pd::allocate`] and was not given back.
    pub(super) unsafe fn share(raw: *mut ibv_pd) -> Arc<Self> {
        let raw = raw.cast_const().cast::<Self>();
        // SAFETY: the strong count that `allocate` gave to the caller is still there.
        unsafe {
            Arc::increment_strong_count(raw);
            Arc::from_raw(raw)
        }
    }

    /// Gives the domain back. EBUSY while something uses it.
    ///
    /// # Safety
    /// As for [`Pd::share`], and `raw` is not used again when this succeeds.
    pub(super) unsafe fn deallocate(raw: *mut ibv_pd) -> io::Result<()> {
        // SAFETY: the caller's contract.
        let pd = unsafe { Self::share(raw) };
        if pd.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY.into());
        }
        pd.context.remove_child();
        // SAFETY: the strong count that `allocate` gave to the caller, who gives it back here.
        drop(unsafe { Arc::from_raw(raw.cast_const().cast::<Self>()) });
        Ok(())
    }

    /// The address that its objects show in their `pd` field, and that keys are compared by.
    pub(super) fn as_ibv(&self) -> *mut ibv_pd {
        (&raw const self.ibv).cast_mut()
    }

    /// Something uses the domain.
    pub(super) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// That something is gone.
    pub(super) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::Release);
    }
}

/// A memory region; what a lookup needs is in its first cache line. Its address is the `ibv_mr` that callers hold.
#[repr(C, align(64))]
struct Mr {
    ibv: ibv_mr,
    access: u32,
    pd: Arc<Pd>,
}

/// The regions by the index in their keys. Index 0 is not used, so that 0 is nobody's key.
static TABLE: [AtomicPtr<Mr>; limits::MAX_MR] = [const { AtomicPtr::new(ptr::null_mut()) }; limits::MAX_MR];

/// Indexes that are free, each with the generation of its next key.
struct FreeKeys {
    /// The lowest index never used.
    fresh: u32,
    /// Generation of the first key of an index.
    first_generation: u8,
    /// Those used before; the one freed first comes first, so that an old key stays invalid for long.
    freed: VecDeque<(u32, u8)>,
}

static FREE: Mutex<Option<FreeKeys>> = Mutex::new(None);

/// Takes a free key. ENOMEM when there is none.
fn take_key() -> io::Result<u32> {
    let mut free = lock(&FREE);
    // Another process has other keys: whoever mixes ends of two processes up gets an error and not a coincidence.
    let free = free.get_or_insert_with(|| FreeKeys {
        fresh: 1,
        first_generation: RandomState::new().hash_one(0) as u8,
        freed: VecDeque::new(),
    });
    let (index, generation) = if (free.fresh as usize) < limits::MAX_MR {
        free.fresh += 1;
        (free.fresh - 1, free.first_generation)
    } else {
        free.freed.pop_front().ok_or(Errno::ENOMEM)?
    };
    Ok(index << 8 | u32::from(generation))
}

const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
const REMOTE_READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
const REMOTE_ATOMIC: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
const RELAXED_ORDERING: u32 = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;

const ON_DEMAND: u32 = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;

/// Registers memory.
///
/// # Safety
/// `ibv_reg_mr(3)`: `pd` is live, and the memory stays mapped until [`deregister`] has returned.
pub(super) unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut u8,
    len: usize,
    access: c_int,
) -> io::Result<*mut ibv_mr> {
    // SAFETY: the caller's contract.
    let pd = unsafe { Pd::share(pd) };
    let access = access as u32;
    let pages = if pd.context.faults.no_odp { 0 } else { ON_DEMAND };
    let known = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | RELAXED_ORDERING | pages;
    let writes_remotely = access & (REMOTE_WRITE | REMOTE_ATOMIC) != 0;
    if len == 0
        || addr.addr().checked_add(len).is_none()
        || access & !known != 0
        || (writes_remotely && access & LOCAL_WRITE == 0)
    {
        return Err(Errno::EINVAL.into());
    }
    let faults = &pd.context.faults;
    if faults.no_memlock || len > faults.memlock as usize && access & ON_DEMAND == 0 {
        return Err(Errno::ENOMEM.into());
    }
    let key = take_key()?;
    let (context, domain) = (pd.context.as_ibv(), pd.as_ibv());
    pd.add_user();
    let ibv = ibv_mr {
        context,
        pd: domain,
        addr: addr.cast(),
        length: len - usize::from(pd.context.faults.short_mr),
        handle: key >> 8,
        lkey: key,
        // The low bits are a generation: the key of a region that is gone.
        rkey: key ^ u32::from(pd.context.faults.wrong_rkey),
    };
    let mr = Box::into_raw(Box::new(Mr { ibv, access, pd }));
    TABLE[(key >> 8) as usize].store(mr, Ordering::Release);
    Ok(mr.cast())
}

/// Withdraws a region's keys and waits until no device touches its memory.
///
/// # Safety
/// `mr` came from [`register`], was not deregistered, and is not used again.
pub(super) unsafe fn deregister(mr: *mut ibv_mr) {
    let mr = mr.cast::<Mr>();
    // SAFETY: the caller's contract: the region is live until the box is taken back below.
    let key = unsafe { (*mr).ibv.lkey };
    TABLE[(key >> 8) as usize].store(ptr::null_mut(), Ordering::Release);
    numbers::for_each(|qp| qp.wait_for_send_queue());
    // SAFETY: made by `Box::into_raw`; no lookup finds it any more, and those that did are over.
    let mr = unsafe { Box::from_raw(mr) };
    mr.pd.remove_user();
    if let Some(free) = lock(&FREE).as_mut() {
        free.freed.push_back((key >> 8, (key as u8).wrapping_add(1)));
    }
}

/// What a work request wants to do with memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// The device reads it for its own side.
    Gather,
    /// The device writes it for its own side.
    Scatter,
    /// The other side writes it.
    RemoteWrite,
    /// The other side reads it.
    RemoteRead,
    /// The other side changes it atomically.
    RemoteAtomic,
}

impl Use {
    /// Access flags the region must have.
    const fn needs(self) -> u32 {
        match self {
            Use::Gather => 0,
            Use::Scatter => LOCAL_WRITE,
            Use::RemoteWrite => REMOTE_WRITE,
            Use::RemoteRead => REMOTE_READ,
            Use::RemoteAtomic => REMOTE_ATOMIC,
        }
    }

    /// Access flags that the queue pair, too, must have.
    pub(super) const fn needs_of_queue_pair(self) -> u32 {
        match self {
            Use::Gather | Use::Scatter => 0,
            remote => remote.needs(),
        }
    }
}

/// A stretch of memory that a key was found to cover.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    /// Its first byte.
    pub at: *mut u8,
    /// Bytes.
    pub len: usize,
}

/// Finds the memory that `key` gives in `pd`; `None` for a stale or foreign key, bounds, or a right it does not have.
///
/// # Safety
/// The caller holds the lock of a send queue that [`numbers`] knows, for as long as it uses the memory.
#[inline]
pub(super) unsafe fn find(pd: *const ibv_pd, key: u32, addr: u64, len: usize, to: Use) -> Option<Piece> {
    let mr = TABLE.get((key >> 8) as usize)?.load(Ordering::Acquire);
    // SAFETY: regions are freed only after every send queue's lock was taken (see the module's documentation).
    let mr = unsafe { mr.as_ref() }?;
    let offset = addr.wrapping_sub(mr.ibv.addr.addr() as u64) as usize;
    let fits = offset <= mr.ibv.length && len <= mr.ibv.length - offset;
    if mr.ibv.lkey != key || !ptr::eq(mr.ibv.pd, pd) || !fits || mr.access & to.needs() != to.needs() {
        return None;
    }
    // SAFETY: inside the registered memory, whose pointer the caller of `register` vouched for.
    Some(Piece { at: unsafe { mr.ibv.addr.cast::<u8>().add(offset) }, len })
}

/// The memory of one work request, in the order of its scatter-gather entries.
///
/// It is filled where it stands and not returned: a copy of what was written a moment ago, in larger steps than it was
/// written in, waits for the writes to reach the cache.
pub(super) struct Pieces {
    list: [MaybeUninit<Piece>; limits::MAX_SGE],
    count: usize,
    /// Bytes of all together.
    pub total: u64,
}

impl Pieces {
    /// No memory.
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { list: [MaybeUninit::uninit(); limits::MAX_SGE], count: 0, total: 0 }
    }

    /// Appends a piece.
    ///
    /// # Panics
    /// When there are [`limits::MAX_SGE`] already.
    #[inline(always)]
    pub(super) fn push(&mut self, piece: Piece) {
        self.list[self.count].write(piece);
        self.count += 1;
        self.total += piece.len as u64;
    }

    /// Appends the memory that the entries name; `None` when a key does not give it. Entries of no length are skipped.
    ///
    /// # Safety
    /// As for [`find`].
    #[inline]
    pub(super) unsafe fn find(&mut self, pd: *const ibv_pd, entries: &[ibv_sge], to: Use) -> Option<()> {
        for entry in entries {
            if entry.length > 0 {
                // SAFETY: the caller's contract.
                self.push(unsafe { find(pd, entry.lkey, entry.addr, entry.length as usize, to) }?);
            }
        }
        Some(())
    }

    /// The same memory without its first bytes.
    pub(super) fn skip(&self, mut bytes: usize) -> Self {
        let mut rest = Self::new();
        for piece in self.as_slice() {
            let skipped = bytes.min(piece.len);
            bytes -= skipped;
            if skipped < piece.len {
                // SAFETY: inside the piece.
                rest.push(Piece { at: unsafe { piece.at.add(skipped) }, len: piece.len - skipped });
            }
        }
        rest
    }

    /// In order.
    #[inline(always)]
    pub(super) fn as_slice(&self) -> &[Piece] {
        // SAFETY: `push` has written that many.
        unsafe { slice::from_raw_parts(self.list.as_ptr().cast(), self.count) }
    }
}

/// Copies `from` to `to` in order, until `from` ends. The last byte is published: whoever sees it with an acquire
/// load sees all.
///
/// # Safety
/// Both are valid memory, `to` may be written, and it is at least as long as `from`.
#[inline]
pub(super) unsafe fn copy(from: &[Piece], to: &[Piece]) {
    if let ([from], [to, ..]) = (from, to)
        && from.len <= to.len
    {
        // SAFETY: the caller's contract.
        return unsafe { copy_piece(from.at, to.at, from.len) };
    }
    let (mut filled, mut to) = (0, to.iter());
    let mut target = to.next();
    for source in from {
        let mut done = 0;
        while done < source.len {
            let Some(piece) = target else { return };
            let len = (source.len - done).min(piece.len - filled);
            // SAFETY: both offsets and the length are inside their pieces.
            unsafe { copy_piece(source.at.add(done), piece.at.add(filled), len) };
            (done, filled) = (done + len, filled + len);
            if filled == piece.len {
                (target, filled) = (to.next(), 0);
            }
        }
    }
}

/// Copies bytes, and the last of them after the others. The two may overlap.
///
/// # Safety
/// Both are valid for `len` bytes.
#[inline]
unsafe fn copy_piece(from: *const u8, to: *mut u8, len: usize) {
    let Some(last) = len.checked_sub(1) else { return };
    // SAFETY: the caller's contract. The last byte is read first because the copy may overwrite it.
    unsafe {
        let final_byte = from.add(last).read();
        ptr::copy(from, to, last);
        AtomicU8::from_ptr(to.add(last)).store(final_byte, Ordering::Release);
    }
}
