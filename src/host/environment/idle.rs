//! How deep an idle core sleeps (`Documentation/admin-guide/pm/cpuidle.rst`).

use std::fs;
use std::path::Path;

use super::{number, read};

/// A state that an idle core may enter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleState {
    /// Such as `C6`.
    pub name: String,
    /// How long it takes to leave it, in us.
    pub exit_us: u64,
}

/// The state with the longest way out that is not disabled for this core.
///
/// # Errors
/// The kernel shows none: idle cores are left to the hypervisor, or to the architecture.
pub fn deepest_idle_state(root: &Path, core: usize) -> Result<IdleState, String> {
    let place = format!("sys/devices/system/cpu/cpu{core}/cpuidle");
    let mut deepest: Option<IdleState> = None;
    for at in 0.. {
        let state = format!("{place}/state{at}");
        let Ok(name) = read(root, &format!("{state}/name")) else { break };
        let found = IdleState { name, exit_us: number(root, &format!("{state}/latency"))? };
        // The first one is taken where all others are disabled, whatever its own switch says.
        let enabled = at == 0 || number::<u64>(root, &format!("{state}/disable"))? == 0;
        if enabled && deepest.as_ref().is_none_or(|known| found.exit_us >= known.exit_us) {
            deepest = Some(found);
        }
    }
    deepest.ok_or_else(|| format!("{} has no states", root.join(place).display()))
}

/// The longest way out of an idle state that a process allows for all cores, in us
/// (`Documentation/power/pm_qos_interface.rst`); `None` where nobody asks for a limit. Reading it takes root.
///
/// # Errors
/// It may not be read, or is not what the kernel says it is.
pub fn latency_limit_us(root: &Path) -> Result<Option<u32>, String> {
    /// What stands for no limit (`PM_QOS_CPU_LATENCY_DEFAULT_VALUE`).
    const NONE: i32 = 2_000_000_000;
    let path = root.join("dev/cpu_dma_latency");
    let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let value = <[u8; 4]>::try_from(bytes.as_slice()).map(i32::from_ne_bytes);
    match value {
        Ok(NONE) => Ok(None),
        Ok(limit) if limit >= 0 => Ok(u32::try_from(limit).ok()),
        _ => Err(format!("{} holds no time", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn the_deepest_state_is_one_that_is_not_disabled() {
        let files = |c6: &'static str| {
            tree(&[
                ("sys/devices/system/cpu/cpu1/cpuidle/state0/name", "POLL\n"),
                ("sys/devices/system/cpu/cpu1/cpuidle/state0/latency", "0\n"),
                ("sys/devices/system/cpu/cpu1/cpuidle/state0/disable", "0\n"),
                ("sys/devices/system/cpu/cpu1/cpuidle/state1/name", "C1\n"),
                ("sys/devices/system/cpu/cpu1/cpuidle/state1/latency", "2\n"),
                ("sys/devices/system/cpu/cpu1/cpuidle/state1/disable", "0\n"),
                ("sys/devices/system/cpu/cpu1/cpuidle/state2/name", "C6\n"),
                ("sys/devices/system/cpu/cpu1/cpuidle/state2/latency", "133\n"),
                ("sys/devices/system/cpu/cpu1/cpuidle/state2/disable", c6),
            ])
        };
        let deepest = |c6| deepest_idle_state(files(c6).path(), 1);
        assert_eq!(deepest("0\n"), Ok(IdleState { name: "C6".into(), exit_us: 133 }));
        assert_eq!(deepest("1\n"), Ok(IdleState { name: "C1".into(), exit_us: 2 }));
        assert!(deepest("maybe\n").is_err());
        assert!(deepest_idle_state(files("0\n").path(), 2).unwrap_err().contains("no states"));
    }

    #[test]
    fn a_limit_is_four_bytes() {
        let limit = |bytes: &[u8]| {
            let root = tree(&[("dev/null", "")]);
            fs::write(root.path().join("dev/cpu_dma_latency"), bytes).unwrap();
            latency_limit_us(root.path())
        };
        assert_eq!(limit(&0i32.to_ne_bytes()), Ok(Some(0)));
        assert_eq!(limit(&2_000_000_000i32.to_ne_bytes()), Ok(None));
        assert!(limit(b"0x00000000").is_err() && limit(&(-1i32).to_ne_bytes()).is_err());
    }
}
