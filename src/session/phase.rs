//! The phases of one point at both ends, over any path: check, measure, verify.

use super::both::Back;
use super::lane::{Lane, STEP};
use super::lossy;
use super::meter::{Cost, Meter};
use super::row::Recorder;
use crate::error::{Error, Result, Step};
use crate::measure::bandwidth::{self, Load};
use crate::measure::{Halt, LatencyHistogram, Limit, RoundTrip, Sink, Stop, Stream, Ticks, Waiting, Watch};
use crate::measure::{floor, latency, paced_stream};
use crate::oob::run::{Done, Phase, Ready, Received, Report, Streamed};
use crate::plan::{Transport, Wait};
use crate::transport::{Aside, Checked, Counted, Payload, Tally};

/// Messages checked before the warm-up, always.
pub(super) const CHECKED: u64 = 16;

/// What the client learned of a point.
pub struct Measured {
    /// Messages sent in the phase, warm-up included.
    pub sent: u64,
    /// Those of them that arrived, in a ping-pong whose reply came in time; `None` where nobody knows.
    pub received: Option<u64>,
    /// Replies of a lossy ping-pong that came too late.
    pub late_replies: Option<u64>,
    /// When the window opened, in ns since the process began.
    pub opened_ns: u64,
    /// Length of the window in ns.
    pub window_ns: u64,
    /// This end's cost of the window.
    pub cost: Cost,
    /// What the server saw of the phase.
    pub report: Report,
    /// Of the other direction, in a bidirectional test.
    pub back: Option<Back>,
}

/// Runs `$body` with `$ticks` bound to the clock's source, so that a loop is compiled for it.
macro_rules! with_ticks {
    ($lane:expr, $ticks:ident => $body:expr) => {
        match $lane.clock.source() {
            $crate::measure::ClockSource::MonotonicRaw => {
                let $ticks = $crate::measure::Raw;
                $body
            }
            $crate::measure::ClockSource::Tsc | $crate::measure::ClockSource::Cntvct => {
                let $ticks = $crate::measure::Counter;
                $body
            }
        }
    };
}
pub(super) use with_ticks;

/// Asks for a phase, and waits until the server is ready for it.
pub(super) fn begin(lane: &mut Lane, phase: Phase) -> Result<()> {
    let Ready {} = lane.ask(&phase, "the server to be ready for the phase")?;
    Ok(())
}

/// Ends a phase of so many messages on each queue pair, and compares the server's count with it where none may be lost.
pub(super) fn end(lane: &mut Lane, transport: Transport, step: Step, each: Vec<u64>) -> Result<Report> {
    let sent = each.iter().sum();
    let report: Report = lane.ask(&Done { messages: sent, each }, "the server's report of the phase")?;
    match report.messages {
        Some(arrived) if arrived != sent && !lane.may_lose(transport) => Err(miscounted(step, sent, arrived)),
        _ => Ok(report),
    }
}

pub(super) fn miscounted(step: Step, sent: u64, arrived: u64) -> Error {
    Error::invalid(step, format!("{sent} messages were sent and {arrived} arrived on a reliable connection"))
        .with_remedy(
            "the device or its driver loses or repeats messages; no number of this run can be trusted",
        )
}

/// The client's end of a latency point.
///
/// # Errors
/// Why it could not be measured.
pub fn latency_client<P: RoundTrip + Counted>(
    lane: &mut Lane,
    path: &mut P,
    transport: Transport,
    histogram: &mut LatencyHistogram,
) -> Result<Measured> {
    lane.control.set_step(Step::Check);
    begin(lane, Phase::Check { first: vec![0], count: CHECKED })?;
    let mut unused = LatencyHistogram::new();
    initiate(lane, path, Stop::Count(CHECKED).into(), true, &mut unused)
        .map_err(|h| lane.explain(h, Step::Check))?;
    end(lane, transport, Step::Check, vec![CHECKED])?;

    lane.control.set_step(Step::WarmUp);
    learn_cost_of_looking(lane, path, transport)?;
    begin(lane, Phase::Measure)?;
    let (verify, warm_up, stop) = (lane.test.verify, lane.test.warm_up, lane.test.stop);
    let warmed =
        initiate(lane, path, warm_up, verify, &mut unused).map_err(|h| lane.explain(h, Step::WarmUp))?;
    lane.control.set_step(Step::Measure);
    let meter = Meter::start(lane, transport);
    let before = path.tally();
    let ticks = lane.clock.source();
    let opened = ticks.now();
    let outcome = initiate(lane, path, stop.into(), verify, histogram);
    let window_ns = lane.clock.ns(ticks.now().wrapping_sub(opened));
    let cost = meter.stop(lane, transport, histogram.samples(), path.tally().since(before));
    let messages = outcome.map_err(|halt| lane.explain(halt, Step::Measure))?;
    let report = end(lane, transport, Step::Measure, vec![warmed + messages])?;
    begin_over(lane)?;
    let opened_ns = lane.clock.since_epoch(opened);
    let received = report.messages;
    let sent = warmed + messages;
    Ok(Measured { sent, received, late_replies: None, opened_ns, window_ns, cost, report, back: None })
}

/// Says that the point is over.
pub(super) fn begin_over(lane: &mut Lane) -> Result<()> {
    lane.control.send(&Phase::Over)
}

fn initiate<P: RoundTrip>(
    lane: &Lane,
    path: &mut P,
    limit: Limit,
    verify: bool,
    histogram: &mut LatencyHistogram,
) -> Result<u64, Halt> {
    let (clock, watch) = (&lane.clock, &lane.watch());
    with_ticks!(lane, ticks => if verify {
        latency::initiate::<P, _, true>(path, ticks, clock, limit, watch, histogram)
    } else {
        latency::initiate::<P, _, false>(path, ticks, clock, limit, watch, histogram)
    })
}

/// The server's end of a latency point whose verb echoes, or whose path is a socket.
///
/// # Errors
/// Why it could not be measured.
pub fn latency_server<P: RoundTrip + Counted>(
    lane: &mut Lane,
    path: &mut P,
    transport: Transport,
) -> Result<()> {
    while let Some((verify, step)) = next_phase(lane)? {
        if step == Step::Measure {
            learn_cost_of_looking(lane, path, transport)?;
        }
        let meter = Meter::start(lane, transport);
        let before = path.tally();
        lane.control.send(&Ready {})?;
        let watch = lane.watch();
        let (answered, halt) = if verify {
            latency::respond::<P, true>(path, &watch)
        } else {
            latency::respond::<P, false>(path, &watch)
        };
        let cost = meter.stop(lane, transport, answered, path.tally().since(before));
        let Done { messages, .. } = done_after(lane, halt, step)?;
        report(lane, Seen::messages(Some(answered)), cost)?;
        if answered != messages && !lane.may_lose(transport) {
            return Err(miscounted(step, messages, answered));
        }
    }
    Ok(())
}

/// The next phase the client asks for: whether payloads are checked, and its step. `None` when the point is over.
fn next_phase(lane: &mut Lane) -> Result<Option<(bool, Step)>> {
    Ok(match lane.control.recv("the next phase", STEP)? {
        Phase::Check { .. } => Some((true, Step::Check)),
        Phase::WarmUp => Some((lane.test.verify, Step::WarmUp)),
        Phase::Measure => Some((lane.test.verify, Step::Measure)),
        Phase::Over => None,
    }
    .inspect(|(_, step)| lane.control.set_step(*step)))
}

/// A responding loop ended. It should have been by the client's [`Done`].
fn done_after(lane: &mut Lane, halt: Halt, step: Step) -> Result<Done> {
    match halt {
        Halt::Peer => lane.control.recv("the end of the phase", STEP),
        other => Err(lane.explain(other, step)),
    }
}

pub(super) fn report(lane: &mut Lane, seen: Seen, cost: Cost) -> Result<()> {
    let (Seen { messages, received, streamed }, Cost { cpu, counters, disturbances }) = (seen, cost);
    lane.control.send(&Report { messages, received, streamed, cpu, counters, disturbances })
}

/// What the server saw of a phase, as in its [`Report`].
#[derive(Default)]
pub(super) struct Seen {
    pub(super) messages: Option<u64>,
    pub(super) received: Option<Received>,
    pub(super) streamed: Option<Streamed>,
}

impl Seen {
    /// A number of messages, if that is known, and no more.
    pub(super) fn messages(messages: Option<u64>) -> Self {
        Self { messages, ..Self::default() }
    }
}

/// The server's end of a point that goes on without it.
///
/// # Errors
/// Why it could not be measured, or that the payload was wrong.
pub fn passive_server(
    lane: &mut Lane,
    transport: Transport,
    size: u64,
    aside: &mut impl Aside,
) -> Result<()> {
    loop {
        let phase: Phase = lane.control.recv("the next phase", STEP)?;
        let (step, checked) = match phase {
            Phase::Over => return Ok(()),
            Phase::WarmUp => (Step::WarmUp, None),
            Phase::Measure => (Step::Measure, None),
            Phase::Check { first, count } => {
                (Step::Check, Some(Checked { first, count: count.min(1 << 16) }))
            }
        };
        lane.control.set_step(step);
        if let Some(checked) = &checked {
            aside.prepare(checked);
        }
        let meter = Meter::start(lane, transport);
        lane.control.send(&Ready {})?;
        let longest = lane.longest_phase(size);
        let Done { messages, each } = lane.control.recv("the end of the phase", longest)?;
        let arrived = match &checked {
            Some(checked) if lane.may_lose(transport) => {
                let arrived = lossy::landed(lane, aside, checked);
                Some(arrived.map_err(|error| error.at(step))?)
            }
            _ => {
                aside.check(&each, checked.as_ref()).map_err(|error| error.at(step))?;
                None
            }
        };
        let cost = meter.stop(lane, transport, messages, Tally::default());
        report(lane, Seen::messages(arrived), cost)?;
    }
}

/// The client's end of a bandwidth point.
///
/// # Errors
/// Why it could not be measured.
pub fn bandwidth_client<P: Stream + Payload + Counted, W: Waiting>(
    lane: &mut Lane,
    path: &mut P,
    transport: Transport,
    pulls: bool,
    recorder: &mut Recorder,
) -> Result<Measured> {
    let pairs = path.positions().len();
    check_messages(lane, path, transport, CHECKED.max(pairs as u64), pulls, Step::Check)?;

    lane.control.set_step(Step::Measure);
    // Nothing is under way, so that nothing is found.
    learn_poll_cost(lane, transport, |_| path.look())?;
    begin(lane, Phase::Measure)?;
    let meter = Meter::start(lane, transport);
    let before = path.tally();
    let depth = lane.test.outstanding(pairs);
    let began = path.positions();
    let load = Load { depth, warm_up: lane.test.warm_up, stop: lane.test.stop };
    let (clock, watch) = (&lane.clock, &lane.watch());
    let sample = &mut recorder.sample;
    let outcome = match recorder.offered_per_s {
        None => bandwidth::stream(path, clock.source(), clock, &load, watch, sample),
        Some(rate) => {
            let pace = &lane.test.pace(rate);
            let ticks = clock.source();
            let paced = paced_stream::stream::<P, W, _>(path, ticks, clock, &load, pace, watch, sample);
            paced.map(|seen| recorder.open_loop = Some(seen))
        }
    };
    let sample = &recorder.sample;
    let cost = meter.stop(lane, transport, sample.posted, path.tally().since(before));
    outcome.map_err(|halt| lane.explain(halt, Step::Measure))?;
    let report = end(lane, transport, Step::Measure, since(&began, &path.positions()))?;

    verify_last(lane, path, transport, pulls)?;
    begin_over(lane)?;
    let opened_ns = lane.clock.since_epoch(sample.opened);
    let (sent, received, window_ns) = (sample.posted, report.messages, sample.window_ns);
    Ok(Measured { sent, received, late_replies: None, opened_ns, window_ns, cost, report, back: None })
}

/// With `--verify`, checks a window of messages after the measurement.
pub(super) fn verify_last<P: Stream + Payload>(
    lane: &mut Lane,
    path: &mut P,
    transport: Transport,
    pulls: bool,
) -> Result<()> {
    if !lane.test.verify {
        return Ok(());
    }
    let window = lane.test.outstanding(path.positions().len()).min(path.slots());
    check_messages(lane, path, transport, window, pulls, Step::Verify)
}

/// Times polls that find nothing, on a path on which nothing is under way: the first time that a polling end comes here
/// with it.
pub(super) fn learn_poll_cost(
    lane: &mut Lane,
    transport: Transport,
    mut look: impl FnMut(&Watch<'_>) -> Result<u64, Halt>,
) -> Result<()> {
    if lane.test.wait == Wait::Events || lane.shares_core || lane.poll_costs.of(transport).is_some() {
        return Ok(());
    }
    let watch = lane.watch();
    let mut outcome = Ok(0);
    let poll = || {
        outcome = look(&watch);
        matches!(outcome, Ok(0))
    };
    let cost = floor::empty_poll_ns(lane.clock.source(), &lane.clock, poll);
    match outcome {
        Ok(0) => {}
        Ok(found) => {
            let message = format!("{found} messages came or were complete before any was sent");
            return Err(Error::invalid(Step::Measure, message).with_remedy(
                "the device or its driver repeats messages; no number of this run can be trusted",
            ));
        }
        Err(halt) => return Err(lane.explain(halt, Step::Measure)),
    }
    lane.poll_costs.note(transport, cost);
    Ok(())
}

/// The same on a path of a latency test, which tells how it looks.
fn learn_cost_of_looking<P: Counted>(lane: &mut Lane, path: &mut P, transport: Transport) -> Result<()> {
    if lane.test.wait == Wait::Events {
        return Ok(());
    }
    match path.look_once() {
        Ok(Some(_)) => learn_poll_cost(lane, transport, |_| Ok(u64::from(path.look_once()? == Some(true)))),
        Ok(None) => Ok(()),
        Err(halt) => Err(lane.explain(halt, Step::Measure)),
    }
}

/// Sends `count` messages in batches that have buffers of their own, each checked where it arrives. Others are sent in
/// place of those that are lost, up to a limit.
pub(super) fn check_messages<P: Stream + Payload>(
    lane: &mut Lane,
    path: &mut P,
    transport: Transport,
    count: u64,
    pulls: bool,
    step: Step,
) -> Result<()> {
    lane.control.set_step(step);
    let batch = path.slots().min(lane.test.outstanding(path.positions().len()));
    let (mut left, mut sent) = (count, 0);
    while left > 0 && sent < lossy::MOST_SENT * count {
        let (first, count) = (path.positions(), batch.min(left));
        begin(lane, Phase::Check { first: first.clone(), count })?;
        path.settle(&lane.watch()).map_err(|halt| lane.explain(halt, step))?;
        path.stamp(count);
        bandwidth::batch(path, count, &lane.watch()).map_err(|halt| lane.explain(halt, step))?;
        if pulls {
            path.check(count).map_err(|error| error.at(step))?;
        }
        let arrived = end(lane, transport, step, since(&first, &path.positions()))?.messages.unwrap_or(count);
        sent += count;
        left -= arrived.min(count);
    }
    if left == count { Err(lossy::nothing_arrived(lane, step, sent)) } else { Ok(()) }
}

/// Messages that went over each queue pair since it was at these numbers.
pub(super) fn since(before: &[u64], now: &[u64]) -> Vec<u64> {
    now.iter().zip(before).map(|(now, before)| now - before).collect()
}

/// The server's end of a bandwidth point whose messages announce themselves.
///
/// # Errors
/// Why it could not be measured.
pub fn bandwidth_server<P: Sink + Payload + Counted>(
    lane: &mut Lane,
    path: &mut P,
    transport: Transport,
    pulls: bool,
) -> Result<()> {
    loop {
        let phase: Phase = lane.control.recv("the next phase", STEP)?;
        let (step, checks, limit) = match phase {
            Phase::Over => return Ok(()),
            Phase::WarmUp => (Step::WarmUp, false, u64::MAX),
            Phase::Measure => (Step::Measure, false, u64::MAX),
            Phase::Check { count, .. } => (Step::Check, true, count),
        };
        lane.control.set_step(step);
        if pulls && checks {
            path.settle(&lane.watch()).map_err(|halt| lane.explain(halt, step))?;
            path.stamp(limit.min(path.slots()));
        }
        if !checks {
            // The client sends when it has heard that this end is ready.
            learn_poll_cost(lane, transport, |watch| path.look::<false>(watch))?;
        }
        let meter = Meter::start(lane, transport);
        let before = path.tally();
        lane.control.send(&Ready {})?;
        let mut taken = 0;
        let sent = take_all(lane, path, limit, checks, step, &mut taken)?;
        let cost = meter.stop(lane, transport, taken, path.tally().since(before));
        if checks && !pulls {
            path.check(taken)?;
        }
        report(lane, Seen::messages(Some(taken)), cost)?;
        if taken != sent {
            return Err(miscounted(step, sent, taken));
        }
    }
}

/// Takes messages until the client has said how many there were and all of them are here.
fn take_all<P: Sink>(
    lane: &mut Lane,
    path: &mut P,
    limit: u64,
    verify: bool,
    step: Step,
    taken: &mut u64,
) -> Result<u64> {
    let sink = |lane: &Lane, path: &mut P, limit: u64, hears: bool, taken: &mut u64| {
        let watch = if hears { lane.watch() } else { lane.watch().without_peer() };
        if verify {
            bandwidth::sink::<P, true>(path, limit, &watch, taken)
        } else {
            bandwidth::sink::<P, false>(path, limit, &watch, taken)
        }
    };
    match sink(lane, path, limit, true, taken) {
        Ok(()) | Err(Halt::Peer) => {}
        Err(halt) => return Err(lane.explain(halt, step)),
    }
    let Done { messages, .. } = lane.control.recv("the end of the phase", STEP)?;
    // The client's last completion may outrun our own.
    sink(lane, path, messages, false, taken).map_err(|halt| lane.explain(halt, step))?;
    Ok(messages)
}
