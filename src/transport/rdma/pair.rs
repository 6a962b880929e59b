//! A queue pair of either kind: connected to one of the peer's, or sending datagrams to it. Loops do not see which: its
//! work requests are alike.

use super::PairFacts;
use super::prepare::Reads;
use crate::error::Result;
use crate::plan::{Connection, Test};
use crate::verbs::{
    Access, Address, Destination, Init, Opcode, Pd, Qp, QpCaps, QpInit, ReceiveRing, Receiver, RemoteSlice,
    Rtr, Rts, Sender, Slice, Slots, Transport, UdInit, UdQp,
};

/// A queue pair that talks to one of the peer's.
#[derive(Debug, Clone)]
pub enum Pair {
    /// Of RC or UC.
    Connected(Qp),
    /// Of UD.
    Datagram(UdQp, Destination),
}

/// A queue pair in INIT: receives may be posted.
#[derive(Debug)]
pub(super) enum Made {
    Connected(Qp),
    Datagram(UdQp),
}

/// What a queue pair needs of its port and memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) port: u8,
    pub(super) pkey_index: u16,
    pub(super) access: Access,
}

/// The way to the peer.
pub(super) struct Way<'a> {
    pub(super) pd: &'a Pd,
    pub(super) address: Address,
    pub(super) mtu: u32,
    pub(super) test: &'a Test,
    pub(super) reads: Reads,
}

/// The key of the run's datagrams: the same at both ends, and not one that is the kernel's to give.
fn qkey(test: &Test) -> u32 {
    (test.payload_seed >> 32) as u32 & 0x7fff_ffff
}

impl Made {
    /// Makes one of the test's service, and brings it to INIT.
    pub(super) fn new(pd: &Pd, test: &Test, init: &QpInit<'_>, place: Place) -> Result<Self> {
        let Place { port, pkey_index, access } = place;
        let transport = match test.connection {
            Connection::Rc => Transport::Rc,
            Connection::Uc => Transport::Uc,
            Connection::Ud => {
                let qp = pd.create_ud_qp(init)?;
                qp.to_init(&UdInit { port, pkey_index, qkey: qkey(test) })?;
                return Ok(Self::Datagram(qp));
            }
        };
        let qp = pd.create_qp(transport, init)?;
        qp.to_init(&Init { port, pkey_index, access })?;
        Ok(Self::Connected(qp))
    }

    /// To RTR and RTS, towards the peer's queue pair. This end numbers its packets from `psn`.
    pub(super) fn connect(self, psn: u32, peer: PairFacts, way: &Way<'_>) -> Result<Pair> {
        let (test, reads) = (way.test, way.reads);
        match self {
            Self::Connected(qp) => {
                qp.to_rtr(&Rtr {
                    path_mtu: way.mtu,
                    dest_qpn: peer.qpn,
                    rq_psn: peer.psn,
                    max_dest_rd_atomic: reads.incoming,
                    min_rnr_timer: test.min_rnr_timer,
                    address: way.address,
                })?;
                qp.to_rts(&Rts {
                    sq_psn: psn,
                    timeout: test.qp_timeout,
                    retry_count: test.retry_count,
                    rnr_retry: test.rnr_retry,
                    max_rd_atomic: reads.outgoing,
                })?;
                Ok(Pair::Connected(qp))
            }
            Self::Datagram(qp) => {
                qp.to_rtr()?;
                qp.to_rts(psn)?;
                let handle = way.pd.create_ah(way.address)?;
                Ok(Pair::Datagram(qp, Destination { handle, qpn: peer.qpn, qkey: qkey(test) }))
            }
        }
    }

    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Connected(qp) => qp.number(),
            Self::Datagram(qp) => qp.number(),
        }
    }

    pub(super) fn caps(&self) -> QpCaps {
        match self {
            Self::Connected(qp) => qp.caps(),
            Self::Datagram(qp) => qp.caps(),
        }
    }
}

impl Pair {
    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Connected(qp) => qp.number(),
            Self::Datagram(qp, _) => qp.number(),
        }
    }

    pub(super) fn caps(&self) -> QpCaps {
        match self {
            Self::Connected(qp) => qp.caps(),
            Self::Datagram(qp, _) => qp.caps(),
        }
    }

    /// A work request to the peer's queue pair. A datagram has no `remote` memory.
    pub(super) fn sender(
        &self,
        opcode: Opcode,
        local: Slice,
        remote: Option<RemoteSlice>,
        inline: bool,
    ) -> Sender {
        match self {
            Self::Connected(qp) => qp.sender(opcode, local, remote, inline),
            Self::Datagram(qp, to) => qp.sender(opcode, local, to.clone(), inline),
        }
    }

    pub(super) fn receive_ring(
        &self,
        local: Slice,
        slots: Slots,
        next: usize,
        id: impl Fn(usize) -> u64,
    ) -> ReceiveRing {
        match self {
            Self::Connected(qp) => qp.receive_ring(local, slots, next, id),
            Self::Datagram(qp, _) => qp.receive_ring(local, slots, next, id),
        }
    }

    pub(super) fn receiver(&self, local: Slice) -> Receiver {
        match self {
            Self::Connected(qp) => qp.receiver(local),
            Self::Datagram(qp, _) => qp.receiver(local),
        }
    }
}
