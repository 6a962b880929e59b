//! Datagrams: queue pairs that are not connected, and the addresses that their messages carry.

use std::sync::Arc;

use ibverbs_sys::{ibv_ah, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type};

use super::cycle::Slots;
use super::memory::Pd;
use super::post::{Opcode, Sender, Target};
use super::queues::{Kind, QpCaps, QpInit, Queues};
use super::receive::Receiver;
use super::receive_ring::ReceiveRing;
use super::slice::Slice;
use super::transition::{Address, QpState, fits};
use crate::error::{Error, Result, Step};

/// Bytes at the start of a datagram's receive that are not of its payload. They hold the global route header where the
/// completion says so ([`Wc::has_grh`](super::Wc::has_grh)), and else anything. Over RoCE v2 with IPv4 addresses the
/// last 20 of them are the IPv4 header.
pub const GRH_BYTES: usize = 40;

/// The way to a port, as a device keeps it for datagrams. Clones share it; it is destroyed when the last clone and the
/// last [`Sender`] with it are gone.
#[derive(Debug, Clone)]
pub struct AddressHandle(Arc<AddressHandleInner>);

#[derive(Debug)]
struct AddressHandleInner {
    raw: *mut ibv_ah,
    pd: Pd,
}

// SAFETY: verbs objects may be used from any thread, and from several at once (`ibv_alloc_td(3)`).
unsafe impl Send for AddressHandleInner {}
// SAFETY: as above.
unsafe impl Sync for AddressHandleInner {}

impl Drop for AddressHandleInner {
    fn drop(&mut self) {
        // SAFETY: the handle is live and destroyed once. Senders with it held it. A request under way may fail for it;
        // the device, not this process, keeps what it reads of it.
        let destroyed = unsafe { self.pd.0.context().provider.destroy_ah(self.raw) };
        if destroyed.is_err() {
            std::mem::forget(self.pd.clone());
        }
        debug_assert!(destroyed.is_ok(), "ibv_destroy_ah: {destroyed:?}");
    }
}

impl AddressHandle {
    pub(super) fn raw(&self) -> *mut ibv_ah {
        self.0.raw
    }

    pub(super) fn pd(&self) -> &Pd {
        &self.0.pd
    }
}

/// Where a datagram goes.
#[derive(Debug, Clone)]
pub struct Destination {
    /// The way to the port.
    pub handle: AddressHandle,
    /// The queue pair there, 24 bits.
    pub qpn: u32,
    /// Its key; a message with another is dropped. Where the highest bit is set the sender's own key is sent instead
    /// (IBTA volume 1, 10.2.4).
    pub qkey: u32,
}

/// Values for the transition to INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdInit {
    /// Port of the device, from 1.
    pub port: u8,
    /// Index into the port's partition key table; 0 is the default partition.
    pub pkey_index: u16,
    /// What messages must carry to be taken. With the highest bit set it is the kernel's to give, for most devices.
    pub qkey: u32,
}

/// Queue pair for datagrams (UD). A message is one packet, at most the port's MTU long; it is lost without a word if
/// nobody takes it. Clones share the queue pair; it is destroyed when the last clone and the last [`Sender`] and
/// [`Receiver`] are gone.
#[derive(Debug, Clone)]
pub struct UdQp(pub(super) Queues);

impl Pd {
    /// Makes a queue pair for datagrams, in state RESET. `ibv_create_qp(3)`
    ///
    /// Inline data is halved as by [`Pd::create_qp`].
    ///
    /// # Errors
    /// [`Step::CreateQp`]: a queue is deeper than the device can, or the device is short of something.
    ///
    /// # Panics
    /// If a completion queue is of another context.
    pub fn create_ud_qp(&self, init: &QpInit) -> Result<UdQp> {
        let kind = Kind { raw: ibv_qp_type::IBV_QPT_UD, name: "UD" };
        Ok(UdQp(Queues::create(self, kind, init)?))
    }

    /// Makes a handle of the way to a port. On Ethernet the kernel resolves the address here. `ibv_create_ah(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: a value is out of its range, the address is not reachable from the GID, or the device is
    /// short of something.
    pub fn create_ah(&self, address: Address) -> Result<AddressHandle> {
        let mut attr = address.to_raw()?;
        // SAFETY: the domain is live and of this provider.
        let raw = unsafe { self.0.context().provider.create_ah(self.0.raw, &mut attr) }.map_err(|error| {
            Error::failed(Step::ConnectQp, format!("ibv_create_ah({address}): {error}")).with_remedy(
                "check that the GID index is valid and of the peer's type and family, and that the peer's address \
                 answers on the interface of the own GID",
            )
        })?;
        Ok(AddressHandle(Arc::new(AddressHandleInner { raw, pd: self.clone() })))
    }
}

impl UdQp {
    /// The number, 24 bits, by which peers name it.
    pub fn number(&self) -> u32 {
        self.0.number()
    }

    /// What was granted.
    pub fn caps(&self) -> QpCaps {
        self.0.caps()
    }

    /// From RESET to INIT: receives may be posted. `ibv_modify_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: the device refused the port, the partition key, the key or the state.
    pub fn to_init(&self, init: &UdInit) -> Result<()> {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            pkey_index: init.pkey_index,
            port_num: init.port,
            qkey: init.qkey,
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_QKEY;
        self.0.modify(&mut attr, mask, QpState::Init, || {
            format!("port {}, pkey index {}, qkey {:#x}", init.port, init.pkey_index, init.qkey)
        })
    }

    /// From INIT to RTR: peers may send. `ibv_modify_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: it is in another state, or the device refused.
    pub fn to_rtr(&self) -> Result<()> {
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTR, ..Default::default() };
        self.0.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE, QpState::Rtr, String::new)
    }

    /// From RTR to RTS: this end may send, packets numbered from `sq_psn`, 24 bits. `ibv_modify_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: the number is out of range, it is in another state, or the device refused.
    pub fn to_rts(&self, sq_psn: u32) -> Result<()> {
        fits("packet sequence number", sq_psn, 24)?;
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTS, sq_psn, ..Default::default() };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN;
        self.0.modify(&mut attr, mask, QpState::Rts, || format!("PSN {sq_psn:#08x}"))
    }

    /// From SQE to RTS, after a send failed: see [`Qp::recover`](super::Qp::recover).
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: it is in another state.
    pub fn recover(&self) -> Result<()> {
        self.0.recover()
    }

    /// From any state to ERROR: all work requests complete, flushed. `ibv_modify_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: the device is gone.
    pub fn to_error(&self) -> Result<()> {
        self.0.to_error()
    }

    /// The state it is in now; errors move it. `ibv_query_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: the device is gone.
    pub fn state(&self) -> Result<QpState> {
        self.0.state()
    }

    /// A datagram, to be posted any number of times. It keeps this queue pair, the memory and the address handle.
    ///
    /// Longer than the port's MTU, it completes with a local length error or is not sent at all, as the device likes.
    ///
    /// # Panics
    /// If the opcode is none of [`Opcode::Send`] and [`Opcode::SendWithImm`]; if memory and inline are not as for
    /// [`Qp::sender`](super::Qp::sender); if the address handle is of another protection domain.
    pub fn sender(
        &self,
        opcode: Opcode,
        local: impl Into<Vec<Slice>>,
        destination: Destination,
        inline: bool,
    ) -> Sender {
        assert!(
            matches!(opcode, Opcode::Send | Opcode::SendWithImm),
            "there are no datagrams for {opcode:?}"
        );
        Sender::new(self.0.clone(), opcode, &local.into(), Target::Datagram(destination), inline)
    }

    /// A work request for the receive queue, as by [`Qp::receiver`](super::Qp::receiver). A message is taken only if
    /// there is room for it and for [`GRH_BYTES`] before it.
    ///
    /// # Panics
    /// As that.
    pub fn receiver(&self, local: impl Into<Vec<Slice>>) -> Receiver {
        Receiver::new(self.0.clone(), &local.into())
    }

    /// Receives for the slots of a region, as by [`Qp::receive_ring`](super::Qp::receive_ring), with [`GRH_BYTES`] at the
    /// start of each.
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
        ReceiveRing::of_pair(self.0.clone(), local, slots, next, id)
    }
}
