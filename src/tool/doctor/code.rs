//! What is looked at, and what each does to results.

use serde::{Deserialize, Serialize};

/// One thing that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // reason: each says in `effect` what it is about
pub enum Code {
    Jitter,
    Governor,
    Turbo,
    IdleStates,
    LatencyLimit,
    Smt,
    Isolated,
    NohzFull,
    RcuNocbs,
    Numa,
    IrqsOnCore,
    Irqbalance,
    Clocksource,
    Tsc,
    HugePages,
    Hypervisor,
    Steal,
    Load,
    CpuPressure,
    Memlock,
    PerfEvents,
    Device,
    Link,
    Mtu,
    Pcie,
    Congestion,
    Ecn,
    Pfc,
    Route,
    RdmaOnRoute,
    Server,
    Peer,
}

impl Code {
    /// Its name, as in the document.
    pub fn name(self) -> String {
        // A unit variant is written as its name, in quotes.
        serde_json::to_string(&self).unwrap_or_default().trim_matches('"').to_owned()
    }

    /// What it does to results, in one line.
    pub fn effect(self) -> &'static str {
        match self {
            Self::Jitter => {
                "each long gap is a late message on this core: p99.9 and the maximum show it first"
            }
            Self::Governor => {
                "a core that changes its frequency starts slow, and results depend on what ran before"
            }
            Self::Turbo => "the frequency follows heat and the number of busy cores: runs differ by that",
            Self::IdleStates => "a core that sleeps until an event (-e) wakes up so much later",
            Self::LatencyLimit => "without a limit, idle cores enter their deepest state",
            Self::Smt => {
                "whatever runs on the other hardware thread takes execution units from the measuring one"
            }
            Self::Isolated => "the scheduler may put other threads on the measuring core",
            Self::NohzFull => "the timer tick interrupts the measuring core 100 to 1,000 times a second",
            Self::RcuNocbs => "the kernel runs deferred callbacks on the measuring core",
            Self::Numa => {
                "each access across sockets adds some 100 ns, and bandwidth is shared with what else crosses"
            }
            Self::IrqsOnCore => {
                "interrupts of the device, its TCP traffic's too, take the core from the measuring thread"
            }
            Self::Irqbalance => "interrupts move to another core in the middle of a run",
            Self::Clocksource => {
                "reading the time takes a system call or a slow device: up to 1 us in each sample"
            }
            Self::Tsc => "a counter that may stop is not used: each reading of the time takes a call instead",
            Self::HugePages => {
                "the kernel merges pages in the background, and stalls who touches them meanwhile"
            }
            Self::Hypervisor => "the host may take a core at any time, and devices may be emulated or shared",
            Self::Steal => "the hypervisor ran something else while this core had work: long tails",
            Self::Load => "other threads compete for cores, caches and memory",
            Self::CpuPressure => "some threads had to wait for a core",
            Self::Memlock => "memory beyond the limit cannot be registered: large sizes and deep queues fail",
            Self::PerfEvents => {
                "instructions and cycles are counted without the kernel's part, or not at all"
            }
            Self::Device => {
                "a software device takes a CPU for what an adapter does; without any, TCP alone is measured"
            }
            Self::Link => "a link that is down carries nothing, a slow one bounds bandwidth",
            Self::Mtu => "smaller packets mean more headers and more work a byte: less bandwidth",
            Self::Pcie => "the link to the machine bounds bandwidth, and adds latency where it is degraded",
            Self::Congestion => "somebody slowed down, waited or sent again: bandwidth falls and tails grow",
            Self::Ecn => {
                "without congestion notification RoCE has flow control alone, or loses packets under load"
            }
            Self::Pfc => {
                "without priority flow control RoCE loses packets under load unless the network is idle"
            }
            Self::Route => "TCP goes this way, and RDMA is compared with it",
            Self::RdmaOnRoute => "RDMA and TCP go over different links unless an RDMA port is on the way",
            Self::Server => "a test needs a server there",
            Self::Peer => "what disturbs the other machine is in the results as well",
        }
    }
}
