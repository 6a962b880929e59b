//! What holds for every document, whatever it measured.

use crate::documents;

use proptest::option;
use proptest::prelude::*;
use serde_json::Value;
use verbmark::ops::Verb;
use verbmark::report::{csv, hlog, json, render};
use verbmark::result::{
    Bandwidth, Basis, Cpu, CpuUse, Document, Histogram, Latency, ResultRow, Shape, Side, Transport,
};

/// A measured value: any magnitude, never negative, never a NaN.
fn value() -> impl Strategy<Value = f64> {
    prop_oneof![
        0.0..1e6_f64,
        prop::num::f64::POSITIVE,
        Just(0.0),
        prop::num::f64::SUBNORMAL.prop_map(f64::abs)
    ]
}

fn latency() -> impl Strategy<Value = Latency> {
    let percentiles = prop::array::uniform5(option::of(value()));
    (any::<bool>(), any::<u64>(), [value(), value(), value()], percentiles, option::of(value())).prop_map(
        |(half, samples, [min, max, mean], [p50, p90, p99, p99_9, p99_99], stdev)| Latency {
            basis: if half { Basis::HalfRoundTrip } else { Basis::RoundTrip },
            samples,
            min,
            p50,
            p90,
            p99,
            p99_9,
            p99_99,
            max,
            mean,
            stdev,
        },
    )
}

fn bandwidth() -> impl Strategy<Value = Bandwidth> {
    prop::array::uniform3(option::of(value())).prop_map(
        |[bytes_per_s, messages_per_s, interval_min_bytes_per_s]| Bandwidth {
            bytes_per_s,
            messages_per_s,
            interval_min_bytes_per_s,
        },
    )
}

fn cpu() -> impl Strategy<Value = CpuUse> {
    let idle = option::of(0.0..=1.0);
    (prop::array::uniform7(option::of(any::<u64>())), option::of(value()), idle).prop_map(
        |(
            [cpu_ns, user_ns, system_ns, voluntary_switches, involuntary_switches, page_faults, empty_polls],
            ns_per_message,
            idle_share,
        )| {
            CpuUse {
                cpu_ns,
                user_ns,
                system_ns,
                ns_per_message,
                voluntary_switches,
                involuntary_switches,
                page_faults,
                empty_polls,
                idle_share,
                ..CpuUse::default()
            }
            .per_byte(64)
        },
    )
}

fn row(shape: Shape) -> impl Strategy<Value = ResultRow> {
    let counts = prop::array::uniform4(option::of(any::<u64>()));
    let reason = option::of("[ -~]{0,40}");
    let seconds = option::of(value());
    let ends = [option::of(cpu()), option::of(cpu())];
    (any::<bool>(), 1..u64::from(u32::MAX), counts, seconds, latency(), bandwidth(), ends, reason).prop_map(
        move |(
            tcp,
            size,
            [sent, received, lost, late],
            window_s,
            latency,
            bandwidth,
            [client, server],
            reason,
        )| {
            let transport = if tcp { Transport::Tcp } else { Transport::Rdma };
            let mut row = ResultRow::new(transport, documents::point(size, 1), Side::Client);
            (row.sent, row.received, row.lost, row.late, row.window_s) =
                (sent, received, lost, late, window_s);
            row.latency_ns = (shape == Shape::Latency).then_some(latency);
            row.bandwidth = (shape == Shape::Bandwidth).then_some(bandwidth);
            row.cpu = Cpu { client, server };
            reason.into_iter().for_each(|reason| row.validity.invalid(reason));
            row
        },
    )
}

/// A run of one shape: each row measured over both transports, the first of them perhaps alone.
fn document() -> impl Strategy<Value = Document> {
    let shape = any::<bool>().prop_map(|latency| if latency { Shape::Latency } else { Shape::Bandwidth });
    let rows = shape.prop_flat_map(|shape| (Just(shape), prop::collection::vec(row(shape), 0..6)));
    (rows, any::<bool>(), "\\PC{0,30}", prop::collection::vec("[ -~]{0,90}", 0..3)).prop_map(
        |((shape, rows), same_host, label, warnings)| {
            let sizes: Vec<u64> = rows.iter().map(|row| row.size_bytes).collect();
            let mut document = documents::agreed("send_lat", &documents::test(Verb::Send, shape, &sizes));
            document.same_host = Some(same_host);
            document.labels.insert("any".into(), label);
            for row in rows {
                let mut other = row.clone();
                if row.transport == Transport::Rdma {
                    other.transport = Transport::Tcp;
                    other.id = other.point.id(Transport::Tcp);
                    document.add_row(row);
                }
                document.add_row(other);
            }
            warnings.into_iter().for_each(|warning| document.warn("any", warning));
            document.finish();
            document
        },
    )
}

/// The lines of the table proper: titles and rows.
fn grid(table: &str) -> Vec<&str> {
    let is_row = |line: &&str| {
        line.split_whitespace()
            .any(|w| ["transport", "rdma", "tcp"].contains(&w) || w.contains("rdma/") || w.contains("/rdma"))
    };
    table
        .lines()
        .skip_while(|line| !line.is_empty())
        .skip(1)
        .take_while(is_row_or_detail)
        .filter(is_row)
        .collect()
}

/// Rows and what stands below one are indented or begin with a size; footers begin with a label.
fn is_row_or_detail(line: &&str) -> bool {
    line.starts_with(' ') || line.starts_with(|c: char| c.is_ascii_digit()) || line.starts_with("size")
}

proptest! {
    #[test]
    fn no_line_is_wider_than_the_terminal(document in document(), width in 60_usize..200) {
        for line in render(&document, Some(width)).lines() {
            let widest_word = line.split(' ').map(str::len).max().unwrap_or_default();
            prop_assert!(line.len() <= width || widest_word > width / 2, "{width}: {line}");
        }
    }

    #[test]
    fn cells_end_where_their_titles_end(document in document(), width in option::of(60_usize..200)) {
        let table = render(&document, width);
        let lines = grid(&table);
        let titles = lines.first().copied().unwrap_or_default().replace("slowest 100 ms", "slowest_100_ms")
            .replace("cpu ns/msg (client,", "cpu_ns/msg_(client,").replace("limited by", "limited_by");
        let ends = titles.char_indices().skip(titles.find("transport").unwrap_or(0) + 9)
            .filter(|(i, c)| *c != ' ' && matches!(titles.as_bytes().get(i + 1), None | Some(b' ')))
            .map(|(i, _)| i + 1);
        for end in ends {
            for line in &lines[1..] {
                let after = line.as_bytes().get(end);
                prop_assert!(matches!(after, None | Some(b' ')), "column ending at {end} of\n{table}");
                // A blank cell of a ratio is blank to its end; any other one ends with its last character.
                let measured = line.contains("rdma ") || line.contains("tcp ");
                if measured && !line.contains("/rdma") && !line.contains("rdma/") {
                    prop_assert!(line.as_bytes().get(end - 1).is_some_and(|c| *c != b' '), "cell ending at {end} of\n{table}");
                }
            }
        }
    }

    #[test]
    fn json_reads_back_as_written(document in document()) {
        let text = json::to_string(&document).unwrap();
        prop_assert!(text.ends_with(10 as char), "a text file ends with a newline");
        prop_assert_eq!(Document::from_json(&text).unwrap(), document);
    }

    #[test]
    fn csv_holds_what_json_holds(document in document()) {
        let value = serde_json::to_value(&document).unwrap();
        let text = csv::to_string(&document).unwrap();
        let mut reader = ::csv::Reader::from_reader(text.as_bytes());
        let headers: Vec<_> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        let records: Vec<_> = reader.records().map(Result::unwrap).collect();
        prop_assert_eq!(records.len(), document.results.len().max(1));
        for (index, record) in records.iter().enumerate() {
            for (((name, path), header), cell) in csv::columns().zip(&headers).zip(record) {
                prop_assert_eq!(&name, header);
                let pointer = format!("/{}", path.replace("[]", &format!("/{index}")).replace('.', "/"));
                match value.pointer(&pointer) {
                    None | Some(Value::Null) => prop_assert_eq!(cell, "", "{}", path),
                    Some(Value::Number(number)) => prop_assert_eq!(&cell.parse::<serde_json::Number>().unwrap(), number),
                    Some(Value::String(text)) => prop_assert_eq!(cell, text),
                    Some(Value::Array(items)) => prop_assert_eq!(cell.is_empty(), items.iter().all(|i| i == "")),
                    Some(other) => prop_assert_eq!(cell, other.to_string()),
                }
            }
        }
    }

    #[test]
    fn a_damaged_histogram_is_an_error_never_a_panic(at in 0_usize..400, byte in any::<u8>(), raw in prop::collection::vec(any::<u8>(), 0..80)) {
        use base64::Engine as _;
        use base64::engine::general_purpose::STANDARD;
        let good = Histogram::from(&documents::round_trips(500, 1_500));
        let mut bytes = STANDARD.decode(&good.payload).unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        for bytes in [bytes, raw] {
            let mut document = documents::started("send_lat");
            document.add_row(documents::latency_row(Transport::Rdma, 64, 1, 1_500));
            document.results[0].histogram = Some(Histogram { payload: STANDARD.encode(bytes), ..good.clone() });
            let _ = hlog::to_string(&document);
        }
    }
}

#[test]
fn every_column_of_the_csv_shows_something_in_some_document() {
    let mut documents: Vec<Document> = documents::all().into_iter().map(|(_, document)| document).collect();
    let mut full = documents::bandwidth_row(Transport::Rdma, 64, 1_000);
    full.point.offered_per_s = Some(1e5);
    full.late_replies = Some(1);
    full.overlap = serde_json::from_value(serde_json::json!({
        "share": 0.9, "offset_ns": 5, "uncertainty_ns": 3
    }))
    .unwrap();
    (full.sent, full.received, full.lost, full.late, full.start_s) =
        (Some(1), Some(1), Some(0), Some(2), Some(0.1));
    full.limited_by = Some("schedule".into());
    full.uncertainty = serde_json::from_value(serde_json::json!({
        "clock_ns": 7.0, "loop_ns": 20.0, "quantisation": 0.001, "calibration_ppm": 1.5, "median_interval_ns": 2.0
    }))
    .unwrap();
    for cpu in [&mut full.cpu.client, &mut full.cpu.server].into_iter().flatten() {
        cpu.empty_polls = Some(1);
        cpu.idle_share = Some(0.5);
    }
    full.validity.disturbed("preempted");
    documents[0].add_row(full);
    let texts: Vec<String> = documents.iter().map(|document| csv::to_string(document).unwrap()).collect();
    for (index, (name, _)) in csv::columns().enumerate() {
        let shown = texts.iter().any(|text| {
            let mut reader = ::csv::Reader::from_reader(text.as_bytes());
            reader.records().any(|record| !record.unwrap()[index].is_empty())
        });
        assert!(shown, "{name} is empty everywhere: is its path right?");
    }
}

#[test]
fn a_run_without_results_has_a_row_that_says_how_it_ended() {
    let text = csv::to_string(&documents::failed_before_plan()).unwrap();
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    let record: std::collections::HashMap<String, String> = reader.deserialize().next().unwrap().unwrap();
    assert_eq!(record["status"], "failed");
    assert_eq!(record["error_step"], "connect");
    assert_eq!(record["error_message"], "10.7.0.2:18515: connection refused");
    assert_eq!(record["latency_ns_p50"], "");
}

#[test]
fn additions_to_a_document_do_not_stop_old_readers() {
    let mut value = serde_json::to_value(documents::latency()).unwrap();
    value["new"] = serde_json::json!({"deep": [1, 2]});
    value["results"][0]["latency_ns"]["p99_999"] = 1.into();
    value.as_object_mut().unwrap().remove("notes");
    value.as_object_mut().unwrap().remove("floor");
    assert_eq!(Document::from_json(&value.to_string()).unwrap(), documents::latency());
}

/// What 800 Gb/s carry in a second.
const FASTEST: f64 = 100e9;

proptest! {
    /// Counts are exact, and rates and spans right, in every format.
    #[test]
    fn a_month_at_full_speed_overflows_nothing(
        seconds in 1_u64..=31 * 24 * 3600,
        nanoseconds in 0_u32..1_000_000_000,
        size in prop_oneof![Just(1_u64), 1..=1_u64 << 30],
        cores in 1_u64..=1024,
    ) {
        let window = std::time::Duration::new(seconds, nanoseconds);
        let messages = (FASTEST * window.as_secs_f64()) as u64 / size + 1;
        let mut document = documents::agreed("write_bw", &documents::test(Verb::Write, Shape::Bandwidth, &[size]));
        let point = verbmark::result::Point { size_bytes: size, ..documents::bandwidth().results[0].point };
        let mut row = ResultRow::new(Transport::Rdma, point, Side::Client).with_window(messages, window);
        row.bandwidth = Some(Bandwidth::new(messages, size, window, &[]));
        let cpu_ns = window.as_nanos() as u64 * cores;
        row.cpu.client = Some(CpuUse { cpu_ns: Some(cpu_ns), ns_per_message: Some(cpu_ns as f64 / messages as f64), ..CpuUse::default() });
        document.add_row(row);
        document.finish();
        let again = Document::from_json(&json::to_string(&document).unwrap()).unwrap();
        prop_assert_eq!(&again.results, &document.results);
        let row = &again.results[0];
        prop_assert_eq!(row.messages, messages);
        let bandwidth = row.bandwidth.as_ref().unwrap();
        let bytes_per_s = messages as f64 * size as f64 / window.as_secs_f64();
        prop_assert!((bandwidth.bytes_per_s.unwrap() / bytes_per_s - 1.0).abs() < 1e-12);
        prop_assert!((row.window_s.unwrap() / window.as_secs_f64() - 1.0).abs() < 1e-12);
        let text = csv::to_string(&document).unwrap();
        let mut rows = ::csv::Reader::from_reader(text.as_bytes());
        let column = rows.headers().unwrap().iter().position(|title| title == "messages").unwrap();
        prop_assert_eq!(&rows.records().next().unwrap().unwrap()[column], &*messages.to_string());
        prop_assert!(render(&document, Some(80)).contains("Gb/s"));
    }
}
