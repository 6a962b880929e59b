//! Memory that this process may still take without anything being swapped out or killed.

use std::path::Path;

use super::read;

/// Bytes: what the kernel holds to be available (`MemAvailable` of `proc_meminfo(5)`), or what is left to this process's
/// control group if that is less (`memory.max` of cgroup v2; of the groups above it, too).
///
/// # Errors
/// The kernel does not tell.
pub fn available_memory() -> Result<u64, String> {
    available_in(Path::new("/"))
}

fn available_in(root: &Path) -> Result<u64, String> {
    let meminfo = read(root, "proc/meminfo")?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let machine = kib.and_then(|kib| kib.checked_mul(1024)).ok_or("/proc/meminfo has no MemAvailable")?;
    Ok(left_to_groups(root).unwrap_or(u64::MAX).min(machine))
}

/// What the tightest of the control groups of this process leaves; `None` where none of them has a limit.
fn left_to_groups(root: &Path) -> Option<u64> {
    let groups = read(root, "proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let left = |group: &Path| {
        let number = |name: &str| {
            read(root, &format!("sys/fs/cgroup/{}/{name}", group.display())).ok()?.parse::<u64>().ok()
        };
        Some(number("memory.max")?.saturating_sub(number("memory.current")?))
    };
    Path::new(own).ancestors().filter_map(left).min()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_tightest_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(available_in(root.path()).is_err());
        put("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:     4096 kB\n");
        assert_eq!(available_in(root.path()), Ok(4 << 20));
        put("proc/self/cgroup", "1:cpu:/\n0::/a/b\n");
        put("sys/fs/cgroup/a/b/memory.max", "max\n");
        put("sys/fs/cgroup/a/b/memory.current", "1000\n");
        assert_eq!(available_in(root.path()), Ok(4 << 20));
        put("sys/fs/cgroup/a/memory.max", "3000\n");
        put("sys/fs/cgroup/a/memory.current", "1000\n");
        assert_eq!(available_in(root.path()), Ok(2000), "the group above has a limit");
        put("proc/meminfo", "MemAvailable: some\n");
        assert!(available_in(root.path()).is_err());
    }
}
