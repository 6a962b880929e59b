//! How much memory this process may lock, and so register.

use std::path::Path;

use super::super::machine::{MemoryLock, Unlimited, field};
use super::read;

/// The limit of locked memory of this process (`RLIMIT_MEMLOCK`, soft), as its file of `/proc` has it.
///
/// # Errors
/// The file cannot be read, or has no such line.
pub fn memlock(root: &Path) -> Result<MemoryLock, String> {
    let limits = read(root, "proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => Ok(MemoryLock::Unlimited(Unlimited::Unlimited)),
        Some(bytes) => bytes
            .parse()
            .map(MemoryLock::Bytes)
            .map_err(|_| format!("'{bytes}' is no limit of locked memory")),
        None => Err("/proc/self/limits has no 'Max locked memory'".to_owned()),
    }
}

/// The limit does not bind this process: it has `CAP_IPC_LOCK` (`capabilities(7)`).
///
/// # Errors
/// Its status cannot be read.
pub fn may_exceed_memlock(root: &Path) -> Result<bool, String> {
    const IPC_LOCK: u32 = 14;
    let status = read(root, "proc/self/status")?;
    let effective = field(&status, "CapEff")?;
    let bits =
        u64::from_str_radix(effective, 16).map_err(|_| format!("'{effective}' is no set of capabilities"))?;
    Ok(bits >> IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn a_limit_is_a_number_or_none_and_may_be_waived() {
        let of = |soft: &str, capabilities: &str| {
            let limits =
                format!("Limit  Soft Limit  Hard Limit  Units\nMax locked memory  {soft}  8388608  bytes\n");
            let root = tree(&[("proc/self/limits", &limits), ("proc/self/status", capabilities)]);
            (memlock(root.path()), may_exceed_memlock(root.path()))
        };
        assert_eq!(of("8388608", "CapEff:\t0000000000000000\n"), (Ok(MemoryLock::Bytes(8 << 20)), Ok(false)));
        let (unlimited, waived) = of("unlimited", "CapEff:\t000001ffffffffff\n");
        assert_eq!((unlimited, waived), (Ok(MemoryLock::Unlimited(Unlimited::Unlimited)), Ok(true)));
        let (wrong, untold) = of("much", "Name: x\n");
        assert!(wrong.is_err() && untold.is_err());
    }
}
