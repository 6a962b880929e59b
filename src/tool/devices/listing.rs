//! The document `verbmark.devices/1`, and how it is filled from libibverbs and the kernel.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::usable::{Code, Facts, Reason, judge};
use crate::error::{Error, Result};
use crate::host::{self, Interface, Machine, MemoryLock, Missing};
use crate::result::{GidType, LinkLayer, Tool, timestamp};
use crate::verbs::{
    self, Access, AtomicCap, Context, DeviceAttr, GidEntry, PhysicalState, PortAttr, PortDescription,
    PortState, Region,
};

/// Name and version of the document.
pub const SCHEMA: &str = "verbmark.devices/1";

/// Memory that a test registers at default sizes.
const REGISTERED: usize = 1 << 20;

/// The devices of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// [`SCHEMA`].
    pub schema: String,
    /// What listed them.
    pub tool: Tool,
    /// When, RFC 3339.
    pub listed_at: String,
    /// The machine's name.
    pub host: Option<String>,
    /// Its kernel's release.
    pub kernel: Option<String>,
    /// Memory that this process may lock, and so register.
    pub memlock_bytes: Option<MemoryLock>,
    /// Why nothing could be listed.
    pub error: Option<Error>,
    /// What to do on a machine that has no device of its own; `null` on others.
    pub advice: Option<String>,
    /// Those of the system, then the emulated ones.
    pub devices: Vec<Device>,
    /// Values that could not be had.
    pub missing: Vec<Missing>,
}

/// Who does the work of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// An adapter.
    Hardware,
    /// A CPU.
    Software,
    /// That cannot be told, and nothing is assumed.
    Unknown,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Such as `mlx5_0`.
    pub name: String,
    /// Exists in this process only.
    pub emulated: bool,
    /// Who does its work.
    pub provider_kind: ProviderKind,
    /// Kernel driver.
    pub driver: Option<String>,
    /// Firmware version.
    pub firmware: Option<String>,
    /// As `xxxx:xxxx:xxxx:xxxx`.
    pub node_guid: Option<String>,
    /// NUMA node it is attached to.
    pub numa_node: Option<u32>,
    /// Why it is not open; what is known then is what the kernel describes.
    pub error: Option<Error>,
    /// What it can do at most.
    pub limits: Option<Limits>,
    /// Its ports, by number.
    pub ports: Vec<Port>,
}

/// Limits of a device, under the names of `ibv_query_device(3)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of a work request.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one of them.
    pub max_cqe: u32,
    /// Bytes of a memory region.
    pub max_mr_size: u64,
    /// RDMA READs and atomics a queue pair takes in at once.
    pub max_qp_rd_atom: u32,
    /// RDMA READs and atomics a queue pair may have outstanding.
    pub max_qp_init_rd_atom: u32,
    /// Receives of a shared receive queue; 0 if there are none.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of a receive there.
    pub max_srq_sge: u32,
    /// Among whom its atomic operations are atomic.
    pub atomic_cap: AtomicCap,
    /// Bytes; no verb tells them.
    pub max_inline_data: Option<u32>,
}

/// One port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// A test can use it now.
    pub usable: bool,
    /// Why, or why not.
    pub reason: Reason,
    /// Logical state.
    pub state: Option<PortState>,
    /// State of the link itself.
    pub physical_state: Option<PhysicalState>,
    /// What it is connected to.
    pub link_layer: Option<LinkLayer>,
    /// Signalling rate of all lanes in 10^9 bits a second.
    pub rate_gbps: Option<f64>,
    /// Lanes.
    pub width: Option<u8>,
    /// Largest packet payload in use.
    pub active_mtu_bytes: Option<u32>,
    /// Largest packet payload possible.
    pub max_mtu_bytes: Option<u32>,
    /// Longest message.
    pub max_msg_sz: Option<u64>,
    /// Local identifier; `null` on Ethernet.
    pub lid: Option<u16>,
    /// Valid entries of its table; `null` when it could not be read.
    pub gids: Option<Vec<Gid>>,
}

/// A GID.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gid {
    /// Its place in the table, for `-x`.
    pub index: u32,
    /// What the network speaks for it.
    #[serde(rename = "type")]
    pub kind: GidType,
    /// As an IPv6 address.
    pub address: String,
    /// Network interface it belongs to.
    pub netdev: Option<String>,
}

impl Listing {
    /// This machine as it is now: all devices, or the one of this name.
    pub fn now(only: Option<&str>) -> Self {
        let (machine, unknown) = Machine::read();
        let mut listing = Self {
            schema: SCHEMA.into(),
            tool: Tool::new("verbmark"),
            listed_at: timestamp(SystemTime::now()),
            host: machine.hostname,
            kernel: machine.kernel,
            memlock_bytes: machine.memlock_bytes,
            error: None,
            advice: None,
            devices: Vec::new(),
            missing: unknown
                .into_iter()
                .filter(|missing| ["host", "kernel", "memlock_bytes"].contains(&missing.path.as_str()))
                .collect(),
        };
        let found = match only {
            Some(name) => verbs::find(name).map(|device| vec![device]),
            None => verbs::devices(),
        };
        match found {
            Ok(devices) => {
                if !devices.iter().any(|device| device.provider() == verbs::ProviderKind::Libibverbs)
                    && only.is_none()
                {
                    listing.advice =
                        Some(format!("this machine has no RDMA device: {}", verbs::NO_DEVICE_REMEDY));
                }
                let interfaces = host::interfaces().unwrap_or_default();
                for (index, device) in devices.iter().enumerate() {
                    let mut notes = Notes { at: format!("devices[{index}]"), missing: &mut listing.missing };
                    listing.devices.push(look_at(device, &interfaces, &mut notes));
                }
            }
            Err(error) => listing.error = Some(error),
        }
        listing
    }
}

/// Where in the document a value is missing.
struct Notes<'a> {
    at: String,
    missing: &'a mut Vec<Missing>,
}

impl Notes<'_> {
    fn miss(&mut self, name: &str, reason: &str) {
        self.missing.push(Missing::new(format!("{}.{name}", self.at), reason));
    }

    /// Gives the value on, after a note if there is none.
    fn keep<T>(&mut self, name: &str, value: Option<T>, reason: &str) -> Option<T> {
        if value.is_none() {
            self.miss(name, reason);
        }
        value
    }

    fn within(&mut self, place: &str) -> Notes<'_> {
        Notes { at: format!("{}.{place}", self.at), missing: self.missing }
    }
}

/// An open device, and its limits.
fn open(device: &verbs::Device) -> Result<(Context, DeviceAttr)> {
    let context = device.open()?;
    let attr = context.attr()?;
    Ok((context, attr))
}

fn look_at(device: &verbs::Device, interfaces: &[Interface], notes: &mut Notes<'_>) -> Device {
    let emulated = device.provider() == verbs::ProviderKind::Emulated;
    let opened = open(device);
    let described = device.described();
    let firmware = match &opened {
        Ok((_, attr)) => Some(attr.firmware.clone()).filter(|firmware| !firmware.is_empty()),
        Err(_) => described.firmware,
    };
    let provider_kind = match device.is_software() {
        Some(true) => ProviderKind::Software,
        Some(false) => ProviderKind::Hardware,
        None => ProviderKind::Unknown,
    };
    let (error, limits, ports) = match opened {
        Ok((context, attr)) => {
            let memory = try_memory(&context);
            let limits = limits(&attr);
            notes.miss(
                "limits.max_inline_data",
                "no verb tells it; a queue pair is granted what it can have, which a run with -v shows",
            );
            let ports = (1..=attr.port_count)
                .enumerate()
                .map(|(index, number)| {
                    let mut notes = notes.within(&format!("ports[{index}]"));
                    port(&context, number, emulated, &memory, interfaces, &mut notes)
                })
                .collect();
            (None, Some(limits), ports)
        }
        Err(error) => {
            notes.miss("limits", &error.message);
            let code = if device.is_iwarp() { Code::Iwarp } else { Code::CannotOpen };
            let ports = described.ports.iter().enumerate().map(|(index, port)| {
                let mut notes = notes.within(&format!("ports[{index}]"));
                unopened(port, Reason::of(code, &error), &mut notes)
            });
            let ports = ports.collect();
            (Some(error), None, ports)
        }
    };
    Device {
        name: device.name().into(),
        emulated,
        provider_kind,
        driver: notes.keep("driver", device.driver(), "sysfs names no driver"),
        firmware: notes.keep("firmware", firmware, "the device reports no version"),
        node_guid: notes.keep("node_guid", device.guid_text(), "the device has none"),
        numa_node: notes.keep(
            "numa_node",
            host::node_of_device(device.name()),
            "the device is on no NUMA node that the kernel names",
        ),
        error,
        limits,
        ports,
    }
}

/// Registers as much memory as a test does, and gives it back.
fn try_memory(context: &Context) -> Result<()> {
    context.alloc_pd()?.register(Region::new(REGISTERED)?, Access::default()).map(drop)
}

fn limits(attr: &DeviceAttr) -> Limits {
    Limits {
        max_qp: attr.max_qp,
        max_qp_wr: attr.max_qp_wr,
        max_sge: attr.max_sge,
        max_cq: attr.max_cq,
        max_cqe: attr.max_cqe,
        max_mr_size: attr.max_mr_size,
        max_qp_rd_atom: attr.max_qp_rd_atom,
        max_qp_init_rd_atom: attr.max_qp_init_rd_atom,
        max_srq_wr: attr.max_srq_wr,
        max_srq_sge: attr.max_srq_sge,
        atomic_cap: attr.atomic,
        max_inline_data: None,
    }
}

fn port(
    context: &Context,
    number: u8,
    is_emulated: bool,
    memory: &Result<()>,
    interfaces: &[Interface],
    notes: &mut Notes<'_>,
) -> Port {
    let asked = context.port(number).and_then(|attr| Ok((attr, context.gid_table(number)?)));
    let (attr, table) = match asked {
        Ok(answer) => answer,
        Err(error) => {
            let silent = PortDescription { number, ..PortDescription::default() };
            return unopened(&silent, Reason::of(Code::NoAnswer, &error), notes);
        }
    };
    let link_layer = link_layer(attr.link_layer);
    let global = table.iter().filter(|entry| !entry.gid.is_link_local()).count();
    let reason = judge(&Facts {
        is_emulated,
        state: attr.state,
        link_layer,
        lid: attr.lid,
        gids: (table.len(), global),
        memory: memory.as_ref().copied(),
    });
    answered(number, reason, &attr, table.iter().map(|entry| gid(entry, interfaces)).collect(), notes)
}

fn answered(number: u8, reason: Reason, attr: &PortAttr, gids: Vec<Gid>, notes: &mut Notes<'_>) -> Port {
    const SILENT: &str = "the device reports none";
    let link_layer = link_layer(attr.link_layer);
    for (index, gid) in gids.iter().enumerate() {
        if gid.netdev.is_none() && link_layer != Some(LinkLayer::InfiniBand) {
            notes.miss(&format!("gids[{index}].netdev"), "no interface of this network namespace holds it");
        }
    }
    Port {
        number,
        usable: reason.is_usable(),
        reason,
        state: Some(attr.state),
        physical_state: notes.keep("physical_state", attr.physical, SILENT),
        link_layer: notes.keep("link_layer", link_layer, "the driver does not say"),
        rate_gbps: notes.keep("rate_gbps", attr.rate_gbps, SILENT),
        width: notes.keep("width", attr.lanes, SILENT),
        active_mtu_bytes: notes.keep(
            "active_mtu_bytes",
            Some(attr.active_mtu).filter(|mtu| *mtu > 0),
            SILENT,
        ),
        max_mtu_bytes: notes.keep("max_mtu_bytes", Some(attr.max_mtu).filter(|mtu| *mtu > 0), SILENT),
        max_msg_sz: Some(attr.max_msg_size),
        lid: lid(link_layer, Some(attr.lid), notes),
        gids: Some(gids),
    }
}

/// A port of a device that is not open, or does not answer.
fn unopened(port: &PortDescription, reason: Reason, notes: &mut Notes<'_>) -> Port {
    const UNSAID: &str = "the kernel does not describe it";
    let link_layer = port.link_layer.and_then(link_layer);
    for name in ["active_mtu_bytes", "max_mtu_bytes", "max_msg_sz", "gids"] {
        notes.miss(name, &reason.message);
    }
    Port {
        number: port.number,
        usable: reason.is_usable(),
        reason,
        state: notes.keep("state", port.state, UNSAID),
        physical_state: notes.keep("physical_state", port.physical, UNSAID),
        link_layer: notes.keep("link_layer", link_layer, UNSAID),
        rate_gbps: notes.keep("rate_gbps", port.rate_gbps, UNSAID),
        width: notes.keep("width", port.lanes, UNSAID),
        active_mtu_bytes: None,
        max_mtu_bytes: None,
        max_msg_sz: None,
        lid: lid(link_layer, port.lid, notes),
        gids: None,
    }
}

fn lid(link_layer: Option<LinkLayer>, lid: Option<u16>, notes: &mut Notes<'_>) -> Option<u16> {
    match (link_layer, lid) {
        (Some(LinkLayer::Ethernet), _) => None,
        (_, Some(lid)) if lid > 0 => Some(lid),
        _ => {
            notes.miss("lid", "no subnet manager has given the port one");
            None
        }
    }
}

fn link_layer(layer: verbs::LinkLayer) -> Option<LinkLayer> {
    match layer {
        verbs::LinkLayer::Infiniband => Some(LinkLayer::InfiniBand),
        verbs::LinkLayer::Ethernet => Some(LinkLayer::Ethernet),
        verbs::LinkLayer::Unspecified => None,
    }
}

fn gid(entry: &GidEntry, interfaces: &[Interface]) -> Gid {
    Gid {
        index: entry.index,
        kind: match entry.kind {
            verbs::GidType::Infiniband => GidType::InfiniBand,
            verbs::GidType::RoceV1 => GidType::RoceV1,
            verbs::GidType::RoceV2 => GidType::RoceV2,
        },
        address: entry.gid.to_string(),
        netdev: interfaces
            .iter()
            .find(|interface| interface.index == entry.ifindex)
            .map(|interface| interface.name.clone()),
    }
}
