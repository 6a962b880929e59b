//! The lines above a table: what was measured, on what.

use super::numbers::significant;
use super::text::{plain, wrap};
use crate::result::{
    Arrivals, Basis, Device, Document, GidType, LinkLayer, Shape, TestRecord, Transport, Wait,
};
use crate::units::format_rate;

/// Where the right half of a header begins when there is room.
const RIGHT: usize = 60;

/// All lines, laid out in two halves where `width` allows it, else one below the other.
pub fn lines(document: &Document, width: Option<usize>) -> String {
    let binary = &document.tool.binary;
    let Some(test) = &document.test else {
        return wrap(&format!("{binary}  no test was agreed"), 2, width);
    };
    let left = [format!("{binary}  {}", how(test)), unit(test).into()].map(|text| plain(&text));
    let right = [device(document), tcp(document, test)].map(|text| plain(&text));

    let left_width = left.iter().map(String::len).max().unwrap_or_default();
    let right_width = right.iter().map(String::len).max().unwrap_or_default();
    let fits = |column: usize| column >= left_width + 2 && width.is_none_or(|w| column + right_width <= w);
    match [RIGHT, left_width + 2].into_iter().find(|column| fits(*column)) {
        Some(column) => left.iter().zip(&right).map(|(l, r)| format!("{l:<column$}{r}\n")).collect(),
        None => left.iter().chain(&right).map(|text| wrap(text, 2, width)).collect(),
    }
}

/// How messages were sent: connection, waiting, depth.
fn how(test: &TestRecord) -> String {
    let wait = match test.wait {
        _ if test.compare_waits => "busy polling and events",
        Wait::Busy => "busy polling",
        Wait::Events => "events",
    };
    let depth = match test.shape {
        Shape::Latency if test.rate_per_s.is_some() => format!("open loop, depth {}", test.depth),
        Shape::Latency => format!("closed loop, depth {}", test.depth),
        Shape::Bandwidth => format!("{} outstanding", test.tx_depth),
    };
    let arrivals = match test.arrivals {
        Arrivals::Constant => "constant",
        Arrivals::Poisson => "poisson",
    };
    let mut parts = vec![test.connection.to_string(), wait.into(), depth];
    parts.extend(test.rate_per_s.map(|rate| format!("{}/s {arrivals}", format_rate(rate))));
    if !test.rate_shares.is_empty() {
        parts.push(format!("then open loops of {} of its rate, {arrivals}", shares(&test.rate_shares)));
    }
    parts.extend((test.qps > 1).then(|| format!("{} queue pairs", test.qps)));
    parts.extend((test.threads > 1).then(|| format!("{} threads", test.threads)));
    parts.join("  ")
}

/// Shares of a rate, the first and the last of them where there are many.
fn shares(shares: &[f64]) -> String {
    let percent = |share: &f64| format!("{}%", significant(Some(share * 100.0), 7));
    match shares {
        [first, .., last] if shares.len() > 3 => format!("{}..{}", percent(first), percent(last)),
        _ => shares.iter().map(percent).collect::<Vec<_>>().join(","),
    }
}

/// What the numbers are.
fn unit(test: &TestRecord) -> &'static str {
    match (test.shape, Basis::of(test)) {
        (Shape::Latency, Basis::HalfRoundTrip) => "latency in us, half of the round trip",
        (Shape::Latency, Basis::RoundTrip) => "latency in us, the whole round trip",
        (Shape::Bandwidth, _) => "payload; Gb is 10^9 bits, GiB 2^30 bytes",
    }
}

/// The device and the path between both ends.
fn device(document: &Document) -> String {
    let of = |end: &'_ Option<_>| end.as_ref().and_then(|end: &crate::result::End| end.device.clone());
    let Some(local) = of(&document.local) else {
        return "no RDMA device".into();
    };
    let remote = of(&document.remote);

    let port = |device: &Device| format!("{}/{}", device.name, device.port);
    let mut parts = vec![pair(port(&local), remote.as_ref().map(port))];
    parts.push(network(&local).into());
    let mtu = local.path_mtu_bytes.or(local.active_mtu_bytes);
    parts.extend(mtu.map(|mtu| format!("MTU {mtu}")));
    let remote_gid = remote.as_ref().and_then(|device| device.gid.as_ref());
    if let Some(gid) = &local.gid {
        let mut text = format!("GID {} {}", gid.index, gid.address);
        if let Some(other) = remote_gid {
            let index =
                if other.index == gid.index { String::new() } else { format!("GID {} ", other.index) };
            text += &format!(" -> {index}{}", other.address);
        }
        parts.push(text);
    } else if let Some(lid) = local.lid {
        parts.push(format!(
            "LID {}",
            pair(lid.to_string(), remote.and_then(|d| d.lid).map(|l| l.to_string()))
        ));
    }
    parts.join("  ")
}

/// `a -> b`, or `a` where both are the same or one is not known.
fn pair(local: String, remote: Option<String>) -> String {
    match remote {
        Some(remote) if remote != local => format!("{local} -> {remote}"),
        _ => local,
    }
}

/// The protocol on the wire.
fn network(device: &Device) -> &'static str {
    match (device.gid.as_ref().map(|gid| gid.kind), device.link_layer) {
        (Some(GidType::RoceV1), LinkLayer::Ethernet) => "RoCE v1",
        (Some(GidType::RoceV2), LinkLayer::Ethernet) => "RoCE v2",
        (_, LinkLayer::Ethernet) => "Ethernet",
        (_, LinkLayer::InfiniBand) => "InfiniBand",
    }
}

/// The baseline beside it.
fn tcp(document: &Document, test: &TestRecord) -> String {
    if !test.transports.contains(&Transport::Tcp) {
        return "tcp not measured".into();
    }
    let end = document.local.as_ref().and_then(|end| end.tcp.as_ref());
    let over =
        end.and_then(|tcp| tcp.interface.as_ref()).map(|name| format!(" over {name}")).unwrap_or_default();
    let link = match end.and_then(|tcp| tcp.same_link) {
        _ if !test.transports.contains(&Transport::Rdma) => "",
        Some(true) => " (the same link)",
        Some(false) => " (NOT the same link)",
        None => " (not known to be the same link)",
    };
    let wait = match test.wait {
        _ if test.compare_waits => "spinning and blocking",
        Wait::Busy => "spinning",
        Wait::Events => "blocking",
    };
    format!("tcp{over}{link}, {wait}")
}
