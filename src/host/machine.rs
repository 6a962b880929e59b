//! The machine an end ran on, as far as it bears on the numbers.

use std::path::Path;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::{Missing, parse_list, read};

/// Facts about the machine and this process's place on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Host name (`/proc/sys/kernel/hostname`).
    #[serde(rename = "host")]
    pub hostname: Option<String>,
    /// Changes with every boot and is shared by containers of one kernel (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: Option<String>,
    /// Kernel release (`/proc/sys/kernel/osrelease`).
    pub kernel: Option<String>,
    /// Distribution, or that of the container (`PRETTY_NAME` of `os-release(5)`).
    pub os: Option<String>,
    /// Processor model (`/proc/cpuinfo`).
    pub cpu_model: Option<String>,
    /// Frequency governor of the allowed CPUs, each kind once (`cpufreq/scaling_governor`).
    pub governor: Option<String>,
    /// What the kernel tells the time by (`clocksource0/current_clocksource`).
    pub clocksource: Option<String>,
    /// CPUs the calling thread may run on, in increasing order. Read before anything is pinned, those of the process.
    pub cpus_allowed: Option<Vec<usize>>,
    /// Memory that may be locked, and so registered with a device, in bytes (`RLIMIT_MEMLOCK`, soft limit).
    pub memlock_bytes: Option<MemoryLock>,
    /// Installed memory that the kernel uses, in bytes (`MemTotal` of `/proc/meminfo`).
    pub memory_bytes: Option<u64>,
    /// Whether the processor is a hypervisor's guest (the flag of `/proc/cpuinfo`, or `/sys/hypervisor`).
    pub hypervisor: Option<bool>,
}

/// How much memory may be locked: in JSON a number of bytes, or `"unlimited"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MemoryLock {
    /// So many bytes.
    Bytes(u64),
    /// No limit.
    Unlimited(Unlimited),
}

/// The word that stands for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unlimited {
    /// `"unlimited"`
    Unlimited,
}

impl Machine {
    /// This machine, and what could not be had of it.
    pub fn read() -> (Self, Vec<Missing>) {
        let memlock = match getrlimit(Resource::RLIMIT_MEMLOCK) {
            Ok((RLIM_INFINITY, _)) => Ok(MemoryLock::Unlimited(Unlimited::Unlimited)),
            Ok((bytes, _)) => Ok(MemoryLock::Bytes(bytes)),
            Err(errno) => Err(format!("getrlimit(RLIMIT_MEMLOCK): {errno}")),
        };
        Self::read_from(Path::new("/"), memlock)
    }

    fn read_from(root: &Path, memlock: Result<MemoryLock, String>) -> (Self, Vec<Missing>) {
        let mut missing = Vec::new();
        let cpuinfo = read(root, "proc/cpuinfo");
        let allowed = read(root, "proc/thread-self/status")
            .and_then(|status| field(&status, "Cpus_allowed_list").and_then(parse_list));
        let governor = allowed.as_ref().map_err(String::clone).and_then(|cpus| governor(root, cpus));
        let machine = Self {
            hostname: keep(&mut missing, "host", read(root, "proc/sys/kernel/hostname")),
            boot_id: keep(&mut missing, "boot_id", read(root, "proc/sys/kernel/random/boot_id")),
            kernel: keep(&mut missing, "kernel", read(root, "proc/sys/kernel/osrelease")),
            os: keep(&mut missing, "os", os(root)),
            cpu_model: keep(
                &mut missing,
                "cpu_model",
                cpuinfo.as_deref().map_err(Clone::clone).and_then(cpu_model),
            ),
            governor: keep(&mut missing, "governor", governor),
            clocksource: keep(
                &mut missing,
                "clocksource",
                read(root, "sys/devices/system/clocksource/clocksource0/current_clocksource"),
            ),
            cpus_allowed: keep(&mut missing, "cpus_allowed", allowed),
            memlock_bytes: keep(&mut missing, "memlock_bytes", memlock),
            memory_bytes: keep(&mut missing, "memory_bytes", memory(root)),
            hypervisor: keep(
                &mut missing,
                "hypervisor",
                cpuinfo.and_then(|cpuinfo| hypervisor(root, &cpuinfo)),
            ),
        };
        (machine, missing)
    }
}

fn keep<T>(missing: &mut Vec<Missing>, path: &str, value: Result<T, String>) -> Option<T> {
    value.map_err(|reason| missing.push(Missing::new(path, reason))).ok()
}

/// The value of the first line `name: value`.
pub(super) fn field<'a>(text: &'a str, name: &str) -> Result<&'a str, String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
        .filter(|value| !value.is_empty())
        .ok_or_else(|| format!("no '{name}' in it"))
}

/// `PRETTY_NAME`, or what is there of name and version (`os-release(5)`, also for the two places).
fn os(root: &Path) -> Result<String, String> {
    let text =
        read(root, "etc/os-release").or_else(|why| read(root, "usr/lib/os-release").map_err(|_| why))?;
    let value = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(|value| {
            let value = value.trim();
            let bare = value
                .strip_prefix(['"', '\''])
                .and_then(|rest| rest.strip_suffix(['"', '\'']))
                .unwrap_or(value);
            bare.replace('\\', "")
        })
    };
    value("PRETTY_NAME").or_else(|| value("NAME")).ok_or_else(|| "os-release has no PRETTY_NAME".to_owned())
}

/// `model name` on x86; 64-bit Arm has numbers only.
fn cpu_model(cpuinfo: &str) -> Result<String, String> {
    let arm = || {
        Ok(format!("implementer {} part {}", field(cpuinfo, "CPU implementer")?, field(cpuinfo, "CPU part")?))
    };
    let other = || field(cpuinfo, "cpu").map(str::to_owned);
    field(cpuinfo, "model name")
        .map(str::to_owned)
        .or_else(|_| arm())
        .or_else(|_: String| other())
        .map_err(|_| "proc/cpuinfo has neither 'model name' nor 'CPU part' nor 'cpu'".to_owned())
}

fn governor(root: &Path, cpus: &[usize]) -> Result<String, String> {
    let mut kinds = Vec::new();
    for cpu in cpus {
        let kind = read(root, &format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"))?;
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    if kinds.is_empty() { Err("no CPU is allowed".to_owned()) } else { Ok(kinds.join(", ")) }
}

fn memory(root: &Path) -> Result<u64, String> {
    let text = read(root, "proc/meminfo")?;
    let value = field(&text, "MemTotal")?;
    let kib = value.strip_suffix(" kB").and_then(|number| number.trim().parse::<u64>().ok());
    kib.and_then(|kib| kib.checked_mul(1024)).ok_or_else(|| format!("'{value}' is not a number of kB"))
}

pub(super) fn hypervisor(root: &Path, cpuinfo: &str) -> Result<bool, String> {
    if root.join("sys/hypervisor/type").exists() {
        return Ok(true);
    }
    match field(cpuinfo, "flags") {
        Ok(flags) => Ok(flags.split_whitespace().any(|flag| flag == "hypervisor")),
        Err(_) => Err("this processor does not tell a guest that it is one".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn fixture() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        put(root, "proc/sys/kernel/hostname", "node7\n");
        put(root, "proc/sys/kernel/random/boot_id", "0b5c\n");
        put(root, "proc/sys/kernel/osrelease", "6.1.0-50-amd64\n");
        put(root, "etc/os-release", "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
        put(
            root,
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: AMD EPYC 7763\nflags\t\t: fpu tsc hypervisor\n\nprocessor\t: 1\n",
        );
        put(root, "proc/thread-self/status", "Name:\tx\nCpus_allowed:\t3\nCpus_allowed_list:\t2-3\n");
        put(root, "proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n");
        put(root, "sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
        for cpu in [2, 3] {
            put(root, &format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"), "performance\n");
        }
        dir
    }

    #[test]
    fn a_machine_is_read_from_its_files() {
        let dir = fixture();
        let (machine, missing) = Machine::read_from(dir.path(), Ok(MemoryLock::Bytes(65536)));
        assert_eq!(missing, []);
        let json = serde_json::to_value(&machine).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "host": "node7", "boot_id": "0b5c", "kernel": "6.1.0-50-amd64", "os": "Debian GNU/Linux 12 (bookworm)",
                "cpu_model": "AMD EPYC 7763", "governor": "performance", "clocksource": "tsc", "cpus_allowed": [2, 3],
                "memlock_bytes": 65536, "memory_bytes": 16384 * 1024, "hypervisor": true,
            })
        );
        assert_eq!(serde_json::from_value::<Machine>(json).unwrap(), machine);
    }

    #[test]
    fn an_empty_machine_is_all_missing_and_nothing_is_zero() {
        let dir = tempfile::tempdir().unwrap();
        let (machine, missing) = Machine::read_from(dir.path(), Err("no".to_owned()));
        let json = serde_json::to_value(&machine).unwrap();
        let fields = json.as_object().unwrap();
        assert!(fields.values().all(serde_json::Value::is_null), "{json}");
        let mut paths: Vec<&str> = missing.iter().map(|missing| missing.path.as_str()).collect();
        let mut names: Vec<&str> = fields.keys().map(String::as_str).collect();
        paths.sort_unstable();
        names.sort_unstable();
        assert_eq!(paths, names, "each null has its reason, under its own name");
        assert!(missing.iter().all(|missing| !missing.reason.is_empty()));
    }

    #[test]
    fn what_is_there_but_makes_no_sense_is_missing() {
        let dir = fixture();
        put(dir.path(), "proc/meminfo", "MemTotal: lots\n");
        put(dir.path(), "proc/cpuinfo", "processor : 0\n");
        put(dir.path(), "proc/sys/kernel/hostname", "\n");
        let (machine, missing) = Machine::read_from(dir.path(), Ok(MemoryLock::Bytes(1)));
        assert_eq!(
            (machine.memory_bytes, machine.cpu_model, machine.hostname, machine.hypervisor),
            (None, None, None, None)
        );
        assert_eq!(missing.len(), 4, "{missing:?}");
        assert!(
            missing.iter().any(|missing| missing.reason == "'lots' is not a number of kB"),
            "{missing:?}"
        );
    }

    #[test]
    fn governors_that_differ_are_all_named_and_arm_has_numbers() {
        let dir = fixture();
        put(dir.path(), "sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave\n");
        put(dir.path(), "proc/cpuinfo", "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0c\n");
        put(dir.path(), "sys/hypervisor/type", "xen\n");
        let (machine, missing) = Machine::read_from(dir.path(), Ok(MemoryLock::Bytes(1)));
        assert_eq!(machine.governor.as_deref(), Some("performance, powersave"));
        assert_eq!(machine.cpu_model.as_deref(), Some("implementer 0x41 part 0xd0c"));
        assert_eq!((machine.hypervisor, missing), (Some(true), vec![]));
    }

    #[test]
    fn no_limit_is_a_word_and_not_a_number() {
        let unlimited = MemoryLock::Unlimited(Unlimited::Unlimited);
        assert_eq!(serde_json::to_string(&unlimited).unwrap(), r#""unlimited""#);
        assert_eq!(serde_json::from_str::<MemoryLock>(r#""unlimited""#).unwrap(), unlimited);
        assert!(serde_json::from_str::<MemoryLock>(r#""much""#).is_err());
    }

    #[test]
    fn this_machine_has_the_facts_every_linux_has() {
        let (machine, missing) = Machine::read();
        assert!(
            machine.boot_id.is_some() && machine.kernel.is_some() && machine.memory_bytes.is_some(),
            "{missing:?}"
        );
        assert!(machine.cpus_allowed.is_some_and(|cpus| !cpus.is_empty()));
    }
}
