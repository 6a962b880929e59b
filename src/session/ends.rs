//! The facts of one end, as the result document gives them.

use std::net::{IpAddr, SocketAddr, TcpStream};

use crate::host::{self, CpuEvidence, Fingerprint, Machine};
use crate::measure::Clock;
use crate::plan::Side;
use crate::result::{Device, Document, End, Gid, GidType, LinkLayer, Process, TcpEnd};
use crate::transport::path::{self, GidFact, PathChoice};
use crate::transport::rdma::{Port, Rdma};
use crate::transport::tcp::Granted;
use crate::verbs;

/// What is known before the ends are connected. Says in the document what could not be had.
pub fn describe(document: &mut Document, side: Side, port: Option<&Port>, core: Option<usize>) -> End {
    let (machine, missing) = Machine::read();
    for fact in missing {
        let fact = fact.within("local");
        document.miss(fact.path, fact.reason);
    }
    let numa_node = core.and_then(host::node_of_core);
    if core.is_some() && numa_node.is_none() {
        document.miss("local.numa_node", "the kernel has no NUMA node for the core");
    }
    let (fingerprint, missing) = Fingerprint::read(core, port.map(|port| port.device().name()));
    for fact in missing {
        let fact = fact.within("local.fingerprint");
        document.miss(fact.path, fact.reason);
    }
    let device = port.map(device);
    if let Some(reason) = port.and_then(|port| port.pkey().err()) {
        document.miss("local.device.pkey", reason);
    }
    if device.as_ref().is_some_and(|device| device.numa_node.is_none()) {
        document.miss("local.device.numa_node", "the device is on no NUMA node that the kernel names");
    }
    let process = Process::current();
    let evidence = Some(CpuEvidence::probe());
    End {
        side,
        machine,
        core,
        numa_node,
        fingerprint: Some(fingerprint),
        buffers: None,
        process,
        clock: None,
        evidence,
        idle_machine: None,
        device,
        tcp: None,
    }
}

fn device(port: &Port) -> Device {
    let (handle, attr) = (port.device(), port.attr());
    let emulated = handle.provider() == verbs::ProviderKind::Emulated;
    Device {
        name: handle.name().into(),
        driver: handle.driver(),
        provider: if emulated { Some(Device::EMULATED.into()) } else { handle.driver() },
        firmware: Some(port.device_attr().firmware.clone()).filter(|firmware| !firmware.is_empty()),
        link_layer: match attr.link_layer {
            verbs::LinkLayer::Infiniband => LinkLayer::InfiniBand,
            _ => LinkLayer::Ethernet,
        },
        is_software: handle.is_software(),
        rate_gbps: attr.rate_gbps,
        active_mtu_bytes: Some(attr.active_mtu),
        path_mtu_bytes: None,
        port: port.number(),
        gid: None,
        lid: (attr.link_layer == verbs::LinkLayer::Infiniband).then_some(attr.lid),
        pkey_index: Some(port.pkey_index()),
        pkey: port.pkey().ok().map(|pkey| format!("{pkey:#06x}")),
        netdev: None,
        numa_node: host::node_of_device(handle.name()),
        inline_bytes: None,
        node_guid: handle.guid_text(),
    }
}

/// Adds what the clock is.
pub fn add_clock(end: &mut End, clock: &Clock) {
    end.clock = Some(clock.report().into());
}

/// Adds what was chosen and granted.
pub fn add_path(end: &mut End, port: &Port, choice: &PathChoice, rdma: &Rdma) {
    let Some(device) = &mut end.device else { return };
    let gid =
        choice.gids.as_ref().map(|(client, server)| if end.side == Side::Client { client } else { server });
    device.path_mtu_bytes = Some(choice.mtu);
    device.inline_bytes = Some(rdma.caps().max_inline);
    device.netdev = gid.and_then(|gid| port.netdev(gid.index));
    device.gid = gid.map(gid_of);
}

fn gid_of(fact: &GidFact) -> Gid {
    Gid {
        index: fact.index,
        address: fact.gid.to_string(),
        kind: match fact.kind {
            verbs::GidType::Infiniband => GidType::InfiniBand,
            verbs::GidType::RoceV1 => GidType::RoceV1,
            verbs::GidType::RoceV2 => GidType::RoceV2,
        },
    }
}

/// Adds the socket, whether it runs over the RDMA port's own interface, and what the kernel granted. Returns what it
/// does not tell: the key, and why.
pub fn add_socket(end: &mut End, stream: &TcpStream) -> Vec<(&'static str, String)> {
    let granted = Granted::of(stream);
    let (local, peer) = (stream.local_addr().ok(), stream.peer_addr().ok());
    let source = local.map(|local| local.ip().to_canonical());
    // A link-local address is on the interface of its scope, and on no other.
    let scope = |address: SocketAddr| match address {
        SocketAddr::V6(address) => Some(address.scope_id()).filter(|scope| *scope > 0),
        SocketAddr::V4(_) => None,
    };
    let interface = peer
        .and_then(|peer| host::route_to(peer.ip().to_canonical(), source, scope(peer)).ok())
        .map(|route| route.interface);
    let netdev = end.device.as_ref().and_then(|device| device.netdev.clone());
    let same_link = match (&netdev, &interface) {
        (Some(netdev), Some(interface)) => Some(netdev == interface),
        _ => None,
    };
    end.tcp = Some(TcpEnd {
        local_address: local.map(|address| address.to_string()),
        peer_address: peer.map(|address| address.to_string()),
        interface,
        same_link,
        send_buffer_bytes: granted.send_buffer.clone().ok(),
        receive_buffer_bytes: granted.receive_buffer.clone().ok(),
        congestion: granted.congestion.clone().ok(),
        busy_poll_us: granted.busy_poll_us.clone().ok(),
    });
    let reasons = [
        ("send_buffer_bytes", granted.send_buffer.err()),
        ("receive_buffer_bytes", granted.receive_buffer.err()),
        ("congestion", granted.congestion.err()),
        ("busy_poll_us", granted.busy_poll_us.err()),
    ];
    reasons.into_iter().filter_map(|(key, reason)| Some((key, reason?))).collect()
}

/// The addresses a TCP connection over the RDMA path would have, client's and server's; `None` where the path has no
/// address that a socket can use.
pub fn addresses(choice: &PathChoice) -> Option<(IpAddr, IpAddr)> {
    let (client, server) = choice.gids.as_ref()?;
    let usable = |gid: &GidFact| gid.kind != verbs::GidType::Infiniband && !gid.gid.is_link_local();
    (usable(client) && usable(server)).then(|| (path::address(client.gid), path::address(server.gid)))
}
