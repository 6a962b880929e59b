//! What around a measurement bears on it: how fast a core runs and how deep it sleeps, what else runs on it, how the
//! kernel was started, and how a device is connected.
//!
//! Each reader takes the root below which `/proc` and `/sys` lie, and gives the reason where there is nothing to read:
//! what cannot be read is never taken for good. None of them changes anything, and none needs root.

use std::fs;
use std::path::Path;

use super::{parse_list, read};

mod fingerprint;
mod frequency;
mod idle;
mod interrupts;
mod isolation;
mod kernel;
mod limits;
mod load;
mod network;
mod pcie;
#[cfg(test)]
mod tests;

pub use fingerprint::Fingerprint;
pub use frequency::{Turbo, frequency_driver, governor, turbo};
pub use idle::{IdleState, deepest_idle_state, latency_limit_us};
pub use interrupts::{Vector, balancer, on_core, vectors};
pub use isolation::{has_no_callbacks, is_isolated, is_tickless, siblings};
pub use kernel::{
    clocksource, clocksources, command_line_hash, hostname, huge_page_mode, is_guest, is_steady,
    kernel_release, mitigations, perf_event_paranoid,
};
pub use limits::{may_exceed_memlock, memlock};
pub use load::{CoreTimes, Load, cpu_pressure, load, online_cores};
pub use network::{ecn, interface_mtu, interface_of};
pub use pcie::PcieLink;

/// A list of cores; a file without any is an empty one, and so is what older kernels write for none.
fn cores_in(root: &Path, file: &str) -> Result<Vec<usize>, String> {
    let path = root.join(file);
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    match text.trim() {
        "" | "(null)" => Ok(Vec::new()),
        list => parse_list(list),
    }
}

/// The number that a file holds.
fn number<T: std::str::FromStr>(root: &Path, file: &str) -> Result<T, String> {
    let text = read(root, file)?;
    text.parse().map_err(|_| format!("{}: '{}' is no number", root.join(file).display(), text.escape_debug()))
}

/// A name that is one component of a path: anything else would read some other place.
fn component(name: &str) -> Result<&str, String> {
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return Err(format!("'{}' names no device", name.escape_debug()));
    }
    Ok(name)
}
