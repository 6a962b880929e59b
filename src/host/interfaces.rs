//! Network interfaces and their addresses (`getifaddrs(3)`, `netdevice(7)`, `rtnetlink(7)`).

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;
use serde::{Deserialize, Serialize};

use super::netlink;

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Name, as in `eth0`.
    pub name: String,
    /// Kernel's number of it; a GID table entry names its interface by this.
    pub index: u32,
    /// Largest packet in bytes, without the link's header.
    pub mtu_bytes: Option<u32>,
    /// Administratively up (`IFF_UP`).
    pub up: bool,
    /// Has a carrier (`IFF_RUNNING`).
    pub running: bool,
    /// Leads to this host only (`IFF_LOOPBACK`).
    pub loopback: bool,
    /// IP addresses of both families, in the kernel's order.
    pub addresses: Vec<Address>,
}

/// One address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Bits of its subnet; `None` when the kernel gives no mask.
    pub prefix: Option<u8>,
}

/// All interfaces of this network namespace, in the kernel's order.
///
/// # Errors
/// What the kernel said when asked for them.
pub fn interfaces() -> Result<Vec<Interface>, String> {
    let entries = getifaddrs().map_err(|errno| format!("getifaddrs: {errno}"))?;
    let mut interfaces: Vec<Interface> = Vec::new();
    for entry in entries {
        // An address with a label stands under it, as in `eth0:1`; the interface is `eth0` all the same.
        let name = entry.interface_name.split(':').next().unwrap_or_default();
        let at = match interfaces.iter().position(|known| known.name == name) {
            Some(at) => at,
            None => {
                // Gone since it was listed.
                let Ok(index) = if_nametoindex(name) else { continue };
                let has = |flag| entry.flags.contains(flag);
                interfaces.push(Interface {
                    name: name.to_owned(),
                    index,
                    mtu_bytes: mtu(index),
                    up: has(InterfaceFlags::IFF_UP),
                    running: has(InterfaceFlags::IFF_RUNNING),
                    loopback: has(InterfaceFlags::IFF_LOOPBACK),
                    addresses: Vec::new(),
                });
                interfaces.len() - 1
            }
        };
        if let Some(ip) = entry.address.as_ref().and_then(ip) {
            let prefix = entry.netmask.as_ref().and_then(self::ip).map(ones);
            interfaces[at].addresses.push(Address { ip, prefix });
        }
    }
    Ok(interfaces)
}

/// The interface that holds `address`; a v4-mapped one counts as the IPv4 address it is.
pub fn holder(interfaces: &[Interface], address: IpAddr) -> Option<&Interface> {
    let address = address.to_canonical();
    interfaces.iter().find(|interface| interface.addresses.iter().any(|held| held.ip == address))
}

/// Not from `/sys/class/net`, which may show the interfaces of another network namespace under the same names.
fn mtu(index: u32) -> Option<u32> {
    const RTM_NEWLINK: u16 = 16;
    const RTM_GETLINK: u16 = 18;
    const IFLA_MTU: u16 = 4;
    /// Bytes of `struct ifinfomsg`, and where the index is in it.
    const LINK: (usize, usize) = (16, 4);
    let mut body = [0; LINK.0];
    body[LINK.1..LINK.1 + 4].copy_from_slice(&index.to_ne_bytes());
    let answer = netlink::ask(RTM_GETLINK, &body, &[], RTM_NEWLINK).ok()?;
    netlink::attributes(answer.get(LINK.0..)?)
        .find(|(kind, _)| *kind == IFLA_MTU)
        .and_then(|(_, value)| netlink::word(value))
}

/// Bits set in a network mask.
fn ones(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(four) => u32::from(four).count_ones(),
        IpAddr::V6(six) => u128::from(six).count_ones(),
    };
    ones as u8
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let four = address.as_sockaddr_in().map(|four| IpAddr::V4(four.ip()));
    four.or_else(|| address.as_sockaddr_in6().map(|six| IpAddr::V6(six.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_there_and_holds_its_address() {
        let all = interfaces().unwrap();
        let lo = holder(&all, "127.0.0.1".parse().unwrap()).expect("127.0.0.1 is held");
        assert!(lo.loopback && lo.up && lo.index > 0, "{lo:?}");
        assert!(lo.mtu_bytes.is_some_and(|mtu| mtu > 0), "{lo:?}");
        let held = lo.addresses.iter().find(|held| held.ip == IpAddr::from([127, 0, 0, 1])).unwrap();
        assert_eq!(held.prefix, Some(8));
        assert_eq!(holder(&all, "::ffff:127.0.0.1".parse().unwrap()), Some(lo));
        assert_eq!(holder(&all, "192.0.2.1".parse().unwrap()), None);
        let mut names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
        let before = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), before, "each once");
    }

    #[test]
    fn the_mtu_is_that_of_the_interface_asked_for() {
        for interface in interfaces().unwrap() {
            let file = format!("/sys/class/net/{}/mtu", interface.name);
            // Not there where `/sys` is another namespace's.
            if let Ok(text) = std::fs::read_to_string(file) {
                assert_eq!(interface.mtu_bytes, text.trim().parse().ok(), "{interface:?}");
            }
        }
        assert_eq!(mtu(u32::MAX), None);
    }
}
