//! Devices, their ports and addresses, and the open context everything else is made from.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use ibverbs_sys::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET,
    IBV_LINK_LAYER_INFINIBAND, ibv_context, ibv_device_attr, ibv_gid_entry, ibv_mtu, ibv_port_attr,
    ibv_port_state,
};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::provider::Provider;
use super::{emulated, libibverbs};
use crate::error::{Error, Result, Step};

/// Where the kernel describes RDMA devices.
const SYSFS: &str = "/sys/class/infiniband";

/// Lists the devices: those of the system in libibverbs' order, then the emulated ones.
///
/// A machine whose kernel has no RDMA subsystem has no devices of the first kind; that is no error.
///
/// # Errors
/// [`Step::OpenDevice`]: `ibv_get_device_list(3)` failed otherwise (`EPERM`, `ENOMEM`).
pub fn devices() -> Result<Vec<Device>> {
    let listed = libibverbs::list().map_err(|error| {
        Error::failed(Step::OpenDevice, format!("ibv_get_device_list(): {error}"))
            .with_remedy("check that /sys/class/infiniband and /dev/infiniband can be read here")
    })?;
    let real = listed.into_iter().map(|(name, guid)| Device { name, guid, kind: ProviderKind::Libibverbs });
    Ok(real.chain(emulated::device_names().iter().map(|name| Device::emulated(name))).collect())
}

/// Finds the device of this name, such as `mlx5_0`, `rxe0` or `emu0`.
///
/// # Errors
/// [`Step::OpenDevice`]: there is none, with the names there are; or listing failed, as in [`devices`].
pub fn find(name: &str) -> Result<Device> {
    if let Some(name) = emulated::device_names().iter().find(|&&known| known == name) {
        return Ok(Device::emulated(name));
    }
    let devices = devices()?;
    if let Some(device) = devices.iter().find(|device| device.name == name) {
        return Ok(device.clone());
    }
    let names: Vec<_> = devices.iter().map(Device::name).collect();
    Err(Error::failed(
        Step::OpenDevice,
        match names.as_slice() {
            [] => format!("no device named '{name}'; there is none on this machine"),
            names => format!("no device named '{name}'; there are {}", names.join(", ")),
        },
    )
    .with_remedy("name one of those, or load the device's driver (`rdma link` shows what the kernel has)"))
}

/// What stands behind a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// The system's libibverbs and a kernel driver.
    Libibverbs,
    /// A device emulated inside this process.
    Emulated,
}

/// A device by name; nothing is open yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    name: String,
    guid: u64,
    kind: ProviderKind,
}

impl Device {
    fn emulated(name: &str) -> Self {
        let mut device = Self { name: name.to_owned(), guid: 0, kind: ProviderKind::Emulated };
        if let Ok(context) = device.open() {
            device.guid = context.query().map_or(0, |attr| u64::from_be(attr.node_guid));
        }
        device
    }

    /// The name, unique on this machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What stands behind it.
    pub fn provider(&self) -> ProviderKind {
        self.kind
    }

    /// The globally unique identifier of the node, or 0 where it has none.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// The kernel driver, as far as sysfs tells: the name of the driver of the PCI (or other) device beneath it;
    /// `rxe` and `siw` for the kernel's software devices; `emulated` for ours.
    ///
    /// A software device is told before its parent is looked at, because some kernels link it to the network
    /// adapter's PCI device: rxe is the only driver with an attribute `parent`; siw describes its node as "Software
    /// iWARP stack" unless somebody rewrote that, or else is the only driver of iWARP devices without hardware.
    /// `None` where sysfs says none of this.
    pub fn driver(&self) -> Option<String> {
        match self.kind {
            ProviderKind::Emulated => Some("emulated".to_owned()),
            ProviderKind::Libibverbs => driver_in(&Path::new(SYSFS).join(&self.name)),
        }
    }

    /// A CPU does the device's work: emulated, rxe or siw, or nothing is known of hardware beneath it.
    pub fn is_software(&self) -> bool {
        match self.kind {
            ProviderKind::Emulated => true,
            ProviderKind::Libibverbs => is_software_in(&Path::new(SYSFS).join(&self.name)),
        }
    }

    /// Opens the device. `ibv_open_device(3)`
    ///
    /// # Errors
    /// [`Step::OpenDevice`]: the device is gone, may not be opened by this user, or is an iWARP device, whose
    /// connections need `rdma_cm`.
    pub fn open(&self) -> Result<Context> {
        let provider: &'static dyn Provider = match self.kind {
            ProviderKind::Libibverbs => &libibverbs::LIBIBVERBS,
            ProviderKind::Emulated => emulated::provider(),
        };
        // SAFETY: opening has no preconditions.
        let raw = unsafe { provider.open(&self.name) }.map_err(|error| self.open_failed(&error))?;
        let context = ContextInner { raw, provider, device: self.clone(), attr: OnceLock::new() };
        // SAFETY: the context is open. Providers fill the table when they open a device and never empty it; the data
        // path relies on these four from here on without looking again.
        let ops = unsafe { &(*raw).ops };
        if ops.post_send.is_none()
            || ops.post_recv.is_none()
            || ops.poll_cq.is_none()
            || ops.req_notify_cq.is_none()
        {
            return Err(Error::failed(
                Step::OpenDevice,
                format!("the provider of {} lacks post, poll or notify in its operations table", self.name),
            )
            .with_remedy("update rdma-core; this library's provider for the device is incomplete"));
        }
        Ok(Context(Arc::new(context)))
    }

    fn open_failed(&self, error: &io::Error) -> Error {
        let failed = Error::failed(Step::OpenDevice, format!("ibv_open_device({}): {error}", self.name));
        match (error.kind(), error.raw_os_error().map(Errno::from_raw)) {
            (_, Some(Errno::EACCES | Errno::EPERM)) => failed.with_remedy(
                "the device files /dev/infiniband/uverbs* need to be readable and writable for this user; a container \
                 needs them passed in (--device /dev/infiniband)",
            ),
            (_, Some(Errno::ENOENT | Errno::ENXIO)) => {
                failed.with_remedy("its device file is missing in /dev/infiniband: load ib_uverbs, or pass it into the container")
            }
            (_, Some(Errno::ENODEV)) => failed.with_remedy("the device went away since it was listed"),
            (io::ErrorKind::Unsupported, _) => {
                failed.with_remedy("choose a RoCE or InfiniBand device, or measure TCP alone over its interface")
            }
            _ => failed,
        }
    }
}

fn driver_in(device: &Path) -> Option<String> {
    let text = |name| std::fs::read_to_string(device.join(name)).unwrap_or_default();
    let hardware = std::fs::read_link(device.join("device/driver"))
        .ok()
        .and_then(|target| Some(target.file_name()?.to_string_lossy().into_owned()));
    if device.join("parent").exists() {
        Some("rxe".to_owned())
    } else if text("node_desc").starts_with("Software iWARP")
        || hardware.is_none() && text("node_type").contains("RNIC")
    {
        Some("siw".to_owned())
    } else {
        hardware
    }
}

fn is_software_in(device: &Path) -> bool {
    matches!(driver_in(device).as_deref(), Some("rxe" | "siw")) || !device.join("device").exists()
}

/// An open device. Clones share it; it is closed when the last clone and all that was made from it are gone.
#[derive(Debug, Clone)]
pub struct Context(pub(super) Arc<ContextInner>);

pub(super) struct ContextInner {
    pub(super) raw: *mut ibv_context,
    pub(super) provider: &'static dyn Provider,
    device: Device,
    attr: OnceLock<DeviceAttr>,
}

// SAFETY: verbs objects may be used from any thread, and from several at once (`ibv_alloc_td(3)`; the emulated device
// keeps to the same); the rest of the type is Send and Sync by itself.
unsafe impl Send for ContextInner {}
// SAFETY: as above.
unsafe impl Sync for ContextInner {}

impl fmt::Debug for ContextInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device)
            .field("raw", &self.raw)
            .finish_non_exhaustive()
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        // SAFETY: the context is open and closed once; what was made from it held it, so all of that is gone. If
        // closing fails the context is leaked.
        let closed = unsafe { self.provider.close(self.raw) };
        debug_assert!(closed.is_ok(), "ibv_close_device: {closed:?}");
    }
}

impl Context {
    /// The device that is open.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Limits and identity of the device, asked for once. `ibv_query_device(3)`
    ///
    /// # Errors
    /// [`Step::OpenDevice`]: the device did not answer.
    pub fn attr(&self) -> Result<DeviceAttr> {
        self.cached_attr().cloned()
    }

    /// The same without a copy.
    pub(super) fn cached_attr(&self) -> Result<&DeviceAttr> {
        if let Some(attr) = self.0.attr.get() {
            return Ok(attr);
        }
        let raw = self.query().map_err(|error| {
            Error::failed(Step::OpenDevice, format!("ibv_query_device({}): {error}", self.device().name))
        })?;
        Ok(self.0.attr.get_or_init(|| DeviceAttr::from_raw(&raw)))
    }

    fn query(&self) -> io::Result<ibv_device_attr> {
        // SAFETY: the context is open and of this provider.
        unsafe { self.0.provider.query_device(self.0.raw) }
    }

    /// State and limits of a port, as they are now. `ibv_query_port(3)`
    ///
    /// # Errors
    /// [`Step::QueryPort`]: there is no such port (they are numbered from 1), or the device did not answer.
    pub fn port(&self, port: u8) -> Result<PortAttr> {
        self.check_port(port)?;
        // SAFETY: the context is open and of this provider.
        let raw = unsafe { self.0.provider.query_port(self.0.raw, port) }.map_err(|error| {
            Error::failed(
                Step::QueryPort,
                format!("ibv_query_port({}, port {port}): {error}", self.device().name),
            )
        })?;
        let mut attr = PortAttr::from_raw(&raw);
        if raw.active_speed == SPEED_SATURATED && self.device().kind == ProviderKind::Libibverbs {
            let rate = Path::new(SYSFS).join(&self.device().name).join(format!("ports/{port}/rate"));
            attr.rate_gbps =
                std::fs::read_to_string(rate).ok().and_then(|text| parse_rate(&text)).or(attr.rate_gbps);
        }
        Ok(attr)
    }

    fn check_port(&self, port: u8) -> Result<()> {
        let ports = self.cached_attr()?.port_count;
        if (1..=ports).contains(&port) {
            return Ok(());
        }
        let name = &self.device().name;
        Err(Error::failed(
            Step::QueryPort,
            match ports {
                1 => format!("{name} has no port {port}, only port 1"),
                _ => format!("{name} has no port {port}, only ports 1 to {ports}"),
            },
        )
        .with_remedy("choose one of those"))
    }

    /// The valid entries of a port's GID table, by index. `ibv_query_gid_table(3)`
    ///
    /// # Errors
    /// [`Step::QueryPort`]: there is no such port, or the device did not answer.
    pub fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>> {
        self.check_port(port)?;
        // SAFETY: the context is open and of this provider.
        let table = unsafe { self.0.provider.gid_table(self.0.raw) }.map_err(|error| {
            Error::failed(Step::QueryPort, format!("ibv_query_gid_table({}): {error}", self.device().name))
        })?;
        let mut entries: Vec<_> = table
            .iter()
            .filter(|entry| entry.port_num == u32::from(port))
            .filter_map(GidEntry::from_raw)
            .collect();
        entries.sort_by_key(|entry| entry.index);
        Ok(entries)
    }

    /// An entry of a port's partition key table, in host order. `ibv_query_pkey(3)`
    ///
    /// # Errors
    /// [`Step::QueryPort`]: there is no such port or index.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16> {
        self.check_port(port)?;
        // SAFETY: the context is open and of this provider.
        unsafe { self.0.provider.query_pkey(self.0.raw, port, index) }.map_err(|error| {
            Error::failed(
                Step::QueryPort,
                format!("ibv_query_pkey({}, port {port}, index {index}): {error}", self.device().name),
            )
            .with_remedy("see /sys/class/infiniband/*/ports/*/pkeys for the indexes there are")
        })
    }

    /// Becomes readable when the device has something to say outside of any queue: a port changed state, a queue pair
    /// or completion queue failed. `ibv_get_async_event(3)`
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and stays so while it is borrowed.
        unsafe { self.0.provider.async_fd(self.0.raw) }
    }
}

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
}

impl DeviceAttr {
    fn from_raw(raw: &ibv_device_attr) -> Self {
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
        }
    }
}

/// State and limits of a port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PortAttr {
    /// Whether it may be used: only [`PortState::Active`] may.
    pub state: PortState,
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
}

impl PortAttr {
    fn from_raw(raw: &ibv_port_attr) -> Self {
        Self {
            state: PortState::from_raw(raw.state),
            link_layer: LinkLayer::from_raw(raw.link_layer),
            lid: raw.lid,
            active_mtu: mtu_bytes(raw.active_mtu),
            max_mtu: mtu_bytes(raw.max_mtu),
            max_msg_size: raw.max_msg_sz.into(),
            gid_table_len: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            pkey_table_len: raw.pkey_tbl_len.into(),
            sm_lid: raw.sm_lid,
            rate_gbps: rate_gbps(raw.active_speed.into(), raw.active_width),
        }
    }
}

/// `IBV_MTU_256` (1) to `IBV_MTU_4096` (5) in bytes; 0 for anything else.
fn mtu_bytes(code: ibv_mtu) -> u32 {
    if (1..=5).contains(&code) { 128 << code } else { 0 }
}

/// The code of a path MTU in bytes.
pub(super) fn mtu_code(bytes: u32) -> Option<ibv_mtu> {
    (1..=5).find(|&code| mtu_bytes(code) == bytes)
}

/// The fastest speed `ibv_port_attr::active_speed` has room for: the kernel reports it for anything faster too.
const SPEED_SATURATED: u8 = 128;

/// Gb/s of a link by the codes of `PortInfo` (IBTA volume 1, 14.2.5.6): nominal speed of a lane times lanes.
fn rate_gbps(speed: u32, width: u8) -> Option<f64> {
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
    let lanes = match width {
        1 => 1.0,
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => return None,
    };
    Some(lane * lanes)
}

/// The number in sysfs' `800 Gb/sec (4X XDR)`.
fn parse_rate(text: &str) -> Option<f64> {
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
    fn from_raw(raw: ibv_port_state::Type) -> Self {
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
    fn from_raw(raw: u8) -> Self {
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

/// Global identifier of a port: 128 bits written as an IPv6 address, which on RoCE it is (IPv4 as `::ffff:10.7.0.1`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Ipv6Addr", into = "Ipv6Addr")]
pub struct Gid([u8; 16]);

impl Gid {
    /// A GID from its bytes in network order.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes in network order.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// Stands for an IPv4 address.
    pub fn is_v4_mapped(self) -> bool {
        self.as_ipv6().to_ipv4_mapped().is_some()
    }

    /// Is of `fe80::/10`, so is reached within its link only. The default GID of an InfiniBand port is.
    pub fn is_link_local(self) -> bool {
        self.as_ipv6().is_unicast_link_local()
    }

    /// The same as an address.
    pub fn as_ipv6(self) -> Ipv6Addr {
        self.0.into()
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<Gid> for Ipv6Addr {
    fn from(gid: Gid) -> Self {
        gid.as_ipv6()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ipv6().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// How packets to and from a GID look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GidType {
    /// InfiniBand.
    Infiniband,
    /// RoCE v1: an Ethernet type of its own, not routed.
    RoceV1,
    /// RoCE v2: UDP port 4791, routed.
    RoceV2,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Infiniband => "IB",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// A valid entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidEntry {
    /// The identifier.
    pub gid: Gid,
    /// Its place in the table: what a queue pair is given as the source of its packets.
    pub index: u32,
    /// Port, from 1.
    pub port: u8,
    /// How its packets look.
    pub kind: GidType,
    /// Index of the network interface it belongs to, or 0.
    pub ifindex: u32,
}

impl GidEntry {
    /// `None` for a type this version does not know, which it could not use either.
    fn from_raw(raw: &ibv_gid_entry) -> Option<Self> {
        let kind = match raw.gid_type {
            IBV_GID_TYPE_IB => GidType::Infiniband,
            IBV_GID_TYPE_ROCE_V1 => GidType::RoceV1,
            IBV_GID_TYPE_ROCE_V2 => GidType::RoceV2,
            _ => return None,
        };
        Some(Self {
            // SAFETY: both members of the union are 16 bytes that may have any value.
            gid: Gid(unsafe { raw.gid.raw }),
            index: raw.gid_index,
            port: u8::try_from(raw.port_num).ok()?,
            kind,
            ifindex: raw.ndev_ifindex,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn gids_read_as_addresses() {
        let v4 = Gid::new([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 7, 0, 1]);
        assert_eq!(v4.to_string(), "::ffff:10.7.0.1");
        assert!(v4.is_v4_mapped() && !v4.is_link_local());
        let local = Gid::from("fe80::5054:ff:fe00:1".parse::<Ipv6Addr>().unwrap());
        assert!(local.is_link_local() && !local.is_v4_mapped());
        assert_eq!(serde_json::to_string(&v4).unwrap(), r#""::ffff:10.7.0.1""#);
        assert_eq!(serde_json::from_str::<Gid>(r#""fe80::5054:ff:fe00:1""#).unwrap(), local);
    }

    #[test]
    fn gid_entries_keep_what_the_table_says() {
        let mut raw =
            ibv_gid_entry { gid_index: 3, port_num: 1, gid_type: 2, ndev_ifindex: 7, ..Default::default() };
        raw.gid.raw = [9; 16];
        let entry = GidEntry { gid: Gid::new([9; 16]), index: 3, port: 1, kind: GidType::RoceV2, ifindex: 7 };
        assert_eq!(GidEntry::from_raw(&raw), Some(entry));
        raw.gid_type = 77;
        assert_eq!(GidEntry::from_raw(&raw), None);
        assert_eq!(
            [GidType::Infiniband, GidType::RoceV1, GidType::RoceV2].map(|kind| kind.to_string()),
            ["IB", "RoCE v1", "RoCE v2"]
        );
    }

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
        raw.fw_ver = [b'x' as _; 64];
        assert_eq!(DeviceAttr::from_raw(&raw).firmware, "");
    }

    #[test]
    fn software_devices_are_told_from_hardware() {
        let root = std::env::temp_dir().join(format!("verbmark-sysfs-{}", std::process::id()));
        let device = |name: &str| {
            let path = root.join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let with_hardware = |name: &str, driver: &str| {
            let path = device(name);
            fs::create_dir_all(path.join("device")).unwrap();
            symlink(format!("../../drivers/{driver}"), path.join("device/driver")).unwrap();
            path
        };
        let told = |path: &Path| (driver_in(path), is_software_in(path));
        let known = |driver: &str, software| (Some(driver.to_owned()), software);

        assert_eq!(told(&with_hardware("mlx5_0", "mlx5_core")), known("mlx5_core", false));

        let rxe = device("rxe0");
        fs::write(rxe.join("parent"), "eth0\n").unwrap();
        assert_eq!(told(&rxe), known("rxe", true));
        let linked_rxe = with_hardware("rxe1", "mlx5_core");
        fs::write(linked_rxe.join("parent"), "eth0\n").unwrap();
        assert_eq!(told(&linked_rxe), known("rxe", true));

        let siw = device("siw0");
        fs::write(siw.join("node_type"), "4: RNIC\n").unwrap();
        assert_eq!(told(&siw), known("siw", true));
        let linked_siw = with_hardware("siw1", "e1000e");
        fs::write(linked_siw.join("node_desc"), "Software iWARP stack\n").unwrap();
        assert_eq!(told(&linked_siw), known("siw", true));
        let iwarp_card = with_hardware("cxgb4_0", "cxgb4");
        fs::write(iwarp_card.join("node_type"), "4: RNIC\n").unwrap();
        assert_eq!(told(&iwarp_card), known("cxgb4", false));

        assert_eq!(told(&device("unknown")), (None, true));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn an_unknown_device_is_answered_with_the_known() {
        let error = find("no-such-device").unwrap_err();
        assert_eq!(error.step, Step::OpenDevice);
        assert!(error.message.starts_with("no device named 'no-such-device'; there "), "{}", error.message);
        for device in devices().unwrap() {
            assert!(error.message.contains(device.name()), "{}", error.message);
        }
        assert!(error.remedy.is_some());
    }
}
