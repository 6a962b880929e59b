//! The choice of a path, and what is refused before there is any traffic.

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

#[test]
fn gids_that_do_not_understand_each_other_are_told_apart() {
    let a = port("a", vec![gid(1, "10.7.0.1", RoceV1, 24), gid(2, "fe80::1", RoceV1, 64)]);
    let mut b = port("b", vec![gid(5, "10.7.0.2", RoceV2, 24)]);
    let refused = |a: &PortFacts, b: &PortFacts, says: &[&str]| {
        let error = choose(a, b, None, |_| None).unwrap_err();
        let said = format!("{error}; {:?}", error.remedy);
        says.iter().for_each(|part| assert!(said.contains(part), "no {part} in {said}"));
    };
    refused(&a, &b, &["different types", "10.7.0.1, RoCE v1", "10.7.0.2, RoCE v2", "default_roce_mode"]);
    b.gids = vec![gid(0, "2001:db8::2", RoceV1, 64)];
    refused(&a, &b, &["same family", "2001:db8::2", "IPv4 address"]);
    b.gids.clear();
    refused(&a, &b, &["an end has no GID", "b has none"]);
}

#[test]
fn what_is_not_routed_stays_within_a_subnet() {
    let mut a = port("a", vec![gid(1, "10.7.0.1", RoceV1, 24)]);
    let mut b = port("b", vec![gid(1, "10.8.0.2", RoceV1, 24)]);
    let error = choose(&a, &b, None, |_| None).unwrap_err();
    assert!(error.message.contains("10.7.0.1") && error.message.contains("10.8.0.2"), "{error}");
    (a.gids[0].kind, b.gids[0].kind) = (RoceV2, RoceV2);
    let choice = choose(&a, &b, None, |_| None).unwrap();
    assert!(choice.reason.contains("different subnets"), "{}", choice.reason);
}

#[test]
fn lids_are_of_one_subnet() {
    let mut a = port("a", vec![gid(0, "fe80::1", GidType::Infiniband, 64)]);
    (a.link_layer, a.lid) = (LinkLayer::Infiniband, 3);
    let mut b = a.clone();
    assert!(choose(&a, &b, None, |_| None).is_ok());
    b.gids = vec![gid(0, "fec0:0:0:1::2", GidType::Infiniband, 64)];
    let error = choose(&a, &b, None, |_| None).unwrap_err();
    for part in ["different subnets", "0xfe80000000000000", "0xfec0000000000001"] {
        assert!(error.message.contains(part), "no {part} in {error}");
    }
    // With GIDs asked for, a router may lead there.
    (a.wanted, b.wanted) = (Some(0), Some(0));
    let crossing = choose(&a, &b, None, |_| None);
    assert!(crossing.err().is_none_or(|error| !error.message.contains("subnets")));
}

#[test]
fn a_port_without_an_active_mtu_is_named() {
    let mut a = port("a", vec![gid(1, "10.7.0.1", RoceV2, 24)]);
    let b = a.clone();
    (a.active_mtu, a.name) = (0, "down0/1".into());
    assert!(choose(&a, &b, None, |_| None).unwrap_err().message.contains("down0/1 reports no active MTU"));
}
