//! What a device counts on a port: `/sys/class/infiniband/DEVICE/ports/PORT/{counters,hw_counters}`.
//!
//! `port_xmit_data` and `port_rcv_data` count units of 4 bytes; all others count packets or events
//! (`Documentation/ABI/stable/sysfs-class-infiniband`). The kernel may serve `hw_counters` from a cache that is some
//! milliseconds old; their `lifespan` file holds that age and is no counter.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

use super::{Missing, read};
use crate::sys;

/// Counters of one port by their kernel's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceCounters(pub BTreeMap<String, u64>);

impl DeviceCounters {
    /// All counters of a port that can be read now. A device without any, as an emulated one, has an empty set.
    pub fn read(device: &str, port: u8) -> Self {
        Self::read_from(Path::new("/"), device, port)
    }

    /// The same from the files below `root`.
    pub fn read_from(root: &Path, device: &str, port: u8) -> Self {
        let mut counters = BTreeMap::new();
        // A device name is a single component; anything else would read some other directory.
        if device.is_empty() || device.contains('/') || device.starts_with('.') {
            return Self::default();
        }
        for kind in ["counters", "hw_counters"] {
            let place = format!("sys/class/infiniband/{device}/ports/{port}/{kind}");
            let Ok(entries) = fs::read_dir(root.join(&place)) else { continue };
            for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
                // Some are write-only or answer with an error on devices that lack them.
                let value = read(root, &format!("{place}/{name}")).ok().and_then(|text| text.parse().ok());
                if let Some(value) = value.filter(|_| name != "lifespan") {
                    // The older directory keeps a name that both have.
                    counters.entry(name).or_insert(value);
                }
            }
        }
        Self(counters)
    }
}

/// What the kernel counts of TCP connections together, under the names of `ss(8)`; empty for other sockets.
pub fn connection_counters<'f>(sockets: impl IntoIterator<Item = BorrowedFd<'f>>) -> DeviceCounters {
    let counts = sockets.into_iter().flat_map(sys::socket::retransmits);
    let sum = counts.map(u64::from).reduce(|sum, count| sum + count);
    DeviceCounters(sum.map(|sum| ("retrans".to_owned(), sum)).into_iter().collect())
}

/// What was counted between two readings. A counter that went back was reset or taken away in between, and has no
/// value.
pub fn delta(before: &DeviceCounters, after: &DeviceCounters) -> (BTreeMap<String, u64>, Vec<Missing>) {
    let (mut counted, mut missing) = (BTreeMap::new(), Vec::new());
    for (name, start) in &before.0 {
        match after.0.get(name) {
            Some(end) if end >= start => {
                counted.insert(name.clone(), end - start);
            }
            Some(end) => missing.push(Missing::new(name.clone(), format!("went back from {start} to {end}"))),
            None => missing.push(Missing::new(name.clone(), "could not be read a second time")),
        }
    }
    (counted, missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, kind: &str, name: &str, text: &str) {
        let place = root.join("sys/class/infiniband/rxe0/ports/1").join(kind);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join(name), text).unwrap();
    }

    #[test]
    fn both_directories_are_read_and_only_counters() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "counters", "port_xmit_data", "1000\n");
        put(dir.path(), "counters", "odd", "N/A (no PMA)\n");
        put(dir.path(), "hw_counters", "duplicate_request", "18446744073709551615\n");
        put(dir.path(), "hw_counters", "port_xmit_data", "7\n");
        put(dir.path(), "hw_counters", "lifespan", "10\n");
        let counters = DeviceCounters::read_from(dir.path(), "rxe0", 1);
        let expected = [("duplicate_request".to_owned(), u64::MAX), ("port_xmit_data".to_owned(), 1000)];
        assert_eq!(counters.0, BTreeMap::from(expected));
        assert_eq!(DeviceCounters::read_from(dir.path(), "rxe0", 2), DeviceCounters::default());
        assert_eq!(DeviceCounters::read_from(dir.path(), "../infiniband/rxe0", 1), DeviceCounters::default());
    }

    #[test]
    fn a_counter_that_went_back_has_no_value() {
        let set = |pairs: &[(&str, u64)]| {
            DeviceCounters(pairs.iter().map(|&(name, value)| (name.to_owned(), value)).collect())
        };
        let before = set(&[("same", 5), ("more", 5), ("reset", 5), ("gone", 5)]);
        let after = set(&[("same", 5), ("more", u64::MAX), ("reset", 1), ("new", 9)]);
        let (counted, missing) = delta(&before, &after);
        assert_eq!(counted, BTreeMap::from([("same".to_owned(), 0), ("more".to_owned(), u64::MAX - 5)]));
        assert_eq!(
            missing,
            [
                Missing::new("gone", "could not be read a second time"),
                Missing::new("reset", "went back from 5 to 1")
            ]
        );
    }
}
