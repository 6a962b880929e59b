//! Connected queue pairs: making them, and taking them through their states.

use std::fmt;

use ibverbs_sys::{ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type};
use serde::{Deserialize, Serialize};

use super::cycle::Slots;
use super::memory::{Pd, RemoteSlice};
use super::port::mtu_code;
use super::post::{Opcode, Sender, Target};
use super::queues::{Kind, QpCaps, QpInit, Queues};
use super::receive::Receiver;
use super::receive_ring::ReceiveRing;
use super::slice::Slice;
use super::transition::{Init, QpState, Rtr, Rts, fits};
use crate::error::{Error, Result, Step};

/// What a connected queue pair promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Reliable connection (RC): each message arrives once and in order, or both ends learn that it did not.
    Rc,
    /// Unreliable connection (UC): a message that is lost, or that has no receive, is gone; its sender succeeds. It has
    /// sends and RDMA WRITEs, with and without immediate data.
    Uc,
}

impl Transport {
    fn kind(self) -> Kind {
        match self {
            Self::Rc => Kind { raw: ibv_qp_type::IBV_QPT_RC, name: "RC" },
            Self::Uc => Kind { raw: ibv_qp_type::IBV_QPT_UC, name: "UC" },
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.kind().name)
    }
}

/// Connected queue pair. Clones share it; it is destroyed when the last clone and the last [`Sender`] and [`Receiver`]
/// are gone.
#[derive(Debug, Clone)]
pub struct Qp {
    pub(super) queues: Queues,
    transport: Transport,
}

impl Pd {
    /// Makes a queue pair for a connection, in state RESET. `ibv_create_qp(3)`
    ///
    /// Devices do not tell how much inline data they can have, only refuse: what is asked for is halved until it is
    /// granted.
    ///
    /// # Errors
    /// [`Step::CreateQp`]: a queue is deeper than the device can, or the device is short of something.
    ///
    /// # Panics
    /// If a completion queue is of another context.
    pub fn create_qp(&self, transport: Transport, init: &QpInit) -> Result<Qp> {
        Ok(Qp { queues: Queues::create(self, transport.kind(), init)?, transport })
    }
}

impl Qp {
    /// The number, 24 bits, by which a peer names it.
    pub fn number(&self) -> u32 {
        self.queues.number()
    }

    /// What it promises.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// What was granted.
    pub fn caps(&self) -> QpCaps {
        self.queues.caps()
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
        self.queues.modify(&mut attr, mask, QpState::Init, || {
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
        let most = self.queues.pd().0.context.cached_attr()?.max_qp_rd_atom;
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
        let path = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN;
        let mask = match self.transport() {
            Transport::Rc => {
                path | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER
            }
            Transport::Uc => path,
        };
        self.queues.modify(&mut attr, mask, QpState::Rtr, || {
            format!(
                "path MTU {}, destination QP {:#08x}, PSN {:#08x}, {} reads in, {}",
                rtr.path_mtu, rtr.dest_qpn, rtr.rq_psn, rtr.max_dest_rd_atomic, rtr.address
            )
        })
    }

    /// From RTR to RTS: this end may send. `ibv_modify_qp(3)`
    ///
    /// An unreliable queue pair whose send queue failed ([`QpState::Sqe`]) can be brought back: see [`Qp::recover`].
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: a value is out of its range, or the device refused.
    pub fn to_rts(&self, rts: &Rts) -> Result<()> {
        fits("packet sequence number", rts.sq_psn, 24)?;
        fits("timeout", rts.timeout.into(), 5)?;
        fits("retry count", rts.retry_count.into(), 3)?;
        fits("RNR retry count", rts.rnr_retry.into(), 3)?;
        let most = self.queues.pd().0.context.cached_attr()?.max_qp_init_rd_atom;
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
        let start = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN;
        let mask = match self.transport() {
            Transport::Rc => {
                start
                    | ibv_qp_attr_mask::IBV_QP_TIMEOUT
                    | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
                    | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
                    | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC
            }
            Transport::Uc => start,
        };
        self.queues.modify(&mut attr, mask, QpState::Rts, || {
            format!(
                "PSN {:#08x}, timeout {}, retry count {}, RNR retry count {}, {} reads out",
                rts.sq_psn, rts.timeout, rts.retry_count, rts.rnr_retry, rts.max_rd_atomic
            )
        })
    }

    /// From SQE to RTS: an unreliable queue pair sends again. Its receive queue went on all the time.
    /// `ibv_modify_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: it is in another state.
    pub fn recover(&self) -> Result<()> {
        self.queues.recover()
    }

    /// From any state to ERROR: all work requests complete, flushed. `ibv_modify_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: the device is gone.
    pub fn to_error(&self) -> Result<()> {
        self.queues.to_error()
    }

    /// The state it is in now; errors move it. `ibv_query_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: the device is gone.
    pub fn state(&self) -> Result<QpState> {
        self.queues.state()
    }

    /// A work request for the send queue, to be posted any number of times. It keeps this queue pair and the memory.
    /// What an unreliable connection does not have is refused when it is posted.
    ///
    /// `local` is one slice, or several that are gathered in that order (scattered to, by what brings data); empty ones
    /// are left out. All together they may be empty, for a message of length 0.
    ///
    /// # Panics
    /// If there is no slice, or more with bytes than were granted; if the opcode reaches into the peer's memory and
    /// `remote` is `None`; if `inline` is asked for more bytes than were granted, or for RDMA READ or an atomic
    /// operation; if an atomic operation has other than 8 bytes of local memory; if the memory is of another protection
    /// domain.
    pub fn sender(
        &self,
        opcode: Opcode,
        local: impl Into<Vec<Slice>>,
        remote: Option<RemoteSlice>,
        inline: bool,
    ) -> Sender {
        let target = remote.map_or(Target::Receive, Target::Memory);
        Sender::new(self.queues.clone(), opcode, &local.into(), target, inline)
    }

    /// A work request for the receive queue, to be posted any number of times. It keeps this queue pair and the memory.
    /// A message is scattered to the slices in their order.
    ///
    /// # Panics
    /// If there is no slice, or more with bytes than were granted; if the memory is of another protection domain.
    pub fn receiver(&self, local: impl Into<Vec<Slice>>) -> Receiver {
        Receiver::new(self.queues.clone(), &local.into())
    }

    /// Receives for the slots of a region, to be posted in turn from slot `next` on; each completes with its slot's
    /// `id`. `local` gives the region and the length of each.
    ///
    /// # Panics
    /// As [`Qp::receiver`]; if there is no slot `next`, or the last one would not be within the region.
    pub fn receive_ring(
        &self,
        local: Slice,
        slots: Slots,
        next: usize,
        id: impl Fn(usize) -> u64,
    ) -> ReceiveRing {
        ReceiveRing::of_pair(self.queues.clone(), local, slots, next, id)
    }

    /// The queue pair as C code knows it, for comparing with loops in C. It lives as long as `self`.
    pub fn as_ptr(&self) -> *mut ibverbs_sys::ibv_qp {
        self.queues.raw()
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
