//! A device that misbehaves, and choices that it cannot serve: each is an error that names step, cause, values and
//! remedy, ends both ends with status 5 within a deadline, and leaves a document.

use crate::suite;

use std::time::{Duration, Instant};

use crate::suite::{BINARIES, Files, Running, at, number, rows, text};
use serde_json::Value;

/// Runs a loopback on the emulated device told to misbehave as `how` says, which fails, and gives its document.
#[track_caller]
fn fails(binary: &str, how: &str, options: &str, says: &[&str]) -> Value {
    let files = Files::new();
    let mut command = suite::misbehaving(suite::line(binary, options), how);
    command.args(["--loopback", "--no-tcp", "--json"]).arg(files.path("run.json"));
    let run = Running::start(command).finish().exits(5).says(says);
    let document = files.document("run.json");
    assert!(["failed", "invalid"].contains(&text(&document, "/status")), "{document:#}");
    assert!(run.stderr.contains(text(&document, "/error/message")), "{document:#}");
    assert!(at(&document, "/error/remedy").is_string(), "no remedy in {document:#}");
    document
}

#[test]
fn a_payload_that_changes_on_its_way_makes_the_run_invalid() {
    let _turn = suite::turn();
    for binary in BINARIES {
        // The third message is one of the sixteen that are always checked.
        let document =
            fails(binary, "corrupt=3", "-d emu0 -n 100", &["payload of message", "is wrong at byte"]);
        assert_eq!(text(&document, "/status"), "invalid", "{binary}");
        assert_eq!(text(&document, "/error/step"), "check", "{binary}");
    }
}

#[test]
fn verify_finds_what_the_first_sixteen_messages_do_not_show() {
    let _turn = suite::turn();
    // The 61st is beyond the check and the warm-up, and only every message's own check sees it.
    for (binary, more) in [("send_lat", ""), ("read_lat", "")] {
        suite::Running::start({
            let mut command =
                suite::misbehaving(suite::line(binary, "-d emu0 --loopback --no-tcp -n 100"), "corrupt=61");
            command.args(more.split_whitespace());
            command
        })
        .finish()
        .exits(0);
        fails(binary, "corrupt=61", "-d emu0 -n 100 --verify", &["payload of message"]);
    }
}

#[test]
fn a_port_that_is_down_is_not_used() {
    let _turn = suite::turn();
    let document =
        fails("send_lat", "port-down", "-d emu0", &["query port", "emu0/1", "down", "ip link set"]);
    assert_eq!(text(&document, "/error/step"), "query_port");
    assert!(rows(&document).is_empty());
}

#[test]
fn no_memory_to_lock_names_the_limit_and_what_to_raise() {
    let _turn = suite::turn();
    let says = ["register memory", "ibv_reg_mr", "RLIMIT_MEMLOCK", "ulimit -l"];
    let document = fails("write_bw", "no-memlock", "-d emu0", &says);
    assert_eq!(text(&document, "/error/step"), "register_memory");
}

#[test]
fn a_device_without_queue_pairs_says_which_it_would_not_create() {
    let _turn = suite::turn();
    let document = fails("send_lat", "fail-qp", "-d emu0", &["create queue pair", "ibv_create_qp", "128"]);
    assert_eq!(text(&document, "/error/step"), "create_qp");
}

#[test]
fn a_device_that_dies_under_way_ends_both_ends_and_keeps_what_was_measured() {
    let _turn = suite::turn();
    for binary in BINARIES {
        let document =
            fails(binary, "die-after=300", "-d emu0 -n 100 -s 64,128,256,512,1k,2k,4k,8k", &["QP"]);
        assert!(!rows(&document).is_empty(), "{binary}: the sizes before stand");
        assert_eq!(text(&document, "/status"), "failed", "{binary}");
    }
}

#[test]
fn a_word_that_asks_for_no_known_misbehaviour_is_refused() {
    let _turn = suite::turn();
    let document =
        fails("send_lat", "corrupt=often", "-d emu0", &["open device", "emu0", "VERBMARK_EMULATED"]);
    assert_eq!(text(&document, "/error/step"), "open_device");
}

#[test]
fn inline_is_what_the_device_grants() {
    let _turn = suite::turn();
    let granted = |how: &str, options: &str| {
        let files = Files::new();
        let mut command = suite::misbehaving(suite::line("send_lat", options), how);
        command
            .args(["--loopback", "-d", "emu0", "--no-tcp", "-n", "100", "-v", "--json"])
            .arg(files.path("run.json"));
        let run = Running::start(command).finish().exits(0);
        let granted = number(&files.document("run.json"), "/local/device/inline_bytes");
        assert!(run.stderr.contains(&format!("inline {granted} B granted")), "{}", run.stderr);
        granted
    };
    assert_eq!(granted("no-inline", ""), 0.0);
    assert!(granted("", "") >= 64.0);
    assert_eq!(granted("", "-I 0"), 0.0);
}

#[test]
fn sizes_reach_the_largest_message_of_the_device_and_no_further() {
    let _turn = suite::turn();
    fails("write_bw", "max-msg=4096", "-d emu0 -s 64,8k", &["8192", "4096", "emu0/1", "-s 4096"]);
    let files = Files::new();
    let mut command =
        suite::misbehaving(suite::line("write_bw", "--loopback -d emu0 --no-tcp -a -n 20"), "max-msg=4096");
    command.arg("--json").arg(files.path("run.json"));
    Running::start(command).finish().exits(0);
    let document = files.document("run.json");
    let sizes: Vec<f64> = rows(&document).iter().map(|row| number(row, "/size_bytes")).collect();
    assert_eq!(
        sizes,
        (0..=12).map(|shift| f64::from(1 << shift)).collect::<Vec<_>>(),
        "a sweep is cut, not refused"
    );
}

#[test]
fn a_gid_that_is_not_there_is_refused_with_those_that_are() {
    let _turn = suite::turn();
    let says = ["GID index 99999", "emu0/1", "entries"];
    let document = fails("send_lat", "", "-d emu0 -x 99999", &says);
    assert_eq!(text(&document, "/error/step"), "query_port");
    fails("send_lat", "", "-d emu0 -x 2", &["GID index 2", "2 entries"]);
}

#[test]
fn a_device_that_is_not_there_is_refused_with_those_that_are() {
    let _turn = suite::turn();
    let document = fails("send_lat", "", "-d mlx5_7", &["open device", "mlx5_7", "emu0", "emu1"]);
    assert_eq!(text(&document, "/error/step"), "open_device");
    fails("send_lat", "", "-d emu0 -i 2", &["port 2"]);
}

#[test]
fn an_infiniband_link_is_addressed_by_lid() {
    let _turn = suite::turn();
    for binary in BINARIES {
        for (wait, _) in suite::waits(binary) {
            let document =
                suite::loopback(binary, &format!("-d emu1 -n 50 --verify -s 1,4k --no-tcp -v {wait}"));
            assert!(number(&document, "/local/device/lid") > 0.0);
            assert!(at(&document, "/local/device/gid").is_null());
            assert_eq!(text(&document, "/local/device/link_layer"), "InfiniBand");
            assert_eq!(rows(&document).len(), 2);
        }
    }
}

#[test]
fn a_port_with_a_link_local_address_only_is_used_all_the_same() {
    let _turn = suite::turn();
    let files = Files::new();
    let mut command =
        suite::misbehaving(suite::line("send_lat", "--loopback -d emu0 -n 50"), "gids=link-local");
    command.arg("--json").arg(files.path("run.json"));
    Running::start(command).finish().exits(0);
    let document = files.document("run.json");
    assert!(text(&document, "/local/device/gid/address").starts_with("fe80::"));
    assert_eq!(rows(&document).len(), 2, "TCP takes the address of the control connection");
}

#[test]
fn a_port_that_goes_down_under_way_is_named_beside_the_failure() {
    let _turn = suite::turn();
    for binary in BINARIES {
        let says = ["the device told: port 1 is down"];
        let document = fails(binary, "port-error-after=200", "-d emu0 -n 10000 --stall-timeout 3s", &says);
        assert_eq!(text(&document, "/status"), "failed", "{binary}");
    }
}

#[test]
fn a_device_that_fails_without_any_completion_ends_the_run_long_before_the_stall_timeout() {
    let _turn = suite::turn();
    let ends =
        BINARIES.iter().flat_map(|binary| suite::waits(binary).iter().map(move |(wait, _)| (binary, wait)));
    let faults = [
        ("device-fatal-after=200", "the device told: the device failed"),
        ("qp-fatal-after=200", "is in error"),
    ];
    for ((binary, wait), (how, told)) in ends.zip(faults.into_iter().cycle()) {
        let began = Instant::now();
        let options = format!("-d emu0 -n 10000 --stall-timeout 60s {wait}");
        let document = fails(binary, how, &options, &["error: ", told, "dmesg"]);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(30), "{binary} {wait} {how}: {took:?}");
        assert_eq!(text(&document, "/status"), "failed", "{binary}");
        assert_eq!(at(&document, "/error/remote"), &Value::Bool(false), "{binary}: {document:#}");
    }
}

#[test]
fn every_way_of_waiting_asks_the_device_before_the_stall_timeout() {
    let _turn = suite::turn();
    for (binary, way) in [
        ("send_lat", "--depth 4"),
        ("send_lat", "--depth 4 --events"),
        ("write_lat", "--depth 4"),
        ("read_lat", "-q 3"),
        ("send_lat", "--rate 10k"),
        ("send_bw", "--rate 10k"),
        ("send_bw", "-q 3 --srq"),
        ("send_bw", "--threads 2"),
        ("send_bw", "-b --events"),
        ("write_lat", "-c UC"),
        ("send_bw", "-c UD"),
    ] {
        let began = Instant::now();
        let options = format!("-d emu0 -n 10000 --stall-timeout 60s {way}");
        let document = fails(binary, "device-fatal-after=200", &options, &["the device failed", "dmesg"]);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(30), "{binary} {way}: {took:?}");
        assert_eq!(text(&document, "/status"), "failed", "{binary} {way}");
    }
}
