//! From what a point recorded to its row in the document.

use std::collections::BTreeMap;
use std::time::Duration;

use super::both;
use super::lane::{Lane, NOT_READY};
use super::phase::Measured;
use crate::measure::clock::TOLERATED_PPM;
use crate::measure::{BandwidthSample, LatencyHistogram, OpenLoop};
use crate::plan::{Shape, Side, Test, Transport};
use crate::result::{
    Bandwidth, Basis, COPIED, CpuUse, Direction, Document, Evidence, LENT, Point, ResultRow, RowInterval,
    TestRecord, ThreadRate, limited_by,
};

/// What a point has recorded so far, also when it ends early.
pub struct Recorder {
    /// Of a latency test.
    pub histogram: LatencyHistogram,
    /// Of a bandwidth test.
    pub sample: BandwidthSample,
    /// Messages a second that are offered; `None` where the loop is closed.
    pub offered_per_s: Option<f64>,
    /// Of an open loop that came to its end.
    pub open_loop: Option<OpenLoop>,
    /// Of each thread, where there are several.
    pub threads: Vec<BandwidthSample>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            histogram: LatencyHistogram::with_intervals(),
            sample: BandwidthSample::default(),
            offered_per_s: None,
            open_loop: None,
            threads: Vec::new(),
        }
    }
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
        depth: test.load.depth,
        threads: test.threads,
        wait: test.wait,
        direction: if test.bidirectional { Direction::Bidirectional } else { Direction::Unidirectional },
        offered_per_s: recorder.offered_per_s,
    };
    let by_receiver = lane.may_lose(transport) && test.is_measured_by_receiver();
    let side = if by_receiver { Side::Server } else { Side::Client };
    let mut row = ResultRow::new(transport, point, side);
    match test.shape {
        Shape::Latency => {
            let basis = Basis::of(&TestRecord::from(test));
            let window = measured.map_or(Duration::ZERO, |measured| Duration::from_nanos(measured.window_ns));
            row = row
                .with_window(recorder.histogram.samples(), window)
                .with_latency(&recorder.histogram, basis);
        }
        Shape::Bandwidth if by_receiver => {
            let received = measured.and_then(|measured| measured.report.received.clone()).unwrap_or_default();
            let window = Duration::from_nanos(received.window_ns);
            row.bandwidth = Some(Bandwidth::new(received.messages, size, window, &received.intervals));
            row.intervals = received.intervals;
            row = row.with_window(received.messages, window);
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
    if let (Some(open_loop), Some(offered)) = (&recorder.open_loop, recorder.offered_per_s) {
        row.late = Some(open_loop.late);
        if let Some(reason) = open_loop.missed(offered) {
            row.validity.invalid(reason);
        }
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
        row.received = measured.received;
        row.lost = row.received.map(|received| measured.sent.saturating_sub(received));
        row.late_replies = measured.late_replies;
        row.cpu.client = measured.cost.cpu.map(|cpu| cpu.per_byte(size));
        row.cpu.server = measured.report.cpu.map(|cpu| cpu.per_byte(size));
        row.counters.client = measured.cost.counters.clone();
        row.counters.server = measured.report.counters.clone();
        if test.shape == Shape::Bandwidth && !test.bidirectional {
            row.limited_by = limited_by(&evidence(&row, measured)).map(|limit| limit.name().into());
        }
        let ends = [("client", &measured.cost.disturbances), ("server", &measured.report.disturbances)];
        for (end, disturbances) in ends {
            for disturbance in disturbances {
                row.validity.disturbed(format!("{end}: {disturbance}"));
            }
        }
    }
    if test.bidirectional { both::of_both(row, &recorder.sample, measured) } else { row }
}

/// The first `rows` rows of a run end with all rows of a point. Each path has its own rates in a sweep.
pub fn ends_point(test: &Test, rows: usize) -> bool {
    let paths = test.transports.len() * test.waits().len();
    rows.is_multiple_of(paths) || (!test.load.rate_shares.is_empty() && rows > paths)
}

/// What a verdict on a bandwidth row rests on.
fn evidence(row: &ResultRow, measured: &Measured) -> Evidence {
    let idle = |cpu: Option<CpuUse>| cpu.and_then(|cpu| cpu.idle_share);
    let counted = |counters: &Option<BTreeMap<String, u64>>| {
        let counters = counters.as_ref()?;
        let found = NO_RECEIVE.iter().filter_map(|name| counters.get(*name));
        found.copied().reduce(|sum, count| sum + count)
    };
    Evidence {
        client_idle: idle(row.cpu.client),
        server_idle: idle(row.cpu.server),
        // Who is not told of a message has no part in it.
        server_takes_part: measured.report.messages.is_some(),
        not_ready: counted(&row.counters.client).or_else(|| counted(&row.counters.server)),
        messages: measured.sent,
        window: Duration::from_nanos(measured.window_ns),
        offered_per_s: row.point.offered_per_s,
        achieved_per_s: row.achieved_per_s,
    }
}

/// Counters of messages that found no receive: at the sender (mlx5, rxe, the emulated device), or at the receiver.
const NO_RECEIVE: &[&str] =
    &["rnr_nak_retry_err", "rcvd_rnr_err", NOT_READY, "out_of_buffer", "send_rnr_err"];

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
        payload: None,
    }
}

/// Preemptions a second that are worth a warning when an end spins: a quiet core sees a few from its own kernel.
const PREEMPTED_PER_S: f64 = 10.0;

/// Share of the longer window below which the sum of two directions is worth a warning.
const TOGETHER: f64 = 0.9;

/// Warns of what disturbed a row.
pub fn disturbances(document: &mut Document, row: &mut ResultRow) {
    for reason in &row.validity.reasons {
        document.warn("disturbed", format!("{}: {reason}", row.id));
    }
    let path = row.path(document.test.as_ref().is_some_and(|test| test.compare_waits));
    let size = crate::units::format_size(row.size_bytes);
    if let Some(share) =
        row.overlap.as_ref().and_then(|overlap| overlap.share).filter(|share| *share < TOGETHER)
    {
        let line = format!(
            "both directions of {path} {size} were measured at the same time for {:.0} % of the longer window only: their \
             sum is not what the path carried at once",
            share * 100.0
        );
        row.validity.disturbed(&line);
        document.warn("overlap", line);
    }
    for (end, cpu) in [("client", row.cpu.client), ("server", row.cpu.server)] {
        let switches = cpu.and_then(|cpu| cpu.involuntary_switches).unwrap_or(0);
        let rate = switches as f64 / row.window_s.unwrap_or(1.0).max(0.1);
        if rate > PREEMPTED_PER_S {
            let line = format!("the {end}'s core was taken {switches} times during {path} {size}");
            row.validity.disturbed(&line);
            document.warn("preempted", line);
        }
    }
    let service = document.test.as_ref().map(|test| test.connection).filter(|service| !service.is_reliable());
    if let (Some(service), Transport::Rdma, true, None) =
        (service, row.transport, row.bandwidth.is_some(), row.received)
    {
        document.note(
            "sent_rate",
            format!(
                "over {service} nobody is told of what this verb delivers: the rate is that of what was sent"
            ),
        );
    }
    if let (Some(sent), Some(lost @ 1..), true) = (row.sent, row.lost, row.validity.ok) {
        let share = 100.0 * lost as f64 / sent as f64;
        let late = match row.late_replies {
            Some(late @ 1..) => format!("; {late} replies came too late to be counted"),
            _ => String::new(),
        };
        let line = format!("{lost} of {sent} messages ({share:.2} %) were lost during {path} {size}{late}");
        row.validity.disturbed(&line);
        document.warn("loss", line);
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
    ("out_of_seq_request", "packets were lost or came out of order"),
    ("rcvd_seq_err", "packets were lost or came out of order"),
    ("local_ack_timeout_err", "acknowledgements did not come in time"),
    ("port_rcv_errors", "the link damages packets"),
    ("symbol_error", "the link damages symbols"),
    ("roce_slow_restart", "the path is congested"),
    ("np_cnp_sent", "the path is congested"),
];
