//! The server's session: it waits for a client, agrees to its test, and does what the client asks for.

use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::at_server::AtServer;
use super::establish::{self, Agreed, Paths};
use super::lane::{Lane, PollCosts, STEP};
use super::refusals::Refusals;
use super::row::ends_point;
use super::{Observer, Process, both, client, ends, rest};
use crate::error::{Error, Kind, Result, Step};
use crate::host::{self, Cores};
use crate::measure::Clock;
use crate::oob::run::{Accept, Command, Offer, Proposal, Request};
use crate::oob::{Control, Guard, Identity, Incoming, Listener, Secret, Token};
use crate::ops::Verb;
use crate::plan::{self, MOST_THREADS, Plan, Shape, Side, Site, Test, Transport};
use crate::result::{Document, Status, TestRecord};
use crate::transport::memory;
use crate::transport::path::{PathChoice, PortFacts};
use crate::transport::rdma::Port;
use crate::transport::tcp;

/// Serves one test. Strangers and refused clients do not end it.
///
/// # Errors
/// Why it could not listen, or why the run ended before its end.
pub fn run(plan: &Plan, process: &Process<'_>, document: &mut Document) -> Result<()> {
    let port = if plan.site.tcp_only { None } else { Some(Port::open(&plan.site)?) };
    let mut server = Server::listen(plan, process, port, document)?;
    say_where(process, &server.listener);
    if !plan.ignored.is_empty() {
        process.observer.say(&format!("ignored, since the client decides them: {}", plan.ignored.join(" ")));
    }
    server.serve_one(document)
}

/// Says where clients find it, in a line that scripts wait for.
pub fn say_where(process: &Process<'_>, listener: &Listener) {
    let address = listener.local_addr();
    process.observer.say(&format!("listening on {} port {}", address.ip(), address.port()));
}

/// A server of one test, listening.
pub struct Server<'a> {
    end: ServerEnd<'a>,
    /// The port clients connect to.
    pub listener: Listener,
}

/// Who may become a client of this end.
///
/// # Errors
/// The secret cannot be read.
pub(super) fn guard(site: &Site) -> Result<Guard> {
    let secret = site.secret_file.as_deref().map(Secret::read).transpose()?;
    Ok(Guard { secret, allowed: site.allowed.clone(), ..Guard::default() })
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
        let listener = Listener::bind(plan.site.bind, plan.site.control_port, identity, guard(&plan.site)?)?;
        let only = Some((plan.test.verb, plan.test.shape));
        Ok(Self { end: ServerEnd { site: &plan.site, only, process, port, cores }, listener })
    }

    /// Serves the first client whose test can be run.
    ///
    /// # Errors
    /// Why the run ended before its end.
    pub fn serve_one(&mut self, document: &mut Document) -> Result<()> {
        let refusals = Refusals::new(self.end.process.observer);
        let outcome = self.serve_first(&refusals, document);
        refusals.end();
        outcome
    }

    fn serve_first(&mut self, refusals: &Refusals<'_>, document: &mut Document) -> Result<()> {
        let (end, observer) = (&self.end, self.end.process.observer);
        let mut entrance = Doorway { listener: &mut self.listener, refusals, observer };
        loop {
            refusals.sum_up(Instant::now());
            let incoming = match entrance.listener.next(refusals.due(), end.process.signalled) {
                Ok(incoming) => incoming,
                Err(error) => {
                    bid_farewell(entrance.listener, &error);
                    return Err(error);
                }
            };
            match incoming {
                Some(Incoming::Control { mut control, hello }) => {
                    let peer = control.peer_addr();
                    match end.negotiate(&mut control, &hello.identity, &mut entrance, document) {
                        Ok(agreement) => return end.serve(control, agreement, &mut entrance, document),
                        Err(error) => {
                            control.send_error(&as_told(&error));
                            if error.kind == Kind::Interrupted {
                                return Err(error);
                            }
                            refusals.tell(peer, &error.message);
                        }
                    }
                }
                Some(other) => entrance.turn_away(other),
                None => {}
            }
        }
    }
}

/// Tells clients that nobody will hear out why, and gives them a moment to read it.
fn bid_farewell(listener: &mut Listener, error: &Error) {
    let_read(&mut listener.dismiss(&as_told(error)));
}

/// What is left to who comes to a busy server.
pub(super) const ELSEWHERE: &str = "try again later, or use another server";

/// How long clients are given to read why they are not served.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

/// Gives all of them together that time.
pub(super) fn let_read(clients: &mut [Control]) {
    let end = Instant::now() + FAREWELL;
    clients.iter_mut().for_each(|client| client.let_read(end.saturating_duration_since(Instant::now())));
}

/// An error of this server as its client reads it.
pub fn as_told(error: &Error) -> Error {
    match error.kind {
        Kind::Interrupted => Error { message: "the server was stopped by a signal".into(), ..error.clone() },
        _ => error.clone(),
    }
}

/// Where the data connections of a run come from.
pub trait Entrance {
    /// From now on they must show this token; without one they are refused.
    fn expect(&mut self, token: Option<Token>);

    /// The next one; `None` when `deadline` passed first.
    ///
    /// # Errors
    /// `stop` was set, or there are no more.
    fn data(&mut self, deadline: Instant, stop: &AtomicBool) -> Result<Option<TcpStream>>;
}

/// The port of a server of one test, while its client is served.
pub(super) struct Doorway<'a> {
    pub(super) listener: &'a mut Listener,
    pub(super) refusals: &'a Refusals<'a>,
    pub(super) observer: &'a dyn Observer,
}

impl Doorway<'_> {
    /// Says who comes in vain, and tells a client why.
    fn turn_away(&self, incoming: Incoming) {
        match incoming {
            Incoming::Control { mut control, .. } => {
                let why = "this server is busy with another client";
                self.refusals.tell(control.peer_addr(), why);
                control.send_error(&Error::failed(Step::Plan, why).with_remedy(ELSEWHERE));
            }
            Incoming::Refused { peer, reason } => self.refusals.tell(peer, &format!("it {reason}")),
            Incoming::Stray { peer, reason } => {
                self.observer.explain(&format!("ignored a connection: {peer} {reason}"));
            }
            // One that nobody waits for is closed.
            Incoming::Data { .. } => {}
        }
    }
}

impl Entrance for Doorway<'_> {
    fn expect(&mut self, token: Option<Token>) {
        self.listener.expected().set(token);
    }

    fn data(&mut self, deadline: Instant, stop: &AtomicBool) -> Result<Option<TcpStream>> {
        loop {
            match self.listener.next(Some(deadline), stop)? {
                Some(Incoming::Data { stream, .. }) => return Ok(Some(stream)),
                Some(other) => self.turn_away(other),
                None => return Ok(None),
            }
        }
    }
}

/// This end, as it serves one client.
pub struct ServerEnd<'a> {
    /// Its own choices.
    pub site: &'a Site,
    /// The only test it serves; `None` serves any.
    pub only: Option<(Verb, Shape)>,
    pub process: &'a Process<'a>,
    /// `None` refuses RDMA.
    pub port: Option<Port>,
    /// Those it may use.
    pub cores: Cores,
}

/// What was agreed with a client.
pub struct Agreement {
    /// Completely decided.
    pub test: Test,
    agreed: Option<Agreed>,
    /// Of this end's threads.
    pub cores: Vec<usize>,
    /// Of the client's, where that is on this host.
    pub taken: Vec<usize>,
    shares_core: bool,
}

impl ServerEnd<'_> {
    /// Hears what a client wants. On success the client holds our agreement, and the run has begun.
    ///
    /// # Errors
    /// Why it is not served; the client is to be told.
    pub fn negotiate(
        &self,
        control: &mut Control,
        identity: &Identity,
        entrance: &mut impl Entrance,
        document: &mut Document,
    ) -> Result<Agreement> {
        control.set_step(Step::Plan);
        control.set_stop(Some(self.process.signalled));
        let proposal: Proposal = control.recv("the client's proposal", STEP)?;
        plan::serves(self.only, proposal.verb, proposal.shape)?;
        let wants_rdma = proposal.transports.contains(&Transport::Rdma);
        if wants_rdma && self.port.is_none() {
            return Err(plan::tcp_only_server());
        }
        let boot_id = document.local.as_ref().and_then(|end| end.machine.boot_id.as_ref());
        let is_here = boot_id.is_some() && boot_id == identity.boot_id.as_ref();
        let taken = if is_here { proposal.cores } else { Vec::new() };
        let first = match self.site.core.or(proposal.server_core) {
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
        test.admit(self.only, self.site)?;
        memory::check_most(&test, self.site.most.memory)?;
        memory::check(&test, self.port.as_ref().filter(|_| wants_rdma))?;
        tcp::check(&test)?;
        let token = Token::random()?;
        // The client comes with it as soon as it knows it.
        entrance.expect(test.measures(Transport::Tcp).then(|| token.clone()));
        control.send(&Accept { token })?;
        document.run_id = proposal.run_id;
        Ok(Agreement { test, agreed, cores, taken, shares_core })
    }

    /// Does what was agreed with a client.
    ///
    /// # Errors
    /// Why the run ended before its end; the client has been told.
    pub fn serve(
        &self,
        control: Control,
        agreement: Agreement,
        entrance: &mut impl Entrance,
        document: &mut Document,
    ) -> Result<()> {
        let Agreement { test, agreed, cores, shares_core, .. } = agreement;
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
            diagnosis: None,
            size: 0,
        };
        let outcome = self.carry_out(&mut lane, agreed.as_ref(), core, entrance, document);
        if let Err(error) = &outcome {
            lane.control.send_error(&as_told(error));
        }
        outcome
    }

    fn carry_out(
        &self,
        lane: &mut Lane,
        agreed: Option<&Agreed>,
        core: Option<usize>,
        entrance: &mut impl Entrance,
        document: &mut Document,
    ) -> Result<()> {
        if let Some(core) = core {
            host::pin(core)?;
        }
        let mut paths = Paths::default();
        let test = lane.test.clone();
        establish::note_buffers(document, &test, self.site.numa)?;
        if let (Some(port), Some(agreed)) = (&self.port, agreed) {
            paths.rdma = establish::connect_all(&mut lane.control, port, &test, Side::Server, agreed)?;
            establish::note_path(document, port, agreed, &paths.rdma);
            lane.diagnosis = Some(establish::diagnosis(port, Side::Server, agreed, &paths.rdma));
        } else if let Some(end) = &mut document.local {
            end.device = None;
        }
        if test.measures(Transport::Tcp) {
            for _ in 0..test.connections() {
                let stream = self.accept_data(lane, entrance)?;
                let (control, numa) = (&mut lane.control, self.site.numa);
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
    fn accept_data(&self, lane: &mut Lane, entrance: &mut impl Entrance) -> Result<TcpStream> {
        lane.control.set_step(Step::TcpConnect);
        let deadline = Instant::now() + 2 * STEP;
        loop {
            let slice = (Instant::now() + STEP / 100).min(deadline);
            match entrance.data(slice, self.process.signalled)? {
                Some(stream) => return Ok(stream),
                None if lane.control.wait_readable(Duration::ZERO)? => {
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
            Command::Point { transport, size, wait } => {
                let wait = wait.unwrap_or(lane.test.wait);
                let is_planned = lane.test.sizes.contains(&size)
                    && lane.test.measures(transport)
                    && lane.test.waits().contains(&wait);
                if !is_planned {
                    let message =
                        format!("{size} bytes over {transport:?}, {wait:?}, is no point of the test");
                    return Err(Error::failed(Step::Measure, message));
                }
                (lane.test.wait, lane.size) = (wait, size);
                paths.wait_as(wait)?;
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
