//! What becomes of a message on a device that was told to misbehave. Nothing here is reached on one that was not.

use std::hint;
use std::time::{Duration, Instant};

use ibverbs_sys::{IBV_EVENT_DEVICE_FATAL, IBV_EVENT_QP_FATAL, ibv_send_wr, ibv_wc_status};

use super::async_event::AsyncEvent;
use super::queue_pair::Qp;
use super::requester::Stop;
use super::send_queue::SendQueue;
use super::{timer, wire};

impl Qp {
    /// Does to a new message what the device was told to. True if nothing is left to be done with it.
    #[cold]
    pub(super) fn misbehaves(&self, queue: &mut SendQueue, wr: &ibv_send_wr, position: u32) -> bool {
        let context = &self.pd.context;
        let faults = &context.faults;
        let is_past = |last: Option<u32>| last.is_some_and(|last| position >= last);
        if is_past(faults.die_after) {
            context.events.raise(AsyncEvent { kind: IBV_EVENT_DEVICE_FATAL, number: 0, object: 0 });
            self.flush_deferred(queue);
            self.fail(queue, wr, position, ibv_wc_status::IBV_WC_FATAL_ERR);
            return true;
        }
        if let Some(status) = faults.send_error {
            self.fail(queue, wr, position, status);
            return true;
        }
        if is_past(faults.device_fatal_after) {
            context.fall_silent();
        }
        if context.is_silent() {
            return true;
        }
        if is_past(faults.qp_fatal_after) {
            if faults.qp_fatal_after == Some(position) {
                self.raise(IBV_EVENT_QP_FATAL);
            }
            return true;
        }
        if is_past(faults.port_error_after) {
            context.lose_port();
        }
        if context.is_down() || queue.peer.as_ref().is_some_and(|peer| peer.pd.context.is_down()) {
            queue.peer = None;
        }
        if faults.delay_ns > 0 {
            spin(faults.delay_ns);
        }
        false
    }

    /// A message must wait: the path takes one a while, or the receives of its target come late. Whoever sleeps is
    /// woken when the time is over.
    #[cold]
    pub(super) fn is_held_back(&self, queue: &mut SendQueue, wr: &ibv_send_wr) -> bool {
        let faults = &self.pd.context.faults;
        let late_ns = if wire::takes_receive(wr.opcode) { faults.late_receives_ns } else { 0 };
        let gap_ns = faults.pace_ns.max(late_ns);
        if gap_ns == 0 {
            return false;
        }
        let now = Instant::now();
        match queue.next_delivery {
            Some(next) if now < next => {
                if queue.alarm != Some(next) {
                    queue.alarm = Some(next);
                    if late_ns > faults.pace_ns {
                        self.pd.context.count_not_ready();
                    }
                    timer::kick_at(next, self.this.clone());
                }
                true
            }
            _ => {
                queue.next_delivery = Some(now + Duration::from_nanos(gap_ns.into()));
                false
            }
        }
    }

    /// What a message comes to whose target is told to have no receive for it, or one with less room.
    #[cold]
    pub(super) fn finds_receive(&self, target: &Qp, wr: &ibv_send_wr, len: u64) -> Result<(), Stop> {
        let faults = &self.pd.context.faults;
        if !faults.spoils_receives() || !wire::takes_receive(wr.opcode) {
            return Ok(());
        }
        let mut responder = target.responder.lock();
        if faults.withhold_receives {
            return Err(Stop::NotReady(responder.min_rnr_timer));
        }
        if wire::is_send(wr.opcode) && len > u64::from(faults.short_receives) {
            return Err(Stop::Failed(target.refuse_too_long(&mut responder)));
        }
        Ok(())
    }

    /// Deferred messages of a device told to be slow are left to the clock and to whoever posts receives: its polls cost
    /// no more than those of any other, as with a device that works by itself.
    #[cold]
    pub(super) fn goes_on_by_itself(&self) -> bool {
        let faults = &self.pd.context.faults;
        faults.pace_ns > 0 || faults.late_receives_ns > 0 || faults.slow_receives_ns > 0
    }

    /// The owner takes its time for a receive.
    #[inline(always)]
    pub(super) fn dawdle(&self) {
        if self.pd.context.faults.slow_receives_ns > 0 {
            spin(self.pd.context.faults.slow_receives_ns);
        }
    }
}

#[cold]
fn spin(ns: u32) {
    #[cfg(test)]
    if super::virtual_time::VirtualTime::passes(ns.into()) {
        return;
    }
    let (start, delay) = (Instant::now(), Duration::from_nanos(ns.into()));
    while start.elapsed() < delay {
        hint::spin_loop();
    }
}
