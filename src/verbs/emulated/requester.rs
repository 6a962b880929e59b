//! The sender's half of a message: checks, execution, order, completion.
//!
//! A work request is executed where it is posted, to its end, unless the peer has no receive for it. Then it and all
//! that follow it are deferred, and tried again whenever the sender polls and whenever the peer posts a receive.

use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ibverbs_sys::{
    IBV_EVENT_QP_FATAL, ibv_qp, ibv_qp_state, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc_status,
};
use nix::errno::Errno;

use super::completion::Completion;
use super::memory::{Piece, Pieces, Use};
use super::queue_pair::{Qp, Transport};
use super::responder::Refusal;
use super::send_queue::{PSN_MASK, SendQueue};
use super::wire::{self, Request};
use super::{limits, numbers};

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// Why a work request was not executed.
pub(super) enum Stop {
    /// The peer has no receive, and asks to wait as long as this code of a timer says.
    NotReady(u8),
    /// What its completion says.
    Failed(ibv_wc_status::Type),
}

/// `ibv_context_ops.post_send`
///
/// # Safety
/// `ibv_post_send(3)`: `qp` is a queue pair of this provider, the list is well-formed, and the memory it names stays
/// until the sends complete or the queue pair is destroyed; inline memory, until this returns.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's contract.
    let qp = unsafe { Qp::from_raw(qp) };
    let mut queue = qp.send.lock();
    let mut result = 0;
    // SAFETY: the caller's list, for each step of this loop.
    while let Some(request) = unsafe { wr.as_ref() } {
        // SAFETY: as above.
        if let Err(errno) = unsafe { qp.submit(&mut queue, request) } {
            // SAFETY: the caller gives a place for it.
            unsafe { *bad = wr };
            result = errno as c_int;
            break;
        }
        wr = request.next;
    }
    qp.unlock_send(queue);
    result
}

/// The entries of a work request.
///
/// # Safety
/// The list is well-formed, and the count was checked not to be negative.
#[inline(always)]
unsafe fn entries(wr: &ibv_send_wr) -> &[ibv_sge] {
    match wr.num_sge {
        0 => &[],
        // SAFETY: the caller's contract.
        count => unsafe { slice::from_raw_parts(wr.sg_list, count as usize) },
    }
}

impl Qp {
    /// Accepts a work request, and executes it if it can be.
    ///
    /// # Safety
    /// As for [`post_send`].
    #[inline(always)]
    unsafe fn submit(&self, queue: &mut SendQueue, wr: &ibv_send_wr) -> Result<(), Errno> {
        let state = self.state();
        // SAFETY: the caller's contract.
        unsafe { self.check(queue, state, wr) }?;
        let position = queue.posted;
        if state == ibv_qp_state::IBV_QPS_RTS && queue.deferred.is_empty() && !queue.special {
            queue.posted = position.wrapping_add(1);
            // SAFETY: the caller's contract.
            unsafe { self.run(queue, wr, position) };
            return Ok(());
        }
        // SAFETY: the caller's contract.
        if self.transport == Transport::Datagram && !unsafe { is_datagram(wr) } {
            return Err(Errno::EINVAL);
        }
        queue.posted = position.wrapping_add(1);
        // SAFETY: the caller's contract.
        unsafe { self.submit_specially(queue, wr, position) };
        Ok(())
    }

    /// What a library checks before it hands a work request to a device.
    ///
    /// # Safety
    /// As for [`post_send`].
    #[inline(always)]
    unsafe fn check(
        &self,
        queue: &SendQueue,
        state: ibv_qp_state::Type,
        wr: &ibv_send_wr,
    ) -> Result<(), Errno> {
        let sends = matches!(
            state,
            ibv_qp_state::IBV_QPS_RTS
                | ibv_qp_state::IBV_QPS_SQD
                | ibv_qp_state::IBV_QPS_SQE
                | ibv_qp_state::IBV_QPS_ERR
        );
        if !sends || !(0..=self.caps.max_send_sge as c_int).contains(&wr.num_sge) {
            return Err(Errno::EINVAL);
        }
        let outstanding = queue.posted.wrapping_sub(self.sends_released.load(Ordering::Acquire));
        if outstanding >= self.caps.max_send_wr {
            return Err(Errno::ENOMEM);
        }
        if wire::completes_as(wr.opcode).is_none() {
            return Err(Errno::EOPNOTSUPP);
        }
        let pulls = wire::pulls(wr.opcode);
        if pulls && queue.max_rd_atomic == 0 {
            return Err(Errno::EINVAL);
        }
        if wr.send_flags & INLINE != 0 {
            // SAFETY: the caller's contract; the count was checked above.
            let bytes: u64 = unsafe { entries(wr) }.iter().map(|entry| u64::from(entry.length)).sum();
            if pulls || bytes > u64::from(self.caps.max_inline_data) {
                return Err(Errno::EINVAL);
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Qp::submit`], and `wr` was checked.
    #[cold]
    unsafe fn submit_specially(&self, queue: &mut SendQueue, wr: &ibv_send_wr, position: u32) {
        match self.state() {
            ibv_qp_state::IBV_QPS_ERR | ibv_qp_state::IBV_QPS_SQE => {
                self.flush_deferred(queue);
                self.complete_in_error(wr, position, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
                return;
            }
            // SAFETY: the caller's contract.
            ibv_qp_state::IBV_QPS_SQD => return unsafe { self.defer(queue, wr, position) },
            _ => {}
        }
        if self.misbehaves(queue, wr, position) {
            return;
        }
        match self.transport {
            // SAFETY: the caller's contract.
            Transport::Reliable if queue.deferred.is_empty() && !self.is_held_back(queue, wr) => unsafe {
                self.run(queue, wr, position);
            },
            // SAFETY: the caller's contract.
            Transport::Reliable => unsafe { self.defer(queue, wr, position) },
            // SAFETY: the caller's contract.
            Transport::Unreliable | Transport::Datagram => unsafe {
                self.run_unacknowledged(queue, wr, position);
            },
        }
    }

    /// Executes a work request that nothing is ahead of.
    ///
    /// # Safety
    /// As for [`Qp::submit`], and `wr` was checked.
    #[inline(always)]
    unsafe fn run(&self, queue: &mut SendQueue, wr: &ibv_send_wr, position: u32) {
        // SAFETY: the caller's contract.
        match unsafe { self.execute(queue, wr, position) } {
            Ok(len) => self.complete(queue, wr, position, len),
            // SAFETY: the caller's contract.
            Err(stop) => unsafe { self.stopped(queue, wr, position, &stop) },
        }
    }

    /// # Safety
    /// As for [`Qp::run`].
    #[cold]
    #[inline(never)]
    unsafe fn stopped(&self, queue: &mut SendQueue, wr: &ibv_send_wr, position: u32, stop: &Stop) {
        match *stop {
            Stop::Failed(status) => self.fail(queue, wr, position, status),
            Stop::NotReady(timer) => {
                self.pd.context.count_not_ready();
                if self.gives_up(queue, timer) {
                    self.fail(queue, wr, position, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
                } else {
                    // SAFETY: the caller's contract.
                    unsafe { self.defer(queue, wr, position) };
                }
            }
        }
    }

    /// Moves the data of a checked work request, and returns how many bytes. Nothing has happened if it stops.
    ///
    /// # Safety
    /// The caller holds the lock of `queue`, which is this queue pair's, and `wr` fulfils the contract of
    /// [`post_send`].
    #[inline(always)]
    pub(super) unsafe fn execute(
        &self,
        queue: &mut SendQueue,
        wr: &ibv_send_wr,
        position: u32,
    ) -> Result<u32, Stop> {
        let pulls = wire::pulls(wr.opcode);
        let mut local = Pieces::new();
        // SAFETY: the caller's contract.
        unsafe { self.find_local(wr, &mut local) }?;
        let wrong_size = wire::is_atomic(wr.opcode) && local.total != size_of::<u64>() as u64;
        if local.total > u64::from(queue.max_message) || wrong_size {
            return Err(Stop::Failed(ibv_wc_status::IBV_WC_LOC_LEN_ERR));
        }
        if queue.peer.is_none() {
            queue.peer = self.find_peer(queue);
        }
        let Some(peer) = &queue.peer else {
            return Err(Stop::Failed(ibv_wc_status::IBV_WC_RETRY_EXC_ERR));
        };
        let packets = queue.packets(local.total);
        // SAFETY: the caller's contract.
        let mut request = unsafe { self.request(queue, wr, &local) };
        let corrupted;
        if queue.faulty {
            if let Err(stop) = self.finds_receive(peer, wr, local.total) {
                queue.aftermath.flush = Some(Arc::clone(peer));
                return Err(stop);
            }
            if !pulls && self.corrupts(position) {
                corrupted = corrupted_copy(&local);
                request.local = &corrupted.1;
            }
        }
        let mut responder = peer.responder.lock();
        if !responder.expects(self.number, queue.psn)
            && !peer.establishes(&mut responder, self.number, Some(queue.psn))
        {
            // What seems to be sent again is acknowledged again and has no effect; a read or an atomic would need the
            // answer of before.
            if pulls || !responder.has_had(self.number, queue.psn, packets) {
                return Err(Stop::Failed(ibv_wc_status::IBV_WC_RETRY_EXC_ERR));
            }
            queue.psn = queue.psn.wrapping_add(packets) & PSN_MASK;
            return Ok(local.total as u32);
        }
        // SAFETY: the lock of this send queue is held; the responder is the peer's.
        let mut result = unsafe { peer.respond(&mut responder, &request) };
        if result == Err(Refusal::NotReady) && peer.await_receive(&mut responder, self) {
            // SAFETY: as above.
            result = unsafe { peer.respond_again(&mut responder, &request) };
            if result.is_ok() && queue.deferred.is_empty() {
                peer.awaited.store(false, Ordering::Relaxed);
            }
        }
        match result {
            Ok(()) => {
                if queue.faulty && pulls && self.corrupts(position) {
                    // SAFETY: found by its key, for writing.
                    unsafe { flip_middle(local.as_slice(), local.total) };
                }
                responder.advance(packets);
                queue.psn = queue.psn.wrapping_add(packets) & PSN_MASK;
                Ok(local.total as u32)
            }
            Err(Refusal::NotReady) => Err(Stop::NotReady(responder.min_rnr_timer)),
            Err(Refusal::Fatal(status)) => {
                queue.aftermath.flush = Some(Arc::clone(peer));
                Err(Stop::Failed(status))
            }
        }
    }

    /// Puts the memory of a work request on this side into `local`, which is empty.
    ///
    /// # Safety
    /// As for [`Qp::execute`].
    #[inline(always)]
    pub(super) unsafe fn find_local(&self, wr: &ibv_send_wr, local: &mut Pieces) -> Result<(), Stop> {
        // SAFETY: the caller's contract.
        let entries = unsafe { entries(wr) };
        if wr.send_flags & INLINE != 0 {
            add_inline(local, entries);
            return Ok(());
        }
        let to = if wire::pulls(wr.opcode) { Use::Scatter } else { Use::Gather };
        // SAFETY: the lock of a send queue that `numbers` knows is held.
        let found = unsafe { local.find(self.pd.as_ibv(), entries, to) };
        found.ok_or(Stop::Failed(ibv_wc_status::IBV_WC_LOC_PROT_ERR))
    }

    /// What the other side is told of a work request.
    ///
    /// # Safety
    /// As for [`Qp::execute`].
    #[inline(always)]
    pub(super) unsafe fn request<'a>(
        &self,
        queue: &SendQueue,
        wr: &ibv_send_wr,
        local: &'a Pieces,
    ) -> Request<'a> {
        let mut request = Request {
            opcode: wr.opcode,
            solicited: wr.send_flags & SOLICITED != 0,
            imm: 0,
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            local,
            mtu_shift: queue.mtu_shift,
            from: self.number,
            lid: self.pd.context.device.lid,
            service_level: queue.address.sl,
        };
        // SAFETY: the caller's contract: the fields that the opcode needs are filled in.
        unsafe { request.take_operands(wr) };
        request
    }

    /// Who is at the other end of the path, if it leads anywhere.
    #[cold]
    pub(super) fn find_peer(&self, queue: &SendQueue) -> Option<Arc<Qp>> {
        let context = &self.pd.context;
        let same_device = |peer: &Arc<Qp>| ptr::eq(peer.pd.context.device, context.device);
        let hears = |peer: &Arc<Qp>| peer.transport == self.transport && !peer.pd.context.is_down();
        if !context.reaches(&queue.address) {
            return None;
        }
        numbers::find(queue.dest_qpn).filter(same_device).filter(hears)
    }

    /// The message of this work request is one that must not arrive intact.
    #[cold]
    pub(super) fn corrupts(&self, position: u32) -> bool {
        self.pd.context.faults.corrupt.is_some_and(|every| position.wrapping_add(1).is_multiple_of(every))
    }

    /// Tells of a success, if it is to be told.
    #[inline(always)]
    pub(super) fn complete(&self, queue: &mut SendQueue, wr: &ibv_send_wr, position: u32, len: u32) {
        if wr.send_flags & SIGNALED == 0 && !self.signal_all {
            return;
        }
        let completion = Completion {
            byte_len: len,
            ..wire::completion(
                wr.wr_id,
                wire::completes_as(wr.opcode).unwrap_or_default(),
                ibv_wc_status::IBV_WC_SUCCESS,
                self.number,
            )
        };
        if !self.send_cq.push(&completion, self, position, false) {
            self.completion_lost(queue);
        }
    }

    /// The completion queue of the sends has no room: nobody will learn what became of them.
    #[cold]
    fn completion_lost(&self, queue: &mut SendQueue) {
        self.raise(IBV_EVENT_QP_FATAL);
        self.fail_send_queue(queue);
    }

    /// Tells of a failure: always told, signalled or not.
    #[cold]
    fn complete_in_error(&self, wr: &ibv_send_wr, position: u32, status: ibv_wc_status::Type) {
        let opcode = wire::completes_as(wr.opcode).unwrap_or_default();
        // A lost completion changes nothing: the queue pair is in ERR or on its way.
        self.send_cq.push(&wire::completion(wr.wr_id, opcode, status, self.number), self, position, false);
    }

    /// Completes `wr` in error, moves to ERR or SQE and flushes what is outstanding.
    #[cold]
    pub(super) fn fail(
        &self,
        queue: &mut SendQueue,
        wr: &ibv_send_wr,
        position: u32,
        status: ibv_wc_status::Type,
    ) {
        self.complete_in_error(wr, position, status);
        self.fail_send_queue(queue);
    }

    /// Moves to ERR because of what was sent, and flushes what is outstanding. Where nothing is acknowledged only the
    /// send queue fails: to SQE, from where it can be brought back.
    fn fail_send_queue(&self, queue: &mut SendQueue) {
        if self.transport != Transport::Reliable {
            self.note_send_error();
            return self.flush_deferred(queue);
        }
        self.note_error();
        self.flush_deferred(queue);
        let mut responder = self.responder.lock();
        responder.close();
        self.flush_receives(&mut responder);
        queue.aftermath.kick = mem::take(&mut responder.waiter);
    }

    /// Completes every deferred send as flushed, in order.
    pub(super) fn flush_deferred(&self, queue: &mut SendQueue) {
        if queue.deferred.is_empty() {
            return;
        }
        while let Some((wr, position)) = queue.deferred.front() {
            // SAFETY: valid until popped.
            self.complete_in_error(unsafe { &*wr }, position, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
            queue.deferred.pop();
        }
        self.stop_waiting(queue);
    }
}

/// The work request can be a datagram.
///
/// # Safety
/// As for [`post_send`].
#[cold]
unsafe fn is_datagram(wr: &ibv_send_wr) -> bool {
    // SAFETY: any of the union's members may be looked at for whether it is null: the caller filled it in.
    wire::is_send(wr.opcode) && !unsafe { wr.wr.ud.ah }.is_null()
}

/// Appends the memory of an inline work request, which needs no key.
#[inline(always)]
fn add_inline(pieces: &mut Pieces, entries: &[ibv_sge]) {
    debug_assert!(entries.len() <= limits::MAX_SGE);
    for entry in entries {
        if entry.length > 0 {
            let at = ptr::with_exposed_provenance_mut(entry.addr as usize);
            pieces.push(Piece { at, len: entry.length as usize });
        }
    }
}

/// A copy of the payload with a byte changed, and the memory it is in.
#[cold]
pub(super) fn corrupted_copy(local: &Pieces) -> (Vec<u8>, Pieces) {
    let mut bytes = Vec::with_capacity(local.total as usize);
    for piece in local.as_slice() {
        // SAFETY: found by its key, or inline memory of the caller.
        bytes.extend_from_slice(unsafe { slice::from_raw_parts(piece.at, piece.len) });
    }
    let mut pieces = Pieces::new();
    pieces.push(Piece { at: bytes.as_mut_ptr(), len: bytes.len() });
    // SAFETY: the copy, which nobody else knows.
    unsafe { flip_middle(pieces.as_slice(), pieces.total) };
    (bytes, pieces)
}

/// Changes the byte in the middle of `total` bytes. Not the last one if there are others: somebody may wait for it.
///
/// # Safety
/// The pieces are valid memory that may be written.
#[cold]
unsafe fn flip_middle(pieces: &[Piece], total: u64) {
    let mut offset = total as usize / 2;
    for piece in pieces {
        if offset < piece.len {
            // SAFETY: inside the piece.
            return unsafe { *piece.at.add(offset) ^= 0x55 };
        }
        offset -= piece.len;
    }
}
