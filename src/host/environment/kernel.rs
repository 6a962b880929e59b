//! How the kernel was started and set.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::super::machine::{field, hypervisor};
use super::{number, read};

const CLOCKSOURCE: &str = "sys/devices/system/clocksource/clocksource0";

/// The machine's name.
///
/// # Errors
/// The kernel does not tell.
pub fn hostname(root: &Path) -> Result<String, String> {
    read(root, "proc/sys/kernel/hostname")
}

/// Release of the kernel.
///
/// # Errors
/// It does not tell.
pub fn kernel_release(root: &Path) -> Result<String, String> {
    read(root, "proc/sys/kernel/osrelease")
}

/// What the kernel tells the time by.
///
/// # Errors
/// It does not say.
pub fn clocksource(root: &Path) -> Result<String, String> {
    read(root, &format!("{CLOCKSOURCE}/current_clocksource"))
}

/// What it could tell the time by.
///
/// # Errors
/// It does not say.
pub fn clocksources(root: &Path) -> Result<Vec<String>, String> {
    let text = read(root, &format!("{CLOCKSOURCE}/available_clocksource"))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// The processor's counter runs at one rate in every power state, as the kernel found it. Arm's always does.
///
/// # Errors
/// `/proc/cpuinfo` has no flags.
pub fn is_steady(root: &Path) -> Result<bool, String> {
    let cpuinfo = read(root, "proc/cpuinfo")?;
    if field(&cpuinfo, "CPU implementer").is_ok() {
        return Ok(true);
    }
    let flags = field(&cpuinfo, "flags")?;
    let has = |name| flags.split_whitespace().any(|flag| flag == name);
    Ok(has("constant_tsc") && has("nonstop_tsc"))
}

/// The processor is a hypervisor's guest.
///
/// # Errors
/// It does not tell.
pub fn is_guest(root: &Path) -> Result<bool, String> {
    hypervisor(root, &read(root, "proc/cpuinfo")?)
}

/// When memory is put into transparent huge pages: `always`, `madvise` or `never`
/// (`Documentation/admin-guide/mm/transhuge.rst`).
///
/// # Errors
/// The kernel has none.
pub fn huge_page_mode(root: &Path) -> Result<String, String> {
    let text = read(root, "sys/kernel/mm/transparent_hugepage/enabled")?;
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map(|(mode, _)| mode.to_owned()).ok_or_else(|| format!("'{text}' has nothing chosen"))
}

/// What the kernel does about the faults of this processor, by the name of the fault; those that it does not have are
/// left out (`Documentation/ABI/testing/sysfs-devices-system-cpu`, `vulnerabilities`).
///
/// # Errors
/// The kernel does not tell.
pub fn mitigations(root: &Path) -> Result<BTreeMap<String, String>, String> {
    const PLACE: &str = "sys/devices/system/cpu/vulnerabilities";
    let path = root.join(PLACE);
    let entries = fs::read_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let told = names.filter_map(|name| Some((read(root, &format!("{PLACE}/{name}")).ok()?, name)));
    Ok(told.filter(|(text, _)| text != "Not affected").map(|(text, name)| (name, text)).collect())
}

/// A number that two kernels started with the same options share, as 16 hexadecimal digits: FNV-1a of the words of the
/// command line, without those that only say where the system lies. The line itself is not recorded: it may hold
/// secrets.
///
/// # Errors
/// `/proc/cmdline` cannot be read.
pub fn command_line_hash(root: &Path) -> Result<String, String> {
    const PLACES: [&str; 5] = ["BOOT_IMAGE=", "initrd=", "root=", "resume=", "cryptdevice="];
    let line = read(root, "proc/cmdline")?;
    let words = line.split_whitespace().filter(|word| !PLACES.iter().any(|place| word.starts_with(place)));
    let bytes = words.flat_map(|word| word.bytes().chain([b' ']));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Ok(format!("{hash:016x}"))
}

/// What users may count of the processor: 2 and more leave the kernel's part out
/// (`Documentation/admin-guide/sysctl/kernel.rst`).
///
/// # Errors
/// The kernel was built without.
pub fn perf_event_paranoid(root: &Path) -> Result<i32, String> {
    number(root, "proc/sys/kernel/perf_event_paranoid")
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn a_counter_is_steady_by_two_flags() {
        let steady = |cpuinfo| is_steady(tree(&[("proc/cpuinfo", cpuinfo)]).path());
        assert_eq!(steady("flags : tsc constant_tsc nonstop_tsc\n"), Ok(true));
        assert_eq!(steady("flags : tsc constant_tsc\n"), Ok(false));
        assert_eq!(steady("CPU implementer : 0x41\n"), Ok(true));
        assert!(steady("processor : 0\n").is_err());
    }

    #[test]
    fn the_mode_is_the_one_in_brackets() {
        let mode =
            |text| huge_page_mode(tree(&[("sys/kernel/mm/transparent_hugepage/enabled", text)]).path());
        assert_eq!(mode("always [madvise] never\n").as_deref(), Ok("madvise"));
        assert!(mode("always\n").is_err());
    }

    #[test]
    fn what_does_not_affect_the_processor_is_not_mitigated() {
        let place = "sys/devices/system/cpu/vulnerabilities";
        let root = tree(&[
            (&format!("{place}/meltdown"), "Mitigation: PTI\n"),
            (&format!("{place}/srbds"), "Not affected\n"),
        ]);
        let found = mitigations(root.path()).unwrap();
        assert_eq!(found, BTreeMap::from([("meltdown".to_owned(), "Mitigation: PTI".to_owned())]));
    }

    #[test]
    fn a_command_line_is_the_same_wherever_the_system_lies() {
        let hash = |line| command_line_hash(tree(&[("proc/cmdline", line)]).path()).unwrap();
        let one = hash("BOOT_IMAGE=/a root=UUID=1 quiet isolcpus=3\n");
        assert_eq!(one, hash("root=/dev/sda1 quiet isolcpus=3\n"));
        assert_ne!(one, hash("quiet isolcpus=4\n"));
        assert_ne!(hash("a b\n"), hash("ab\n"));
        // FNV-1a of "a ", by its definition.
        assert_eq!(hash("a\n"), "089c0207b5452844".to_owned());
    }
}
