//! A recorded run as a comparison needs it: what it was measured on, and a few numbers a point. What else a document holds,
//! its histograms before all, is skipped while it is read.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_json::Value;

use crate::gate::Class;
use crate::result::{
    Bandwidth, Basis, Buffers, Device, Point, Process, Quantity, SCHEMA, Shape, Side, Status, TcpEnd,
    TestRecord, Tool, Transport,
};

/// The label by which a gate names the test of a suite that a run is of: two tests may have the same options.
pub const TEST_LABEL: &str = "gate.test";

/// Why a document is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It is a document of this suite, but no result: its schema.
    OtherSchema(String),
    /// It is not what it should be: cause.
    Broken(String),
    /// It is a result that must not be trusted: why.
    Untrusted(String),
}

/// One run.
#[derive(Debug, Clone, Deserialize)]
pub struct Recorded {
    schema: String,
    /// What wrote it.
    pub tool: Tool,
    /// What tells it from other runs.
    pub run_id: String,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// What a user wrote on it.
    pub labels: BTreeMap<String, String>,
    status: Status,
    error: Option<Cause>,
    /// The options.
    pub test: Option<TestRecord>,
    /// The end that wrote it.
    pub local: Option<RecordedEnd>,
    /// The other one.
    pub remote: Option<RecordedEnd>,
    /// Both ends ran on one host.
    pub same_host: Option<bool>,
    /// What was measured.
    pub results: Vec<RecordedRow>,
}

#[derive(Debug, Clone, Deserialize)]
struct Cause {
    message: String,
}

/// What an end ran on; the names are those of the document.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[allow(missing_docs)]
pub struct RecordedEnd {
    pub side: Side,
    pub host: Option<String>,
    pub kernel: Option<String>,
    pub os: Option<String>,
    pub cpu_model: Option<String>,
    pub governor: Option<String>,
    pub clocksource: Option<String>,
    pub hypervisor: Option<bool>,
    pub core: Option<usize>,
    pub numa_node: Option<u32>,
    #[serde(default)]
    pub fingerprint: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    pub buffers: Option<Buffers>,
    pub process: Process,
    pub clock: Option<RecordedClock>,
    pub device: Option<Device>,
    pub tcp: Option<TcpEnd>,
}

/// What time was read from.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[allow(missing_docs)]
pub struct RecordedClock {
    pub reading_ns: Option<f64>,
}

/// One point over one path.
#[derive(Debug, Clone, Deserialize)]
pub struct RecordedRow {
    /// Its name in every run.
    pub id: String,
    /// The path.
    pub transport: Transport,
    /// What was varied.
    pub point: Point,
    size_bytes: u64,
    messages: u64,
    latency_ns: Option<RecordedLatency>,
    histogram: Option<Of>,
    bandwidth: Option<Bandwidth>,
    cpu: Ends,
    validity: Valid,
}

#[derive(Debug, Clone, Deserialize)]
struct RecordedLatency {
    basis: Basis,
    samples: u64,
    min: f64,
    p50: Option<f64>,
    p99: Option<f64>,
    p99_9: Option<f64>,
    max: f64,
}

#[derive(Debug, Clone, Deserialize)]
struct Of {
    unit: String,
    of: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Ends {
    client: Option<Spent>,
    server: Option<Spent>,
}

#[derive(Debug, Clone, Deserialize)]
struct Spent {
    ns_per_message: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
struct Valid {
    ok: bool,
    reasons: Vec<String>,
}

/// How far a percentile of a histogram may lie beyond its exact neighbours, and a rate beside its own product.
const BLUR: f64 = 0.002;

/// Values that a clock and a counter can give, in any of the units. Their ratios are numbers, too.
const POSSIBLE: RangeInclusive<f64> = 1e-9..=1e18;

impl Recorded {
    /// Reads a document, and looks whether its numbers can be what was measured.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn read(json: &[u8]) -> Result<Self, Refusal> {
        let recorded: Self = match serde_json::from_slice(json) {
            Ok(recorded) => recorded,
            Err(error) => return Err(not_a_result(json, &error)),
        };
        if recorded.schema != SCHEMA {
            return Err(other_schema(&recorded.schema));
        }
        recorded.check()?;
        Ok(recorded)
    }

    fn check(&self) -> Result<(), Refusal> {
        let untrusted = |why: String| Err(Refusal::Untrusted(why));
        if self.status != Status::Ok {
            let status = format!("{:?}", self.status).to_lowercase();
            let cause = self.error.as_ref().map(|error| format!(": {}", error.message)).unwrap_or_default();
            return untrusted(format!("its status is {status}{cause}"));
        }
        let Some(test) = &self.test else {
            return untrusted("it has no test, and so measured nothing".into());
        };
        if self.results.is_empty() {
            return untrusted("it has no results".into());
        }
        let ends = [Side::Client, Side::Server].map(|side| self.end(side));
        let has_devices = ends.iter().all(|end| end.is_some_and(|end| end.device.is_some()));
        if ends.contains(&None) {
            return untrusted("it does not tell both ends".into());
        }
        if !has_devices && self.results.iter().any(|row| row.transport == Transport::Rdma) {
            return untrusted("it has an RDMA result and not both devices".into());
        }
        let mut ids = HashSet::new();
        for row in &self.results {
            if !ids.insert(row.id.as_str()) {
                return Err(Refusal::Broken(format!("it has {} twice", row.id)));
            }
            row.check(test.shape)?;
        }
        Ok(())
    }

    /// The end that had this part.
    pub fn end(&self, side: Side) -> Option<&RecordedEnd> {
        [&self.local, &self.remote].into_iter().flatten().find(|end| end.side == side)
    }

    /// Which part of a round trip its latencies are; `None` in a bandwidth test.
    pub fn basis(&self) -> Option<Basis> {
        self.results.first()?.latency_ns.as_ref().map(|latency| latency.basis)
    }
}

impl RecordedRow {
    fn check(&self, shape: Shape) -> Result<(), Refusal> {
        let id = &self.id;
        if *id != self.point.id(self.transport) || self.size_bytes != self.point.size_bytes {
            return Err(Refusal::Broken(format!("the id {id} is not that of its point")));
        }
        let untrusted = |why: &str| Err(Refusal::Untrusted(format!("{id}: {why}")));
        if !self.validity.ok {
            return untrusted(&format!("invalid: {}", self.validity.reasons.join("; ")));
        }
        if self.messages == 0 || self.latency_ns.as_ref().is_some_and(|latency| latency.samples == 0) {
            return untrusted("nothing was measured");
        }
        match (shape, &self.latency_ns, &self.bandwidth) {
            (Shape::Latency, Some(latency), None) => {
                let of = self.histogram.as_ref().map(|of| (of.unit.as_str(), of.of.as_str()));
                if of.is_some_and(|of| of != ("ns", "round_trip")) {
                    return Err(Refusal::Broken(format!("{id}: its histogram is not of round trips in ns")));
                }
                if !latency.is_ordered() {
                    return untrusted("its percentiles are not in order");
                }
            }
            (Shape::Bandwidth, None, Some(rate)) => {
                let product = rate.messages_per_s.map(|rate| rate * self.size_bytes as f64);
                let off = rate.bytes_per_s.zip(product).map(|(bytes, product)| (bytes / product - 1.0).abs());
                if off.is_some_and(|off| off > BLUR) {
                    return untrusted("bytes_per_s is not messages_per_s of its size");
                }
            }
            (Shape::Latency, ..) => return untrusted("a latency test without a latency"),
            (Shape::Bandwidth, ..) => return untrusted("a bandwidth test without a bandwidth"),
        }
        for (quantity, value) in self.values() {
            let is_possible = POSSIBLE.contains(&value) || value == 0.0 && quantity.class() == Class::Cost;
            if !is_possible {
                let name = quantity.name();
                return untrusted(&format!("{name} is {value}, which nothing can measure"));
            }
        }
        Ok(())
    }

    /// What is compared of it, as far as it has it, in the unit of documents.
    pub fn values(&self) -> impl Iterator<Item = (Quantity, f64)> {
        let latency = self.latency_ns.as_ref();
        let bandwidth = self.bandwidth.as_ref();
        let cpu = |end: &Option<Spent>| end.as_ref().and_then(|end| end.ns_per_message);
        [
            (Quantity::P50, latency.and_then(|latency| latency.p50)),
            (Quantity::P99, latency.and_then(|latency| latency.p99)),
            (Quantity::P99_9, latency.and_then(|latency| latency.p99_9)),
            (Quantity::Bandwidth, bandwidth.and_then(|bandwidth| bandwidth.bytes_per_s)),
            (Quantity::Rate, bandwidth.and_then(|bandwidth| bandwidth.messages_per_s)),
            (Quantity::CpuClient, cpu(&self.cpu.client)),
            (Quantity::CpuServer, cpu(&self.cpu.server)),
        ]
        .into_iter()
        .filter_map(|(quantity, value)| Some((quantity, value?)))
    }
}

impl RecordedLatency {
    fn is_ordered(&self) -> bool {
        let known = [Some(self.min), self.p50, self.p99, self.p99_9, Some(self.max)];
        let known: Vec<f64> = known.into_iter().flatten().collect();
        known.windows(2).all(|pair| pair[0] <= pair[1] * (1.0 + BLUR))
    }
}

/// A document whose type says what is wrong with it.
#[derive(Deserialize)]
struct Named {
    schema: Option<String>,
}

fn not_a_result(json: &[u8], error: &serde_json::Error) -> Refusal {
    match serde_json::from_slice(json) {
        Ok(Named { schema: Some(schema) }) if schema == SCHEMA => {
            Refusal::Broken(format!("not a {SCHEMA} document: {error}"))
        }
        Ok(Named { schema: Some(schema) }) => other_schema(&schema),
        Ok(Named { schema: None }) => Refusal::Broken("it names no schema".into()),
        Err(error) => Refusal::Broken(format!("not JSON: {error}")),
    }
}

/// Of this suite, or not.
fn other_schema(schema: &str) -> Refusal {
    match schema.strip_prefix("verbmark.").and_then(|rest| rest.split_once('/')) {
        Some((kind, _)) if kind != "result" => Refusal::OtherSchema(schema.into()),
        _ => Refusal::Broken(format!("its schema is '{schema}', and {SCHEMA} is read")),
    }
}
