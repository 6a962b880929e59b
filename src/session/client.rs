//! The client's session: it brings the test, and measures.

use std::net::SocketAddr;

use super::at_client::AtClient;
use super::establish::{self, Agreed, Paths};
use super::lane::{LAST_WORD, Lane, PollCosts, STEP};
use super::phase::with_ticks;
use super::row::{Recorder, disturbances, ends_point, row};
use super::{Process, ends, rest};
use crate::error::{Error, Kind, Result, Step};
use crate::host::{self, Cores};
use crate::measure::{Clock, floor};
use crate::oob::run::{Accept, Answer, Busy, Command, Offer, Proposal, Request};
use crate::oob::{self, Control, Identity, LocalEnd, Secret, Target};
use crate::plan::{Connection, Plan, Role, Shape, Side, Test, Transport, Wait};
use crate::result::{Document, ResultRow, TestRecord};
use crate::transport::memory;
use crate::transport::path::{self, PortFacts};
use crate::transport::rdma::{Diagnosis, Port};
use crate::transport::tcp;
use crate::units::{format_rate, format_size};

/// Measures against the server on `host`.
///
/// # Errors
/// Why the run ended before its end; what was measured until then is in the document.
pub fn run(plan: &Plan, host: &str, process: &Process<'_>, document: &mut Document) -> Result<()> {
    let port = if plan.test.measures(Transport::Rdma) { Some(Port::open(&plan.site)?) } else { None };
    let device = port.as_ref().map(|port| port.device().name().to_owned());
    memory::check_node(plan.site.numa)?;
    memory::check(&plan.test, port.as_ref())?;
    tcp::check(&plan.test)?;
    let cores = Cores::read(device.as_deref())?;
    let core = match plan.site.core {
        Some(core) => Some(cores.given(core, &[])?.core),
        None => cores.choose(&[]).map(|choice| choice.core),
    };
    document.local = Some(ends::describe(document, Side::Client, port.as_ref(), core));
    let identity = identity(document);
    let secret = plan.site.secret_file.as_deref().map(Secret::read).transpose()?;
    let target = Target {
        host,
        port: plan.site.control_port,
        timeout: plan.site.connect_timeout,
        from: LocalEnd {
            address: plan.site.bind.map(|address| SocketAddr::new(address, 0)),
            interface: None,
        },
        secret: secret.as_ref(),
        stop: Some(process.signalled),
    };
    let (mut control, _) = oob::connect(&target, &identity)?;
    if let Some(core) = core {
        host::pin(core)?;
    }
    let cores = cores.team(core, plan.test.threads as usize, &[]);
    let session = Session { plan, process, identity, cores: cores.clone() };
    let negotiated = session.negotiate(&mut control, port.as_ref(), document);
    let Agreement { test, mut paths, diagnosis, clock, shares_core } =
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
        diagnosis,
        size: 0,
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
    diagnosis: Option<Diagnosis>,
    clock: Clock,
    shares_core: bool,
}

struct Session<'a> {
    plan: &'a Plan,
    process: &'a Process<'a>,
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
        let offer = self.await_turn(control)?;
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
        let (mut paths, mut diagnosis) = (Paths::default(), None);
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
            diagnosis = Some(establish::diagnosis(port, Side::Client, agreed, &rdma));
            paths.rdma = rdma;
            if let Some((ours, theirs)) = ends::addresses(&agreed.choice) {
                server.set_ip(theirs);
                from.address = Some(SocketAddr::new(ours, 0));
            }
        }
        if test.measures(Transport::Tcp) {
            for _ in 0..test.connections() {
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
        let shares_core = offer.shares_core || has_twins(&self.cores);
        Ok(Agreement { test, paths, diagnosis, clock, shares_core })
    }

    /// Waits for the server's offer. A server that is busy says so every few seconds.
    fn await_turn(&self, control: &mut Control) -> Result<Offer> {
        let mut told = None;
        loop {
            match control.recv("the server's offer", STEP)? {
                Answer::Offer(offer) => return Ok(offer),
                Answer::Busy(Busy { ahead }) if told == Some(ahead) => {}
                Answer::Busy(Busy { ahead }) => {
                    told = Some(ahead);
                    let server = control.peer_addr();
                    self.process
                        .observer
                        .say(&format!("{server} is busy: {ahead} ahead of this client, waiting"));
                }
            }
        }
    }

    /// Chooses the path, and cuts a sweep to what both devices take.
    fn choose_path(&self, control: &mut Control, port: &Port, test: &mut Test) -> Result<Agreed> {
        let theirs: PortFacts = control.recv("the facts of the server's port", STEP)?;
        if port.device().is_emulated() && self.plan.role != Role::Loopback {
            return Err(Error::failed(
                Step::Plan,
                format!("{} exists within one process only: two cannot meet on it", port.device().name()),
            )
            .with_remedy(
                "use --loopback or --tcp-only, or choose a device that the kernel has (`verbmark devices`)",
            ));
        }
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

    /// Measures every size over every path.
    fn measure(&self, lane: &mut Lane, paths: &mut Paths, document: &mut Document) -> Result<()> {
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
        if lane.test.cpu_report {
            rest::share(lane, document)?;
        }
        self.process.observer.connected(document);
        let (sizes, load) = (lane.test.sizes.clone(), lane.test.load.clone());
        let transports = lane.test.transports.clone();
        let waits = lane.test.waits();
        let of = sizes.len() * transports.len() * waits.len() * (1 + load.rate_shares.len());
        let mut run = Run { lane, paths, document, loop_ns, of };
        for size in sizes {
            let mut rates = Vec::new();
            for &wait in &waits {
                for &transport in &transports {
                    let place = Place { transport, size, wait, rate: load.rate_per_s };
                    rates.push(self.point(&mut run, place)?);
                }
            }
            for share in &load.rate_shares {
                for (&transport, closed) in transports.iter().zip(&rates) {
                    let rate = Some(three_digits(closed.unwrap_or(0.0) * share));
                    self.point(&mut run, Place { transport, size, wait: Wait::Busy, rate })?;
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
        let (Place { transport, size, wait, rate }, observer) = (place, self.process.observer);
        if let Some(rate) = rate {
            lane.test
                .check_rate(rate)
                .map_err(|error| Error { kind: Kind::Failed, ..error.at(Step::Measure) })?;
        }
        observer.measuring(&self.name(place), document.results.len(), *of);
        lane.control.set_step(Step::Measure);
        (lane.test.wait, lane.size) = (wait, size);
        paths.wait_as(wait)?;
        lane.control.send(&Command::Point { transport, size, wait: Some(wait) })?;
        let mut recorder = Recorder { offered_per_s: rate, ..Recorder::default() };
        let point = AtClient { lane, paths, transport, size, recorder: &mut recorder };
        let outcome = point.run();
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
        let path = place.transport.name();
        let rate = place.rate.map(|rate| format!(" at {}/s", format_rate(rate))).unwrap_or_default();
        let wait = if place.wait == Wait::Events { " with events" } else { "" };
        format!("{} {} over {path}{rate}{wait}", self.plan.test.binary(), format_size(place.size))
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
    wait: Wait,
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

/// What the loop of this test costs on this core when the path costs nothing.
fn empty_loop(lane: &Lane) -> Option<f64> {
    let (clock, watch) = (&lane.clock, &lane.watch());
    match lane.test.shape {
        // The loop proper is compiled for its clock.
        Shape::Latency if lane.test.is_pipelined() => {
            with_ticks!(lane, ticks => floor::pipeline_ns(ticks, clock, watch))
        }
        Shape::Latency => with_ticks!(lane, ticks => floor::loop_ns(ticks, clock, watch)),
        Shape::Bandwidth => floor::stream_ns(clock.source(), clock, watch),
    }
}
