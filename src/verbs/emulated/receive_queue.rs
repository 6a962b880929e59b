//! Receive queues: a ring that the owner fills and the peer's sends empty.
//!
//! Each slot carries the turn at which it was filled, so that the peer looks at the slot and at nothing that the owner
//! writes besides. A slot is free again when its completion was polled, as on hardware.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use ibverbs_sys::{ibv_qp, ibv_qp_state, ibv_recv_wr, ibv_sge};
use nix::errno::Errno;

use super::limits;
use super::queue_pair::Qp;
use super::ring::Ring;
use super::sync::{Padded, SpinLock};

/// A posted receive.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Receive {
    count: u32,
    /// The owner's name for it.
    pub wr_id: u64,
    entries: [ibv_sge; limits::MAX_SGE],
}

impl Receive {
    /// What `request` asks for.
    ///
    /// # Safety
    /// It has as many entries as it says, at most [`limits::MAX_SGE`].
    pub(super) unsafe fn new(request: &ibv_recv_wr) -> Self {
        let entry = ibv_sge { addr: 0, length: 0, lkey: 0 };
        let count = request.num_sge as u32;
        let mut receive = Self { count, wr_id: request.wr_id, entries: [entry; limits::MAX_SGE] };
        if count > 0 {
            // SAFETY: the caller's contract.
            let entries = unsafe { slice::from_raw_parts(request.sg_list, count as usize) };
            receive.entries[..entries.len()].copy_from_slice(entries);
        }
        receive
    }

    /// Where the message goes.
    pub(super) fn entries(&self) -> &[ibv_sge] {
        &self.entries[..self.count as usize]
    }

    /// Bytes of all entries together.
    #[inline(always)]
    pub(super) fn room(&self) -> u64 {
        self.entries().iter().map(|entry| u64::from(entry.length)).sum()
    }
}

/// A slot of the ring. All zeroes is a slot never written.
#[repr(C, align(128))]
struct Slot {
    /// Position in the stream of receives, plus one, modulo 2^32: written last.
    turn: AtomicU32,
    receive: UnsafeCell<Receive>,
}

const _: () = assert!(size_of::<Slot>() == 128);

/// The receives of a queue pair.
#[repr(C)]
pub(super) struct ReceiveQueue {
    ring: Ring<Slot>,
    depth: u32,
    /// Receives ever posted.
    pub posted: Padded<SpinLock<u32>>,
    /// Receives whose slots were given back, written by whoever polls.
    pub released: Padded<AtomicU32>,
}

impl ReceiveQueue {
    /// An empty queue for `depth` receives.
    pub(super) fn new(depth: u32) -> Self {
        Self {
            // SAFETY: zeroes are a slot never written (see `Slot`).
            ring: unsafe { Ring::zeroed(depth.next_power_of_two()) },
            depth,
            posted: Padded(SpinLock::new(0)),
            released: Padded::default(),
        }
    }

    /// The receive at this position, if it was posted.
    ///
    /// # Safety
    /// The caller holds the lock of the responder, and this position was not consumed.
    #[inline]
    pub(super) unsafe fn get(&self, position: u32) -> Option<&Receive> {
        let slot = self.ring.get(position);
        // Sequentially consistent: see `Qp::await_receive` and `Qp::flush_receives`.
        if slot.turn.load(Ordering::SeqCst) != position.wrapping_add(1) {
            return None;
        }
        // SAFETY: published, and not reused before its completion was polled, hence not before it is consumed.
        Some(unsafe { &*slot.receive.get() })
    }
}

/// `ibv_context_ops.post_recv`
///
/// # Safety
/// `ibv_post_recv(3)`: `qp` is a queue pair of this provider, the list is well-formed, and the memory it names stays
/// until the receives complete or the queue pair is destroyed.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's contract.
    let qp = unsafe { Qp::from_raw(qp) };
    // SAFETY: as above.
    let result = unsafe { fill(qp, wr) };
    // Someone else may have moved to ERR after we looked and before the receive was there to be flushed.
    if qp.state() == ibv_qp_state::IBV_QPS_ERR {
        qp.flush_posted_receives();
    }
    if qp.awaited.load(Ordering::SeqCst) {
        qp.kick_waiter();
    }
    match result {
        Ok(()) => 0,
        Err((at, errno)) => {
            // SAFETY: the caller gives a place for it.
            unsafe { *bad = at };
            errno as c_int
        }
    }
}

/// Fills slots from the list, up to the first work request that cannot be posted.
///
/// # Safety
/// As for [`post_recv`].
#[inline(always)]
unsafe fn fill(qp: &Qp, mut wr: *mut ibv_recv_wr) -> Result<(), (*mut ibv_recv_wr, Errno)> {
    let queue = &qp.receive;
    let mut posted = queue.posted.lock();
    // SAFETY: the caller's list, for each step of this loop.
    while let Some(request) = unsafe { wr.as_ref() } {
        if qp.state() == ibv_qp_state::IBV_QPS_RESET
            || !(0..=qp.caps.max_recv_sge as c_int).contains(&request.num_sge)
        {
            return Err((wr, Errno::EINVAL));
        }
        if posted.wrapping_sub(queue.released.load(Ordering::Acquire)) >= queue.depth {
            return Err((wr, if qp.shared.is_some() { Errno::EINVAL } else { Errno::ENOMEM }));
        }
        qp.dawdle();
        let slot = queue.ring.get(*posted);
        // SAFETY: the slot was given back or never used (checked above), and this lock makes us the only writer.
        let receive = unsafe { &mut *slot.receive.get() };
        receive.wr_id = request.wr_id;
        receive.count = request.num_sge as u32;
        if request.num_sge > 0 {
            // SAFETY: the caller's list of that many entries.
            let entries = unsafe { slice::from_raw_parts(request.sg_list, request.num_sge as usize) };
            receive.entries[..entries.len()].copy_from_slice(entries);
        }
        *posted = posted.wrapping_add(1);
        slot.turn.store(*posted, Ordering::SeqCst);
        wr = request.next;
    }
    Ok(())
}
