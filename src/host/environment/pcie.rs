//! The PCI Express link of a device (`Documentation/ABI/testing/sysfs-bus-pci`).

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{component, number, read};

/// Speed and width of a link, and what the device could do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PcieLink {
    /// 10^9 transfers a second and lane.
    pub speed_gts: f64,
    /// Lanes.
    pub width: u32,
    /// The fastest that the device could do.
    pub max_speed_gts: f64,
    /// The most lanes that the device could use.
    pub max_width: u32,
}

impl PcieLink {
    /// The link of an RDMA device.
    ///
    /// # Errors
    /// It is on none, or the kernel does not tell, as in most virtual machines.
    pub fn of(root: &Path, device: &str) -> Result<Self, String> {
        let place = format!("sys/class/infiniband/{}/device", component(device)?);
        let speed = |name: &str| {
            let text = read(root, &format!("{place}/{name}_link_speed"))?;
            let number = text.split_whitespace().next().and_then(|number| number.parse().ok());
            number.filter(|gts: &f64| *gts > 0.0).ok_or_else(|| format!("the link's speed is '{text}'"))
        };
        let width = |name: &str| match number(root, &format!("{place}/{name}_link_width"))? {
            // What a link that the kernel knows nothing of has.
            0 | 255 => Err("the link's width is not known".to_owned()),
            lanes => Ok(lanes),
        };
        Ok(Self {
            speed_gts: speed("current")?,
            width: width("current")?,
            max_speed_gts: speed("max")?,
            max_width: width("max")?,
        })
    }

    /// What the link carries in one direction, in 10^9 bits a second, before the headers of packets: eight bits of ten
    /// up to 5 GT/s, and 128 of 130 above.
    pub fn gbps(&self) -> f64 {
        let share = if self.speed_gts <= 5.0 { 0.8 } else { 128.0 / 130.0 };
        self.speed_gts * f64::from(self.width) * share
    }

    /// It is slower or narrower than the device could do.
    pub fn is_degraded(&self) -> bool {
        self.speed_gts < self.max_speed_gts || self.width < self.max_width
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn a_link_is_read_and_weighed() {
        let link = |speed: &str, width: &str| {
            let place = "sys/class/infiniband/mlx5_0/device";
            let root = tree(&[
                (&format!("{place}/current_link_speed"), speed),
                (&format!("{place}/current_link_width"), width),
                (&format!("{place}/max_link_speed"), "16.0 GT/s PCIe\n"),
                (&format!("{place}/max_link_width"), "16\n"),
            ]);
            PcieLink::of(root.path(), "mlx5_0")
        };
        let full = link("16.0 GT/s PCIe\n", "16\n").unwrap();
        assert!(!full.is_degraded() && (252.0..252.1).contains(&full.gbps()), "{}", full.gbps());
        let narrow = link("2.5 GT/s PCIe\n", "8\n").unwrap();
        assert!(narrow.is_degraded());
        assert_eq!(narrow.gbps(), 16.0);
        assert!(link("Unknown\n", "16\n").unwrap_err().contains("Unknown"));
        assert!(link("16.0 GT/s PCIe\n", "255\n").is_err());
        assert!(PcieLink::of(tree(&[]).path(), "../x").is_err());
    }
}
