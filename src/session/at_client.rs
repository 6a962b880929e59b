//! A point at the client: which path and which loop it is measured with.

use super::establish::Paths;
use super::lane::Lane;
use super::phase::{self, Measured};
use super::row::Recorder;
use super::{both, lossy, pipeline, threads};
use crate::error::{Error, Result, Step};
use crate::measure::{Sleep, Spin, Stream, Waiting, together};
use crate::ops::{Arrival, Op, Visitor};
use crate::plan::{Connection, Shape, Transport, Wait};
use crate::transport::rdma::{self, Lists, Single};
use crate::transport::{Counted, Payload, tcp};

/// One point, as a visitor of its verb.
pub struct AtClient<'a> {
    pub lane: &'a mut Lane,
    pub paths: &'a mut Paths,
    pub transport: Transport,
    pub size: u64,
    pub recorder: &'a mut Recorder,
}

impl AtClient<'_> {
    /// Measures it; what was recorded until an error is in the recorder.
    ///
    /// # Errors
    /// Why it could not be measured.
    pub fn run(self) -> Result<Measured> {
        if self.lane.test.bidirectional {
            let Self { lane, paths, transport, size, recorder } = self;
            return both::lead(lane, paths, transport, size, &mut recorder.sample);
        }
        self.lane.test.verb.visit(self)
    }
}

impl Visitor for AtClient<'_> {
    type Output = Result<Measured>;

    fn visit<O: Op>(self) -> Result<Measured> {
        match self.lane.test.wait {
            Wait::Busy => self.over::<O, Spin>(),
            Wait::Events => self.over::<O, Sleep>(),
        }
    }
}

impl AtClient<'_> {
    fn over<O: Op, W: Waiting>(self) -> Result<Measured> {
        // Who asks for data sends nothing that would be worth lending.
        if self.transport == Transport::Tcp && self.lane.test.tcp.zero_copy && !O::FACTS.pulls() {
            self.sending::<O, W, tcp::Lent>()
        } else {
            self.sending::<O, W, tcp::Copied>()
        }
    }

    fn sending<O: Op, W: Waiting, S: tcp::Sending>(self) -> Result<Measured> {
        let Self { lane, paths, transport, size: bytes, recorder } = self;
        let missing = || Error::failed(Step::Measure, "the path of this point was not connected");
        let (pulls, size) = (O::FACTS.pulls(), bytes as usize);
        match (transport, lane.test.shape) {
            (Transport::Rdma, Shape::Latency) => {
                let rdma = paths.rdma.first_mut().ok_or_else(missing)?;
                if const { O::FACTS.runs_over(Connection::Uc) } && lane.may_lose(transport) {
                    let mut path = rdma::Lossy::<O, W, false>::new(rdma, size);
                    return lossy::latency_client(lane, &mut path, transport, bytes, &mut recorder.histogram);
                }
                if lane.test.is_pipelined() {
                    let mut path = rdma::Pipelined::<O, W>::new(rdma, size);
                    return pipeline::client::<_, W>(lane, &mut path, transport, recorder);
                }
                let mut path = rdma::PingPong::<O, W>::new(rdma, size);
                phase::latency_client(lane, &mut path, transport, &mut recorder.histogram)
            }
            (Transport::Tcp, Shape::Latency) => {
                let tcp = paths.tcp.first().ok_or_else(missing)?;
                if lane.test.is_pipelined() {
                    let mut path = tcp::Pipelined::<O, W>::new(tcp, size, lane.test.load.depth as usize)?;
                    return pipeline::client::<_, W>(lane, &mut path, transport, recorder);
                }
                let mut path = tcp::PingPong::<O, W, S>::new(tcp, size)?;
                phase::latency_client(lane, &mut path, transport, &mut recorder.histogram)
            }
            (Transport::Rdma, Shape::Bandwidth) => {
                let rdma = paths.rdma.iter_mut();
                if lane.test.threads > 1 {
                    let paths = rdma.map(|rdma| rdma::Spreader::<O, W>::new(rdma, size));
                    return on_threads(lane, paths.collect(), transport, pulls, recorder);
                }
                let rdma = paths.rdma.first_mut().ok_or_else(missing)?;
                match (lane.test.qps, lane.test.post_list) {
                    (1, 1) => {
                        let mut path = rdma::Streamer::<O, W, Single>::new(rdma, size);
                        over_rdma::<O, _, W>(lane, &mut path, recorder)
                    }
                    (1, _) => {
                        let mut path = rdma::Streamer::<O, W, Lists>::new(rdma, size);
                        over_rdma::<O, _, W>(lane, &mut path, recorder)
                    }
                    _ => over_rdma::<O, _, W>(lane, &mut rdma::Spreader::<O, W>::new(rdma, size), recorder),
                }
            }
            (Transport::Tcp, Shape::Bandwidth) => {
                let slots = rdma::Layout::of(&lane.test)?.slots;
                let paths = paths.tcp.iter_mut().map(|tcp| tcp::Streamer::<O, W, S>::new(tcp, size, slots));
                let mut paths: Vec<_> = paths.collect::<Result<_>>()?;
                match &mut paths[..] {
                    [path] => phase::bandwidth_client::<_, W>(lane, path, transport, pulls, recorder),
                    _ => on_threads(lane, paths, transport, pulls, recorder),
                }
            }
        }
    }
}

/// A bandwidth point over RDMA. Where messages may be lost and their receiver is told of them, that measures it.
fn over_rdma<O: Op, P: Stream + Payload + Counted, W: Waiting>(
    lane: &mut Lane,
    path: &mut P,
    recorder: &mut Recorder,
) -> Result<Measured> {
    let is_told =
        const { O::FACTS.runs_over(Connection::Uc) && matches!(O::FACTS.arrival, Arrival::RecvCompletion) };
    if is_told && lane.may_lose(Transport::Rdma) {
        return lossy::bandwidth_client(lane, path, Transport::Rdma);
    }
    phase::bandwidth_client::<_, W>(lane, path, Transport::Rdma, O::FACTS.pulls(), recorder)
}

/// A bandwidth point over a path of each thread.
fn on_threads<P: Stream + Payload + Counted + Send>(
    lane: &mut Lane,
    mut paths: Vec<P>,
    transport: Transport,
    pulls: bool,
    recorder: &mut Recorder,
) -> Result<Measured> {
    let measured = threads::bandwidth_client(lane, &mut paths, transport, pulls, &mut recorder.threads);
    recorder.sample = together(&recorder.threads, &lane.clock);
    measured
}
