//! The server's session: it waits for a client, agrees to its test, and does what the client asks for.

use std::time::Instant;

use super::establish::{self, Agreed, Paths};
use super::lane::{Lane, PollCosts, STEP};
use super::row::ends_point;
use super::{Process, both, client, ends, lossy, phase, rest, threads};
use crate::error::{Error, Kind, Result, Step};
use crate::host::{self, Cores};
use crate::measure::{Clock, Sink, Sleep, Spin, Waiting};
use crate::oob::run::{Accept, Command, Offer, Proposal, Request};
use crate::oob::{Control, Identity, Incoming, Listener, Token};
use crate::ops::{Arrival, Op, Peer, Visitor};
use crate::plan::{self, Connection, MOST_THREADS, Plan, Shape, Side, Test, Transport, Wait};
use crate::result::{Document, Status, TestRecord};
use crate::transport::memory;
use crate::transport::path::{PathChoice, PortFacts};
use crate::transport::rdma::{self, Port};
use crate::transport::tcp;
use crate::transport::{Aside, Counted, Gaps, Payload};

/// Serves one test. Strangers and refused clients do not end it.
///
/// # Errors
/// Why it could not listen, or why the run ended before its end.
pub fn run(plan: &Plan, process: &Process<'_>, document: &mut Document) -> Result<()> {
    let port = if plan.site.tcp_only { None } else { Some(Port::open(&plan.site)?) };
    let mut server = Server::listen(plan, process, port, document)?;
    let address = server.listener.local_addr();
    process.observer.say(&format!("listening on {} port {}", address.ip(), address.port()));
    if !plan.ignored.is_empty() {
        process.observer.say(&format!("ignored, since the client decides them: {}", plan.ignored.join(" ")));
    }
    server.serve_one(document)
}

/// A listening server.
pub struct Server<'a> {
    plan: &'a Plan,
    process: &'a Process<'a>,
    port: Option<Port>,
    /// The port clients connect to.
    pub listener: Listener,
    cores: Cores,
}

/// What was agreed with a client.
struct Agreement {
    control: Control,
    test: Test,
    token: Token,
    agreed: Option<Agreed>,
    cores: Vec<usize>,
    shares_core: bool,
}

impl<'a> Server<'a> {
    /// Opens the listening port. Afterwards clients are kept waiting by the kernel until they are served.
    ///
    /// # Errors
    /// The port is taken.
    pub fn listen(
        plan: &'a Plan,
        process: &'a Process<'a>,
        port: Option<Port>,
        document: &mut Document,
    ) -> Result<Self> {
        document.local = Some(ends::describe(document, Side::Server, port.as_ref(), plan.site.core));
        let identity = client::identity(document);
        memory::check_node(plan.site.numa)?;
        let cores = Cores::read(port.as_ref().map(|port| port.device().name()))?;
        let listener = Listener::bind(plan.site.bind, plan.site.control_port, identity)?;
        Ok(Self { plan, process, port, listener, cores })
    }

    /// Serves the first client whose test can be run.
    ///
    /// # Errors
    /// Why the run ended before its end.
    pub fn serve_one(&mut self, document: &mut Document) -> Result<()> {
        let agreement = self.agree(document)?;
        let Agreement { control, test, token, agreed, cores, shares_core } = agreement;
        let core = cores.first().copied();
        document.test = Some(TestRecord::from(&test));
        if let Some(end) = &mut document.local {
            end.core = core;
            end.numa_node = core.and_then(host::node_of_core);
        }
        let clocksource = document.local.as_ref().and_then(|end| end.machine.clocksource.clone());
        let clock = Clock::calibrate(self.process.epoch, clocksource.as_deref());
        if let Some(end) = &mut document.local {
            ends::add_clock(end, &clock);
        }
        let device = self.port.as_ref().map(|port| (port.context().clone(), port.number()));
        let signalled = self.process.signalled;
        let mut lane = Lane {
            control,
            test,
            clock,
            cores,
            shares_core,
            signalled,
            device,
            sockets: Vec::new(),
            poll_costs: PollCosts::default(),
        };
        let outcome = self.carry_out(&mut lane, &token, agreed.as_ref(), core, document);
        if let Err(error) = &outcome {
            lane.control.send_error(error);
        }
        outcome
    }

    /// Waits for a client with a test that can be run.
    fn agree(&mut self, document: &mut Document) -> Result<Agreement> {
        let observer = self.process.observer;
        loop {
            match self.listener.next(None, self.process.signalled)? {
                Some(Incoming::Control { mut control, hello }) => {
                    let peer = control.peer_addr();
                    match self.negotiate(&mut control, &hello.identity, document) {
                        Ok(agree) => return Ok(agree(control)),
                        Err(error) => {
                            control.send_error(&error);
                            if error.kind == Kind::Interrupted {
                                return Err(error);
                            }
                            observer.say(&format!("client {peer} was not served: {}", error.message));
                        }
                    }
                }
                Some(Incoming::Stray { peer, reason }) => {
                    observer.explain(&format!("ignored a connection: {peer} {reason}"));
                }
                Some(Incoming::Data { .. }) | None => {}
            }
        }
    }

    /// Hears what a client wants. On success the client holds our agreement, and the run has begun.
    fn negotiate(
        &self,
        control: &mut Control,
        identity: &Identity,
        document: &mut Document,
    ) -> Result<impl FnOnce(Control) -> Agreement + use<>> {
        control.set_step(Step::Plan);
        control.set_stop(Some(self.process.signalled));
        let proposal: Proposal = control.recv("the client's proposal", STEP)?;
        let (verb, shape) = (self.plan.test.verb, self.plan.test.shape);
        if plan::binary(proposal.verb, proposal.shape) != plan::binary(verb, shape) {
            return Err(plan::other_test(verb, shape, proposal.verb, proposal.shape));
        }
        let wants_rdma = proposal.transports.contains(&Transport::Rdma);
        if wants_rdma && self.port.is_none() {
            return Err(plan::tcp_only_server());
        }
        let boot_id = document.local.as_ref().and_then(|end| end.machine.boot_id.as_ref());
        let is_here = boot_id.is_some() && boot_id == identity.boot_id.as_ref();
        let taken = if is_here { proposal.cores } else { Vec::new() };
        let first = match self.plan.site.core.or(proposal.server_core) {
            Some(core) => Some(self.cores.given(core, &taken).map_err(|error| error.at(Step::Plan))?.core),
            None => None,
        };
        let threads = proposal.threads.clamp(1, MOST_THREADS) as usize;
        let cores = self.cores.team(first, threads, &taken);
        let shares_core = cores.iter().any(|core| taken.contains(core)) || client::has_twins(&cores);
        control.send(&Offer { core: cores.first().copied(), shares_core })?;
        let ours = match &self.port {
            Some(port) if wants_rdma => {
                let facts = port.facts();
                control.send(&facts)?;
                Some(facts)
            }
            _ => None,
        };
        let Request { test } = control.recv("the client's test", STEP)?;
        let agreed = match ours {
            Some(ours) => {
                let theirs: PortFacts = control.recv("the facts of the client's port", STEP)?;
                let choice: PathChoice = control.recv("the client's choice of the path", STEP)?;
                choice.admit(&test)?;
                self.process.observer.explain(&format!("path: {}", choice.reason));
                Some(Agreed { choice, ours, theirs })
            }
            None => None,
        };
        test.admit(verb, shape, &self.plan.site)?;
        memory::check(&test, self.port.as_ref().filter(|_| wants_rdma))?;
        tcp::check(&test)?;
        let token = Token::random()?;
        control.send(&Accept { token: token.clone() })?;
        document.run_id = proposal.run_id;
        Ok(move |control| Agreement { control, test, token, agreed, cores, shares_core })
    }

    fn carry_out(
        &mut self,
        lane: &mut Lane,
        token: &Token,
        agreed: Option<&Agreed>,
        core: Option<usize>,
        document: &mut Document,
    ) -> Result<()> {
        if let Some(core) = core {
            host::pin(core)?;
        }
        let mut paths = Paths::default();
        let test = lane.test.clone();
        establish::note_buffers(document, &test, self.plan.site.numa)?;
        self.listener.expect(test.measures(Transport::Tcp).then(|| token.clone()));
        if let (Some(port), Some(agreed)) = (&self.port, agreed) {
            paths.rdma = establish::connect_all(&mut lane.control, port, &test, Side::Server, agreed)?;
            establish::note_path(document, port, agreed, &paths.rdma);
        } else if let Some(end) = &mut document.local {
            end.device = None;
        }
        if test.measures(Transport::Tcp) {
            for _ in 0..test.connections() {
                let stream = self.accept_data(lane)?;
                let (control, numa) = (&mut lane.control, self.plan.site.numa);
                let tcp = establish::connect_tcp(control, stream, &test, Side::Server, numa)?;
                lane.sockets.extend(tcp.stream().try_clone());
                paths.tcp.push(tcp);
            }
            if let Some(tcp) = paths.tcp.first() {
                establish::note_socket(document, tcp);
            }
        }
        establish::introduce(&mut lane.control, document)?;
        if lane.test.cpu_report {
            rest::share(lane, document)?;
        }
        self.process.observer.connected(document);
        obey(lane, &mut paths, document, self.process)
    }

    /// Waits for the client's data connection. The client may say that it gives up instead.
    fn accept_data(&mut self, lane: &mut Lane) -> Result<std::net::TcpStream> {
        lane.control.set_step(Step::TcpConnect);
        let deadline = Instant::now() + 2 * STEP;
        loop {
            let slice = (Instant::now() + STEP / 100).min(deadline);
            match self.listener.next(Some(slice), self.process.signalled)? {
                Some(Incoming::Data { stream, .. }) => return Ok(stream),
                Some(Incoming::Control { mut control, .. }) => {
                    control.send_error(&Error::failed(Step::Plan, "this server is busy with another client"));
                }
                Some(Incoming::Stray { .. }) => {}
                None if lane.control.wait_readable(std::time::Duration::ZERO)? => {
                    lane.control.recv::<serde_json::Value>("the data connection", STEP)?;
                    return Err(Error::failed(
                        Step::TcpConnect,
                        "the client spoke before its data connection came",
                    ));
                }
                None if Instant::now() >= deadline => {
                    return Err(Error::failed(
                        Step::TcpConnect,
                        format!("the client's data connection did not come within {} s", 2 * STEP.as_secs()),
                    )
                    .with_remedy(
                        "a firewall between the ends must let both connections through to the server's port",
                    ));
                }
                None => {}
            }
        }
    }
}

/// Intervals of a row at most: as a client keeps, and some.
const MOST_PAYLOADS: usize = 4096;

/// Does what the client says until it is finished.
fn obey(lane: &mut Lane, paths: &mut Paths, document: &mut Document, process: &Process<'_>) -> Result<()> {
    let mut payloads = Vec::new();
    loop {
        lane.control.set_step(Step::Measure);
        match lane.control.recv("the next point", STEP)? {
            Command::Point { transport, size } => {
                if !lane.test.sizes.contains(&size) || !lane.test.measures(transport) {
                    return Err(Error::failed(
                        Step::Measure,
                        format!("{size} bytes is not a point of the test"),
                    ));
                }
                let verb = lane.test.verb;
                if lane.test.bidirectional {
                    both::follow(lane, paths, transport, size)?;
                } else {
                    verb.visit(AtServer { lane, paths, transport, size })?;
                }
            }
            Command::Payloads(more) => {
                payloads.extend(more);
                if payloads.len() > MOST_PAYLOADS {
                    return Err(Error::failed(
                        Step::Results,
                        format!("the client sent the distributions of more than {MOST_PAYLOADS} intervals"),
                    ));
                }
            }
            Command::Row(mut row) => {
                row.put_interval_payloads(std::mem::take(&mut payloads));
                document.add_row(*row);
                if ends_point(&lane.test, document.results.len()) {
                    process.observer.measured(document);
                }
            }
            Command::Finish { status } => {
                lane.control.set_step(Step::Results);
                lane.control.barrier("finished", STEP)?;
                return match status {
                    Status::Ok => Ok(()),
                    Status::Invalid | Status::Failed | Status::Interrupted => {
                        Err(Error::invalid(Step::Results, "the client found its numbers not to be trusted")
                            .as_remote())
                    }
                };
            }
        }
    }
}

/// One point, as a visitor of its verb.
struct AtServer<'a> {
    lane: &'a mut Lane,
    paths: &'a mut Paths,
    transport: Transport,
    size: u64,
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
