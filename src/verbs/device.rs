//! Devices, their ports and addresses, and the open context everything else is made from.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use ibverbs_sys::{ibv_context, ibv_device_attr};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::async_event::AsyncEvent;
use super::gid::GidEntry;
use super::port::{DeviceAttr, PortAttr, SPEED_SATURATED, parse_rate};
use super::provider::Provider;
use super::{emulated, libibverbs};
use crate::error::{Error, Result, Step};

/// Where the kernel describes RDMA devices.
pub(super) const SYSFS: &str = "/sys/class/infiniband";

/// What to do on a machine that has no device.
pub const NO_DEVICE_REMEDY: &str = "load its driver (ls /sys/class/infiniband shows what the kernel has), create a \
     software device (rdma link add rxe0 type rxe netdev IF), or measure TCP alone with --tcp-only; --loopback uses an \
     emulated device";

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

/// A device by name; nothing is open yet, and it may be gone when it is to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    name: String,
    guid: u64,
    kind: ProviderKind,
}

impl Device {
    fn emulated(name: &str) -> Self {
        Self { name: name.to_owned(), guid: emulated::node_guid(name), kind: ProviderKind::Emulated }
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

    /// The same as text, such as `0c42:a103:0065:1f3a`.
    pub fn guid_text(&self) -> Option<String> {
        let part = |shift: u32| (self.guid >> shift) & 0xffff;
        (self.guid != 0)
            .then(|| format!("{:04x}:{:04x}:{:04x}:{:04x}", part(48), part(32), part(16), part(0)))
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

    /// A CPU does the device's work: emulated, rxe or siw. `None` where that cannot be told: no driver is seen, or one
    /// that is not known to be a hardware adapter's, and nothing may be claimed then.
    pub fn is_software(&self) -> Option<bool> {
        match self.kind {
            ProviderKind::Emulated => Some(true),
            ProviderKind::Libibverbs => is_software_in(&Path::new(SYSFS).join(&self.name)),
        }
    }

    /// Exists inside this process alone.
    pub fn is_emulated(&self) -> bool {
        self.kind == ProviderKind::Emulated
    }

    /// Speaks iWARP, whose connections need `rdma_cm`: [`Device::open`] refuses it.
    pub fn is_iwarp(&self) -> bool {
        self.kind == ProviderKind::Libibverbs && is_iwarp(&Path::new(SYSFS).join(&self.name))
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
        let context = ContextInner {
            raw,
            provider,
            device: self.clone(),
            attr: OnceLock::new(),
            events: Mutex::default(),
        };
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
            _ if self.kind == ProviderKind::Emulated => {
                failed.with_remedy("see VERBMARK_EMULATED in the environment: a word or number in it is not known")
            }
            _ => failed.with_remedy("see the device's log (dmesg), and whether `ibv_devinfo` can open it"),
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
    } else if text("node_desc").starts_with("Software iWARP") || hardware.is_none() && is_iwarp(device) {
        Some("siw".to_owned())
    } else {
        hardware
    }
}

/// PCI drivers of adapters whose hardware does the work of verbs. hfi1 and qib are not among them: their verbs are
/// done by the kernel's rdmavt, on a processor.
const HARDWARE: [&str; 15] = [
    "be2net",
    "bnxt_en",
    "cxgb4",
    "efa",
    "erdma",
    "hns3",
    "i40e",
    "ib_mthca",
    "ice",
    "idpf",
    "ionic",
    "mana",
    "mlx4_core",
    "mlx5_core",
    "qede",
];

fn is_iwarp(device: &Path) -> bool {
    std::fs::read_to_string(device.join("node_type")).is_ok_and(|kind| kind.contains("RNIC"))
}

fn is_software_in(device: &Path) -> Option<bool> {
    match driver_in(device).as_deref() {
        Some("rxe" | "siw") => Some(true),
        // It may be siw on that adapter's port, described anew, as rdma-ndd does to every device.
        Some(_) if is_iwarp(device) => None,
        Some(driver) if HARDWARE.contains(&driver) => Some(false),
        _ => None,
    }
}

/// An open device. Clones share it; it is closed when the last clone and all that was made from it are gone.
#[derive(Debug, Clone)]
pub struct Context(pub(super) Arc<ContextInner>);

pub(super) struct ContextInner {
    pub(super) raw: *mut ibv_context,
    pub(super) provider: &'static dyn Provider,
    device: Device,
    attr: OnceLock<DeviceAttr>,
    /// Asynchronous events taken so far.
    pub(super) events: Mutex<Vec<AsyncEvent>>,
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

    /// Times that a message of a queue pair of this context found no receive at its target and had to wait; `None` where
    /// the device does not count that for one process.
    pub fn not_ready(&self) -> Option<u64> {
        // SAFETY: the context is open and of this provider.
        unsafe { self.0.provider.not_ready(self.0.raw) }
    }

    /// Messages that arrived for queue pairs of this context and were dropped, without a word to their senders: no
    /// receive was posted, or the message was not allowed. Connections without acknowledgement and datagrams have
    /// such. `None` where the provider does not count: that no verb tells of it is so for all real devices, but some
    /// drivers count in `hw_counters` of a port in sysfs.
    pub fn dropped(&self) -> Option<u64> {
        // SAFETY: the context is open and of this provider.
        unsafe { self.0.provider.dropped(self.0.raw) }
    }

    /// Is readable while there are events for [`Context::take_async_event`]: a port changed state, a queue pair or
    /// completion queue failed. It does not block.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and stays so while it is borrowed.
        unsafe { self.0.provider.async_fd(self.0.raw) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

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
        let known = |driver: &str, software| (Some(driver.to_owned()), Some(software));

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
        assert_eq!(told(&iwarp_card), (Some("cxgb4".to_owned()), None));

        assert_eq!(told(&device("unknown")), (None, None));
        assert_eq!(told(&with_hardware("new_0", "brand_new")), (Some("brand_new".to_owned()), None));
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
