//! The interval log reads back as what the document holds.

use crate::documents;

use std::time::Duration;

use base64::Engine as _;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use verbmark::measure::LatencyHistogram;
use verbmark::report::hlog;
use verbmark::result::{Basis, Document};

/// Tag, start, length, maximum in us and distribution of each line.
fn lines(log: &str) -> Vec<(String, Duration, Duration, f64, hdrhistogram::Histogram<u64>)> {
    IntervalLogIterator::new(log.as_bytes())
        .filter_map(|entry| match entry.expect("the log parses") {
            LogEntry::Interval(line) => {
                let bytes =
                    base64::engine::general_purpose::STANDARD.decode(line.encoded_histogram()).unwrap();
                let histogram = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
                let tag = line.tag().expect("each line is tagged").as_str().to_owned();
                Some((tag, line.start_timestamp(), line.duration(), line.max(), histogram))
            }
            _ => None,
        })
        .collect()
}

#[test]
fn each_result_is_a_tagged_line() {
    let mut document = documents::latency();
    document.results[0].start_s = Some(0.25);
    document.results[1].start_s = Some(1.5);
    let log = hlog::to_string(&document).unwrap();
    let lines = lines(&log);
    assert_eq!(lines.len(), 4);
    for (row, (tag, start, length, max_us, histogram)) in document.results.iter().zip(&lines) {
        assert_eq!(*tag, row.id);
        assert_eq!(*length, Duration::from_secs(1));
        assert_eq!(*histogram, row.histogram.as_ref().unwrap().decode().unwrap());
        assert!((max_us * 1e3 / histogram.max() as f64 - 1.0).abs() < 0.001, "{max_us}");
        if let Some(told) = row.start_s {
            assert_eq!(start.as_secs_f64(), told);
        }
    }
    assert_eq!(lines[2].1, Duration::from_millis(2_500), "a row without a start follows the one before");
    assert!(log.contains("#[BaseTime: 1795970742.000 "), "{log}");
}

#[test]
fn a_result_with_intervals_has_a_line_for_each() {
    let mut whole = LatencyHistogram::with_intervals();
    for second in 1..=3 {
        (0..100 * second).for_each(|i| whole.record(1000 * second + i));
        whole.end_interval(second * 1_000_000_000);
    }
    whole.close(3_500_000_000);
    let mut document = documents::latency();
    document.results.truncate(1);
    let row = document.results.remove(0).with_latency(&whole, Basis::HalfRoundTrip);
    document.results.push(verbmark::result::ResultRow { start_s: Some(0.25), ..row });
    // As in older documents.
    let mut without = document.results[0].clone();
    without.take_interval_payloads();
    let lines = lines(&hlog::to_string(&document).unwrap());
    let starts: Vec<_> = lines.iter().map(|line| (line.1.as_secs_f64(), line.2.as_secs_f64())).collect();
    assert_eq!(starts, [(0.25, 1.0), (1.25, 1.0), (2.25, 1.0)]);
    let mut sum = hdrhistogram::Histogram::new_from(whole.buckets());
    for (index, (tag, .., histogram)) in lines.iter().enumerate() {
        assert_eq!(*tag, document.results[0].id);
        assert_eq!(histogram.len(), 100 * (index as u64 + 1));
        sum.add(histogram).unwrap();
    }
    assert_eq!(sum, *whole.buckets());
    document.results = vec![without];
    let one = self::lines(&hlog::to_string(&document).unwrap());
    assert_eq!((one.len(), one[0].4.len()), (1, 600));
}

#[test]
fn what_has_no_distribution_has_no_line() {
    for document in [documents::bandwidth(), documents::failed_before_plan()] {
        let log = hlog::to_string(&document).unwrap();
        assert!(lines(&log).is_empty(), "{log}");
        assert!(log.starts_with("#["), "{log}");
        assert_eq!(log.contains("[a bandwidth test"), !document.results.is_empty(), "{log}");
    }
}

#[test]
fn a_document_from_elsewhere_cannot_break_the_log() {
    let mut document = documents::latency();
    document.started_at = "yesterday".into();
    document.run_id = "two\nlines".into();
    for (row, id) in document.results.iter_mut().zip(["a,b c", "new\nline", "", "\u{e9}"]) {
        row.id = id.into();
        (row.start_s, row.window_s) = (Some(f64::MAX), Some(-1.0));
    }
    let document = Document::from_json(&serde_json::to_string(&document).unwrap()).unwrap();
    let tags: Vec<_> = lines(&hlog::to_string(&document).unwrap()).into_iter().map(|line| line.0).collect();
    assert_eq!(tags, ["a_b_c", "new_line", "", "\u{e9}"]);
}
