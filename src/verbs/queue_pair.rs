//! Queue pairs: making them, and taking them through their states.

use std::ffi::c_int;
use std::sync::Arc;

use ibverbs_sys::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::completion::Cq;
use super::memory::{Pd, RemoteSlice};
use super::port::mtu_code;
use super::post::{Opcode, Receiver, Sender, Slice};
use super::provider::Provider;
use super::transition::{Init, QpState, Rtr, Rts, fits};
use crate::error::{Error, Result, Step};

/// What a queue pair is to be like. It is of the reliable connected kind (RC), its requests have at most one
/// scatter/gather element, and only those complete visibly that ask for it.
#[derive(Debug, Clone, Copy)]
pub struct QpInit<'a> {
    /// Where sends complete.
    pub send_cq: &'a Cq,
    /// Where receives complete; may be the same.
    pub recv_cq: &'a Cq,
    /// Work requests outstanding on the send queue, at least 1.
    pub max_send_wr: u32,
    /// Receives outstanding.
    pub max_recv_wr: u32,
    /// Bytes of payload a send may carry within the work request; halved until the device grants it, see
    /// [`Pd::create_qp`].
    pub max_inline: u32,
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
}

/// Queue pair. Clones share it; it is destroyed when the last clone and the last [`Sender`] and [`Receiver`] are gone.
#[derive(Debug, Clone)]
pub struct Qp(Arc<QpInner>);

#[derive(Debug)]
struct QpInner {
    raw: *mut ibv_qp,
    number: u32,
    caps: QpCaps,
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
}

// SAFETY: verbs objects may be used from any thread, and from several at once (`ibv_alloc_td(3)`).
unsafe impl Send for QpInner {}
// SAFETY: as above.
unsafe impl Sync for QpInner {}

impl QpInner {
    fn provider(&self) -> &'static dyn Provider {
        self.pd.0.context().provider
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        // SAFETY: the queue pair is live and destroyed once; whatever posts to it held it. Work requests under way are
        // dropped by the device. It goes before its queues and its domain, which this still holds.
        let destroyed = unsafe { self.provider().destroy_qp(self.raw) };
        if destroyed.is_err() {
            std::mem::forget((self.pd.clone(), self.send_cq.clone(), self.recv_cq.clone()));
        }
        debug_assert!(destroyed.is_ok(), "ibv_destroy_qp: {destroyed:?}");
    }
}

impl Pd {
    /// Makes a queue pair, in state RESET. `ibv_create_qp(3)`
    ///
    /// Devices do not tell how much inline data they can have, only refuse: what is asked for is halved until it is
    /// granted.
    ///
    /// # Errors
    /// [`Step::CreateQp`]: a queue is deeper than the device can, or the device is short of something.
    ///
    /// # Panics
    /// If a completion queue is of another context.
    pub fn create_qp(&self, init: &QpInit) -> Result<Qp> {
        let context = &self.0.context;
        for cq in [init.send_cq, init.recv_cq] {
            assert!(context.is_same(cq.context()), "the completion queue is of another context");
        }
        let most = context.cached_attr()?.max_qp_wr;
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
        let provider = self.0.context().provider;
        let mut inline = init.max_inline;
        let (raw, cap) = loop {
            let mut attr = ibv_qp_init_attr {
                send_cq: init.send_cq.raw(),
                recv_cq: init.recv_cq.raw(),
                cap: ibv_qp_cap {
                    max_send_wr: init.max_send_wr,
                    max_recv_wr: init.max_recv_wr,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline,
                },
                qp_type: ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 0,
                ..Default::default()
            };
            // SAFETY: the domain and both completion queues are live and of this context, and the queue pair will hold
            // them until it is destroyed.
            match unsafe { provider.create_qp(self.0.raw, &mut attr) } {
                Ok(raw) => break (raw, attr.cap),
                Err(error) => {
                    let may_be_inline = [Errno::EINVAL, Errno::ENOMEM].map(|errno| Some(errno as i32));
                    if inline == 0 || !may_be_inline.contains(&error.raw_os_error()) {
                        return Err(create_failed(context.device().name(), init, inline, &error));
                    }
                    inline /= 2;
                }
            }
        };
        // SAFETY: just made and live; its number is set once.
        let number = unsafe { (*raw).qp_num };
        Ok(Qp(Arc::new(QpInner {
            raw,
            number,
            caps: QpCaps {
                max_send_wr: cap.max_send_wr,
                max_recv_wr: cap.max_recv_wr,
                max_inline: cap.max_inline_data,
            },
            pd: self.clone(),
            send_cq: init.send_cq.clone(),
            recv_cq: init.recv_cq.clone(),
        })))
    }
}

fn create_failed(device: &str, init: &QpInit, inline: u32, error: &std::io::Error) -> Error {
    Error::failed(
        Step::CreateQp,
        format!(
            "ibv_create_qp({device}, RC, max_send_wr {}, max_recv_wr {}, max_inline {inline}): {error}",
            init.max_send_wr, init.max_recv_wr
        ),
    )
    .with_remedy(match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOMEM) => {
            "choose smaller queue depths, allow more locked memory (ulimit -l unlimited), or see whether others hold the \
             device's queue pairs (`rdma resource`)"
        }
        Some(Errno::EOPNOTSUPP | Errno::ENOSYS) => "the device has no reliable connections; choose another device",
        _ => "choose smaller queue depths: inline data and depth share one limit on some devices",
    })
}

impl Qp {
    /// The number, 24 bits, by which a peer names it.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// What was granted.
    pub fn caps(&self) -> QpCaps {
        self.0.caps
    }

    /// From RESET to INIT: receives may be posted. `ibv_modify_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: the device refused the port, the partition key or the state.
    pub fn to_init(&self, init: &Init) -> Result<()> {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            pkey_index: init.pkey_index,
            port_num: init.port,
            // A signed constant in C, a mask in the structure.
            qp_access_flags: init.access.flags() as u32,
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, mask, QpState::Init, || {
            format!("port {}, pkey index {}, {}", init.port, init.pkey_index, init.access)
        })
    }

    /// From INIT to RTR: the peer may send. On Ethernet the kernel resolves the peer's address here. `ibv_modify_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: a value is out of its range, the peer's address is not reachable from the GID, or the
    /// device refused.
    pub fn to_rtr(&self, rtr: &Rtr) -> Result<()> {
        let path_mtu = mtu_code(rtr.path_mtu).ok_or_else(|| {
            Error::failed(Step::ConnectQp, format!("a path MTU of {} bytes does not exist", rtr.path_mtu))
                .with_remedy("choose 256, 512, 1024, 2048 or 4096, at most what both ports have active")
        })?;
        fits("destination QP number", rtr.dest_qpn, 24)?;
        fits("packet sequence number", rtr.rq_psn, 24)?;
        fits("minimum RNR timer", rtr.min_rnr_timer.into(), 5)?;
        let most = self.0.pd.0.context.cached_attr()?.max_qp_rd_atom;
        within_reads("taken in", rtr.max_dest_rd_atomic, most)?;
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu,
            dest_qp_num: rtr.dest_qpn,
            rq_psn: rtr.rq_psn,
            max_dest_rd_atomic: rtr.max_dest_rd_atomic,
            min_rnr_timer: rtr.min_rnr_timer,
            ah_attr: rtr.address.to_raw()?,
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask, QpState::Rtr, || {
            format!(
                "path MTU {}, destination QP {:#08x}, PSN {:#08x}, {} reads in, {}",
                rtr.path_mtu, rtr.dest_qpn, rtr.rq_psn, rtr.max_dest_rd_atomic, rtr.address
            )
        })
    }

    /// From RTR to RTS: this end may send. `ibv_modify_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: a value is out of its range, or the device refused.
    pub fn to_rts(&self, rts: &Rts) -> Result<()> {
        fits("packet sequence number", rts.sq_psn, 24)?;
        fits("timeout", rts.timeout.into(), 5)?;
        fits("retry count", rts.retry_count.into(), 3)?;
        fits("RNR retry count", rts.rnr_retry.into(), 3)?;
        let most = self.0.pd.0.context.cached_attr()?.max_qp_init_rd_atom;
        within_reads("outstanding", rts.max_rd_atomic, most)?;
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            sq_psn: rts.sq_psn,
            timeout: rts.timeout,
            retry_cnt: rts.retry_count,
            rnr_retry: rts.rnr_retry,
            max_rd_atomic: rts.max_rd_atomic,
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask, QpState::Rts, || {
            format!(
                "PSN {:#08x}, timeout {}, retry count {}, RNR retry count {}, {} reads out",
                rts.sq_psn, rts.timeout, rts.retry_count, rts.rnr_retry, rts.max_rd_atomic
            )
        })
    }

    /// From any state to ERROR: all work requests complete, flushed. `ibv_modify_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: the device is gone.
    pub fn to_error(&self) -> Result<()> {
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        self.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE, QpState::Error, String::new)
    }

    fn modify(
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

    /// The state it is in now; errors move it. `ibv_query_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: the device is gone.
    pub fn state(&self) -> Result<QpState> {
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

    /// A work request for the send queue, to be posted any number of times. It keeps this queue pair and the memory.
    ///
    /// # Panics
    /// If the opcode reaches into the peer's memory and `remote` is `None`; if `inline` is asked for more bytes than
    /// were granted, or for RDMA READ; if the memory is of another protection domain.
    pub fn sender(&self, opcode: Opcode, local: Slice, remote: Option<RemoteSlice>, inline: bool) -> Sender {
        Sender::new(self.clone(), opcode, local, remote, inline)
    }

    /// A work request for the receive queue, to be posted any number of times. It keeps this queue pair and the memory.
    ///
    /// # Panics
    /// If the memory is of another protection domain.
    pub fn receiver(&self, local: Slice) -> Receiver {
        Receiver::new(self.clone(), local)
    }

    /// The queue pair as C code knows it, for comparing with loops in C. It lives as long as `self`.
    pub fn as_ptr(&self) -> *mut ibv_qp {
        self.0.raw
    }

    /// The queue pair as the library knows it. It lives as long as `self`.
    pub(super) fn raw(&self) -> *mut ibv_qp {
        self.0.raw
    }

    pub(super) fn pd(&self) -> &Pd {
        &self.0.pd
    }
}

fn within_reads(what: &str, wanted: u8, most: u32) -> Result<()> {
    if u32::from(wanted) <= most {
        return Ok(());
    }
    Err(Error::failed(
        Step::ConnectQp,
        format!("{wanted} RDMA READs {what} at once are more than the device's {most}"),
    )
    .with_remedy(format!("choose at most {most} outstanding reads")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_reads_than_the_device_takes_are_refused() {
        assert!(within_reads("outstanding", 16, 16).is_ok());
        assert!(within_reads("outstanding", 17, 16).is_err());
    }
}
