//! Which address of which end: a pure choice from what both ends know of their ports.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, Step};
use crate::plan::{Connection, HOP_LIMIT, Side, Test};
use crate::verbs::{Gid, GidType, Grh, LinkLayer};

/// One entry of a port's GID table, with what the host knows of the address behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidFact {
    /// Index in the table.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// What the network speaks for it.
    pub kind: GidType,
    /// Bits of the subnet, for an address that an interface of this host holds.
    pub prefix: Option<u8>,
}

/// What one end tells the other of its port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PortFacts {
    /// Device and port, for messages.
    pub name: String,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Partition key the queue pair will use; `None` where it cannot be read.
    pub pkey: Option<u16>,
    /// Active path MTU in bytes.
    pub active_mtu: u32,
    /// Largest message in bytes.
    pub max_message: u64,
    /// RDMA READs this device can have outstanding as requester.
    pub max_reads_out: u32,
    /// RDMA READs this device accepts at once as responder.
    pub max_reads_in: u32,
    /// The device does atomic operations.
    pub atomics: bool,
    /// Valid entries.
    pub gids: Vec<GidFact>,
    /// The index the user of this end insists on.
    pub wanted: Option<u32>,
}

/// The choice, the same for both ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathChoice {
    /// Client's and server's GID, where the path has a global route header.
    pub gids: Option<(GidFact, GidFact)>,
    /// In bytes.
    pub mtu: u32,
    /// Why this pair and this MTU, for `-v`.
    pub reason: String,
}

impl PathChoice {
    /// The fields of the global route header of packets from this end; `None` where they have none.
    ///
    /// # Errors
    /// The GID's index does not fit an address.
    pub fn route(&self, side: Side, test: &Test) -> Result<Option<Grh>> {
        let Some((client, server)) = &self.gids else { return Ok(None) };
        let (source, dest) = if side == Side::Client { (client, server) } else { (server, client) };
        let source_index = u8::try_from(source.index).map_err(|_| {
            Error::failed(
                Step::ChoosePath,
                format!("GID index {} does not fit the 8 bits of an address", source.index),
            )
            .with_remedy("choose an index below 256 with -x")
        })?;
        Ok(Some(Grh {
            dest: dest.gid,
            source_index,
            hop_limit: test.hop_limit,
            traffic_class: test.traffic_class,
            flow_label: test.flow_label,
        }))
    }

    /// Agrees to a test that is to run over this path.
    ///
    /// # Errors
    /// Values for a header that packets on this path do not have, or datagrams beyond its MTU.
    pub fn admit(&self, test: &Test) -> Result<()> {
        let beyond = |size: &&u64| test.connection == Connection::Ud && **size > self.mtu.into();
        if let Some(size) = test.sizes.iter().find(beyond) {
            return Err(Error::failed(
                Step::ChoosePath,
                format!(
                    "size {size} is beyond the path's MTU: a datagram is one packet of at most {} bytes",
                    self.mtu
                ),
            )
            .with_remedy(format!(
                "use -s {} or less, raise the MTU (-m) where both ports have more, or use -c UC",
                self.mtu
            )));
        }
        let asked = [
            ("--tclass", u32::from(test.traffic_class), 0),
            ("--flow-label", test.flow_label, 0),
            ("--hop-limit", test.hop_limit.into(), HOP_LIMIT.into()),
        ];
        match asked.iter().find(|(_, value, default)| value != default) {
            Some((option, value, _)) if self.gids.is_none() => Err(Error::failed(
                Step::ChoosePath,
                format!("{option} {value} has no meaning: packets on this path have no global route header"),
            )
            .with_remedy(format!("name a GID with -x, which adds that header, or leave {option} away"))),
            _ => Ok(()),
        }
    }
}

/// A partition key without this bit is a limited member, which talks to full members alone (IBTA 10.9.3).
const FULL_MEMBER: u16 = 1 << 15;

/// The ends can talk: their keys name one partition, and one of them at least is a full member of it. Packets of
/// others are dropped without a word.
fn check_partition(client: &PortFacts, server: &PortFacts) -> Result<()> {
    let (Some(a), Some(b)) = (client.pkey, server.pkey) else { return Ok(()) };
    let keys = format!("{} has {a:#06x}, {} has {b:#06x}", client.name, server.name);
    let why = if (a ^ b) & !FULL_MEMBER != 0 {
        "the partition keys are of different partitions"
    } else if a & !FULL_MEMBER == 0 {
        "the partition keys are of no partition"
    } else if (a | b) & FULL_MEMBER == 0 {
        "both partition keys are of limited members, which cannot talk to each other"
    } else {
        return Ok(());
    };
    Err(Error::failed(Step::ChoosePath, format!("{why}: {keys}")).with_remedy(
        "choose other entries with --pkey-index on each end, or have the subnet manager put both into one partition, \
         one of them as a full member",
    ))
}

/// Path MTUs a queue pair can have (IBTA 9.2.5).
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// Chooses the pair of GIDs and the MTU. `route` tells, for an address, the source address this host (the client)
/// would use towards it.
///
/// # Errors
/// No usable pair, different link layers, or an MTU beyond a port; with what both ends have.
pub fn choose(
    client: &PortFacts,
    server: &PortFacts,
    mtu: Option<u32>,
    route: impl Fn(IpAddr) -> Option<IpAddr>,
) -> Result<PathChoice> {
    if client.link_layer != server.link_layer {
        return Err(Error::failed(
            Step::ChoosePath,
            format!(
                "link layers differ: {} is {}, {} is {}",
                client.name, client.link_layer, server.name, server.link_layer
            ),
        )
        .with_remedy("choose devices on the same network with -d and -i on each end"));
    }
    check_partition(client, server)?;
    let (mtu, mtu_reason) = choose_mtu(client, server, mtu)?;
    if client.link_layer == LinkLayer::Infiniband && client.wanted.is_none() && server.wanted.is_none() {
        check_subnet(client, server)?;
        for port in [client, server] {
            if port.lid == 0 {
                return Err(Error::failed(Step::ChoosePath, format!("{} has no LID", port.name))
                    .with_remedy("start a subnet manager (opensm) on the fabric"));
            }
        }
        let reason = format!(
            "LID {} -> LID {}, no global route header within a subnet; {mtu_reason}",
            client.lid, server.lid
        );
        return Ok(PathChoice { gids: None, mtu, reason });
    }
    let (ours, theirs) = (candidates(client)?, candidates(server)?);
    let best = ours
        .iter()
        .flat_map(|a| theirs.iter().map(move |b| (*a, *b)))
        .filter_map(|(a, b)| Some((rank(a, b, &route)?, a, b)))
        .max_by(|x, y| x.0.cmp(&y.0).then(y.1.index.cmp(&x.1.index)).then(y.2.index.cmp(&x.2.index)));
    let Some((rank, a, b)) = best else {
        return Err(no_pair(client, server, &ours, &theirs));
    };
    check_reach(client, server, (a, b), rank)?;
    let reason = format!("GID {} -> {}: {}; {mtu_reason}", a.index, b.index, rank.explain(a));
    Ok(PathChoice { gids: Some((a.clone(), b.clone())), mtu, reason })
}

/// Why no GID of one end talks to any of the other.
fn no_pair(client: &PortFacts, server: &PortFacts, ours: &[&GidFact], theirs: &[&GidFact]) -> Error {
    let has = format!("{} has {}; {} has {}", client.name, list(ours), server.name, list(theirs));
    let is_common_type = ours.iter().any(|a| theirs.iter().any(|b| a.kind == b.kind));
    let (what, remedy) = if ours.is_empty() || theirs.is_empty() {
        (
            "an end has no GID",
            "give its interface an address and bring it up, or choose another device with -d on each end",
        )
    } else if is_common_type {
        (
            "no GIDs of one type are of the same family",
            "give both interfaces an IPv4 address, or both an IPv6 one; or choose with -x on each end",
        )
    } else {
        (
            "the GIDs are of different types, which do not understand each other",
            "have both devices speak RoCE v2 (in configfs, rdma_cm/DEVICE/ports/PORT/default_roce_mode), or choose \
             entries of one type with -x on each end",
        )
    };
    Error::failed(Step::ChoosePath, format!("{what}: {has}")).with_remedy(remedy)
}

/// Packets of RoCE v1 are not routed: they have no IP header (IBTA annex A16). Others may be, though nobody may know the
/// way, which is why it is told with the choice.
fn check_reach(client: &PortFacts, server: &PortFacts, pair: (&GidFact, &GidFact), rank: Rank) -> Result<()> {
    let (a, b) = pair;
    if a.kind != GidType::RoceV1 || rank.same_subnet || a.prefix.is_none() || a.gid.is_link_local() {
        return Ok(());
    }
    Err(Error::failed(
        Step::ChoosePath,
        format!(
            "RoCE v1 does not leave a subnet, and the ends are in different ones: {} has {}; {} has {}",
            client.name,
            list(&[a]),
            server.name,
            list(&[b])
        ),
    )
    .with_remedy("put both into one subnet, or have both devices speak RoCE v2, which is routed"))
}

/// A LID is one of a subnet, which the upper half of each GID names (IBTA 4.1.1); a port whose GIDs are not known is taken
/// to be in the same.
fn check_subnet(client: &PortFacts, server: &PortFacts) -> Result<()> {
    let prefix = |port: &PortFacts| port.gids.first().map(|gid| Ipv6Addr::from(gid.gid).to_bits() >> 64);
    match (prefix(client), prefix(server)) {
        (Some(a), Some(b)) if a != b => Err(Error::failed(
            Step::ChoosePath,
            format!(
                "the ports are in different subnets: {} has the prefix {a:#018x}, {} has {b:#018x}",
                client.name, server.name
            ),
        )
        .with_remedy(
            "choose ports of one fabric with -d and -i, or go through its router with -x on each end",
        )),
        _ => Ok(()),
    }
}

fn choose_mtu(client: &PortFacts, server: &PortFacts, wanted: Option<u32>) -> Result<(u32, String)> {
    let most = client.active_mtu.min(server.active_mtu);
    if let Some(port) = [client, server].into_iter().find(|port| port.active_mtu == 0) {
        return Err(Error::failed(Step::ChoosePath, format!("{} reports no active MTU", port.name))
            .with_remedy("see that the port is up, and its driver knows the MTU (ibv_devinfo)"));
    }
    match wanted {
        None => Ok((
            most,
            format!("MTU {most}, the smaller active MTU of {} and {}", client.active_mtu, server.active_mtu),
        )),
        Some(mtu) if MTUS.contains(&mtu) && mtu <= most => Ok((mtu, format!("MTU {mtu} as asked for"))),
        Some(mtu) => Err(Error::failed(
            Step::ChoosePath,
            format!(
                "MTU {mtu} is not possible: the active MTU is {} of {} and {} of {}",
                client.active_mtu, client.name, server.active_mtu, server.name
            ),
        )
        .with_remedy(format!(
            "use one of 256, 512, 1024, 2048, 4096, at most {most}, or raise the interfaces' MTU"
        ))),
    }
}

fn candidates(port: &PortFacts) -> Result<Vec<&GidFact>> {
    let Some(wanted) = port.wanted else { return Ok(port.gids.iter().collect()) };
    match port.gids.iter().find(|gid| gid.index == wanted) {
        Some(gid) => Ok(vec![gid]),
        None => Err(Error::failed(
            Step::ChoosePath,
            format!(
                "{} has no GID at index {wanted}; it has {}",
                port.name,
                list(&port.gids.iter().collect::<Vec<_>>())
            ),
        )
        .with_remedy("choose one of these with -x, or leave -x away")),
    }
}

fn list(gids: &[&GidFact]) -> String {
    if gids.is_empty() {
        return "none".into();
    }
    gids.iter().map(|g| format!("{} ({}, {})", g.index, g.gid, g.kind)).collect::<Vec<_>>().join(", ")
}

/// Why a pair is good, most important first; compared as a tuple.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    kind: u8,
    family: u8,
    same_subnet: bool,
    on_route: bool,
}

impl Rank {
    fn explain(self, gid: &GidFact) -> String {
        let mut why =
            format!("both {}, {}", gid.kind, ["link-local", "IPv6", "IPv4"][usize::from(self.family)]);
        match (self.same_subnet, gid.prefix) {
            (true, _) => why += ", same subnet",
            (false, Some(_)) => why += ", different subnets",
            (false, None) => {}
        }
        if self.on_route {
            why += ", the kernel's route to it";
        }
        why
    }
}

fn rank(a: &GidFact, b: &GidFact, route: &impl Fn(IpAddr) -> Option<IpAddr>) -> Option<Rank> {
    let family = family(a.gid);
    if a.kind != b.kind || family != self::family(b.gid) {
        return None;
    }
    let kind = match a.kind {
        GidType::RoceV2 => 2,
        GidType::RoceV1 => 1,
        GidType::Infiniband => 0,
    };
    let (from, to) = (address(a.gid), address(b.gid));
    Some(Rank {
        kind,
        family,
        same_subnet: a.prefix.is_some_and(|bits| is_same_subnet(from, to, bits)),
        on_route: route(to) == Some(from),
    })
}

/// 2 IPv4, 1 global IPv6, 0 link-local: only link-local needs a scope that the other end may not share.
fn family(gid: Gid) -> u8 {
    match (gid.is_v4_mapped(), gid.is_link_local()) {
        (true, _) => 2,
        (false, false) => 1,
        (false, true) => 0,
    }
}

/// The address behind a GID.
pub fn address(gid: Gid) -> IpAddr {
    let address = Ipv6Addr::from(gid);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

fn is_same_subnet(a: IpAddr, b: IpAddr, bits: u8) -> bool {
    let same = |a: u128, b: u128, width: u32| {
        (a ^ b).checked_shr(width - u32::from(bits).min(width)).unwrap_or(0) == 0
    };
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(u32::from(a).into(), u32::from(b).into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.into(), b.into(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
