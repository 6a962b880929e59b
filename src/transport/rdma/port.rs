//! An open device with the port that a run uses.

use std::net::IpAddr;

use crate::error::{Error, Result, Step};
use crate::host;
use crate::plan::Site;
use crate::transport::path::{self, GidFact, PortFacts};
use crate::verbs::{self, AtomicCap, Context, DeviceAttr, LinkLayer, PortAttr, PortState};

/// An open device with a usable port.
#[derive(Debug)]
pub struct Port {
    context: Context,
    number: u8,
    wanted_gid: Option<u32>,
    numa: Option<u32>,
    pkey_index: u16,
    pkey: std::result::Result<u16, String>,
    attr: PortAttr,
    device: DeviceAttr,
    gids: Vec<verbs::GidEntry>,
}

impl Port {
    /// Opens the device a user named, or else the first whose port is usable.
    ///
    /// # Errors
    /// No device, no such device, port not active, GID index beyond the table.
    pub fn open(site: &Site) -> Result<Self> {
        if let Some(name) = &site.device {
            return Self::open_device(&verbs::find(name)?, site);
        }
        let devices = verbs::devices()?;
        let real: Vec<_> =
            devices.iter().filter(|device| device.provider() == verbs::ProviderKind::Libibverbs).collect();
        let mut refusals = Vec::new();
        for device in &real {
            match Self::open_device(device, site) {
                Ok(port) => return Ok(port),
                Err(error) => refusals.push(error),
            }
        }
        let emulated = devices.iter().find(|device| device.provider() == verbs::ProviderKind::Emulated);
        match (refusals.into_iter().next(), emulated) {
            (Some(error), _) if real.len() == 1 => Err(error),
            (Some(error), _) => Err(Error {
                message: format!("none of {} devices is usable; the first: {}", real.len(), error.message),
                ..error
            }),
            (None, Some(device)) if site.may_emulate => Self::open_device(device, site),
            (None, _) => Err(Error::failed(Step::OpenDevice, "this machine has no RDMA device")
                .with_remedy(verbs::NO_DEVICE_REMEDY)),
        }
    }

    fn open_device(device: &verbs::Device, site: &Site) -> Result<Self> {
        let context = device.open()?;
        let attr = context.port(site.port)?;
        let name = format!("{}/{}", device.name(), site.port);
        if attr.state != PortState::Active {
            return Err(Error::failed(Step::QueryPort, format!("port {name} is {}, not active", attr.state))
                .with_remedy(match attr.link_layer {
                    LinkLayer::Infiniband => "check the cable and that a subnet manager (opensm) runs",
                    _ => "bring the interface up (ip link set IF up) and check the cable",
                }));
        }
        if let Some(index) = site.gid_index.filter(|&index| index >= attr.gid_table_len) {
            return Err(Error::failed(
                Step::QueryPort,
                format!(
                    "GID index {index} is outside the table of {name}, which has {} entries",
                    attr.gid_table_len
                ),
            )
            .with_remedy("leave -x away to have the pair chosen, or see the table with `ibv_devinfo -v`"));
        }
        let pkey_index = site.pkey_index;
        if pkey_index > 0 && u32::from(pkey_index) >= attr.pkey_table_len {
            return Err(Error::failed(
                Step::QueryPort,
                format!(
                    "partition key index {pkey_index} is outside the table of {name}, which has {} entries",
                    attr.pkey_table_len
                ),
            )
            .with_remedy(
                "leave --pkey-index away for the first one, or see the table with `ibv_devinfo -v`",
            ));
        }
        let pkey = match context.pkey(site.port, pkey_index) {
            // Containers hide the file it is read from, and RoCE has one partition: what nobody asked for is not missed.
            Err(error) if pkey_index == 0 && attr.link_layer == LinkLayer::Ethernet => Err(error.message),
            read => Ok(read?),
        };
        let gids = context.gid_table(site.port)?;
        let device = context.attr()?;
        let (number, wanted_gid, numa) = (site.port, site.gid_index, site.numa);
        Ok(Self { context, number, wanted_gid, numa, pkey_index, pkey, attr, device, gids })
    }

    /// What the other end must know before a path is chosen.
    pub fn facts(&self) -> PortFacts {
        let interfaces = host::interfaces().unwrap_or_default();
        let prefix = |address: IpAddr| {
            let held = interfaces.iter().flat_map(|interface| &interface.addresses);
            held.into_iter().find(|held| held.ip == address).and_then(|held| held.prefix)
        };
        PortFacts {
            name: format!("{}/{}", self.context.device().name(), self.number),
            link_layer: self.attr.link_layer,
            lid: self.attr.lid,
            pkey: self.pkey.as_ref().ok().copied(),
            active_mtu: self.attr.active_mtu,
            max_message: self.attr.max_msg_size,
            max_reads_out: self.device.max_qp_init_rd_atom,
            max_reads_in: self.device.max_qp_rd_atom,
            atomics: self.device.atomic != AtomicCap::None,
            gids: self
                .gids
                .iter()
                .map(|entry| GidFact {
                    index: entry.index,
                    gid: entry.gid,
                    kind: entry.kind,
                    prefix: prefix(path::address(entry.gid)),
                })
                .collect(),
            wanted: self.wanted_gid,
        }
    }

    /// The open device.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The device behind the port.
    pub fn device(&self) -> &verbs::Device {
        self.context.device()
    }

    /// Limits and firmware of the device.
    pub fn device_attr(&self) -> &DeviceAttr {
        &self.device
    }

    /// State and limits of the port.
    pub fn attr(&self) -> &PortAttr {
        &self.attr
    }

    /// NUMA node the buffers are to lie on.
    pub fn numa(&self) -> Option<u32> {
        self.numa
    }

    /// Index of the partition key in the port's table.
    pub fn pkey_index(&self) -> u16 {
        self.pkey_index
    }

    /// The partition key, or why it could not be read.
    pub fn pkey(&self) -> std::result::Result<u16, &str> {
        self.pkey.as_ref().copied().map_err(String::as_str)
    }

    /// The port's number, from 1.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// The network interface of a GID, by its index.
    pub fn netdev(&self, gid_index: u32) -> Option<String> {
        let entry = self.gids.iter().find(|entry| entry.index == gid_index)?;
        let interfaces = host::interfaces().ok()?;
        interfaces
            .into_iter()
            .find(|interface| interface.index == entry.ifindex)
            .map(|interface| interface.name)
    }
}
