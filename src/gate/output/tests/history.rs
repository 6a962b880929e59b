//! What keeps a history: Otava's CSV, and the JSON of github-action-benchmark.

use serde_json::Value;

use super::sample::{self, HOSTILE};
use crate::gate::compare::Better;
use crate::gate::output::{benchmark_action, otava};

fn printed(text: &str) -> String {
    text.replace(['\0', '\n', '\r', '\t', '\u{1b}', '\u{fffe}', '\u{2028}'], "\u{fffd}")
}

/// The header and the rows.
fn table(text: &str) -> Vec<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    reader.records().map(|record| record.unwrap().iter().map(Into::into).collect()).collect()
}

#[test]
fn a_sitting_that_lacks_what_most_have_is_no_row_and_what_most_lack_is_no_column() {
    let gate = sample::sittings();
    let table = table(&otava::to_string(&gate).unwrap());
    let hostile = format!("{}.rdma.64.bw", printed(HOSTILE));
    let names = ["send_lat.rdma.64.p50", "send_lat.rdma.64.p99", "send_lat.rdma.64.p99.9", &hostile];
    assert_eq!(table[0], [&["time", "sitting", "commit"], &names[..]].concat());
    // The third lacks p99, and the tenth has nothing.
    let rows: Vec<_> = [0, 1, 3, 4, 5, 6, 7, 8].map(|sitting| &gate.sittings[sitting]).into();
    assert_eq!(table.len(), 1 + rows.len() + 1);
    for (row, sitting) in table[1..].iter().zip(&rows) {
        assert_eq!(row[0], sitting.started_at);
    }
    assert_eq!(table[2][1], printed(HOSTILE));
    assert_eq!(table[3][2], "c0ffee3");
    assert_eq!(table.last().unwrap()[1..3], ["candidate".into(), printed(HOSTILE)]);
    for column in [3, 4, 6] {
        assert!(table.iter().all(|row| !row[column].is_empty()), "{}", table[0][column]);
    }
    // Median of fifteen values, the fourth sitting of the metric that all have.
    let median: f64 = table[3][3].parse().unwrap();
    assert!((median - 2310.0 * 1.009 * 1.001).abs() < 1e-6, "{median}");
    let yaml = otava::configuration(&gate, "history.csv");
    assert!(yaml.contains("\"send_lat.rdma.64.p50\": { direction: -1, scale: 1 }"), "{yaml}");
    assert!(yaml.contains("bw\": { direction: 1, scale: 1 }"), "{yaml}");
    assert!(yaml.contains("#   send_lat.rdma.64.p99.9: 5 of 9 sittings lack it\n"), "{yaml}");
    assert!(yaml.contains("#   baseline/2\n#   baseline/9\n"), "{yaml}");
    assert_eq!(yaml.lines().count(), 2 + 3 + 1 + 2 * 6 + 3, "{yaml}");
}

#[test]
fn a_gate_in_turns_is_one_row_of_its_candidate() {
    let gate = sample::turns();
    let table = table(&otava::to_string(&gate).unwrap());
    assert_eq!(table.len(), 2);
    assert_eq!(table[0].len(), 3 + gate.series.len());
    assert!(
        table[0].iter().any(|name| name.ends_with(".rdma.65536.depth128.events.rate1000.bw")),
        "{:?}",
        table[0]
    );
    assert_eq!(table[1].iter().filter(|cell| cell.is_empty()).count(), 2, "not comparable, invalid");
    let yaml = otava::configuration(&gate, "history.csv");
    assert!(yaml.contains("rdma.1048576.rate: the candidate lacks it\n"), "{yaml}");
    assert_eq!(otava::configuration(&sample::limits(), "history.csv"), "tests: {}\n");
}

#[test]
fn a_list_has_one_direction_and_each_entry_its_number() {
    let gate = sample::turns();
    let read = |better| -> Vec<Value> {
        serde_json::from_str(&benchmark_action::to_string(&gate, better).unwrap()).unwrap()
    };
    let (smaller, bigger) = (read(Better::Lower), read(Better::Higher));
    // Two were not measured.
    assert_eq!(smaller.len() + bigger.len(), gate.series.len() - 2);
    assert_eq!(smaller[0]["name"], "send_lat.rdma.64.p50");
    assert_eq!(smaller[0]["unit"], "ns");
    assert_eq!(smaller[0]["range"], "± 20.790");
    assert!((smaller[0]["value"].as_f64().unwrap() - 2312.31).abs() < 1e-6, "{}", smaller[0]);
    assert_eq!(smaller[0]["extra"], gate.series[0].message);
    for entry in &bigger {
        assert!(["bytes_per_s", "messages_per_s"].contains(&entry["unit"].as_str().unwrap()), "{entry}");
        assert!(entry["name"].as_str().unwrap().starts_with(&printed(HOSTILE)), "{entry}");
    }
    let failed = benchmark_action::to_string(&sample::failed(), Better::Lower).unwrap();
    assert_eq!(failed, "[]\n");
}
