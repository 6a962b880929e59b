//! What a person sees: a line a port with the verdict, then each device in full.

use super::listing::{Device, Gid, Limits, Listing, Port, ProviderKind};
use super::usable::Code;
use crate::report::text::{labelled, plain, wrap};
use crate::result::{GidType, LinkLayer};
use crate::units::{format_count, format_size};
use crate::verbs::AtomicCap;

/// What stands where a value could not be had.
const NONE: &str = "-";

/// The whole listing, no line wider than `width` where words allow it.
pub fn render(listing: &Listing, width: Option<usize>) -> String {
    let mut out = overview(listing, width);
    if let Some(advice) = &listing.advice {
        out += &labelled("advice", advice, width);
    }
    for device in &listing.devices {
        out += "\n";
        out += &in_full(device, width);
    }
    out
}

/// A column of the overview.
struct Column {
    title: &'static str,
    cells: Vec<String>,
}

impl Column {
    fn width(&self) -> usize {
        self.cells.iter().map(String::len).max().unwrap_or_default().max(self.title.len())
    }

    /// Numbers to the right, words to the left.
    fn lay(&self, cell: &str) -> String {
        let width = self.width();
        match self.title {
            "Gb/s" | "MTU" => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        }
    }
}

/// One line a port, without the columns that there is no room for.
fn overview(listing: &Listing, width: Option<usize>) -> String {
    /// Columns in the order in which they go when room is short.
    const EXPENDABLE: [&str; 3] = ["MTU", "kind", "state"];
    let mut columns = ["port", "kind", "link", "state", "Gb/s", "MTU", "usable"]
        .map(|title| Column { title, cells: Vec::new() })
        .into_iter()
        .collect::<Vec<_>>();
    for device in &listing.devices {
        // A device that cannot be opened and is not described has no ports, and is listed all the same.
        let ports: Vec<Option<&Port>> =
            if device.ports.is_empty() { vec![None] } else { device.ports.iter().map(Some).collect() };
        for port in ports {
            let cells = [
                port.map_or_else(|| device.name.clone(), |port| format!("{}/{}", device.name, port.number)),
                kind(device).into(),
                link(port.and_then(|port| port.link_layer)).into(),
                text(port.and_then(|port| port.state)),
                text(port.and_then(|port| port.rate_gbps)),
                text(port.and_then(|port| port.active_mtu_bytes)),
                verdict(port).into(),
            ];
            for (column, cell) in columns.iter_mut().zip(cells) {
                column.cells.push(plain(&cell));
            }
        }
    }
    for title in EXPENDABLE {
        let total: usize = columns.iter().map(|column| column.width() + 2).sum();
        if width.is_none_or(|width| total <= width + 2) {
            break;
        }
        columns.retain(|column| column.title != title);
    }
    let line = |cells: Vec<String>| cells.join("  ").trim_end().to_owned() + "\n";
    let mut out = line(columns.iter().map(|column| column.lay(column.title)).collect());
    for row in 0..columns[0].cells.len() {
        out += &line(columns.iter().map(|column| column.lay(&column.cells[row])).collect());
    }
    out
}

fn verdict(port: Option<&Port>) -> &'static str {
    match port.map(|port| port.reason.code) {
        Some(Code::Usable) => "yes",
        Some(Code::Emulated) => "loopback",
        _ => "no",
    }
}

fn kind(device: &Device) -> &'static str {
    match device.provider_kind {
        _ if device.emulated => "EMULATED",
        ProviderKind::Hardware => "hardware",
        ProviderKind::Software => "software",
        ProviderKind::Unknown => "unknown",
    }
}

fn link(layer: Option<LinkLayer>) -> &'static str {
    match layer {
        Some(LinkLayer::InfiniBand) => "InfiniBand",
        Some(LinkLayer::Ethernet) => "Ethernet",
        None => NONE,
    }
}

fn text(value: Option<impl ToString>) -> String {
    value.map_or_else(|| NONE.into(), |value| value.to_string())
}

/// A device with its ports, their addresses and its limits.
fn in_full(device: &Device, width: Option<usize>) -> String {
    let mut parts = vec![device.name.clone(), kind(device).into()];
    parts.push(format!("driver {}", text(device.driver.as_ref())));
    parts.push(format!("firmware {}", text(device.firmware.as_ref())));
    parts.push(format!("node GUID {}", text(device.node_guid.as_ref())));
    parts.push(format!("NUMA node {}", text(device.numa_node)));
    let mut out = in_parts(&parts, 2, width);
    if let Some(error) = device.error.as_ref().filter(|_| device.ports.is_empty()) {
        out += &remark("not usable", &error.message, error.remedy.as_deref(), 2, width);
    }
    for port in &device.ports {
        out += &port_in_full(port, width);
    }
    if let Some(limits) = &device.limits {
        out += &in_parts(&limits_in_full(limits), 10, width);
    }
    out
}

fn port_in_full(port: &Port, width: Option<usize>) -> String {
    let physical = port.physical_state.map(|state| format!(" ({state})")).unwrap_or_default();
    let mut parts = vec![
        format!("  port {}", port.number),
        format!("{}{physical}", text(port.state)),
        link(port.link_layer).into(),
        match (port.rate_gbps, port.width) {
            (Some(rate), Some(lanes)) => format!("{rate} Gb/s {lanes}X"),
            (Some(rate), None) => format!("{rate} Gb/s"),
            (None, _) => "speed -".into(),
        },
        format!("MTU {} of {}", text(port.active_mtu_bytes), text(port.max_mtu_bytes)),
    ];
    if port.link_layer != Some(LinkLayer::Ethernet) {
        parts.push(format!("LID {}", text(port.lid)));
    }
    parts.push(format!("messages to {}", text(port.max_msg_sz.map(format_size))));
    let mut out = in_parts(&parts, 10, width);
    let gids = port.gids.as_deref().unwrap_or_default();
    let digits = gids.iter().map(|gid| gid.index.to_string().len()).max().unwrap_or_default();
    let addresses = gids.iter().map(|gid| gid.address.len()).max().unwrap_or_default();
    for gid in gids {
        out += &wrap(&gid_in_full(gid, digits, addresses), 12, width);
    }
    let reason = &port.reason;
    let (label, message) = match reason.code {
        Code::Usable => ("usable", reason.message.trim_start_matches("usable").trim_start_matches(", ")),
        Code::Emulated => ("loopback only", reason.message.as_str()),
        _ => ("not usable", reason.message.as_str()),
    };
    out + &remark(label, message, reason.remedy.as_deref(), 4, width)
}

fn gid_in_full(gid: &Gid, digits: usize, addresses: usize) -> String {
    let kind = match gid.kind {
        GidType::InfiniBand => "IB",
        GidType::RoceV1 => "RoCE v1",
        GidType::RoceV2 => "RoCE v2",
    };
    let (index, address) = (gid.index, &gid.address);
    let netdev = gid.netdev.as_deref().unwrap_or_default();
    format!("    GID {index:>digits$}  {kind:<7}  {address:<addresses$}  {netdev}")
}

/// An indented line with what it is, and a second one with what to do.
fn remark(label: &str, message: &str, remedy: Option<&str>, indent: usize, width: Option<usize>) -> String {
    let mut out = wrap(&format!("{:indent$}{label}  {message}", ""), indent + 2, width);
    if let Some(remedy) = remedy {
        out += &wrap(&format!("{:indent$}  try: {remedy}", ""), indent + 7, width);
    }
    out
}

fn limits_in_full(limits: &Limits) -> [String; 9] {
    let count = |number: u32| format_count(number.into());
    let region = match limits.max_mr_size {
        u64::MAX => "unlimited".into(),
        bytes => format_size(bytes),
    };
    let atomic = match limits.atomic_cap {
        AtomicCap::None => "none",
        AtomicCap::Device => "among this device's queue pairs",
        AtomicCap::Global => "global",
    };
    [
        "  limits".into(),
        format!("{} QPs of {} work requests", count(limits.max_qp), count(limits.max_qp_wr)),
        format!("{} SGEs", count(limits.max_sge)),
        format!("{} CQs of {} entries", count(limits.max_cq), count(limits.max_cqe)),
        match limits.max_srq_wr {
            0 => "no SRQs".into(),
            most => format!("SRQs of {} receives, {} SGEs", count(most), count(limits.max_srq_sge)),
        },
        format!("memory region {region}"),
        format!("reads and atomics {} in, {} out", limits.max_qp_rd_atom, limits.max_qp_init_rd_atom),
        format!("atomics {atomic}"),
        match limits.max_inline_data {
            Some(most) => format!("inline {most}"),
            None => "inline - (no verb tells it)".into(),
        },
    ]
}

/// Parts two spaces apart, each in one piece as far as there is room; lines after the first are indented.
fn in_parts(parts: &[String], indent: usize, width: Option<usize>) -> String {
    let mut out = String::new();
    let mut column = 0;
    for (index, part) in parts.iter().map(|part| plain(part)).enumerate() {
        if index > 0 && width.is_some_and(|width| column + 2 + part.len() > width) {
            out += &format!("\n{:indent$}", "");
            column = indent;
        } else if index > 0 {
            out += "  ";
            column += 2;
        }
        column += part.len();
        out += &part;
    }
    out + "\n"
}
