//! What a person sees. The tables stand in `tests/tables`; `UPDATE_TABLES=1 cargo test --test behaviour report_table::`
//! writes them anew.

use crate::documents;

use std::path::Path;

use verbmark::measure::LatencyHistogram;
use verbmark::ops::Verb;
use verbmark::report::{Table, render};
use verbmark::result::{Basis, Document, ResultRow, Shape, Side, Transport, Wait};

/// Compares a table with the one on file.
fn check(name: &str, document: &Document, width: Option<usize>) {
    let table = render(document, width);
    let suffix = width.map(|width| format!("-{width}")).unwrap_or_default();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/tables/{name}{suffix}.txt"));
    if std::env::var_os("UPDATE_TABLES").is_some() {
        std::fs::write(&path, &table).expect("the tables are part of the source tree");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(table, expected, "{}", path.display());
}

#[test]
fn tables_are_those_on_file() {
    for (name, document) in documents::all() {
        for width in [None, Some(80), Some(60)] {
            check(&name.replace(' ', "-"), &document, width);
        }
    }
}

#[test]
fn what_is_printed_in_pieces_is_what_is_printed_at_once() {
    for (name, finished) in documents::all() {
        let mut before = finished.clone();
        before.results.clear();
        before.comparison.clear();
        before.warnings.clear();
        let table = Table::new(&before, Some(100));
        let mut printed = table.header().to_owned();
        for rows in finished.results.chunk_by(|a, b| a.point.is_grouped_with(&b.point)) {
            printed += &table.point(rows);
        }
        printed += &table.footer(&finished);
        assert_eq!(printed, render(&finished, Some(100)), "{name}");
    }
}

/// The fields of the line that begins with (or, under a size, holds) `transport`.
fn fields(table: &str, transport: &str) -> Vec<String> {
    let line = table.lines().find(|line| line.split_whitespace().any(|word| word == transport));
    let line = line.unwrap_or_else(|| panic!("no {transport} in\n{table}"));
    let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    let start = words.iter().position(|word| word == transport).unwrap();
    words[start + 1..].to_vec()
}

fn only(verb: Verb, rows: Vec<ResultRow>) -> Document {
    let mut document = documents::agreed("send_lat", &documents::test(verb, Shape::Latency, &[64]));
    rows.into_iter().for_each(|row| document.add_row(row));
    document.finish();
    document
}

#[test]
fn half_of_the_round_trip_is_shown_where_the_header_says_so() {
    let mut histogram = LatencyHistogram::new();
    (0..100).for_each(|_| histogram.record(3_000));
    let row = |basis| {
        ResultRow::new(Transport::Rdma, documents::point(64, 1), Side::Client).with_latency(&histogram, basis)
    };
    let half = render(&only(Verb::Send, vec![row(Basis::HalfRoundTrip)]), None);
    assert!(half.contains("half of the round trip"), "{half}");
    assert_eq!(fields(&half, "rdma")[..3], ["100", "1.50", "1.50"]);

    let whole = render(&only(Verb::Read, vec![row(Basis::RoundTrip)]), None);
    assert!(whole.contains("the whole round trip") && !whole.contains("half"), "{whole}");
    assert_eq!(fields(&whole, "rdma")[..3], ["100", "3.00", "3.00"]);

    let mixed = render(&only(Verb::Send, vec![row(Basis::RoundTrip)]), None);
    assert!(mixed.contains("this row is the whole round trip"), "{mixed}");
}

#[test]
fn a_value_that_could_not_be_had_is_a_dash() {
    let table = render(&only(Verb::Send, vec![documents::latency_row(Transport::Rdma, 64, 15, 2_000)]), None);
    let cells = fields(&table, "rdma");
    assert_eq!(cells[2..7], ["-"; 5], "no percentile has ten samples beyond it: {table}");

    let mut row = documents::bandwidth_row(Transport::Rdma, 64, 1_000);
    row.cpu.server = None;
    let bandwidth = row.bandwidth.as_mut().unwrap();
    (bandwidth.bytes_per_s, bandwidth.interval_min_bytes_per_s) = (None, None);
    let mut document = documents::agreed("write_bw", &documents::test(Verb::Write, Shape::Bandwidth, &[64]));
    document.add_row(row);
    let table = render(&document, None);
    assert_eq!(
        fields(&table, "rdma"),
        ["-", "-", "0.00100", "1.00", "s", "-", "1,000,000", "-", "path"],
        "{table}"
    );
}

#[test]
fn one_host_flags_its_ratio() {
    let mut document = documents::latency();
    document.same_host = Some(true);
    let table = render(&document, None);
    assert!(table.contains("tcp/rdma*"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("*  one host")), "{table}");
    assert!(!render(&documents::latency(), None).contains('*'));
}

#[test]
fn software_and_unknown_providers_are_named() {
    for (is_software, label) in [(Some(true), "SOFTWARE"), (None, "UNKNOWN")] {
        let mut document = documents::latency();
        let device = document.remote.as_mut().unwrap().device.as_mut().unwrap();
        device.is_software = is_software;
        device.provider = Some("rxe".into());
        document.finish();
        let table = render(&document, None);
        let line = table.lines().find(|line| line.starts_with(label)).unwrap_or_else(|| panic!("{table}"));
        assert!(
            line.contains("rxe") && line.contains("Neither zero copy nor kernel bypass is claimed"),
            "{line}"
        );
    }
    assert!(!render(&documents::latency(), None).contains("zero copy"), "hardware needs no disclaimer");
}

#[test]
fn what_has_no_column_stands_below_its_row() {
    let mut row = documents::latency_row(Transport::Rdma, 64, 1_000, 2_000);
    row.point.offered_per_s = Some(100_000.0);
    row.late = Some(3);
    (row.sent, row.received, row.lost) = (Some(1_003), Some(1_000), Some(3));
    row.validity.invalid("3 messages lost on RC");
    let document = only(Verb::Send, vec![row]);
    let table = render(&document, None);
    assert!(table.contains("offered 100,000/s, achieved 1,000/s, late 3"), "{table}");
    assert!(table.contains("sent 1,003, received 1,000, lost 3"), "{table}");
    assert!(table.contains("INVALID: 3 messages lost on RC"), "{table}");
    assert!(table.contains("must not be trusted"), "{table}");
}

#[test]
fn the_header_says_what_the_path_is() {
    let mut test = documents::test(Verb::Send, Shape::Bandwidth, &[64]);
    test.wait = Wait::Events;
    (test.qps, test.threads) = (4, 2);
    test.transports = vec![Transport::Rdma];
    let mut document = documents::agreed("send_bw", &test);
    for (end, lid) in [(&mut document.local, 5), (&mut document.remote, 7)] {
        let device = end.as_mut().unwrap().device.as_mut().unwrap();
        device.link_layer = verbmark::result::LinkLayer::InfiniBand;
        (device.gid, device.lid, device.port) = (None, Some(lid), u8::try_from(lid).unwrap());
    }
    let table = render(&document, None);
    assert!(table.starts_with("send_bw  RC  events  128 outstanding  4 queue pairs  2 threads  "), "{table}");
    assert!(table.contains("mlx5_0/5 -> mlx5_0/7  InfiniBand  MTU 4096  LID 5 -> 7"), "{table}");
    assert!(table.contains("tcp not measured"), "{table}");

    let mut other = documents::latency();
    other.local.as_mut().unwrap().tcp.as_mut().unwrap().same_link = Some(false);
    other.remote.as_mut().unwrap().device.as_mut().unwrap().gid.as_mut().unwrap().index = 1;
    let table = render(&other, None);
    assert!(table.contains("tcp over eth2 (NOT the same link), spinning"), "{table}");
    assert!(table.contains("GID 3 ::ffff:10.7.0.1 -> GID 1 ::ffff:10.7.0.2"), "{table}");
}

#[test]
fn a_peer_cannot_command_the_terminal() {
    let mut document = documents::latency();
    document.remote.as_mut().unwrap().device.as_mut().unwrap().name = "mlx\x1b]0;owned\x07\n5".into();
    document.warn("peer", "a\x1b[2Jb\u{202e}");
    for width in [None, Some(60)] {
        let table = render(&document, width);
        assert!(table.chars().all(|c| matches!(c, ' '..='~' | '\n')), "{table:?}");
    }
}
