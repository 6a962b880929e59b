//! Facts about this host: the machine, its interfaces and routes, its cores, what a thread used, what a device counted.
//!
//! Everything is read from the kernel, from files whose layout is part of its interface where there are such. What
//! parses a file takes the root below which it lies, so that tests read fixtures. A value that could not be had is
//! `None` with a [`Missing`] that says why; it is never 0.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

mod available;
mod cores;
mod counters;
mod counting;
mod cpu;
pub mod environment;
mod huge_pages;
mod interfaces;
mod machine;
mod machine_cpu;
mod netlink;
mod numa;
mod route;

pub use available::available_memory;
pub use cores::{Choice, Cores, confine, pin};
pub use counters::{DeviceCounters, connection_counters, delta};
pub use counting::{Counts, CpuEvidence};
pub use cpu::{CpuMeter, CpuUse};
pub use environment::Fingerprint;
pub use huge_pages::HugePages;
pub use interfaces::{Address, Interface, holder, interfaces};
pub use machine::{Machine, MemoryLock, Unlimited};
pub use machine_cpu::{MachineCpu, MachineMeter};
pub use numa::{
    node_distance_in, node_of_core, node_of_core_in, node_of_device, node_of_device_in, nodes_with_memory,
    nodes_with_memory_in,
};
pub use route::{Route, route_to};

/// A value that could not be had, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Where the value would stand, as a path of field names from the structure it belongs to.
    pub path: String,
    /// Why it does not.
    pub reason: String,
}

impl Missing {
    /// `path` is `None` for this reason.
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into() }
    }

    /// The same, seen from a structure that holds this one as `field`.
    #[must_use]
    pub fn within(self, field: &str) -> Self {
        Self { path: format!("{field}.{}", self.path), ..self }
    }
}

/// The text of a file of `/proc` or `/sys`, without the line feed at its end.
fn read(root: &Path, file: &str) -> Result<String, String> {
    let path = root.join(file);
    let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
    if text.is_empty() { Err(format!("{} is empty", path.display())) } else { Ok(text) }
}

/// A list of numbers as the kernel writes them: `0-3,8` (`cpuset(7)`, "List format").
fn parse_list(text: &str) -> Result<Vec<usize>, String> {
    /// Far above any number of cores; a list is never taken at its word for more.
    const MOST: usize = 1 << 16;
    let wrong = || format!("'{}' is not a list of numbers", text.escape_debug());
    let mut numbers = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) =
            (first.trim().parse().map_err(|_| wrong())?, last.trim().parse().map_err(|_| wrong())?);
        if last < first || last >= MOST {
            return Err(wrong());
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-3,8,10-11\n"), Ok(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("5"), Ok(vec![5]));
        assert_eq!(parse_list(""), Ok(vec![]));
        for text in ["a", "3-1", "0-4294967295", "-", "1--2", "0-99999999999999999999"] {
            assert!(parse_list(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_an_error(text in "[-0-9, a]{0,40}") {
            let _ = parse_list(&text);
        }
    }

    #[test]
    fn missing_values_are_placed_from_the_root_of_the_document() {
        let missing = Missing::new("governor", "none").within("machine").within("local");
        assert_eq!(missing.path, "local.machine.governor");
    }
}
