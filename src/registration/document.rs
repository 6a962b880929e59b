//! The document `verbmark.registration/1`. Its words are those of `verbmark.result/1` where both have the same.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::host::Machine;
use crate::measure::LatencyHistogram;
use crate::result::{
    Basis, Buffers, ClockFacts, Histogram, Latency, MemoryKind, Missing, Notice, Process, Status, Tool,
    run_id, timestamp,
};

/// Name and version of the format.
pub const SCHEMA: &str = "verbmark.registration/1";

/// Whether the pages of memory are there when it is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pages {
    /// Each was written to before.
    Touched,
    /// None is: who pins them has them made.
    Untouched,
}

/// How a device comes by the pages of registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Paging {
    /// They are pinned when it is registered.
    Pinned,
    /// They are brought in when the device meets them.
    OnDemand,
}

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// `ibv_reg_mr(3)`
    Register,
    /// `ibv_dereg_mr(3)`
    Deregister,
    /// `memcpy(3)` from and to memory that is touched.
    Copy,
}

/// A limit on a stretch of calls; what is `null` does not end it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Extent {
    /// Calls.
    pub samples: Option<u64>,
    /// Time.
    pub seconds: Option<f64>,
}

/// The options as resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestRecord {
    /// Sizes in the order measured.
    pub sizes_bytes: Vec<u64>,
    /// When the measurement of one size and kind of memory ends.
    pub stop: Extent,
    /// When the warm-up before it ends, at whichever comes first.
    pub warm_up: Extent,
    /// States of the pages that were measured.
    pub pages: Vec<Pages>,
    /// Ways of registering that were measured; before a device was opened, those to be tried.
    pub paging: Vec<Paging>,
    /// Kind of pages.
    pub memory: MemoryKind,
}

/// The device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Name, such as `mlx5_0`.
    pub name: String,
    /// Kernel driver.
    pub driver: Option<String>,
    /// User-space provider, such as `mlx5`, `rxe` or `emulated`; `null` when not known.
    pub provider: Option<String>,
    /// Firmware version.
    pub firmware: Option<String>,
    /// A CPU does the device's work; `null` when the provider is not known.
    pub is_software: Option<bool>,
    /// NUMA node the device is attached to.
    pub numa_node: Option<u32>,
    /// GUID of the node.
    pub node_guid: Option<String>,
    /// Bytes that it registers at once.
    pub max_mr_size: u64,
    /// It can do without pinned memory, over some transport service.
    pub on_demand_paging: bool,
}

/// Where it ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Local {
    /// What is known of the machine; its fields stand beside these.
    #[serde(flatten)]
    pub machine: Machine,
    /// Core the thread was pinned to.
    pub core: Option<usize>,
    /// NUMA node of that core.
    pub numa_node: Option<u32>,
    /// What the memory lies in.
    pub buffers: Buffers,
    /// The process.
    pub process: Process,
    /// What time was read from.
    pub clock: ClockFacts,
    /// The RDMA device.
    pub device: Device,
}

/// How long calls took, in ns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // Each is what `result::Latency` has under its name.
pub struct Statistics {
    pub samples: u64,
    pub min: f64,
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
    pub p99_9: Option<f64>,
    pub p99_99: Option<f64>,
    pub max: f64,
    pub mean: f64,
    pub stdev: Option<f64>,
}

impl Statistics {
    /// Of a histogram of whole calls; `None` when it is empty.
    pub fn of(calls: &LatencyHistogram) -> Option<Self> {
        let Latency { basis: _, samples, min, p50, p90, p99, p99_9, p99_99, max, mean, stdev } =
            Latency::from_histogram(calls, Basis::RoundTrip)?;
        Some(Self { samples, min, p50, p90, p99, p99_9, p99_99, max, mean, stdev })
    }
}

/// One call at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultRow {
    /// The same in every run: `register/4096B/touched/pinned`, `copy/4096B`.
    pub id: String,
    /// The call.
    pub operation: Operation,
    /// Bytes.
    pub size_bytes: u64,
    /// State of the pages before the registration; `null` for a copy.
    pub pages: Option<Pages>,
    /// How they were registered; `null` for a copy.
    pub paging: Option<Paging>,
    /// How long it took; `null` when nothing was measured.
    pub latency_ns: Option<Statistics>,
    /// The whole distribution; `null` likewise.
    pub histogram: Option<Histogram>,
}

impl ResultRow {
    /// What was recorded of a call, if anything.
    pub fn new(
        operation: Operation,
        size_bytes: u64,
        memory: Option<(Pages, Paging)>,
        calls: &LatencyHistogram,
    ) -> Self {
        let name = match operation {
            Operation::Register => "register",
            Operation::Deregister => "deregister",
            Operation::Copy => "copy",
        };
        let mut id = format!("{name}/{size_bytes}B");
        if let Some((pages, paging)) = memory {
            id += match pages {
                Pages::Touched => "/touched",
                Pages::Untouched => "/untouched",
            };
            id += match paging {
                Paging::Pinned => "/pinned",
                Paging::OnDemand => "/on_demand",
            };
        }
        let latency_ns = Statistics::of(calls);
        let histogram =
            latency_ns.is_some().then(|| Histogram { of: "call".into(), ..Histogram::from(calls) });
        let (pages, paging) = memory.unzip();
        Self { id, operation, size_bytes, pages, paging, latency_ns, histogram }
    }

    fn cost(&self, metric: Metric) -> Option<f64> {
        let calls = self.latency_ns.as_ref()?;
        match metric {
            Metric::P50 => calls.p50,
            Metric::Mean => Some(calls.mean),
        }
    }
}

/// Which of the statistics of a call stands for its cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The median: what was done to the run from outside does not count.
    P50,
    /// The mean.
    Mean,
}

/// Registering a buffer and ending that, beside copying into one that is registered already.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BreakEven {
    /// Bytes of the buffer, and of each message.
    pub size_bytes: u64,
    /// State of the pages.
    pub pages: Pages,
    /// How they were registered.
    pub paging: Paging,
    /// The three results: their ids.
    pub register: String,
    /// As above.
    pub deregister: String,
    /// As above.
    pub copy: String,
    /// Their medians, or the means of all three where one has too few calls for a median.
    pub metric: Metric,
    /// What a call cost by that.
    pub register_ns: f64,
    /// As above.
    pub deregister_ns: f64,
    /// As above.
    pub copy_ns: f64,
    /// Uses of the buffer after which both have cost the same: with more of them, registering it pays. `null` on an
    /// emulated device.
    pub uses: Option<f64>,
}

impl BreakEven {
    /// Of three results of one size; `None` where one was not measured.
    pub fn of(
        register: &ResultRow,
        deregister: &ResultRow,
        copy: &ResultRow,
        emulated: bool,
    ) -> Option<Self> {
        let costs =
            |metric| Some((metric, register.cost(metric)?, deregister.cost(metric)?, copy.cost(metric)?));
        let (metric, register_ns, deregister_ns, copy_ns) =
            costs(Metric::P50).or_else(|| costs(Metric::Mean))?;
        let uses = (register_ns + deregister_ns) / copy_ns;
        Some(Self {
            size_bytes: register.size_bytes,
            pages: register.pages?,
            paging: register.paging?,
            register: register.id.clone(),
            deregister: deregister.id.clone(),
            copy: copy.id.clone(),
            metric,
            register_ns,
            deregister_ns,
            copy_ns,
            uses: Some(uses).filter(|uses| uses.is_finite() && !emulated),
        })
    }

    /// The first use with which registering has cost less than copying.
    pub fn pays_from(&self) -> Option<u64> {
        self.uses.map(|uses| uses.floor() as u64 + 1)
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: String,
    /// What wrote it.
    pub tool: Tool,
    /// The command line.
    pub command: Vec<String>,
    /// 128 random bits in hexadecimal.
    pub run_id: String,
    /// What the user called the run.
    pub labels: BTreeMap<String, String>,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// How it ended.
    pub status: Status,
    /// Why it ended before its end.
    pub error: Option<Error>,
    /// Values that could not be had.
    pub missing: Vec<Missing>,
    /// What a reader should know before using the numbers.
    pub warnings: Vec<Notice>,
    /// What explains them.
    pub notes: Vec<Notice>,
    /// What was asked for.
    pub test: TestRecord,
    /// On what; `null` until a device was opened.
    pub local: Option<Local>,
    /// What was measured, in order.
    pub results: Vec<ResultRow>,
    /// What follows from that.
    pub break_even: Vec<BreakEven>,
}

impl Document {
    /// A run that starts now.
    pub fn new(test: TestRecord, command: Vec<String>, labels: BTreeMap<String, String>) -> Self {
        Self {
            schema: SCHEMA.into(),
            tool: Tool::new(super::BINARY),
            command,
            run_id: run_id(),
            labels,
            started_at: timestamp(SystemTime::now()),
            status: Status::Ok,
            error: None,
            missing: Vec::new(),
            warnings: Vec::new(),
            notes: Vec::new(),
            test,
            local: None,
            results: Vec::new(),
            break_even: Vec::new(),
        }
    }

    /// Ends the run with an error.
    pub fn fail(&mut self, error: Error) {
        self.status = error.kind.into();
        self.error = Some(error);
    }

    /// Says why a value is `null`.
    pub fn miss(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.missing.push(Missing { path: path.into(), reason: reason.into() });
    }

    /// Warns.
    pub fn warn(&mut self, code: &str, message: impl Into<String>) {
        self.warnings.push(Notice { code: code.into(), message: message.into() });
    }

    /// Explains.
    pub fn note(&mut self, code: &str, message: impl Into<String>) {
        self.notes.push(Notice { code: code.into(), message: message.into() });
    }

    /// Adds a result, and the reason for what it lacks: `unmeasured` where nothing was.
    pub fn add(&mut self, row: ResultRow, unmeasured: Option<&str>) {
        let at = format!("results[{}]", self.results.len());
        match &row.latency_ns {
            Some(calls) => {
                let values = [
                    ("p50", calls.p50),
                    ("p90", calls.p90),
                    ("p99", calls.p99),
                    ("p99_9", calls.p99_9),
                    ("p99_99", calls.p99_99),
                ];
                for (name, _) in values.iter().filter(|(_, value)| value.is_none()) {
                    self.miss(format!("{at}.latency_ns.{name}"), "fewer than 10 samples lie beyond it");
                }
                if calls.stdev.is_none() {
                    self.miss(format!("{at}.latency_ns.stdev"), "one sample does not deviate");
                }
            }
            None => {
                for name in ["latency_ns", "histogram"] {
                    self.miss(format!("{at}.{name}"), unmeasured.unwrap_or("the run ended before"));
                }
            }
        }
        self.results.push(row);
    }

    /// Reads a document of this format; keys it does not know are ignored. `None` for one of another format, or none.
    ///
    /// # Errors
    /// It calls itself one, and a required value is absent.
    pub fn from_json(text: &str) -> Result<Option<Self>, Error> {
        #[derive(Deserialize)]
        struct Named {
            schema: String,
        }
        match serde_json::from_str(text) {
            Ok(Named { schema }) if schema == SCHEMA => serde_json::from_str(text)
                .map(Some)
                .map_err(|cause| Error::usage(format!("not a {SCHEMA} document: {cause}"))),
            _ => Ok(None),
        }
    }

    /// The device lives in this process.
    pub fn is_emulated(&self) -> bool {
        let provider = self.local.as_ref().and_then(|local| local.device.provider.as_deref());
        provider == Some(crate::result::Device::EMULATED)
    }

    /// Exit status of the process that made it.
    pub fn exit_status(&self) -> u8 {
        self.error.as_ref().map_or(0, Error::exit_status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(operation: Operation, calls: &[u64]) -> ResultRow {
        let mut histogram = LatencyHistogram::new();
        histogram.record_all(calls.iter().copied());
        let memory = (operation != Operation::Copy).then_some((Pages::Untouched, Paging::OnDemand));
        ResultRow::new(operation, 4096, memory, &histogram)
    }

    #[test]
    fn both_have_cost_the_same_after_the_break_even() {
        let register = row(Operation::Register, &[900, 1100]);
        let (deregister, copy) = (row(Operation::Deregister, &[500]), row(Operation::Copy, &[400, 200]));
        let of = |emulated| BreakEven::of(&register, &deregister, &copy, emulated).unwrap();
        assert_eq!((of(false).uses, of(false).pays_from()), (Some(5.0), Some(6)));
        assert_eq!((of(true).uses, of(true).copy_ns), (None, 300.0));
        assert_eq!(of(false).register, "register/4096B/untouched/on_demand");
        assert_eq!(of(false).copy, "copy/4096B");
        assert_eq!(BreakEven::of(&register, &row(Operation::Deregister, &[]), &copy, false), None);
    }

    #[test]
    fn medians_count_where_all_three_have_one() {
        // One call was disturbed.
        let calls = |usual: u64| [&[usual; 20][..], &[1_000_000]].concat();
        let [register, deregister, copy] =
            [(Operation::Register, 300), (Operation::Deregister, 100), (Operation::Copy, 50)]
                .map(|(call, usual)| row(call, &calls(usual)));
        let found = BreakEven::of(&register, &deregister, &copy, false).unwrap();
        assert_eq!((found.metric, found.uses), (Metric::P50, Some(8.0)));
        let few = row(Operation::Copy, &[100]);
        assert_eq!(BreakEven::of(&register, &deregister, &few, false).unwrap().metric, Metric::Mean);
    }

    #[test]
    fn registering_each_time_pays_at_once_where_it_costs_less_than_a_copy() {
        let [register, deregister] =
            [Operation::Register, Operation::Deregister].map(|call| row(call, &[100]));
        let found = BreakEven::of(&register, &deregister, &row(Operation::Copy, &[1000]), false);
        assert_eq!(found.unwrap().pays_from(), Some(1));
    }
}
