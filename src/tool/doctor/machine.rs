//! The machine as a whole: clock, memory, interrupts, and what else runs.

use std::path::Path;

use super::record::{Checked, Verdict};
use crate::host::MemoryLock;
use crate::host::environment::{
    balancer, clocksource, clocksources, cpu_pressure, huge_page_mode, is_guest, is_steady, load,
    may_exceed_memlock, memlock, online_cores, perf_event_paranoid,
};
use crate::units::format_size;

/// Percent of ten seconds with a thread waiting: below it is what the look itself causes.
const PRESSURE: f64 = 1.0;

/// A limit of locked memory that leaves room for what tests register: 8 MiB messages, and some of them.
const ROOM: u64 = 64 << 20;

pub fn interrupt_balancer(root: &Path) -> Checked {
    Ok(match balancer(root)? {
        Some(pid) => {
            Verdict::note(format!("irqbalance runs, pid {pid}")).mended_by("sudo systemctl stop irqbalance")
        }
        None => Verdict::ok("no irqbalance"),
    })
}

pub fn clock(root: &Path) -> Checked {
    const SWITCH: &str =
        "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = clocksource(root)?;
    Ok(match source.as_str() {
        "tsc" | "arch_sys_counter" | "kvm-clock" | "hyperv_clocksource_tsc_page" => Verdict::ok(source),
        _ if clocksources(root).is_ok_and(|all| all.iter().any(|one| one == "tsc")) => {
            Verdict::warning(source).mended_by(SWITCH)
        }
        _ => Verdict::warning(source)
            .mended_by("sudo dmesg | grep -i tsc    # why the kernel does not trust it"),
    })
}

pub fn counter(root: &Path) -> Checked {
    let steady = is_steady(root)?;
    Ok(if steady { Verdict::ok("invariant") } else { Verdict::note("not invariant") })
}

pub fn huge_pages(root: &Path) -> Checked {
    const ON_REQUEST: &str = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled";
    let mode = huge_page_mode(root)?;
    Ok(if mode == "always" { Verdict::note(mode).mended_by(ON_REQUEST) } else { Verdict::ok(mode) })
}

pub fn hypervisor(root: &Path) -> Checked {
    Ok(if is_guest(root)? { Verdict::note("a virtual machine") } else { Verdict::ok("none") })
}

pub fn running(root: &Path) -> Checked {
    let (load, cores) = (load(root)?, online_cores(root)?.len());
    let seen = format!("{} over a minute on {cores} cores", load.one_minute);
    let share = load.one_minute / cores as f64;
    Ok(if share >= 0.5 {
        Verdict::warning(seen).mended_by("top -d 1    # who it is")
    } else if share >= 0.1 {
        Verdict::note(seen)
    } else {
        Verdict::ok(seen)
    })
}

pub fn pressure(root: &Path) -> Checked {
    let share = cpu_pressure(root)?;
    let seen = format!("{share} % of ten seconds");
    Ok(if share >= PRESSURE { Verdict::warning(seen) } else { Verdict::ok(seen) })
}

pub fn locked_memory(root: &Path) -> Checked {
    let bytes = match memlock(root)? {
        MemoryLock::Unlimited(_) => return Ok(Verdict::ok("unlimited")),
        MemoryLock::Bytes(bytes) => bytes,
    };
    let seen = format_size(bytes);
    Ok(if may_exceed_memlock(root)? {
        Verdict::ok(format!("{seen}, which does not bind this process"))
    } else if bytes >= ROOM {
        Verdict::ok(seen)
    } else {
        Verdict::warning(seen).mended_by("sudo prlimit --memlock=unlimited --pid $$")
    })
}

pub fn counting(root: &Path) -> Checked {
    let level = perf_event_paranoid(root)?;
    let seen = format!("perf_event_paranoid {level}");
    Ok(if level <= 1 {
        Verdict::ok(seen)
    } else {
        Verdict::note(seen).mended_by("sudo sysctl kernel.perf_event_paranoid=1")
    })
}
