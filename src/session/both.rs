//! A bandwidth point that goes both ways at once: what either end does of it. The client leads, as always.

use std::time::Duration;

use super::establish::Paths;
use super::lane::{Lane, STEP};
use super::meter::{Cost, Meter};
use super::phase::{CHECKED, Measured, Seen, begin, miscounted, report, since};
use super::row::row_interval;
use crate::error::{Error, Result, Step};
use crate::measure::bandwidth::{self, BandwidthSample, Load};
use crate::measure::{Both, Clock, Halt, Sleep, Spin, Ticks, TwoWay, Waiting};
use crate::oob::clock_offset::{Offset, answer_offset, measure_offset};
use crate::oob::run::{Done, Phase, Ready, Report, Streamed};
use crate::ops::{Op, Visitor};
use crate::plan::{Side, Transport, Wait};
use crate::result::{DirectionRow, Overlap, ResultRow, RowInterval, Span};
use crate::transport::rdma::{self, Duplex, Gatherer, Single, Spreader, Streamer, Taker};
use crate::transport::{Counted, Exchanged, tcp};

/// What the client learned of the other direction.
pub struct Back {
    /// Messages of it that arrived, warm-up included; `None` where this end is not told.
    taken: Option<u64>,
    streamed: Streamed,
    offset: Offset,
}

/// The client's end of a point for messages of `size` bytes. What it streamed is in the sample, also when the point
/// ended early.
///
/// # Errors
/// Why it could not be measured.
pub fn lead(
    lane: &mut Lane,
    paths: &mut Paths,
    transport: Transport,
    size: u64,
    sample: &mut BandwidthSample,
) -> Result<Measured> {
    let measured = lane.test.verb.visit(AtEnd { lane, paths, transport, size, sample })?;
    measured.ok_or_else(|| Error::failed(Step::Measure, "the client's end has measured nothing"))
}

/// The server's end.
///
/// # Errors
/// Why it could not be measured.
pub fn follow(lane: &mut Lane, paths: &mut Paths, transport: Transport, size: u64) -> Result<()> {
    let sample = &mut BandwidthSample::default();
    lane.test.verb.visit(AtEnd { lane, paths, transport, size, sample }).map(drop)
}

/// One end of a point, as a visitor of its verb; the client learns what was measured.
struct AtEnd<'a> {
    lane: &'a mut Lane,
    paths: &'a mut Paths,
    transport: Transport,
    size: u64,
    sample: &'a mut BandwidthSample,
}

impl Visitor for AtEnd<'_> {
    type Output = Result<Option<Measured>>;

    fn visit<O: Op>(self) -> Self::Output {
        match self.lane.test.wait {
            Wait::Busy => self.over::<O, Spin>(),
            Wait::Events => self.over::<O, Sleep>(),
        }
    }
}

impl AtEnd<'_> {
    fn over<O: Op, W: Waiting>(self) -> Result<Option<Measured>> {
        let missing = || Error::failed(Step::Measure, "the path of this point was not connected");
        let size = self.size as usize;
        let point =
            Point { lane: self.lane, transport: self.transport, size: self.size, sample: self.sample };
        if self.transport == Transport::Tcp {
            let [one, other] = &self.paths.tcp[..] else {
                return Err(missing());
            };
            let (out, into) = match point.lane.control.side() {
                Side::Client => (one, other),
                Side::Server => (other, one),
            };
            let slots = rdma::Layout::of(&point.lane.test)?.slots;
            return point.run::<_, W>(&mut tcp::Duplex::<O>::new(out, into, size, slots)?);
        }
        let rdma = self.paths.rdma.first_mut().ok_or_else(missing)?;
        let test = &point.lane.test;
        match (test.qps, test.post_list) {
            (1, 1) if !test.shared_receive => {
                point.run::<_, W>(&mut Duplex::<O, Streamer<'_, O, W, Single>, Taker<'_, O, W>>::over_one(
                    rdma, size,
                ))
            }
            _ => point
                .run::<_, W>(&mut Duplex::<O, Spreader<'_, O, W>, Gatherer<'_, O, W>>::over_all(rdma, size)),
        }
    }
}

/// A point whose path is known.
struct Point<'a> {
    lane: &'a mut Lane,
    transport: Transport,
    size: u64,
    sample: &'a mut BandwidthSample,
}

/// What a phase came to at this end.
struct Ended {
    /// Messages that the peer posted and this end was told of.
    taken: Option<u64>,
    cost: Cost,
}

impl Point<'_> {
    fn run<P: TwoWay + Exchanged + Counted, W: Waiting>(mut self, path: &mut P) -> Result<Option<Measured>> {
        match self.lane.control.side() {
            Side::Client => self.lead::<P, W>(path).map(Some),
            Side::Server => self.follow::<P, W>(path).map(|()| None),
        }
    }

    fn lead<P: TwoWay + Exchanged + Counted, W: Waiting>(&mut self, path: &mut P) -> Result<Measured> {
        let pairs = path.sent().len() as u64;
        self.lead_checks::<P, W>(path, CHECKED.max(pairs), Step::Check)?;

        self.lane.control.set_step(Step::Measure);
        begin(self.lane, Phase::Measure)?;
        let Ended { taken, cost } = self.measure::<P, W>(path)?;
        let report = self.hear(Step::Measure)?;
        let Some(streamed) = report.streamed.clone() else {
            return Err(Error::failed(Step::Measure, "the server has measured nothing of its direction"));
        };
        let now = now_ns(&self.lane.clock);
        let offset = measure_offset(&mut self.lane.control, now)?;
        if self.lane.test.verify {
            let window = self.depth(path).min(path.slots());
            self.lead_checks::<P, W>(path, window, Step::Verify)?;
        }
        self.lane.control.send(&Phase::Over)?;
        let opened_ns = self.lane.clock.since_epoch(self.sample.opened);
        let (sent, window_ns) = (self.sample.posted, self.sample.window_ns);
        let back = Some(Back { taken, streamed, offset });
        Ok(Measured {
            sent,
            received: report.messages,
            late_replies: None,
            opened_ns,
            window_ns,
            cost,
            report,
            back,
        })
    }

    /// Lets both ends send `count` messages in batches that have buffers of their own, each checked where it arrives.
    fn lead_checks<P: TwoWay + Exchanged + Counted, W: Waiting>(
        &mut self,
        path: &mut P,
        count: u64,
        step: Step,
    ) -> Result<()> {
        self.lane.control.set_step(step);
        let batch = path.slots().min(self.depth(path));
        let mut left = count;
        while left > 0 {
            let count = batch.min(left);
            // The server may begin as soon as it is asked to.
            path.stamp(count);
            begin(self.lane, Phase::Check { first: path.sent(), count })?;
            self.check::<P, W>(path, count, step)?;
            self.hear(step)?;
            left -= count;
        }
        Ok(())
    }

    fn follow<P: TwoWay + Exchanged + Counted, W: Waiting>(&mut self, path: &mut P) -> Result<()> {
        loop {
            let phase: Phase = self.lane.control.recv("the next phase", STEP)?;
            match phase {
                Phase::Over => return Ok(()),
                Phase::WarmUp => {
                    return Err(Error::failed(
                        Step::WarmUp,
                        "a warm-up alone is for services that lose messages",
                    ));
                }
                Phase::Check { count, .. } => {
                    self.lane.control.set_step(Step::Check);
                    let batch = path.slots().min(self.depth(path));
                    if count > batch {
                        let text = format!(
                            "the client asks for {count} messages to be checked at once, beyond {batch}"
                        );
                        return Err(Error::failed(Step::Check, text));
                    }
                    path.stamp(count);
                    self.lane.control.send(&Ready {})?;
                    let Ended { taken, cost } = self.check::<P, W>(path, count, Step::Check)?;
                    report(self.lane, Seen::messages(taken), cost)?;
                }
                Phase::Measure => {
                    self.lane.control.set_step(Step::Measure);
                    self.lane.control.send(&Ready {})?;
                    let Ended { taken, cost } = self.measure::<P, W>(path)?;
                    let streamed = self.streamed();
                    report(
                        self.lane,
                        Seen { messages: taken, streamed: Some(streamed), ..Seen::default() },
                        cost,
                    )?;
                    let now = now_ns(&self.lane.clock);
                    answer_offset(&mut self.lane.control, now)?;
                }
            }
        }
    }

    /// What this end measured of its own direction.
    fn streamed(&self) -> Streamed {
        let sample = &self.sample;
        Streamed {
            posted: sample.posted,
            messages: sample.messages,
            opened_ns: self.lane.clock.since_epoch(sample.opened),
            window_ns: sample.window_ns,
            intervals: intervals(sample, self.size),
        }
    }

    /// The server's report of a phase that this end has ended.
    fn hear(&mut self, step: Step) -> Result<Report> {
        self.lane.control.set_step(step);
        self.lane.control.recv("the server's report of the phase", STEP)
    }

    fn depth(&self, path: &impl Exchanged) -> u64 {
        self.lane.test.outstanding(path.sent().len())
    }

    fn measure<P: TwoWay + Exchanged + Counted, W: Waiting>(&mut self, path: &mut P) -> Result<Ended> {
        let load =
            Load { depth: self.depth(path), warm_up: self.lane.test.warm_up, stop: self.lane.test.stop };
        *self.sample = BandwidthSample::default();
        let sample = &mut *self.sample;
        exchange::<P, W, false>(
            self.lane,
            path,
            self.transport,
            self.size,
            Step::Measure,
            None,
            |both, lane| {
                let (clock, watch) = (&lane.clock, &lane.watch().until_gone());
                bandwidth::stream(both, clock.source(), clock, &load, watch, sample)
            },
        )
    }

    fn check<P: TwoWay + Exchanged + Counted, W: Waiting>(
        &mut self,
        path: &mut P,
        count: u64,
        step: Step,
    ) -> Result<Ended> {
        exchange::<P, W, true>(self.lane, path, self.transport, self.size, step, Some(count), |both, lane| {
            bandwidth::batch(both, count, &lane.watch().until_gone())
        })
    }
}

/// This end's part of a phase: it sends as `send` says and takes what comes meanwhile, tells the peer how much it was,
/// and takes on until the peer has told the same and all of it is here.
fn exchange<P: TwoWay + Exchanged + Counted, W: Waiting, const VERIFY: bool>(
    lane: &mut Lane,
    path: &mut P,
    transport: Transport,
    size: u64,
    step: Step,
    checked: Option<u64>,
    send: impl FnOnce(&mut Both<'_, P, W, VERIFY>, &Lane) -> std::result::Result<(), Halt>,
) -> Result<Ended> {
    let meter = Meter::start(lane, transport);
    let (before, began) = (path.tally(), path.sent());
    let mut both = Both::<P, W, VERIFY>::new(path);
    send(&mut both, lane).map_err(|halt| broken_off(lane, halt, step))?;
    let each = since(&began, &both.path().sent());
    let sent = each.iter().sum();
    lane.control.send(&Done { messages: sent, each })?;
    if P::IS_TOLD {
        match both.take_until(u64::MAX, &lane.watch()) {
            Ok(()) | Err(Halt::Peer) => {}
            Err(halt) => return Err(lane.explain(halt, step)),
        }
    }
    let longest = if P::IS_TOLD { STEP } else { lane.longest_phase(size) };
    let Done { messages, each } = lane.control.recv("the end of the phase", longest)?;
    let mut taken = None;
    if P::IS_TOLD {
        // The peer's last completion may outrun our own.
        both.take_until(messages, &lane.watch().without_peer()).map_err(|halt| lane.explain(halt, step))?;
        taken = Some(both.taken());
        if both.taken() != messages {
            return Err(miscounted(step, messages, both.taken()));
        }
    }
    let handled = sent + taken.unwrap_or(0);
    let cost = meter.stop(lane, transport, handled, path.tally().since(before));
    path.check(&each, checked).map_err(|error| error.at(step))?;
    Ok(Ended { taken, cost })
}

/// The error behind a phase that this end did not bring to its end. The peer may have been done with it before.
fn broken_off(lane: &mut Lane, halt: Halt, step: Step) -> Error {
    if matches!(halt, Halt::Peer | Halt::Failed(_) | Halt::Work(_))
        && matches!(lane.control.wait_readable(Duration::ZERO), Ok(true))
    {
        match lane.control.recv::<Done>("the end of the phase", STEP) {
            Err(error) if error.remote => return error,
            _ => {}
        }
    }
    lane.explain(halt, step)
}

/// Reads this end's clock, in ns since its process began.
fn now_ns(clock: &Clock) -> impl Fn() -> u64 + use<> {
    let clock = clock.clone();
    move || clock.since_epoch(clock.source().now())
}

fn intervals(sample: &BandwidthSample, size: u64) -> Vec<RowInterval> {
    sample.intervals.iter().map(|interval| row_interval(interval, size)).collect()
}

/// Makes the row of a point that of both directions; without `measured` it ended early, and only the client's is known.
pub fn of_both(row: ResultRow, sample: &BandwidthSample, measured: Option<&Measured>) -> ResultRow {
    let size = row.size_bytes;
    let window = Duration::from_nanos(sample.window_ns);
    let mut there = DirectionRow::new(Side::Client, size, sample.messages, window, intervals(sample, size));
    let Some((measured, back)) = measured.and_then(|measured| Some((measured, measured.back.as_ref()?)))
    else {
        return row.with_directions(vec![there], None);
    };
    let Back { taken, streamed, offset } = back;
    let ours = Span { start_ns: measured.opened_ns as i64, length_ns: measured.window_ns };
    let start_ns = offset.to_client(streamed.opened_ns) as i64;
    let theirs = Span { start_ns, length_ns: streamed.window_ns };
    there.start_s = Some(ours.start_ns as f64 / 1e9);
    let window = Duration::from_nanos(streamed.window_ns);
    let mut back =
        DirectionRow::new(Side::Server, size, streamed.messages, window, streamed.intervals.clone());
    back.start_s = Some(start_ns as f64 / 1e9);
    let overlap = Overlap::of(ours, theirs, offset.ns, offset.uncertainty_ns);
    let mut row = row.with_directions(vec![there, back], Some(overlap));
    let sent = measured.sent.saturating_add(streamed.posted);
    row.sent = Some(sent);
    row.received = taken.zip(measured.report.messages).map(|(back, there)| back.saturating_add(there));
    row.lost = row.received.map(|received| sent.saturating_sub(received));
    row
}
