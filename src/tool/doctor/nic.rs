//! The RDMA device that would be used: which one, and how its port and its link to the machine are.

use std::path::Path;

use super::record::{Checked, Verdict};
use crate::error::{Error, Result, Step};
use crate::host::environment::{PcieLink, ecn, interface_mtu, interface_of, on_core, online_cores, vectors};
use crate::host::{self, DeviceCounters};
use crate::verbs::{self, Description, LinkLayer, PortDescription, PortState};

/// What of an Ethernet packet is not payload of RDMA, in bytes, as the kernel reckons it (`iboe_get_mtu()`).
const ROCE_HEADERS: u32 = 96;

/// Counters that rise when the network is congested, or loses.
const CONGESTION: &[&str] = &[
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_seq_request",
    "out_of_sequence",
    "packet_seq_err",
    "port_xmit_discards",
    "port_xmit_wait",
    "rcvd_seq_err",
    "retry_exceeded_err",
    "rnr_nak_retry_err",
    "rp_cnp_handled",
];

/// The device and port that would be used.
#[derive(Debug)]
pub struct Nic {
    pub name: String,
    pub port: u8,
    pub netdev: std::result::Result<String, String>,
    emulated: bool,
    is_software: Option<bool>,
    /// Why it cannot be opened.
    closed: Option<Error>,
    facts: PortDescription,
    /// Payload of a packet in use and possible, in bytes; the kernel has neither in a file.
    mtu: Option<(u32, u32)>,
}

/// The one of this name, or the first of this machine with an active port, else the first; `None` where there is none.
///
/// # Errors
/// What was named is not there, or the devices cannot be listed.
pub fn choose(name: Option<&str>, port: Option<u8>) -> Result<Option<Nic>> {
    let devices = match name {
        Some(name) => vec![verbs::find(name)?],
        None => verbs::devices()?.into_iter().filter(|device| !device.is_emulated()).collect(),
    };
    let mut all = Vec::new();
    for device in &devices {
        all.push(look_at(device, port)?);
    }
    let active = all.iter().position(|nic| nic.facts.state == Some(PortState::Active)).unwrap_or(0);
    Ok((!all.is_empty()).then(|| all.swap_remove(active)))
}

fn look_at(device: &verbs::Device, port: Option<u8>) -> Result<Nic> {
    let described = device.described().ports;
    let (opened, closed) = match device.open() {
        Ok(context) => (Some(context), None),
        Err(error) => (None, Some(error)),
    };
    let port = port.unwrap_or_else(|| first_active(&described));
    let attr = opened.map(|context| context.port(port)).transpose()?;
    let facts = match &attr {
        Some(attr) => PortDescription {
            number: port,
            state: Some(attr.state),
            physical: attr.physical,
            link_layer: Some(attr.link_layer),
            rate_gbps: attr.rate_gbps,
            lanes: attr.lanes,
            lid: Some(attr.lid),
        },
        None => of_port(device.name(), described, port)?,
    };
    Ok(Nic {
        name: device.name().into(),
        port,
        netdev: interface_of(Path::new("/"), device.name(), port),
        emulated: device.is_emulated(),
        is_software: device.is_software(),
        closed,
        facts,
        mtu: attr.map(|attr| (attr.active_mtu, attr.max_mtu)).filter(|(active, max)| *active > 0 && *max > 0),
    })
}

/// The same of a machine whose files lie below `root`.
///
/// # Errors
/// What was named is not there.
pub fn choose_from(root: &Path, name: Option<&str>, port: Option<u8>) -> Result<Option<Nic>> {
    let listed = std::fs::read_dir(root.join("sys/class/infiniband")).into_iter().flatten().flatten();
    let mut names: Vec<String> = listed.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    let name = match (name, names.first()) {
        (Some(name), _) if !names.iter().any(|known| known == name) => {
            let known = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(Error::failed(
                Step::OpenDevice,
                format!("there is no device {name} below {}; there are: {known}", root.display()),
            ));
        }
        (Some(name), _) => name.to_owned(),
        (None, Some(first)) => first.clone(),
        (None, None) => return Ok(None),
    };
    let described = Description::read_from(root, &name).ports;
    let port = port.unwrap_or_else(|| first_active(&described));
    let facts = of_port(&name, described, port)?;
    let netdev = interface_of(root, &name, port);
    Ok(Some(Nic { name, port, netdev, emulated: false, is_software: None, closed: None, facts, mtu: None }))
}

fn first_active(ports: &[PortDescription]) -> u8 {
    ports.iter().find(|port| port.state == Some(PortState::Active)).map_or(1, |port| port.number)
}

fn of_port(device: &str, ports: Vec<PortDescription>, number: u8) -> Result<PortDescription> {
    let count = ports.len();
    ports.into_iter().find(|port| port.number == number).ok_or_else(|| {
        let message = format!("{device} has no port {number}: the kernel describes {count}");
        Error::failed(Step::QueryPort, message).with_remedy("`verbmark devices` lists devices and ports")
    })
}

impl Nic {
    /// The port is on Ethernet, as far as is known.
    pub fn is_ethernet(&self) -> bool {
        self.facts.link_layer == Some(LinkLayer::Ethernet)
    }

    pub fn device(&self) -> Checked {
        let name = format!("{}/{}", self.name, self.port);
        if let Some(error) = &self.closed {
            let verdict = Verdict::warning(format!("{name}: {}", error.message));
            return Ok(match &error.remedy {
                Some(remedy) => verdict.mended_by(remedy),
                None => verdict,
            });
        }
        Ok(match self.is_software {
            _ if self.emulated => Verdict::note(format!("{name}, emulated: a CPU copies every byte")),
            Some(true) => Verdict::note(format!("{name}, software: a CPU copies every byte")),
            _ => Verdict::ok(name),
        })
    }

    pub fn link(&self) -> Checked {
        let state = self.facts.state.ok_or("the kernel does not say what state the port is in")?;
        let mut seen = state.to_string();
        if let Some(physical) = self.facts.physical {
            seen += &format!(" ({physical})");
        }
        if let Some(rate) = self.facts.rate_gbps {
            seen += &format!(", {rate} Gb/s");
        }
        if let Some(lanes) = self.facts.lanes {
            seen += &format!(" {lanes}X");
        }
        if state == PortState::Active {
            return Ok(Verdict::ok(seen));
        }
        let remedy = match (&self.netdev, self.facts.link_layer) {
            (_, Some(LinkLayer::Infiniband)) if state == PortState::Init => {
                "sudo systemctl start opensm".to_owned()
            }
            (Ok(netdev), _) => format!("sudo ip link set {netdev} up"),
            _ => "connect the port, and see that the other side is up".to_owned(),
        };
        Ok(Verdict::warning(seen).mended_by(remedy))
    }

    pub fn mtu(&self, root: &Path) -> Checked {
        let interface = self.netdev.clone().and_then(|netdev| Ok((interface_mtu(root, &netdev)?, netdev)));
        let (active, max) = match (self.mtu, &interface) {
            (Some(mtu), _) => mtu,
            (None, Ok((bytes, _))) if self.is_ethernet() => (path_mtu(*bytes), 4096),
            (None, Err(reason)) => return Err(reason.clone()),
            (None, Ok(_)) => return Err("the device alone tells it, and it is not open".into()),
        };
        let mut seen = format!("{active} of {max}");
        if let Ok((bytes, netdev)) = &interface {
            seen += &format!(", {netdev} has {bytes}");
        }
        Ok(match interface {
            _ if active >= max => Verdict::ok(seen),
            Ok((_, netdev)) if self.is_ethernet() => Verdict::warning(seen).mended_by(format!(
                "sudo ip link set {netdev} mtu {}    # and the switch's",
                max + ROCE_HEADERS
            )),
            _ => Verdict::warning(seen).mended_by("raise the MTU of the partition in the subnet manager"),
        })
    }

    pub fn pcie(&self, root: &Path) -> Checked {
        let link = PcieLink::of(root, &self.name)?;
        let mut seen = format!("{} GT/s x{}", link.speed_gts, link.width);
        let verdict = if link.is_degraded() {
            seen += &format!(" of {} GT/s x{}", link.max_speed_gts, link.max_width);
            Verdict::warning
        } else if self.facts.rate_gbps.is_some_and(|rate| link.gbps() < rate) {
            seen += &format!(", {:.0} Gb/s before headers, less than the port's rate", link.gbps());
            Verdict::warning
        } else {
            return Ok(Verdict::ok(seen));
        };
        let place = std::fs::read_link(root.join(format!("sys/class/infiniband/{}/device", self.name))).ok();
        let address = place.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        let only = address.map(|address| format!(" -s {address}")).unwrap_or_default();
        Ok(verdict(seen).mended_by(format!(
            "another slot, or seat it anew; `sudo lspci -vv{only}` shows LnkCap and LnkSta"
        )))
    }

    /// Where core, device and memory are.
    pub fn numa(&self, root: &Path, core: usize) -> Checked {
        let Some(nodes) = host::nodes_with_memory_in(root) else {
            return Err("the kernel knows no NUMA nodes".into());
        };
        if nodes.len() == 1 {
            return Ok(Verdict::ok("one node"));
        }
        let of_core = host::node_of_core_in(root, core).ok_or("the kernel has no node for the core")?;
        let of_device =
            host::node_of_device_in(root, &self.name).ok_or("the kernel has no node for the device")?;
        if !nodes.contains(&(of_core as usize)) {
            return Ok(Verdict::warning(format!("core {core} is on node {of_core}, which has no memory")));
        }
        if of_core == of_device {
            return Ok(Verdict::ok(format!("core, memory and {} on node {of_core}", self.name)));
        }
        let distance = host::node_distance_in(root, of_core, of_device)
            .map(|far| format!(", distance {far} (10 is its own)"));
        let seen = format!(
            "core {core} on node {of_core}, {} on node {of_device}{}",
            self.name,
            distance.unwrap_or_default()
        );
        Ok(Verdict::warning(seen).mended_by(format!(
            "--cpu with a core of `cat /sys/devices/system/node/node{of_device}/cpulist`"
        )))
    }

    pub fn irqs(&self, root: &Path, core: usize) -> Checked {
        let own = vectors(root, &format!("sys/class/infiniband/{}/device", self.name));
        let all = own.or_else(|why| match &self.netdev {
            Ok(netdev) => vectors(root, &format!("sys/class/net/{netdev}/device")),
            Err(_) => Err(why),
        })?;
        let here = on_core(&all, core);
        if here.is_empty() {
            return Ok(Verdict::ok(format!("none of {} on core {core}", all.len())));
        }
        let list: Vec<String> = here.iter().map(u32::to_string).collect();
        let verdict = Verdict::warning(format!(
            "{} of {} on core {core}: irq {}",
            here.len(),
            all.len(),
            list.join(", ")
        ));
        let Some(other) = online_cores(root)?.into_iter().find(|other| *other != core) else {
            return Ok(verdict);
        };
        let numbers = list.join(" ");
        let command = format!(
            "for irq in {numbers}; do echo {other} | sudo tee /proc/irq/$irq/smp_affinity_list; done"
        );
        Ok(verdict.mended_by(command))
    }

    /// What the device counts of congestion, as far as it counts it.
    pub fn counters(&self, root: &Path) -> DeviceCounters {
        let mut counters = DeviceCounters::read_from(root, &self.name, self.port);
        counters.0.retain(|name, _| CONGESTION.contains(&name.as_str()));
        counters
    }

    pub fn ecn(&self, root: &Path) -> Checked {
        let netdev = self.netdev.clone()?;
        let on = ecn(root, &netdev)?;
        if on.values().all(|priorities| !priorities.is_empty()) {
            let told: Vec<String> =
                on.iter().map(|(role, on)| format!("{role} for priorities {on:?}")).collect();
            return Ok(Verdict::ok(told.join(", ")));
        }
        let command = format!(
            "echo 1 | sudo tee /sys/class/net/{netdev}/ecn/roce_{{np,rp}}/enable/3    # for priority 3"
        );
        Ok(Verdict::note("off at one end or both").mended_by(command))
    }

    pub fn pfc(&self) -> Checked {
        let netdev = self.netdev.clone()?;
        Err(format!("no file has it; `dcb pfc show dev {netdev}` shows it"))
    }
}

/// What was counted in the probe's time, or else ever.
pub fn congestion(before: &DeviceCounters, after: &DeviceCounters) -> Checked {
    if after.0.is_empty() {
        return Err("the device counts nothing of it".into());
    }
    let told = |counts: Vec<(&String, u64)>| {
        counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    };
    let (counted, _) = host::delta(before, after);
    let risen: Vec<_> =
        counted.iter().filter(|(_, count)| **count > 0).map(|(name, count)| (name, *count)).collect();
    if !risen.is_empty() {
        return Ok(Verdict::warning(format!("in the probe's time: {}", told(risen))));
    }
    let ever: Vec<_> =
        after.0.iter().filter(|(_, count)| **count > 0).map(|(name, count)| (name, *count)).collect();
    Ok(match ever.is_empty() {
        true => Verdict::ok("none counted"),
        false => Verdict::note(format!("not now; since the counters began: {}", told(ever))),
    })
}

/// The largest payload of a RoCE packet that an interface of this MTU carries (`iboe_get_mtu()` of the kernel).
fn path_mtu(interface: u32) -> u32 {
    let room = interface.saturating_sub(ROCE_HEADERS);
    [4096, 2048, 1024, 512, 256].into_iter().find(|mtu| *mtu <= room).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::record::{Level, level};
    use super::*;

    #[test]
    fn an_interface_carries_what_is_left_beside_the_headers() {
        let pairs = [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (65536, 4096), (100, 0)];
        for (interface, expected) in pairs {
            assert_eq!(path_mtu(interface), expected, "{interface}");
        }
    }

    #[test]
    fn what_rises_now_matters_more_than_what_once_did() {
        let level = |before: u64, after: u64| {
            let counters = |cnp: u64| DeviceCounters([("np_cnp_sent".to_owned(), cnp)].into());
            level(&congestion(&counters(before), &counters(after)))
        };
        assert_eq!([level(0, 0), level(5, 5), level(5, 6)], [Level::Ok, Level::Note, Level::Warning]);
        let none = DeviceCounters::default();
        assert!(congestion(&none, &none).is_err());
    }
}
