//! What all cores of the machine did: work that the kernel does for a path outside of the process that uses it.

use std::path::Path;
use std::time::Instant;

use nix::unistd::{SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

use super::read;

/// What all cores together did over a while, in ns. The kernel counts in ticks of 10 ms (`proc_stat(5)`), so that less
/// than that is not seen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MachineCpu {
    /// How long the while was, in seconds.
    pub window_s: f64,
    /// In user mode, of all processes.
    pub user_ns: u64,
    /// In the kernel, of all processes and its own threads.
    pub system_ns: u64,
    /// In interrupts.
    pub irq_ns: u64,
    /// In soft interrupts: most of what the network stack does on receiving.
    pub softirq_ns: u64,
    /// Taken by the hypervisor.
    pub steal_ns: u64,
}

/// Measures all cores.
#[derive(Debug)]
pub struct MachineMeter {
    since: Instant,
    before: [u64; 5],
}

impl MachineMeter {
    /// Begins.
    ///
    /// # Errors
    /// `/proc/stat` cannot be read, or is not what `proc_stat(5)` says.
    pub fn start() -> Result<Self, String> {
        Ok(Self { before: all_cores(Path::new("/"))?, since: Instant::now() })
    }

    /// What was done since the start.
    ///
    /// # Errors
    /// As of [`MachineMeter::start`].
    pub fn stop(&self) -> Result<MachineCpu, String> {
        let window_s = self.since.elapsed().as_secs_f64();
        let after = all_cores(Path::new("/"))?;
        // Some of them have gone back on some kernels.
        let [user_ns, system_ns, irq_ns, softirq_ns, steal_ns] =
            std::array::from_fn(|field| after[field].saturating_sub(self.before[field]));
        Ok(MachineCpu { window_s, user_ns, system_ns, irq_ns, softirq_ns, steal_ns })
    }
}

/// User, system, irq, softirq and steal time of the first line, in ns; that of nice processes is in the first.
fn all_cores(root: &Path) -> Result<[u64; 5], String> {
    let stat = read(root, "proc/stat")?;
    let wrong = || "/proc/stat: its first line is not that of all cores".to_owned();
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).ok_or_else(wrong)?;
    let ticks = ClockTicks::read().ok_or("the length of a tick is not known")?;
    let fields: Option<Vec<u64>> = line.split_whitespace().take(8).map(|field| ticks.ns(field)).collect();
    match fields.as_deref() {
        Some([user, nice, system, _idle, _iowait, irq, softirq, steal]) => {
            Ok([user + nice, *system, *irq, *softirq, *steal])
        }
        _ => Err(wrong()),
    }
}

/// The unit of `/proc/stat`.
#[derive(Debug, Clone, Copy)]
pub struct ClockTicks {
    ns: u64,
}

impl ClockTicks {
    /// As the C library tells it; `None` where it does not.
    pub fn read() -> Option<Self> {
        let a_second = u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok()?;
        Some(Self { ns: 1_000_000_000u64.checked_div(a_second)? })
    }

    /// So many ticks, as a file has them, in ns.
    pub fn ns(self, ticks: &str) -> Option<u64> {
        ticks.parse::<u64>().ok()?.checked_mul(self.ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(stat: &str) -> Result<[u64; 5], String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        std::fs::write(dir.path().join("proc/stat"), stat).unwrap();
        all_cores(dir.path())
    }

    #[test]
    fn fields_are_those_of_the_first_line() {
        let tick = ClockTicks::read().unwrap().ns;
        let read = machine("cpu  1 2 4 8 16 32 64 128 0 0\ncpu0 9 9 9 9 9 9 9 9 9 9\n").unwrap();
        assert_eq!(read, [3, 4, 32, 64, 128].map(|ticks| ticks * tick));
    }

    #[test]
    fn another_file_is_an_error() {
        for stat in ["", "cpu0 1 2 3 4 5 6 7 8\n", "cpu  1 2 3\n", "cpu  1 2 3 4 5 6 7 x\n"] {
            assert!(machine(stat).is_err(), "{stat:?}");
        }
        assert!(machine("cpu  1 2 3 4 5 6 7 99999999999999999999\n").is_err());
    }
}
