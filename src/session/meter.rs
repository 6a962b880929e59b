//! What a phase costs one end, and what it moves in the device.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::lane::Lane;
use crate::host::{self, CpuMeter, DeviceCounters, MachineMeter};
use crate::plan::{Transport, Wait};
use crate::result::{COPIED, CpuUse, LENT, idle_of_polling, idle_of_sleeping};
use crate::transport::Tally;

/// Measures what a phase costs this end's thread and moves in its device.
pub struct Meter {
    started: Instant,
    cpu: std::result::Result<CpuMeter, String>,
    /// How many there were before.
    troubles: usize,
    counters: Option<DeviceCounters>,
    machine: Option<MachineMeter>,
}

/// What a phase cost.
#[derive(Debug, Default)]
pub struct Cost {
    /// Of the measuring thread.
    pub cpu: Option<CpuUse>,
    /// Of the device.
    pub counters: Option<BTreeMap<String, u64>>,
    /// What disturbed it.
    pub disturbances: Vec<String>,
}

/// Steal that is worth a word: the hypervisor counts in ticks of 10 ms.
const STOLEN_NS: u64 = 10_000_000;

/// Shortest phase that the machine's ticks, 10 ms apart, say something of, in seconds.
const TICKS_S: f64 = 0.1;

/// Shortest use of a core whose split in user and system time means something, with timer ticks 10 ms apart.
const SPLIT_FROM_NS: u64 = 100_000_000;

impl Meter {
    /// Starts.
    pub fn start(lane: &Lane, transport: Transport) -> Self {
        let (counters, troubles) = (lane.counters(transport), lane.troubles().len());
        let reports = lane.test.cpu_report;
        let machine = if reports { MachineMeter::start().ok() } else { None };
        Self { counters, troubles, machine, started: Instant::now(), cpu: CpuMeter::start(reports) }
    }

    /// Stops, for a phase of `messages` messages that this thread has measured.
    pub fn stop(self, lane: &Lane, transport: Transport, messages: u64, tally: Tally) -> Cost {
        let used = self.cpu.as_ref().ok().and_then(|meter| meter.stop().ok());
        self.stop_with(lane, transport, messages, tally, used)
    }

    /// Stops, for a phase that other threads have measured, which `used` so much in all.
    pub fn stop_with(
        self,
        lane: &Lane,
        transport: Transport,
        messages: u64,
        tally: Tally,
        used: Option<host::CpuUse>,
    ) -> Cost {
        let passed = self.started.elapsed();
        let machine = self.machine.as_ref().and_then(|meter| meter.stop().ok());
        let machine = machine.filter(|machine| machine.window_s >= TICKS_S);
        let mut cost = Cost::default();
        if let Some(used) = &used {
            if used.migrated {
                cost.disturbances.push("the measuring thread was moved to another core".into());
            }
            if let Some(stolen) = used.steal_ns.filter(|ns| *ns >= STOLEN_NS) {
                cost.disturbances.push(format!("the hypervisor took the core for {} ms", stolen / 1_000_000));
            }
        }
        cost.disturbances.extend(lane.troubles().split_off(self.troubles));
        cost.cpu = used.map(|used| {
            // A short phase ends between two updates of the split, or the split disagrees with the exact total.
            let is_split = used.total_ns >= SPLIT_FROM_NS && used.user_ns + used.system_ns > 0;
            CpuUse {
                cpu_ns: Some(used.total_ns),
                user_ns: Some(used.user_ns).filter(|_| is_split),
                system_ns: Some(used.system_ns).filter(|_| is_split),
                voluntary_switches: Some(used.voluntary_switches),
                involuntary_switches: Some(used.involuntary_switches),
                page_faults: Some(used.minor_faults + used.major_faults),
                empty_polls: Some(tally.empty_polls),
                idle_share: idle_share(lane, transport, tally, Duration::from_nanos(used.total_ns), passed),
                instructions: used.counts.instructions,
                cycles: used.counts.cycles,
                counts_user_only: used.counts.cycles.map(|_| used.counts.user_only),
                system_calls: used.counts.system_calls,
                machine,
                ..CpuUse::default()
            }
            .per_message(messages)
        });
        cost.counters =
            self.counters.zip(lane.counters(transport)).map(|(before, after)| host::delta(&before, &after).0);
        if tally.lent > 0 {
            let lent = [(LENT.to_owned(), tally.lent), (COPIED.to_owned(), tally.copied)];
            cost.counters.get_or_insert_default().extend(lent);
        }
        cost
    }
}

/// The share of a phase that this end waited in vain, of all its threads together. Where two ends
/// share a core, a poll takes as long as the other end likes.
fn idle_share(
    lane: &Lane,
    transport: Transport,
    tally: Tally,
    on_core: Duration,
    passed: Duration,
) -> Option<f64> {
    match lane.test.wait {
        _ if lane.shares_core => None,
        Wait::Busy => idle_of_polling(tally.empty_polls, lane.poll_costs.of(transport)?, on_core),
        Wait::Events => idle_of_sleeping(on_core, passed * lane.test.threads),
    }
}
