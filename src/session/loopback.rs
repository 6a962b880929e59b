//! Both ends in one process: a server on a thread of its own, a client on this one, a real control connection between.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use super::server::Server;
use super::{Observer, Process, client, new_document};
use crate::error::{Error, Result, Step};
use crate::host;
use crate::measure::{Clock, ClockSource, Counter, Raw, floor};
use crate::plan::{Plan, Role, Transport};
use crate::result::{Document, Floor};
use crate::transport::rdma::Port;

/// Runs both ends.
///
/// # Errors
/// The client's error, which is the server's where that failed first.
pub fn run(plan: &Plan, process: &Process<'_>, document: &mut Document) -> Result<()> {
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut server_plan = plan.clone();
    server_plan.role = Role::Server;
    // Nobody else is waited for.
    server_plan.site.bind = Some(here);
    server_plan.site.control_port = 0;
    server_plan.site.core = None;
    server_plan.site.tcp_only = !plan.test.measures(Transport::Rdma);
    let port = if server_plan.site.tcp_only { None } else { Some(Port::open(&server_plan.site)?) };
    // Of the server alone: a client that fails before it connects must not leave it waiting, and a signal reaches it
    // through the client. One word a run, and a process makes one run.
    let abandoned: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let quiet = Process { observer: &Quiet, signalled: abandoned, ..*process };
    let mut served = new_document(&server_plan, process);
    let mut server = Server::listen(&server_plan, &quiet, port, &mut served)?;
    let mut client_plan = plan.clone();
    client_plan.site.control_port = server.listener.local_port();
    let outcome = std::thread::scope(|scope| {
        // Before this thread is pinned: a thread inherits the cores of the one that starts it.
        let server = std::thread::Builder::new().name("server".into()).spawn_scoped(scope, || {
            let outcome = server.serve_one(&mut served);
            (outcome, served)
        });
        let Ok(server) = server else {
            return Err(Error::failed(Step::Listen, "no thread for the server's end"));
        };
        let outcome = client::run(&client_plan, &here.to_string(), process, document);
        if outcome.is_err() {
            abandoned.store(true, Ordering::Relaxed);
        }
        match server.join() {
            // What the client told the server of is in the client's document.
            Ok((Err(error), _)) if outcome.is_ok() && !error.remote => Err(error),
            Ok(_) => outcome,
            Err(_) => Err(Error::failed(Step::Measure, "the server's thread panicked")),
        }
    });
    if outcome.is_ok() && document.is_emulated() {
        document.floor = Some(floor(document, process));
    }
    outcome
}

/// What stands beside numbers of the emulated device: this tool's own cost, and the distance of the two cores.
fn floor(document: &Document, process: &Process<'_>) -> Floor {
    let clocksource = document.local.as_ref().and_then(|end| end.machine.clocksource.as_deref());
    let clock = Clock::calibrate(process.epoch, clocksource);
    let loop_ns = document.results.iter().find_map(|row| row.uncertainty.loop_ns);
    let there = document.remote.as_ref().and_then(|end| end.core);
    let here = document.local.as_ref().and_then(|end| end.core);
    let core_to_core_ns = there.filter(|_| here.is_some() && here != there).and_then(|core| {
        let move_there = move || host::pin(core).is_ok();
        match clock.source() {
            ClockSource::MonotonicRaw => floor::core_to_core_ns(Raw, &clock, move_there),
            ClockSource::Tsc | ClockSource::Cntvct => floor::core_to_core_ns(Counter, &clock, move_there),
        }
    });
    Floor { core_to_core_ns, loop_ns }
}

/// The server's end of a loopback has nothing to say that the client's does not.
struct Quiet;

impl Observer for Quiet {
    fn say(&self, _: &str) {}
    fn explain(&self, _: &str) {}
    fn connected(&self, _: &Document) {}
    fn measuring(&self, _: &str, _: usize, _: usize) {}
    fn measured(&self, _: &Document) {}
}
