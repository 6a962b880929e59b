//! What a person sees of an explanation: the numbers by way of sending, then what follows from them.

use std::collections::BTreeMap;

use super::claims::{Claim, Verdict};
use super::record::Explanation;
use crate::plan::{Transport, Wait};
use crate::report::numbers::significant;
use crate::report::text::{labelled, wrap};
use crate::result::{Document, ResultRow};
use crate::tool::audit::{Audit, AuditedRun};
use crate::units::format_size;

/// The whole of it, no line wider than `width` where words allow it.
pub fn render(told: &Explanation, width: Option<usize>) -> String {
    let mut out = String::new();
    let paragraph = |text: &str| wrap(text, 0, width);
    if let Some(run) = told.runs("latency").next() {
        out += &paragraph(&path(run));
        out += "\n";
        out += &paragraph(
            "1. Latency of a message, half of its round trip, and what it took of both ends' CPUs, in ns",
        );
        out += &table(run, ["p50 us", "p99 us"], latencies);
    }
    if let Some(run) = told.runs("bandwidth").next() {
        out += "\n";
        out += &paragraph("2. Bandwidth of writes, and what each message took of both ends' CPUs, in ns");
        out += &table(run, ["Gb/s", "Mmsg/s"], |row| {
            let bandwidth = row.bandwidth.as_ref();
            [
                bandwidth.and_then(|b| b.bytes_per_s).map(|rate| rate * 8.0 / 1e9),
                bandwidth.and_then(|b| b.messages_per_s).map(|rate| rate / 1e6),
            ]
        });
    }
    if !told.slopes.is_empty() {
        out += "\n";
        out += &paragraph(
            "3. CPU time of a thread by the bytes of a message, sleeping: flat where nothing copies, a slope where something does",
        );
        out += &format!("  {:<12}{:>9}{:>22}{:>11}\n", "path, end", "ns/byte", "95 % interval", "ns largest");
        for slope in &told.slopes {
            let interval = match slope.interval {
                Some([low, high]) => format!("{} .. {}", cell(Some(low)), cell(Some(high))),
                None => "-".into(),
            };
            let of = format!("{} {}", slope.transport.name(), slope.end.name());
            let (each, most) = (cell(Some(slope.ns_per_byte)), cell(Some(slope.largest_ns)));
            out += &format!("  {of:<12}{each:>9}{interval:>22}{most:>11}\n");
        }
    }
    if let Some(run) = told.runs("reads").next() {
        out += "\n";
        out += &paragraph(
            "4. Latency of a read, and what it took of both ends' CPUs, in ns: the server is read from",
        );
        out += &table(run, ["p50 us", "p99 us"], latencies);
    }
    if !told.audits.is_empty() {
        out += "\n";
        out += &paragraph(
            "5. System calls of send_lat, 64 B, a message (there and back), counted by strace in runs of their own; those of \
             them that found nothing, which a spinner repeats; and copies of the payload by a CPU, derived from the path \
             and not measured",
        );
        out += &format!(
            "  {:<13}{:>8}{:>9}{:>9}{:>9}{:>10}\n",
            "path", "client", "nothing", "server", "nothing", "copies"
        );
        let all = told.audits.iter().flat_map(|audit| audit.runs.iter().map(move |run| (audit, run)));
        all.for_each(|(audit, run)| out += &audited(audit, run));
    }
    if !told.claims.is_empty() {
        out += "\n";
        out += &paragraph("6. What this run shows, and what it does not");
        out += "\n";
        told.claims.iter().for_each(|claim| out += &claimed(claim, width));
    }
    if let Some(text) = warned(told) {
        out += &labelled("warning", &text, width);
    }
    for missing in &told.missing {
        out += &labelled("missing", &format!("{}: {}", missing.path, missing.reason), width);
    }
    out
}

fn latencies(row: &ResultRow) -> [Option<f64>; 2] {
    let latency = row.latency_ns.as_ref();
    [latency.and_then(|l| l.p50), latency.and_then(|l| l.p99)].map(|ns| ns.map(|ns| ns / 1e3))
}

/// A line for one path of an audit.
fn audited(audit: &Audit, run: &AuditedRun) -> String {
    let wait = audit.test.as_ref().map_or(Wait::Busy, |test| test.wait);
    let ends = [&run.client, &run.server];
    let calls = ends.map(|end| {
        let calls = end.system_calls.as_ref();
        let each = [calls.map(|calls| calls.per_message), calls.map(|calls| calls.found_nothing_per_message)];
        each.map(cell)
    });
    let [[client, client_empty], [server, server_empty]] = calls;
    let copies =
        ends.map(|end| end.derived_copies.per_message.map_or("-".into(), |copies| copies.to_string()));
    format!(
        "  {:<13}{client:>8}{client_empty:>9}{server:>9}{server_empty:>9}{:>10}\n",
        way(run.transport, wait),
        copies.join(" + ")
    )
}

/// What lies between the ends.
fn path(run: &Document) -> String {
    let ends = [&run.local, &run.remote].into_iter().flatten();
    let of = |end: &crate::result::End| {
        let host = end.machine.hostname.clone().unwrap_or_else(|| "-".into());
        match &end.device {
            Some(device) => {
                let provider = device.provider.as_deref().unwrap_or("provider not known");
                format!("{host}: {} ({provider})", device.name)
            }
            None => format!("{host}: no RDMA device"),
        }
    };
    let ends: Vec<String> = ends.map(of).collect();
    let place = if run.same_host == Some(true) { ", on one host" } else { "" };
    let ends = if ends.first() == ends.last() { ends[..1].to_vec() } else { ends };
    format!("verbmark explain  {}{place}", ends.join(" to "))
}

/// A line for each size and way of sending.
fn table(run: &Document, titles: [&str; 2], values: impl Fn(&ResultRow) -> [Option<f64>; 2]) -> String {
    let mut out = format!(
        "  {:<8}{:<13}{:>9}{:>9}{:>9}{:>9}\n",
        "size", "path", titles[0], titles[1], "client", "server"
    );
    let mut before = None;
    for row in &run.results {
        let size = if before.replace(row.size_bytes) == Some(row.size_bytes) {
            String::new()
        } else {
            format_size(row.size_bytes)
        };
        let cpu =
            [row.cpu.client, row.cpu.server].map(|used| cell(used.and_then(|used| used.ns_per_message)));
        let [first, second] = values(row).map(cell);
        let way = way(row.transport, row.point.wait);
        out += &format!("  {size:<8}{way:<13}{first:>9}{second:>9}{:>9}{:>9}\n", cpu[0], cpu[1]);
    }
    out
}

fn cell(value: Option<f64>) -> String {
    significant(value, 8)
}

fn way(transport: Transport, wait: Wait) -> &'static str {
    match (transport, wait) {
        (Transport::Rdma, Wait::Busy) => "rdma polling",
        (Transport::Rdma, Wait::Events) => "rdma events",
        (Transport::Tcp, Wait::Busy) => "tcp spinning",
        (Transport::Tcp, Wait::Events) => "tcp blocking",
    }
}

/// How often the runs were warned of what.
fn warned(told: &Explanation) -> Option<String> {
    let mut codes: BTreeMap<&str, usize> = BTreeMap::new();
    let warnings = told.scenes.iter().flat_map(|scene| &scene.document.warnings);
    warnings.for_each(|warning| *codes.entry(&warning.code).or_default() += 1);
    let each: Vec<String> = codes.iter().map(|(code, count)| format!("{count} {code}")).collect();
    (!each.is_empty()).then(|| format!("in the runs: {}; --json has each of them", each.join(", ")))
}

/// A claim, why it is withheld, and its evidence.
fn claimed(claim: &Claim, width: Option<usize>) -> String {
    let verdict = match claim.verdict {
        Verdict::Shown => "SHOWN   ",
        Verdict::Withheld => "WITHHELD",
    };
    let mut out = wrap(&format!("  {verdict}  {}", claim.claim), 12, width);
    if let Some(reason) = &claim.reason {
        out += &wrap(&format!("{:12}because {reason}", ""), 12, width);
    }
    for line in &claim.evidence {
        out += &wrap(&format!("{:12}- {line}", ""), 14, width);
    }
    out
}
