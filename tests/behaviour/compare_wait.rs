//! `--compare-wait`: one run measures both ways of waiting, each as it would be by itself.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::suite::{self, Files, Running, TOOL, at, client, line, number, rows, server, text};

/// Round trips or messages of a point: enough that some wait finds nothing at first.
const COUNT: u64 = 60;

/// Path and way of waiting of each row, in order.
fn points(document: &Value) -> Vec<(&str, &str)> {
    rows(document).iter().map(|row| (text(row, "/transport"), text(row, "/point/wait"))).collect()
}

/// Each size is there in both ways of waiting over each path, under an id of its own, and ended as it should.
fn check(document: &Value, transports: &[&str], sizes: usize) {
    assert_eq!(
        (at(document, "/test/compare_waits"), at(document, "/test/wait")),
        (&json!(true), &json!("busy"))
    );
    let each = ["busy", "events"].iter().flat_map(|wait| transports.iter().map(|path| (*path, *wait)));
    let each: Vec<_> = each.collect();
    assert_eq!(points(document), each.repeat(sizes));
    let ids: BTreeSet<_> = rows(document).iter().map(|row| text(row, "/id")).collect();
    assert_eq!(ids.len(), rows(document).len(), "{ids:?}");
    for row in rows(document) {
        assert_eq!(at(row, "/validity/ok"), &json!(true), "{row:#}");
        assert!(number(row, "/messages") > 0.0, "{row:#}");
        assert!(number(row, "/cpu/client/ns_per_message") > 0.0, "{row:#}");
    }
}

/// Where each message waits for an answer, a spinning socket finds nothing now and then, and a blocking one sleeps: at
/// every size, also after the other.
fn check_sockets(document: &Value) {
    for row in rows(document).iter().filter(|row| text(row, "/transport") == "tcp") {
        for end in ["client", "server"] {
            let counted = |name: &str| number(row, &format!("/cpu/{end}/{name}"));
            match text(row, "/point/wait") {
                "busy" => assert!(counted("empty_polls") > 0.0, "{end}: {row:#}"),
                _ => assert!(counted("voluntary_switches") > 0.0, "{end}: {row:#}"),
            }
        }
    }
}

#[test]
fn one_run_has_both_ways_of_waiting_over_both_paths() {
    let _turn = suite::turn();
    for (binary, sizes) in [("send_lat", "64,4k"), ("read_lat", "64"), ("write_bw", "4k")] {
        let files = Files::new();
        let options = format!("--loopback -d emu0 --compare-wait -s {sizes} -n {COUNT} -t 16 --verify");
        let sizes = sizes.split(',').count();
        let mut run = line(binary, &options);
        run.arg("--json").arg(files.path("run.json"));
        let run = Running::start(run).finish().exits(0);
        let document = files.document("run.json");
        check(&document, &["rdma", "tcp"], sizes);
        if binary == "send_lat" {
            check_sockets(&document);
        }

        let compared = at(&document, "/comparison").as_array().expect("schema");
        let pairs: BTreeSet<_> =
            compared.iter().map(|compared| (text(compared, "/rdma"), text(compared, "/tcp"))).collect();
        assert_eq!(pairs.len(), 2 * sizes, "{pairs:?}");
        for (rdma, tcp) in pairs {
            assert_eq!(rdma.replacen("rdma", "tcp", 1), tcp, "a ratio is of one way of waiting");
        }

        assert!(run.stdout.contains("busy polling and events"), "{}", run.stdout);
        assert!(run.stdout.contains("spinning and blocking"), "{}", run.stdout);
        for path in ["rdma  ", "tcp  ", "rdma events  ", "tcp events  "] {
            assert!(run.stdout.contains(path), "{path}: {}", run.stdout);
        }
        let has_cpu = if binary.ends_with("_lat") { "cpu client " } else { "cpu ns/msg (client, server)" };
        assert!(run.stdout.contains(has_cpu), "{}", run.stdout);
        let mut report = line(TOOL, "report");
        report.arg(files.path("run.json"));
        assert_eq!(Running::start(report).finish().exits(0).stdout, run.stdout);
    }
}

#[test]
fn two_processes_change_their_way_of_waiting_together() {
    let _turn = suite::turn();
    for (binary, more) in [("send_lat", "--tcp-zerocopy"), ("write_imm_bw", "-b"), ("read_bw", "--threads 2")]
    {
        let files = Files::new();
        let json = |name: &str| format!("--json {}", files.path(name).display());
        let (server, port) = server(binary, &format!("--tcp-only {}", json("server.json")));
        let options = format!("--tcp-only --compare-wait -s 64,4k -n {COUNT} {more} {}", json("client.json"));
        Running::start(client(binary, "127.0.0.1", port, &options)).finish().exits(0);
        let server = server.finish().exits(0);
        let [ours, theirs] = ["client.json", "server.json"].map(|name| files.document(name));
        check(&ours, &["tcp"], 2);
        assert_eq!(at(&ours, "/results"), at(&theirs, "/results"), "{binary}");
        assert!(server.stdout.contains("tcp events"), "{}", server.stdout);
    }
}

#[test]
fn what_cannot_wait_both_ways_is_refused() {
    for (binary, options, word) in [
        ("write_lat", "--compare-wait", "no completion at its target"),
        ("send_lat", "--events --compare-wait", "--compare-wait"),
        ("send_lat", "--rate 1k --compare-wait", "--rate with --compare-wait"),
    ] {
        suite::run(binary, &format!("--loopback {options}")).exits(2).says(&[word]);
    }
}
