//! The core that would measure: how fast it runs, how deep it sleeps, and what else runs on it.

use std::path::Path;

use super::record::{Checked, Verdict};
use crate::host::environment::{
    CoreTimes, deepest_idle_state, frequency_driver, governor, has_no_callbacks, is_isolated, is_tickless,
    latency_limit_us, siblings, turbo,
};

/// An idle state whose way out takes longer than this adds visibly to what waits for an event, which takes some us.
const SLOW_EXIT_US: u64 = 10;

/// A sibling that is busier than this disturbs.
const BUSY_SHARE: f64 = 0.02;

pub fn frequency(root: &Path, core: usize) -> Checked {
    let governor = governor(root, core)?;
    let driver = frequency_driver(root, core).unwrap_or_else(|_| "unknown driver".into());
    let seen = format!("{governor} ({driver})");
    Ok(match governor.as_str() {
        "performance" => Verdict::ok(seen),
        _ => Verdict::warning(seen).mended_by("sudo cpupower frequency-set -g performance"),
    })
}

pub fn boost(root: &Path) -> Checked {
    let turbo = turbo(root)?;
    Ok(if turbo.on { Verdict::note("on").mended_by(turbo.off_command) } else { Verdict::ok("off") })
}

/// A limit that somebody asked for keeps idle cores out of the deeper states; that none can be read says nothing.
pub fn idle_states(root: &Path, core: usize) -> Checked {
    let deepest = deepest_idle_state(root, core)?;
    let seen = format!("deepest enabled {}, {} us to leave it", deepest.name, deepest.exit_us);
    let limit = latency_limit_us(root).ok().flatten().map(u64::from);
    Ok(match limit {
        _ if deepest.exit_us <= SLOW_EXIT_US => Verdict::ok(seen),
        Some(limit) if limit <= SLOW_EXIT_US => {
            Verdict::ok(format!("{seen}, kept out by a limit of {limit} us"))
        }
        _ => Verdict::warning(seen).mended_by(format!("sudo cpupower idle-set -D {SLOW_EXIT_US}")),
    })
}

pub fn latency_limit(root: &Path) -> Checked {
    Ok(match latency_limit_us(root)? {
        Some(us) => Verdict::ok(format!("{us} us")),
        None => Verdict::note("none asked for"),
    })
}

/// `spent` is what each of the core's siblings did during the probe, as far as that can be told.
pub fn smt(root: &Path, core: usize, spent: impl Fn(usize) -> Result<CoreTimes, String>) -> Checked {
    let others = siblings(root, core)?;
    let Some(other) = others.first().copied() else { return Ok(Verdict::ok("no other hardware thread")) };
    let list: Vec<String> = others.iter().map(usize::to_string).collect();
    let named = format!("core {}", list.join(", "));
    let shares = others.iter().map(|other| spent(*other).ok()?.busy_share());
    let off = format!("echo 0 | sudo tee /sys/devices/system/cpu/cpu{other}/online");
    Ok(match shares.collect::<Option<Vec<f64>>>().map(|shares| shares.into_iter().fold(0.0, f64::max)) {
        Some(share) if share > BUSY_SHARE => {
            Verdict::warning(format!("{named}, {:.0} % busy", share * 100.0)).mended_by(off)
        }
        Some(_) => Verdict::note(format!("{named}, idle now")).mended_by(off),
        None => Verdict::note(format!("{named}, how busy was not measured")).mended_by(off),
    })
}

pub fn isolated(root: &Path, core: usize) -> Checked {
    Ok(kept_off(is_isolated(root, core)?, "isolcpus", core))
}

pub fn tickless(root: &Path, core: usize) -> Checked {
    Ok(kept_off(is_tickless(root, core)?, "nohz_full", core))
}

pub fn callbacks(root: &Path, core: usize) -> Checked {
    Ok(kept_off(has_no_callbacks(root, core)?, "rcu_nocbs", core))
}

fn kept_off(is: bool, option: &str, core: usize) -> Verdict {
    if is {
        return Verdict::ok(format!("core {core} is in {option}"));
    }
    let remedy = format!("boot with {option}={core} on the kernel's command line");
    Verdict::note(format!("core {core} is not in {option}")).mended_by(remedy)
}

/// What the hypervisor took of the core during the probe.
pub fn steal(spent: Result<CoreTimes, String>) -> Checked {
    let spent = spent?;
    if spent.total_ns == 0 {
        return Err("no time passed between two readings".into());
    }
    let share = spent.steal_ns as f64 / spent.total_ns as f64;
    let seen = format!("{:.1} % of the probe's time", share * 100.0);
    Ok(if spent.steal_ns == 0 { Verdict::ok(seen) } else { Verdict::warning(seen) })
}
