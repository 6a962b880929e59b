//! What a row cost the CPUs of both ends: said in every document, and in full where it is asked for.

use serde_json::Value;

use crate::suite;
use crate::suite::{Files, Running, TOOL, at, line, loopback, number, rows, text};

/// Both ends' use of the CPU in every row.
fn uses(document: &Value) -> impl Iterator<Item = &Value> {
    rows(document).iter().flat_map(|row| ["/cpu/client", "/cpu/server"].map(|end| at(row, end)))
}

#[test]
fn each_row_says_what_it_cost_by_message_and_by_byte() {
    let _turn = suite::turn();
    for options in ["-s 4k -D 300ms", "-s 4k -D 300ms --events"] {
        let document = loopback("send_lat", &format!("-d emu0 {options}"));
        for used in uses(&document) {
            let (message, byte) = (number(used, "/ns_per_message"), number(used, "/ns_per_byte"));
            assert!(message > 0.0 && (byte * 4096.0 / message - 1.0).abs() < 1e-9, "{used}");
            if let (Some(user), Some(total)) = (used["user_ns"].as_f64(), used["cpu_ns"].as_f64()) {
                let each = number(used, "/user_ns_per_message");
                assert!((each / message - user / total).abs() < 1e-6, "{used}");
            }
            assert!(used["machine"].is_null() && used["system_calls"].is_null(), "not asked for: {used}");
        }
        for end in ["/local/evidence", "/remote/evidence"] {
            assert!(number(at(&document, end), "/level") <= 3.0);
            assert!(!text(at(&document, end), "/reason").is_empty());
        }
    }
}

#[test]
fn who_polls_spins_and_who_sleeps_does_not() {
    let _turn = suite::turn();
    let cores = loopback("send_lat", "-d emu0 -n 10 --no-tcp");
    if at(&cores, "/local/core") == at(&cores, "/remote/core") {
        return eprintln!("skipped: two ends share a core here, and neither knows how long a look takes");
    }
    for binary in ["send_lat", "write_lat"] {
        let document = loopback(binary, "-d emu0 -D 200ms");
        for row in rows(&document) {
            assert!(number(row, "/cpu/client/empty_polls") > 0.0);
            // What a look costs cannot be learnt on a core that others take.
            if let Some(share) = at(row, "/cpu/client/idle_share").as_f64() {
                assert!(share > 0.0 && share <= 1.0, "{binary}: {row}");
            }
        }
    }
}

#[test]
fn a_full_report_has_the_machine_beside_its_rest_and_shows_it() {
    let _turn = suite::turn();
    let files = Files::new();
    let json = files.path("out.json").display().to_string();
    let command = line("write_bw", &format!("--loopback -d emu0 -s 4k -D 150ms --cpu-report --json {json}"));
    let run = Running::start(command).finish().exits(0);
    let document = files.document("out.json");
    for used in uses(&document) {
        assert!(number(used, "/machine/window_s") > 0.09, "{used}");
    }
    for end in ["/local", "/remote"] {
        assert!(number(at(&document, end), "/idle_machine/window_s") >= 0.9);
    }
    for part in ["client: ", "server: ", "all cores: soft interrupts ", "(at rest ", "evidence  ", " ns/B; "]
    {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
    let again = Running::start(line(TOOL, &format!("report {json}"))).finish().exits(0);
    assert_eq!(again.stdout, run.stdout);
    // What is null says why.
    for (index, row) in rows(&document).iter().enumerate() {
        for end in ["client", "server"] {
            for name in ["instructions", "cycles", "system_calls"] {
                let path = format!("results[{index}].cpu.{end}.{name}");
                let missing = at(&document, "/missing").as_array().expect("a list");
                let told = missing.iter().any(|missing| missing["path"] == path.as_str());
                assert_eq!(at(row, &format!("/cpu/{end}/{name}")).is_null(), told, "{path}");
            }
        }
    }
}
