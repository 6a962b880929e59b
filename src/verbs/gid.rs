//! Global identifiers: the addresses of ports.

use std::fmt;
use std::net::Ipv6Addr;

use ibverbs_sys::{IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, ibv_gid_entry};
use serde::{Deserialize, Serialize};

/// Global identifier of a port: 128 bits written as an IPv6 address, which on RoCE it is (IPv4 as `::ffff:10.7.0.1`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Ipv6Addr", into = "Ipv6Addr")]
pub struct Gid([u8; 16]);

impl Gid {
    /// A GID from its bytes in network order.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes in network order.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// Stands for an IPv4 address.
    pub fn is_v4_mapped(self) -> bool {
        self.as_ipv6().to_ipv4_mapped().is_some()
    }

    /// Is of `fe80::/10`, so is reached within its link only. The default GID of an InfiniBand port is.
    pub fn is_link_local(self) -> bool {
        self.as_ipv6().is_unicast_link_local()
    }

    /// The same as an address.
    pub fn as_ipv6(self) -> Ipv6Addr {
        self.0.into()
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<Gid> for Ipv6Addr {
    fn from(gid: Gid) -> Self {
        gid.as_ipv6()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ipv6().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// How packets to and from a GID look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GidType {
    /// InfiniBand.
    Infiniband,
    /// RoCE v1: an Ethernet type of its own, not routed.
    RoceV1,
    /// RoCE v2: UDP port 4791, routed.
    RoceV2,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Infiniband => "IB",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// A valid entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidEntry {
    /// The identifier.
    pub gid: Gid,
    /// Its place in the table: what a queue pair is given as the source of its packets.
    pub index: u32,
    /// Port, from 1.
    pub port: u8,
    /// How its packets look.
    pub kind: GidType,
    /// Index of the network interface it belongs to, or 0.
    pub ifindex: u32,
}

impl GidEntry {
    /// `None` for a type this version does not know, which it could not use either.
    pub(super) fn from_raw(raw: &ibv_gid_entry) -> Option<Self> {
        let kind = match raw.gid_type {
            IBV_GID_TYPE_IB => GidType::Infiniband,
            IBV_GID_TYPE_ROCE_V1 => GidType::RoceV1,
            IBV_GID_TYPE_ROCE_V2 => GidType::RoceV2,
            _ => return None,
        };
        Some(Self {
            // SAFETY: both members of the union are 16 bytes that may have any value.
            gid: Gid(unsafe { raw.gid.raw }),
            index: raw.gid_index,
            port: u8::try_from(raw.port_num).ok()?,
            kind,
            ifindex: raw.ndev_ifindex,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_read_as_addresses() {
        let v4 = Gid::new([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 7, 0, 1]);
        assert_eq!(v4.to_string(), "::ffff:10.7.0.1");
        assert!(v4.is_v4_mapped() && !v4.is_link_local());
        let local = Gid::from("fe80::5054:ff:fe00:1".parse::<Ipv6Addr>().unwrap());
        assert!(local.is_link_local() && !local.is_v4_mapped());
        assert_eq!(serde_json::to_string(&v4).unwrap(), r#""::ffff:10.7.0.1""#);
        assert_eq!(serde_json::from_str::<Gid>(r#""fe80::5054:ff:fe00:1""#).unwrap(), local);
    }

    #[test]
    fn gid_entries_keep_what_the_table_says() {
        let mut raw =
            ibv_gid_entry { gid_index: 3, port_num: 1, gid_type: 2, ndev_ifindex: 7, ..Default::default() };
        raw.gid.raw = [9; 16];
        let entry = GidEntry { gid: Gid::new([9; 16]), index: 3, port: 1, kind: GidType::RoceV2, ifindex: 7 };
        assert_eq!(GidEntry::from_raw(&raw), Some(entry));
        raw.gid_type = 77;
        assert_eq!(GidEntry::from_raw(&raw), None);
        assert_eq!(
            [GidType::Infiniband, GidType::RoceV1, GidType::RoceV2].map(|kind| kind.to_string()),
            ["IB", "RoCE v1", "RoCE v2"]
        );
    }
}
