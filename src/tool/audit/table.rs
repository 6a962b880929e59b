//! What a person sees of an audit: calls a message by path and end, then the copies that follow from each path.

use super::record::{Audit, AuditedEnd, AuditedRun};
use crate::plan::{Shape, Side, Wait};
use crate::report::text::{labelled, plain, wrap};
use crate::units::format_size;

/// What stands where a value could not be had.
const NONE: &str = "-";

/// The audit as text, no line wider than `width` where words allow it.
pub fn render(audit: &Audit, width: Option<usize>) -> String {
    let mut out = header(audit, width);
    out += "\n";
    out += &calls(audit);
    out += "\ncopies of the payload by a CPU, a message: derived from the path, not measured\n\n";
    for run in &audit.runs {
        for (index, (name, end)) in ends(run).into_iter().enumerate() {
            let path = if index == 0 { run.transport.name() } else { "" };
            let copies =
                end.derived_copies.per_message.map_or_else(|| NONE.into(), |copies| copies.to_string());
            out +=
                &wrap(&format!("  {path:<4}  {name}  {copies:>4}  {}", end.derived_copies.reason), 22, width);
        }
    }
    out += "\n";
    for line in software(audit) {
        out += &wrap(&line, 2, width);
    }
    for missing in audit.missing.iter().filter(|missing| missing.path.ends_with("system_calls")) {
        out += &labelled("missing", &format!("system calls of an end: {}", missing.reason), width);
    }
    out
}

fn header(audit: &Audit, width: Option<usize>) -> String {
    let mut out = String::new();
    if let Some(test) = &audit.test {
        let wait = match test.wait {
            Wait::Busy => "busy polling",
            Wait::Events => "events",
        };
        let size = format_size(test.size_bytes);
        out += &wrap(&format!("{}  {}  {wait}  {size}", test.binary, test.connection), 2, width);
    }
    let message = match audit.test.as_ref().map(|test| (test.shape, test.op.facts().peer)) {
        Some((Shape::Latency, crate::ops::Peer::Echoes)) => "a message (there and back)",
        _ => "a message",
    };
    let tracer = audit
        .tracer
        .as_ref()
        .map_or_else(String::new, |tracer| format!(" by {} {}", tracer.name, tracer.version));
    out + &wrap(
        &format!("system calls {message}, counted{tracer}, whose runs are slow: no time is shown"),
        2,
        width,
    )
}

fn ends(run: &AuditedRun) -> [(&'static str, &AuditedEnd); 2] {
    [(Side::Client.name(), &run.client), (Side::Server.name(), &run.server)]
}

/// A line for all calls of each end, and one for each call.
fn calls(audit: &Audit) -> String {
    let mut lines = vec![["path", "end", "system call", "a message", "found nothing"].map(str::to_owned)];
    for run in &audit.runs {
        let mut path = run.transport.name();
        for (end, audited) in ends(run) {
            let mut start = [std::mem::take(&mut path), end];
            let mut add = |call: &str, each: String, nothing: String| {
                let [path, end] = std::mem::take(&mut start);
                lines.push([path.into(), end.into(), plain(call), each, nothing]);
            };
            let Some(calls) = &audited.system_calls else {
                add(NONE, NONE.into(), NONE.into());
                continue;
            };
            add("all", rate(calls.per_message), rate(calls.found_nothing_per_message));
            for call in &calls.by_name {
                add(&call.name, rate(call.per_message), rate(call.found_nothing_per_message));
            }
        }
    }
    let widest = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or_default();
    let widths = [0, 1, 2, 3, 4].map(widest);
    let lay = |line: &[String; 5]| {
        let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            3.. => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    lines.iter().map(lay).collect()
}

/// A rate whose smallest values are seen to be there.
fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        _ if rate < 0.001 => "<0.001".into(),
        _ => format!("{rate:.3}"),
    }
}

/// A line for each device whose work a CPU does, or may do.
fn software(audit: &Audit) -> Vec<String> {
    let mut lines = Vec::new();
    for device in audit.runs.iter().flat_map(ends).filter_map(|(_, end)| end.device.as_ref()) {
        let provider = device.provider.as_deref().unwrap_or(NONE);
        let line = match device.is_software {
            Some(false) => continue,
            Some(true) => format!(
                "SOFTWARE RDMA ({} is {provider}): a CPU does the device's work; few system calls are no kernel bypass",
                device.name
            ),
            None => format!("note  the provider of {} ({provider}) is not known to be hardware", device.name),
        };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}
