//! What queue pairs of all kinds have: two queues, a number, a state.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use ibverbs_sys::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::completion::Cq;
use super::memory::Pd;
use super::provider::Provider;
use super::shared_receive::Srq;
use super::transition::QpState;
use crate::error::{Error, Result, Step};

/// What a queue pair is to be like. Only those of its requests complete visibly that ask for it.
#[derive(Debug, Clone, Copy)]
pub struct QpInit<'a> {
    /// Where sends complete.
    pub send_cq: &'a Cq,
    /// Where receives complete; may be the same.
    pub recv_cq: &'a Cq,
    /// Where receives come from, if not from a queue of its own: `max_recv_wr` and `max_recv_sge` are of no use then.
    pub srq: Option<&'a Srq>,
    /// Work requests outstanding on the send queue, at least 1.
    pub max_send_wr: u32,
    /// Receives outstanding.
    pub max_recv_wr: u32,
    /// Bytes of payload a send may carry within the work request; halved until the device grants it, see
    /// [`Pd::create_qp`].
    pub max_inline: u32,
    /// Slices of memory that a send may gather.
    pub max_send_sge: u32,
    /// Slices of memory that a receive may scatter to.
    pub max_recv_sge: u32,
}

impl<'a> QpInit<'a> {
    /// One work request in each queue, of one slice of memory, nothing inline.
    pub fn new(send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        Self {
            send_cq,
            recv_cq,
            srq: None,
            max_send_wr: 1,
            max_recv_wr: 1,
            max_inline: 0,
            max_send_sge: 1,
            max_recv_sge: 1,
        }
    }
}

/// What was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpCaps {
    /// Work requests outstanding on the send queue.
    pub max_send_wr: u32,
    /// Receives outstanding.
    pub max_recv_wr: u32,
    /// Bytes of payload within a work request. May be more than was asked for.
    pub max_inline: u32,
    /// Slices of memory that a send may gather.
    pub max_send_sge: u32,
    /// Slices of memory that a receive may scatter to.
    pub max_recv_sge: u32,
}

/// A queue pair of any kind, as the types for each kind share it. Destroyed with the last clone.
#[derive(Debug, Clone)]
pub(super) struct Queues(Arc<QueuesInner>);

/// The kind of a queue pair, and how it is called.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub raw: ibv_qp_type::Type,
    pub name: &'static str,
}

#[derive(Debug)]
struct QueuesInner {
    raw: *mut ibv_qp,
    number: u32,
    caps: QpCaps,
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
}

// SAFETY: verbs objects may be used from any thread, and from several at once (`ibv_alloc_td(3)`).
unsafe impl Send for QueuesInner {}
// SAFETY: as above.
unsafe impl Sync for QueuesInner {}

impl QueuesInner {
    fn provider(&self) -> &'static dyn Provider {
        self.pd.0.context().provider
    }
}

impl Drop for QueuesInner {
    fn drop(&mut self) {
        // SAFETY: the queue pair is live and destroyed once; whatever posts to it held it. Work requests under way are
        // dropped by the device. It goes before its queues and its domain, which this still holds.
        let destroyed = unsafe { self.provider().destroy_qp(self.raw) };
        if destroyed.is_err() {
            std::mem::forget((self.pd.clone(), self.send_cq.clone(), self.recv_cq.clone(), self.srq.clone()));
        }
        debug_assert!(destroyed.is_ok(), "ibv_destroy_qp: {destroyed:?}");
    }
}

impl Queues {
    /// In state RESET: see [`Pd::create_qp`].
    pub(super) fn create(pd: &Pd, kind: Kind, init: &QpInit) -> Result<Self> {
        let context = &pd.0.context;
        for cq in [init.send_cq, init.recv_cq] {
            assert!(context.is_same(cq.context()), "the completion queue is of another context");
        }
        if let Some(srq) = init.srq {
            assert!(context.is_same(&srq.pd().0.context), "the shared receive queue is of another context");
        }
        let limits = context.cached_attr()?;
        for (kind, sge) in [("send", init.max_send_sge), ("receive", init.max_recv_sge)] {
            if sge > limits.max_sge {
                return Err(Error::failed(
                    Step::CreateQp,
                    format!(
                        "{sge} slices of memory for a {kind} are more than {} can: {} (max_sge)",
                        context.device().name(),
                        limits.max_sge
                    ),
                )
                .with_remedy("use fewer"));
            }
        }
        let most = limits.max_qp_wr;
        for (queue, depth, least) in [("send", init.max_send_wr, 1), ("receive", init.max_recv_wr, 0)] {
            if !(least..=most).contains(&depth) {
                return Err(Error::failed(
                    Step::CreateQp,
                    format!(
                        "a {queue} queue of {depth} work requests is outside what {} can: {least} to {most} (max_qp_wr)",
                        context.device().name()
                    ),
                )
                .with_remedy("choose another queue depth"));
            }
        }
        let provider = pd.0.context().provider;
        let mut inline = init.max_inline;
        let (raw, cap) = loop {
            let mut attr = ibv_qp_init_attr {
                send_cq: init.send_cq.raw(),
                recv_cq: init.recv_cq.raw(),
                cap: ibv_qp_cap {
                    max_send_wr: init.max_send_wr,
                    max_recv_wr: init.max_recv_wr,
                    max_send_sge: init.max_send_sge,
                    max_recv_sge: init.max_recv_sge,
                    max_inline_data: inline,
                },
                srq: init.srq.map_or(ptr::null_mut(), Srq::raw),
                qp_type: kind.raw,
                sq_sig_all: 0,
                ..Default::default()
            };
            // SAFETY: the domain, both completion queues and the shared receive queue are live and of this context, and
            // the queue pair will hold them until it is destroyed.
            match unsafe { provider.create_qp(pd.0.raw, &mut attr) } {
                Ok(raw) => break (raw, attr.cap),
                Err(error) => {
                    let may_be_inline = [Errno::EINVAL, Errno::ENOMEM].map(|errno| Some(errno as i32));
                    if inline == 0 || !may_be_inline.contains(&error.raw_os_error()) {
                        return Err(create_failed(context.device().name(), kind.name, init, inline, &error));
                    }
                    inline /= 2;
                }
            }
        };
        // SAFETY: just made and live; its number is set once.
        let number = unsafe { (*raw).qp_num };
        Ok(Self(Arc::new(QueuesInner {
            raw,
            number,
            caps: QpCaps {
                max_send_wr: cap.max_send_wr,
                max_recv_wr: cap.max_recv_wr,
                max_inline: cap.max_inline_data,
                max_send_sge: cap.max_send_sge,
                max_recv_sge: cap.max_recv_sge,
            },
            pd: pd.clone(),
            send_cq: init.send_cq.clone(),
            recv_cq: init.recv_cq.clone(),
            srq: init.srq.cloned(),
        })))
    }
}

fn create_failed(device: &str, kind: &str, init: &QpInit, inline: u32, error: &std::io::Error) -> Error {
    Error::failed(
        Step::CreateQp,
        format!(
            "ibv_create_qp({device}, {kind}, max_send_wr {}, max_recv_wr {}, max_inline {inline}): {error}",
            init.max_send_wr, init.max_recv_wr
        ),
    )
    .with_remedy(match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOMEM) => {
            "choose smaller queue depths, allow more locked memory (ulimit -l unlimited), or see whether others hold the \
             device's queue pairs (`rdma resource`)"
        }
        Some(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
            "the device has no queue pairs of this kind; choose another connection type, or another device"
        }
        _ => "choose smaller queue depths: inline data and depth share one limit on some devices",
    })
}

impl Queues {
    pub(super) fn number(&self) -> u32 {
        self.0.number
    }

    pub(super) fn caps(&self) -> QpCaps {
        self.0.caps
    }

    /// The queue pair as the library knows it. It lives as long as `self`.
    pub(super) fn raw(&self) -> *mut ibv_qp {
        self.0.raw
    }

    /// It has no receives of its own.
    pub(super) fn shares_receives(&self) -> bool {
        self.0.srq.is_some()
    }

    pub(super) fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// From SQE to RTS.
    pub(super) fn recover(&self) -> Result<()> {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            cur_qp_state: ibv_qp_state::IBV_QPS_SQE,
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_CUR_STATE;
        self.modify(&mut attr, mask, QpState::Rts, String::new)
    }

    /// From any state to ERROR.
    pub(super) fn to_error(&self) -> Result<()> {
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        self.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE, QpState::Error, String::new)
    }

    pub(super) fn modify(
        &self,
        attr: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        to: QpState,
        values: impl FnOnce() -> String,
    ) -> Result<()> {
        // SAFETY: the queue pair is live and of this provider.
        unsafe { self.0.provider().modify_qp(self.0.raw, attr, mask.0 as c_int) }.map_err(|error| {
            let from = self.state().map_or_else(|_| "?".to_owned(), |state| state.to_string());
            let failed = Error::failed(
                Step::ConnectQp,
                format!("ibv_modify_qp(QP {:#08x}, {from} to {to}: {}): {error}", self.0.number, values()),
            );
            match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EADDRNOTAVAIL) => failed
                    .with_remedy(
                        "the peer's address does not answer on the interface of the own GID: check that the two can \
                         ping each other there, or choose another GID index",
                    ),
                Some(Errno::EINVAL | Errno::ENODATA | Errno::ENOENT) if to == QpState::Rtr => failed.with_remedy(
                    "check that the GID index is valid and of the peer's type and family, and that the MTU is at most \
                     the port's",
                ),
                _ => failed.with_remedy("see the device's log (dmesg)"),
            }
        })
    }

    /// `ibv_query_qp(3)`
    pub(super) fn state(&self) -> Result<QpState> {
        // SAFETY: the queue pair is live and of this provider.
        let attr =
            unsafe { self.0.provider().query_qp(self.0.raw, ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int) }
                .map_err(|error| {
                    Error::failed(
                        Step::ConnectQp,
                        format!("ibv_query_qp(QP {:#08x}): {error}", self.0.number),
                    )
                })?;
        Ok(QpState::from_raw(attr.qp_state))
    }
}
