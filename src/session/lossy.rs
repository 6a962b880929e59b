//! The phases of a point over a path that may lose messages: what is lost is counted, and no end waits for it.

use std::time::{Duration, Instant};

use super::lane::{Lane, STEP};
use super::meter::Meter;
use super::phase::{self, CHECKED, Measured, Seen, with_ticks};
use super::row::row_interval;
use crate::error::{Error, Result, Step};
use crate::measure::bandwidth::{self, BandwidthSample, Load};
use crate::measure::lossy::{self, Trips};
use crate::measure::{Halt, LatencyHistogram, Limit, LossyTrip, Receiving, Sink, Stop, Stream, Ticks};
use crate::oob::run::{Done, Phase, Received};
use crate::plan::{Connection, Transport};
use crate::transport::{Aside, Checked, Counted, Gaps, Payload};

/// Messages sent at most for each one that is to be checked.
pub const MOST_SENT: u64 = 4;

/// Time by which a reply may be later because both ends look at each byte, in ns a byte.
const CHECKING_NS: u64 = 20;

/// The error of a path that delivers nothing.
pub fn nothing_arrived(lane: &Lane, step: Step, sent: u64) -> Error {
    let connection = lane.test.connection;
    let packet = match connection {
        Connection::Ud => "that a datagram fits the MTU of every link (-m)",
        Connection::Rc | Connection::Uc => "that the MTU of every link takes the path's packets (-m)",
    };
    let way = lane.diagnosis.as_ref().map_or(String::new(), |diagnosis| format!("; {}", diagnosis.way()));
    let message = format!("none of {sent} messages has arrived over {connection}, and nobody told why{way}");
    Error::failed(step, message)
        .with_remedy(format!(
            "try -c RC, which tells; see that the GIDs are in one network (-v, -x), {packet}, and that no firewall \
             stands between"
        ))
}

/// The error of a ping-pong none of whose replies came in time.
fn no_reply(lane: &Lane, step: Step, trips: &Trips) -> Error {
    if trips.late == 0 {
        return nothing_arrived(lane, step, trips.begun);
    }
    let limit = lane.test.loss_timeout.as_secs_f64() * 1e3;
    Error::failed(
        step,
        format!("{} replies to {} messages came, all later than {limit} ms", trips.late, trips.begun),
    )
    .with_remedy("raise --loss-timeout")
}

/// The client's end of a latency point.
///
/// # Errors
/// Why it could not be measured.
pub fn latency_client<P: LossyTrip + Counted>(
    lane: &mut Lane,
    path: &mut P,
    transport: Transport,
    size: u64,
    histogram: &mut LatencyHistogram,
) -> Result<Measured> {
    lane.control.set_step(Step::Check);
    phase::begin(lane, Phase::Check { first: vec![0], count: CHECKED })?;
    let mut unused = LatencyHistogram::new();
    let mut checked = Trips::default();
    while checked.made < CHECKED && checked.begun < MOST_SENT * CHECKED {
        let limit = Stop::Count(CHECKED - checked.made).into();
        initiate(lane, path, limit, size, true, &mut unused, &mut checked)
            .map_err(|h| lane.explain(h, Step::Check))?;
    }
    phase::end(lane, transport, Step::Check, vec![checked.begun])?;
    if checked.made == 0 {
        return Err(no_reply(lane, Step::Check, &checked));
    }

    lane.control.set_step(Step::WarmUp);
    phase::begin(lane, Phase::Measure)?;
    let (verify, warm_up, stop) = (lane.test.verify, lane.test.warm_up, lane.test.stop);
    let mut trips = Trips::default();
    initiate(lane, path, warm_up, size, verify, &mut unused, &mut trips)
        .map_err(|h| lane.explain(h, Step::WarmUp))?;
    lane.control.set_step(Step::Measure);
    let meter = Meter::start(lane, transport);
    let before = path.tally();
    let ticks = lane.clock.source();
    let opened = ticks.now();
    let outcome = initiate(lane, path, stop.into(), size, verify, histogram, &mut trips);
    let window_ns = lane.clock.ns(ticks.now().wrapping_sub(opened));
    let cost = meter.stop(lane, transport, histogram.samples(), path.tally().since(before));
    outcome.map_err(|halt| lane.explain(halt, Step::Measure))?;
    let report = phase::end(lane, transport, Step::Measure, vec![trips.begun])?;
    if histogram.samples() == 0 {
        return Err(no_reply(lane, Step::Measure, &trips));
    }
    phase::begin_over(lane)?;
    let opened_ns = lane.clock.since_epoch(opened);
    let (sent, received, late_replies) = (trips.begun, Some(trips.made), Some(trips.late));
    Ok(Measured { sent, received, late_replies, opened_ns, window_ns, cost, report, back: None })
}

fn initiate<P: LossyTrip>(
    lane: &Lane,
    path: &mut P,
    limit: Limit,
    size: u64,
    verify: bool,
    histogram: &mut LatencyHistogram,
    trips: &mut Trips,
) -> std::result::Result<(), Halt> {
    let (clock, watch) = (&lane.clock, &lane.watch());
    let checking =
        if verify { Duration::from_nanos(CHECKING_NS.saturating_mul(size)) } else { Duration::ZERO };
    let patience = lane.test.loss_timeout.saturating_add(checking);
    with_ticks!(lane, ticks => if verify {
        lossy::initiate::<P, _, true>(path, ticks, clock, limit, patience, watch, histogram, trips)
    } else {
        lossy::initiate::<P, _, false>(path, ticks, clock, limit, patience, watch, histogram, trips)
    })
}

/// The client's end of a bandwidth point that the receiver measures.
///
/// # Errors
/// Why it could not be measured.
pub fn bandwidth_client<P: Stream + Payload + Counted>(
    lane: &mut Lane,
    path: &mut P,
    transport: Transport,
) -> Result<Measured> {
    let pairs = path.positions().len();
    phase::check_messages(lane, path, transport, CHECKED.max(pairs as u64), false, Step::Check)?;

    let (depth, stop) = (lane.test.outstanding(pairs), lane.test.stop);
    let mut warm_up = lane.test.warm_up;
    if matches!(stop, Stop::Count(_)) {
        // The receiver could not tell its last message from the first that is to be measured.
        lane.control.set_step(Step::WarmUp);
        phase::begin(lane, Phase::WarmUp)?;
        let load = Load { depth, warm_up, stop: Stop::Count(0) };
        let began = path.positions();
        stream(lane, path, &load).map_err(|halt| lane.explain(halt, Step::WarmUp))?;
        phase::end(lane, transport, Step::WarmUp, phase::since(&began, &path.positions()))?;
        warm_up = Limit { messages: 0, span: Duration::ZERO };
    }
    lane.control.set_step(Step::Measure);
    phase::begin(lane, Phase::Measure)?;
    let meter = Meter::start(lane, transport);
    let before = path.tally();
    let began = path.positions();
    let outcome = stream(lane, path, &Load { depth, warm_up, stop });
    let posted = outcome.as_ref().map_or(0, |sample| sample.posted);
    let cost = meter.stop(lane, transport, posted, path.tally().since(before));
    let sample = outcome.map_err(|halt| lane.explain(halt, Step::Measure))?;
    let report = phase::end(lane, transport, Step::Measure, phase::since(&began, &path.positions()))?;
    let Some(Received { messages: 1.., window_ns, .. }) = report.received else {
        return Err(match report.messages {
            None | Some(0) => nothing_arrived(lane, Step::Measure, sample.posted),
            Some(arrived) => Error::failed(
                Step::Measure,
                format!("{arrived} of {} messages arrived, none of them inside the window", sample.posted),
            )
            .with_remedy(
                "measure for longer with -D, or let fewer messages be lost: a higher -r, a lower -t",
            ),
        });
    };

    phase::verify_last(lane, path, transport, false)?;
    phase::begin_over(lane)?;
    let opened_ns = lane.clock.since_epoch(sample.opened);
    let (sent, received) = (sample.posted, report.messages);
    Ok(Measured { sent, received, late_replies: None, opened_ns, window_ns, cost, report, back: None })
}

fn stream<P: Stream>(lane: &Lane, path: &mut P, load: &Load) -> std::result::Result<BandwidthSample, Halt> {
    let (clock, watch) = (&lane.clock, &lane.watch());
    let mut sample = BandwidthSample::default();
    bandwidth::stream(path, clock.source(), clock, load, watch, &mut sample)?;
    Ok(sample)
}

/// The server's end of a bandwidth point that it measures.
///
/// # Errors
/// Why it could not be measured.
pub fn bandwidth_server<P: Sink + Gaps + Counted>(
    lane: &mut Lane,
    path: &mut P,
    transport: Transport,
    size: u64,
) -> Result<()> {
    loop {
        let phase: Phase = lane.control.recv("the next phase", STEP)?;
        let (step, checked, load) = match phase {
            Phase::Over => return Ok(()),
            Phase::WarmUp => (Step::WarmUp, None, None),
            Phase::Measure => (Step::Measure, None, Some((lane.test.warm_up, lane.test.stop))),
            Phase::Check { first, count } => {
                (Step::Check, Some(Checked { first, count: count.min(path.slots()) }), None)
            }
        };
        lane.control.set_step(step);
        let meter = Meter::start(lane, transport);
        let before = path.tally();
        lane.control.send(&crate::oob::run::Ready {})?;
        let (arrived, sample) = take_all(lane, path, lane.clock.source(), load, checked.is_some(), step)?;
        let cost = meter.stop(lane, transport, arrived, path.tally().since(before));
        if let Some(checked) = &checked {
            path.check_among(checked).map_err(|error| error.at(step))?;
        }
        let received = sample.map(|sample| Received {
            messages: sample.messages,
            window_ns: sample.window_ns,
            intervals: sample.intervals.iter().map(|interval| row_interval(interval, size)).collect(),
        });
        phase::report(lane, Seen { messages: Some(arrived), received, ..Seen::default() }, cost)?;
    }
}

/// Takes messages until the client has said how many there were, and then until all are here or nothing comes any more.
fn take_all<P: Sink, T: Ticks>(
    lane: &mut Lane,
    path: &mut P,
    ticks: T,
    load: Option<(Limit, Stop)>,
    verify: bool,
    step: Step,
) -> Result<(u64, Option<BandwidthSample>)> {
    let clock = lane.clock.clone();
    let mut arrivals = Receiving::new(ticks, &clock, load);
    let take = |lane: &Lane, path: &mut P, arrivals: &mut Receiving<'_, T>, end: Option<u64>| {
        let watch = if end.is_some() { lane.last_watch() } else { lane.watch() };
        let limit = end.unwrap_or(u64::MAX);
        if verify {
            arrivals.take::<P, true>(path, limit, &watch)
        } else {
            arrivals.take::<P, false>(path, limit, &watch)
        }
    };
    match take(lane, path, &mut arrivals, None) {
        Ok(()) | Err(Halt::Peer) => {}
        Err(halt) => return Err(lane.explain(halt, step)),
    }
    let Done { messages, .. } = lane.control.recv("the end of the phase", STEP)?;
    match take(lane, path, &mut arrivals, Some(messages)) {
        Ok(()) | Err(Halt::Stalled(_)) => Ok((arrivals.received(), arrivals.close())),
        Err(halt) => Err(lane.explain(halt, step)),
    }
}

/// How many checked messages have come to memory that nobody is told of, when all have or the quiet time is over.
pub fn landed(lane: &Lane, aside: &mut impl Aside, checked: &Checked) -> Result<u64> {
    const LOOK: Duration = Duration::from_millis(1);
    let end = Instant::now() + lane.test.quiet_time();
    loop {
        let arrived = aside.landed(checked)?;
        if arrived >= checked.count || Instant::now() >= end {
            return Ok(arrived);
        }
        std::thread::sleep(LOOK);
    }
}
