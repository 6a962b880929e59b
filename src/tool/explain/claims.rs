//! What may be said of zero copy and kernel bypass between two ends: each claim stands on numbers of this run, or is
//! withheld with the reason.

use serde::{Deserialize, Serialize};

use super::record::Explanation;
use super::slope::{FLAT_BELOW, Slope};
use crate::plan::{Side, Transport, Wait};
use crate::report::numbers::significant;
use crate::result::{Document, MachineCpu, ResultRow};
use crate::tool::audit::{Audit, SystemCalls};
use crate::units::format_size;

/// System calls that do something, or times that a thread gave its core away, a message, below which the kernel has no part in one.
const NO_PART: f64 = 0.01;

/// Share of the CPU that TCP takes, below which an end has no part in a message.
const IDLE_SHARE: f64 = 0.01;

const EMULATED: &str = "an emulated device measures this tool, not a network";

/// Whether a claim stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The evidence shows it.
    Shown,
    /// It does not, or there is none.
    Withheld,
}

/// Something that people say of RDMA and TCP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Name that programs may match, such as `kernel_bypass`.
    pub name: String,
    /// The claim, one line.
    pub claim: String,
    /// Whether this run shows it.
    pub verdict: Verdict,
    /// Why it is withheld; `null` when it is shown.
    pub reason: Option<String>,
    /// The numbers, one a line, with what they come from.
    pub evidence: Vec<String>,
}

impl Claim {
    fn new(name: &str, claim: &str, evidence: Vec<String>, obstacle: Option<String>) -> Self {
        let verdict = if obstacle.is_some() { Verdict::Withheld } else { Verdict::Shown };
        Self { name: name.into(), claim: claim.into(), verdict, reason: obstacle, evidence }
    }
}

/// All claims, in the order in which they are explained.
pub fn claims(told: &Explanation) -> Vec<Claim> {
    if told.scenes.is_empty() {
        return Vec::new();
    }
    vec![
        kernel_bypass(told),
        zero_copy(told),
        tcp_copies(told),
        one_sided(told),
        lower_latency(told),
        polling(told, Transport::Rdma),
        polling(told, Transport::Tcp),
    ]
}

/// Why nothing may be claimed of hardware; `None` when both ends are known to be that.
fn no_hardware(told: &Explanation) -> Option<String> {
    let document = told.runs("latency").next()?;
    let ends = [&document.local, &document.remote];
    let mut devices = ends.into_iter().map(|end| end.as_ref().and_then(|end| end.device.as_ref()));
    let all = devices.all(|device| device.is_some_and(|device| device.is_software == Some(false)));
    (!all).then(|| document.claims.reason.clone())
}

fn is_emulated(told: &Explanation) -> bool {
    told.scenes.iter().any(|scene| scene.document.is_emulated())
}

fn row(document: &Document, transport: Transport, wait: Wait, size: u64) -> Option<&ResultRow> {
    let mut rows = document.results.iter();
    rows.find(|row| row.transport == transport && row.point.wait == wait && row.size_bytes == size)
}

fn number(value: f64) -> String {
    significant(Some(value), 12)
}

/// The traced run that waited so, and its calls at an end.
fn calls(told: &Explanation, transport: Transport, wait: Wait, side: Side) -> Option<&SystemCalls> {
    let waits = |audit: &&Audit| audit.test.as_ref().is_some_and(|test| test.wait == wait);
    let audit = told.audits.iter().find(waits)?;
    let run = audit.runs.iter().find(|run| run.transport == transport)?;
    match side {
        Side::Client => run.client.system_calls.as_ref(),
        Side::Server => run.server.system_calls.as_ref(),
    }
}

/// System calls a message of an end, but for those that found nothing: traced, or all of them as the kernel's tracepoint
/// counted in the run that was measured. A polling end looks around now and then, and more often where a tracer slows it.
fn calls_per_message(told: &Explanation, transport: Transport, side: Side) -> Option<(f64, &'static str)> {
    if let Some(calls) = calls(told, transport, Wait::Busy, side) {
        return Some((
            calls.per_message - calls.found_nothing_per_message,
            "audit, without those that found nothing",
        ));
    }
    let row = row(told.runs("latency").next()?, transport, Wait::Busy, 64)?;
    let used = row.cpu.of(side)?;
    Some((used.each(used.system_calls)?, "tracepoint"))
}

fn kernel_bypass(told: &Explanation) -> Claim {
    let mut evidence = Vec::new();
    let mut obstacle = no_hardware(told);
    let mut hinder = |reason: String| obstacle = obstacle.take().or(Some(reason));
    for transport in [Transport::Rdma, Transport::Tcp] {
        for side in [Side::Client, Side::Server] {
            let end = side.name();
            let path = transport.name();
            match calls_per_message(told, transport, side) {
                Some((calls, source)) => {
                    evidence
                        .push(format!("{path}, {end}: {} system calls a message ({source})", number(calls)));
                    if transport == Transport::Rdma && calls >= NO_PART {
                        hinder(format!("the {end} makes {} system calls a message", number(calls)));
                    }
                }
                None if transport == Transport::Rdma => {
                    hinder(format!("the {end}'s system calls were not counted: run `verbmark audit` there"));
                }
                None => {}
            }
        }
    }
    let polled = told.runs("latency").next().and_then(|run| row(run, Transport::Rdma, Wait::Busy, 64));
    for side in [Side::Client, Side::Server] {
        let end = side.name();
        let switches =
            polled.and_then(|row| row.cpu.of(side)).and_then(|used| used.each(used.voluntary_switches));
        if let Some(switches) = switches {
            evidence.push(format!("rdma, {end}: its core given away {} times a message", number(switches)));
            if switches >= NO_PART {
                hinder(format!("the {end} gives its core away while it waits"));
            }
        }
    }
    Claim::new("kernel_bypass", "RDMA's data path makes no system call", evidence, obstacle)
}

fn zero_copy(told: &Explanation) -> Claim {
    let slopes: Vec<&Slope> = told.slopes.iter().filter(|slope| slope.transport == Transport::Rdma).collect();
    let evidence = sloped(told, &slopes);
    let obstacle = no_hardware(told).or_else(|| {
        if slopes.len() < 2 {
            return Some("CPU time by bytes is not known at both ends".into());
        }
        let steep = slopes.iter().find(|slope| !slope.is_flat())?;
        Some(format!("the {}'s CPU time is not flat to within {FLAT_BELOW} ns a byte", steep.end.name()))
    });
    Claim::new("zero_copy", "RDMA's payload is copied by no CPU", evidence, obstacle)
}

fn tcp_copies(told: &Explanation) -> Claim {
    let slopes: Vec<&Slope> = told.slopes.iter().filter(|slope| slope.transport == Transport::Tcp).collect();
    let evidence = sloped(told, &slopes);
    let obstacle = match slopes.iter().find(|slope| !slope.rises()) {
        _ if slopes.is_empty() => Some("CPU time by bytes is not known".into()),
        Some(flat) => Some(format!("the {}'s interval includes 0", flat.end.name())),
        None => None,
    };
    Claim::new("tcp_cost_per_byte", "over TCP each byte costs CPU time at both ends", evidence, obstacle)
}

/// What slopes say, and the work outside the threads beside them.
fn sloped(told: &Explanation, slopes: &[&Slope]) -> Vec<String> {
    let same_host = told.runs("bytes").any(|run| run.same_host == Some(true));
    let mut lines = Vec::new();
    for slope in slopes {
        let interval = match slope.interval {
            Some([low, high]) => format!("[{} to {}]", number(low), number(high)),
            None => "[not known]".into(),
        };
        let [from, to] = slope.size_bytes.map(format_size);
        lines.push(format!(
            "{}, {}: {} ns a byte {interval}, {from} to {to}, sleeping, not inline, {} runs",
            slope.transport.name(),
            slope.end.name(),
            number(slope.ns_per_byte),
            slope.runs
        ));
    }
    for slope in slopes.iter().take(if same_host { 1 } else { 2 }) {
        let (Some(softirq), Some(resting)) = (slope.largest_softirq_ns, slope.resting_softirq_ns) else {
            continue;
        };
        let whose =
            if same_host { "both ends' machine" } else { &format!("the {}'s machine", slope.end.name()) };
        lines.push(format!(
            "{}, {whose}: soft interrupts {} ns beside each {} (at rest {})",
            slope.transport.name(),
            number(softirq),
            format_size(slope.size_bytes[1]),
            number(resting)
        ));
    }
    if same_host && !lines.is_empty() {
        lines.push(
            "both ends are on one host: no network took part, and either end may have done the other's work"
                .into(),
        );
    }
    lines
}

fn one_sided(told: &Explanation) -> Claim {
    const CLAIM: &str = "a read takes no CPU of the end that is read from";
    let mut evidence = Vec::new();
    let mut obstacle = no_hardware(told);
    let Some(run) = told.runs("reads").next() else {
        return Claim::new("one_sided", CLAIM, evidence, Some("no reads were measured".into()));
    };
    let mut sizes: Vec<u64> = run.results.iter().map(|row| row.size_bytes).collect();
    sizes.dedup();
    for size in sizes {
        let of = |transport| {
            let row = row(run, transport, Wait::Busy, size)?;
            row.cpu.server?.ns_per_message
        };
        let (Some(rdma), Some(tcp)) = (of(Transport::Rdma), of(Transport::Tcp)) else {
            obstacle = obstacle.or(Some("the server's CPU time is not known".into()));
            continue;
        };
        let (bytes, rdma_ns, tcp_ns) = (format_size(size), number(rdma), number(tcp));
        evidence.push(format!(
            "server, {bytes}: its thread used {rdma_ns} ns a read over rdma, {tcp_ns} over tcp"
        ));
        if rdma > IDLE_SHARE * tcp {
            obstacle = obstacle.or(Some(format!("its thread is busy {rdma_ns} ns a read of {bytes}")));
        }
    }
    if let Some(row) = run.results.iter().find(|row| row.transport == Transport::Rdma)
        && let Some(used) = row.cpu.server
        && let Some(machine) = used.machine
    {
        let cores = |machine: &MachineCpu| {
            number((machine.softirq_ns + machine.irq_ns + machine.system_ns) as f64 / 1e9 / machine.window_s)
        };
        let server = run.end(Side::Server);
        let rest = server.and_then(|end| end.idle_machine.as_ref()).map_or("-".into(), cores);
        let whole = if run.same_host == Some(true) { "both ends' machine" } else { "the server's machine" };
        evidence.push(format!(
            "{whole}: kernel and interrupts {} of a core meanwhile (at rest {rest})",
            cores(&machine)
        ));
    }
    Claim::new("one_sided", CLAIM, evidence, obstacle)
}

fn lower_latency(told: &Explanation) -> Claim {
    const CLAIM: &str = "RDMA takes less time than TCP, both polling";
    let run = told.runs("latency").next();
    let mut obstacle = if is_emulated(told) {
        Some(EMULATED.to_owned())
    } else if run.and_then(|run| run.same_host) == Some(true) {
        Some("both ends are on one host, where either path takes a shortcut of its own".to_owned())
    } else {
        None
    };
    let mut evidence = Vec::new();
    for size in run.iter().flat_map(|run| sizes(run)) {
        let of = |transport| run.and_then(|run| row(run, transport, Wait::Busy, size)).and_then(median);
        let (rdma, tcp) = (of(Transport::Rdma), of(Transport::Tcp));
        evidence.push(format!("{}: p50 {} over rdma, {} over tcp", format_size(size), us(rdma), us(tcp)));
        obstacle = obstacle.or_else(|| not_less(rdma, tcp, size));
    }
    if evidence.is_empty() {
        obstacle = obstacle.or(Some("no latency was measured".into()));
    }
    Claim::new("lower_latency", CLAIM, evidence, obstacle)
}

fn polling(told: &Explanation, transport: Transport) -> Claim {
    let path = transport.name();
    let claim = format!("over {path} polling takes less time than sleeping, and occupies a core");
    let run = told.runs("latency").next();
    let mut evidence = Vec::new();
    let mut obstacle = (transport == Transport::Rdma && is_emulated(told)).then(|| EMULATED.to_owned());
    if run.is_some_and(|run| run.warnings.iter().any(|warning| warning.code == "shared_core")) {
        obstacle = obstacle.or(Some("both ends share a core, and so take turns".into()));
    }
    for size in run.iter().flat_map(|run| sizes(run)) {
        let of = |wait| run.and_then(|run| row(run, transport, wait, size));
        let (polled, slept) = (of(Wait::Busy), of(Wait::Events));
        let [fast, slow] = [polled, slept].map(|row| row.and_then(median));
        let [busy, idle] = [polled, slept].map(|row| row.and_then(share_of_core));
        let percent =
            |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.0} %", 100.0 * share));
        evidence.push(format!(
            "{}: p50 {} polling, {} sleeping; the client on a core {} and {} of the time",
            format_size(size),
            us(fast),
            us(slow),
            percent(busy),
            percent(idle)
        ));
        obstacle = obstacle.or_else(|| not_less(fast, slow, size));
        let occupies = busy.zip(idle).is_some_and(|(busy, idle)| busy > idle);
        if !occupies {
            obstacle = obstacle.or(Some(format!("polling took no more of a core at {}", format_size(size))));
        }
    }
    if evidence.is_empty() {
        obstacle = obstacle.or(Some("no latency was measured".into()));
    }
    Claim::new(&format!("polling_over_{path}"), &claim, evidence, obstacle)
}

/// Why the first median cannot be said to be less than the second; each comes with half the width of its interval.
fn not_less(first: Option<(f64, f64)>, second: Option<(f64, f64)>, size: u64) -> Option<String> {
    let (Some(first), Some(second)) = (first, second) else {
        return Some(format!("too few messages of {} for a median", format_size(size)));
    };
    let apart = first.0 + first.1 < second.0 - second.1;
    (!apart)
        .then(|| format!("the medians at {} are not further apart than their intervals", format_size(size)))
}

/// The share of the window that the client's thread was on a core.
fn share_of_core(row: &ResultRow) -> Option<f64> {
    Some(row.cpu.client?.cpu_ns? as f64 / 1e9 / row.window_s.filter(|seconds| *seconds > 0.0)?)
}

fn sizes(run: &Document) -> Vec<u64> {
    let mut sizes: Vec<u64> = run.results.iter().map(|row| row.size_bytes).collect();
    sizes.dedup();
    sizes
}

/// The median and half the width of its interval, in ns.
fn median(row: &ResultRow) -> Option<(f64, f64)> {
    Some((row.latency_ns.as_ref()?.p50?, row.uncertainty.median_interval_ns?))
}

fn us(median: Option<(f64, f64)>) -> String {
    match median {
        Some((median, half)) => format!("{} +-{} us", number(median / 1e3), number(half / 1e3)),
        None => "-".into(),
    }
}
