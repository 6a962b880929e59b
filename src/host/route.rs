//! The way the kernel would send a packet, asked of its routing table without sending one.
//!
//! A socket bound to an address does not tell: of two interfaces on one subnet the kernel may send from the address of
//! one by the other. So the question goes over `rtnetlink(7)`, as `ip route get` does; where that is not to be had, a
//! connected datagram socket tells the source address at least.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::net::if_::if_indextoname;
use serde::{Deserialize, Serialize};

use super::interfaces::{holder, interfaces};
use super::netlink::{self, Failure};

/// Which way packets to an address would go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Source address they would have.
    pub source: IpAddr,
    /// Interface they would leave by. `lo` when the address is one of this host's own.
    pub interface: String,
    /// Kernel's number of that interface.
    pub interface_index: u32,
    /// First hop, when the address is not on the interface's own subnet.
    pub gateway: Option<IpAddr>,
    /// The routing table said so itself. Otherwise the interface is the one that holds the source address, which is
    /// not always the one packets leave by.
    pub from_table: bool,
}

/// The way to `peer`, optionally for packets from `source` and for a socket bound to the interface of this index, which
/// a link-local address needs.
///
/// # Errors
/// There is no way, or `source` is no address of this host.
pub fn route_to(peer: IpAddr, source: Option<IpAddr>, interface: Option<u32>) -> Result<Route, String> {
    let (peer, source) = (peer.to_canonical(), source.map(|source| source.to_canonical()));
    if source.is_some_and(|source| source.is_ipv4() != peer.is_ipv4()) {
        return Err(format!("no way to {peer}: the source is not of its family"));
    }
    match ask(peer, source, interface) {
        Ok(answer) => answer.describe(peer, source),
        Err(Failure::Refused(errno)) => Err(format!("no way to {peer}: {errno}")),
        Err(Failure::Unavailable) => guess(peer, source, interface),
    }
}

/// What the table says (`rtnetlink(7)`, attributes of `RTM_NEWROUTE`).
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    interface: Option<u32>,
    source: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

impl Answer {
    fn describe(self, peer: IpAddr, asked: Option<IpAddr>) -> Result<Route, String> {
        let index = self.interface.ok_or_else(|| format!("the route to {peer} has no interface"))?;
        let source =
            asked.or(self.source).ok_or_else(|| format!("the route to {peer} has no source address"))?;
        let name = if_indextoname(index).map_err(|errno| format!("interface {index}: {errno}"))?;
        let interface = name.to_string_lossy().into_owned();
        Ok(Route { source, interface, interface_index: index, gateway: self.gateway, from_table: true })
    }
}

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
/// Bytes of `struct rtmsg`.
const ROUTE: usize = 12;
/// Address families as the kernel numbers them.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

fn ask(peer: IpAddr, source: Option<IpAddr>, interface: Option<u32>) -> Result<Answer, Failure> {
    let (family, bits) = if peer.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) };
    let mut body = [0; ROUTE];
    body[..3].copy_from_slice(&[family, bits, if source.is_some() { bits } else { 0 }]);
    let attributes = [
        Some((RTA_DST, octets(peer))),
        source.map(|source| (RTA_SRC, octets(source))),
        interface.map(|index| (RTA_OIF, index.to_ne_bytes().to_vec())),
    ];
    let attributes: Vec<(u16, &[u8])> =
        attributes.iter().flatten().map(|(kind, value)| (*kind, value.as_slice())).collect();
    let answer = netlink::ask(RTM_GETROUTE, &body, &attributes, RTM_NEWROUTE)?;
    Ok(parse(answer.get(ROUTE..).ok_or(Failure::Unavailable)?))
}

fn parse(attributes: &[u8]) -> Answer {
    let mut answer = Answer::default();
    for (kind, value) in netlink::attributes(attributes) {
        match kind {
            RTA_OIF => answer.interface = netlink::word(value),
            RTA_PREFSRC => answer.source = address(value),
            RTA_GATEWAY => answer.gateway = address(value),
            _ => {}
        }
    }
    answer
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    }
}

fn address(value: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(value).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok()
}

/// A datagram socket that is connected sends nothing, and has the source address the kernel would use (`udp(7)`).
fn guess(peer: IpAddr, source: Option<IpAddr>, interface: Option<u32>) -> Result<Route, String> {
    /// Any port does; this one is "discard".
    const PORT: u16 = 9;
    let failed = |e: std::io::Error| format!("no way to {peer}: {e}");
    let any =
        if peer.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let socket = UdpSocket::bind((source.unwrap_or(any), 0)).map_err(failed)?;
    let mut target = SocketAddr::new(peer, PORT);
    if let (SocketAddr::V6(six), Some(index)) = (&mut target, interface) {
        six.set_scope_id(index);
    }
    socket.connect(target).map_err(failed)?;
    let source = socket.local_addr().map_err(failed)?.ip();
    let all = interfaces()?;
    let holder = holder(&all, source).ok_or_else(|| format!("no interface holds {source}"))?;
    Ok(Route {
        source,
        interface: holder.name.clone(),
        interface_index: holder.index,
        gateway: None,
        from_table: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_this_host_is_the_loopback_interface() {
        let peer = "127.0.0.1".parse().unwrap();
        let route = route_to(peer, None, None).unwrap();
        assert_eq!((route.source, route.interface.as_str(), route.gateway), (peer, "lo", None));
        assert!(route.from_table, "{route:?}");
        let mapped = route_to("::ffff:127.0.0.1".parse().unwrap(), None, None).unwrap();
        assert_eq!(mapped, route);
        let from: IpAddr = "127.0.0.5".parse().unwrap();
        assert_eq!(route_to(peer, Some(from), Some(route.interface_index)).unwrap().source, from);
    }

    #[test]
    fn both_ways_to_ask_agree_where_they_can() {
        let peer: IpAddr = "127.0.0.1".parse().unwrap();
        let (asked, guessed) = (route_to(peer, None, None).unwrap(), guess(peer, None, None).unwrap());
        assert_eq!(Route { from_table: false, ..asked }, guessed);
    }

    #[test]
    fn no_way_is_an_error_that_names_the_address() {
        let peer: IpAddr = "127.0.0.1".parse().unwrap();
        for source in ["192.0.2.77", "::1"] {
            let error = route_to(peer, Some(source.parse().unwrap()), None).unwrap_err();
            assert!(error.starts_with("no way to 127.0.0.1: "), "{error}");
        }
    }

    #[test]
    fn an_address_is_of_four_or_sixteen_bytes() {
        assert_eq!(address(&[10, 7, 0, 1]), Some("10.7.0.1".parse().unwrap()));
        assert_eq!(address(&[0; 16]), Some("::".parse().unwrap()));
        assert_eq!(address(&[0; 5]), None);
        for text in ["10.7.0.1", "fe80::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(address(&octets(ip)), Some(ip));
        }
    }
}
