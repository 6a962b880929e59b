//! Both ends in one process, on the emulated device: every binary measures what it was asked to, over RDMA and over
//! TCP, at every size, waiting either way, with payloads checked; and its document says so.

use crate::suite;

use std::process::Command;
use std::time::Duration;

use crate::suite::{BINARIES, Files, Running, at, line, loopback, number, rows, text};
use serde_json::{Value, json};

/// What a document must say of a binary whatever its options.
struct Expected {
    op: &'static str,
    is_latency: bool,
    basis: &'static str,
    /// The server is told of each message over RDMA, and so can count them.
    is_told: bool,
}

fn expected(binary: &str) -> Expected {
    let (op, is_latency, basis, is_told) = match binary {
        "send_lat" => ("send", true, "half_round_trip", true),
        "send_bw" => ("send", false, "", true),
        "write_lat" => ("write", true, "half_round_trip", true),
        "write_imm_lat" => ("write_imm", true, "half_round_trip", true),
        "read_lat" => ("read", true, "round_trip", false),
        "read_bw" => ("read", false, "", false),
        "write_bw" => ("write", false, "", false),
        "write_imm_bw" => ("write_imm", false, "", true),
        other => panic!("{other} is new: say here what it does"),
    };
    Expected { op, is_latency, basis, is_told }
}

/// Holds a document to what was asked for: `sizes` over `transports`, each of `count` messages where a count was given.
fn check(binary: &str, document: &Value, sizes: &[u64], transports: &[&str], wait: &str, count: Option<u64>) {
    let what = format!("{binary} {wait} {sizes:?}");
    let expected = expected(binary);
    assert_eq!(
        (text(document, "/status"), at(document, "/error")),
        ("ok", &Value::Null),
        "{what}: {document:#}"
    );
    assert_eq!(text(document, "/tool/binary"), binary);
    assert_eq!(text(document, "/test/op"), expected.op);
    assert_eq!(text(document, "/test/wait"), wait);
    assert_eq!(at(document, "/test/sizes_bytes"), &json!(sizes));
    assert_eq!(at(document, "/test/transports"), &json!(transports));
    let points: Vec<_> = rows(document)
        .iter()
        .map(|row| (number(row, "/size_bytes") as u64, text(row, "/transport")))
        .collect();
    let asked: Vec<_> =
        sizes.iter().flat_map(|size| transports.iter().map(|transport| (*size, *transport))).collect();
    assert_eq!(points, asked, "{what}: every size over every path, in order");
    for row in rows(document) {
        check_row(&what, row, &expected, wait, count);
    }
}

fn check_row(what: &str, row: &Value, expected: &Expected, wait: &str, count: Option<u64>) {
    let what = format!("{what}: {}", text(row, "/id"));
    let messages = at(row, "/messages").as_u64().expect("schema");
    match count {
        Some(count) => assert_eq!(messages, count, "{what}"),
        None => assert!(messages > 0, "{what}"),
    }
    let (depth, measured) = if expected.is_latency { (1, "/latency_ns") } else { (128, "/bandwidth") };
    let size = at(row, "/size_bytes");
    assert_eq!(
        at(row, "/point"),
        &json!({"size_bytes": size, "qps": 1, "depth": depth, "threads": 1, "wait": wait,
                "direction": "unidirectional", "offered_per_s": null}),
        "{what}"
    );
    assert_eq!(text(row, "/measured_by"), "client", "{what}");
    assert_eq!(at(row, "/validity/ok"), &json!(true), "{what}");
    assert!(at(row, measured).is_object(), "{what}");
    assert!(number(row, "/window_s") > 0.0, "{what}");
    let (sent, received, lost) = (at(row, "/sent"), at(row, "/received"), at(row, "/lost"));
    assert!(sent.as_u64() >= Some(messages), "{what}: {sent} sent");
    // A socket is read by its end; a passive target of RDMA is not told.
    let is_counted = expected.is_told || text(row, "/transport") == "tcp";
    let counted = if is_counted { (sent, &json!(0)) } else { (&Value::Null, &Value::Null) };
    assert_eq!((received, lost), counted, "{what}");
    if expected.is_latency {
        assert_eq!(text(row, "/latency_ns/basis"), expected.basis, "{what}");
        assert_eq!(number(row, "/latency_ns/samples"), messages as f64, "{what}");
        assert!(at(row, "/bandwidth").is_null(), "{what}");
        let intervals = at(row, "/intervals").as_array().expect("schema");
        let counted: f64 = intervals.iter().map(|interval| number(interval, "/messages")).sum();
        assert_eq!(counted, messages as f64, "{what}: {intervals:?}");
        assert!(intervals.iter().all(|interval| at(interval, "/bytes_per_s").is_null()), "{what}");
        let [min, mean, max] = ["min", "mean", "max"].map(|name| number(row, &format!("/latency_ns/{name}")));
        assert!(0.0 < min && min <= mean && mean <= max, "{what}: {min} {mean} {max}");
    } else {
        assert!(at(row, "/latency_ns").is_null() && at(row, "/histogram").is_null(), "{what}");
        assert!(number(row, "/bandwidth/bytes_per_s") > 0.0, "{what}");
    }
}

const BOTH: [&str; 2] = ["rdma", "tcp"];

#[test]
fn every_binary_measures_small_sizes_over_both_paths_with_an_exact_count() {
    let _turn = suite::turn();
    for binary in BINARIES {
        for &(option, wait) in suite::waits(binary) {
            let document = loopback(binary, &format!("-d emu0 -s 1,64,4k -n 40 --verify {option}"));
            check(binary, &document, &[1, 64, 4096], &BOTH, wait, Some(40));
            assert_eq!(at(&document, "/test/verify"), &json!(true));
            assert_eq!(at(&document, "/test/stop"), &json!({"messages": 40, "seconds": null}));
        }
    }
}

#[test]
fn every_binary_measures_large_sizes_over_both_paths_with_an_exact_count() {
    let _turn = suite::turn();
    for binary in BINARIES {
        for &(option, wait) in suite::waits(binary) {
            let document = loopback(binary, &format!("-d emu0 -s 1M,8M -n 2 --warm-up 0 --verify {option}"));
            check(binary, &document, &[1 << 20, 8 << 20], &BOTH, wait, Some(2));
        }
    }
}

#[test]
fn a_count_is_exact_wherever_it_falls_between_completions_and_queue_depth() {
    let _turn = suite::turn();
    for binary in BINARIES {
        for count in [1, 31, 33, 127, 128, 129, 1000] {
            let document = loopback(binary, &format!("-d emu0 -s 8 -n {count}"));
            check(binary, &document, &[8], &BOTH, "busy", Some(count));
        }
    }
    // The smallest queues there are.
    for binary in BINARIES {
        let document = loopback(binary, "-d emu0 -n 50 -s 8 -t 1 -r 1 -Q 1 --verify");
        assert!(rows(&document).iter().all(|row| number(row, "/messages") == 50.0), "{document:#}");
    }
}

#[test]
fn a_duration_is_kept() {
    let _turn = suite::turn();
    for binary in BINARIES {
        for &(option, wait) in suite::waits(binary) {
            let document =
                loopback(binary, &format!("-d emu0 -D 200ms --warm-up 10ms -s 64 --verify {option}"));
            check(binary, &document, &[64], &BOTH, wait, None);
            assert_eq!(at(&document, "/test/stop"), &json!({"messages": null, "seconds": 0.2}));
            for row in rows(&document) {
                let window = number(row, "/window_s");
                // Late by what a loaded machine takes, never early.
                assert!((0.199..30.0).contains(&window), "{binary} {wait}: {window} s: {row:#}");
            }
        }
    }
}

#[test]
fn by_default_a_point_takes_a_second_after_a_warm_up() {
    let _turn = suite::turn();
    for (binary, size) in [("send_lat", 64), ("write_bw", 65536)] {
        let document = loopback(binary, "-d emu0");
        check(binary, &document, &[size], &BOTH, "busy", None);
        assert_eq!(at(&document, "/test/stop"), &json!({"messages": null, "seconds": 1.0}));
        assert_eq!(at(&document, "/test/warm_up"), &json!({"messages": null, "seconds": 0.1}));
        for row in rows(&document) {
            assert!((0.999..30.0).contains(&number(row, "/window_s")), "{row:#}");
            assert!(number(row, "/sent") > number(row, "/messages"), "a warm-up sends too: {row:#}");
        }
        if binary == "write_bw" {
            let intervals = at(&document, "/results/0/intervals").as_array().expect("schema");
            assert!(intervals.len() >= 2, "a second has many tenths: {intervals:?}");
            let counted: f64 = intervals.iter().map(|interval| number(interval, "/messages")).sum();
            assert_eq!(counted, number(&document, "/results/0/messages"), "{intervals:?}");
        }
    }
}

#[test]
fn ends_of_one_process_are_told_apart_and_their_ratio_is_not_given() {
    let _turn = suite::turn();
    let document = loopback("send_lat", "-d emu0 -n 2000");
    assert_eq!((text(&document, "/local/side"), text(&document, "/remote/side")), ("client", "server"));
    assert_eq!(at(&document, "/same_host"), &json!(true));
    assert_eq!(at(&document, "/local/boot_id"), at(&document, "/remote/boot_id"));
    if at(&document, "/local/cpus_allowed").as_array().is_some_and(|cpus| cpus.len() > 1) {
        assert_ne!(at(&document, "/local/core"), at(&document, "/remote/core"));
    }
    for end in ["local", "remote"] {
        assert_eq!(text(&document, &format!("/{end}/device/name")), "emu0");
        assert_eq!(text(&document, &format!("/{end}/device/provider")), "emulated");
        assert_eq!(at(&document, &format!("/{end}/device/is_software")), &json!(true));
        assert_eq!(text(&document, &format!("/{end}/tcp/interface")), "lo");
    }
    let comparison = at(&document, "/comparison").as_array().expect("schema");
    assert!(comparison.len() >= 4, "{comparison:#?}");
    for compared in comparison {
        assert!(at(compared, "/tcp_over_rdma").is_null(), "{compared:#}");
        assert!(
            text(compared, "/rdma").starts_with("rdma/64B/")
                && text(compared, "/tcp").starts_with("tcp/64B/")
        );
    }
    let median = comparison.iter().find(|compared| text(compared, "/metric") == "latency_ns.p50");
    let median = median.expect("2,000 samples have a median");
    assert_eq!(at(median, "/rdma_value"), at(&document, "/results/0/latency_ns/p50"));
    assert_eq!(at(median, "/tcp_value"), at(&document, "/results/1/latency_ns/p50"));
    assert_eq!(at(&document, "/claims/zero_copy"), &json!(false));
    assert_eq!(at(&document, "/claims/kernel_bypass"), &json!(false));
    assert!(number(&document, "/floor/loop_ns") > 0.0);
}

#[test]
fn the_table_shows_both_paths_their_ratio_and_what_the_numbers_are() {
    let _turn = suite::turn();
    for (binary, ratio, basis) in [
        ("send_lat", "tcp/rdma", "latency in us, half of the round trip"),
        ("read_lat", "tcp/rdma", "latency in us, the whole round trip"),
        ("write_bw", "rdma/tcp", "Gb is 10^9 bits"),
    ] {
        let run = suite::run(binary, "--loopback -d emu0 -n 40 -s 64,4k").exits(0);
        let line = |word: &str| {
            // A row begins with its size, its unit and the transport, or with the transport alone.
            let is_row = |line: &&str| line.split_whitespace().take(3).any(|column| column == word);
            let mut found = run.stdout.lines().filter(is_row);
            (found.next(), found.next(), found.next())
        };
        assert!(run.stdout.starts_with(&format!("{binary}  RC  busy polling")), "{}", run.stdout);
        assert!(run.stdout.contains(basis), "{}", run.stdout);
        for word in ["rdma", "tcp", ratio] {
            assert!(matches!(line(word), (Some(_), Some(_), None)), "two lines of {word}: {}", run.stdout);
        }
        let (Some(first), ..) = line(ratio) else { unreachable!() };
        let cells: Vec<&str> = first.split_whitespace().skip(1).collect();
        assert!(!cells.is_empty() && cells.iter().all(|cell| *cell == "-"), "{first}");
        assert!(run.stdout.contains("EMULATED"), "{}", run.stdout);
        assert!(!run.stderr.contains("error"), "{}", run.stderr);
    }
}

#[test]
fn without_a_device_the_emulated_one_is_taken_and_named() {
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, |entries| entries.count());
    if devices > 0 {
        println!("not asked: this machine has {devices} RDMA devices");
        return;
    }
    let _turn = suite::turn();
    let run = suite::run("read_lat", "--loopback -n 20").exits(0);
    assert!(run.stdout.contains("EMULATED  emu0 is emulated in this process"), "{}", run.stdout);
}

#[test]
fn lists_and_batches_of_any_length_complete_exactly_and_in_order() {
    let _turn = suite::turn();
    for binary in ["write_bw", "write_imm_bw", "send_bw", "read_bw"] {
        for line in [
            "-l 32 -n 1000",
            "-l 7 -t 20 -Q 5 -n 333 --cqe-batch 1",
            "-l 128 -t 128 -Q 128 -n 300 --cqe-batch 1024",
            "-l 3 -t 3 -Q 1 -r 3 -n 100",
            "-l 5 -t 64 -n 1",
            "-l 32 -D 50ms --events",
        ] {
            let document = loopback(binary, &format!("-d emu0 -s 64,4k --no-tcp --verify {line}"));
            let count = (!line.contains("-D")).then(|| number(&document, "/test/stop/messages") as u64);
            let depth = number(&document, "/test/tx_depth") as u64;
            for row in rows(&document) {
                assert_eq!(text(&document, "/status"), "ok", "{binary} {line}");
                assert_eq!(at(row, "/point/depth"), &json!(depth), "{binary} {line}");
                let messages = at(row, "/messages").as_u64();
                assert!(count.is_none() || messages == count, "{binary} {line}: {messages:?}");
            }
        }
    }
    for operation in ["fetch_add", "compare_swap"] {
        let line = format!("-d emu0 --no-tcp -l 6 -t 50 -n 1003 --verify -A {operation}");
        assert_eq!(text(&loopback("atomic_bw", &line), "/status"), "ok");
    }
}

#[test]
fn one_path_can_be_left_out() {
    let _turn = suite::turn();
    for binary in BINARIES {
        let document = loopback(binary, "-d emu0 -n 20 -s 64,128 --no-tcp");
        check(binary, &document, &[64, 128], &["rdma"], "busy", Some(20));
        assert!(at(&document, "/local/tcp").is_null() && at(&document, "/comparison") == &json!([]));
        assert_eq!(text(&document, "/local/device/name"), "emu0");

        let &(option, wait) = suite::waits(binary).last().unwrap();
        let document = loopback(binary, &format!("-n 20 -s 64,128 --tcp-only {option}"));
        check(binary, &document, &[64, 128], &["tcp"], wait, Some(20));
        assert!(at(&document, "/local/device").is_null() && at(&document, "/remote/device").is_null());
        assert!(at(&document, "/comparison") == &json!([]) && at(&document, "/floor").is_null());
    }
}

#[test]
fn attributes_of_the_path_are_used_and_recorded() {
    let _turn = suite::turn();
    let options = "-n 20 --no-tcp -S 3 --tclass 106 --flow-label 1048575 --hop-limit 255 --min-rnr-timer 31";
    let document = loopback("send_lat", &format!("-d emu0 {options}"));
    for (key, value) in [
        ("service_level", 3),
        ("traffic_class", 106),
        ("flow_label", 0xf_ffff),
        ("hop_limit", 255),
        ("min_rnr_timer", 31),
    ] {
        assert_eq!(at(&document, &format!("/test/{key}")), &json!(value), "{key}");
    }
    for end in ["local", "remote"] {
        assert_eq!(at(&document, &format!("/{end}/device/pkey_index")), &json!(0));
        assert_eq!(text(&document, &format!("/{end}/device/pkey")), "0xffff");
    }
    // Within an InfiniBand subnet packets have no global route header that could carry them, unless one is asked for.
    for option in ["--tclass 1", "--flow-label 1", "--hop-limit 63"] {
        let run = suite::run("send_lat", &format!("--loopback -d emu1 -n 20 --no-tcp {option}")).exits(5);
        run.says(&["error: choose path: ", option, "no global route header", "try: ", "-x"]);
        let document = loopback("send_lat", &format!("-d emu1 -x 0 -n 20 --no-tcp {option}"));
        assert_eq!(text(&document, "/status"), "ok");
    }
}

/// Huge pages of the default size that nobody has taken yet.
fn free_huge_pages() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").expect("it is Linux");
    let count = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    count("HugePages_Free:").saturating_sub(count("HugePages_Rsvd:"))
}

#[test]
fn huge_pages_are_used_on_both_paths_or_refused_before_anything_is_made() {
    let _turn = suite::turn();
    // More than is reserved anywhere: 2 buffers of 1 GiB.
    let run = suite::run("send_lat", "--loopback -d emu0 -n 20 -s 1G --hugepages").exits(5);
    run.says(&["error: register memory: ", "huge pages of ", "available", "try: ", "vm.nr_hugepages"]);
    let free = free_huge_pages();
    if free < 8 {
        println!("not asked: {free} huge pages are free, and both ends need 3 each");
        return;
    }
    for binary in BINARIES {
        let document = loopback(binary, "-d emu0 -n 50 -s 64,4k --verify --hugepages");
        check(binary, &document, &[64, 4096], &BOTH, "busy", Some(50));
        assert_eq!(text(&document, "/test/memory"), "huge_pages");
        for end in ["local", "remote"] {
            assert!(number(&document, &format!("/{end}/buffers/page_bytes")) > 65_536.0, "{document:#}");
        }
    }
    assert!(free_huge_pages() >= free, "they are given back");
}

#[test]
fn buffers_lie_on_the_node_that_was_named() {
    let _turn = suite::turn();
    let first = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    if !first.starts_with('0') {
        println!("not asked: this machine has no node 0");
        return;
    }
    let document = loopback("write_bw", "-d emu0 -n 200 --numa 0 --verify");
    check("write_bw", &document, &[65536], &BOTH, "busy", Some(200));
    for end in ["local", "remote"] {
        assert_eq!(at(&document, &format!("/{end}/buffers/numa_node")), &json!(0));
    }
    let document = loopback("write_bw", "-d emu0 -n 20");
    assert!(at(&document, "/local/buffers/numa_node").is_null());
}

#[test]
fn memory_may_be_relaxed_and_not_pinned_where_the_device_does_that() {
    let _turn = suite::turn();
    for binary in BINARIES.into_iter().chain(suite::ATOMICS) {
        let options = if binary == "write_lat" { "--odp" } else { "--odp --relaxed-ordering" };
        let document = loopback(binary, &format!("-d emu0 -n 50 --no-tcp --verify {options}"));
        assert_eq!(at(&document, "/test/on_demand_paging"), &json!(true), "{binary}");
        assert_eq!(at(&document, "/test/relaxed_ordering"), &json!(binary != "write_lat"), "{binary}");
        let command = line(binary, "--loopback -d emu0 -n 50 --no-tcp --odp");
        let run = Running::start(suite::misbehaving(command, "no-odp")).finish().exits(5);
        run.says(&["error: register memory: emu0 does on-demand paging for nothing", "try: ", "--odp"]);
    }
}

#[test]
fn partition_keys_that_do_not_go_together_are_refused_before_traffic() {
    let _turn = suite::turn();
    for (pkey, why) in [("pkey=32767", "limited members"), ("pkey=32768", "no partition")] {
        let command = suite::misbehaving(line("send_lat", "--loopback -d emu1 -n 20 --no-tcp"), pkey);
        let run = Running::start(command).finish().exits(5);
        run.says(&["error: choose path: ", why, "try: ", "--pkey-index"]);
    }
    let run = suite::run("send_lat", "--loopback -d emu0 --pkey-index 1").exits(5);
    run.says(&[
        "error: query port: partition key index 1 is outside the table of emu0/1",
        "1 entries",
        "try: ",
    ]);
}

#[test]
fn a_sweep_has_all_sizes_and_a_range_those_between() {
    let _turn = suite::turn();
    let all: Vec<u64> = (0..=23).map(|power| 1 << power).collect();
    for binary in ["send_lat", "write_bw"] {
        let document = loopback(binary, "-d emu0 -a -n 2 --warm-up 0 --no-tcp");
        check(binary, &document, &all, &["rdma"], "busy", Some(2));
    }
    let document = loopback("write_imm_bw", "-d emu0 -s 48..400,1k -n 2 --no-tcp");
    check("write_imm_bw", &document, &[48, 96, 192, 384, 1024], &["rdma"], "busy", Some(2));
}

#[test]
fn ends_that_share_one_core_yield_it_and_say_so() {
    let _turn = suite::turn();
    for binary in BINARIES {
        let files = Files::new();
        let plain = line(binary, "--loopback -d emu0 -n 40 -s 64 --verify --json");
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(plain.get_program()).args(plain.get_args()).arg(files.path("run.json"));
        command.env_remove("VERBMARK_EMULATED");
        let run = Running::start(command).finish().exits(0);
        let document = files.document("run.json");
        check(binary, &document, &[64], &BOTH, "busy", Some(40));
        assert_eq!(at(&document, "/local/core"), at(&document, "/remote/core"));
        let warned = at(&document, "/warnings").as_array().expect("schema");
        assert!(warned.iter().any(|warning| text(warning, "/code") == "shared_core"), "{warned:#?}");
        assert!(run.stdout.contains("share a core"), "{}", run.stdout);
        // Ends that wait for whole time slices of each other take hundreds of times as long.
        assert!(run.took < Duration::from_secs(30), "{:?}", run.took);
    }
}
