//! The sender's half of a message that nobody answers: it is gone when it was sent, whatever becomes of it.

use std::sync::Arc;

use ibverbs_sys::{ibv_send_wr, ibv_wc_status};

use super::queue_pair::Qp;
use super::requester::{Stop, corrupted_copy};
use super::send_queue::{PSN_MASK, SendQueue};

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
        // SAFETY: the caller's contract.
        let local = unsafe { self.local(wr) }?;
        if local.total > u64::from(queue.max_message) {
            return Err(Stop::Failed(ibv_wc_status::IBV_WC_LOC_LEN_ERR));
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
        let mut responder = peer.responder.lock();
        // The first packet of a message is taken whatever its number: those before it are lost and not missed.
        if responder.accepting && responder.dest_qpn == self.number {
            responder.psn = queue.psn;
            // SAFETY: the lock of this send queue is held; the responder is the peer's.
            if unsafe { peer.take_or_drop(&mut responder, &request) }.is_err() {
                queue.aftermath.flush = Some(Arc::clone(peer));
            }
        }
        Ok(local.total as u32)
    }
}
