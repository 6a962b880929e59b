//! What a phase cost the CPUs of both ends.

use serde::{Deserialize, Serialize};

use crate::host::MachineCpu;
use crate::plan::Side;

/// CPU spent in the phase, by end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// The client's measuring threads; `null` when not known.
    pub client: Option<CpuUse>,
    /// The server's.
    pub server: Option<CpuUse>,
}

impl Cpu {
    /// Of one end.
    pub fn of(&self, side: Side) -> Option<&CpuUse> {
        match side {
            Side::Client => self.client.as_ref(),
            Side::Server => self.server.as_ref(),
        }
    }
}

/// What the measuring threads of one end used. Work the kernel does elsewhere for them (soft interrupts, kernel
/// threads) is in `machine` alone.
///
/// The phase is the measured window, and what cannot be told from it at this end: the warm-up at the server, and in a
/// bandwidth test the warm-up and the end of the stream at both. What is given by message and by byte is divided by the
/// messages of the same phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// On a core.
    pub cpu_ns: Option<u64>,
    /// Of it in user mode; `null` when too short for the kernel to tell.
    pub user_ns: Option<u64>,
    /// Of it in the kernel; likewise.
    pub system_ns: Option<u64>,
    /// `cpu_ns` divided by the messages of the phase. A thread that polls is busy all the time, so this then counts
    /// waiting too.
    pub ns_per_message: Option<f64>,
    /// `user_ns` so divided.
    #[serde(default)]
    pub user_ns_per_message: Option<f64>,
    /// `system_ns` so divided.
    #[serde(default)]
    pub system_ns_per_message: Option<f64>,
    /// `ns_per_message` divided by the size of a message.
    #[serde(default)]
    pub ns_per_byte: Option<f64>,
    /// Of it in user mode.
    #[serde(default)]
    pub user_ns_per_byte: Option<f64>,
    /// Of it in the kernel.
    #[serde(default)]
    pub system_ns_per_byte: Option<f64>,
    /// Times it gave its core away.
    pub voluntary_switches: Option<u64>,
    /// Times its core was taken.
    pub involuntary_switches: Option<u64>,
    /// Page faults, minor and major.
    pub page_faults: Option<u64>,
    /// Polls that found nothing.
    pub empty_polls: Option<u64>,
    /// Share of its time that it waited in vain, 0 to 1: polling, what its empty polls cost of its time on the core,
    /// which is the share that it spun; sleeping, its time off the core.
    #[serde(default)]
    pub idle_share: Option<f64>,
    /// Instructions retired.
    #[serde(default)]
    pub instructions: Option<u64>,
    /// Cycles of its core.
    #[serde(default)]
    pub cycles: Option<u64>,
    /// Those two are of user space alone: they say nothing of what the kernel does for TCP. `null` without them.
    #[serde(default)]
    pub counts_user_only: Option<bool>,
    /// System calls, some five of the meter's own among them; with `--cpu-report` alone.
    #[serde(default)]
    pub system_calls: Option<u64>,
    /// What all cores of its machine did meanwhile; with `--cpu-report` alone.
    #[serde(default)]
    pub machine: Option<MachineCpu>,
}

impl CpuUse {
    /// Sets what is given by message; stays `None` when the time is unknown or nothing was measured.
    #[must_use]
    pub fn per_message(self, messages: u64) -> Self {
        let divided = |ns: Option<u64>| ns.filter(|_| messages > 0).map(|ns| ns as f64 / messages as f64);
        Self {
            ns_per_message: divided(self.cpu_ns),
            user_ns_per_message: divided(self.user_ns),
            system_ns_per_message: divided(self.system_ns),
            ..self
        }
    }

    /// The messages that time was divided by; `None` where nothing was.
    pub fn messages(&self) -> Option<f64> {
        Some(self.cpu_ns? as f64 / self.ns_per_message.filter(|ns| *ns > 0.0)?)
    }

    /// A count of the phase by the same messages; `None` where either is not known.
    pub fn each(&self, count: Option<u64>) -> Option<f64> {
        Some(count? as f64 / self.messages()?)
    }

    /// Sets what is given by byte from what is given by message.
    #[must_use]
    pub fn per_byte(self, size_bytes: u64) -> Self {
        let divided = |ns: Option<f64>| ns.filter(|_| size_bytes > 0).map(|ns| ns / size_bytes as f64);
        Self {
            ns_per_byte: divided(self.ns_per_message),
            user_ns_per_byte: divided(self.user_ns_per_message),
            system_ns_per_byte: divided(self.system_ns_per_message),
            ..self
        }
    }

    /// What every phase should have: its name, whether this one has it, and why not.
    pub(super) fn absent(&self) -> [(&'static str, bool, &'static str); 4] {
        const SHORT: &str = "the phase was too short for the kernel to split it";
        const UNCOUNTED: &str = "the `evidence` of that end says why";
        [
            ("user_ns", self.user_ns.is_some(), SHORT),
            ("system_ns", self.system_ns.is_some(), SHORT),
            ("instructions", self.instructions.is_some(), UNCOUNTED),
            ("cycles", self.cycles.is_some(), UNCOUNTED),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_per_message_needs_a_time_and_a_message() {
        let used = CpuUse { cpu_ns: Some(1000), system_ns: Some(500), ..CpuUse::default() };
        let divided = used.per_message(10).per_byte(50);
        assert_eq!((divided.ns_per_message, divided.ns_per_byte), (Some(100.0), Some(2.0)));
        assert_eq!((divided.system_ns_per_message, divided.system_ns_per_byte), (Some(50.0), Some(1.0)));
        assert_eq!((divided.user_ns_per_message, divided.user_ns_per_byte), (None, None));
        assert_eq!(used.per_message(0).ns_per_message, None);
        assert_eq!(CpuUse { cpu_ns: None, ..used }.per_message(10).per_byte(50).ns_per_byte, None);
    }
}
