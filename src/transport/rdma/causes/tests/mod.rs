//! Each status has causes, and the page has them all.

use std::fmt::Write;
use std::path::Path;

use super::*;

fn situations() -> impl Iterator<Item = Situation> {
    (0..24).map(|bits| Situation {
        connection: Connection::ALL[bits / 8],
        link_layer: [LinkLayer::Ethernet, LinkLayer::Infiniband][bits & 1],
        is_receive: bits & 2 != 0,
        port_is_active: bits & 4 != 0,
    })
}

#[test]
fn every_status_has_causes_in_every_situation_and_each_says_what_to_do() {
    for status in (1..=24).map(WcStatus::of_code) {
        for situation in situations() {
            let causes = causes(status, &situation);
            assert!(!causes.is_empty(), "{status:?} has no cause in {situation:?}");
            assert!(causes.len() <= 6, "{status:?} has more causes than anybody reads in {situation:?}");
            for cause in causes {
                assert!(cause.what.len() > 10 && cause.look.len() > 10, "{cause:?}");
                assert!(!cause.what.ends_with('.') && !cause.look.contains("; "), "{cause:?}");
            }
        }
    }
}

#[test]
fn no_status_is_explained_twice_and_each_names_its_sources() {
    for (index, explained) in EXPLAINED.iter().enumerate() {
        assert!(EXPLAINED[..index].iter().all(|other| other.status != explained.status));
        assert!(explained.sources.contains("IBTA ") && explained.says.ends_with('.'));
    }
}

#[test]
fn a_port_that_failed_comes_first() {
    for situation in situations().filter(|situation| !situation.port_is_active) {
        let first = causes(WcStatus::RETRY_EXC_ERR, &situation)[0];
        assert_eq!(first.what, PORT_FAILED.what);
    }
}

const HEAD: &str = "\
# What a failed run may come from

A work request that fails ends the run, with an error that names the operation, the queue pairs of both ends, the status
with its number and the vendor's code, and the facts of both ends that bear on it. A device tells no more than status,
vendor code and queue pair (`ibv_poll_cq(3)`); the rest is what both ends agreed on when they connected, and what the port
and its counters say now. Then come the likely causes, most likely first: those of this table that fit the service, the
link layer, and the end at which the request failed.

A queue pair that has failed flushes whatever is left: where the first completion seen is such a flush, the error that came
first is looked for at this end, and then heard from the other.

What does not fit is found before any traffic, and refused with the values of both ends: an MTU beyond one of the ports,
GIDs of different type or family, subnets that have no way to each other, partition keys, link layers, iWARP, messages or
datagrams that are too long, a port that is down.

IBTA is the InfiniBand Architecture Specification, volume 1; manual pages are those of rdma-core, files those of the Linux
kernel. This page is written by `UPDATE_TABLES=1 cargo test --lib causes`.
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    for Explained { status, says, sources, causes } in EXPLAINED {
        let _ = write!(page, "\n## {} ({})\n\n", status.name(), status.code());
        let _ =
            write!(page, "{says} *{sources}*\n\n| | where | cause | what to look at |\n|---|---|---|---|\n");
        for (index, Cause { when, what, look }) in causes.iter().enumerate() {
            let _ = writeln!(page, "| {} | {} | {what} | {look} |", index + 1, when.name());
        }
    }
    let _ = write!(page, "\n## Any other\n\nOf services and operations that this tool does not use.\n\n");
    for Cause { what, look, .. } in OTHERS {
        let _ = writeln!(page, "* {what}: {look}");
    }
    page
}

#[test]
fn the_page_is_the_one_on_file() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/diagnosis.md");
    let page = page();
    if std::env::var_os("UPDATE_TABLES").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == expected, "{} is out of date", path.display());
}
