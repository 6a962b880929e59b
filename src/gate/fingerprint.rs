//! What makes two runs comparable: the options of the test, and what it ran on.
//!
//! A hard field must be the same on both sides. A soft one bears on the numbers less, or is not always under control: it
//! is said where it differs.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use super::recorded::{Recorded, RecordedEnd};
use crate::result::{Side, TestRecord};

/// One field of one end, or of both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Field {
    /// Its name, as `--allow-mismatch` takes it.
    pub name: Cow<'static, str>,
    /// The end it belongs to; `None` where it is the test's.
    pub end: Option<&'static str>,
}

/// Fields and their values as text.
pub type Facts = Vec<(Field, String)>;

/// What stands for a value that is not there.
const NONE: &str = "-";

/// Options that do not change what a number means: how long it was measured, and what happens when something goes wrong.
/// An option that is not named here is hard, one of a later version, too.
const SOFT_OPTIONS: &[&str] = &[
    "compare_waits",
    "cpu_report",
    "flow_label",
    "hop_limit",
    "min_rnr_timer",
    "qp_timeout",
    "retry_count",
    "rnr_retry",
    "stall_timeout_s",
    "stop",
    "warm_up",
];

/// Options that points tell.
const OF_POINTS: &[&str] = &["sizes_bytes", "transports"];

/// Every hard field: of the options, then of what they ran on.
pub const HARD: &[&str] = &[
    "op",
    "shape",
    "connection",
    "wait",
    "tx_depth",
    "rx_depth",
    "depth",
    "rate_per_s",
    "arrivals",
    "rate_shares",
    "signal_every",
    "post_list",
    "cqe_batch",
    "bidirectional",
    "qps",
    "shared_receive",
    "buffers",
    "threads",
    "memory",
    "relaxed_ordering",
    "on_demand_paging",
    "max_inline_bytes",
    "outstanding_reads",
    "mtu_bytes",
    "service_level",
    "traffic_class",
    "tcp.send_buffer_bytes",
    "tcp.receive_buffer_bytes",
    "tcp.congestion",
    "tcp.busy_poll_us",
    "tcp.zero_copy",
    "verify",
    "first",
    "loss_timeout_s",
    "basis",
    "same_host",
    "cpu_model",
    "kernel",
    "hypervisor",
    "optimised",
    "page_bytes",
    "device",
    "driver",
    "provider",
    "firmware",
    "link_layer",
    "is_software",
    "rate_gbps",
    "active_mtu_bytes",
    "path_mtu_bytes",
    "gid_type",
    "inline_bytes",
    "congestion",
    "busy_poll_us",
];

/// What a run is told by.
#[derive(Debug, Clone)]
pub struct Fingerprint {
    /// Hard options: runs that differ in them are different tests.
    pub options: Facts,
    /// What else is hard.
    pub environment: Facts,
    /// What is soft.
    pub soft: Facts,
}

impl Fingerprint {
    /// Of a run.
    pub fn of(recorded: &Recorded) -> Self {
        let (mut options, mut soft) = (Facts::new(), Facts::new());
        if let Some(test) = &recorded.test {
            for (name, value) in flat(test) {
                if SOFT_OPTIONS.contains(&name.as_ref()) {
                    soft.push((Field { name, end: None }, value));
                } else if !OF_POINTS.contains(&name.as_ref()) {
                    options.push((Field { name, end: None }, value));
                }
            }
        }
        options.push(fact("basis", None, text(&recorded.basis())));
        let mut environment = vec![fact("same_host", None, text(&recorded.same_host))];
        for (side, name) in [(Side::Client, "client"), (Side::Server, "server")] {
            if let Some(end) = recorded.end(side) {
                hard(end, name, &mut environment);
                self::soft(end, name, &mut soft);
            }
        }
        Self { options, environment, soft }
    }
}

/// Every option by name, those of TCP with their prefix.
fn flat(test: &TestRecord) -> Vec<(Cow<'static, str>, String)> {
    // A test is a struct of plain values: it can be written.
    let Ok(Value::Object(options)) = serde_json::to_value(test) else { return Vec::new() };
    let mut flat = Vec::with_capacity(options.len() + 4);
    for (name, value) in options {
        match value {
            Value::Object(inner) if name == "tcp" => {
                flat.extend(inner.iter().map(|(key, value)| (format!("tcp.{key}").into(), shown(value))));
            }
            value => flat.push((name.into(), shown(&value))),
        }
    }
    flat
}

fn hard(end: &RecordedEnd, name: &'static str, facts: &mut Facts) {
    let mut add = |field: &'static str, value: String| facts.push(fact(field, Some(name), value));
    add("cpu_model", or_none(&end.cpu_model));
    add("kernel", or_none(&end.kernel));
    add("hypervisor", text(&end.hypervisor));
    add("optimised", text(&end.process.optimised));
    add("page_bytes", text(&end.buffers.map(|buffers| buffers.page_bytes)));
    if let Some(device) = &end.device {
        add("device", device.name.clone());
        add("driver", or_none(&device.driver));
        add("provider", or_none(&device.provider));
        add("firmware", or_none(&device.firmware));
        add("link_layer", text(&device.link_layer));
        add("is_software", text(&device.is_software));
        add("rate_gbps", text(&device.rate_gbps));
        add("active_mtu_bytes", text(&device.active_mtu_bytes));
        add("path_mtu_bytes", text(&device.path_mtu_bytes));
        add("gid_type", text(&device.gid.as_ref().map(|gid| gid.kind)));
        add("inline_bytes", text(&device.inline_bytes));
    }
    if let Some(tcp) = &end.tcp {
        add("congestion", or_none(&tcp.congestion));
        add("busy_poll_us", text(&tcp.busy_poll_us));
    }
}

fn soft(end: &RecordedEnd, name: &'static str, facts: &mut Facts) {
    let mut add = |field: &'static str, value: String| facts.push(fact(field, Some(name), value));
    add("host", or_none(&end.host));
    add("os", or_none(&end.os));
    add("governor", or_none(&end.governor));
    add("clocksource", or_none(&end.clocksource));
    add("core", text(&end.core));
    add("numa_node", text(&end.numa_node));
    add("version", end.process.version.clone());
    if let Some(device) = &end.device {
        add("port", device.port.to_string());
        add("device.numa_node", text(&device.numa_node));
        add("node_guid", or_none(&device.node_guid));
    }
    if let Some(tcp) = &end.tcp {
        add("interface", or_none(&tcp.interface));
        add("same_link", text(&tcp.same_link));
    }
}

fn fact(name: &'static str, end: Option<&'static str>, value: String) -> (Field, String) {
    (Field { name: name.into(), end }, value)
}

fn or_none(text: &Option<String>) -> String {
    text.clone().unwrap_or_else(|| NONE.into())
}

/// A value as documents write it.
fn text(value: &impl Serialize) -> String {
    serde_json::to_value(value).map_or_else(|_| NONE.into(), |value| shown(&value))
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => NONE.into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
