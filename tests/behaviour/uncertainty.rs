//! What of a number is the tool's own: each result says so, and a delay that is known is measured within it.

use crate::suite;

use std::time::Instant;

use crate::suite::{BINARIES, Files, Running, at, loopback, number, rows, text};
use serde_json::Value;

/// One row of a latency test on a device that takes `delay` ns longer for each message, in ns.
struct Delayed {
    min: f64,
    p50: f64,
    /// What the row says its numbers may be off by, for the span of one delay.
    bound: f64,
}

fn delayed(binary: &str, delay: u32) -> Delayed {
    let files = Files::new();
    let options = "--loopback -d emu0 --no-tcp -s 64 -n 400";
    let mut command = suite::misbehaving(suite::line(binary, options), &format!("delay={delay}"));
    command.arg("--json").arg(files.path("run.json"));
    Running::start(command).finish().exits(0);
    let document = files.document("run.json");
    let own = |key: &str| number(&document, &format!("/results/0/uncertainty/{key}"));
    let relative = own("quantisation") + own("calibration_ppm").abs() / 1e6;
    Delayed {
        min: number(&document, "/results/0/latency_ns/min"),
        p50: number(&document, "/results/0/latency_ns/p50"),
        bound: own("clock_ns") + own("loop_ns") + own("median_interval_ns") + relative * f64::from(delay),
    }
}

/// What the device reads to know that the delay is over, in ns: its delays are no finer.
fn kernel_clock_ns() -> f64 {
    const READINGS: u32 = 10_000;
    let from = Instant::now();
    for _ in 0..READINGS {
        std::hint::black_box(Instant::now());
    }
    from.elapsed().as_nanos() as f64 / f64::from(READINGS)
}

#[test]
fn a_known_delay_is_measured_within_the_stated_bound() {
    let _turn = suite::turn();
    for binary in ["read_lat", "send_lat"] {
        for delay in [2_000, 20_000, 200_000] {
            let wanted = f64::from(delay);
            // Never less, on however busy a machine. More where something else runs, too, so that several tries are
            // given to one that is quiet for a moment; what the device takes without a delay is measured beside.
            let is_close = (0..10).any(|_| {
                let (plain, slow) = (delayed(binary, 1), delayed(binary, delay));
                let least = wanted - slow.bound;
                assert!(slow.min >= least && slow.p50 >= least, "{binary}: {} and {}", slow.min, slow.p50);
                let bound = plain.bound + slow.bound + 2.0 * kernel_clock_ns();
                (slow.min - plain.min - wanted).abs() <= bound
            });
            assert!(is_close, "{binary}: {delay} ns are measured as something else");
        }
    }
}

#[test]
fn every_result_says_what_of_it_is_the_tools_own() {
    let _turn = suite::turn();
    for binary in BINARIES {
        let document = loopback(binary, "-d emu0 -s 64,4k -n 5000");
        assert_eq!(rows(&document).len(), 4, "{binary}");
        let clock = text(&document, "/local/clock/source");
        for row in rows(&document) {
            let own = &row["uncertainty"];
            assert!(number(own, "/clock_ns") > 0.0 && number(own, "/loop_ns") > 0.0, "{binary}: {own}");
            assert_eq!(own["calibration_ppm"].is_null(), clock == "monotonic_raw", "{binary}: {own}");
            let is_latency = row["latency_ns"].is_object();
            assert_eq!(own["quantisation"].is_number(), is_latency, "{binary}: {own}");
            assert_eq!(own["median_interval_ns"].is_number(), is_latency, "{binary}: {own}");
            if is_latency {
                assert!(number(own, "/loop_ns") >= number(own, "/clock_ns") / 2.0, "{own}");
            }
        }
    }
}

#[test]
fn the_table_says_it_in_one_line() {
    let _turn = suite::turn();
    let shown = suite::run("send_lat", "--loopback -d emu0 -s 64 -n 5000").exits(0).stdout;
    let lines: Vec<&str> = shown.lines().filter(|line| line.starts_with("own ")).collect();
    assert_eq!(lines.len(), 1, "{shown}");
    for part in ["reading the clock ", "an empty loop ", "histogram 0.100 %", "medians +-"] {
        assert!(lines[0].contains(part), "{part:?} in {}", lines[0]);
    }
}

#[test]
fn a_median_of_few_samples_has_no_interval_and_a_reason() {
    let _turn = suite::turn();
    let document = loopback("read_lat", "-d emu0 --no-tcp -n 19");
    assert_eq!(at(&document, "/results/0/uncertainty/median_interval_ns"), &Value::Null);
    let missing = at(&document, "/missing").as_array().unwrap();
    let reason = missing.iter().find(|missing| text(missing, "/path").ends_with("median_interval_ns"));
    assert!(text(reason.unwrap(), "/reason").contains("20 samples"), "{missing:#?}");
}
