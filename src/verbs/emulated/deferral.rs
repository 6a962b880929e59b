//! Sends whose peer has no receive: who tries them again, when, and when they fail.
//!
//! A deferred send is tried again by its owner's polls and by whoever posts a receive at the peer, so that an owner
//! that sleeps misses nothing. Each that finds the send queue locked leaves a note instead; the holder looks for it
//! when it has unlocked, if it leaves deferred sends behind.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ibverbs_sys::{ibv_qp_state, ibv_send_wr, ibv_wc_status};

use super::super::transition::rnr_wait;
use super::queue_pair::{Qp, Transport};
use super::requester::Stop;
use super::responder::Responder;
use super::send_queue::{RETRY_FOR_EVER, SendQueue};
use super::sync::SpinGuard;
use super::timer;

impl Qp {
    /// Gives the send queue back, and does what must be done without its lock.
    #[inline(always)]
    pub(super) fn unlock_send(&self, queue: SpinGuard<'_, SendQueue>) {
        let aftermath = &queue.aftermath;
        if queue.deferred.is_empty() && aftermath.flush.is_none() && aftermath.kick.strong_count() == 0 {
            drop(queue);
        } else {
            self.unlock_send_with_care(queue);
        }
    }

    #[cold]
    #[inline(never)]
    fn unlock_send_with_care<'a>(&'a self, mut queue: SpinGuard<'a, SendQueue>) {
        loop {
            let aftermath = std::mem::take(&mut queue.aftermath);
            let leaves_work = !queue.deferred.is_empty();
            queue.unlock_then_look();
            if let Some(peer) = aftermath.flush {
                peer.flush_sends();
            }
            if let Some(waiter) = aftermath.kick.upgrade() {
                waiter.kick();
            }
            if !leaves_work || !self.kicked.load(Ordering::SeqCst) {
                return;
            }
            queue = self.send.lock();
            self.retry_deferred(&mut queue);
        }
    }

    /// Tries deferred sends again, or leaves that to whoever is at work on the send queue. No lock may be held.
    pub(super) fn kick(&self) {
        self.kicked.store(true, Ordering::SeqCst);
        if let Some(mut queue) = self.send.try_lock() {
            self.retry_deferred(&mut queue);
            self.unlock_send(queue);
        }
    }

    /// A receive was posted: kicks the peer that waits for one. No lock may be held.
    #[cold]
    pub(super) fn kick_waiter(&self) {
        let waiter = self.responder.lock().waiter.clone();
        if let Some(waiter) = waiter.upgrade() {
            waiter.kick();
        }
    }

    /// Executes deferred sends in order, until the peer has no receive again.
    pub(super) fn retry_deferred(&self, queue: &mut SendQueue) {
        // Reads the note, so that what its writer did before it is seen below.
        self.kicked.swap(false, Ordering::SeqCst);
        while let Some((wr, position)) = queue.deferred.front() {
            match self.state() {
                ibv_qp_state::IBV_QPS_RTS => {}
                ibv_qp_state::IBV_QPS_ERR => return self.flush_deferred(queue),
                _ => return,
            }
            // SAFETY: valid until popped, which happens only after its last use in each branch below.
            let wr: &ibv_send_wr = unsafe { &*wr };
            if queue.faulty && self.is_held_back(queue, wr) {
                return;
            }
            // Below, the send queue is locked, or `queue` could not be borrowed; the copy in `deferred` points to
            // memory that the poster keeps until it sees a completion.
            let result = match self.transport {
                // SAFETY: as above.
                Transport::Reliable => unsafe { self.execute(queue, wr, position) },
                // SAFETY: as above.
                Transport::Unreliable | Transport::Datagram => unsafe { self.transmit(queue, wr, position) },
            };
            match result {
                Ok(len) => {
                    let wr = *wr;
                    self.pop_deferred(queue);
                    self.complete(queue, &wr, position, len);
                }
                Err(Stop::NotReady(timer)) => {
                    if !self.gives_up(queue, timer) {
                        return;
                    }
                    let wr = *wr;
                    self.pop_deferred(queue);
                    return self.fail(queue, &wr, position, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
                }
                Err(Stop::Failed(status)) => {
                    let wr = *wr;
                    self.pop_deferred(queue);
                    return self.fail(queue, &wr, position, status);
                }
            }
        }
    }

    fn pop_deferred(&self, queue: &mut SendQueue) {
        queue.deferred.pop();
        queue.deadline = None;
        if queue.deferred.is_empty() {
            self.stop_waiting(queue);
        }
    }

    /// Keeps a copy of `wr` for later.
    ///
    /// # Safety
    /// `wr` was accepted into `queue`, which is this queue pair's.
    #[cold]
    pub(super) unsafe fn defer(&self, queue: &mut SendQueue, wr: &ibv_send_wr, position: u32) {
        if queue.deferred.is_empty() && !self.goes_on_by_itself() {
            self.send_cq.add_waiter(self.this.clone());
        }
        // SAFETY: the caller's contract; an accepted work request was checked.
        unsafe { queue.deferred.push(wr, position) };
    }

    /// Nothing is deferred any more: neither polls nor the peer's receives need to try.
    pub(super) fn stop_waiting(&self, queue: &mut SendQueue) {
        queue.deadline = None;
        self.send_cq.remove_waiter(self);
        if let Some(peer) = &queue.peer {
            let responder = peer.responder.lock();
            if responder.dest_qpn == self.number {
                peer.awaited.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Asks whoever posts a receive here to kick `sender`. True if that is new, and the caller must look for a receive
    /// once more.
    #[cold]
    pub(super) fn await_receive(&self, responder: &mut Responder, sender: &Qp) -> bool {
        if let Some(queue) = &self.shared {
            // Its list is used up with every receive.
            queue.await_receive(&self.this);
        } else if self.awaited.load(Ordering::Relaxed) && Weak::ptr_eq(&responder.waiter, &sender.this) {
            // Not written again and again: the owner reads it with every receive.
            return false;
        }
        responder.waiter = sender.this.clone();
        // Before that look in one total order; a poster publishes its receive and then looks at this. One of the two
        // sees the other.
        self.awaited.store(true, Ordering::SeqCst);
        true
    }

    /// The oldest send was refused for want of a receive: has it been tried for long enough? Starts the clock.
    pub(super) fn gives_up(&self, queue: &mut SendQueue, timer: u8) -> bool {
        match (queue.rnr_retry, queue.deadline) {
            (RETRY_FOR_EVER, _) => false,
            (0, _) => true,
            (_, Some(deadline)) => Instant::now() >= deadline,
            (retries, None) => {
                let deadline = Instant::now() + rnr_wait(timer) * u32::from(retries);
                queue.deadline = Some(deadline);
                timer::kick_at(deadline, self.this.clone());
                false
            }
        }
    }

    /// Flushes deferred sends if the state is ERR. No lock may be held.
    pub(super) fn flush_sends(&self) {
        let mut queue = self.send.lock();
        if self.state() == ibv_qp_state::IBV_QPS_ERR {
            self.flush_deferred(&mut queue);
        }
        self.unlock_send(queue);
    }
}
