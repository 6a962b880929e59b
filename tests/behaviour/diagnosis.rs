//! A work request that fails is explained: its name and code, both queue pairs, the facts of both ends that bear on it,
//! and the likely causes in order. What does not fit is refused before any traffic, with the values of both ends.

use crate::suite;

use crate::suite::{Files, Running, at, rows, text};
use serde_json::Value;

/// Runs a loopback on an emulated device told to misbehave as `how` says, which fails; gives its error as one text.
#[track_caller]
fn fails(binary: &str, how: &str, options: &str) -> (Value, String) {
    let files = Files::new();
    let mut command = suite::misbehaving(suite::line(binary, options), how);
    command.args(["--loopback", "--no-tcp", "--json"]).arg(files.path("run.json"));
    let run = Running::start(command).finish().exits(5);
    let document = files.document("run.json");
    assert_eq!(text(&document, "/status"), "failed", "{document:#}");
    let (message, remedy) = (text(&document, "/error/message"), text(&document, "/error/remedy"));
    assert!(run.stderr.contains(message) && run.stderr.contains(remedy), "{}", run.stderr);
    assert!(!message.contains('\n') && !remedy.contains('\n'), "{}", run.stderr);
    let said = format!("{message}\n{remedy}");
    (document, said)
}

/// The same, and holds the error to these parts, in this order.
#[track_caller]
fn explains(binary: &str, how: &str, options: &str, parts: &[&str]) -> Value {
    let (document, said) = fails(binary, how, options);
    let mut rest = &said[..];
    for part in parts {
        let found =
            rest.find(part).unwrap_or_else(|| panic!("{binary} {how}: no \"{part}\" in its place in {said}"));
        rest = &rest[found + part.len()..];
    }
    document
}

#[test]
fn a_peer_that_does_not_answer_is_told_with_path_tries_and_port() {
    let _turn = suite::turn();
    for (binary, title) in [("send_lat", "SEND"), ("write_bw", "RDMA WRITE"), ("read_lat", "RDMA READ")] {
        explains(
            binary,
            "wrong-qpn",
            "-d emu0 -n 100 -s 64",
            &[
                &format!("{title} of 64 B on QP 0x"),
                "peer's QP 0x",
                "transport retry counter exceeded (RETRY_EXC_ERR, status 12, vendor 0x0), the first error",
                "path MTU 4096 of the active 4096 here and 4096 there",
                "GID 1 ::ffff:127.0.0.1 (RoCE v2) here, GID 1 ::ffff:127.0.0.1 (RoCE v2) there",
                "--qp-timeout 14, --retry-count 6: given up after",
                "port emu0/1 is active now",
                "1) the path drops packets",
                "UDP port 4791",
                "2) a link on the way takes smaller packets",
                "3) the GIDs are of networks",
                "4) the peer is gone",
                "5) the peer answers too late",
            ],
        );
    }
}

#[test]
fn an_infiniband_path_is_told_by_its_lids() {
    let _turn = suite::turn();
    let parts = ["RETRY_EXC_ERR", "LID 17 here, LID 17 there", "1) the path drops packets", "ibqueryerrors"];
    explains("send_lat", "wrong-qpn", "-d emu1 -n 100", &parts);
}

#[test]
fn a_port_that_went_down_is_the_first_cause() {
    let _turn = suite::turn();
    let parts =
        ["RETRY_EXC_ERR", "port emu0/1 is down now", "1) the port of this end is not active", "2) the path"];
    explains("write_bw", "port-error-after=200", "-d emu0 -n 10000", &parts);
}

#[test]
fn a_peer_without_receives_is_told_with_how_long_was_tried() {
    let _turn = suite::turn();
    for binary in ["send_lat", "send_bw", "write_imm_bw"] {
        explains(
            binary,
            "withhold-receives",
            "-d emu0 -n 100 --rnr-retry 3 --min-rnr-timer 12",
            &[
                "receiver-not-ready retry counter exceeded (RNR_RETRY_EXC_ERR, status 13",
                "receives of",
                "are posted ahead",
                "--rnr-retry 3, --min-rnr-timer 12: given up after 1.920 ms",
                "1) the peer posts receives more slowly",
                "raise -r",
                "3) the tries end too early",
            ],
        );
    }
}

#[test]
fn a_key_that_opens_nothing_is_told_with_the_bounds_that_were_told() {
    let _turn = suite::turn();
    for (binary, title) in
        [("write_lat", "RDMA WRITE"), ("write_imm_bw", "RDMA WRITE with immediate"), ("read_bw", "RDMA READ")]
    {
        explains(
            binary,
            "wrong-rkey",
            "-d emu0 -n 100 -s 4k",
            &[
                &format!("{title} of 4096 B"),
                "remote access error (REM_ACCESS_ERR, status 10",
                "requests go to 0x",
                "with key 0x",
                "the peer told of",
                "1) the key is none of the peer's memory",
                "2) the addresses go beyond",
                "3) the peer's buffer or queue pair lacks the right",
            ],
        );
    }
}

#[test]
fn bounds_that_the_memory_does_not_have_are_told() {
    let _turn = suite::turn();
    // The last slot ends where the registration of the server's, alone, is a byte short.
    let parts = ["REM_ACCESS_ERR", "requests go to 0x", "2) the addresses go beyond the peer's buffer"];
    explains("write_bw", "first:short-mr", "-d emu0 -n 10000 -s 4k", &parts);
}

#[test]
fn a_message_longer_than_its_receive_is_told_by_the_end_that_found_it() {
    let _turn = suite::turn();
    let document = explains(
        "send_lat",
        "short-receives=1000",
        "-d emu0 -n 100 -s 1k",
        &[
            "receive for SEND of 1024 B",
            "local length error (LOC_LEN_ERR, status 1",
            "receives of 1024 B",
            "ports take 1073741824 B here and 1073741824 B there",
            "this end: SEND of 1024 B",
            "remote invalid request (REM_INV_REQ_ERR, status 9",
            "1) the message is longer than the receive",
        ],
    );
    assert_eq!(at(&document, "/error/remote"), &Value::Bool(true), "{document:#}");
}

#[test]
fn every_status_of_a_send_has_its_name_and_its_first_cause() {
    let _turn = suite::turn();
    let statuses = [
        (1, "LOC_LEN_ERR", "1) the message is longer than the largest of the port"),
        (2, "LOC_QP_OP_ERR", "1) more is asked of the queue pair"),
        (4, "LOC_PROT_ERR", "1) the registration does not cover the buffer"),
        (5, "WR_FLUSH_ERR", "1) a request of the peer failed here"),
        (6, "MW_BIND_ERR", "1) the device or its driver failed"),
        (7, "BAD_RESP_ERR", "1) the devices of both ends read the protocol differently"),
        (8, "LOC_ACCESS_ERR", "1) the peer used a key or bounds"),
        (9, "REM_INV_REQ_ERR", "1) the message is longer than the peer's receive"),
        (10, "REM_ACCESS_ERR", "1) the key is none of the peer's memory"),
        (11, "REM_OP_ERR", "1) the peer's receive names memory"),
        (12, "RETRY_EXC_ERR", "1) the path drops packets"),
        (13, "RNR_RETRY_EXC_ERR", "1) the peer posts receives more slowly"),
        (16, "REM_ABORT_ERR", "1) the peer's device was reset"),
        (19, "FATAL_ERR", "1) the device failed, was reset or was removed"),
        (20, "RESP_TIMEOUT_ERR", "1) the peer stopped within an answer"),
        (21, "GENERAL_ERR", "1) the device or its driver failed"),
        (99, "UNKNOWN", "1) the device or its driver failed"),
    ];
    // All at once: each waits for what its other end has to say.
    std::thread::scope(|scope| {
        for (status, name, first) in statuses {
            scope.spawn(move || {
                let parts = [
                    &format!("({name}, status {status}, vendor 0x0)")[..],
                    "port emu0/1 is active now",
                    first,
                ];
                let how = format!("send-error={status}");
                let document = explains("write_bw", &how, "-d emu0 -n 100 -s 64", &parts);
                assert_eq!(text(&document, "/error/step"), "check", "{status}");
                assert!(rows(&document).is_empty(), "{status}");
            });
        }
    });
}

#[test]
fn services_without_acknowledgements_have_causes_of_their_own() {
    let _turn = suite::turn();
    let too_long =
        ["LOC_LEN_ERR", "at most the path MTU of 4096 B", "1) the datagram is longer than a packet"];
    explains("send_bw", "send-error=1", "-d emu0 -n 100 -s 64 -c UD", &too_long);
    let unknown = ["LOC_QP_OP_ERR", "try -c RC"];
    explains("send_bw", "send-error=2", "-d emu0 -n 100 -s 64 -c UC", &unknown);
    let lost = ["none of", "over UC", "path MTU 4096", "GID 1 ::ffff:127.0.0.1", "try -c RC"];
    explains("send_bw", "wrong-qpn", "-d emu0 -n 100 -s 64 -c UC", &lost);
}

/// What is refused before there is any queue pair.
#[track_caller]
fn refused(how: &str, options: &str, parts: &[&str]) {
    let document = explains("send_lat", how, options, parts);
    assert_eq!(text(&document, "/error/step"), "choose_path", "{how}");
    assert!(rows(&document).is_empty(), "{how}");
}

#[test]
fn what_does_not_fit_is_refused_before_traffic_with_both_values() {
    let _turn = suite::turn();
    refused(
        "first:mtu=1024",
        "-d emu0 -m 2048",
        &["MTU 2048 is not possible", "4096 of emu0/1 and 1024 of emu0/1", "at most 1024"],
    );
    refused(
        "first:gids=roce-v1",
        "-d emu0",
        &["different types", "::ffff:127.0.0.1, RoCE v2", "::ffff:127.0.0.1, RoCE v1", "default_roce_mode"],
    );
    refused(
        "gids=ipv4,first:gids=link-local",
        "-d emu0",
        &["same family", "0 (::ffff:127.0.0.1", "0 (fe80::", "IPv4 address"],
    );
    refused(
        "first:pkey=32769",
        "-d emu0",
        &["different partitions", "emu0/1 has 0xffff, emu0/1 has 0x8001", "--pkey-index"],
    );
    refused(
        "pkey=32767",
        "-d emu0",
        &["limited members", "emu0/1 has 0x7fff, emu0/1 has 0x7fff", "full member"],
    );
    refused(
        "mtu=1024",
        "-d emu0 -c UD -s 2k",
        &["size 2048 is beyond the path's MTU", "1024", "-s 1024 or less"],
    );
}

#[test]
fn the_smaller_of_both_mtus_is_taken_without_a_word() {
    let _turn = suite::turn();
    let mut command =
        suite::misbehaving(suite::line("send_lat", "--loopback --no-tcp -d emu0 -n 50 -v"), "first:mtu=1024");
    command.args(["--json", "-"]);
    Running::start(command).finish().exits(0).says(&["MTU 1024, the smaller active MTU of 4096 and 1024"]);
}
