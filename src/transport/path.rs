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
        return Err(Error::failed(
            Step::ChoosePath,
            format!(
                "no pair of GIDs of the same type and family: {} has {}; {} has {}",
                client.name,
                list(&ours),
                server.name,
                list(&theirs)
            ),
        )
        .with_remedy("give both interfaces an address of the same family, or choose with -x on each end"));
    };
    let reason = format!("GID {} -> {}: {}; {mtu_reason}", a.index, b.index, rank.explain(a));
    Ok(PathChoice { gids: Some((a.clone(), b.clone())), mtu, reason })
}

fn choose_mtu(client: &PortFacts, server: &PortFacts, wanted: Option<u32>) -> Result<(u32, String)> {
    let most = client.active_mtu.min(server.active_mtu);
    match wanted {
        None => Ok((
            most,
            format!("MTU {most}, the smaller active MTU of {} and {}", client.active_mtu, server.active_mtu),
        )),
        Some(mtu) if MTUS.contains(&mtu) && mtu <= most => Ok((mtu, format!("MTU {mtu} as asked for"))),
        Some(mtu) => Err(Error::failed(
            Step::ChoosePath,
            format!(
                "MTU {mtu} is not possible: active MTU is {} here and {} there",
                client.active_mtu, server.active_mtu
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
        if self.same_subnet {
            why += ", same subnet";
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
mod tests {
    use super::*;

    fn gid(index: u32, address: &str, kind: GidType, prefix: u8) -> GidFact {
        let address: IpAddr = address.parse().unwrap();
        let address = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        GidFact { index, gid: Gid::from(address), kind, prefix: Some(prefix) }
    }

    fn port(name: &str, gids: Vec<GidFact>) -> PortFacts {
        PortFacts {
            name: name.into(),
            link_layer: LinkLayer::Ethernet,
            lid: 0,
            pkey: Some(0xffff),
            active_mtu: 4096,
            max_message: 1 << 30,
            max_reads_out: 16,
            max_reads_in: 16,
            atomics: true,
            gids,
            wanted: None,
        }
    }

    fn pair(choice: &PathChoice) -> (u32, u32) {
        let (a, b) = choice.gids.as_ref().unwrap();
        (a.index, b.index)
    }

    use GidType::{RoceV1, RoceV2};

    #[test]
    fn type_family_and_subnet_agree_whatever_the_index() {
        let a = port(
            "a",
            vec![
                gid(0, "fe80::1", RoceV2, 64),
                gid(1, "10.7.0.1", RoceV1, 24),
                gid(3, "10.7.0.1", RoceV2, 24),
                gid(4, "192.168.1.1", RoceV2, 24),
            ],
        );
        let b = port(
            "b",
            vec![
                gid(0, "fe80::2", RoceV2, 64),
                gid(5, "192.168.1.2", RoceV2, 24),
                gid(9, "172.16.0.1", RoceV2, 16),
            ],
        );
        assert_eq!(pair(&choose(&a, &b, None, |_| None).unwrap()), (4, 5));
    }

    #[test]
    fn between_equals_the_route_decides_then_the_lower_index() {
        let a = port("a", vec![gid(1, "10.7.0.1", RoceV2, 24), gid(2, "10.7.0.9", RoceV2, 24)]);
        let b = port("b", vec![gid(1, "10.7.0.2", RoceV2, 24)]);
        assert_eq!(pair(&choose(&a, &b, None, |_| None).unwrap()), (1, 1));
        let choice = choose(&a, &b, None, |_| Some("10.7.0.9".parse().unwrap())).unwrap();
        assert_eq!(pair(&choice), (2, 1));
        assert!(choice.reason.contains("route"), "{}", choice.reason);
    }

    #[test]
    fn an_index_that_is_asked_for_is_used_or_refused_with_what_there_is() {
        let mut a = port("a", vec![gid(0, "fe80::1", RoceV2, 64), gid(1, "10.7.0.1", RoceV2, 24)]);
        let b = port("b", vec![gid(0, "fe80::2", RoceV2, 64), gid(1, "10.7.0.2", RoceV2, 24)]);
        a.wanted = Some(0);
        assert_eq!(pair(&choose(&a, &b, None, |_| None).unwrap()), (0, 0));
        a.wanted = Some(7);
        let error = choose(&a, &b, None, |_| None).unwrap_err();
        assert!(
            error.message.contains("no GID at index 7") && error.message.contains("::ffff:10.7.0.1"),
            "{error}"
        );
    }

    #[test]
    fn no_common_family_names_what_both_ends_have() {
        let a = port("a", vec![gid(1, "10.7.0.1", RoceV2, 24)]);
        let b = port("b", vec![gid(0, "fe80::2", RoceV2, 64)]);
        let error = choose(&a, &b, None, |_| None).unwrap_err();
        assert!(error.message.contains("10.7.0.1") && error.message.contains("fe80::2"), "{error}");
    }

    #[test]
    fn infiniband_within_a_subnet_needs_lids_and_no_gid() {
        let mut a = port("a", vec![]);
        a.link_layer = LinkLayer::Infiniband;
        a.lid = 3;
        let mut b = a.clone();
        b.lid = 4;
        assert_eq!(choose(&a, &b, None, |_| None).unwrap().gids, None);
        b.lid = 0;
        assert!(choose(&a, &b, None, |_| None).unwrap_err().message.contains("no LID"));
        b.link_layer = LinkLayer::Ethernet;
        assert!(choose(&a, &b, None, |_| None).unwrap_err().message.contains("link layers differ"));
    }

    #[test]
    fn ends_that_cannot_hear_each_other_are_told_so_with_both_keys() {
        let mut a = port("a", vec![gid(1, "10.7.0.1", RoceV2, 24)]);
        let mut b = a.clone();
        b.name = "b".into();
        for (ours, theirs, refusal) in [
            (Some(0xffff), Some(0xffff), None),
            (Some(0xffff), Some(0x7fff), None),
            (Some(0x7fff), Some(0xffff), None),
            (Some(0x7fff), Some(0x7fff), Some("limited members")),
            (Some(0x8001), Some(0xffff), Some("different partitions")),
            (Some(0x8000), Some(0x8000), Some("no partition")),
            (None, Some(0x8001), None),
        ] {
            (a.pkey, b.pkey) = (ours, theirs);
            let outcome = choose(&a, &b, None, |_| None);
            assert_eq!(outcome.is_err(), refusal.is_some(), "{ours:x?} {theirs:x?}");
            if let (Err(error), Some(why), Some(ours), Some(theirs)) = (outcome, refusal, ours, theirs) {
                for part in [why, &format!("a has {ours:#06x}"), &format!("b has {theirs:#06x}")] {
                    assert!(error.message.contains(part), "no {part} in {error}");
                }
            }
        }
    }

    #[test]
    fn each_end_sends_to_the_other_with_the_header_that_was_asked_for() {
        let a = port("a", vec![gid(3, "10.7.0.1", RoceV2, 24)]);
        let b = port("b", vec![gid(5, "10.7.0.2", RoceV2, 24)]);
        let words = "x --tclass 106 --flow-label 70000 --hop-limit 9".split_whitespace().map(Into::into);
        let typed = crate::cli::parse("x", "about", words).unwrap();
        let plan = crate::plan::resolve(typed, crate::ops::Verb::Send, crate::plan::Shape::Latency, 1);
        let test = plan.unwrap().test;
        let choice = choose(&a, &b, None, |_| None).unwrap();
        for (side, source_index, dest) in [(Side::Client, 3, &b), (Side::Server, 5, &a)] {
            let expected = Grh {
                dest: dest.gids[0].gid,
                source_index,
                hop_limit: 9,
                traffic_class: 106,
                flow_label: 70_000,
            };
            assert_eq!(choice.route(side, &test).unwrap(), Some(expected));
        }
        let local = PathChoice { gids: None, ..choice };
        assert_eq!(local.route(Side::Client, &test).unwrap(), None);
        assert!(local.admit(&test).unwrap_err().message.contains("--tclass 106"));
    }

    #[test]
    fn datagrams_beyond_the_mtu_are_refused() {
        let mut a = port("a", vec![gid(1, "10.7.0.1", RoceV2, 24)]);
        a.active_mtu = 1024;
        let choice = choose(&a, &a, None, |_| None).unwrap();
        for (line, refused) in [("-c UD -s 1k", false), ("-c UD -s 64,2k", true), ("-c UC -s 2k", false)] {
            let words = std::iter::once("x").chain(line.split_whitespace()).map(Into::into);
            let typed = crate::cli::parse("x", "about", words).unwrap();
            let plan = crate::plan::resolve(typed, crate::ops::Verb::Send, crate::plan::Shape::Latency, 1);
            let outcome = choice.admit(&plan.unwrap().test);
            assert_eq!(outcome.is_err(), refused, "{line}");
            assert!(outcome.err().is_none_or(|error| error.message.contains("size 2048")));
        }
    }

    #[test]
    fn the_smaller_active_mtu_holds_and_a_larger_one_is_refused() {
        let mut a = port("a", vec![gid(1, "10.7.0.1", RoceV2, 24)]);
        let b = a.clone();
        a.active_mtu = 1024;
        assert_eq!(choose(&a, &b, None, |_| None).unwrap().mtu, 1024);
        assert_eq!(choose(&a, &b, Some(512), |_| None).unwrap().mtu, 512);
        for mtu in [2048, 1000] {
            assert!(choose(&a, &b, Some(mtu), |_| None).is_err());
        }
    }
}
