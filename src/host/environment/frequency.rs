//! What decides a core's frequency (`Documentation/admin-guide/pm/cpufreq.rst`, `intel_pstate.rst`).

use std::path::Path;

use super::{number, read};

/// The governor of a core, such as `performance`.
///
/// # Errors
/// The kernel has none for it, as in most virtual machines.
pub fn governor(root: &Path, core: usize) -> Result<String, String> {
    read(root, &format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"))
}

/// The driver that sets the frequency of a core, such as `intel_pstate`.
///
/// # Errors
/// As of [`governor`].
pub fn frequency_driver(root: &Path, core: usize) -> Result<String, String> {
    read(root, &format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_driver"))
}

/// Whether cores may run above their nominal frequency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turbo {
    /// They may.
    pub on: bool,
    /// The command that forbids it.
    pub off_command: &'static str,
}

/// Whether the machine's cores may run above their nominal frequency, as long as heat and the other cores allow.
///
/// # Errors
/// The kernel shows no switch for it.
pub fn turbo(root: &Path) -> Result<Turbo, String> {
    const INTEL: &str = "sys/devices/system/cpu/intel_pstate/no_turbo";
    const OTHERS: &str = "sys/devices/system/cpu/cpufreq/boost";
    if let Ok(off) = number::<u8>(root, INTEL) {
        let off_command = "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo";
        return Ok(Turbo { on: off == 0, off_command });
    }
    let on = number::<u8>(root, OTHERS).map_err(|_| format!("neither /{INTEL} nor /{OTHERS} is there"))?;
    Ok(Turbo { on: on != 0, off_command: "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost" })
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn both_kinds_of_switch_are_known_and_none_is_no_answer() {
        let intel = tree(&[("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n")]);
        assert!(!turbo(intel.path()).unwrap().on);
        let other = tree(&[("sys/devices/system/cpu/cpufreq/boost", "1\n")]);
        let found = turbo(other.path()).unwrap();
        assert!(found.on && found.off_command.contains("cpufreq/boost"), "{found:?}");
        assert!(turbo(tree(&[]).path()).unwrap_err().contains("no_turbo"));
        assert!(governor(tree(&[]).path(), 3).unwrap_err().contains("cpu3/cpufreq"));
    }
}
