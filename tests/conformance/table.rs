//! The table of all rules, as a page.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use crate::rule::Group;

const GROUPS: &[Group] = &[
    crate::transitions::GROUP,
    crate::posting::GROUP,
    crate::operations::GROUP,
    crate::slices::GROUP,
    crate::atomics::GROUP,
    crate::lists::GROUP,
    crate::queues::GROUP,
    crate::srq::GROUP,
    crate::events::GROUP,
    crate::async_events::GROUP,
    crate::remote_faults::GROUP,
    crate::local_faults::GROUP,
    crate::peers::GROUP,
    crate::flush::GROUP,
    crate::uc::GROUP,
    crate::ud::GROUP,
];

const HEAD: &str = "\
# Conformance

What a device must do so that its numbers mean what they say, rule by rule. Each rule is a test of the same name:
`cargo test --test conformance` checks them on the emulated devices, `emu0` with an Ethernet port and `emu1` with an
InfiniBand port, and `scripts/test --only lab-conformance` on the kernel's Soft-RoCE driver. Any other device is
checked with `VERBMARK_CONFORMANCE_DEVICE=mlx5_0 cargo test --test conformance -- --test-threads=1`: one
at a time, because counters of a port are everybody's.

Two queue pairs of one process, A and B, talk through one port; A is the requester. The source is a man page of
rdma-core, or a section of the InfiniBand Architecture Specification, volume 1 (IBTA). Where devices differ the
specification decides; what a driver is known to do otherwise is listed last, and its test asks for exactly that.

This page is written by `UPDATE_TABLES=1 cargo test --test conformance`.
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    for group in GROUPS {
        let _ = write!(page, "\n## {}\n\n| rule | what must hold | source |\n|---|---|---|\n", group.title);
        for rule in group.rules {
            let mark = if rule.deviation.is_some() { " †" } else { "" };
            let _ = writeln!(page, "| `{}`{mark} | {} | {} |", rule.name, rule.expectation, rule.source);
        }
    }
    page += "\n## Known deviations\n\nOf the rules marked †.\n\n";
    page += "| driver | kernel | rule | what it does instead |\n|---|---|---|---|\n";
    for rule in GROUPS.iter().flat_map(|group| group.rules) {
        if let Some(known) = &rule.deviation {
            let _ = writeln!(
                page,
                "| {} | {} | `{}` | {} |",
                known.driver, known.kernel, rule.name, known.instead
            );
        }
    }
    page
}

#[test]
fn the_page_is_the_one_on_file() {
    let page = page();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/conformance.md");
    if std::env::var_os("UPDATE_TABLES").is_some() {
        std::fs::write(&path, &page).expect("the page is part of the source tree");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    for (new, old) in page.lines().zip(expected.lines()) {
        assert_eq!(new, old, "{} is out of date", path.display());
    }
    assert!(page == expected, "{} is out of date", path.display());
}

#[test]
fn every_rule_has_a_name_of_its_own_and_a_source() {
    let mut names = BTreeSet::new();
    for rule in GROUPS.iter().flat_map(|group| group.rules) {
        assert!(names.insert(rule.name), "{} is there twice", rule.name);
        assert!(rule.source.contains("(3)") || rule.source.contains("IBTA "), "{} has no source", rule.name);
        assert!(!rule.expectation.contains('|') && rule.expectation.ends_with('.'), "{}", rule.name);
    }
}
