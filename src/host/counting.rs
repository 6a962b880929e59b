//! What the processor and the kernel count of a thread, as far as the machine allows.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::read;
use crate::sys::perf::{Counter, Event};

/// What was counted of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Instructions retired.
    pub instructions: Option<u64>,
    /// Cycles of the core.
    pub cycles: Option<u64>,
    /// These two are of user space alone: what the kernel did for the thread is not in them.
    pub user_only: bool,
    /// System calls, five of the meter's own among them.
    pub system_calls: Option<u64>,
}

impl Counts {
    /// Those of two threads; what only one of them knows is not known.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let both = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a + b);
        Self {
            instructions: both(self.instructions, other.instructions),
            cycles: both(self.cycles, other.cycles),
            user_only: self.user_only || other.user_only,
            system_calls: both(self.system_calls, other.system_calls),
        }
    }
}

/// Counts of the thread that started it.
#[derive(Debug)]
pub struct Counting {
    instructions: Option<Counter>,
    cycles: Option<Counter>,
    user_only: bool,
    system_calls: Option<Counter>,
}

impl Counting {
    /// Begins, with what the machine allows.
    pub fn start(system_calls: bool) -> Self {
        let (cycles, user_only) = match Counter::open(Event::Cycles, true) {
            Ok(cycles) => (Some(cycles), false),
            Err(_) => (Counter::open(Event::Cycles, false).ok(), true),
        };
        Self {
            instructions: Counter::open(Event::Instructions, !user_only).ok(),
            cycles,
            user_only,
            system_calls: system_calls.then(|| of_system_calls().ok()).flatten(),
        }
    }

    /// Since the start.
    pub fn so_far(&self) -> Counts {
        let read = |counter: &Option<Counter>| counter.as_ref().and_then(Counter::read);
        Counts {
            instructions: read(&self.instructions),
            cycles: read(&self.cycles),
            user_only: self.user_only,
            system_calls: read(&self.system_calls),
        }
    }
}

/// The tracepoint that each system call passes.
fn of_system_calls() -> Result<Counter, String> {
    Counter::open(Event::Tracepoint(tracepoint()?), true).map_err(|error| format!("perf_event_open: {error}"))
}

/// Its number.
fn tracepoint() -> Result<u64, String> {
    const ID: &str = "sys/kernel/tracing/events/raw_syscalls/sys_enter/id";
    let id = read(Path::new("/"), ID)?;
    id.parse().map_err(|_| format!("/{ID} holds '{}'", id.escape_debug()))
}

/// How much of what a thread costs can be told on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuEvidence {
    /// 3: the processor's counts, kernel included. 2: those of user space alone. 1: times, switches and faults by
    /// `getrusage(2)`, and the machine's by `/proc`. 0: nothing but the time that passed.
    pub level: u8,
    /// What stands in the way of more, or that nothing does.
    pub reason: String,
}

impl CpuEvidence {
    /// Tries what this process may count.
    pub fn probe() -> Self {
        let (level, counters) = match Counter::open(Event::Cycles, true) {
            Ok(_) => (3, None),
            Err(kernel) => match Counter::open(Event::Cycles, false) {
                Ok(_) => (2, Some(format!("the kernel's part is not counted: {}", told(&kernel)))),
                Err(user) => (1, Some(format!("instructions and cycles are not counted: {}", told(&user)))),
            },
        };
        let level = if super::CpuMeter::start(false).is_ok() { level } else { 0 };
        // Not opened: that rewrites the kernel's code on all cores, for whoever runs there.
        let calls = tracepoint().err().map(|reason| format!("system calls are not counted: {reason}"));
        let reasons: Vec<String> = counters.into_iter().chain(calls).collect();
        let reason = if reasons.is_empty() { "nothing is in the way".into() } else { reasons.join("; ") };
        Self { level, reason }
    }
}

fn told(error: &std::io::Error) -> String {
    use nix::errno::Errno;
    let paranoid =
        read(Path::new("/"), "proc/sys/kernel/perf_event_paranoid").unwrap_or_else(|_| "unknown".into());
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::EOPNOTSUPP | Errno::ENODEV) => {
            "the machine has no counter of them, as virtual ones often have not (perf_event_open: ".to_owned()
                + &error.to_string()
                + ")"
        }
        Some(Errno::EACCES | Errno::EPERM) => format!(
            "/proc/sys/kernel/perf_event_paranoid is {paranoid}, and this process has not CAP_PERFMON (perf_event_open: {error})"
        ),
        _ => format!("perf_event_open: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_thread_does_not_know_both_do_not() {
        let one = Counts { instructions: Some(5), cycles: Some(7), user_only: false, system_calls: None };
        let other = Counts { instructions: Some(1), cycles: None, user_only: true, system_calls: Some(2) };
        let sum = Counts { instructions: Some(6), cycles: None, user_only: true, system_calls: None };
        assert_eq!(one.and(&other), sum);
    }

    #[test]
    fn the_level_says_what_is_counted() {
        let (evidence, counts) = (CpuEvidence::probe(), Counting::start(true).so_far());
        assert!(!evidence.reason.is_empty());
        match evidence.level {
            3 => assert!(counts.cycles.is_some() && !counts.user_only),
            2 => assert!(counts.cycles.is_some() && counts.user_only),
            level => assert!(level <= 1 && counts.cycles.is_none(), "{evidence:?} {counts:?}"),
        }
        assert!(counts.system_calls.is_none() || !evidence.reason.contains("system calls"), "{evidence:?}");
    }
}
