//! Posting: work requests that are built once and patched.

use std::ffi::{c_int, c_uint};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use ibverbs_sys::{ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use nix::errno::Errno;

use super::cycle::{Cycle, Slots};
use super::memory::{Mr, RemoteSlice, assert_within};
use super::queue_pair::Qp;
use crate::error::{Error, Result, Step};

/// What a work request asks of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// To the peer's next receive.
    Send,
    /// The same, with 32 bits of immediate data.
    SendWithImm,
    /// Into the peer's memory; the peer is not told.
    RdmaWrite,
    /// The same, and the peer's next receive completes with 32 bits of immediate data.
    RdmaWriteWithImm,
    /// From the peer's memory; the peer is not told.
    RdmaRead,
}

impl Opcode {
    fn raw(self) -> ibv_wr_opcode::Type {
        match self {
            Self::Send => ibv_wr_opcode::IBV_WR_SEND,
            Self::SendWithImm => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            Self::RdmaWrite => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Self::RdmaWriteWithImm => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            Self::RdmaRead => ibv_wr_opcode::IBV_WR_RDMA_READ,
        }
    }

    fn names_remote_memory(self) -> bool {
        !matches!(self, Self::Send | Self::SendWithImm)
    }
}

/// Part of a memory region; keeps it registered.
#[derive(Debug, Clone)]
pub struct Slice {
    mr: Mr,
    offset: usize,
    len: u32,
}

/// The longest message there is: 2^31 bytes.
const LONGEST: usize = 1 << 31;

impl Slice {
    pub(super) fn new(mr: Mr, offset: usize, len: usize) -> Self {
        assert_within(mr.len(), offset, len);
        assert!(len <= LONGEST, "{len} bytes are more than a message can have");
        Self { mr, offset, len: len as u32 }
    }

    fn sge(&self) -> ibv_sge {
        ibv_sge { addr: self.mr.addr() + self.offset as u64, length: self.len, lkey: self.mr.lkey() }
    }

    /// Elements the work request has: an element of length 0 means 2^31 bytes to some devices, so an empty message
    /// has none.
    fn num_sge(&self) -> c_int {
        (self.len > 0).into()
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
        Self { base: slice.mr.addr(), last_offset: slice.mr.len() - slice.len as usize, mr: slice.mr.clone() }
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

/// A work request of the send queue, built once and posted any number of times.
///
/// It keeps its queue pair and its memory. Dropping it while requests are under way is safe, as far as memory is
/// concerned: the library has read the request when [`Sender::post`] returns, and the memory is unmapped only when its
/// registration has ended, which the device then knows. What the bytes are when it reads or writes them is up to the
/// caller, who must leave them alone until the completion (inline payloads: until `post` returns).
#[derive(Debug)]
pub struct Sender {
    qp: *mut ibv_qp,
    request: NonNull<SendRequest>,
    /// Without IBV_SEND_SIGNALED, see [`Sender::set_signalled`].
    flags: c_uint,
    cycle: Cycle,
    /// From an address of the region to the one at the peer that belongs to it.
    to_remote: u64,
    bounds: Bounds,
    owner: Qp,
}

/// The request and the element it points to, at an address that stays.
#[repr(C)]
struct SendRequest {
    wr: ibv_send_wr,
    sge: ibv_sge,
}

// SAFETY: the request is this sender's own, and the queue pair may be posted to from any thread (`ibv_alloc_td(3)`).
unsafe impl Send for Sender {}
// SAFETY: a shared sender gives access to nothing.
unsafe impl Sync for Sender {}

impl Drop for Sender {
    fn drop(&mut self) {
        // SAFETY: came from `Box::into_raw` and is freed once. No call is reading it: each borrowed the sender.
        drop(unsafe { Box::from_raw(self.request.as_ptr()) });
    }
}

impl Sender {
    pub(super) fn new(
        qp: Qp,
        opcode: Opcode,
        local: Slice,
        remote: Option<RemoteSlice>,
        inline: bool,
    ) -> Self {
        assert!(
            local.mr.pd().is_same(qp.pd()),
            "the memory is of another protection domain than the queue pair"
        );
        assert!(remote.is_some() || !opcode.names_remote_memory(), "{opcode:?} needs memory of the peer");
        let granted = qp.caps().max_inline;
        assert!(!inline || opcode != Opcode::RdmaRead, "an RDMA READ has nothing to send inline");
        assert!(
            !inline || local.len <= granted,
            "{} bytes inline are more than the {granted} granted",
            local.len
        );
        let flags = if inline { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        let request = leak(SendRequest {
            wr: ibv_send_wr {
                num_sge: local.num_sge(),
                opcode: opcode.raw(),
                send_flags: flags,
                ..Default::default()
            },
            sge: local.sge(),
        });
        let (cycle, bounds) = (Cycle::NONE, Bounds::of(&local));
        let mut sender = Self { qp: qp.raw(), request, flags, cycle, to_remote: 0, bounds, owner: qp };
        // SAFETY: the request lives until the sender is dropped and nobody else knows of it; all access goes through
        // this pointer, so that the one inside it to the element stays valid.
        unsafe { (*request.as_ptr()).wr.sg_list = &raw mut (*request.as_ptr()).sge };
        sender.set_remote(remote);
        sender
    }

    /// Hands the request to the device. `ibv_post_send(3)`
    ///
    /// # Errors
    /// [`Step::Measure`]: the queue is full, or the queue pair is in no state to send.
    #[inline]
    pub fn post(&mut self) -> Result<()> {
        // Written by the library only when it refuses a request, and not read here.
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the request and its element live as long as the sender and are read by the library before it returns.
        // Queue pair, completion queues and context are kept by `owner`, the memory by `bounds`, past the completion or
        // up to the end of its registration. The table was found complete when the context was opened.
        let code = unsafe {
            let wr = &raw mut (*self.request.as_ptr()).wr;
            (*(*self.qp).context).ops.post_send.unwrap_unchecked()(self.qp, wr, bad.as_mut_ptr())
        };
        if code != 0 {
            return Err(self.failed(code));
        }
        Ok(())
    }

    /// Whether posts from now on ask for a completion; at first they do not. Unsignalled requests complete with the
    /// next signalled one behind them, and their places in the queue are free when that was polled.
    #[inline]
    pub fn set_signalled(&mut self, signalled: bool) {
        let signal = if signalled { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        // SAFETY: the request is alive and ours alone.
        unsafe { (*self.request.as_ptr()).wr.send_flags = self.flags | signal };
    }

    /// Sets the immediate data, in host order. It is sent by opcodes that have it.
    #[inline]
    pub fn set_imm(&mut self, imm: u32) {
        // SAFETY: the request is alive and ours alone.
        unsafe { (*self.request.as_ptr()).wr.__bindgen_anon_1.imm_data = imm.to_be() };
    }

    /// Sets the number that comes back in the completion.
    #[inline]
    pub fn set_id(&mut self, wr_id: u64) {
        // SAFETY: the request is alive and ours alone.
        unsafe { (*self.request.as_ptr()).wr.wr_id = wr_id };
    }

    /// Moves the request to other memory of the same length: `local_offset` bytes from the start of the region, and
    /// `remote` unless it is `None`.
    ///
    /// # Panics
    /// If the slice would not be within its region.
    #[inline]
    pub fn move_to(&mut self, local_offset: usize, remote: Option<RemoteSlice>) {
        let address = self.bounds.address(local_offset);
        // SAFETY: the request is alive and ours alone.
        unsafe { (*self.request.as_ptr()).sge.addr = address };
        self.set_remote(remote);
    }

    /// Divides the region into `slots` that begin every `stride` bytes, and moves the request to the one of this
    /// number. [`Sender::post_run`] goes from one to the next.
    ///
    /// # Panics
    /// If there is no such slot, or the last one would not be within the region.
    pub fn cycle(&mut self, slots: Slots, slot: usize) {
        self.cycle = Cycle::new(self.bounds.base, self.bounds.last_offset, slots, slot);
        self.move_to(slot * slots.stride, None);
    }

    /// The same at the peer's end, whose slots begin at `remote`. [`Sender::post_run`] goes from one to the next at both ends.
    ///
    /// # Panics
    /// As [`Sender::cycle`].
    pub fn cycle_both(&mut self, slots: Slots, slot: usize, remote: RemoteSlice) {
        self.cycle = Cycle::new(self.bounds.base, self.bounds.last_offset, slots, slot);
        self.to_remote = remote.addr.wrapping_sub(self.bounds.base);
        let addr = remote.addr.wrapping_add((slot * slots.stride) as u64);
        self.move_to(slot * slots.stride, Some(RemoteSlice { addr, ..remote }));
    }

    /// Posts the request `count` times, each time from the next slot of its cycle; without a cycle it stays where it
    /// is. With `both` the slot at the peer moves along. `imm` is the immediate data of the first one; those behind
    /// count on from it.
    ///
    /// # Errors
    /// As [`Sender::post`]; those before the one refused are posted.
    #[inline(always)]
    pub fn post_run(&mut self, count: u64, both: bool, imm: Option<u32>) -> Result<()> {
        // SAFETY: the request is alive and ours alone.
        let mut addr = unsafe { (*self.request.as_ptr()).sge.addr };
        for i in 0..count {
            if let Some(first) = imm {
                self.set_imm(first.wrapping_add(i as u32));
            }
            self.post()?;
            // A variable and not read back: the next post need not wait for the store.
            addr = self.cycle.after(addr);
            // SAFETY: as above, and the address is one of the cycle. That of the peer is an integer, of which any value
            // is valid, in a request that names memory of the peer.
            unsafe {
                let request = self.request.as_ptr();
                (*request).sge.addr = addr;
                if both {
                    (*request).wr.wr.rdma.remote_addr = addr.wrapping_add(self.to_remote);
                }
            }
        }
        Ok(())
    }

    fn set_remote(&mut self, remote: Option<RemoteSlice>) {
        if let Some(RemoteSlice { addr, rkey }) = remote {
            // SAFETY: the request is alive and ours alone. Opcodes without remote memory do not look at this member.
            unsafe {
                let rdma = &raw mut (*self.request.as_ptr()).wr.wr.rdma;
                (*rdma).remote_addr = addr;
                (*rdma).rkey = rkey;
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn failed(&self, code: c_int) -> Error {
        let caps = self.owner.caps();
        // SAFETY: the request is alive.
        let (opcode, len) =
            unsafe { ((*self.request.as_ptr()).wr.opcode, (*self.request.as_ptr()).sge.length) };
        let values = format!("opcode {opcode}, {len} bytes, max_send_wr {}", caps.max_send_wr);
        post_failed("ibv_post_send", &self.owner, &values, code)
    }
}

/// Receives posted by one call of the library at most.
const CHAIN: usize = 32;

/// A work request of the receive queue, built once and posted any number of times. Its memory and queue pair are kept
/// as by [`Sender`].
#[derive(Debug)]
pub struct Receiver {
    qp: *mut ibv_qp,
    request: NonNull<RecvRequest>,
    cycle: Cycle,
    bounds: Bounds,
    owner: Qp,
}

/// Requests that all point to one element, at an address that stays. The first is the one that [`Receiver::post`]
/// posts and others are made like.
#[repr(C)]
struct RecvRequest {
    wrs: [ibv_recv_wr; CHAIN],
    sge: ibv_sge,
}

// SAFETY: the requests are this receiver's own, and the queue pair may be posted to from any thread
// (`ibv_alloc_td(3)`).
unsafe impl Send for Receiver {}
// SAFETY: a shared receiver gives access to nothing.
unsafe impl Sync for Receiver {}

impl Drop for Receiver {
    fn drop(&mut self) {
        // SAFETY: came from `Box::into_raw` and is freed once. No call is reading it: each borrowed the receiver.
        drop(unsafe { Box::from_raw(self.request.as_ptr()) });
    }
}

impl Receiver {
    pub(super) fn new(qp: Qp, local: Slice) -> Self {
        assert!(
            local.mr.pd().is_same(qp.pd()),
            "the memory is of another protection domain than the queue pair"
        );
        let request = leak(RecvRequest { wrs: [ibv_recv_wr::default(); CHAIN], sge: local.sge() });
        let (cycle, bounds) = (Cycle::NONE, Bounds::of(&local));
        let mut receiver = Self { qp: qp.raw(), request, cycle, bounds, owner: qp };
        for i in 0..CHAIN {
            // SAFETY: `i` is within the array; the request lives until the receiver is dropped and nobody else knows of
            // it.
            unsafe {
                let wr = receiver.wr(i);
                (*wr).sg_list = &raw mut (*request.as_ptr()).sge;
                (*wr).num_sge = local.num_sge();
            }
        }
        receiver
    }

    /// The request of this index.
    ///
    /// # Safety
    /// It is less than [`CHAIN`].
    #[inline]
    unsafe fn wr(&mut self, index: usize) -> *mut ibv_recv_wr {
        // SAFETY: the array is alive, and the index within it by this function's contract.
        unsafe { (&raw mut (*self.request.as_ptr()).wrs).cast::<ibv_recv_wr>().add(index) }
    }

    /// Posts one receive. `ibv_post_recv(3)`
    ///
    /// # Errors
    /// [`Step::Measure`]: the queue is full, or the queue pair is in no state to receive.
    #[inline]
    pub fn post(&mut self) -> Result<()> {
        // Written by the library only when it refuses a request, and not read here.
        let mut bad = MaybeUninit::uninit();
        // SAFETY: index 0 is within the array, whose first request has no next one between calls.
        let code = unsafe { self.post_chain(bad.as_mut_ptr()) };
        if code != 0 {
            return Err(self.failed(0, 1, code));
        }
        Ok(())
    }

    /// Posts `n` receives into the same memory, with as few calls as possible.
    ///
    /// # Errors
    /// As [`Receiver::post`]; the message says how many were posted.
    pub fn post_many(&mut self, n: u32) -> Result<()> {
        let mut posted = 0;
        while posted < n {
            let link = ((n - posted) as usize).min(CHAIN);
            let mut bad = ptr::null_mut();
            // SAFETY: all indices are less than `link`, so within the array. The chain ends at its last request, and is
            // undone after the call, which has read it by then.
            let code = unsafe {
                let first = self.wr(0);
                for i in 1..link {
                    (*self.wr(i)).wr_id = (*first).wr_id;
                    (*self.wr(i - 1)).next = self.wr(i);
                }
                (*self.wr(link - 1)).next = ptr::null_mut();
                let code = self.post_chain(&mut bad);
                (*first).next = ptr::null_mut();
                code
            };
            if code != 0 {
                let taken = (0..link).position(|i| {
                    // SAFETY: within the array.
                    let wr = unsafe { self.wr(i) };
                    ptr::eq(wr, bad)
                });
                return Err(self.failed(posted + taken.unwrap_or(0) as u32, n, code));
            }
            posted += link as u32;
        }
        Ok(())
    }

    /// Posts the first request and those it is linked to.
    ///
    /// # Safety
    /// The chain ends within the array.
    #[inline]
    unsafe fn post_chain(&mut self, bad: *mut *mut ibv_recv_wr) -> c_int {
        // SAFETY: the requests and their element live as long as the receiver and are read by the library before it
        // returns. Queue pair and what it stands on are kept by `owner`, the memory by `bounds`, past the completion or
        // up to the end of its registration. The table was found complete when the context was opened.
        unsafe {
            let first = self.wr(0);
            (*(*self.qp).context).ops.post_recv.unwrap_unchecked()(self.qp, first, bad)
        }
    }

    /// Sets the number that comes back in the completion.
    #[inline]
    pub fn set_id(&mut self, wr_id: u64) {
        // SAFETY: the array is not empty, and ours alone.
        unsafe { (*self.wr(0)).wr_id = wr_id };
    }

    /// Moves the request to other memory of the same length, `local_offset` bytes from the start of the region.
    ///
    /// # Panics
    /// If the slice would not be within its region.
    #[inline]
    pub fn move_to(&mut self, local_offset: usize) {
        let address = self.bounds.address(local_offset);
        // SAFETY: the request is alive and ours alone.
        unsafe { (*self.request.as_ptr()).sge.addr = address };
    }

    /// Divides the region into slots, as [`Sender::cycle`].
    ///
    /// # Panics
    /// As there.
    pub fn cycle(&mut self, slots: Slots, slot: usize) {
        self.cycle = Cycle::new(self.bounds.base, self.bounds.last_offset, slots, slot);
        self.move_to(slot * slots.stride);
    }

    /// Posts `count` receives, each into the next slot of the request's cycle; without a cycle all into the same memory.
    ///
    /// # Errors
    /// As [`Receiver::post`]; those before the one refused are posted.
    #[inline(always)]
    pub fn post_run(&mut self, count: usize) -> Result<()> {
        // SAFETY: the request is alive and ours alone.
        let mut addr = unsafe { (*self.request.as_ptr()).sge.addr };
        for _ in 0..count {
            self.post()?;
            addr = self.cycle.after(addr);
            // SAFETY: as above, and the address is one of the cycle.
            unsafe { (*self.request.as_ptr()).sge.addr = addr };
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn failed(&self, posted: u32, of: u32, code: c_int) -> Error {
        let values = format!("{posted} of {of} posted, max_recv_wr {}", self.owner.caps().max_recv_wr);
        post_failed("ibv_post_recv", &self.owner, &values, code)
    }
}

/// A value at an address that stays, reached through this pointer alone.
fn leak<T>(value: T) -> NonNull<T> {
    NonNull::from(Box::leak(Box::new(value)))
}

fn post_failed(call: &str, qp: &Qp, values: &str, code: c_int) -> Error {
    // An error number; -1 with errno from some old providers.
    let error =
        if code == -1 { io::Error::last_os_error() } else { io::Error::from_raw_os_error(code.abs()) };
    let state = qp.state().map_or_else(|_| "unknown".to_owned(), |state| state.to_string());
    Error::failed(Step::Measure, format!("{call}(QP {:#08x} in state {state}, {values}): {error}", qp.number())).with_remedy(
        match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
            Errno::ENOMEM => "the queue is full: more was posted than completed; a larger queue depth, or more signals, would help",
            _ => "see the first failed completion of the queue pair, and the device's log (dmesg)",
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_those_of_the_library() {
        let all = [
            Opcode::RdmaWrite,
            Opcode::RdmaWriteWithImm,
            Opcode::Send,
            Opcode::SendWithImm,
            Opcode::RdmaRead,
        ];
        assert_eq!(all.map(Opcode::raw), [0, 1, 2, 3, 4]);
        assert_eq!(all.map(Opcode::names_remote_memory), [true, true, false, false, true]);
    }
}
