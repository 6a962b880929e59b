//! The way to another host, as far as this one knows it.

use std::net::SocketAddr;
use std::time::Duration;

use super::code::Code;
use super::nic::Nic;
use super::record::{Checked, Checkup, PathFacts, RdmaOnPath, Verdict};
use crate::error::Error;
use crate::host::{self, Route};
use crate::oob::{self, Heard, LocalEnd, PROTOCOL, Target};
use crate::result::GidType;
use crate::verbs;

/// How long a server may take to answer, and so may the resolver.
const PATIENCE: Duration = Duration::from_secs(2);

/// Adds what is seen of the way to `host` and of a server on it. Connects and says what no client says: a server goes on
/// waiting for its client.
pub fn examine(checkup: &mut Checkup, host: &str, port: u16, nic: Option<&Nic>) {
    let looked = oob::look(&Target {
        host,
        port,
        timeout: PATIENCE,
        from: LocalEnd::default(),
        secret: None,
        stop: None,
    });
    let route = looked.as_ref().map_err(Clone::clone).and_then(|(address, _)| {
        let scope = match address {
            SocketAddr::V6(six) => Some(six.scope_id()).filter(|scope| *scope > 0),
            SocketAddr::V4(_) => None,
        };
        host::route_to(address.ip(), None, scope)
            .map_err(|why| Error::failed(crate::error::Step::ChoosePath, why))
    });
    let mtu = route.as_ref().map_err(|error| error.message.clone()).and_then(|route| {
        let all = host::interfaces()?;
        let own = all.iter().find(|interface| interface.index == route.interface_index);
        own.and_then(|interface| interface.mtu_bytes)
            .ok_or_else(|| format!("the kernel does not tell that of {}", route.interface))
    });
    let rdma = route.as_ref().map(ports_on).unwrap_or_default();

    checkup.found(Code::Route, way(&route, mtu.as_ref().ok()));
    checkup.found(
        Code::RdmaOnRoute,
        match &route {
            Ok(route) => on_way(route, &rdma, nic),
            Err(_) => Err("no way is known".into()),
        },
    );
    checkup.found(Code::Server, server(&looked, port));
    checkup.found(
        Code::Peer,
        Ok(Verdict::note("not asked: what it is like only it can tell")
            .mended_by(format!("verbmark doctor    # on {host}"))),
    );

    let untold = |error: &Error| error.message.clone();
    let of_route = |checkup: &mut Checkup, key: &str, value: fn(&Route) -> String| {
        checkup.keep(&format!("path.{key}"), route.as_ref().map(value).map_err(untold))
    };
    let address = looked.as_ref().map(|(address, _)| address.ip().to_string()).map_err(untold);
    let protocol = match &looked {
        Ok((_, Heard::Server(version))) => Ok(*version),
        Ok(_) => Err("no server of this suite answered".into()),
        Err(error) => Err(error.message.clone()),
    };
    let gateway = route.as_ref().ok().and_then(|route| route.gateway);
    checkup.path = Some(PathFacts {
        host: host.into(),
        port,
        address: checkup.keep("path.address", address),
        interface: of_route(checkup, "interface", |route| route.interface.clone()),
        source: of_route(checkup, "source", |route| route.source.to_string()),
        gateway: gateway.map(|gateway| gateway.to_string()),
        mtu_bytes: checkup.keep("path.mtu_bytes", mtu),
        rdma,
        server_protocol: checkup.keep("path.server_protocol", protocol),
    });
}

/// RDMA ports of this host with a GID of the interface that packets leave by. What this host sends to itself leaves by
/// the loopback interface, but for RDMA: that goes by the interface that has the address.
fn ports_on(route: &Route) -> Vec<RdmaOnPath> {
    let all = host::interfaces().unwrap_or_default();
    let interface = host::holder(&all, route.source).map_or(route.interface_index, |holder| holder.index);
    let mut found = Vec::new();
    for device in verbs::devices().unwrap_or_default().iter().filter(|device| !device.is_emulated()) {
        let Ok(context) = device.open() else { continue };
        let ports = context.attr().map_or(0, |attr| attr.port_count);
        for port in 1..=ports {
            for entry in context.gid_table(port).unwrap_or_default() {
                if entry.ifindex == interface {
                    found.push(RdmaOnPath {
                        device: device.name().into(),
                        port,
                        gid_index: entry.index,
                        address: entry.gid.to_string(),
                        kind: match entry.kind {
                            verbs::GidType::Infiniband => GidType::InfiniBand,
                            verbs::GidType::RoceV1 => GidType::RoceV1,
                            verbs::GidType::RoceV2 => GidType::RoceV2,
                        },
                    });
                }
            }
        }
    }
    found
}

fn way(route: &Result<Route, Error>, mtu: Option<&u32>) -> Checked {
    let route = match route {
        Ok(route) => route,
        Err(error) => {
            let verdict = Verdict::warning(error.message.clone());
            return Ok(match &error.remedy {
                Some(remedy) => verdict.mended_by(remedy),
                None => verdict,
            });
        }
    };
    let mtu = mtu.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default();
    let seen = format!("{} from {}{mtu}", route.interface, route.source);
    Ok(match route.gateway {
        Some(gateway) => Verdict::note(format!("{seen}, by way of {gateway}")),
        None => Verdict::ok(seen),
    })
}

fn on_way(route: &Route, rdma: &[RdmaOnPath], nic: Option<&Nic>) -> Checked {
    let mut names: Vec<String> = rdma.iter().map(|port| format!("{}/{}", port.device, port.port)).collect();
    names.dedup();
    let Some(first) = rdma.first() else {
        let seen = format!("no RDMA port with an address on the way from {}", route.source);
        return Ok(
            Verdict::warning(seen).mended_by("name the host by its address on the network of the RDMA ports")
        );
    };
    let chosen = nic.map(|nic| format!("{}/{}", nic.name, nic.port));
    Ok(match chosen {
        Some(chosen) if !names.contains(&chosen) => {
            Verdict::warning(format!("{}, not {chosen}", names.join(", ")))
                .mended_by(format!("-d {} -i {}", first.device, first.port))
        }
        _ => Verdict::ok(names.join(", ")),
    })
}

fn server(looked: &Result<(SocketAddr, Heard), Error>, port: u16) -> Checked {
    let (address, heard) = looked.as_ref().map_err(|error| error.message.clone())?;
    Ok(match heard {
        Heard::Server(version) if *version == PROTOCOL => {
            Verdict::ok(format!("answers at {address}, protocol {version}"))
        }
        Heard::Server(version) => {
            Verdict::warning(format!("{address} speaks protocol {version}, this end {PROTOCOL}"))
                .mended_by("the same version of verbmark at both ends")
        }
        Heard::Another(said) => Verdict::warning(format!("{address} is another program: {said}"))
            .mended_by("another port at both ends (-p)"),
        Heard::Silence(how) => {
            Verdict::note(format!("{address} took the connection: {how}; a server may be busy"))
        }
        Heard::Nobody(why) => Verdict::note(format!("none at {address}: {why}"))
            .mended_by(format!("verbmark serve -p {port}    # there; firewalls must let the port through")),
    })
}
