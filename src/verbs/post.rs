//! Posting: work requests that are built once and patched.

use std::ffi::{c_int, c_uint};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use ibverbs_sys::{
    ibv_qp, ibv_send_flags, ibv_send_wr, ibv_send_wr__bindgen_ty_2__bindgen_ty_1 as Rdma, ibv_wr_opcode,
};
use nix::errno::Errno;

use super::cycle::{Cycle, Slots};
use super::datagram::Destination;
use super::memory::RemoteSlice;
use super::queues::Queues;
use super::slice::{Elements, Slice};
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
    /// Replaces 8 bytes of the peer's memory if they are equal to others; brings what was there.
    CompareSwap,
    /// Adds to 8 bytes of the peer's memory; brings what was there.
    FetchAdd,
}

impl Opcode {
    fn raw(self) -> ibv_wr_opcode::Type {
        match self {
            Self::Send => ibv_wr_opcode::IBV_WR_SEND,
            Self::SendWithImm => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            Self::RdmaWrite => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Self::RdmaWriteWithImm => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            Self::RdmaRead => ibv_wr_opcode::IBV_WR_RDMA_READ,
            Self::CompareSwap => ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
            Self::FetchAdd => ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
        }
    }

    fn names_remote_memory(self) -> bool {
        !matches!(self, Self::Send | Self::SendWithImm)
    }

    fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// The local memory is written and not sent.
    fn pulls(self) -> bool {
        matches!(self, Self::RdmaRead | Self::CompareSwap | Self::FetchAdd)
    }
}

/// Work requests of which only the first were posted. Its error says how many, too.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Partial {
    /// How many were posted, from the first on.
    pub posted: u32,
    /// Why the next one was not.
    pub error: Error,
}

/// Bytes that an atomic operation works on, at an address that is a multiple of as many.
const ATOMIC: u64 = 8;

/// What differs between the requests of a run besides their slots. Where it is known to the compiler it costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patch {
    /// Nothing.
    None,
    /// The immediate data: this for the first one, and those behind count on from it.
    Imm(u32),
    /// The operands of [`Opcode::CompareSwap`]: the first one expects this, and each leaves one more than it expects.
    Swap(u64),
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
    /// Where the request keeps address and key of the peer's memory: that depends on the opcode.
    remote_addr: *mut u64,
    rkey: *mut u32,
    opcode: Opcode,
    /// Without IBV_SEND_SIGNALED, see [`Sender::set_signalled`].
    flags: c_uint,
    cycle: Cycle,
    /// From an address of the first slice's region to the one at the peer that belongs to it.
    to_remote: u64,
    cycles_both: bool,
    elements: Elements,
    /// Of a datagram: keeps the address handle.
    destination: Option<Destination>,
    owner: Queues,
}

/// The request, at an address that stays.
#[repr(C)]
struct SendRequest {
    wr: ibv_send_wr,
    /// What requests without remote memory take for its address and key. A datagram has others in their place.
    nowhere: Rdma,
}

/// What a request is for.
pub(super) enum Target {
    /// The peer's next receive.
    Receive,
    /// The peer's memory.
    Memory(RemoteSlice),
    /// A receive of a queue pair that this one is not connected to.
    Datagram(Destination),
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
    pub(super) fn new(qp: Queues, opcode: Opcode, local: &[Slice], target: Target, inline: bool) -> Self {
        let caps = qp.caps();
        let elements = Elements::new(local, qp.pd(), caps.max_send_sge);
        let len = elements.total();
        assert!(
            matches!(target, Target::Memory(_)) || !opcode.names_remote_memory(),
            "{opcode:?} needs memory of the peer"
        );
        assert!(!inline || !opcode.pulls(), "{opcode:?} has nothing to send inline");
        assert!(
            !opcode.is_atomic() || len == ATOMIC,
            "{opcode:?} brings {ATOMIC} bytes, which {len} bytes do not take"
        );
        let granted = caps.max_inline;
        assert!(!inline || len <= granted.into(), "{len} bytes inline are more than the {granted} granted");
        if inline {
            // The library copies these bytes itself, and looks at no key.
            local.iter().for_each(Slice::assert_within_region);
        }
        let flags = if inline { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        let request = leak(SendRequest {
            wr: ibv_send_wr {
                sg_list: elements.list(),
                num_sge: elements.count(),
                opcode: opcode.raw(),
                send_flags: flags,
                ..Default::default()
            },
            nowhere: Rdma::default(),
        });
        // SAFETY: the request lives until the sender is dropped and nobody else knows of it; all access goes through
        // this pointer and those made of it here. A member of the union is written before it is read, or was zeroed.
        let (remote_addr, rkey) = unsafe {
            let request = request.as_ptr();
            if opcode.is_atomic() {
                let atomic = &raw mut (*request).wr.wr.atomic;
                (&raw mut (*atomic).remote_addr, &raw mut (*atomic).rkey)
            } else {
                let named = opcode.names_remote_memory();
                let rdma = if named { &raw mut (*request).wr.wr.rdma } else { &raw mut (*request).nowhere };
                (&raw mut (*rdma).remote_addr, &raw mut (*rdma).rkey)
            }
        };
        let mut sender = Self {
            qp: qp.raw(),
            request,
            remote_addr,
            rkey,
            opcode,
            flags,
            cycle: Cycle::NONE,
            to_remote: 0,
            cycles_both: false,
            elements,
            destination: None,
            owner: qp,
        };
        match target {
            Target::Receive => {}
            Target::Memory(remote) => sender.set_remote(Some(remote)),
            Target::Datagram(destination) => sender.put_destination(destination),
        }
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
        // SAFETY: the request and its elements live as long as the sender and are read by the library before it returns.
        // Queue pair, completion queues and context are kept by `owner`, the memory by `elements`, past the completion
        // or up to the end of its registration, an address handle by `destination`. The table was found complete when
        // the context was opened.
        let code = unsafe {
            let wr = &raw mut (*self.request.as_ptr()).wr;
            (*(*self.qp).context).ops.post_send.unwrap_unchecked()(self.qp, wr, bad.as_mut_ptr())
        };
        if code != 0 {
            return Err(self.failed(code));
        }
        Ok(())
    }

    /// Posts the request this once with a completion asked for.
    ///
    /// # Errors
    /// As [`Sender::post`].
    #[inline]
    pub fn post_signalled(&mut self) -> Result<()> {
        self.set_signalled(true);
        let posted = self.post();
        self.set_signalled(false);
        posted
    }

    /// Whether posts from now on ask for a completion; at first they do not. Unsignalled requests complete with the
    /// next signalled one behind them, and their places in the queue are free when that was polled.
    #[inline]
    pub fn set_signalled(&mut self, signalled: bool) {
        let signal = if signalled { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        // SAFETY: the request is alive and ours alone.
        unsafe { (*self.request.as_ptr()).wr.send_flags = self.flags | signal };
    }

    /// Posts the request `count` times, each time from the next slot of its cycle; without a cycle it stays where it
    /// is. With `both` the slot at the peer moves along.
    ///
    /// # Errors
    /// As [`Sender::post`]; those before the one refused are posted.
    #[inline(always)]
    pub fn post_run(&mut self, count: u64, both: bool, patch: Patch) -> Result<()> {
        let mut addr = self.elements.first_address();
        for i in 0..count {
            match patch {
                Patch::None => {}
                Patch::Imm(first) => self.set_imm(first.wrapping_add(i as u32)),
                Patch::Swap(first) => self.set_atomic(first.wrapping_add(i), first.wrapping_add(i + 1)),
            }
            self.post()?;
            // A variable and not read back: the next post need not wait for the store.
            addr = self.cycle.after(addr);
            // SAFETY: one of the cycle.
            unsafe { self.elements.put_first(addr) };
            if both {
                // SAFETY: a place within the request that is ours alone, and that its opcode keeps the address at or
                // that nobody looks at; any value is valid.
                unsafe { *self.remote_addr = addr.wrapping_add(self.to_remote) };
            }
        }
        Ok(())
    }

    /// Divides the region of the first slice into slots and moves the request to one of them. [`Sender::post_run`] goes
    /// from one to the next.
    ///
    /// # Panics
    /// If there is no such slot, or the last one would not be within the region.
    pub fn cycle(&mut self, slots: Slots, slot: usize) {
        self.cycle = self.elements.cycle(slots, slot);
    }

    /// Moves the request to a slot of its cycle, at both ends if that is [`Sender::cycle_both`]'s.
    ///
    /// # Panics
    /// If there is no such slot.
    #[inline]
    pub fn seek(&mut self, slot: usize) {
        let addr = self.cycle.slot(slot);
        // SAFETY: one of the cycle.
        unsafe { self.elements.put_first(addr) };
        if self.cycles_both {
            // SAFETY: as in `post_run`.
            unsafe { *self.remote_addr = addr.wrapping_add(self.to_remote) };
        }
    }

    /// [`Sender::cycle`] at both ends: the peer's slots begin at `remote`.
    ///
    /// # Panics
    /// As [`Sender::cycle`].
    pub fn cycle_both(&mut self, slots: Slots, slot: usize, remote: RemoteSlice) {
        self.cycle(slots, slot);
        self.cycles_both = true;
        self.to_remote = remote.addr.wrapping_sub(self.elements.base());
        let addr = self.elements.first_address().wrapping_add(self.to_remote);
        self.set_remote(Some(RemoteSlice { addr, ..remote }));
    }

    /// Sets the immediate data, in host order. It is sent by opcodes that have it.
    #[inline]
    pub fn set_imm(&mut self, imm: u32) {
        // SAFETY: the request is alive and ours alone.
        unsafe { (*self.request.as_ptr()).wr.__bindgen_anon_1.imm_data = imm.to_be() };
    }

    /// Asks that the peer be woken if it waits for solicited completions alone ([`Cq::arm_solicited`](super::Cq)).
    /// Looked at where the message completes a receive.
    #[inline]
    pub fn set_solicited(&mut self, solicited: bool) {
        let flag = ibv_send_flags::IBV_SEND_SOLICITED.0;
        self.flags = if solicited { self.flags | flag } else { self.flags & !flag };
        // SAFETY: the request is alive and ours alone.
        let flags = unsafe { &mut (*self.request.as_ptr()).wr.send_flags };
        *flags = if solicited { *flags | flag } else { *flags & !flag };
    }

    /// Sets the number that comes back in the completion.
    #[inline]
    pub fn set_id(&mut self, wr_id: u64) {
        // SAFETY: the request is alive and ours alone.
        unsafe { (*self.request.as_ptr()).wr.wr_id = wr_id };
    }

    /// Sets the operands of an atomic operation, in host order: what is added ([`Opcode::FetchAdd`]), or what the
    /// peer's bytes are compared with and what replaces them if they are equal ([`Opcode::CompareSwap`]). `swap` is
    /// not looked at by the former. Both are 0 to begin with.
    ///
    /// # Panics
    /// If the request is no atomic operation.
    #[inline]
    pub fn set_atomic(&mut self, compare_add: u64, swap: u64) {
        assert!(self.opcode.is_atomic(), "{:?} has no operands", self.opcode);
        // SAFETY: the request is alive and ours alone, and this is the member that its opcode uses.
        unsafe {
            let atomic = &raw mut (*self.request.as_ptr()).wr.wr.atomic;
            (*atomic).compare_add = compare_add;
            (*atomic).swap = swap;
        }
    }

    /// Moves the request to other memory of the same length: `local_offset` bytes from the start of the region of the
    /// first slice, and `remote` unless it is `None`. Requests without remote memory do not look at `remote`.
    ///
    /// # Panics
    /// If the slice would not be within its region.
    #[inline]
    pub fn move_to(&mut self, local_offset: usize, remote: Option<RemoteSlice>) {
        self.elements.move_first(local_offset);
        self.set_remote(remote);
    }

    /// Moves one slice, by its index in the order in which they were given, to `local_offset` bytes from the start of
    /// its region.
    ///
    /// # Panics
    /// If there is no such slice, or it would not be within its region.
    #[inline]
    pub fn move_slice(&mut self, index: usize, local_offset: usize) {
        self.elements.move_slice(index, local_offset);
    }

    #[inline]
    fn set_remote(&mut self, remote: Option<RemoteSlice>) {
        if let Some(RemoteSlice { addr, rkey }) = remote {
            // SAFETY: both are places within the request that are ours alone, and that the opcode keeps these values at
            // or that nobody looks at.
            unsafe {
                *self.remote_addr = addr;
                *self.rkey = rkey;
            }
        }
    }

    /// Sends to another queue pair from now on. The former address handle is let go of: requests with it must have
    /// completed, or some devices fail them.
    ///
    /// # Panics
    /// If the request is no datagram; if the handle is of another protection domain.
    pub fn set_destination(&mut self, destination: Destination) {
        assert!(self.destination.is_some(), "a request of a connection has no destination of its own");
        self.put_destination(destination);
    }

    fn put_destination(&mut self, destination: Destination) {
        assert!(
            destination.handle.pd().is_same(self.owner.pd()),
            "the address handle is of another protection domain than the queue pair"
        );
        // SAFETY: the request is alive and ours alone, and datagrams use this member. The handle lives as long as
        // `destination` is kept.
        unsafe {
            let ud = &raw mut (*self.request.as_ptr()).wr.wr.ud;
            (*ud).ah = destination.handle.raw();
            (*ud).remote_qpn = destination.qpn;
            (*ud).remote_qkey = destination.qkey;
        }
        self.destination = Some(destination);
    }

    /// The request, for the list that it becomes part of.
    pub(super) fn wr(&self) -> *mut ibv_send_wr {
        // SAFETY: the request is alive.
        unsafe { &raw mut (*self.request.as_ptr()).wr }
    }

    /// Flags of the request but for the one that asks for a completion.
    pub(super) fn flags(&self) -> c_uint {
        self.flags
    }

    pub(super) fn qp(&self) -> *mut ibv_qp {
        self.qp
    }

    #[cold]
    #[inline(never)]
    fn failed(&self, code: c_int) -> Error {
        self.post_failed("", code)
    }

    /// The error of a post, with `detail` before the values.
    pub(super) fn post_failed(&self, detail: &str, code: c_int) -> Error {
        let caps = self.owner.caps();
        let len = self.elements.total();
        let values = format!("{detail}{:?}, {len} bytes, max_send_wr {}", self.opcode, caps.max_send_wr);
        post_failed("ibv_post_send", Some(&self.owner), &values, code)
    }
}

/// A value at an address that stays, reached through this pointer alone.
pub(super) fn leak<T>(value: T) -> NonNull<T> {
    NonNull::from(Box::leak(Box::new(value)))
}

/// `qp` is `None` where the queue is shared by many.
pub(super) fn post_failed(call: &str, qp: Option<&Queues>, values: &str, code: c_int) -> Error {
    // An error number; -1 with errno from some old providers.
    let error =
        if code == -1 { io::Error::last_os_error() } else { io::Error::from_raw_os_error(code.abs()) };
    let queue = qp.map_or_else(String::new, |qp| {
        let state = qp.state().map_or_else(|_| "unknown".to_owned(), |state| state.to_string());
        format!("QP {:#08x} in state {state}, ", qp.number())
    });
    Error::failed(Step::Measure, format!("{call}({queue}{values}): {error}")).with_remedy(
        match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
            Errno::ENOMEM => {
                "the queue is full: more was posted than completed; a larger queue depth, or more signals, would help"
            }
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
            Opcode::CompareSwap,
            Opcode::FetchAdd,
        ];
        assert_eq!(all.map(Opcode::raw), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(all.map(Opcode::names_remote_memory), [true, true, false, false, true, true, true]);
        assert_eq!(all.map(Opcode::pulls), [false, false, false, false, true, true, true]);
    }
}
