//! Huge pages that are reserved (`Documentation/admin-guide/mm/hugetlbpage.rst`).

use std::path::Path;

use super::read;

/// Huge pages of the system's default size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePages {
    /// Size of one.
    pub page_bytes: usize,
    /// That a process may still take: free and not promised to another, or to be made when they are asked for.
    pub available: u64,
}

impl HugePages {
    /// As they are now.
    ///
    /// # Errors
    /// The kernel has none, and what was looked for.
    pub fn read() -> Result<Self, String> {
        Self::read_from(Path::new("/"))
    }

    fn read_from(root: &Path) -> Result<Self, String> {
        let meminfo = read(root, "proc/meminfo")?;
        let size = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"));
        let kib = size.and_then(|size| size.trim().strip_suffix(" kB")?.parse::<usize>().ok());
        let page_bytes = kib.and_then(|kib| kib.checked_mul(1024)).filter(|bytes| bytes.is_power_of_two());
        let (Some(kib), Some(page_bytes)) = (kib, page_bytes) else {
            return Err("/proc/meminfo has no Hugepagesize: this kernel has no huge pages".into());
        };
        let count = |name: &str| -> Result<u64, String> {
            let file = format!("sys/kernel/mm/hugepages/hugepages-{kib}kB/{name}");
            read(root, &file)?.parse().map_err(|_| format!("/{file} is no number"))
        };
        let free = count("free_hugepages")?.saturating_sub(count("resv_hugepages")?);
        let to_be_made = count("nr_overcommit_hugepages")?.saturating_sub(count("surplus_hugepages")?);
        Ok(Self { page_bytes, available: free.saturating_add(to_be_made) })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_promised_to_others_is_not_available() {
        let root = tempfile::tempdir().unwrap();
        assert!(HugePages::read_from(root.path()).is_err());
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/meminfo"), "MemTotal: 1 kB\n").unwrap();
        assert!(HugePages::read_from(root.path()).unwrap_err().contains("no huge pages"));
        fs::write(root.path().join("proc/meminfo"), "MemTotal: 1 kB\nHugepagesize:       2048 kB\n").unwrap();
        let pool = root.path().join("sys/kernel/mm/hugepages/hugepages-2048kB");
        fs::create_dir_all(&pool).unwrap();
        for (name, count) in [
            ("free_hugepages", 10),
            ("resv_hugepages", 3),
            ("nr_overcommit_hugepages", 4),
            ("surplus_hugepages", 1),
        ] {
            fs::write(pool.join(name), format!("{count}\n")).unwrap();
        }
        let expected = HugePages { page_bytes: 2 << 20, available: 10 };
        assert_eq!(HugePages::read_from(root.path()), Ok(expected));
    }
}
