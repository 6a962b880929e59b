//! What a person sees: a header, rows as they are measured, and what must be said about them.

use super::columns::{Cell, Columns};
use super::cpu;
use super::header;
use super::limits;
use super::numbers::{NONE, count, ratio, seconds, significant};
use super::text::{labelled, wrap};
use super::uncertainty;
use crate::result::{
    Basis, Comparison, CpuUse, Device, Document, End, Floor, MachineCpu, ResultRow, Shape, Side, Status,
    Wait, comparison,
};
use crate::units::format_size;

/// The whole table of a document, no line wider than `width` where words allow it.
pub fn render(document: &Document, width: Option<usize>) -> String {
    let table = Table::new(document, width);
    let groups = document.results.chunk_by(|a, b| a.point.is_grouped_with(&b.point));
    let rows: String = groups.map(|rows| table.point(rows)).collect();
    format!("{}{rows}{}", table.header(), table.footer(document))
}

/// A table that can be printed while it is measured: [`header`](Self::header) as soon as both ends are known,
/// [`point`](Self::point) for the rows of each point, [`footer`](Self::footer) at the end. What is printed in pieces is
/// what [`render`] gives at once.
#[derive(Debug, Clone)]
pub struct Table {
    header: String,
    columns: Option<Columns>,
    basis: Option<Basis>,
    width: Option<usize>,
    emulated: bool,
    same_host: bool,
    /// Both ways of waiting are shown.
    compares_waits: bool,
    /// Each row has lines of what it cost the CPUs.
    cpu_report: bool,
    /// What both machines did at rest, the client's first.
    resting: [Option<MachineCpu>; 2],
}

impl Table {
    /// Lays a table out for what is known before the first row: the test and both ends.
    pub fn new(document: &Document, width: Option<usize>) -> Self {
        let shape = document.test.as_ref().map(|test| test.shape).or_else(|| {
            let row = document.results.first()?;
            Some(if row.bandwidth.is_some() { Shape::Bandwidth } else { Shape::Latency })
        });
        let sizes = document.test.iter().flat_map(|test| test.sizes_bytes.iter().copied());
        let sizes = sizes.chain(document.results.iter().map(|row| row.size_bytes));
        let size_width = sizes.map(|size| format_size(size).len()).max().unwrap_or_default();
        let compares_waits = document.test.as_ref().is_some_and(|test| test.compare_waits);
        let path_width = if compares_waits { "rdma events".len() } else { 0 };
        let columns = shape.map(|shape| Columns::new(shape, size_width, path_width, width));
        let mut header = header::lines(document, width);
        if let Some(columns) = &columns {
            header += "\n";
            header += &columns.titles();
        }
        Self {
            header,
            columns,
            basis: document.test.as_ref().map(Basis::of),
            width,
            emulated: document.is_emulated(),
            same_host: document.same_host == Some(true),
            compares_waits,
            cpu_report: document.test.as_ref().is_some_and(|test| test.cpu_report),
            resting: cpu::resting(document),
        }
    }

    /// Everything above the first row.
    pub fn header(&self) -> &str {
        &self.header
    }

    /// The rows of one point, in each way of waiting, with their ratio where there are two to compare.
    pub fn point(&self, rows: &[ResultRow]) -> String {
        let pairs = rows.chunk_by(|a, b| a.point.is_beside(&b.point));
        pairs.enumerate().map(|(index, rows)| self.pair(rows, index == 0)).collect()
    }

    /// The rows of one way of waiting, and their ratio. The first of a point show its size.
    fn pair(&self, rows: &[ResultRow], is_first: bool) -> String {
        let Some(columns) = &self.columns else {
            return String::new();
        };
        let mut out = String::new();
        for (index, row) in rows.iter().enumerate() {
            out += &columns.line(|cell, width| match cell {
                Cell::Size if index > 0 || !is_first => String::new(),
                Cell::Transport => row.path(self.compares_waits).into(),
                _ => value(row, cell, width),
            });
            let costs = match (self.cpu_report, self.compares_waits && !columns.show(Cell::CpuClient)) {
                (true, _) => cpu::lines(row, self.resting, self.same_host),
                (false, true) => vec![both_cpus(row)],
                (false, false) => Vec::new(),
            };
            for detail in details(row, self.basis).into_iter().chain(costs) {
                let indent = columns.indent();
                out += &wrap(&format!("{:indent$}{detail}", ""), indent, self.width);
            }
        }
        let compared = comparison(rows, self.emulated);
        if !compared.is_empty() {
            let flag = if self.same_host && !self.emulated { "*" } else { "" };
            out += &columns.line(|cell, _| compare(&compared, cell, flag));
        }
        out
    }

    /// Everything below the last row, of the finished document.
    pub fn footer(&self, document: &Document) -> String {
        let mut out = String::new();
        let mut say = |label: &str, text: &str| out += &labelled(label, text, self.width);
        if document.results.is_empty() {
            say("status", "nothing was measured");
        } else {
            match document.status {
                Status::Ok => {}
                Status::Invalid => say("status", "INVALID: a number above must not be trusted"),
                Status::Failed => say("status", "failed: what is shown was measured before the error"),
                Status::Interrupted => {
                    say("status", "interrupted: what is shown was measured before the signal")
                }
            }
        }
        if let Some((label, text)) = provider(document) {
            say(label, &text);
        }
        if let Some(text) = uncertainty::line(&document.results) {
            say("own", &text);
        }
        if let Some(text) = document.floor.as_ref().and_then(floor) {
            say("floor", &text);
        }
        let ratios = document.comparison.iter().any(|compared| compared.tcp_over_rdma.is_some());
        if self.same_host && ratios {
            say(
                "*",
                "one host: RDMA and TCP take different shortcuts there, and their ratio is not that of a network",
            );
        }
        let busy = document.test.as_ref().is_some_and(|test| test.wait == Wait::Busy);
        let cpu = document.results.iter().any(|row| row.cpu.client.is_some() || row.cpu.server.is_some());
        let shows_cpu = self.columns.as_ref().is_some_and(|columns| columns.show(Cell::CpuClient));
        if busy && cpu && (shows_cpu || self.compares_waits) {
            say("cpu", "busy polling occupies a whole core; its waiting is counted in cpu ns/msg");
        }
        if let Some(text) = cpu::evidence(document).filter(|_| self.cpu_report) {
            say("evidence", &text);
        }
        for note in &document.notes {
            say("note", &note.message);
        }
        for warning in &document.warnings {
            say("warning", &warning.message);
        }
        for line in limits::lines(document) {
            say("limit", &line);
        }
        out
    }
}

/// One cell of a measured row.
fn value(row: &ResultRow, cell: Cell, width: usize) -> String {
    let latency = row.latency_ns.as_ref();
    let us = |ns: Option<f64>| significant(ns.map(|ns| ns / 1e3), width);
    let bandwidth = row.bandwidth.as_ref();
    let gbps = |bytes_per_s: Option<f64>| significant(bytes_per_s.map(|rate| rate * 8.0 / 1e9), width);
    let bytes_per_s = bandwidth.and_then(|b| b.bytes_per_s);
    match cell {
        Cell::Size => format_size(row.size_bytes),
        Cell::Transport => row.path(false).into(),
        Cell::Samples => count(latency.map(|l| l.samples), width),
        Cell::Min => us(latency.map(|l| l.min)),
        Cell::P50 => us(latency.and_then(|l| l.p50)),
        Cell::P90 => us(latency.and_then(|l| l.p90)),
        Cell::P99 => us(latency.and_then(|l| l.p99)),
        Cell::P99_9 => us(latency.and_then(|l| l.p99_9)),
        Cell::P99_99 => us(latency.and_then(|l| l.p99_99)),
        Cell::Max => us(latency.map(|l| l.max)),
        Cell::Mean => us(latency.map(|l| l.mean)),
        Cell::Stdev => us(latency.and_then(|l| l.stdev)),
        Cell::Gbps => gbps(bytes_per_s),
        Cell::GiBps => significant(bytes_per_s.map(|rate| rate / f64::from(1 << 30)), width),
        Cell::Mmsgps => significant(bandwidth.and_then(|b| b.messages_per_s).map(|rate| rate / 1e6), width),
        Cell::Window => seconds(row.window_s, width),
        Cell::Slowest => gbps(bandwidth.and_then(|b| b.interval_min_bytes_per_s)),
        Cell::CpuClient => per_message(row.cpu.client.and_then(|cpu| cpu.ns_per_message), width),
        Cell::Limit => limit(row.limited_by.as_deref()),
        Cell::CpuServer => per_message(row.cpu.server.and_then(|cpu| cpu.ns_per_message), width),
    }
}

/// What held the rate where it was.
fn limit(limited_by: Option<&str>) -> String {
    match limited_by {
        Some("sender_core") => "sender core",
        Some("receiver_core") => "receiver core",
        Some("receiver_not_posting") => "no receives",
        Some("path") => "path",
        Some("rate") => "rate",
        Some("unclear") => "unclear",
        // Another version's word may have any length.
        _ => NONE,
    }
    .into()
}

/// CPU time a message in whole nanoseconds once it has three digits.
fn per_message(ns: Option<f64>, width: usize) -> String {
    match ns {
        Some(ns) if (99.995..1e15).contains(&ns) => count(Some(ns.round() as u64), width),
        _ => significant(ns, width),
    }
}

/// One cell of the ratio of two rows; above 1 where RDMA is better.
fn compare(compared: &[Comparison], cell: Cell, flag: &str) -> String {
    let of = |metric: &str| compared.iter().find(|compared| compared.metric == metric);
    let latency = of("latency_ns.p50").is_some();
    let metric = match cell {
        Cell::Transport => return format!("{}{flag}", if latency { "tcp/rdma" } else { "rdma/tcp" }),
        Cell::Min => "latency_ns.min",
        Cell::P50 => "latency_ns.p50",
        Cell::P90 => "latency_ns.p90",
        Cell::P99 => "latency_ns.p99",
        Cell::P99_9 => "latency_ns.p99_9",
        Cell::P99_99 => "latency_ns.p99_99",
        Cell::Mean => "latency_ns.mean",
        Cell::Gbps => "bandwidth.bytes_per_s",
        _ => return String::new(),
    };
    let tcp_over_rdma = of(metric).and_then(|compared| compared.tcp_over_rdma);
    ratio(if latency { tcp_over_rdma } else { tcp_over_rdma.map(f64::recip) })
}

/// What each end used for a message, where it has no column.
fn both_cpus(row: &ResultRow) -> String {
    let of = |cpu: Option<CpuUse>| per_message(cpu.and_then(|cpu| cpu.ns_per_message), 15);
    format!("cpu client {}, server {} ns/msg", of(row.cpu.client), of(row.cpu.server))
}

/// What belongs to a row and has no column.
fn details(row: &ResultRow, basis: Option<Basis>) -> Vec<String> {
    let mut details = Vec::new();
    if let Some(offered) = row.point.offered_per_s {
        details.push(format!(
            "offered {}/s, achieved {}/s, late {}",
            significant(Some(offered), 15),
            significant(row.achieved_per_s, 15),
            count(row.late, 20)
        ));
    }
    if let Some(line) = directions(row) {
        details.push(line);
    }
    if !row.threads.is_empty() {
        let rate = |bytes_per_s: Option<f64>| significant(bytes_per_s.map(|rate| rate * 8.0 / 1e9), 15);
        let each: Vec<String> = row.threads.iter().map(|thread| rate(thread.bytes_per_s)).collect();
        details.push(format!("threads {} Gb/s", each.join("  ")));
    }
    if row.lost.is_some_and(|lost| lost > 0) {
        let [sent, received, lost] = [row.sent, row.received, row.lost].map(|messages| count(messages, 20));
        details.push(format!("sent {sent}, received {received}, lost {lost}"));
    }
    if let Some(own) = row.latency_ns.as_ref().map(|latency| latency.basis).filter(|own| Some(*own) != basis)
    {
        details.push(match own {
            Basis::HalfRoundTrip => "this row is half of the round trip".into(),
            Basis::RoundTrip => "this row is the whole round trip".into(),
        });
    }
    if !row.validity.ok {
        details.push(format!("INVALID: {}", row.validity.reasons.join("; ")));
    }
    details
}

/// Either direction of a bidirectional row, and how far their windows overlap.
fn directions(row: &ResultRow) -> Option<String> {
    let each = row.directions.iter().map(|direction| {
        let (from, to) = match direction.from {
            Side::Client => ("client", "server"),
            Side::Server => ("server", "client"),
        };
        let gbps = direction.bandwidth.bytes_per_s.map(|rate| rate * 8.0 / 1e9);
        format!("{from} -> {to} {} Gb/s", significant(gbps, 15))
    });
    let overlap = row.overlap.map(|overlap| match overlap.share {
        Some(share) => format!("windows overlap {:.1} %", 100.0 * share),
        None => "how far the windows overlap is not known".into(),
    });
    let parts: Vec<String> = each.chain(overlap).collect();
    (!row.directions.is_empty()).then(|| parts.join(", "))
}

/// What must be said of a provider that is not known to be hardware.
fn provider(document: &Document) -> Option<(&'static str, String)> {
    let ends = [&document.local, &document.remote].into_iter().flatten();
    let devices: Vec<&Device> = ends.filter_map(|end: &End| end.device.as_ref()).collect();
    let reason = &document.claims.reason;
    if devices.iter().any(|device| device.is_emulated()) {
        Some(("EMULATED", format!("{reason}. These numbers measure this tool, not a network")))
    } else if devices.iter().any(|device| device.is_software == Some(true)) {
        Some(("SOFTWARE", format!("{reason}. Neither zero copy nor kernel bypass is claimed")))
    } else if devices.iter().any(|device| device.is_software.is_none()) {
        Some(("UNKNOWN", format!("{reason}. Neither zero copy nor kernel bypass is claimed")))
    } else {
        None
    }
}

/// The tool's own floor, when either part was measured.
fn floor(floor: &Floor) -> Option<String> {
    if floor.core_to_core_ns.is_none() && floor.loop_ns.is_none() {
        return None;
    }
    let us = |ns: Option<f64>| match ns {
        Some(ns) => format!("{} us", significant(Some(ns / 1e3), 9)),
        None => NONE.into(),
    };
    Some(format!("from core to core {}, the loop itself {}", us(floor.core_to_core_ns), us(floor.loop_ns)))
}
