//! The TCP baseline tuned on purpose: what is asked for is granted at both ends and told, or refused with a cause.

use crate::suite;

use crate::suite::{BINARIES, Files, Running, at, client, line, loopback, number, rows, server, text};
use serde_json::{Value, json};

fn warnings<'a>(document: &'a Value, code: &str) -> Vec<&'a str> {
    let all = at(document, "/warnings").as_array().expect("schema");
    all.iter()
        .filter(|warning| text(warning, "/code") == code)
        .map(|warning| text(warning, "/message"))
        .collect()
}

#[test]
fn nothing_is_asked_for_by_default_and_what_there_is_is_told() {
    let _turn = suite::turn();
    let document = loopback("send_lat", "--tcp-only -n 20");
    let nothing = json!({"send_buffer_bytes": null, "receive_buffer_bytes": null, "congestion": null,
                         "busy_poll_us": null, "zero_copy": false});
    assert_eq!(at(&document, "/test/tcp"), &nothing);
    for end in ["local", "remote"] {
        assert!(number(&document, &format!("/{end}/tcp/send_buffer_bytes")) > 0.0);
        assert!(!text(&document, &format!("/{end}/tcp/congestion")).is_empty());
    }
    assert!(document.pointer("/results/0/counters/client/zerocopy_sends").is_none());
}

#[test]
fn buffers_are_set_at_both_ends_and_a_cut_is_told() {
    let _turn = suite::turn();
    let document = loopback("write_bw", "--tcp-only -n 200 -s 4k --verify --tcp-sndbuf 16k --tcp-rcvbuf 32k");
    for end in ["local", "remote"] {
        // Twice what was asked for: the kernel's own bookkeeping is in it.
        assert_eq!(at(&document, &format!("/{end}/tcp/send_buffer_bytes")), &json!(2 * 16384));
        assert_eq!(at(&document, &format!("/{end}/tcp/receive_buffer_bytes")), &json!(2 * 32768));
    }
    assert!(warnings(&document, "tcp_buffer").is_empty(), "{document:#}");
    let document = loopback("write_bw", "--tcp-only -n 20 -s 4k --tcp-sndbuf 512M");
    let granted = number(&document, "/local/tcp/send_buffer_bytes") / 2.0;
    let told = warnings(&document, "tcp_buffer");
    assert_eq!(told.is_empty(), granted >= f64::from(512 << 20), "{told:?}");
    for side in ["client", "server"] {
        assert!(told.is_empty() || told.iter().any(|line| line.contains(side)), "{told:?}");
    }
}

#[test]
fn congestion_control_is_one_of_those_there_are() {
    let _turn = suite::turn();
    let there =
        std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap_or_default();
    for name in there.split_whitespace() {
        let document = loopback("send_lat", &format!("--tcp-only -n 20 --tcp-congestion {name}"));
        for end in ["local", "remote"] {
            assert_eq!(text(&document, &format!("/{end}/tcp/congestion")), name);
        }
    }
    let run = suite::run("send_lat", "--loopback --tcp-only -n 20 --tcp-congestion nosuch").exits(5);
    run.says(&["open TCP data connection: --tcp-congestion nosuch: ", "try: this kernel has "]);
}

#[test]
fn busy_polling_is_granted_or_refused_with_what_it_needs() {
    let _turn = suite::turn();
    let files = Files::new();
    let mut command = line("send_lat", "--loopback --tcp-only -n 20 --tcp-busy-poll 50 --json");
    command.arg(files.path("run.json"));
    let run = Running::start(command).finish();
    if run.status.success() {
        let document = files.document("run.json");
        assert_eq!(at(&document, "/local/tcp/busy_poll_us"), &json!(50));
        assert_eq!(at(&document, "/remote/tcp/busy_poll_us"), &json!(50));
    } else {
        run.exits(5).says(&["--tcp-busy-poll 50: ", "try: "]);
    }
}

#[test]
fn messages_without_a_copy_arrive_whole_and_the_kernels_copies_are_counted() {
    let _turn = suite::turn();
    for binary in BINARIES {
        for (wait, _) in suite::waits(binary) {
            let options = format!("--tcp-only -s 1,4k,256k -n 300 --verify --tcp-zerocopy {wait}");
            let document = loopback(binary, &options);
            assert_eq!(text(&document, "/status"), "ok", "{binary} {wait}: {document:#}");
            let pulls = binary.starts_with("read");
            let echoes = binary.ends_with("_lat") && !pulls;
            for row in rows(&document) {
                let what = format!("{binary} {wait}: {row:#}");
                assert_eq!(at(row, "/messages"), &json!(300), "{what}");
                for (end, sends) in [("client", !pulls), ("server", pulls || echoes)] {
                    let count = |name: &str| {
                        row.pointer(&format!("/counters/{end}/{name}"))
                            .map_or(0, |n| n.as_u64().expect("schema"))
                    };
                    let (lent, copied) = (count("zerocopy_sends"), count("zerocopy_copied"));
                    // Of a ping-pong the last may come back after the count is taken; who answers a stream of requests
                    // waits for none.
                    let least = if binary == "read_bw" { 1 } else { 299 };
                    assert_eq!(lent >= least, sends, "{end} lent {lent}: {what}");
                    assert_eq!(copied, lent, "{end}: {what}");
                }
            }
            let told = warnings(&document, "zerocopy_copied");
            assert!(told.iter().any(|line| line.contains("on one host")), "{told:?}");
        }
    }
}

#[test]
fn words_are_not_worth_lending() {
    for binary in suite::ATOMICS {
        let run = suite::run(binary, "--loopback --tcp-only -n 20 --tcp-zerocopy").exits(2);
        run.says(&["--tcp-zerocopy has no meaning", "8 bytes", "try: "]);
    }
}

#[test]
fn a_duration_and_deep_queues_go_without_a_copy_too() {
    let _turn = suite::turn();
    for binary in ["write_bw", "send_lat"] {
        let document = loopback(binary, "--tcp-only -D 300ms -s 64,64k -t 1024 --verify --tcp-zerocopy");
        assert_eq!(text(&document, "/status"), "ok", "{document:#}");
        assert!(rows(&document).iter().all(|row| number(row, "/messages") > 0.0));
    }
}

#[test]
fn the_client_decides_for_both_processes() {
    let _turn = suite::turn();
    let (server, port) = server("write_bw", "--tcp-only --tcp-sndbuf 1M");
    let files = Files::new();
    let mut command =
        client("write_bw", "127.0.0.1", port, "--tcp-only -n 50 --tcp-sndbuf 32k --tcp-zerocopy");
    command.arg("--json").arg(files.path("run.json"));
    Running::start(command).finish().exits(0);
    server.finish().exits(0).says(&["ignored", "--tcp-sndbuf"]);
    let document = files.document("run.json");
    assert_eq!(at(&document, "/remote/tcp/send_buffer_bytes"), &json!(65536));
    assert_eq!(at(&document, "/test/tcp/zero_copy"), &json!(true));
}
