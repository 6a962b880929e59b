//! Which NUMA node a core or a device belongs to (`Documentation/ABI/stable/sysfs-devices-node`).

use std::fs;
use std::path::Path;

use super::{parse_list, read};

/// The nodes that have memory; `None` on a kernel without NUMA.
pub fn nodes_with_memory() -> Option<Vec<usize>> {
    nodes_with_memory_in(Path::new("/"))
}

/// The same from the files below `root`.
pub fn nodes_with_memory_in(root: &Path) -> Option<Vec<usize>> {
    parse_list(&read(root, "sys/devices/system/node/has_memory").ok()?).ok()
}

/// The node of a core; `None` on a kernel without NUMA.
pub fn node_of_core(core: usize) -> Option<u32> {
    node_of_core_in(Path::new("/"), core)
}

/// The same from the files below `root`.
pub fn node_of_core_in(root: &Path, core: usize) -> Option<u32> {
    let entries = fs::read_dir(root.join(format!("sys/devices/system/cpu/cpu{core}"))).ok()?;
    entries.flatten().find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

/// The node an RDMA device is attached to; `None` for a device without hardware, and where the firmware does not tell
/// (the kernel then says -1).
pub fn node_of_device(device: &str) -> Option<u32> {
    node_of_device_in(Path::new("/"), device)
}

/// The same from the files below `root`.
pub fn node_of_device_in(root: &Path, device: &str) -> Option<u32> {
    if device.contains('/') {
        return None;
    }
    read(root, &format!("sys/class/infiniband/{device}/device/numa_node")).ok()?.parse().ok()
}

/// How far memory of node `to` is from a core of node `from`, where 10 is its own; as the firmware says it.
///
/// # Errors
/// The kernel does not tell.
pub fn node_distance_in(root: &Path, from: u32, to: u32) -> Result<u32, String> {
    let text = read(root, &format!("sys/devices/system/node/node{from}/distance"))?;
    // One number for each node that is online, in order of their numbers.
    let nodes = parse_list(&read(root, "sys/devices/system/node/online")?)?;
    let at = nodes.iter().position(|node| *node == to as usize);
    let number = at.and_then(|at| text.split_whitespace().nth(at)?.parse().ok());
    number.ok_or_else(|| format!("node {from} does not say how far node {to} is"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_a_number_or_not_known() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/devices/system/cpu/cpu3/node1")).unwrap();
        assert_eq!(node_of_core_in(root.path(), 3), Some(1));
        assert_eq!(node_of_core_in(root.path(), 4), None);
        assert_eq!(nodes_with_memory_in(root.path()), None);
        let nodes = root.path().join("sys/devices/system/node");
        fs::create_dir_all(&nodes).unwrap();
        fs::write(nodes.join("has_memory"), "0,2-3\n").unwrap();
        assert_eq!(nodes_with_memory_in(root.path()), Some(vec![0, 2, 3]));
        let device = root.path().join("sys/class/infiniband/mlx5_0/device");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("numa_node"), "-1\n").unwrap();
        assert_eq!(node_of_device_in(root.path(), "mlx5_0"), None);
        fs::write(device.join("numa_node"), "1\n").unwrap();
        assert_eq!(node_of_device_in(root.path(), "mlx5_0"), Some(1));
    }

    #[test]
    fn a_distance_is_found_by_the_node_that_it_belongs_to() {
        let root = tempfile::tempdir().unwrap();
        let nodes = root.path().join("sys/devices/system/node");
        fs::create_dir_all(nodes.join("node0")).unwrap();
        fs::write(nodes.join("online"), "0,2\n").unwrap();
        fs::write(nodes.join("node0/distance"), "10 21\n").unwrap();
        assert_eq!(node_distance_in(root.path(), 0, 2), Ok(21));
        assert!(node_distance_in(root.path(), 0, 1).is_err() && node_distance_in(root.path(), 2, 0).is_err());
    }
}
