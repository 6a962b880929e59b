//! Shared receive queues: receives that several queue pairs take.

use std::sync::Arc;

use ibverbs_sys::{ibv_srq, ibv_srq_attr};

use super::cycle::Slots;
use super::memory::Pd;
use super::receive::Receiver;
use super::receive_ring::ReceiveRing;
use super::slice::Slice;
use crate::error::{Error, Result, Step};

/// Shared receive queue: queue pairs made with it ([`QpInit::srq`](super::QpInit::srq)) have no receives of their own;
/// each message to one of them takes the oldest here. Its completion names the queue pair
/// ([`Wc::qp_number`](super::Wc::qp_number)). When a queue pair fails, what is posted here stays for the others.
///
/// Clones share it; it is destroyed when the last clone, the last queue pair and the last [`Receiver`] of it are gone.
#[derive(Debug, Clone)]
pub struct Srq(Arc<SrqInner>);

#[derive(Debug)]
struct SrqInner {
    raw: *mut ibv_srq,
    max_wr: u32,
    max_sge: u32,
    pd: Pd,
}

// SAFETY: verbs objects may be used from any thread, and from several at once (`ibv_alloc_td(3)`).
unsafe impl Send for SrqInner {}
// SAFETY: as above.
unsafe impl Sync for SrqInner {}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // SAFETY: the queue is live and destroyed once; queue pairs and receivers of it held it, so they are gone.
        let destroyed = unsafe { self.pd.0.context().provider.destroy_srq(self.raw) };
        if destroyed.is_err() {
            std::mem::forget(self.pd.clone());
        }
        debug_assert!(destroyed.is_ok(), "ibv_destroy_srq: {destroyed:?}");
    }
}

impl Pd {
    /// Makes a shared receive queue for at least `max_wr` receives of at most `max_sge` slices each.
    /// `ibv_create_srq(3)`
    ///
    /// # Errors
    /// [`Step::CreateQp`]: the device has no such queues, or not as large ones, or is short of something.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq> {
        let context = &self.0.context;
        let limits = context.cached_attr()?;
        let name = context.device().name();
        for (what, wanted, most, limit) in [
            ("receives", max_wr, limits.max_srq_wr, "max_srq_wr"),
            ("slices for a receive", max_sge, limits.max_srq_sge, "max_srq_sge"),
        ] {
            if !(1..=most).contains(&wanted) {
                return Err(Error::failed(
                    Step::CreateQp,
                    format!(
                        "a shared receive queue of {wanted} {what} is outside what {name} can: 1 to {most} ({limit})"
                    ),
                )
                .with_remedy("choose another number, or do without a shared receive queue"));
            }
        }
        let mut attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        // SAFETY: the context is open. Providers fill the table when they open a device and never empty it.
        let can_post = unsafe { (*context.0.raw).ops.post_srq_recv.is_some() };
        let made = if can_post {
            // SAFETY: the domain is live and of this provider.
            unsafe { context.0.provider.create_srq(self.0.raw, &mut attr) }
        } else {
            Err(std::io::ErrorKind::Unsupported.into())
        };
        let raw = made.map_err(|error| {
            Error::failed(
                Step::CreateQp,
                format!("ibv_create_srq({name}, max_wr {max_wr}, max_sge {max_sge}): {error}"),
            )
            .with_remedy("choose a smaller queue, or do without a shared receive queue")
        })?;
        let inner = SrqInner { raw, max_wr: attr.max_wr, max_sge: attr.max_sge, pd: self.clone() };
        Ok(Srq(Arc::new(inner)))
    }
}

impl Srq {
    /// Receives that may be outstanding, as granted.
    pub fn max_wr(&self) -> u32 {
        self.0.max_wr
    }

    /// Slices of memory a receive may scatter to, as granted.
    pub fn max_sge(&self) -> u32 {
        self.0.max_sge
    }

    /// Asks for one [`AsyncEvent::SrqLimitReached`](super::AsyncEvent) when a message leaves fewer receives than
    /// `limit`; 0 asks for none. `ibv_modify_srq(3)`
    ///
    /// # Errors
    /// [`Step::CreateQp`]: more than there is room for, or the device has no such events.
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        // SAFETY: the queue is live and of this provider.
        unsafe { self.0.pd.0.context().provider.set_srq_limit(self.0.raw, limit) }.map_err(|error| {
            Error::failed(
                Step::CreateQp,
                format!("ibv_modify_srq(srq_limit {limit}, max_wr {}): {error}", self.0.max_wr),
            )
        })
    }

    /// A receive for this queue, to be posted any number of times. It keeps the queue and the memory. `local` is as for
    /// [`Qp::receiver`](super::Qp::receiver). `ibv_post_srq_recv(3)`
    ///
    /// # Panics
    /// As that.
    pub fn receiver(&self, local: impl Into<Vec<Slice>>) -> Receiver {
        Receiver::shared(self.clone(), &local.into())
    }

    /// Receives for the slots of a region, as by [`Qp::receive_ring`](super::Qp::receive_ring).
    ///
    /// # Panics
    /// As that.
    pub fn receive_ring(
        &self,
        local: Slice,
        slots: Slots,
        next: usize,
        id: impl Fn(usize) -> u64,
    ) -> ReceiveRing {
        ReceiveRing::of_shared(self.clone(), local, slots, next, id)
    }

    /// The queue as the library knows it. It lives as long as `self`.
    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.0.raw
    }

    pub(super) fn pd(&self) -> &Pd {
        &self.0.pd
    }
}
