//! The client's session: it brings the test, and measures.

use std::net::SocketAddr;

use super::establish::{self, Agreed, Paths};
use super::lane::{LAST_WORD, Lane, PollCosts, STEP};
use super::phase::{self, Measured};
use super::row::Recorder;
use super::{Process, ends, lossy, pipeline, threads};
use crate::error::{Error, Kind, Result, Step};
use crate::host::{self, Cores};
use crate::measure::{
    Clock, ClockSource, Counter, Raw, Sleep, Spin, Stream, Ticks, Waiting, floor, together,
};
use crate::oob::run::{Accept, Offer, Proposal, Request};
use crate::oob::{self, Control, Identity, LocalEnd, Target};
use crate::ops::{Arrival, Op, Visitor};
use crate::plan::{Connection, Plan, Shape, Side, Test, Transport, Wait};
use crate::result::{Document, TestRecord};
use crate::transport::memory;
use crate::transport::path::{self, PortFacts};
use crate::transport::rdma::{self, Lists, Port, Single};
use crate::transport::tcp;
use crate::transport::{Counted, Payload};

/// Measures against the server on `host`.
///
/// # Errors
/// Why the run ended before its end; what was measured until then is in the document.
pub fn run(plan: &Plan, host: &str, process: &Process<'_>, document: &mut Document) -> Result<()> {
    let port = if plan.test.measures(Transport::Rdma) { Some(Port::open(&plan.site)?) } else { None };
    let device = port.as_ref().map(|port| port.device().name().to_owned());
    memory::check_node(&plan.site)?;
    memory::check(&plan.test, port.as_ref())?;
    tcp::check(&plan.test)?;
    let cores = Cores::read(device.as_deref())?;
    let core = match plan.site.core {
        Some(core) => Some(cores.given(core, &[])?.core),
        None => cores.choose(&[]).map(|choice| choice.core),
    };
    document.local = Some(ends::describe(document, Side::Client, port.as_ref(), core));
    let identity = identity(document);
    let target = Target {
        host,
        port: plan.site.control_port,
        timeout: plan.site.connect_timeout,
        from: LocalEnd {
            address: plan.site.bind.map(|address| SocketAddr::new(address, 0)),
            interface: None,
        },
        stop: Some(process.signalled),
    };
    let (mut control, _) = oob::connect(&target, &identity)?;
    if let Some(core) = core {
        host::pin(core)?;
    }
    let cores = cores.team(core, plan.test.threads as usize, &[]);
    let session = Session { plan, process, identity, cores: cores.clone() };
    let negotiated = session.negotiate(&mut control, port.as_ref(), document);
    let Agreement { test, mut paths, clock, shares_core } =
        negotiated.inspect_err(|error| control.send_error(error))?;
    let device = port.as_ref().map(|port| (port.context().clone(), port.number()));
    let sockets = paths.tcp.iter().filter_map(|tcp| tcp.stream().try_clone().ok()).collect();
    let signalled = process.signalled;
    let mut lane = Lane {
        control,
        test,
        clock,
        cores,
        shares_core,
        signalled,
        device,
        sockets,
        poll_costs: PollCosts::default(),
    };
    session.measure(&mut lane, &mut paths, document).inspect_err(|error| lane.control.send_error(error))
}

/// Some threads have one core together.
pub fn has_twins(cores: &[usize]) -> bool {
    cores.iter().enumerate().any(|(index, core)| cores[..index].contains(core))
}

/// Who speaks, for the preamble.
pub fn identity(document: &Document) -> Identity {
    Identity {
        tool: env!("CARGO_PKG_VERSION").into(),
        boot_id: document.local.as_ref().and_then(|end| end.machine.boot_id.clone()),
    }
}

/// What the server says instead of taking a data connection, or that it is gone, which is then why `error` happened.
fn said_instead(control: &mut Control, error: Error) -> Error {
    if error.kind != Kind::Interrupted && matches!(control.wait_readable(LAST_WORD), Ok(true)) {
        let said: Result<serde_json::Value> = control.recv("the server to take the data connection", STEP);
        return said.err().unwrap_or(error);
    }
    error
}

/// What was agreed with the server, and what is ready for it.
struct Agreement {
    test: Test,
    paths: Paths,
    clock: Clock,
    shares_core: bool,
}

pub(super) struct Session<'a> {
    pub(super) plan: &'a Plan,
    pub(super) process: &'a Process<'a>,
    identity: Identity,
    cores: Vec<usize>,
}

impl Session<'_> {
    /// Agrees on a test, and connects the paths.
    fn negotiate(
        &self,
        control: &mut Control,
        port: Option<&Port>,
        document: &mut Document,
    ) -> Result<Agreement> {
        let observer = self.process.observer;
        control.set_step(Step::Plan);
        let mut test = self.plan.test.clone();
        control.send(&Proposal {
            verb: test.verb,
            shape: test.shape,
            transports: test.transports.clone(),
            cores: self.cores.clone(),
            threads: test.threads,
            server_core: self.plan.server_core,
            run_id: document.run_id.clone(),
        })?;
        let offer: Offer = control.recv("the server's offer", STEP)?;
        let agreed = match port {
            Some(port) => Some(self.choose_path(control, port, &mut test)?),
            None => None,
        };
        control.send(&Request { test: test.clone() })?;
        if let Some(agreed) = &agreed {
            control.send(&agreed.ours)?;
            control.send(&agreed.choice)?;
            observer.explain(&format!("path: {}", agreed.choice.reason));
        }
        let Accept { token } = control.recv("the server's agreement", STEP)?;
        document.test = Some(TestRecord::from(&test));

        establish::note_buffers(document, &test, self.plan.site.numa)?;
        let mut paths = Paths::default();
        let mut server = control.peer_addr();
        let mut from = LocalEnd::default();
        if let (Some(port), Some(agreed)) = (port, &agreed) {
            let rdma = establish::connect_all(control, port, &test, Side::Client, agreed)?;
            for thread in &rdma {
                observer.explain(&format!(
                    "queue pair {:#08x}: inline {} B granted of {} B asked for",
                    thread.qp_number(),
                    thread.caps().max_inline,
                    test.max_inline
                ));
            }
            establish::note_path(document, port, agreed, &rdma);
            paths.rdma = rdma;
            if let Some((ours, theirs)) = ends::addresses(&agreed.choice) {
                server.set_ip(theirs);
                from.address = Some(SocketAddr::new(ours, 0));
            }
        }
        if test.measures(Transport::Tcp) {
            for _ in 0..test.threads {
                let stream = self.connect_data(control, server, &from, &token, document)?;
                let tcp = establish::connect_tcp(control, stream, &test, Side::Client, self.plan.site.numa)?;
                paths.tcp.push(tcp);
            }
            if let Some(tcp) = paths.tcp.first() {
                establish::note_socket(document, tcp);
            }
        }
        // Before the ends introduce themselves: the other end's document has this clock too.
        let clocksource = document.local.as_ref().and_then(|end| end.machine.clocksource.clone());
        let clock = Clock::calibrate(self.process.epoch, clocksource.as_deref());
        if let Some(end) = &mut document.local {
            ends::add_clock(end, &clock);
        }
        establish::introduce(control, document)?;
        Ok(Agreement { test, paths, clock, shares_core: offer.shares_core || has_twins(&self.cores) })
    }

    /// Chooses the path, and cuts a sweep to what both devices take.
    fn choose_path(&self, control: &mut Control, port: &Port, test: &mut Test) -> Result<Agreed> {
        let theirs: PortFacts = control.recv("the facts of the server's port", STEP)?;
        let ours = port.facts();
        let route = |to| host::route_to(to, None, None).ok().map(|route| route.source);
        let choice = path::choose(&ours, &theirs, test.mtu, route)?;
        let most = ours.max_message.min(theirs.max_message);
        if self.plan.is_sweep {
            let cut = if test.connection == Connection::Ud { most.min(choice.mtu.into()) } else { most };
            test.sizes.retain(|size| *size <= cut);
        }
        if let Some(size) = test.sizes.iter().find(|size| **size > most) {
            return Err(Error::failed(
                Step::Plan,
                format!(
                    "size {size} is beyond the largest message: {} takes {} bytes, {} takes {}",
                    ours.name, ours.max_message, theirs.name, theirs.max_message
                ),
            )
            .with_remedy(format!("use -s {most} or less")));
        }
        if let Some(port) = [&ours, &theirs].into_iter().find(|port| !port.atomics)
            && test.verb.facts().is_atomic()
        {
            return Err(Error::failed(
                Step::Plan,
                format!("the device of {} has no atomic operations", port.name),
            )
            .with_remedy("choose another device with -d, or another test"));
        }
        choice.admit(test)?;
        Ok(Agreed { choice, ours, theirs })
    }

    /// Opens the data connection to the address behind the RDMA path, or where that does not listen, to the address
    /// of the control connection.
    fn connect_data(
        &self,
        control: &mut Control,
        server: SocketAddr,
        from: &LocalEnd,
        token: &oob::Token,
        document: &mut Document,
    ) -> Result<std::net::TcpStream> {
        control.set_step(Step::TcpConnect);
        let stop = Some(self.process.signalled);
        let beside = control.peer_addr();
        let timeout = if server == beside { STEP } else { STEP / 5 };
        let first = oob::connect_data(server, token, &self.identity, from, timeout, stop);
        let outcome = match first {
            Err(error) if server != beside && error.kind != Kind::Interrupted => {
                document.warn(
                    "tcp_address",
                    format!(
                        "TCP could not use the address behind the RDMA port ({error}); it goes to {beside}"
                    ),
                );
                oob::connect_data(beside, token, &self.identity, &LocalEnd::default(), STEP, stop)
            }
            first => first,
        };
        outcome.map_err(|error| said_instead(control, error))
    }
}

/// One point, as a visitor of its verb.
pub(super) struct AtClient<'a> {
    pub(super) lane: &'a mut Lane,
    pub(super) paths: &'a mut Paths,
    pub(super) transport: Transport,
    pub(super) size: u64,
    pub(super) recorder: &'a mut Recorder,
}

impl Visitor for AtClient<'_> {
    type Output = Result<Measured>;

    fn visit<O: Op>(self) -> Result<Measured> {
        match (self.lane.test.wait, self.lane.shares_core) {
            (Wait::Busy, false) => self.over::<O, Spin<false>>(),
            (Wait::Busy, true) => self.over::<O, Spin<true>>(),
            (Wait::Events, _) => self.over::<O, Sleep>(),
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
                match (lane.test.qps, lane.test.post_list) {
                    (1, 1) => {
                        let paths = rdma.map(|rdma| rdma::Streamer::<O, W, Single>::new(rdma, size));
                        stream_over_rdma::<O, _, W>(lane, paths.collect(), recorder)
                    }
                    (1, _) => {
                        let paths = rdma.map(|rdma| rdma::Streamer::<O, W, Lists>::new(rdma, size));
                        stream_over_rdma::<O, _, W>(lane, paths.collect(), recorder)
                    }
                    (_, 1) => {
                        let paths = rdma.map(|rdma| rdma::Spreader::<O, W, Single>::new(rdma, size));
                        stream_over_rdma::<O, _, W>(lane, paths.collect(), recorder)
                    }
                    _ => {
                        let paths = rdma.map(|rdma| rdma::Spreader::<O, W, Lists>::new(rdma, size));
                        stream_over_rdma::<O, _, W>(lane, paths.collect(), recorder)
                    }
                }
            }
            (Transport::Tcp, Shape::Bandwidth) => {
                let slots = rdma::Layout::of(&lane.test)?.slots;
                let paths = paths.tcp.iter_mut().map(|tcp| tcp::Streamer::<O, W, S>::new(tcp, size, slots));
                stream::<_, W>(lane, paths.collect::<Result<_>>()?, transport, pulls, recorder)
            }
        }
    }
}

/// A bandwidth point over RDMA. Where messages may be lost and their receiver is told of them, that measures it; such
/// tests have one thread.
fn stream_over_rdma<O: Op, P: Stream + Payload + Counted + Send, W: Waiting>(
    lane: &mut Lane,
    mut paths: Vec<P>,
    recorder: &mut Recorder,
) -> Result<Measured> {
    let is_told =
        const { O::FACTS.runs_over(Connection::Uc) && matches!(O::FACTS.arrival, Arrival::RecvCompletion) };
    match &mut paths[..] {
        [path] if is_told && lane.may_lose(Transport::Rdma) => {
            lossy::bandwidth_client(lane, path, Transport::Rdma)
        }
        _ => stream::<_, W>(lane, paths, Transport::Rdma, O::FACTS.pulls(), recorder),
    }
}

/// A bandwidth point over one path, or over one of each thread.
fn stream<P: Stream + Payload + Counted + Send, W: Waiting>(
    lane: &mut Lane,
    mut paths: Vec<P>,
    transport: Transport,
    pulls: bool,
    recorder: &mut Recorder,
) -> Result<Measured> {
    if let [path] = &mut paths[..] {
        return phase::bandwidth_client::<_, W>(lane, path, transport, pulls, recorder);
    }
    let measured = threads::bandwidth_client(lane, &mut paths, transport, pulls, &mut recorder.threads);
    recorder.sample = together(&recorder.threads, &lane.clock);
    measured
}

/// What the loop of this test costs on this core when the path costs nothing.
pub(super) fn empty_loop(lane: &Lane) -> Option<f64> {
    fn on<T: Ticks>(ticks: T, lane: &Lane) -> Option<f64> {
        match lane.test.shape {
            Shape::Latency if lane.test.is_pipelined() => {
                floor::pipeline_ns(ticks, &lane.clock, &lane.watch())
            }
            Shape::Latency => floor::loop_ns(ticks, &lane.clock, &lane.watch()),
            Shape::Bandwidth => floor::stream_ns(ticks, &lane.clock, &lane.watch()),
        }
    }
    match lane.clock.source() {
        ClockSource::MonotonicRaw => on(Raw, lane),
        ClockSource::Tsc | ClockSource::Cntvct => on(Counter, lane),
    }
}
