//! The client's phases of a latency point with several messages outstanding, or with messages that are due.
//!
//! The server's are those of any latency point: it answers messages as they come, one after the other.

use super::lane::Lane;
use super::meter::Meter;
use super::phase::{self, CHECKED, Measured, with_ticks};
use super::row::Recorder;
use crate::error::{Result, Step};
use crate::measure::{
    Halt, LatencyHistogram, Limit, OpenLoop, Pipeline, Stop, Ticks, Waiting, paced, pipeline,
};
use crate::oob::run::Phase;
use crate::plan::Transport;
use crate::transport::Counted;
use crate::transport::rdma::share;

/// Measures a point: an open loop where the recorder has a rate, else a closed one.
///
/// # Errors
/// Why it could not be measured. A schedule that was missed is no error but in what is recorded.
pub fn client<P: Pipeline + Counted, W: Waiting>(
    lane: &mut Lane,
    path: &mut P,
    transport: Transport,
    recorder: &mut Recorder,
) -> Result<Measured> {
    lane.control.set_step(Step::Check);
    let lanes = path.lanes();
    let checked = CHECKED.max(lanes as u64);
    phase::begin(lane, Phase::Check { first: vec![0; lanes], count: checked })?;
    let mut unused = LatencyHistogram::new();
    closed(lane, path, Stop::Count(checked).into(), true, &mut unused)
        .map_err(|halt| lane.explain(halt, Step::Check))?;
    phase::end(lane, transport, Step::Check, dealt(&[checked], lanes))?;

    lane.control.set_step(Step::WarmUp);
    phase::begin(lane, Phase::Measure)?;
    let (verify, warm_up, stop) = (lane.test.verify, lane.test.warm_up, lane.test.stop);
    let rate = recorder.offered_per_s;
    let warmed = match rate {
        Some(rate) => open::<P, W>(lane, path, rate, warm_up, verify, &mut unused).map(|seen| seen.posted),
        None => closed(lane, path, warm_up, verify, &mut unused),
    };
    let warmed = warmed.map_err(|halt| lane.explain(halt, Step::WarmUp))?;
    lane.control.set_step(Step::Measure);
    let meter = Meter::start(lane, transport);
    let before = path.tally();
    let ticks = lane.clock.source();
    let opened = ticks.now();
    let histogram = &mut recorder.histogram;
    let outcome = match rate {
        Some(rate) => open::<P, W>(lane, path, rate, stop.into(), verify, histogram).map(|seen| {
            let counted = (seen.posted, seen.window_ns);
            recorder.open_loop = Some(seen);
            counted
        }),
        None => closed(lane, path, stop.into(), verify, histogram)
            .map(|messages| (messages, lane.clock.ns(ticks.now().wrapping_sub(opened)))),
    };
    let cost = meter.stop(lane, transport, recorder.histogram.samples(), path.tally().since(before));
    let (messages, window_ns) = outcome.map_err(|halt| lane.explain(halt, Step::Measure))?;
    let sent = warmed + messages;
    let report = phase::end(lane, transport, Step::Measure, dealt(&[warmed, messages], lanes))?;
    phase::begin_over(lane)?;
    let opened_ns = lane.clock.since_epoch(opened);
    let received = report.messages;
    Ok(Measured { sent, received, late_replies: None, opened_ns, window_ns, cost, report, back: None })
}

/// Messages on each lane after stretches that each began with the first lane.
fn dealt(stretches: &[u64], lanes: usize) -> Vec<u64> {
    (0..lanes).map(|lane| stretches.iter().map(|messages| share(*messages, lane, lanes)).sum()).collect()
}

fn closed<P: Pipeline>(
    lane: &Lane,
    path: &mut P,
    limit: Limit,
    verify: bool,
    histogram: &mut LatencyHistogram,
) -> Result<u64, Halt> {
    let (clock, watch, depth) = (&lane.clock, &lane.watch(), lane.test.load.depth);
    with_ticks!(lane, ticks => if verify {
        pipeline::initiate::<P, _, true>(path, ticks, clock, depth, limit, watch, histogram)
    } else {
        pipeline::initiate::<P, _, false>(path, ticks, clock, depth, limit, watch, histogram)
    })
}

fn open<P: Pipeline, W: Waiting>(
    lane: &Lane,
    path: &mut P,
    rate: f64,
    limit: Limit,
    verify: bool,
    histogram: &mut LatencyHistogram,
) -> Result<OpenLoop, Halt> {
    let (clock, watch, depth) = (&lane.clock, &lane.watch(), lane.test.load.depth);
    let pace = &lane.test.pace(rate);
    with_ticks!(lane, ticks => if verify {
        paced::initiate::<P, W, _, true>(path, ticks, clock, depth, pace, limit, watch, histogram)
    } else {
        paced::initiate::<P, W, _, false>(path, ticks, clock, depth, pace, limit, watch, histogram)
    })
}
