//! The network interface below an RDMA port.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{component, number, read};

/// The interface of a port: the one that its GIDs belong to, else the only one on the device.
///
/// # Errors
/// The kernel names none.
pub fn interface_of(root: &Path, device: &str, port: u8) -> Result<String, String> {
    /// Entries of the GID table that are looked at; those of the interface come first.
    const ENTRIES: u32 = 4;
    let place = format!("sys/class/infiniband/{}", component(device)?);
    let named =
        (0..ENTRIES).find_map(|at| read(root, &format!("{place}/ports/{port}/gid_attrs/ndevs/{at}")).ok());
    let only = || {
        let mut names = fs::read_dir(root.join(format!("{place}/device/net"))).ok()?.flatten();
        let name = names.next()?.file_name().into_string().ok()?;
        names.next().is_none().then_some(name)
    };
    named.or_else(only).ok_or_else(|| format!("the kernel names no interface of port {port} of {device}"))
}

/// Largest packet of an interface in bytes, without the link's header.
///
/// # Errors
/// There is no such interface.
pub fn interface_mtu(root: &Path, interface: &str) -> Result<u32, String> {
    number(root, &format!("sys/class/net/{}/mtu", component(interface)?))
}

/// For which priorities congestion notification of RoCE is on, at the end that notifies (`roce_np`) and at the one that
/// slows down (`roce_rp`), as the vendor's driver of mlx5 shows it.
///
/// # Errors
/// The driver shows none of it, as those of the kernel itself do not.
pub fn ecn(root: &Path, interface: &str) -> Result<BTreeMap<&'static str, Vec<u8>>, String> {
    let mut on = BTreeMap::new();
    for role in ["roce_np", "roce_rp"] {
        let place = format!("sys/class/net/{}/ecn/{role}/enable", component(interface)?);
        let mut priorities = Vec::new();
        for priority in 0..8 {
            if number::<u8>(root, &format!("{place}/{priority}"))? != 0 {
                priorities.push(priority);
            }
        }
        on.insert(role, priorities);
    }
    Ok(on)
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn the_interface_is_that_of_the_addresses() {
        let root = tree(&[
            ("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth2\n"),
            ("sys/class/infiniband/ib0/device/net/ibp3s0/mtu", "2044\n"),
            ("sys/class/infiniband/two/device/net/a/mtu", "1500\n"),
            ("sys/class/infiniband/two/device/net/b/mtu", "1500\n"),
            ("sys/class/net/eth2/mtu", "9000\n"),
        ]);
        let of = |device| interface_of(root.path(), device, 1);
        assert_eq!((of("mlx5_0").as_deref(), of("ib0").as_deref()), (Ok("eth2"), Ok("ibp3s0")));
        assert!(of("two").is_err() && of("..").is_err());
        assert_eq!(interface_mtu(root.path(), "eth2"), Ok(9000));
        assert!(
            interface_mtu(root.path(), "eth3").is_err() && interface_mtu(root.path(), "../net/eth2").is_err()
        );
    }

    #[test]
    fn notification_is_told_by_priority_or_not_at_all() {
        assert!(ecn(tree(&[]).path(), "eth2").is_err());
        let mut files = Vec::new();
        for role in ["roce_np", "roce_rp"] {
            for priority in 0..8 {
                let on = if priority == 3 { "1\n" } else { "0\n" };
                files.push((format!("sys/class/net/eth2/ecn/{role}/enable/{priority}"), on));
            }
        }
        let files: Vec<(&str, &str)> = files.iter().map(|(file, text)| (file.as_str(), *text)).collect();
        let on = ecn(tree(&files).path(), "eth2").unwrap();
        assert_eq!(on, BTreeMap::from([("roce_np", vec![3]), ("roce_rp", vec![3])]));
    }
}
