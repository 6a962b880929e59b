//! What the kernel keeps off a core (`Documentation/admin-guide/kernel-parameters.txt`: `isolcpus`, `nohz_full`,
//! `rcu_nocbs`), and what shares its execution units.

use std::path::Path;

use super::{cores_in, parse_list, read};

/// The scheduler places no threads on the core by itself.
///
/// # Errors
/// The kernel does not tell.
pub fn is_isolated(root: &Path, core: usize) -> Result<bool, String> {
    Ok(cores_in(root, "sys/devices/system/cpu/isolated")?.contains(&core))
}

/// The core has no timer tick while one thread alone runs on it.
///
/// # Errors
/// The kernel does not tell: most often it was built without.
pub fn is_tickless(root: &Path, core: usize) -> Result<bool, String> {
    Ok(cores_in(root, "sys/devices/system/cpu/nohz_full")?.contains(&core))
}

/// The kernel's deferred callbacks are run by other cores. The kernel tells it on its command line alone, and `nohz_full`
/// brings it along.
///
/// # Errors
/// The command line cannot be read, or has something else than a list there.
pub fn has_no_callbacks(root: &Path, core: usize) -> Result<bool, String> {
    if is_tickless(root, core) == Ok(true) {
        return Ok(true);
    }
    let line = read(root, "proc/cmdline")?;
    match line.split_whitespace().filter_map(|word| word.strip_prefix("rcu_nocbs=")).next_back() {
        None => Ok(false),
        Some("all") => Ok(true),
        Some(list) => Ok(parse_list(list)?.contains(&core)),
    }
}

/// Other hardware threads on the execution units of this core.
///
/// # Errors
/// The kernel does not tell.
pub fn siblings(root: &Path, core: usize) -> Result<Vec<usize>, String> {
    let all = cores_in(root, &format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"))?;
    Ok(all.into_iter().filter(|other| *other != core).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn a_core_is_isolated_where_it_is_listed() {
        let root = tree(&[
            ("sys/devices/system/cpu/isolated", "2-3\n"),
            ("sys/devices/system/cpu/nohz_full", "3\n"),
            ("proc/cmdline", "quiet rcu_nocbs=1-2\n"),
            ("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2,6\n"),
        ]);
        let all = |core| {
            let root = root.path();
            [is_isolated(root, core), is_tickless(root, core), has_no_callbacks(root, core)]
                .map(Result::unwrap)
        };
        assert_eq!(all(1), [false, false, true]);
        assert_eq!(all(2), [true, false, true]);
        assert_eq!(all(3), [true, true, true], "no tick brings no callbacks along");
        assert_eq!(siblings(root.path(), 2), Ok(vec![6]));
        assert!(siblings(root.path(), 3).is_err());
    }

    #[test]
    fn no_core_and_no_answer_are_told_apart() {
        let root = tree(&[
            ("sys/devices/system/cpu/isolated", "\n"),
            ("sys/devices/system/cpu/nohz_full", "  (null)\n"),
            ("proc/cmdline", "quiet\n"),
        ]);
        assert_eq!(is_isolated(root.path(), 0), Ok(false));
        assert_eq!(is_tickless(root.path(), 0), Ok(false));
        assert_eq!(has_no_callbacks(root.path(), 0), Ok(false));
        let none = tree(&[]);
        assert!(is_isolated(none.path(), 0).is_err() && has_no_callbacks(none.path(), 0).is_err());
    }
}
