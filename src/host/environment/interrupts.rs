//! Where a device's interrupts go (`Documentation/core-api/irq/irq-affinity.rst`), and who moves them.

use std::fs;
use std::path::Path;

use super::{cores_in, read};

/// An interrupt of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vector {
    /// Its number.
    pub irq: u32,
    /// The cores that may be interrupted; the one that is, where the kernel tells.
    pub cores: Vec<usize>,
}

/// The message-signalled interrupts of the device at `place`, a directory of `/sys` such as
/// `sys/class/infiniband/mlx5_0/device`, or of what that lies on, as with virtio.
///
/// # Errors
/// There are none, or the kernel does not tell where they go.
pub fn vectors(root: &Path, place: &str) -> Result<Vec<Vector>, String> {
    let listed = [place.to_owned(), format!("{place}/..")]
        .iter()
        .find_map(|place| fs::read_dir(root.join(place).join("msi_irqs")).ok())
        .ok_or_else(|| format!("{} has no message-signalled interrupts", root.join(place).display()))?;
    let mut numbers: Vec<u32> =
        listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    let vector = |irq: u32| {
        // Of what may be and what is, the latter is there on x86 and newer kernels.
        let file = |name: &str| format!("proc/irq/{irq}/{name}");
        let effective =
            cores_in(root, &file("effective_affinity_list")).ok().filter(|cores| !cores.is_empty());
        let cores = effective.map_or_else(|| cores_in(root, &file("smp_affinity_list")), Ok)?;
        Ok(Vector { irq, cores })
    };
    numbers.into_iter().map(vector).collect()
}

/// Those that interrupt this core.
pub fn on_core(vectors: &[Vector], core: usize) -> Vec<u32> {
    vectors.iter().filter(|vector| vector.cores.contains(&core)).map(|vector| vector.irq).collect()
}

/// The process that moves interrupts from core to core, `irqbalance(1)`; `None` where there is none.
///
/// # Errors
/// Not every process of the machine can be seen from here.
pub fn balancer(root: &Path) -> Result<Option<u32>, String> {
    let name = |pid: u32| read(root, &format!("proc/{pid}/comm")).ok();
    let entries = fs::read_dir(root.join("proc")).map_err(|e| format!("/proc: {e}"))?;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    if let Some(pid) = pids.into_iter().find(|pid| name(*pid).as_deref() == Some("irqbalance")) {
        return Ok(Some(pid));
    }
    // The kernel's second thread is seen from the machine's own process namespace alone.
    match name(2).as_deref() {
        Some("kthreadd") => Ok(None),
        _ => Err("the processes of a container alone are seen from here, not the machine's".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn an_interrupt_goes_where_it_really_goes() {
        let root = tree(&[
            ("sys/class/infiniband/mlx5_0/device/msi_irqs/40", "msix\n"),
            ("sys/class/infiniband/mlx5_0/device/msi_irqs/41", "msix\n"),
            ("proc/irq/40/smp_affinity_list", "0-7\n"),
            ("proc/irq/40/effective_affinity_list", "3\n"),
            ("proc/irq/41/smp_affinity_list", "4-5\n"),
            ("proc/irq/41/effective_affinity_list", "\n"),
        ]);
        let found = vectors(root.path(), "sys/class/infiniband/mlx5_0/device").unwrap();
        assert_eq!(on_core(&found, 3), [40]);
        assert_eq!(on_core(&found, 5), [41]);
        assert!(on_core(&found, 0).is_empty());
        assert!(vectors(root.path(), "sys/class/infiniband/rxe0/device").is_err());
        fs::remove_dir_all(root.path().join("proc/irq/41")).unwrap();
        assert!(vectors(root.path(), "sys/class/infiniband/mlx5_0/device").is_err(), "no telling is no none");
    }

    #[test]
    fn a_container_sees_too_little_to_say_that_nothing_balances() {
        let runs = tree(&[("proc/2/comm", "kthreadd\n"), ("proc/731/comm", "irqbalance\n")]);
        assert_eq!(balancer(runs.path()), Ok(Some(731)));
        let none = tree(&[("proc/2/comm", "kthreadd\n"), ("proc/731/comm", "bash\n")]);
        assert_eq!(balancer(none.path()), Ok(None));
        let container = tree(&[("proc/1/comm", "bash\n")]);
        assert!(balancer(container.path()).unwrap_err().contains("container"));
    }
}
