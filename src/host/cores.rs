//! Which cores there are, which one an end should take, and taking it.

use std::collections::BTreeMap;
use std::path::Path;

use core_affinity::{CoreId, get_core_ids, set_for_current};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::{parse_list, read};
use crate::error::{Error, Result, Step};

/// Cores that `core_affinity` can name: it indexes a fixed set of this many bits, and panics beyond.
const NAMEABLE: usize = 1024;

/// The cores this thread may use, and what is known of their places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    /// In increasing order.
    allowed: Vec<usize>,
    /// Next to the device (`/sys/class/infiniband/DEVICE/device/local_cpulist`); `None` when there is no telling.
    local: Option<Vec<usize>>,
    /// Cores that share execution units with the key, itself included (`topology/thread_siblings_list`).
    siblings: BTreeMap<usize, Vec<usize>>,
}

/// The core an end takes, and what is to be said about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The core.
    pub core: usize,
    /// It is next to the device; `None` when there is no telling.
    pub local: Option<bool>,
    /// Another end has this very core, since there is no other: whoever spins must yield.
    pub shared: bool,
    /// Another end has the other hardware thread of this core, which slows both.
    pub sibling: bool,
}

impl Cores {
    /// The cores the calling thread may use, seen from `device`. To be asked before anything is pinned.
    ///
    /// # Errors
    /// The kernel does not tell which cores are allowed.
    pub fn read(device: Option<&str>) -> Result<Self> {
        let ids = get_core_ids().map(|ids| ids.into_iter().map(|id| id.id).collect::<Vec<_>>());
        match ids {
            Some(allowed) if !allowed.is_empty() => Ok(Self::read_from(Path::new("/"), allowed, device)),
            _ => Err(Error::failed(
                Step::OpenDevice,
                format!("sched_getaffinity names none of the first {NAMEABLE} cores for this process"),
            )
            .with_remedy("start it with `taskset -c` and a lower core")),
        }
    }

    fn read_from(root: &Path, mut allowed: Vec<usize>, device: Option<&str>) -> Self {
        allowed.sort_unstable();
        allowed.dedup();
        let list = |file: String| read(root, &file).and_then(|text| parse_list(&text)).ok();
        let siblings = allowed.iter().filter_map(|core| {
            let file = format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
            Some((*core, list(file)?))
        });
        let siblings = siblings.collect();
        let local = device
            .filter(|name| !name.contains('/'))
            .and_then(|name| list(format!("sys/class/infiniband/{name}/device/local_cpulist")))
            .filter(|cores| !cores.is_empty());
        Self { allowed, local, siblings }
    }

    /// In increasing order.
    pub fn allowed(&self) -> &[usize] {
        &self.allowed
    }

    /// The core for one more end, when others on this host have `taken` theirs. In this order: one that is free, no
    /// hardware thread of a taken core, next to the device, not core 0 (where the kernel puts what has to be put
    /// somewhere), the lowest.
    pub fn choose(&self, taken: &[usize]) -> Option<Choice> {
        let core = self.allowed.iter().copied().min_by_key(|&core| {
            (
                taken.iter().filter(|other| **other == core).count(),
                self.is_sibling(core, taken),
                self.is_local(core) == Some(false),
                core == 0,
                core,
            )
        })?;
        Some(self.describe(core, taken))
    }

    /// Where a thread that must not disturb goes: on none of `measuring`, and if there is a choice on none of `beside`.
    /// Empty where every core measures.
    pub fn apart_from(&self, measuring: &[usize], beside: &[usize]) -> Vec<usize> {
        let (mut quiet, free): (Vec<usize>, Vec<usize>) = self
            .allowed
            .iter()
            .filter(|core| !measuring.contains(core))
            .partition(|core| !beside.contains(core));
        if quiet.is_empty() {
            quiet = free;
        }
        quiet
    }

    /// The cores for the threads of one end that takes `first`: one after the other as by [`Cores::choose`]. Empty where
    /// there are none to choose from.
    pub fn team(&self, first: Option<usize>, threads: usize, taken: &[usize]) -> Vec<usize> {
        let mut all = taken.to_vec();
        all.extend(first);
        while all.len() < taken.len() + threads
            && let Some(choice) = self.choose(&all)
        {
            all.push(choice.core);
        }
        all.split_off(taken.len())
    }

    /// What is to be said about a core that a person chose.
    ///
    /// # Errors
    /// This process may not use it.
    pub fn given(&self, core: usize, taken: &[usize]) -> Result<Choice> {
        if !self.allowed.contains(&core) {
            let allowed: Vec<String> = self.allowed.iter().map(usize::to_string).collect();
            return Err(Error::usage(format!(
                "core {core} may not be used: allowed are {}",
                allowed.join(",")
            ))
            .with_remedy("choose one of them, or start that end with other cores (taskset, cpuset)"));
        }
        Ok(self.describe(core, taken))
    }

    fn describe(&self, core: usize, taken: &[usize]) -> Choice {
        Choice {
            core,
            local: self.is_local(core),
            shared: taken.contains(&core),
            sibling: self.is_sibling(core, taken),
        }
    }

    fn is_local(&self, core: usize) -> Option<bool> {
        self.local.as_ref().map(|local| local.contains(&core))
    }

    fn is_sibling(&self, core: usize, taken: &[usize]) -> bool {
        let mine = self.siblings.get(&core).map_or(&[][..], Vec::as_slice);
        taken.iter().any(|other| *other != core && mine.contains(other))
    }
}

/// Lets a thread of this process run on these cores alone.
///
/// # Errors
/// The thread is gone, or none of the cores may be used.
pub fn confine(thread: Pid, cores: &[usize]) -> Result<()> {
    let confined = || {
        let mut set = CpuSet::new();
        cores.iter().try_for_each(|core| set.set(*core))?;
        sched_setaffinity(thread, &set)
    };
    confined().map_err(|errno| {
        Error::failed(Step::Listen, format!("keeping thread {thread} to cores {cores:?}: {errno}"))
    })
}

/// Binds the calling thread to one core.
///
/// # Errors
/// There is no such core, or this process may not use it.
pub fn pin(core: usize) -> Result<()> {
    let failed = |why: String| {
        Error::failed(Step::WarmUp, format!("binding a thread to core {core}: {why}")).with_remedy(
            "`taskset -cp $$` and cpuset.cpus.effective of the cgroup say which cores are allowed",
        )
    };
    if core >= NAMEABLE {
        return Err(failed(format!("cores are numbered 0 to {}", NAMEABLE - 1)));
    }
    if !set_for_current(CoreId { id: core }) {
        return Err(failed(std::io::Error::last_os_error().to_string()));
    }
    Ok(())
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

    /// Eight cores, two hardware threads each (0 and 4, 1 and 5, ...); cores 2, 3, 6, 7 are next to the device.
    fn machine(allowed: &[usize]) -> Cores {
        let dir = tempfile::tempdir().unwrap();
        for core in 0..8 {
            let (low, high) = (core % 4, core % 4 + 4);
            let file = format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
            put(dir.path(), &file, &format!("{low},{high}\n"));
        }
        put(dir.path(), "sys/class/infiniband/mlx5_0/device/local_cpulist", "2-3,6-7\n");
        Cores::read_from(dir.path(), allowed.to_vec(), Some("mlx5_0"))
    }

    #[test]
    fn a_team_takes_cores_one_after_the_other_and_shares_them_when_there_are_no_more() {
        let cores = machine(&[0, 1, 2, 3]);
        assert_eq!(cores.team(None, 3, &[]), [2, 3, 1]);
        assert_eq!(cores.team(Some(1), 3, &[2]), [1, 3, 0]);
        let shared = machine(&[2, 3]).team(None, 4, &[]);
        assert_eq!((&shared[..2], shared.len()), (&[2, 3][..], 4));
    }

    #[test]
    fn who_must_not_disturb_keeps_off_both_ends_or_at_least_off_its_own() {
        let cores = machine(&[0, 1, 2, 3]);
        assert_eq!(cores.apart_from(&[2], &[3]), [0, 1]);
        assert_eq!(cores.apart_from(&[0, 1], &[2, 3]), [2, 3]);
        assert!(cores.apart_from(&[0, 1, 2, 3], &[]).is_empty());
    }

    fn choice(cores: &Cores, taken: &[usize]) -> (usize, Option<bool>, bool, bool) {
        let choice = cores.choose(taken).unwrap();
        (choice.core, choice.local, choice.shared, choice.sibling)
    }

    #[test]
    fn the_first_end_is_next_to_the_device_and_the_second_on_a_core_of_its_own() {
        let all = machine(&[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(choice(&all, &[]), (2, Some(true), false, false));
        assert_eq!(choice(&all, &[2]), (3, Some(true), false, false));
        assert_eq!(choice(&all, &[2, 3]), (1, Some(false), false, false), "rather far than on a sibling");
        assert_eq!(choice(&all, &[0, 1, 2, 3]), (6, Some(true), false, true));
        assert_eq!(
            choice(&machine(&[0, 1]), &[]),
            (1, Some(false), false, false),
            "not core 0 when there is another"
        );
        assert_eq!(choice(&machine(&[0]), &[]), (0, Some(false), false, false));
        assert_eq!(choice(&machine(&[2]), &[2]), (2, Some(true), true, false));
        assert_eq!(choice(&machine(&[2, 6]), &[2]), (6, Some(true), false, true));
        assert_eq!(machine(&[]).choose(&[]), None);
    }

    #[test]
    fn where_nothing_is_known_a_choice_is_made_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        for device in [None, Some("emu0"), Some("../x")] {
            let cores = Cores::read_from(dir.path(), vec![1, 0, 1], device);
            assert_eq!(cores.allowed(), [0, 1]);
            assert_eq!(choice(&cores, &[]), (1, None, false, false));
            assert_eq!(choice(&cores, &[1]), (0, None, false, false));
        }
    }

    #[test]
    fn a_given_core_must_be_allowed() {
        let cores = machine(&[2, 6]);
        assert!(cores.given(6, &[2]).unwrap().sibling);
        let error = cores.given(9, &[]).unwrap_err();
        assert_eq!(
            (error.message.as_str(), error.exit_status()),
            ("core 9 may not be used: allowed are 2,6", 2)
        );
    }

    #[test]
    fn a_pinned_thread_is_on_its_core_and_a_core_that_is_not_there_is_an_error() {
        std::thread::spawn(|| {
            let core = Cores::read(None).unwrap().choose(&[]).unwrap().core;
            pin(core).unwrap();
            assert_eq!(Cores::read(None).unwrap().allowed(), [core]);
            for absent in [1023, 1024, usize::MAX] {
                let error = pin(absent).unwrap_err();
                assert!(
                    error.message.starts_with(&format!("binding a thread to core {absent}: ")),
                    "{error}"
                );
            }
            assert_eq!(Cores::read(None).unwrap().allowed(), [core], "a failure changes nothing");
        })
        .join()
        .unwrap();
    }
}
