//! The sender's half of a message that nobody answers: it is gone when it was sent, whatever becomes of it.

use std::sync::Arc;

use ibverbs_sys::{ibv_send_wr, ibv_wc_status};

use super::address_handle::AddressHandle;
use super::device::LinkLayer;
use super::memory::Pieces;
use super::queue_pair::{Qp, Transport};
use super::requester::{Stop, corrupted_copy};
use super::send_queue::{PSN_MASK, SendQueue};
use super::wire::{self, Envelope};
use super::{grh, limits};

/// The bit of a key in a work request that asks for the sender's own in its place (IBTA volume 1, 10.2.4).
const OWN_QKEY: u32 = 1 << 31;

impl Qp {
    /// Executes a work request that nothing is ahead of.
    ///
    /// # Safety
    /// As for [`Qp::transmit`].
    pub(super) unsafe fn run_unacknowledged(&self, queue: &mut SendQueue, wr: &ibv_send_wr, position: u32) {
        // SAFETY: the caller's contract.
        match unsafe { self.transmit(queue, wr, position) } {
            Ok(len) => self.complete(queue, wr, position, len),
            Err(Stop::Failed(status)) => self.fail(queue, wr, position, status),
            // Nobody answers that it is not ready.
            Err(Stop::NotReady(_)) => {}
        }
    }

    /// Moves the data of a checked work request, if the other end takes it, and returns how many bytes. It stops only
    /// for what is wrong on this side.
    ///
    /// # Safety
    /// As for [`Qp::execute`].
    pub(super) unsafe fn transmit(
        &self,
        queue: &mut SendQueue,
        wr: &ibv_send_wr,
        position: u32,
    ) -> Result<u32, Stop> {
        let mut local = Pieces::new();
        // SAFETY: the caller's contract.
        unsafe { self.find_local(wr, &mut local) }?;
        if local.total > u64::from(queue.max_message) {
            return Err(Stop::Failed(ibv_wc_status::IBV_WC_LOC_LEN_ERR));
        }
        if self.transport == Transport::Datagram {
            if local.total > u64::from(limits::MTU) {
                // No packet and no error (IBTA volume 1, C10-93.1.1).
                return Ok(local.total as u32);
            }
            // SAFETY: the caller's contract.
            unsafe { self.address(queue, wr) };
        }
        // SAFETY: the caller's contract.
        let mut request = unsafe { self.request(queue, wr, &local) };
        let corrupted;
        if queue.faulty && self.corrupts(position) {
            corrupted = corrupted_copy(&local);
            request.local = &corrupted.1;
        }
        if queue.peer.is_none() {
            queue.peer = self.find_peer(queue);
        }
        let packets = queue.packets(local.total);
        queue.psn = queue.psn.wrapping_add(packets) & PSN_MASK;
        let Some(peer) = &queue.peer else { return Ok(local.total as u32) };
        if queue.faulty && self.loses(position) {
            return Ok(local.total as u32);
        }
        let mut responder = peer.responder.lock();
        let accepting = responder.accepting || peer.establishes(&mut responder, self.number, None);
        let taken = if !accepting {
            Ok(())
        } else if self.transport == Transport::Datagram {
            // SAFETY: the caller's contract.
            let envelope = unsafe { self.envelope(queue, wr, local.total) };
            // SAFETY: the lock of this send queue is held; the responder is the peer's.
            unsafe { peer.take_datagram(&mut responder, &request, &envelope) }
        } else if responder.dest_qpn == self.number {
            // The first packet of a message is taken whatever its number: those before it are lost and not missed.
            responder.psn = queue.psn;
            // SAFETY: as above.
            unsafe { peer.take_or_drop(&mut responder, &request) }
        } else {
            Ok(())
        };
        if taken.is_err() {
            queue.aftermath.flush = Some(Arc::clone(peer));
        }
        Ok(local.total as u32)
    }

    /// The message of this work request is one that must not arrive at all.
    #[cold]
    fn loses(&self, position: u32) -> bool {
        self.pd.context.faults.lose.is_some_and(|every| position.wrapping_add(1).is_multiple_of(every))
    }

    /// Turns the send queue to where this datagram goes. Looking the target up takes time, and most go where the one
    /// before went.
    ///
    /// # Safety
    /// As for [`Qp::transmit`], and `wr` is a datagram.
    unsafe fn address(&self, queue: &mut SendQueue, wr: &ibv_send_wr) {
        // SAFETY: the caller's contract: this member is filled in, and the handle lives, or is a copy that does.
        let (to, handle) = unsafe { (wr.wr.ud, AddressHandle::from_raw(wr.wr.ud.ah)) };
        if queue.handle != handle.serial || queue.dest_qpn != to.remote_qpn {
            queue.handle = handle.serial;
            queue.address = handle.address;
            queue.source = self.pd.context.source_gid(&handle.address);
            queue.dest_qpn = to.remote_qpn;
            queue.peer = None;
        }
    }

    /// What a datagram carries beside its payload.
    ///
    /// # Safety
    /// As for [`Qp::address`], which was called for `wr`.
    unsafe fn envelope(&self, queue: &SendQueue, wr: &ibv_send_wr, len: u64) -> Envelope {
        // SAFETY: the caller's contract.
        let named = unsafe { wr.wr.ud.remote_qkey };
        let header = (queue.address.is_global != 0).then(|| {
            let is_roce = self.pd.context.device.link_layer == LinkLayer::Ethernet;
            let has_imm = wire::carries_immediate(wr.opcode);
            grh::header(&queue.address.grh, queue.source, is_roce, len as u16, has_imm)
        });
        Envelope { qkey: if named & OWN_QKEY == 0 { named } else { queue.qkey }, header }
    }
}
