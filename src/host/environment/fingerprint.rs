//! What two runs must have in common before their numbers are compared: how one end's core and device were set up.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::Missing;
use super::{
    PcieLink, clocksource, command_line_hash, component, deepest_idle_state, frequency_driver, governor,
    has_no_callbacks, huge_page_mode, is_guest, is_isolated, is_tickless, mitigations, on_core, siblings,
    turbo, vectors,
};

/// How an end's core and device were set up. All of it is read from files, in about a millisecond.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Frequency governor of the measuring core.
    pub governor: Option<String>,
    /// Driver that sets its frequency.
    pub frequency_driver: Option<String>,
    /// Cores may run above their nominal frequency.
    pub turbo: Option<bool>,
    /// Deepest idle state that is not disabled for the core.
    pub idle_state: Option<String>,
    /// How long the way out of it takes, in us.
    pub idle_exit_us: Option<u64>,
    /// Other hardware threads on the core's execution units; empty without SMT.
    pub siblings: Option<Vec<usize>>,
    /// The scheduler keeps off the core (`isolcpus`).
    pub isolated: Option<bool>,
    /// It has no timer tick with one thread on it (`nohz_full`).
    pub tickless: Option<bool>,
    /// The kernel's deferred callbacks are run elsewhere (`rcu_nocbs`).
    pub no_callbacks: Option<bool>,
    /// When memory is put into transparent huge pages.
    pub transparent_huge_pages: Option<String>,
    /// What the kernel tells the time by.
    pub clocksource: Option<String>,
    /// What the kernel does about faults of the processor, by fault.
    pub mitigations: Option<BTreeMap<String, String>>,
    /// Stands for the kernel's command line; see [`command_line_hash`].
    pub command_line_hash: Option<String>,
    /// The device's link to the machine.
    pub pcie: Option<PcieLink>,
    /// How many interrupts of the device go to the core.
    pub irqs_on_core: Option<usize>,
    /// The processor is a hypervisor's guest.
    pub hypervisor: Option<bool>,
}

impl Fingerprint {
    /// That of `core` and `device` of this machine, and what could not be had of it.
    pub fn read(core: Option<usize>, device: Option<&str>) -> (Self, Vec<Missing>) {
        Self::read_from(Path::new("/"), core, device)
    }

    /// The same from the files below `root`.
    pub fn read_from(root: &Path, core: Option<usize>, device: Option<&str>) -> (Self, Vec<Missing>) {
        let mut missing = Vec::new();
        let core = core.ok_or_else(|| "no core was chosen".to_owned());
        let device = device.ok_or_else(|| "no RDMA device was opened".to_owned());
        let idle = core.clone().and_then(|core| deepest_idle_state(root, core));
        let irqs = || {
            let found =
                vectors(root, &format!("sys/class/infiniband/{}/device", component(device.clone()?)?))?;
            Ok(on_core(&found, core.clone()?).len())
        };
        let of_core = |read: fn(&Path, usize) -> Result<bool, String>| read(root, core.clone()?);
        let fingerprint = Self {
            governor: keep(&mut missing, "governor", core.clone().and_then(|core| governor(root, core))),
            frequency_driver: keep(
                &mut missing,
                "frequency_driver",
                core.clone().and_then(|core| frequency_driver(root, core)),
            ),
            turbo: keep(&mut missing, "turbo", turbo(root).map(|turbo| turbo.on)),
            idle_state: keep(&mut missing, "idle_state", idle.clone().map(|idle| idle.name)),
            idle_exit_us: keep(&mut missing, "idle_exit_us", idle.map(|idle| idle.exit_us)),
            siblings: keep(&mut missing, "siblings", core.clone().and_then(|core| siblings(root, core))),
            isolated: keep(&mut missing, "isolated", of_core(is_isolated)),
            tickless: keep(&mut missing, "tickless", of_core(is_tickless)),
            no_callbacks: keep(&mut missing, "no_callbacks", of_core(has_no_callbacks)),
            transparent_huge_pages: keep(&mut missing, "transparent_huge_pages", huge_page_mode(root)),
            clocksource: keep(&mut missing, "clocksource", clocksource(root)),
            mitigations: keep(&mut missing, "mitigations", mitigations(root)),
            command_line_hash: keep(&mut missing, "command_line_hash", command_line_hash(root)),
            pcie: keep(&mut missing, "pcie", device.clone().and_then(|device| PcieLink::of(root, device))),
            irqs_on_core: keep(&mut missing, "irqs_on_core", irqs()),
            hypervisor: keep(&mut missing, "hypervisor", is_guest(root)),
        };
        (fingerprint, missing)
    }
}

fn keep<T>(missing: &mut Vec<Missing>, path: &str, value: Result<T, String>) -> Option<T> {
    value.map_err(|reason| missing.push(Missing::new(path, reason))).ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn a_fingerprint_is_read_from_files() {
        let cpu = "sys/devices/system/cpu";
        let device = "sys/class/infiniband/mlx5_0/device";
        let root = tree(&[
            (&format!("{cpu}/cpu3/cpufreq/scaling_governor"), "performance\n"),
            (&format!("{cpu}/cpu3/cpufreq/scaling_driver"), "acpi-cpufreq\n"),
            (&format!("{cpu}/cpufreq/boost"), "0\n"),
            (&format!("{cpu}/cpu3/cpuidle/state0/name"), "POLL\n"),
            (&format!("{cpu}/cpu3/cpuidle/state0/latency"), "0\n"),
            (&format!("{cpu}/cpu3/topology/thread_siblings_list"), "3\n"),
            (&format!("{cpu}/isolated"), "3\n"),
            (&format!("{cpu}/nohz_full"), "3\n"),
            (&format!("{cpu}/vulnerabilities/meltdown"), "Not affected\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
            ("proc/cmdline", "isolcpus=3 nohz_full=3\n"),
            ("proc/cpuinfo", "flags : tsc\n"),
            (&format!("{device}/current_link_speed"), "16.0 GT/s PCIe\n"),
            (&format!("{device}/current_link_width"), "16\n"),
            (&format!("{device}/max_link_speed"), "16.0 GT/s PCIe\n"),
            (&format!("{device}/max_link_width"), "16\n"),
            (&format!("{device}/msi_irqs/40"), "msix\n"),
            ("proc/irq/40/effective_affinity_list", "3\n"),
        ]);
        let (fingerprint, missing) = Fingerprint::read_from(root.path(), Some(3), Some("mlx5_0"));
        assert_eq!(missing, []);
        let json = serde_json::to_value(&fingerprint).unwrap();
        let expected = serde_json::json!({
            "governor": "performance", "frequency_driver": "acpi-cpufreq", "turbo": false,
            "idle_state": "POLL", "idle_exit_us": 0, "siblings": [], "isolated": true, "tickless": true,
            "no_callbacks": true, "transparent_huge_pages": "never", "clocksource": "tsc", "mitigations": {},
            "command_line_hash": command_line_hash(root.path()).unwrap(),
            "pcie": {"speed_gts": 16.0, "width": 16, "max_speed_gts": 16.0, "max_width": 16},
            "irqs_on_core": 1, "hypervisor": false,
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<Fingerprint>(json).unwrap(), fingerprint);
    }

    #[test]
    fn what_is_not_there_is_missing_by_name() {
        for (core, device) in [(None, None), (Some(0), Some("emu0"))] {
            let (fingerprint, missing) = Fingerprint::read_from(tree(&[]).path(), core, device);
            let json = serde_json::to_value(&fingerprint).unwrap();
            let mut names: Vec<&String> = json.as_object().unwrap().keys().collect();
            let mut paths: Vec<&String> = missing.iter().map(|missing| &missing.path).collect();
            assert!(json.as_object().unwrap().values().all(serde_json::Value::is_null), "{json}");
            names.sort_unstable();
            paths.sort_unstable();
            assert_eq!(paths, names);
        }
    }
}
