//! Queues of every shape: whatever their number, depth, lists and signals, exactly the messages asked for are sent, each
//! of them arrives, and payloads are what they must be.

use crate::suite;

use crate::suite::{at, loopback, number, rows, run, text};
use proptest::prelude::*;
use serde_json::json;

const BANDWIDTH: [&str; 5] = ["send_bw", "write_bw", "write_imm_bw", "read_bw", "atomic_bw"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 20, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_count_depth_list_signal_interval_and_number_of_queue_pairs_completes_exactly(
        binary in prop::sample::select(&BANDWIDTH[..]),
        messages in 1u64..3000,
        qps in prop_oneof![Just(1u32), 2u32..40],
        depth in 1u32..200,
        list in 1u32..40,
        signal in 1u32..200,
        receives in 1u32..300,
        batch in 1u32..40,
        events in any::<bool>(),
        shared in any::<bool>(),
        size in prop::sample::select(&[1u32, 64, 1000][..]),
    ) {
        let _turn = suite::turn();
        let takes_receives = binary.starts_with("send") || binary.starts_with("write_imm");
        let mut line = format!(
            "-d emu0 --no-tcp --verify -n {messages} -q {qps} -t {depth} -l {} -Q {} -r {receives} --cqe-batch {batch}",
            list.min(depth),
            signal.min(depth),
        );
        if !binary.starts_with("atomic") {
            line += &format!(" -s {size}");
        }
        if events {
            line += " --events";
        }
        if shared && takes_receives {
            line += " --srq";
        }
        let document = loopback(binary, &line);
        let row = &rows(&document)[0];
        prop_assert_eq!(number(row, "/messages"), messages as f64, "{} {}", binary, line);
        if takes_receives {
            prop_assert_eq!(number(row, "/lost"), 0.0);
            prop_assert_eq!(at(row, "/sent"), at(row, "/received"));
        }
        prop_assert_eq!(number(row, "/point/qps"), f64::from(qps));
    }
}

#[test]
fn a_thousand_queue_pairs_are_as_good_as_one() {
    let _turn = suite::turn();
    for (binary, option) in [("write_bw", ""), ("send_bw", "--srq"), ("send_bw", "--events"), ("read_bw", "")]
    {
        let line = format!("-d emu0 --no-tcp --verify -q 1024 -s 64 -n 20000 {option}");
        let document = loopback(binary, &line);
        assert_eq!(number(&rows(&document)[0], "/messages"), 20_000.0, "{binary} {option}");
        assert_eq!(number(&document, "/test/qps"), 1024.0);
    }
}

#[test]
fn what_exceeds_the_device_is_refused_with_its_limit() {
    let _turn = suite::turn();
    for (binary, line, words) in [
        ("write_bw", "-q 2049", ["2049 queue pairs", "2048 (max_qp)", "lower -q"]),
        ("write_bw", "-q 1024 -t 65536", ["67108864 completions of sends", "(max_cqe)", "lower -t or -q"]),
        ("send_bw", "-q 100 -r 65536", ["6553600 completions of receives", "(max_cqe)", "lower -r or -q"]),
    ] {
        run(binary, &format!("--loopback -d emu0 --no-tcp {line}")).exits(5).says(&words);
    }
}

#[test]
fn options_without_a_meaning_are_refused() {
    let _turn = suite::turn();
    for (binary, line, word) in [
        ("write_bw", "--srq", "takes no receives"),
        ("read_lat", "--srq", "takes no receives"),
        ("send_lat", "--buffers 8", "--buffers is for bandwidth"),
        ("send_bw", "--buffers 10 -l 4", "no multiple of -l 4"),
        ("send_bw", "-q 0", "-q"),
        ("send_bw", "-q 4097", "-q"),
    ] {
        run(binary, &format!("--loopback {line}")).exits(2).says(&[word]);
    }
}

#[test]
fn a_working_set_is_as_large_as_asked_for_over_both_paths() {
    let _turn = suite::turn();
    for binary in ["send_bw", "read_bw"] {
        for buffers in [1, 3, 2000] {
            let document = loopback(binary, &format!("-d emu0 --verify -n 500 -s 4k --buffers {buffers}"));
            assert_eq!(at(&document, "/test/buffers"), &json!(buffers));
            assert_eq!(text(&document, "/status"), "ok");
            assert_eq!(rows(&document).len(), 2);
        }
    }
}
