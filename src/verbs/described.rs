//! What the kernel describes of a device in sysfs, for one that cannot be opened.

use std::path::Path;

use super::device::{Device, ProviderKind, SYSFS};
use super::port::{LinkLayer, PhysicalState, PortState, parse_rate};

/// A device as sysfs describes it (`Documentation/ABI/stable/sysfs-class-infiniband`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Description {
    /// Firmware version.
    pub firmware: Option<String>,
    /// Its ports, by number.
    pub ports: Vec<PortDescription>,
}

/// A port there; `None` where the kernel says nothing, or what is not known here.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PortDescription {
    /// From 1.
    pub number: u8,
    /// Whether it may be used.
    pub state: Option<PortState>,
    /// What the link itself is doing.
    pub physical: Option<PhysicalState>,
    /// What it is connected to.
    pub link_layer: Option<LinkLayer>,
    /// Gb/s of all lanes.
    pub rate_gbps: Option<f64>,
    /// Lanes of the link.
    pub lanes: Option<u8>,
    /// Local identifier; 0 on Ethernet.
    pub lid: Option<u16>,
}

impl Device {
    /// What sysfs says of the device; nothing of an emulated one.
    pub fn described(&self) -> Description {
        match self.provider() {
            ProviderKind::Emulated => Description::default(),
            ProviderKind::Libibverbs => described_in(&Path::new(SYSFS).join(self.name())),
        }
    }
}

impl Description {
    /// What the files below `root` say of the device of this name, which need not be of this machine; nothing where
    /// there is none.
    pub fn read_from(root: &Path, name: &str) -> Self {
        if name.contains('/') {
            Self::default()
        } else {
            described_in(&root.join("sys/class/infiniband").join(name))
        }
    }
}

fn described_in(device: &Path) -> Description {
    let numbers = std::fs::read_dir(device.join("ports")).into_iter().flatten().flatten();
    let mut ports: Vec<_> = numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .map(|number| port_in(&device.join(format!("ports/{number}")), number))
        .collect();
    ports.sort_by_key(|port| port.number);
    Description { firmware: text(device, "fw_ver").filter(|text| !text.is_empty()), ports }
}

fn port_in(port: &Path, number: u8) -> PortDescription {
    let code = |name| text(port, name)?.split(':').next()?.trim().parse::<u8>().ok();
    let rate = text(port, "rate");
    PortDescription {
        number,
        state: code("state").map(|code| PortState::from_raw(code.into())),
        physical: code("phys_state").and_then(PhysicalState::from_raw),
        link_layer: text(port, "link_layer").and_then(|text| match text.as_str() {
            "InfiniBand" => Some(LinkLayer::Infiniband),
            "Ethernet" => Some(LinkLayer::Ethernet),
            _ => None,
        }),
        rate_gbps: rate.as_deref().and_then(parse_rate),
        lanes: rate.as_deref().and_then(parse_lanes),
        lid: text(port, "lid").and_then(|text| u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()),
    }
}

/// The lanes in sysfs' `800 Gb/sec (4X XDR)`.
fn parse_lanes(text: &str) -> Option<u8> {
    text.split_once('(')?.1.split_once('X')?.0.parse().ok()
}

fn text(directory: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(directory.join(name)).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_device_is_described_as_far_as_the_kernel_does() {
        let root = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("fw_ver", "28.39.1002\n");
        put("ports/2/state", "1: DOWN\n");
        put("ports/2/link_layer", "something new\n");
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("phys_state", "5: LinkUp\n"),
            ("link_layer", "InfiniBand\n"),
            ("rate", "400 Gb/sec (4X NDR)\n"),
            ("lid", "0x1f\n"),
        ] {
            put(&format!("ports/1/{file}"), text);
        }
        put("ports/not-a-port/state", "4: ACTIVE\n");
        let described = described_in(root.path());
        assert_eq!(described.firmware.as_deref(), Some("28.39.1002"));
        let first = PortDescription {
            number: 1,
            state: Some(PortState::Active),
            physical: Some(PhysicalState::LinkUp),
            link_layer: Some(LinkLayer::Infiniband),
            rate_gbps: Some(400.0),
            lanes: Some(4),
            lid: Some(31),
        };
        let second =
            PortDescription { number: 2, state: Some(PortState::Down), ..PortDescription::default() };
        assert_eq!(described.ports, [first, second]);
        assert_eq!(described_in(&root.path().join("gone")), Description::default());
    }
}
