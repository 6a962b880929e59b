//! What else the machine does now.

use std::path::Path;

use super::super::machine_cpu::ClockTicks;
use super::{cores_in, read};

/// Threads that run or wait for a core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Their mean number over a minute, those that wait for a disk included (`proc_loadavg(5)`).
    pub one_minute: f64,
    /// Those that can run now; the one that asks is among them.
    pub runnable: u32,
}

/// How many threads run or wait.
///
/// # Errors
/// `/proc/loadavg` cannot be read, or is not what it should be.
pub fn load(root: &Path) -> Result<Load, String> {
    let text = read(root, "proc/loadavg")?;
    let fields: Vec<&str> = text.split_whitespace().collect();
    let parsed = match fields[..] {
        [one_minute, _, _, threads, ..] => {
            let runnable = threads.split_once('/').and_then(|(runnable, _)| runnable.parse().ok());
            one_minute.parse().ok().zip(runnable)
        }
        _ => None,
    };
    let (one_minute, runnable) = parsed.ok_or_else(|| format!("/proc/loadavg says '{text}'"))?;
    Ok(Load { one_minute, runnable })
}

/// Percent of the last ten seconds in which some thread waited for a core (`Documentation/accounting/psi.rst`).
///
/// # Errors
/// The kernel keeps no account of it, as many do not by default.
pub fn cpu_pressure(root: &Path) -> Result<f64, String> {
    let text = read(root, "proc/pressure/cpu")?;
    let some = text.lines().find_map(|line| line.strip_prefix("some "));
    let share = some.and_then(|line| line.split_whitespace().find_map(|word| word.strip_prefix("avg10=")));
    share.and_then(|share| share.parse().ok()).ok_or_else(|| "/proc/pressure/cpu has no avg10".to_owned())
}

/// Cores that are in use, one at the least.
///
/// # Errors
/// The kernel does not tell.
pub fn online_cores(root: &Path) -> Result<Vec<usize>, String> {
    let cores = cores_in(root, "sys/devices/system/cpu/online")?;
    if cores.is_empty() { Err("no core is online".to_owned()) } else { Ok(cores) }
}

/// What a core did since the machine started, in ns, counted in ticks of 10 ms (`proc_stat(5)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreTimes {
    /// All of it, what the hypervisor took included.
    pub total_ns: u64,
    /// Nothing, or it waited for a disk.
    pub idle_ns: u64,
    /// The hypervisor ran something else.
    pub steal_ns: u64,
}

impl CoreTimes {
    /// Those of one core.
    ///
    /// # Errors
    /// `/proc/stat` has no line of it, or another than it should.
    pub fn of(root: &Path, core: usize) -> Result<Self, String> {
        let stat = read(root, "proc/stat")?;
        let wrong = || format!("/proc/stat does not say what core {core} did");
        let line = stat.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")));
        let line = line.ok_or_else(wrong)?;
        let ticks = ClockTicks::read().ok_or("the length of a tick is not known")?;
        // User, nice, system, idle, iowait, irq, softirq, steal; what follows is part of user and nice.
        let times: Option<Vec<u64>> = line.split_whitespace().take(8).map(|field| ticks.ns(field)).collect();
        let times = times.filter(|times| times.len() == 8).ok_or_else(wrong)?;
        let total_ns = times.iter().fold(0u64, |total, ns| total.saturating_add(*ns));
        Ok(Self { total_ns, idle_ns: times[3].saturating_add(times[4]), steal_ns: times[7] })
    }

    /// What was done since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
            idle_ns: self.idle_ns.saturating_sub(earlier.idle_ns),
            steal_ns: self.steal_ns.saturating_sub(earlier.steal_ns),
        }
    }

    /// The share of its time, 0 to 1, in which the core had something to do; `None` where no time was counted.
    pub fn busy_share(self) -> Option<f64> {
        let busy = self.total_ns.saturating_sub(self.idle_ns);
        (self.total_ns > 0).then(|| busy as f64 / self.total_ns as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn load_and_pressure_are_read_or_missing() {
        let root = tree(&[
            ("proc/loadavg", "2.75 2.44 4.53 7/113 1277\n"),
            ("proc/pressure/cpu", "some avg10=68.25 avg60=20.45 avg300=18.58 total=9\nfull avg10=0.00\n"),
            ("sys/devices/system/cpu/online", "0-3,6\n"),
        ]);
        assert_eq!(load(root.path()), Ok(Load { one_minute: 2.75, runnable: 7 }));
        assert_eq!(
            (cpu_pressure(root.path()), online_cores(root.path())),
            (Ok(68.25), Ok(vec![0, 1, 2, 3, 6]))
        );
        let none = tree(&[("proc/loadavg", "much\n"), ("proc/pressure/cpu", "some\n")]);
        assert!(
            load(none.path()).is_err()
                && cpu_pressure(none.path()).is_err()
                && online_cores(none.path()).is_err()
        );
    }

    #[test]
    fn a_core_is_busy_when_it_is_not_idle() {
        let times = |line: &str| CoreTimes::of(tree(&[("proc/stat", line)]).path(), 3);
        let before = times("cpu  9 9\ncpu3 10 0 10 70 10 0 0 0 0 0\n").unwrap();
        let after = times("cpu3 30 0 10 120 20 5 5 10 0 0\n").unwrap().since(before);
        assert_eq!(after.busy_share(), Some(0.4));
        assert_eq!(after.steal_ns, ClockTicks::read().unwrap().ns("10").unwrap());
        assert_eq!(before.since(before).busy_share(), None);
        assert!(times("cpu3 1 2 3\n").is_err() && times("cpu30 1 2 3 4 5 6 7 8\n").is_err());
    }
}
