//! Limits of a device, and the state of its ports.

use std::ffi::CStr;
use std::fmt;

use ibverbs_sys::{
    IBV_ATOMIC_GLOB, IBV_ATOMIC_HCA, IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, ibv_atomic_cap,
    ibv_device_attr, ibv_mtu, ibv_port_attr, ibv_port_state,
};
use serde::{Deserialize, Serialize};

/// Limits and identity of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAttr {
    /// Firmware version as the vendor writes it; may be empty.
    pub firmware: String,
    /// IEEE OUI of the vendor.
    pub vendor_id: u32,
    /// The vendor's number for the device.
    pub vendor_part_id: u32,
    /// Ports, numbered from 1.
    pub port_count: u8,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of one queue; a queue pair with inline data may get fewer.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of a work request.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Bytes of one memory region.
    pub max_mr_size: u64,
    /// RDMA READs and atomics a queue pair takes in at once, as responder.
    pub max_qp_rd_atom: u32,
    /// RDMA READs and atomics a queue pair may have outstanding, as initiator.
    pub max_qp_init_rd_atom: u32,
    /// Receives of one shared receive queue; 0 if there are none.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of a receive there.
    pub max_srq_sge: u32,
    /// Atomic operations it does for peers.
    pub atomic: AtomicCap,
}

/// Among whom an atomic operation is atomic: `enum ibv_atomic_cap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtomicCap {
    /// There are none.
    None,
    /// The queue pairs of this device; not other devices, and not the processor.
    Device,
    /// All devices, and the processor.
    Global,
}

impl AtomicCap {
    /// What is not known is not relied upon.
    pub(super) fn from_raw(raw: ibv_atomic_cap) -> Self {
        match raw {
            IBV_ATOMIC_HCA => Self::Device,
            IBV_ATOMIC_GLOB => Self::Global,
            _ => Self::None,
        }
    }
}

impl DeviceAttr {
    pub(super) fn from_raw(raw: &ibv_device_attr) -> Self {
        // Signed in C for no reason; a negative limit would be the driver's mistake.
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        let firmware: Vec<u8> = raw.fw_ver.iter().map(|&c| c as u8).collect();
        Self {
            firmware: CStr::from_bytes_until_nul(&firmware)
                .map_or_else(|_| String::new(), |s| s.to_string_lossy().into_owned()),
            vendor_id: raw.vendor_id,
            vendor_part_id: raw.vendor_part_id,
            port_count: raw.phys_port_cnt,
            max_qp: count(raw.max_qp),
            max_qp_wr: count(raw.max_qp_wr),
            max_sge: count(raw.max_sge),
            max_cq: count(raw.max_cq),
            max_cqe: count(raw.max_cqe),
            max_mr_size: raw.max_mr_size,
            max_qp_rd_atom: count(raw.max_qp_rd_atom),
            max_qp_init_rd_atom: count(raw.max_qp_init_rd_atom),
            max_srq_wr: count(raw.max_srq_wr),
            max_srq_sge: count(raw.max_srq_sge),
            atomic: AtomicCap::from_raw(raw.atomic_cap),
        }
    }
}

/// State and limits of a port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PortAttr {
    /// Whether it may be used: only [`PortState::Active`] may.
    pub state: PortState,
    /// What the link itself is doing; `None` if the device reports no such state.
    pub physical: Option<PhysicalState>,
    /// What it is connected to.
    pub link_layer: LinkLayer,
    /// Local identifier given by the subnet manager; 0 on Ethernet.
    pub lid: u16,
    /// The largest packet payload in use, in bytes; 0 if the device reports none.
    pub active_mtu: u32,
    /// The largest packet payload possible, in bytes; 0 if the device reports none.
    pub max_mtu: u32,
    /// The longest message, in bytes.
    pub max_msg_size: u64,
    /// Size of the GID table, valid entries and others.
    pub gid_table_len: u32,
    /// Size of the partition key table.
    pub pkey_table_len: u32,
    /// Local identifier of the subnet manager; 0 on Ethernet.
    pub sm_lid: u16,
    /// Signalling rate of the link, speed times lanes, in Gb/s; `None` if the device reports no such speed. Nominal on
    /// software devices, which report 2.5 whatever is beneath them.
    pub rate_gbps: Option<f64>,
    /// Lanes of the link; `None` if the device reports no such width.
    pub lanes: Option<u8>,
}

impl PortAttr {
    pub(super) fn from_raw(raw: &ibv_port_attr) -> Self {
        Self {
            state: PortState::from_raw(raw.state),
            physical: PhysicalState::from_raw(raw.phys_state),
            link_layer: LinkLayer::from_raw(raw.link_layer),
            lid: raw.lid,
            active_mtu: mtu_bytes(raw.active_mtu),
            max_mtu: mtu_bytes(raw.max_mtu),
            max_msg_size: raw.max_msg_sz.into(),
            gid_table_len: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            pkey_table_len: raw.pkey_tbl_len.into(),
            sm_lid: raw.sm_lid,
            rate_gbps: rate_gbps(raw.active_speed.into(), raw.active_width),
            lanes: lanes(raw.active_width),
        }
    }
}

/// `IBV_MTU_256` (1) to `IBV_MTU_4096` (5) in bytes; 0 for anything else.
pub(super) fn mtu_bytes(code: ibv_mtu) -> u32 {
    if (1..=5).contains(&code) { 128 << code } else { 0 }
}

/// The code of a path MTU in bytes.
pub(super) fn mtu_code(bytes: u32) -> Option<ibv_mtu> {
    (1..=5).find(|&code| mtu_bytes(code) == bytes)
}

/// The fastest speed `ibv_port_attr::active_speed` has room for: the kernel reports it for anything faster too.
pub(super) const SPEED_SATURATED: u8 = 128;

/// Gb/s of a link by the codes of `PortInfo` (IBTA volume 1, 14.2.5.6): nominal speed of a lane times lanes.
pub(super) fn rate_gbps(speed: u32, width: u8) -> Option<f64> {
    let lane = match speed {
        1 => 2.5,      // SDR
        2 => 5.0,      // DDR
        4 | 8 => 10.0, // QDR, FDR10
        16 => 14.0,    // FDR
        32 => 25.0,    // EDR
        64 => 50.0,    // HDR
        128 => 100.0,  // NDR
        256 => 200.0,  // XDR
        _ => return None,
    };
    Some(lane * f64::from(lanes(width)?))
}

/// Lanes by the same codes.
fn lanes(width: u8) -> Option<u8> {
    match width {
        1 => Some(1),
        2 => Some(4),
        4 => Some(8),
        8 => Some(12),
        16 => Some(2),
        _ => None,
    }
}

/// The number in sysfs' `800 Gb/sec (4X XDR)`.
pub(super) fn parse_rate(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    let rate = words.next()?.parse().ok()?;
    (words.next()? == "Gb/sec").then_some(rate)
}

/// State of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// Reserved; also any value this version does not know.
    Nop,
    /// No link.
    Down,
    /// Link is up, waiting for a subnet manager.
    Init,
    /// Configured, not yet carrying data.
    Armed,
    /// Carries data.
    Active,
    /// Was active, the link is being retrained.
    ActiveDefer,
}

impl PortState {
    pub(super) fn from_raw(raw: ibv_port_state::Type) -> Self {
        match raw {
            ibv_port_state::IBV_PORT_DOWN => Self::Down,
            ibv_port_state::IBV_PORT_INIT => Self::Init,
            ibv_port_state::IBV_PORT_ARMED => Self::Armed,
            ibv_port_state::IBV_PORT_ACTIVE => Self::Active,
            ibv_port_state::IBV_PORT_ACTIVE_DEFER => Self::ActiveDefer,
            _ => Self::Nop,
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nop => "in no known state",
            Self::Down => "down",
            Self::Init => "initialising",
            Self::Armed => "armed",
            Self::Active => "active",
            Self::ActiveDefer => "retraining",
        })
    }
}

/// What the link below a port is doing (IBTA volume 1, 14.2.5.6, `PortPhysicalState`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhysicalState {
    /// Asleep to save power.
    Sleep,
    /// Looking for somebody at the other end of the cable.
    Polling,
    /// Switched off.
    Disabled,
    /// Negotiating with the other end.
    PortConfigurationTraining,
    /// Works.
    LinkUp,
    /// Recovering from errors.
    LinkErrorRecovery,
    /// Under test.
    PhyTest,
}

impl PhysicalState {
    pub(super) fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => Self::Sleep,
            2 => Self::Polling,
            3 => Self::Disabled,
            4 => Self::PortConfigurationTraining,
            5 => Self::LinkUp,
            6 => Self::LinkErrorRecovery,
            7 => Self::PhyTest,
            _ => return None,
        })
    }
}

impl fmt::Display for PhysicalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sleep => "asleep",
            Self::Polling => "polling",
            Self::Disabled => "disabled",
            Self::PortConfigurationTraining => "training",
            Self::LinkUp => "link up",
            Self::LinkErrorRecovery => "recovering from errors",
            Self::PhyTest => "under test",
        })
    }
}

/// What a port is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID within a subnet.
    Infiniband,
    /// Ethernet, that is RoCE: addressed by GID always.
    Ethernet,
    /// The driver does not say, as old ones for InfiniBand do.
    Unspecified,
}

impl LinkLayer {
    pub(super) fn from_raw(raw: u8) -> Self {
        match raw.into() {
            IBV_LINK_LAYER_INFINIBAND => Self::Infiniband,
            IBV_LINK_LAYER_ETHERNET => Self::Ethernet,
            _ => Self::Unspecified,
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Infiniband => "InfiniBand",
            Self::Ethernet => "Ethernet",
            Self::Unspecified => "unspecified",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_speed_times_lanes() {
        for (speed, width, rate) in [
            (1, 1, 2.5),
            (2, 2, 20.0),
            (4, 2, 40.0),
            (8, 2, 40.0),
            (16, 2, 56.0),
            (32, 2, 100.0),
            (32, 1, 25.0),
            (64, 2, 200.0),
            (64, 16, 100.0),
            (128, 2, 400.0),
            (128, 4, 800.0),
            (1, 8, 30.0),
            (256, 2, 800.0),
        ] {
            assert_eq!(rate_gbps(speed, width), Some(rate), "speed {speed}, width {width}");
        }
        for (speed, width) in [(0, 2), (3, 2), (32, 0), (32, 3), (512, 2)] {
            assert_eq!(rate_gbps(speed, width), None, "speed {speed}, width {width}");
        }
        assert_eq!(parse_rate("800 Gb/sec (4X XDR)\n"), Some(800.0));
        assert_eq!(parse_rate("2.5 Gb/sec (1X SDR)\n"), Some(2.5));
        assert_eq!(parse_rate(""), None);
        assert_eq!(parse_rate("<unknown>"), None);
    }

    #[test]
    fn mtus_are_codes_of_powers_of_two() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!(mtu_bytes(code), bytes);
            assert_eq!(mtu_code(bytes), Some(code));
        }
        assert_eq!((mtu_bytes(0), mtu_bytes(6), mtu_bytes(u32::MAX)), (0, 0, 0));
        assert_eq!((mtu_code(0), mtu_code(1500), mtu_code(8192)), (None, None, None));
    }

    #[test]
    fn ports_and_links_have_the_names_of_documents() {
        assert_eq!(serde_json::to_string(&PortState::ActiveDefer).unwrap(), r#""active_defer""#);
        assert_eq!(serde_json::to_string(&LinkLayer::Infiniband).unwrap(), r#""infiniband""#);
        for raw in 0..=5 {
            assert_eq!(PortState::from_raw(raw) as u32, raw);
        }
        assert_eq!(PortState::from_raw(99), PortState::Nop);
        assert_eq!(
            [0, 1, 2, 9].map(LinkLayer::from_raw).map(|layer| layer.to_string()),
            ["unspecified", "InfiniBand", "Ethernet", "unspecified"]
        );
    }

    #[test]
    fn port_attributes_are_converted() {
        let raw = ibv_port_attr {
            state: ibv_port_state::IBV_PORT_ACTIVE,
            max_mtu: 5,
            active_mtu: 3,
            gid_tbl_len: 1024,
            max_msg_sz: 1 << 31,
            pkey_tbl_len: 1,
            lid: 4,
            sm_lid: 1,
            active_width: 2,
            active_speed: 32,
            phys_state: 5,
            link_layer: 2,
            ..Default::default()
        };
        let attr = PortAttr::from_raw(&raw);
        assert_eq!((attr.active_mtu, attr.max_mtu, attr.max_msg_size), (1024, 4096, 1 << 31));
        assert_eq!(
            (attr.state, attr.link_layer, attr.lid, attr.sm_lid),
            (PortState::Active, LinkLayer::Ethernet, 4, 1)
        );
        assert_eq!((attr.gid_table_len, attr.pkey_table_len, attr.rate_gbps), (1024, 1, Some(100.0)));
        assert_eq!((attr.physical, attr.lanes), (Some(PhysicalState::LinkUp), Some(4)));
        let silent = PortAttr::from_raw(&ibv_port_attr::default());
        assert_eq!((silent.physical, silent.lanes, silent.rate_gbps), (None, None, None));
    }

    #[test]
    fn limits_are_never_negative() {
        let mut raw = ibv_device_attr { max_qp: -1, max_cqe: 32767, phys_port_cnt: 2, ..Default::default() };
        raw.fw_ver[..3].copy_from_slice(&[b'1' as _, b'.' as _, b'2' as _]);
        let attr = DeviceAttr::from_raw(&raw);
        assert_eq!(
            (attr.max_qp, attr.max_cqe, attr.port_count, attr.firmware.as_str()),
            (0, 32767, 2, "1.2")
        );
        assert_eq!(attr.atomic, AtomicCap::None);
        raw.atomic_cap = IBV_ATOMIC_HCA;
        assert_eq!(DeviceAttr::from_raw(&raw).atomic, AtomicCap::Device);
        raw.fw_ver = [b'x' as _; 64];
        assert_eq!(DeviceAttr::from_raw(&raw).firmware, "");
    }
}
