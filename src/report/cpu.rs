//! What a row cost the CPUs of both ends, in words: the lines that `--cpu-report` adds to a table.

use super::numbers::{count, significant};
use crate::result::{CpuEvidence, CpuUse, Document, MachineCpu, ResultRow, Side, Wait};

/// A line for each end, and one for each machine.
pub fn lines(row: &ResultRow, resting: [Option<MachineCpu>; 2], same_host: bool) -> Vec<String> {
    let ends = [("client", row.cpu.client), ("server", row.cpu.server)];
    let threads = ends.map(|(end, used)| match used {
        Some(used) => format!("{end}: {}", thread(&used, row.point.wait)),
        None => format!("{end}: CPU not known"),
    });
    let machines =
        ends.iter().zip(resting).take(if same_host { 1 } else { 2 }).filter_map(|(end, resting)| {
            let machine = end.1?.machine?;
            let whose = if same_host { "all cores" } else { &format!("all cores of the {}", end.0) };
            Some(format!("{whose}: {}", all_cores(&machine, resting)))
        });
    threads.into_iter().chain(machines).collect()
}

/// What both machines did at rest, the client's first.
pub fn resting(document: &Document) -> [Option<MachineCpu>; 2] {
    [Side::Client, Side::Server].map(|side| document.end(side).and_then(|end| end.idle_machine))
}

/// How much could be told at both ends.
pub fn evidence(document: &Document) -> Option<String> {
    let of = |side| document.end(side).and_then(|end| end.evidence.as_ref());
    let told = |evidence: &CpuEvidence| format!("level {} of 3: {}", evidence.level, evidence.reason);
    match (of(Side::Client), of(Side::Server)) {
        (Some(client), Some(server)) if client == server => Some(format!("at both ends {}", told(client))),
        (Some(client), Some(server)) => {
            Some(format!("at the client {}; at the server {}", told(client), told(server)))
        }
        _ => None,
    }
}

/// What the measuring threads used.
fn thread(used: &CpuUse, wait: Wait) -> String {
    let ns = |value: Option<f64>| significant(value, 12);
    let share = used.idle_share.map(|share| significant(Some(share * 100.0), 6));
    let waiting = match (share, wait) {
        (Some(share), Wait::Busy) => format!("spinning {share} %"),
        (Some(share), Wait::Events) => format!("off its core {share} %"),
        (None, _) => "share of waiting not known".into(),
    };
    let mut parts = vec![
        format!(
            "{} ns/msg (user {}, kernel {}), {} ns/B",
            ns(used.ns_per_message),
            ns(used.user_ns_per_message),
            ns(used.system_ns_per_message),
            ns(used.ns_per_byte)
        ),
        format!("{} empty polls, {waiting}", count(used.empty_polls, 20)),
        format!(
            "switches {} own and {} forced, {} faults",
            count(used.voluntary_switches, 20),
            count(used.involuntary_switches, 20),
            count(used.page_faults, 20)
        ),
    ];
    let user_only = if used.counts_user_only == Some(true) { ", user space alone" } else { "" };
    if let (Some(instructions), Some(cycles)) = (used.each(used.instructions), used.each(used.cycles)) {
        parts.push(format!(
            "{} instructions and {} cycles/msg{user_only}",
            ns(Some(instructions)),
            ns(Some(cycles))
        ));
    }
    if let Some(calls) = used.each(used.system_calls) {
        parts.push(format!("{} system calls/msg", ns(Some(calls))));
    }
    parts.join("; ")
}

/// How many cores did what, and at rest.
fn all_cores(machine: &MachineCpu, resting: Option<MachineCpu>) -> String {
    let cores = |machine: &MachineCpu, ns: u64| significant(Some(ns as f64 / 1e9 / machine.window_s), 8);
    let each = |machine: &MachineCpu| {
        [machine.softirq_ns, machine.irq_ns, machine.system_ns, machine.user_ns].map(|ns| cores(machine, ns))
    };
    let [softirq, irq, system, user] = each(machine);
    let at_rest = match &resting {
        Some(resting) => format!("at rest {}", each(resting).join(", ")),
        None => "at rest not known".into(),
    };
    format!("soft interrupts {softirq} of a core, interrupts {irq}, kernel {system}, user {user} ({at_rest})")
}
