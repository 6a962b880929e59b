//! From what a point recorded to its row in the document.

use std::time::Duration;

use super::both;
use super::lane::{COPIED, LENT, Lane};
use super::phase::Measured;
use crate::measure::clock::TOLERATED_PPM;
use crate::measure::{BandwidthSample, LatencyHistogram};
use crate::plan::{Shape, Side, Transport};
use crate::result::{
    Bandwidth, Basis, Direction, Document, Point, ResultRow, RowInterval, TestRecord, ThreadRate,
};

/// What a point has recorded so far, also when it ends early.
#[derive(Default)]
pub struct Recorder {
    /// Of a latency test.
    pub histogram: LatencyHistogram,
    /// Of a bandwidth test.
    pub sample: BandwidthSample,
    /// Of each thread, where there are several.
    pub threads: Vec<BandwidthSample>,
}

/// The row of a point; without `measured` of one that ended early.
pub fn row(
    lane: &Lane,
    transport: Transport,
    size: u64,
    recorder: &Recorder,
    measured: Option<&Measured>,
    loop_ns: Option<f64>,
) -> ResultRow {
    let test = &lane.test;
    let point = Point {
        size_bytes: size,
        // One connection carries what all queue pairs do.
        qps: if transport == Transport::Tcp { 1 } else { test.qps },
        depth: if test.shape == Shape::Latency { 1 } else { test.tx_depth },
        threads: test.threads,
        wait: test.wait,
        direction: if test.bidirectional { Direction::Bidirectional } else { Direction::Unidirectional },
        offered_per_s: None,
    };
    let mut row = ResultRow::new(transport, point, Side::Client);
    match test.shape {
        Shape::Latency => {
            let basis = Basis::of(&TestRecord::from(test));
            let window = measured.map_or(Duration::ZERO, |measured| Duration::from_nanos(measured.window_ns));
            row = row
                .with_window(recorder.histogram.samples(), window)
                .with_latency(&recorder.histogram, basis);
        }
        Shape::Bandwidth => {
            let sample = &recorder.sample;
            let window = Duration::from_nanos(sample.window_ns);
            row.intervals = sample.intervals.iter().map(|interval| row_interval(interval, size)).collect();
            row.bandwidth = Some(Bandwidth::new(sample.messages, size, window, &row.intervals));
            row = row.with_window(sample.messages, window);
            row.threads = threads(lane, &recorder.threads, size);
        }
    }
    if measured.is_none() {
        row.window_s = row.window_s.filter(|seconds| *seconds > 0.0);
        row.achieved_per_s = row.achieved_per_s.filter(|_| row.window_s.is_some());
    }
    let clock = lane.clock.report();
    row.uncertainty.clock_ns = Some(clock.reading_ns);
    row.uncertainty.loop_ns = loop_ns;
    row.uncertainty.calibration_ppm = clock.calibration_ppm;
    if let Some(ppm) = clock.calibration_ppm.filter(|ppm| ppm.abs() > TOLERATED_PPM) {
        row.validity.invalid(format!("the clock's rate moved by {ppm:.0} ppm during the run"));
    }
    if let Some(measured) = measured {
        row.start_s = Some(measured.opened_ns as f64 / 1e9);
        row.sent = Some(measured.sent);
        row.received = measured.report.messages;
        row.lost = row.received.map(|received| measured.sent - received.min(measured.sent));
        row.cpu.client = measured.cost.cpu;
        row.cpu.server = measured.report.cpu;
        row.counters.client = measured.cost.counters.clone();
        row.counters.server = measured.report.counters.clone();
        let ends = [("client", &measured.cost.disturbances), ("server", &measured.report.disturbances)];
        for (end, disturbances) in ends {
            for disturbance in disturbances {
                row.validity.disturbed(format!("{end}: {disturbance}"));
            }
        }
    }
    if test.bidirectional { both::of_both(row, &recorder.sample, measured) } else { row }
}

fn threads(lane: &Lane, samples: &[BandwidthSample], size: u64) -> Vec<ThreadRate> {
    let rate = |(index, sample): (usize, &BandwidthSample)| {
        let window = Duration::from_nanos(sample.window_ns);
        let all = Bandwidth::new(sample.messages, size, window, &[]);
        ThreadRate {
            core: lane.cores.get(index).copied(),
            messages: sample.messages,
            window_s: window.as_secs_f64(),
            bytes_per_s: all.bytes_per_s,
            messages_per_s: all.messages_per_s,
        }
    };
    samples.iter().enumerate().map(rate).collect()
}

/// An interval as the document has it.
pub fn row_interval(interval: &crate::measure::Interval, size: u64) -> RowInterval {
    let seconds = interval.length_ns as f64 / 1e9;
    RowInterval {
        start_s: interval.start_ns as f64 / 1e9,
        seconds,
        messages: interval.messages,
        bytes_per_s: (seconds > 0.0).then(|| interval.messages as f64 * size as f64 / seconds),
    }
}

/// Preemptions a second that are worth a warning when an end spins: a quiet core sees a few from its own kernel.
const PREEMPTED_PER_S: f64 = 10.0;

/// Warns of what disturbed a row.
pub fn disturbances(document: &mut Document, row: &mut ResultRow) {
    for reason in &row.validity.reasons {
        document.warn("disturbed", format!("{}: {reason}", row.id));
    }
    let path = match row.transport {
        Transport::Rdma => "rdma",
        Transport::Tcp => "tcp",
    };
    let size = crate::units::format_size(row.size_bytes);
    for (end, cpu) in [("client", row.cpu.client), ("server", row.cpu.server)] {
        let switches = cpu.and_then(|cpu| cpu.involuntary_switches).unwrap_or(0);
        let rate = switches as f64 / row.window_s.unwrap_or(1.0).max(0.1);
        if rate > PREEMPTED_PER_S {
            let line = format!("the {end}'s core was taken {switches} times during {path} {size}");
            row.validity.disturbed(&line);
            document.warn("preempted", line);
        }
    }
    for (end, counters) in [("client", &row.counters.client), ("server", &row.counters.server)] {
        let count = |name: &str| counters.as_ref().and_then(|counters| counters.get(name)).copied();
        if let (Some(lent), Some(copied @ 1..)) = (count(LENT), count(COPIED)) {
            let line = format!(
                "--tcp-zerocopy: the kernel copied {copied} of {lent} sends of the {end} after all during {path} {size}, \
                 as it always does on one host"
            );
            row.validity.disturbed(&line);
            document.warn("zerocopy_copied", line);
        }
        for (name, meaning) in TROUBLE {
            let moved = count(name).unwrap_or(0);
            if moved > 0 {
                let line = format!("the {end} counted {name} {moved} times during {path} {size}: {meaning}");
                row.validity.disturbed(&line);
                document.warn("device_counter", line);
            }
        }
    }
}

/// Counters that do not move on a quiet path (`Documentation/ABI/stable/sysfs-class-infiniband` and the drivers' own
/// names), and what it means when they do. Those that rxe moves without cause are left out.
const TROUBLE: &[(&str, &str)] = &[
    ("retrans", "TCP segments were lost or late"),
    ("rnr_nak_retry_err", "the receiver had no receive posted"),
    ("rcvd_rnr_err", "the receiver had no receive posted"),
    ("packet_seq_err", "packets were lost or came out of order"),
    ("out_of_sequence", "packets were lost or came out of order"),
    ("rcvd_seq_err", "packets were lost or came out of order"),
    ("local_ack_timeout_err", "acknowledgements did not come in time"),
    ("port_rcv_errors", "the link damages packets"),
    ("symbol_error", "the link damages symbols"),
    ("roce_slow_restart", "the path is congested"),
    ("np_cnp_sent", "the path is congested"),
];
