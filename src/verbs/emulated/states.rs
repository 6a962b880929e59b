//! The states of a queue pair: which transitions there are, what each needs, and what it does.

use std::ffi::c_int;
use std::io;
use std::mem;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use ibverbs_sys::{
    IBV_EVENT_QP_LAST_WQE_REACHED, IBV_MTU_256, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_state as states,
};
use nix::errno::Errno;

use super::device::PORT;
use super::limits;
use super::queue_pair::{Qp, Transport};
use super::send_queue::PSN_MASK;
use super::sync::lock;

type State = states::Type;

const RESET: State = states::IBV_QPS_RESET;
const INIT: State = states::IBV_QPS_INIT;
const RTR: State = states::IBV_QPS_RTR;
const RTS: State = states::IBV_QPS_RTS;
const SQD: State = states::IBV_QPS_SQD;
const SQE: State = states::IBV_QPS_SQE;
const ERR: State = states::IBV_QPS_ERR;

const STATE: u32 = mask::IBV_QP_STATE.0;
const CUR_STATE: u32 = mask::IBV_QP_CUR_STATE.0;
const ACCESS: u32 = mask::IBV_QP_ACCESS_FLAGS.0;
const PKEY: u32 = mask::IBV_QP_PKEY_INDEX.0;
const PORT_NUMBER: u32 = mask::IBV_QP_PORT.0;
const ADDRESS: u32 = mask::IBV_QP_AV.0;
const MTU: u32 = mask::IBV_QP_PATH_MTU.0;
const TIMEOUT: u32 = mask::IBV_QP_TIMEOUT.0;
const RETRY: u32 = mask::IBV_QP_RETRY_CNT.0;
const RNR_RETRY: u32 = mask::IBV_QP_RNR_RETRY.0;
const RQ_PSN: u32 = mask::IBV_QP_RQ_PSN.0;
const SQ_PSN: u32 = mask::IBV_QP_SQ_PSN.0;
const RD_ATOMIC: u32 = mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
const DEST_RD_ATOMIC: u32 = mask::IBV_QP_MAX_DEST_RD_ATOMIC.0;
const RNR_TIMER: u32 = mask::IBV_QP_MIN_RNR_TIMER.0;
const DEST_QPN: u32 = mask::IBV_QP_DEST_QPN.0;
const QKEY: u32 = mask::IBV_QP_QKEY.0;
const DRAIN_NOTIFY: u32 = mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;

/// What a transition must and may be given, beside the state; `None` if there is no such transition. (InfiniBand
/// specification, volume 1, 11.2.5.2; the table `qp_state_table` of the kernel. Migration of paths is not supported.)
fn masks(transport: Transport, from: State, to: State) -> Option<(u32, u32)> {
    let reliable = transport == Transport::Reliable;
    // What lets messages in.
    let gate = if transport == Transport::Datagram { QKEY } else { ACCESS };
    let running = CUR_STATE | gate | if reliable { RNR_TIMER } else { 0 };
    let path = ADDRESS | MTU | DEST_QPN | RQ_PSN;
    let to_receive = match transport {
        Transport::Reliable => path | DEST_RD_ATOMIC | RNR_TIMER,
        Transport::Unreliable => path,
        Transport::Datagram => 0,
    };
    Some(match (from, to) {
        (_, RESET | ERR) => (0, CUR_STATE),
        (RESET, INIT) => (PKEY | PORT_NUMBER | gate, CUR_STATE),
        (INIT, INIT) => (0, PKEY | PORT_NUMBER | gate | CUR_STATE),
        (INIT, RTR) => (to_receive, gate | PKEY | CUR_STATE),
        (RTR, RTS) if reliable => (TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | RD_ATOMIC, running),
        (RTR, RTS) => (SQ_PSN, running),
        (RTS, RTS) | (SQD, SQD) | (SQD, RTS) => (0, running),
        (SQE, RTS) if !reliable => (0, running),
        (RTS, SQD) => (0, CUR_STATE | DRAIN_NOTIFY),
        _ => return None,
    })
}

impl Qp {
    /// `ibv_modify_qp(3)`; EINVAL, and nothing changed, for a transition, mask or value that is not allowed.
    pub(super) fn modify(&self, attr: &ibv_qp_attr, given: c_int) -> io::Result<()> {
        let mut attributes = lock(&self.attributes);
        let given = given as u32;
        let from = self.state();
        let to = if given & STATE != 0 { attr.qp_state } else { from };
        let (required, optional) = masks(self.transport, from, to).ok_or(Errno::EINVAL)?;
        let wrong_state = given & CUR_STATE != 0 && attr.cur_qp_state != from;
        if given & required != required || given & !(required | optional | STATE) != 0 || wrong_state {
            return Err(Errno::EINVAL.into());
        }
        if !self.acceptable(attr, given) {
            return Err(Errno::EINVAL.into());
        }
        match to {
            RESET => self.reset(),
            ERR => self.move_to_error(),
            _ => {
                self.configure(attr, given);
                // Somebody else may have found an error meanwhile.
                let moved = self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
                moved.map_err(|_| Errno::EINVAL)?;
                self.open(from, to);
                if from == SQD {
                    self.kick();
                }
            }
        }
        remember(&mut attributes, attr, given);
        // SAFETY: the lock of `attributes` is held.
        unsafe { self.show_state(self.state()) };
        Ok(())
    }

    /// Lets messages in on the way to RTS.
    fn open(&self, from: State, to: State) {
        let mut responder = self.responder.lock();
        match (from, to) {
            // Datagrams establish nothing.
            (INIT, RTR) if self.transport == Transport::Datagram => responder.accepting = true,
            (INIT, RTR) => responder.fresh = true,
            (RTR, RTS) => {
                responder.accepting = true;
                responder.fresh = false;
            }
            _ => {}
        }
    }

    /// Every given value is one that the device takes.
    fn acceptable(&self, attr: &ibv_qp_attr, given: u32) -> bool {
        let context = &self.pd.context;
        let mtus = IBV_MTU_256..=ibverbs_sys::IBV_MTU_4096;
        let checks = [
            (PORT_NUMBER, attr.port_num == PORT),
            (PKEY, attr.pkey_index == 0),
            (ADDRESS, context.accepts(&attr.ah_attr)),
            (MTU, mtus.contains(&attr.path_mtu)),
            (DEST_QPN, attr.dest_qp_num <= PSN_MASK),
            (TIMEOUT, attr.timeout < 32),
            (RETRY, attr.retry_cnt < 8),
            (RNR_RETRY, attr.rnr_retry < 8),
            (RNR_TIMER, attr.min_rnr_timer < 32),
            (RD_ATOMIC, attr.max_rd_atomic <= limits::MAX_RD_ATOMIC),
            (DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= limits::MAX_RD_ATOMIC),
        ];
        checks.into_iter().all(|(bit, fine)| given & bit == 0 || fine)
    }

    /// Hands the given values to the two halves of the queue pair.
    fn configure(&self, attr: &ibv_qp_attr, given: u32) {
        let mtu_shift = 7 + attr.path_mtu;
        let set = |bit| given & bit != 0;
        let mut queue = self.send.lock();
        if set(MTU) {
            queue.mtu_shift = mtu_shift;
        }
        if set(ADDRESS) {
            queue.address = attr.ah_attr;
        }
        if set(DEST_QPN) {
            // The last number is that of multicast, which no queue pair has.
            queue.dest_qpn = if self.pd.context.faults.wrong_qpn { PSN_MASK } else { attr.dest_qp_num };
        }
        if set(SQ_PSN) {
            queue.psn = attr.sq_psn & PSN_MASK;
        }
        if set(QKEY) {
            queue.qkey = attr.qkey;
        }
        if set(RNR_RETRY) {
            queue.rnr_retry = attr.rnr_retry;
        }
        if set(RD_ATOMIC) {
            queue.max_rd_atomic = attr.max_rd_atomic;
        }
        self.unlock_send(queue);
        let mut responder = self.responder.lock();
        if set(MTU) {
            responder.mtu_shift = mtu_shift;
        }
        if set(DEST_QPN) {
            responder.dest_qpn = attr.dest_qp_num;
        }
        if set(RQ_PSN) {
            responder.psn = attr.rq_psn & PSN_MASK;
        }
        if set(QKEY) {
            responder.qkey = attr.qkey;
        }
        if set(ACCESS) {
            responder.access = attr.qp_access_flags;
        }
        if set(DEST_RD_ATOMIC) {
            responder.max_dest_rd_atomic = attr.max_dest_rd_atomic;
        }
        if set(RNR_TIMER) {
            responder.min_rnr_timer = attr.min_rnr_timer;
        }
    }

    /// `ibv_query_qp(3)`: attributes as last set, and the state and capacities as they are.
    pub(super) fn query(&self) -> ibv_qp_attr {
        let mut attr = *lock(&self.attributes);
        attr.qp_state = self.state();
        attr.cur_qp_state = attr.qp_state;
        attr.cap = self.caps;
        attr
    }

    /// Moves to SQE from a state that sends. Flushing is up to the caller.
    pub(super) fn note_send_error(&self) {
        let sends = |state| matches!(state, RTS | SQD).then_some(SQE);
        // Fails if there is an error already, and then there is nothing to do.
        let _ = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sends);
    }

    /// Moves to ERR from a state that has traffic. Flushing is up to the caller.
    pub(super) fn note_error(&self) {
        let has_traffic = |state| matches!(state, RTR | RTS | SQD | SQE).then_some(ERR);
        // Fails if there is no traffic any more, and then there is nothing to do.
        if self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, has_traffic).is_ok() {
            self.leave_shared();
        }
    }

    /// In ERR, it takes no shared receive any more.
    fn leave_shared(&self) {
        if self.shared.is_some() {
            self.raise(IBV_EVENT_QP_LAST_WQE_REACHED);
        }
    }

    /// Moves to ERR and flushes both queues. Work that is posted at the same time is flushed by its poster.
    fn move_to_error(&self) {
        if self.state.swap(ERR, Ordering::SeqCst) != ERR {
            self.leave_shared();
        }
        self.flush_sends();
        let mut responder = self.responder.lock();
        responder.close();
        self.flush_receives(&mut responder);
        let waiter = mem::take(&mut responder.waiter);
        drop(responder);
        // Its sends fail now.
        kick(&waiter);
    }

    /// Moves to RESET: forgets all work and its completions. Nothing is executed for this queue pair any more.
    pub(super) fn reset(&self) {
        self.state.store(RESET, Ordering::SeqCst);
        let mut queue = self.send.lock();
        if !queue.deferred.is_empty() {
            queue.deferred.clear();
            self.stop_waiting(&mut queue);
        }
        queue.peer = None;
        queue.handle = 0;
        let sends = queue.posted;
        self.unlock_send(queue);

        let receives = *self.receive.posted.lock();
        let mut responder = self.responder.lock();
        responder.close();
        responder.next_receive = receives;
        let waiter = mem::take(&mut responder.waiter);
        self.awaited.store(false, Ordering::Relaxed);
        drop(responder);
        kick(&waiter);

        self.send_cq.withdraw(self);
        self.recv_cq.withdraw(self);
        self.sends_released.store(sends, Ordering::Release);
        self.receive.released.store(receives, Ordering::Release);
    }
}

fn kick(waiter: &Weak<Qp>) {
    if let Some(waiter) = waiter.upgrade() {
        waiter.kick();
    }
}

/// Stores the given values for queries.
fn remember(into: &mut ibv_qp_attr, attr: &ibv_qp_attr, given: u32) {
    macro_rules! copy {
        ($($bit:ident => $field:ident),* $(,)?) => { $(if given & $bit != 0 { into.$field = attr.$field; })* };
    }
    copy! {
        ACCESS => qp_access_flags, PKEY => pkey_index, PORT_NUMBER => port_num, ADDRESS => ah_attr, MTU => path_mtu,
        TIMEOUT => timeout, RETRY => retry_cnt, RNR_RETRY => rnr_retry, RQ_PSN => rq_psn, SQ_PSN => sq_psn,
        RD_ATOMIC => max_rd_atomic, DEST_RD_ATOMIC => max_dest_rd_atomic, RNR_TIMER => min_rnr_timer,
        DEST_QPN => dest_qp_num, QKEY => qkey,
    }
}
