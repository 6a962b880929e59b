//! The points of a run at the client, in order: each measured, recorded, and told to the server.

use super::client::{AtClient, Session, empty_loop};
use super::establish::Paths;
use super::lane::{Lane, STEP};
use super::row::{Recorder, disturbances, ends_point, row};
use crate::error::{Error, Kind, Result, Step};
use crate::oob::Control;
use crate::oob::run::Command;
use crate::plan::Transport;
use crate::result::{Document, ResultRow};
use crate::units::{format_rate, format_size};

impl Session<'_> {
    /// Measures every size over every path.
    pub(super) fn measure(&self, lane: &mut Lane, paths: &mut Paths, document: &mut Document) -> Result<()> {
        let loop_ns = empty_loop(lane);
        if lane.shares_core {
            document.warn("shared_core", "threads share a core: each yields it to the others while it waits");
        }
        if lane.test.keeps_more_than_the_device(Transport::Rdma) {
            document.note(
                "outstanding_reads",
                format!(
                    "the device has at most -o {} of the {} outstanding on the wire; the others wait in its queue, and \
                     their latencies count that",
                    lane.test.outstanding_reads, lane.test.load.depth
                ),
            );
        }
        self.process.observer.connected(document);
        let (sizes, load) = (lane.test.sizes.clone(), lane.test.load.clone());
        let transports = lane.test.transports.clone();
        let of = sizes.len() * transports.len() * (1 + load.rate_shares.len());
        let mut run = Run { lane, paths, document, loop_ns, of };
        for size in sizes {
            let mut rates = Vec::new();
            for &transport in &transports {
                rates.push(self.point(&mut run, Place { transport, size, rate: load.rate_per_s })?);
            }
            for share in &load.rate_shares {
                for (&transport, closed) in transports.iter().zip(&rates) {
                    let rate = Some(three_digits(closed.unwrap_or(0.0) * share));
                    self.point(&mut run, Place { transport, size, rate })?;
                }
            }
        }
        lane.control.set_step(Step::Results);
        document.finish();
        lane.control.send(&Command::Finish { status: document.status })?;
        lane.control.barrier("finished", STEP)
    }

    /// Measures a point, and returns the rate it achieved.
    fn point(&self, run: &mut Run<'_>, place: Place) -> Result<Option<f64>> {
        let Run { lane, paths, document, loop_ns, of } = run;
        let (Place { transport, size, rate }, observer) = (place, self.process.observer);
        if let Some(rate) = rate {
            lane.test
                .check_rate(rate)
                .map_err(|error| Error { kind: Kind::Failed, ..error.at(Step::Measure) })?;
        }
        observer.measuring(&self.name(place), document.results.len(), *of);
        lane.control.set_step(Step::Measure);
        lane.control.send(&Command::Point { transport, size })?;
        let mut recorder = Recorder { offered_per_s: rate, ..Recorder::default() };
        let point = AtClient { lane, paths, transport, size, recorder: &mut recorder };
        let outcome = point.lane.test.verb.visit(point);
        let mut row = row(lane, transport, size, &recorder, outcome.as_ref().ok(), *loop_ns);
        if let Err(error) = outcome {
            match error.kind {
                Kind::Invalid => row.validity.invalid(&error.message),
                _ => row.validity.disturbed("the run ended early"),
            }
            if row.messages > 0 {
                document.add_row(row);
            }
            return Err(error);
        }
        disturbances(document, &mut row);
        send_row(&mut lane.control, row.clone())?;
        let achieved = row.achieved_per_s;
        document.add_row(row);
        if ends_point(&lane.test, document.results.len()) {
            observer.measured(document);
        }
        Ok(achieved)
    }

    fn name(&self, place: Place) -> String {
        let path = match place.transport {
            Transport::Rdma => "rdma",
            Transport::Tcp => "tcp",
        };
        let rate = place.rate.map(|rate| format!(" at {}/s", format_rate(rate))).unwrap_or_default();
        format!("{} {} over {path}{rate}", self.plan.test.binary(), format_size(place.size))
    }
}

/// A run under way.
struct Run<'a> {
    lane: &'a mut Lane,
    paths: &'a mut Paths,
    document: &'a mut Document,
    loop_ns: Option<f64>,
    /// Points in all.
    of: usize,
}

/// What is measured next.
#[derive(Clone, Copy)]
struct Place {
    transport: Transport,
    size: u64,
    /// Of an open loop.
    rate: Option<f64>,
}

/// A rate that a person can read: what is measured is not known to more digits.
fn three_digits(rate: f64) -> f64 {
    let unit = 10f64.powi(rate.max(1.0).log10() as i32 - 2);
    (rate / unit).round() * unit
}

/// Tells the server of a row, in messages that a frame takes: the distribution of an interval has some 80 kB at most.
fn send_row(control: &mut Control, mut row: ResultRow) -> Result<()> {
    let payloads = row.take_interval_payloads();
    if payloads.iter().any(Option::is_some) {
        for payloads in payloads.chunks(8) {
            control.send(&Command::Payloads(payloads.to_vec()))?;
        }
    }
    control.send(&Command::Row(Box::new(row)))
}
