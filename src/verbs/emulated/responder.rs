//! The target's half of a message: does it expect the packet, does it have a receive, may the memory be touched.
//!
//! It runs in the thread of whoever sends, under the lock of the target's responder.

use std::ptr;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use ibverbs_sys::{
    IBV_EVENT_COMM_EST, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, ibv_qp_state,
    ibv_wc_flags, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

use super::completion::Completion;
use super::grh;
use super::memory::{self, Pd, Piece, Pieces, Use};
use super::queue_pair::{Qp, Transport};
use super::receive_queue::Receive;
use super::send_queue::PSN_MASK;
use super::wire::{self, Envelope, Request};

/// The state of a responder.
pub(super) struct Responder {
    /// In a state that receives. In RTR a connection does so after its first message.
    pub accepting: bool,
    /// In RTR, and nothing arrived yet.
    pub fresh: bool,
    /// Who may send.
    pub dest_qpn: u32,
    /// Sequence number of the next packet.
    pub psn: u32,
    /// Bytes of a packet, as a power of two.
    pub mtu_shift: u32,
    /// Remote access allowed by the queue pair.
    pub access: u32,
    /// Outstanding reads and atomics agreed on.
    pub max_dest_rd_atomic: u8,
    /// Code of the time that a requester must wait when there is no receive.
    pub min_rnr_timer: u8,
    /// Receives consumed.
    pub next_receive: u32,
    /// Whose sends wait for a receive.
    pub waiter: Weak<Qp>,
    /// What a datagram must carry to be taken.
    pub qkey: u32,
}

/// Why a responder did not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No receive is posted. Nothing happened.
    NotReady,
    /// What the requester's completion says; the responder's queue pair is in ERR.
    Fatal(ibv_wc_status::Type),
}

pub(super) const INVALID_REQUEST: Refusal = Refusal::Fatal(ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
const ACCESS_VIOLATION: Refusal = Refusal::Fatal(ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
pub(super) const OPERATION_FAILED: Refusal = Refusal::Fatal(ibv_wc_status::IBV_WC_REM_OP_ERR);

impl Responder {
    /// The responder of a queue pair in RESET.
    pub(super) fn new() -> Self {
        Self {
            accepting: false,
            fresh: false,
            dest_qpn: 0,
            psn: 0,
            mtu_shift: 8,
            access: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            next_receive: 0,
            waiter: Weak::new(),
            qkey: 0,
        }
    }

    /// A packet with this sequence number from this queue pair is taken and acknowledged.
    #[inline(always)]
    pub(super) fn expects(&self, from: u32, psn: u32) -> bool {
        self.accepting && self.dest_qpn == from && self.psn == psn
    }

    /// All these packets of this queue pair were acknowledged before, as far as their numbers tell.
    #[cold]
    pub(super) fn has_had(&self, from: u32, psn: u32, packets: u32) -> bool {
        let behind = self.psn.wrapping_sub(psn) & PSN_MASK;
        (self.accepting || self.fresh) && self.dest_qpn == from && (packets..=1 << 23).contains(&behind)
    }

    /// Takes nothing any more.
    pub(super) fn close(&mut self) {
        self.accepting = false;
        self.fresh = false;
    }

    /// Counts packets that were acknowledged.
    #[inline(always)]
    pub(super) fn advance(&mut self, packets: u32) {
        self.psn = self.psn.wrapping_add(packets) & PSN_MASK;
    }
}

impl Qp {
    /// A message from this queue pair, with this sequence number where it matters, is the first to a queue pair in RTR.
    /// Its owner is told that it can go on to RTS.
    #[cold]
    pub(super) fn establishes(&self, responder: &mut Responder, from: u32, psn: Option<u32>) -> bool {
        let expected = psn.is_none_or(|psn| psn == responder.psn);
        if !responder.fresh || responder.dest_qpn != from || !expected {
            return false;
        }
        responder.fresh = false;
        responder.accepting = true;
        self.raise(IBV_EVENT_COMM_EST);
        true
    }

    /// Does what `request` asks for, or drops it and counts that. Nobody is told, but for this queue pair's owner when
    /// a receive cannot be used: that moves it to ERR, and the caller must flush its sends.
    ///
    /// # Safety
    /// As for [`Qp::respond`].
    #[inline]
    pub(super) unsafe fn take_or_drop(
        &self,
        responder: &mut Responder,
        request: &Request<'_>,
    ) -> Result<(), Refusal> {
        // SAFETY: the caller's contract.
        match unsafe { self.serve(responder, request) } {
            Err(OPERATION_FAILED) => {
                self.fail_responder(responder, ibv_wc_status::IBV_WC_REM_OP_ERR);
                Err(OPERATION_FAILED)
            }
            Err(_) => {
                self.pd.context.count_dropped();
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Takes a datagram, or drops it and counts that, as [`Qp::take_or_drop`].
    ///
    /// # Safety
    /// As for [`Qp::respond`].
    pub(super) unsafe fn take_datagram(
        &self,
        responder: &mut Responder,
        request: &Request<'_>,
        envelope: &Envelope,
    ) -> Result<(), Refusal> {
        let len = request.local.total + grh::BYTES as u64;
        if envelope.qkey != responder.qkey {
            self.pd.context.count_dropped();
            return Ok(());
        }
        let shared = self.shared.as_deref().map(|queue| (queue, queue.take()));
        let (pd, receive) = match &shared {
            Some((queue, taken)) => (&queue.pd, taken.as_ref()),
            // SAFETY: nobody else consumes receives while the responder is locked.
            None => (&self.pd, unsafe { self.receive.get(responder.next_receive) }),
        };
        let Some(receive) = receive.filter(|receive| receive.room() >= len) else {
            if let Some((queue, Some(taken))) = shared {
                queue.give_back(taken);
            }
            self.pd.context.count_dropped();
            return Ok(());
        };
        let mut into = Pieces::new();
        // SAFETY: the caller's contract.
        let found = unsafe { self.scatter(pd, receive, len, &mut into) };
        if found.is_none() {
            match shared {
                Some(_) => self.fail_shared(receive, ibv_wc_status::IBV_WC_LOC_PROT_ERR),
                None => self.fail_receive(responder, ibv_wc_status::IBV_WC_LOC_PROT_ERR),
            }
            self.fail_responder(responder, ibv_wc_status::IBV_WC_REM_OP_ERR);
            return Err(OPERATION_FAILED);
        }
        let mut completion = self.arrival(receive, request, ibv_wc_opcode::IBV_WC_RECV);
        completion.byte_len = len as u32;
        if let Some(mut header) = envelope.header {
            completion.wc_flags |= ibv_wc_flags::IBV_WC_GRH.0;
            let header = Piece { at: header.as_mut_ptr(), len: header.len() };
            // SAFETY: `into` was found by its keys, and is longer.
            unsafe { memory::copy(&[header], into.as_slice()) };
        }
        // SAFETY: both sides were found by their keys, and there is room.
        unsafe { memory::copy(request.local.as_slice(), into.skip(grh::BYTES).as_slice()) };
        if shared.is_none() {
            responder.next_receive = responder.next_receive.wrapping_add(1);
        }
        let position = responder.next_receive.wrapping_sub(1);
        if !self.recv_cq.push(&completion, self, position, request.solicited) {
            self.fail_responder(responder, ibv_wc_status::IBV_WC_REM_OP_ERR);
            return Err(OPERATION_FAILED);
        }
        Ok(())
    }

    /// Does what `request` asks for, or moves this queue pair to ERR.
    ///
    /// # Safety
    /// The caller holds the lock of a send queue known to `numbers`, and `responder` is this queue pair's.
    #[inline]
    pub(super) unsafe fn respond(
        &self,
        responder: &mut Responder,
        request: &Request<'_>,
    ) -> Result<(), Refusal> {
        // SAFETY: the caller's contract.
        let result = unsafe { self.serve(responder, request) };
        if let Err(Refusal::Fatal(status)) = result {
            self.fail_responder(responder, status);
        }
        result
    }

    /// [`Qp::respond`], once more for a requester that asked to be kicked.
    ///
    /// # Safety
    /// As for [`Qp::respond`].
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn respond_again(
        &self,
        responder: &mut Responder,
        request: &Request<'_>,
    ) -> Result<(), Refusal> {
        // SAFETY: the caller's contract.
        unsafe { self.respond(responder, request) }
    }

    /// # Safety
    /// As for [`Qp::respond`].
    #[inline(always)]
    unsafe fn serve(&self, responder: &mut Responder, request: &Request<'_>) -> Result<(), Refusal> {
        let len = request.local.total;
        if request.mtu_shift != responder.mtu_shift && len > 1 << request.mtu_shift.min(responder.mtu_shift) {
            return Err(INVALID_REQUEST);
        }
        // SAFETY, for every call below: the caller's contract.
        match request.opcode {
            ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => {
                // SAFETY: nobody else consumes receives while the responder is locked.
                let Some(receive) = (unsafe { self.receive.get(responder.next_receive) }) else {
                    // SAFETY: the caller's contract.
                    return unsafe { self.serve_from_shared(responder, request) };
                };
                if receive.room() < len {
                    return Err(self.too_long(responder));
                }
                let mut into = Pieces::new();
                // SAFETY: the caller's contract.
                let found = unsafe { self.scatter(&self.pd, receive, len, &mut into) };
                if found.is_none() {
                    self.fail_receive(responder, ibv_wc_status::IBV_WC_LOC_PROT_ERR);
                    return Err(OPERATION_FAILED);
                }
                // SAFETY: both sides were found by their keys, and there is room.
                unsafe { memory::copy(request.local.as_slice(), into.as_slice()) };
                let completion = self.arrival(receive, request, ibv_wc_opcode::IBV_WC_RECV);
                self.complete_receive(responder, &completion, request.solicited)
            }
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => {
                // SAFETY: the caller's contract.
                unsafe { self.write(responder, request) }
            }
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                // SAFETY: nobody else consumes receives while the responder is locked.
                let Some(receive) = (unsafe { self.receive.get(responder.next_receive) }) else {
                    // SAFETY: the caller's contract.
                    return unsafe { self.serve_from_shared(responder, request) };
                };
                // SAFETY: the caller's contract.
                unsafe { self.write(responder, request) }?;
                let completion = self.arrival(receive, request, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM);
                self.complete_receive(responder, &completion, request.solicited)
            }
            ibv_wr_opcode::IBV_WR_RDMA_READ => {
                // SAFETY: the caller's contract.
                let from = unsafe { self.remote(responder, request, len as usize, Use::RemoteRead) }?;
                // SAFETY: both sides were found by their keys, and they are equally long.
                unsafe { memory::copy(&[from], request.local.as_slice()) };
                Ok(())
            }
            // SAFETY: the caller's contract.
            _ => unsafe { self.atomic(responder, request) },
        }
    }

    /// # Safety
    /// As for [`Qp::respond`].
    #[inline(always)]
    pub(super) unsafe fn write(&self, responder: &Responder, request: &Request<'_>) -> Result<(), Refusal> {
        let len = request.local.total as usize;
        // SAFETY: the caller's contract.
        let into = unsafe { self.remote(responder, request, len, Use::RemoteWrite) }?;
        // SAFETY: both sides were found by their keys, and they are equally long.
        unsafe { memory::copy(request.local.as_slice(), &[into]) };
        Ok(())
    }

    /// # Safety
    /// As for [`Qp::respond`].
    #[inline(never)]
    unsafe fn atomic(&self, responder: &Responder, request: &Request<'_>) -> Result<(), Refusal> {
        // SAFETY: the caller's contract.
        let target = unsafe { self.remote(responder, request, size_of::<u64>(), Use::RemoteAtomic) }?;
        if !target.at.cast::<u64>().is_aligned() {
            return Err(INVALID_REQUEST);
        }
        // SAFETY: eight aligned bytes of registered memory. Whoever else uses them uses atomics too, or races as it
        // would with any device.
        let target = unsafe { AtomicU64::from_ptr(target.at.cast()) };
        let mut before = match request.opcode {
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                target.fetch_add(request.compare_add, Ordering::SeqCst)
            }
            _ => target
                .compare_exchange(request.compare_add, request.swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|found| found),
        };
        let before = Piece { at: (&raw mut before).cast(), len: size_of::<u64>() };
        // SAFETY: the requester's eight bytes were found by their keys.
        unsafe { memory::copy(&[before], request.local.as_slice()) };
        Ok(())
    }

    /// The memory that the request names here. A request of no bytes needs a right but no key.
    ///
    /// # Safety
    /// As for [`Qp::respond`].
    #[inline(always)]
    unsafe fn remote(
        &self,
        responder: &Responder,
        request: &Request<'_>,
        len: usize,
        to: Use,
    ) -> Result<Piece, Refusal> {
        let needs = to.needs_of_queue_pair();
        let pulls = matches!(to, Use::RemoteRead | Use::RemoteAtomic);
        if responder.access & needs != needs || (pulls && responder.max_dest_rd_atomic == 0) {
            return Err(INVALID_REQUEST);
        }
        if len == 0 {
            return Ok(Piece { at: ptr::null_mut(), len: 0 });
        }
        // SAFETY: the caller's contract.
        unsafe { memory::find(self.pd.as_ibv(), request.rkey, request.remote_addr, len, to) }
            .ok_or(ACCESS_VIOLATION)
    }

    /// Puts the first `len` bytes that a receive has room for into `pieces`, which is empty; `None` when a key does not
    /// give them in `pd`.
    ///
    /// # Safety
    /// As for [`Qp::respond`].
    #[inline(always)]
    pub(super) unsafe fn scatter(
        &self,
        pd: &Pd,
        receive: &Receive,
        len: u64,
        pieces: &mut Pieces,
    ) -> Option<()> {
        for entry in receive.entries() {
            let wanted = len - pieces.total;
            if wanted == 0 {
                break;
            }
            let part = wanted.min(u64::from(entry.length)) as usize;
            if part > 0 {
                // SAFETY: the caller's contract.
                pieces
                    .push(unsafe { memory::find(pd.as_ibv(), entry.lkey, entry.addr, part, Use::Scatter) }?);
            }
        }
        Some(())
    }

    /// What the owner is told of a message that arrived.
    #[inline(always)]
    pub(super) fn arrival(
        &self,
        receive: &Receive,
        request: &Request<'_>,
        opcode: ibv_wc_opcode::Type,
    ) -> Completion {
        let has_imm = wire::carries_immediate(request.opcode);
        Completion {
            wr_id: receive.wr_id,
            status: ibv_wc_status::IBV_WC_SUCCESS,
            opcode,
            vendor_err: 0,
            byte_len: request.local.total as u32,
            imm_data: if has_imm { request.imm } else { 0 },
            qp_num: self.number,
            src_qp: request.from,
            wc_flags: if has_imm { ibv_wc_flags::IBV_WC_WITH_IMM.0 } else { 0 },
            pkey_index: 0,
            slid: request.lid,
            sl: request.service_level,
            dlid_path_bits: 0,
        }
    }

    /// Tells the owner, and goes on to the next receive.
    #[inline(always)]
    fn complete_receive(
        &self,
        responder: &mut Responder,
        completion: &Completion,
        solicited: bool,
    ) -> Result<(), Refusal> {
        let position = responder.next_receive;
        responder.next_receive = position.wrapping_add(1);
        let kept = self.recv_cq.push(completion, self, position, solicited);
        if kept { Ok(()) } else { Err(OPERATION_FAILED) }
    }

    /// A message is longer than the next receive. Where nothing is acknowledged it is only dropped.
    #[cold]
    fn too_long(&self, responder: &mut Responder) -> Refusal {
        if self.transport == Transport::Reliable {
            self.fail_receive(responder, ibv_wc_status::IBV_WC_LOC_LEN_ERR);
        }
        INVALID_REQUEST
    }

    /// The same, whatever room the next receive has. Returns what the requester is told.
    #[cold]
    pub(super) fn refuse_too_long(&self, responder: &mut Responder) -> ibv_wc_status::Type {
        self.too_long(responder);
        self.fail_responder(responder, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR
    }

    /// Completes the next receive with an error.
    #[cold]
    fn fail_receive(&self, responder: &mut Responder, status: ibv_wc_status::Type) {
        let position = responder.next_receive;
        // SAFETY: the responder is locked, or `responder` could not be borrowed.
        let Some(receive) = (unsafe { self.receive.get(position) }) else { return };
        let completion = wire::completion(receive.wr_id, ibv_wc_opcode::IBV_WC_RECV, status, self.number);
        responder.next_receive = position.wrapping_add(1);
        // A lost completion changes nothing: the queue pair is on its way to ERR.
        self.recv_cq.push(&completion, self, position, false);
    }

    /// Moves to ERR because of what a peer sent, who is told this status. The caller must flush the sends once it holds
    /// no locks.
    #[cold]
    fn fail_responder(&self, responder: &mut Responder, status: ibv_wc_status::Type) {
        self.note_error();
        self.raise(match status {
            ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => IBV_EVENT_QP_REQ_ERR,
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR => IBV_EVENT_QP_ACCESS_ERR,
            _ => IBV_EVENT_QP_FATAL,
        });
        responder.close();
        self.flush_receives(responder);
    }

    /// Completes every posted receive as flushed, in order, if the state is ERR.
    pub(super) fn flush_receives(&self, responder: &mut Responder) {
        if self.state() != ibv_qp_state::IBV_QPS_ERR {
            return;
        }
        // A receive that is posted while this runs is found here, or its poster finds ERR and comes back: it publishes
        // the receive and then looks at the state, both sequentially consistent; here it is the other way round.
        // SAFETY: the responder is locked, or `responder` could not be borrowed.
        while unsafe { self.receive.get(responder.next_receive) }.is_some() {
            self.fail_receive(responder, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
        }
    }

    /// Flushes receives that came too late for whoever moved to ERR.
    #[cold]
    pub(super) fn flush_posted_receives(&self) {
        self.flush_receives(&mut self.responder.lock());
    }
}
