//! What a queue pair is told on its way from RESET to RTS, and the states on that way.

use std::fmt;
use std::time::Duration;

use ibverbs_sys::{ibv_ah_attr, ibv_global_route, ibv_qp_state};

use super::gid::Gid;
use super::memory::Access;
use crate::error::{Error, Result, Step};

/// Values for the transition to INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    /// Port of the device, from 1.
    pub port: u8,
    /// Index into the port's partition key table; 0 is the default partition.
    pub pkey_index: u16,
    /// What the peer may do through this queue pair.
    pub access: Access,
}

/// Values for the transition to RTR, ready to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rtr {
    /// Largest packet payload on the path, in bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    /// The peer's queue pair, 24 bits.
    pub dest_qpn: u32,
    /// Packet sequence number the peer starts with, 24 bits.
    pub rq_psn: u32,
    /// RDMA READs and atomics taken in from the peer at once; UC has none and does not look at it.
    pub max_dest_rd_atomic: u8,
    /// How long the peer is told to wait when no receive is posted: a code of 5 bits, 1 is 10 us, 12 is 640 us, 0 is
    /// 655 ms (IBTA volume 1, table 45). UC does not look at it.
    pub min_rnr_timer: u8,
    /// The way to the peer.
    pub address: Address,
}

/// Values for the transition to RTS, ready to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rts {
    /// Packet sequence number this end starts with, 24 bits.
    pub sq_psn: u32,
    /// How long to wait for an acknowledgement: 4.096 us times 2 to the power of this, 5 bits; 0 is for ever. UC looks
    /// neither at this nor at what follows.
    pub timeout: u8,
    /// How often to send again without an answer, 0 to 7. On rxe, 7 is for ever.
    pub retry_count: u8,
    /// How often to send again when the peer had no receive posted, 0 to 6; 7 is for ever.
    pub rnr_retry: u8,
    /// RDMA READs and atomics of this end that may be outstanding.
    pub max_rd_atomic: u8,
}

/// How long a requester waits before it tries again, by the code in `min_rnr_timer` (IBTA volume 1, 9.7.5.2.8, "RNR NAK
/// timer field").
pub fn rnr_wait(code: u8) -> Duration {
    const HUNDREDTHS_OF_MS: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536,
        2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    Duration::from_micros(10 * HUNDREDTHS_OF_MS[usize::from(code) % HUNDREDTHS_OF_MS.len()])
}

/// The way to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Own port, from 1.
    pub port: u8,
    /// The peer's local identifier; not used on Ethernet.
    pub lid: u16,
    /// Service level, 4 bits. On Ethernet it becomes the priority of some devices.
    pub service_level: u8,
    /// Global route: needed on Ethernet and between InfiniBand subnets.
    pub grh: Option<Grh>,
}

/// A route by GID: the fields of a global route header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grh {
    /// The peer's GID.
    pub dest: Gid,
    /// Index of the own GID, of the same kind and family.
    pub source_index: u8,
    /// Routers a packet may pass, and 1; the time to live of RoCE v2.
    pub hop_limit: u8,
    /// Traffic class; DSCP and ECN of RoCE v2.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// State of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Just made.
    Reset,
    /// Receives may be posted; nothing is received yet.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to receive and to send.
    Rts,
    /// Sends are being drained.
    Sqd,
    /// A send failed, and nothing is sent until it is brought back to RTS; receives go on. RC does not use it.
    Sqe,
    /// All work requests are flushed.
    Error,
    /// The library does not know.
    Unknown,
}

impl QpState {
    pub(super) fn from_raw(raw: ibv_qp_state::Type) -> Self {
        match raw {
            ibv_qp_state::IBV_QPS_RESET => Self::Reset,
            ibv_qp_state::IBV_QPS_INIT => Self::Init,
            ibv_qp_state::IBV_QPS_RTR => Self::Rtr,
            ibv_qp_state::IBV_QPS_RTS => Self::Rts,
            ibv_qp_state::IBV_QPS_SQD => Self::Sqd,
            ibv_qp_state::IBV_QPS_SQE => Self::Sqe,
            ibv_qp_state::IBV_QPS_ERR => Self::Error,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERROR",
            Self::Unknown => "UNKNOWN",
        })
    }
}

/// `Ok` if `value` has at most `bits` bits. What does not fit would be cut off without a word on some devices.
pub(super) fn fits(name: &str, value: u32, bits: u32) -> Result<()> {
    if value >> bits == 0 {
        return Ok(());
    }
    Err(Error::failed(Step::ConnectQp, format!("{name} {value} does not fit its {bits} bits"))
        .with_remedy(format!("choose a value up to {}", (1_u32 << bits) - 1)))
}

impl Address {
    pub(super) fn to_raw(self) -> Result<ibv_ah_attr> {
        fits("service level", self.service_level.into(), 4)?;
        let mut raw = ibv_ah_attr {
            dlid: self.lid,
            sl: self.service_level,
            port_num: self.port,
            is_global: self.grh.is_some().into(),
            ..Default::default()
        };
        if let Some(grh) = self.grh {
            fits("flow label", grh.flow_label, 20)?;
            let mut route = ibv_global_route {
                flow_label: grh.flow_label,
                sgid_index: grh.source_index,
                hop_limit: grh.hop_limit,
                traffic_class: grh.traffic_class,
                ..Default::default()
            };
            route.dgid.raw = grh.dest.bytes();
            raw.grh = route;
        }
        Ok(raw)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}, service level {}", self.port, self.service_level)?;
        match self.grh {
            Some(grh) => write!(f, ", from GID index {} to {}", grh.source_index, grh.dest),
            None => write!(f, ", to LID {}", self.lid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_would_be_cut_off_are_refused() {
        assert!(fits("PSN", 0x00ff_ffff, 24).is_ok());
        let error = fits("PSN", 0x0100_0000, 24).unwrap_err();
        assert_eq!(error.message, "PSN 16777216 does not fit its 24 bits");
        assert_eq!(error.remedy.as_deref(), Some("choose a value up to 16777215"));
    }

    #[test]
    fn addresses_are_converted() {
        let dest = Gid::new([7; 16]);
        let grh = Grh { dest, source_index: 3, hop_limit: 64, traffic_class: 106, flow_label: 0xf_ffff };
        let routed = Address { port: 1, lid: 0, service_level: 3, grh: Some(grh) };
        let raw = routed.to_raw().unwrap();
        assert_eq!((raw.port_num, raw.sl, raw.is_global, raw.dlid), (1, 3, 1, 0));
        assert_eq!(
            (raw.grh.sgid_index, raw.grh.hop_limit, raw.grh.traffic_class, raw.grh.flow_label),
            (3, 64, 106, 0xf_ffff)
        );
        // SAFETY: both members of the union are 16 bytes that may have any value.
        assert_eq!(unsafe { raw.grh.dgid.raw }, [7; 16]);

        let local = Address { port: 2, lid: 9, service_level: 0, grh: None };
        let raw = local.to_raw().unwrap();
        assert_eq!((raw.port_num, raw.dlid, raw.is_global), (2, 9, 0));
        assert_eq!(local.to_string(), "port 2, service level 0, to LID 9");

        assert!(Address { service_level: 16, ..local }.to_raw().is_err());
        assert!(Address { grh: Some(Grh { flow_label: 1 << 20, ..grh }), ..routed }.to_raw().is_err());
    }

    #[test]
    fn states_are_those_of_the_library() {
        let names = (0..8).map(|raw| QpState::from_raw(raw).to_string()).collect::<Vec<_>>();
        assert_eq!(names, ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERROR", "UNKNOWN"]);
    }
}
