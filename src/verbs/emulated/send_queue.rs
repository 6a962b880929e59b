//! What a send queue remembers between work requests.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;
use std::sync::{Arc, Weak};
use std::time::Instant;

use ibverbs_sys::{ibv_ah_attr, ibv_send_flags, ibv_send_wr, ibv_sge};

use super::address_handle::AddressHandle;
use super::faults::Faults;
use super::limits;
use super::queue_pair::{Qp, Transport};
use super::ring::Ring;

/// Bits of a packet sequence number.
pub(super) const PSN_MASK: u32 = 0x00ff_ffff;
/// The retry count that means "for ever".
pub(super) const RETRY_FOR_EVER: u8 = 7;

/// The state of a send queue.
pub(super) struct SendQueue {
    /// Work requests ever accepted.
    pub posted: u32,
    /// Sequence number of the next packet.
    pub psn: u32,
    /// Bytes of a packet, as a power of two.
    pub mtu_shift: u32,
    /// Bytes of the largest message.
    pub max_message: u32,
    /// Faults that look at messages are configured.
    pub faulty: bool,
    /// Work requests are not run the short way: `faulty`, or nothing is acknowledged.
    pub special: bool,
    /// Outstanding reads and atomics agreed on.
    pub max_rd_atomic: u8,
    /// Times to try again when the peer has no receive.
    pub rnr_retry: u8,
    /// The other end, once it was found.
    pub peer: Option<Arc<Qp>>,
    /// Number of the other end.
    pub dest_qpn: u32,
    /// Where it is.
    pub address: ibv_ah_attr,
    /// Of a datagram queue pair: its own key.
    pub qkey: u32,
    /// Of a datagram queue pair: which address handle `address` and `peer` were last taken from; 0 for none.
    pub handle: u64,
    /// The own GID that this handle names.
    pub source: [u8; 16],
    /// Work that the peer is not ready for, and all that was posted after it.
    pub deferred: Deferred,
    /// When the first of it fails.
    pub deadline: Option<Instant>,
    /// When a device told to be slow takes the next message, and for when its owner's alarm is set.
    pub next_delivery: Option<Instant>,
    pub alarm: Option<Instant>,
    /// What must be done when the lock is given back.
    pub aftermath: Aftermath,
}

/// Work on other queue pairs that an error leaves, and that must not be done under the lock of this one.
#[derive(Default)]
pub(super) struct Aftermath {
    /// The peer, when its responder failed: its sends are to be flushed.
    pub flush: Option<Arc<Qp>>,
    /// Who waits for a receive here that will never come.
    pub kick: Weak<Qp>,
}

impl SendQueue {
    /// The queue of a queue pair in RESET.
    pub(super) fn new(depth: u32, transport: Transport, faults: &Faults) -> Self {
        Self {
            posted: 0,
            psn: 0,
            mtu_shift: 8,
            max_message: faults.max_message,
            faulty: faults.touch_messages(),
            special: faults.touch_messages() || transport != Transport::Reliable,
            max_rd_atomic: 0,
            rnr_retry: 0,
            peer: None,
            dest_qpn: 0,
            // SAFETY: integers and a GID.
            address: unsafe { MaybeUninit::zeroed().assume_init() },
            qkey: 0,
            handle: 0,
            source: [0; 16],
            deferred: Deferred::new(depth, transport == Transport::Datagram),
            deadline: None,
            next_delivery: None,
            alarm: None,
            aftermath: Aftermath::default(),
        }
    }

    /// Packets that a message of `len` bytes takes.
    #[inline(always)]
    pub(super) fn packets(&self, len: u64) -> u32 {
        (len.saturating_sub(1) >> self.mtu_shift) as u32 + 1
    }
}

/// A copy of a work request and what it points to.
struct Slot {
    wr: ibv_send_wr,
    position: u32,
    entries: [ibv_sge; limits::MAX_SGE],
    inline: [u8; limits::MAX_INLINE as usize],
    /// Of a datagram: its caller may destroy the handle meanwhile.
    handle: MaybeUninit<AddressHandle>,
}

/// Work requests that wait, oldest first. Its room is that of the send queue.
pub(super) struct Deferred {
    ring: Ring<UnsafeCell<Slot>>,
    first: u32,
    len: u32,
    /// The requests name address handles.
    addressed: bool,
}

// SAFETY: the slots are reached through `&mut Deferred` and pointers it hands out; the work requests in them point to
// other fields of the same slot, or are numbers that the data path checks against keys.
unsafe impl Send for Deferred {}

impl Deferred {
    fn new(depth: u32, addressed: bool) -> Self {
        // SAFETY: integers and pointers.
        Self { ring: unsafe { Ring::zeroed(depth.next_power_of_two()) }, first: 0, len: 0, addressed }
    }

    /// Nothing waits.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a copy of `wr`, which has place `position` in its queue. Inline bytes are copied with it.
    ///
    /// # Safety
    /// `wr` is one for [`post_send`](super::requester::post_send) and was checked: it has at most [`limits::MAX_SGE`]
    /// entries and, if inline, as many bytes as were granted. There is room, because the send queue it was accepted
    /// into is no deeper.
    pub(super) unsafe fn push(&mut self, wr: &ibv_send_wr, position: u32) {
        let at = self.ring.get(self.first.wrapping_add(self.len)).get();
        self.len += 1;
        // SAFETY: the slot is not in use (there is room), and `&mut self` makes us the only one to reach it.
        let slot = unsafe { &mut *at };
        slot.wr = *wr;
        slot.position = position;
        if self.addressed {
            // SAFETY: datagrams use this member of the union; the handle is live, by the caller's contract.
            slot.handle.write(*unsafe { AddressHandle::from_raw(wr.wr.ud.ah) });
        }
        let entries = match wr.num_sge {
            0 => &[],
            // SAFETY: the caller's list of that many entries.
            count => unsafe { slice::from_raw_parts(wr.sg_list, count as usize) },
        };
        slot.entries[..entries.len()].copy_from_slice(entries);
        if wr.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
            let mut filled = 0;
            for entry in entries.iter().filter(|entry| entry.length > 0) {
                let from = ptr::with_exposed_provenance::<u8>(entry.addr as usize);
                // SAFETY: an inline entry names readable memory of the caller.
                let bytes = unsafe { slice::from_raw_parts(from, entry.length as usize) };
                slot.inline[filled..filled + bytes.len()].copy_from_slice(bytes);
                filled += bytes.len();
            }
            slot.wr.num_sge = 1;
            // SAFETY: the slot, as above.
            let copied = unsafe { &raw const (*at).inline };
            let addr = copied.expose_provenance() as u64;
            // SAFETY: the slot, as above; the exclusive reference is not used any more.
            unsafe { (*at).entries[0] = ibv_sge { addr, length: filled as u32, lkey: 0 } };
        }
    }

    /// The oldest, and its place in the queue. Valid until it is popped.
    pub(super) fn front(&self) -> Option<(*const ibv_send_wr, u32)> {
        if self.is_empty() {
            return None;
        }
        let slot = self.ring.get(self.first).get();
        // SAFETY: written by `push`, and not changed before it is popped, except for the address of its own entries.
        unsafe {
            (*slot).wr.sg_list = (&raw mut (*slot).entries).cast();
            if self.addressed {
                (*slot).wr.wr.ud.ah = (&raw mut (*slot).handle).cast();
            }
            Some((&raw const (*slot).wr, (*slot).position))
        }
    }

    /// Drops the oldest.
    pub(super) fn pop(&mut self) {
        self.first = self.first.wrapping_add(1);
        self.len -= 1;
    }

    /// Drops all.
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }
}
