//! The phases of a bandwidth point with several threads an end: payloads are checked on one path after the other, and
//! all paths are measured at once.

use super::lane::{Lane, STEP};
use super::meter::{Cost, Meter};
use super::phase::{
    self, CHECKED, Measured, Seen, begin, begin_over, check_messages, end, learn_poll_cost, since,
};
use super::team;
use crate::error::{Error, Result, Step};
use crate::host::{CpuMeter, CpuUse};
use crate::measure::bandwidth::{self, BandwidthSample, Load};
use crate::measure::{Halt, Sink, Stop, Stream, together};
use crate::oob::run::{Done, Phase, Ready};
use crate::plan::Transport;
use crate::transport::{Aside, Counted, Payload, Tally};

/// What a thread did.
struct Part {
    outcome: Result<(), Halt>,
    sample: BandwidthSample,
    tally: Tally,
    used: Option<CpuUse>,
}

/// The client's end, a path for each thread. What each measured is in `samples`, in order.
///
/// # Errors
/// Why it could not be measured.
pub fn bandwidth_client<P: Stream + Payload + Counted + Send>(
    lane: &mut Lane,
    paths: &mut [P],
    transport: Transport,
    pulls: bool,
    samples: &mut Vec<BandwidthSample>,
) -> Result<Measured> {
    for path in paths.iter_mut() {
        let count = CHECKED.max(path.positions().len() as u64);
        check_messages(lane, path, transport, count, pulls, Step::Check)?;
        begin_over(lane)?;
    }
    lane.control.set_step(Step::Measure);
    if let Some(path) = paths.first_mut() {
        learn_poll_cost(lane, transport, |_| path.look())?;
    }
    begin(lane, Phase::Measure)?;
    let meter = Meter::start(lane, transport);
    let before: Vec<Vec<u64>> = paths.iter().map(Payload::positions).collect();
    let parts = stream_all(lane, paths)?;
    let sent: u64 = parts.iter().map(|part| part.sample.posted).sum();
    let (cost, outcome) = sum_up(lane, meter, transport, sent, parts, samples);
    outcome.map_err(|halt| lane.explain(halt, Step::Measure))?;
    let each =
        paths.iter().zip(&before).flat_map(|(path, before)| since(before, &path.positions())).collect();
    let report = end(lane, transport, Step::Measure, each)?;
    if lane.test.verify {
        for path in paths.iter_mut() {
            phase::verify_last(lane, path, transport, pulls)?;
            begin_over(lane)?;
        }
    }
    let all = together(samples, &lane.clock);
    let opened_ns = lane.clock.since_epoch(all.opened);
    let (received, window_ns) = (report.messages, all.window_ns);
    Ok(Measured { sent, received, late_replies: None, opened_ns, window_ns, cost, report, back: None })
}

/// Every path's stream at once. A count is dealt out to them.
fn stream_all<P: Stream + Payload + Counted + Send>(lane: &Lane, paths: &mut [P]) -> Result<Vec<Part>> {
    let (clock, watch, test) = (&lane.clock, lane.watch(), &lane.test);
    let threads = paths.len() as u64;
    let mut shares: Vec<(u64, &mut P)> = (0..).zip(paths).collect();
    team::on_cores(&lane.cores, &mut shares, |(index, path)| {
        let stop = match test.stop {
            Stop::Count(count) => Stop::Count(count / threads + u64::from(*index < count % threads)),
            after @ Stop::After(_) => after,
        };
        let depth = test.outstanding(path.positions().len());
        let load = Load { depth, warm_up: test.warm_up, stop };
        let (meter, before) = (CpuMeter::start(lane.test.cpu_report), path.tally());
        let mut sample = BandwidthSample::default();
        let outcome = bandwidth::stream(*path, clock.source(), clock, &load, &watch, &mut sample);
        let used = meter.and_then(|meter| meter.stop()).ok();
        Part { outcome, sample, tally: path.tally().since(before), used }
    })
}

/// The cost of all parts together, and the reason why the first one ended early that did.
fn sum_up(
    lane: &Lane,
    meter: Meter,
    transport: Transport,
    messages: u64,
    parts: Vec<Part>,
    samples: &mut Vec<BandwidthSample>,
) -> (Cost, Result<(), Halt>) {
    let mut tally = Tally::default();
    let mut used: Option<CpuUse> = None;
    let mut outcome = Ok(());
    for part in parts {
        tally = tally.and(part.tally);
        used = match (used, part.used) {
            (Some(sum), Some(more)) => Some(sum.and(&more)),
            (sum, more) => sum.or(more),
        };
        samples.push(part.sample);
        if outcome.is_ok() {
            outcome = part.outcome;
        }
    }
    (meter.stop_with(lane, transport, messages, tally, used), outcome)
}

/// The server's end where messages announce themselves.
///
/// # Errors
/// Why it could not be measured.
pub fn bandwidth_server<P: Sink + Payload + Counted + Send>(
    lane: &mut Lane,
    paths: &mut [P],
    transport: Transport,
    pulls: bool,
) -> Result<()> {
    for path in paths.iter_mut() {
        phase::bandwidth_server(lane, path, transport, pulls)?;
    }
    lane.control.set_step(Step::Measure);
    if let Some(path) = paths.first_mut() {
        learn_poll_cost(lane, transport, |watch| path.look::<false>(watch))?;
    }
    expect_measure(lane)?;
    let meter = Meter::start(lane, transport);
    lane.control.send(&Ready {})?;
    let before: Vec<Vec<u64>> = paths.iter().map(Payload::positions).collect();
    let parts = take_all(lane, paths)?;
    let mut samples = Vec::new();
    let messages = parts.iter().map(|part| part.sample.posted).sum();
    let (cost, outcome) = sum_up(lane, meter, transport, messages, parts, &mut samples);
    match outcome {
        Ok(()) | Err(Halt::Peer) => {}
        Err(halt) => return Err(lane.explain(halt, Step::Measure)),
    }
    let Done { messages: sent, each } = lane.control.recv("the end of the phase", STEP)?;
    // The client's last completions may outrun our own.
    let mut rest = each.as_slice();
    for (path, before) in paths.iter_mut().zip(&before) {
        let (own, others) = rest.split_at(before.len().min(rest.len()));
        rest = others;
        let mut taken = since(before, &path.positions()).iter().sum();
        let watch = lane.watch().without_peer();
        let halted = bandwidth::sink::<P, false>(path, own.iter().sum(), &watch, &mut taken);
        halted.map_err(|halt| lane.explain(halt, Step::Measure))?;
    }
    let taken = paths.iter().zip(&before).flat_map(|(path, before)| since(before, &path.positions())).sum();
    phase::report(lane, Seen::messages(Some(taken)), cost)?;
    if taken != sent {
        return Err(phase::miscounted(Step::Measure, sent, taken));
    }
    if lane.test.verify {
        for path in paths.iter_mut() {
            phase::bandwidth_server(lane, path, transport, pulls)?;
        }
    }
    Ok(())
}

/// Every path's sink at once, until the client has something to say.
fn take_all<P: Sink + Counted + Send>(lane: &Lane, paths: &mut [P]) -> Result<Vec<Part>> {
    let watch = lane.watch();
    team::on_cores(&lane.cores, paths, |path| {
        let (meter, before) = (CpuMeter::start(lane.test.cpu_report), path.tally());
        let mut taken = 0;
        let outcome = bandwidth::sink::<P, false>(path, u64::MAX, &watch, &mut taken);
        let used = meter.and_then(|meter| meter.stop()).ok();
        let sample = BandwidthSample { posted: taken, ..BandwidthSample::default() };
        Part { outcome, sample, tally: path.tally().since(before), used }
    })
}

fn expect_measure(lane: &mut Lane) -> Result<()> {
    match lane.control.recv("the next phase", STEP)? {
        Phase::Measure => Ok(()),
        other => {
            Err(Error::failed(Step::Measure, format!("the peer began {other:?} where all threads measure")))
        }
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
    asides: &mut [impl Aside],
) -> Result<()> {
    for aside in asides.iter_mut() {
        phase::passive_server(lane, transport, size, aside)?;
    }
    lane.control.set_step(Step::Measure);
    expect_measure(lane)?;
    let meter = Meter::start(lane, transport);
    lane.control.send(&Ready {})?;
    let longest = lane.longest_phase(size);
    let Done { messages, each } = lane.control.recv("the end of the phase", longest)?;
    for (aside, own) in asides.iter_mut().zip(each.chunks(lane.test.qps as usize)) {
        aside.check(own, None).map_err(|error| error.at(Step::Measure))?;
    }
    let cost = meter.stop(lane, transport, messages, Tally::default());
    phase::report(lane, Seen::default(), cost)?;
    if lane.test.verify {
        for aside in asides.iter_mut() {
            phase::passive_server(lane, transport, size, aside)?;
        }
    }
    Ok(())
}
