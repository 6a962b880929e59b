//! `--limit`: what a run is held to decides its exit status, and what cannot be judged is never a pass.

use crate::documents;
use crate::suite;

use crate::suite::{Files, Finished, Running, at, client, number, server, text, turn};
use serde_json::{Value, json};
use verbmark::gate::limit::evaluate;
use verbmark::result::{Device, Document, LimitResult, LimitVerdict, Shape, Side};

/// Runs a loopback on the emulated device, and gives how it ended and the limits of its document.
#[track_caller]
fn limited(binary: &str, options: &str, status: i32) -> (Finished, Vec<Value>) {
    let files = Files::new();
    let mut command = suite::line(binary, &format!("--loopback -d emu0 {options} --json"));
    command.arg(files.path("run.json"));
    let run = Running::start(command).finish().exits(status);
    let document = files.document("run.json");
    let limits = at(&document, "/limits").as_array().expect("a list").clone();
    (run, limits)
}

fn verdicts(limits: &[Value]) -> Vec<&str> {
    limits.iter().map(|limit| text(limit, "/verdict")).collect()
}

#[test]
fn limits_that_hold_at_every_size_pass() {
    let _turn = turn();
    let limits = "--limit p50:max=1000ms --limit tcp.rate:min=0.1/s --limit cpu.client:max=1000000000ns";
    let (run, limits) = limited("send_lat", &format!("-s 64,4k -n 500 {limits}"), 0);
    assert_eq!(verdicts(&limits), ["pass"; 6]);
    assert_eq!(text(&limits[1], "/point"), "rdma/4096B/qps1/depth1/threads1/busy/unidirectional");
    assert!(run.stdout.contains("limit  6 of 6 passed\n"), "{}", run.stdout);
}

#[test]
fn a_limit_that_fails_at_one_size_fails_the_run_and_says_by_how_much() {
    let _turn = turn();
    let (run, limits) =
        limited("send_lat", "-s 64,4k -n 500 --no-tcp --limit p50:max=1ns --limit p99:max=1ms", 1);
    assert_eq!(verdicts(&limits[..2]), ["fail"; 2]);
    let (value, bound) = (number(&limits[0], "/value"), number(&limits[0], "/bound"));
    assert_eq!(number(&limits[0], "/by_percent"), (value / bound - 1.0) * 100.0);
    for size in ["64 B", "4 KiB"] {
        let line = format!("limit  p50:max=1ns FAILED at {size} rdma: ");
        assert!(run.stdout.contains(&line), "{line} in {}", run.stdout);
    }
    assert!(run.stdout.contains("% above 0.00100 us"), "{}", run.stdout);
}

#[test]
fn a_minimum_is_missed_from_below_in_the_bandwidth_of_either_path() {
    let _turn = turn();
    let (run, limits) =
        limited("write_bw", "-n 500 --limit bw:min=100000000Gbps --limit tcp.bw:min=1000000GiBps", 1);
    assert_eq!(verdicts(&limits), ["fail", "fail"]);
    assert!(text(&limits[1], "/point").starts_with("tcp/"), "{limits:?}");
    assert!(run.stdout.contains("% below"), "{}", run.stdout);
}

#[test]
fn what_cannot_be_judged_is_status_5_and_no_pass() {
    let _turn = turn();
    for (binary, limit, options, reason) in [
        ("send_lat", "p99:max=1000ms", "-n 100", "too few samples (100)"),
        ("send_lat", "tcp/rdma.p50:min=0.001", "-n 500", "emulated"),
        ("send_lat", "tcp.p50:max=1000ms", "-n 500 --no-tcp", "no TCP path was measured"),
        ("send_lat", "tcp/rdma.p50:min=0.001", "-n 500 --no-tcp", "no TCP path was measured"),
        ("write_bw", "bw:min=0.001%link", "-n 200 --no-tcp", "nominal"),
    ] {
        let (run, limits) = limited(binary, &format!("{options} --limit {limit}"), 5);
        assert_eq!(verdicts(&limits), ["not_evaluated"], "{limit}");
        assert!(text(&limits[0], "/reason").contains(reason), "{limit}: {limits:?}");
        assert!(at(&limits[0], "/by_percent").is_null());
        assert!(run.stdout.contains(&format!("limit  {limit} NOT EVALUATED")), "{}", run.stdout);
    }
}

#[test]
fn a_failed_limit_goes_before_one_that_cannot_be_judged() {
    let _turn = turn();
    let (_, limits) = limited("send_lat", "-n 500 --no-tcp --limit tcp.p50:max=1ms --limit p50:max=1ns", 1);
    assert_eq!(verdicts(&limits), ["not_evaluated", "fail"]);
}

#[test]
fn a_run_that_failed_goes_before_its_limits() {
    let _turn = turn();
    let files = Files::new();
    let mut command = suite::misbehaving(
        suite::line("send_lat", "--loopback -d emu0 --no-tcp --limit p50:max=1ns --json"),
        "port-down",
    );
    command.arg(files.path("run.json"));
    Running::start(command).finish().exits(5).says(&["limit: p50:max=1ns NOT EVALUATED"]);
    let document = files.document("run.json");
    assert_eq!(text(&document, "/limits/0/verdict"), "not_evaluated");
}

#[test]
fn without_a_table_limits_are_said_on_standard_error() {
    let _turn = turn();
    let run = suite::run("send_lat", "--loopback -d emu0 --no-tcp -n 100 --limit p50:max=1ns --json -");
    let run = run.exits(1).says(&["limit: p50:max=1ns FAILED at 64 B rdma"]);
    assert_eq!(text(&suite::document(&run.stdout), "/limits/0/verdict"), "fail");
}

#[test]
fn limits_that_mean_nothing_are_usage_errors_with_what_there_is() {
    for (binary, limit, named) in [
        ("send_lat", "p99:max=5", "needs one of these units: ns, us, ms"),
        ("send_lat", "p98:max=5us", "metrics: min, p50, p90"),
        ("send_lat", "p99", "p99:max=5us"),
        ("send_lat", "bw:min=1Gbps", "metrics of this test: min, p50"),
        ("write_bw", "p99:max=5us", "metrics of this test: bw, rate"),
        ("write_bw", "tcp/rdma.p50:min=2", "metrics of this test: rdma/tcp.bw"),
        ("write_bw", "tcp/rdma.bw:min=2", "write rdma/tcp.bw"),
    ] {
        let run = suite::run(binary, &format!("--loopback -d emu0 --limit {limit}"));
        run.exits(2).says(&["error:", limit.split(':').next().unwrap(), named]);
    }
    suite::run("verbmark", "audit -- send_lat --loopback --limit p99:max=5us").exits(2).says(&["--limit"]);
}

#[test]
fn a_server_leaves_limits_to_its_client() {
    let _turn = turn();
    let (mut server, port) = server("send_lat", "--tcp-only --limit p50:max=1ns");
    server.line_with("ignored, since the client decides them: --limit");
    let options = "--tcp-only -n 100 --limit tcp.p50:max=1ns";
    Running::start(client("send_lat", "127.0.0.1", port, options)).finish().exits(1);
    server.finish().exits(0);
}

/// The limits of a document, judged.
fn judged(document: &Document, limit: &str) -> Vec<LimitResult> {
    evaluate(document, &[limit.parse().expect(limit)])
}

fn device(document: &mut Document, side: Side) -> &mut Device {
    let end = if side == Side::Client { &mut document.local } else { &mut document.remote };
    end.as_mut().and_then(|end| end.device.as_mut()).expect("a device")
}

#[test]
fn a_share_of_the_link_is_of_the_slower_port_and_of_each_direction() {
    let mut document = documents::bandwidth();
    let value = 746_000.0 * 65536.0;
    let bound = |document: &Document| judged(document, "bw:min=90%link")[0].bound;
    assert_eq!(judged(&document, "bw:min=90%link")[0].value, Some(value));
    assert_eq!(bound(&document), Some(0.9 * 400e9 / 8.0));
    device(&mut document, Side::Server).rate_gbps = Some(100.0);
    assert_eq!(bound(&document), Some(0.9 * 100e9 / 8.0));
    assert_eq!(judged(&document, "bw:min=90%link")[0].verdict, LimitVerdict::Pass);
    let both = documents::bidirectional();
    assert_eq!(bound(&both), Some(0.9 * 800e9 / 8.0));
}

#[test]
fn a_link_without_a_real_rate_is_not_evaluated() {
    type Change = fn(&mut Device);
    let changes: [(Change, &str); 4] = [
        (|device| device.rate_gbps = None, "does not tell its rate"),
        (|device| device.rate_gbps = Some(0.0), "does not tell its rate"),
        (|device| device.is_software = Some(true), "nominal"),
        (|device| device.is_software = None, "nominal"),
    ];
    for (change, reason) in changes {
        for side in [Side::Client, Side::Server] {
            let mut document = documents::bandwidth();
            change(device(&mut document, side));
            let limit = &judged(&document, "bw:min=1%link")[0];
            assert_eq!((limit.verdict, limit.bound), (LimitVerdict::NotEvaluated, None));
            assert!(limit.reason.as_ref().unwrap().contains(reason), "{limit:?}");
        }
    }
}

#[test]
fn a_ratio_is_that_of_the_table_and_of_every_pair() {
    let document = documents::latency();
    let limits = judged(&document, "tcp/rdma.p50:min=3");
    assert_eq!(limits.len(), 2, "a size each");
    let shown = document.comparison.iter().find(|of| of.metric == "latency_ns.p50").unwrap().tcp_over_rdma;
    assert_eq!(limits[0].value, shown);
    assert!(shown > Some(1.0));
    let bandwidth = judged(&documents::bandwidth(), "rdma/tcp.bw:min=10");
    let by = bandwidth[0].value.unwrap() - 746.0 / 74.0;
    assert!(by.abs() < 1e-9, "{bandwidth:?}");
    let both = documents::compared_waits(Shape::Latency);
    assert_eq!(judged(&both, "tcp/rdma.p50:min=3").len(), 4, "two sizes, two ways of waiting");
}

#[test]
fn the_bound_itself_passes() {
    let mut document = documents::latency();
    document.results[0].latency_ns.as_mut().unwrap().p50 = Some(5_000.0);
    for (limit, verdict) in [
        ("p50:max=5us", LimitVerdict::Pass),
        ("p50:min=5us", LimitVerdict::Pass),
        ("p50:max=4999ns", LimitVerdict::Fail),
        ("p50:min=5001ns", LimitVerdict::Fail),
    ] {
        assert_eq!(judged(&document, limit)[0].verdict, verdict, "{limit}");
    }
}

#[test]
fn an_invalid_or_unfinished_point_has_not_passed() {
    let mut document = documents::latency();
    document.results[0].validity.invalid("counts wrong");
    let limit = &judged(&document, "p50:max=1000ms")[0];
    assert_eq!(limit.verdict, LimitVerdict::NotEvaluated);
    assert!(limit.reason.as_ref().unwrap().contains("counts wrong"));
    let limits = judged(&documents::failed_mid_run(), "p50:max=1000ms");
    assert_eq!(limits.last().unwrap().verdict, LimitVerdict::NotEvaluated, "{limits:?}");
    assert_eq!(json!(limits[0].verdict), "pass", "what was measured before stands");
}
