//! A point at the server: which path and which loop it is measured with.

use super::establish::Paths;
use super::lane::Lane;
use super::{lossy, phase, threads};
use crate::error::{Error, Result, Step};
use crate::measure::{Sink, Sleep, Spin, Waiting};
use crate::ops::{Arrival, Op, Peer, Visitor};
use crate::plan::{Connection, Shape, Transport, Wait};
use crate::transport::rdma;
use crate::transport::tcp;
use crate::transport::{Aside, Counted, Gaps, Payload};

/// One point, as a visitor of its verb.
pub struct AtServer<'a> {
    pub lane: &'a mut Lane,
    pub paths: &'a mut Paths,
    pub transport: Transport,
    pub size: u64,
}

impl Visitor for AtServer<'_> {
    type Output = Result<()>;

    fn visit<O: Op>(self) -> Result<()> {
        match self.lane.test.wait {
            Wait::Busy => self.over::<O, Spin>(),
            Wait::Events => self.over::<O, Sleep>(),
        }
    }
}

impl AtServer<'_> {
    fn over<O: Op, W: Waiting>(self) -> Result<()> {
        if self.transport == Transport::Tcp && self.lane.test.tcp.zero_copy {
            self.sending::<O, W, tcp::Lent>()
        } else {
            self.sending::<O, W, tcp::Copied>()
        }
    }

    fn sending<O: Op, W: Waiting, S: tcp::Sending>(self) -> Result<()> {
        let Self { lane, paths, transport, size: bytes } = self;
        let missing = || Error::failed(Step::Measure, "the path of this point was not connected");
        let (pulls, size) = (O::FACTS.pulls(), bytes as usize);
        match (transport, lane.test.shape) {
            (Transport::Rdma, Shape::Latency) => {
                let rdma = paths.rdma.first_mut().ok_or_else(missing)?;
                if O::FACTS.peer == Peer::Passive {
                    let mut aside = rdma::Passive::<O>::new(rdma, size);
                    return phase::passive_server(lane, transport, bytes, &mut aside);
                }
                if const { O::FACTS.runs_over(Connection::Uc) } && lane.may_lose(transport) {
                    let mut path = rdma::Lossy::<O, W, true>::new(rdma, size);
                    return phase::latency_server(lane, &mut path, transport);
                }
                if lane.test.is_pipelined() {
                    return phase::latency_server(
                        lane,
                        &mut rdma::Pipelined::<O, W>::new(rdma, size),
                        transport,
                    );
                }
                phase::latency_server(lane, &mut rdma::PingPong::<O, W>::new(rdma, size), transport)
            }
            (Transport::Tcp, Shape::Latency) => {
                let tcp = paths.tcp.first().ok_or_else(missing)?;
                if lane.test.is_pipelined() {
                    let depth = lane.test.load.depth as usize;
                    let mut path = tcp::Pipelined::<O, W>::new(tcp, size, depth)?;
                    return phase::latency_server(lane, &mut path, transport);
                }
                phase::latency_server(lane, &mut tcp::PingPong::<O, W, S>::new(tcp, size)?, transport)
            }
            (Transport::Rdma, Shape::Bandwidth) => {
                let rdma = paths.rdma.iter_mut();
                if O::FACTS.arrival != Arrival::RecvCompletion {
                    let asides = rdma.map(|rdma| rdma::Passive::<O>::new(rdma, size));
                    return stand_aside(lane, asides.collect(), transport, bytes);
                }
                if lane.test.qps > 1 || lane.test.shared_receive {
                    let paths = rdma.map(|rdma| rdma::Gatherer::<O, W>::new(rdma, size));
                    return take_over_rdma(lane, paths.collect(), bytes, pulls);
                }
                let paths = rdma.map(|rdma| rdma::Taker::<O, W>::new(rdma, size));
                take_over_rdma(lane, paths.collect(), bytes, pulls)
            }
            (Transport::Tcp, Shape::Bandwidth) => {
                let slots = rdma::Layout::of(&lane.test)?.slots;
                let paths = paths.tcp.iter_mut().map(|tcp| tcp::Taker::<O, W, S>::new(tcp, size, slots));
                take(lane, paths.collect::<Result<_>>()?, transport, pulls)
            }
        }
    }
}

/// A bandwidth point over RDMA, whose receiver alone knows how many messages there are if some may be lost; such tests
/// have one thread.
fn take_over_rdma<P: Sink + Gaps + Counted + Send>(
    lane: &mut Lane,
    mut paths: Vec<P>,
    size: u64,
    pulls: bool,
) -> Result<()> {
    match &mut paths[..] {
        [path] if lane.may_lose(Transport::Rdma) => {
            lossy::bandwidth_server(lane, path, Transport::Rdma, size)
        }
        _ => take(lane, paths, Transport::Rdma, pulls),
    }
}

/// A bandwidth point over one path, or over one of each thread.
fn take<P: Sink + Payload + Counted + Send>(
    lane: &mut Lane,
    mut paths: Vec<P>,
    transport: Transport,
    pulls: bool,
) -> Result<()> {
    match &mut paths[..] {
        [path] => phase::bandwidth_server(lane, path, transport, pulls),
        paths => threads::bandwidth_server(lane, paths, transport, pulls),
    }
}

/// A bandwidth point that goes on without this end.
fn stand_aside(lane: &mut Lane, mut asides: Vec<impl Aside>, transport: Transport, size: u64) -> Result<()> {
    match &mut asides[..] {
        [aside] => phase::passive_server(lane, transport, size, aside),
        asides => threads::passive_server(lane, transport, size, asides),
    }
}
