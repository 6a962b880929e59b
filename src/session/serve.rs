//! The persistent server: any test, one client after the other, until it is stopped.
//!
//! The thread that waits at the door measures nothing. While a client is served it sleeps, away from the cores that
//! measure, until somebody comes: who must wait is told how many are ahead. Each client is served by a thread of its own, so
//! that none inherits the core of the one before.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use nix::unistd::{Pid, gettid};

use super::refusals::Refusals;
use super::server::{
    Agreement, ELSEWHERE, Entrance, FAREWELL, ServerEnd, as_told, guard, let_read, say_where,
};
use super::{Process, client, ends};
use crate::error::{Error, Kind, Result, Step};
use crate::host::{self, Cores};
use crate::measure::Epoch;
use crate::oob::run::Busy;
use crate::oob::{Bell, Control, Expected, Identity, Incoming, Listener, Tether, Token};
use crate::plan::{Most, SHORTER, Side, Site, Test, Transport};
use crate::result::{Document, Tool};
use crate::transport::memory;
use crate::transport::rdma::Port;
use crate::units::format_duration;

/// Clients that may wait for their turn; one more is refused.
const MOST_WAITING: usize = 64;

/// How often a waiting client hears that this end is alive: well within the time that it waits for a word.
const RENEW: Duration = Duration::from_secs(5);

/// Without a queue, how long a client may wait for the one before to be gone: it comes as soon as that one has exited.
const GRACE: Duration = Duration::from_secs(1);

/// How long the thread of a client that is cut off is given to tell it why.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How serving ended, for one client or for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// No test was cut short.
    Idle,
    /// A test was, by a signal.
    Cut,
}

/// Serves until a signal asks to stop. A client that fails or is refused does not end it. Without `queues`, who comes while
/// another is served is refused.
///
/// # Errors
/// It could not listen, or its device cannot be used.
pub fn serve(site: &Site, queues: bool, process: &Process<'_>) -> Result<Ending> {
    memory::check_node(site.numa)?;
    let mut facts = new_document(process);
    // Opened again for each client: what is plugged in or configured meanwhile counts for the next one.
    let port = open(site)?;
    facts.local = Some(ends::describe(&mut facts, Side::Server, port.as_ref(), site.core));
    let cores = Cores::read(port.as_ref().map(|port| port.device().name()))?;
    if let Some(core) = site.core {
        cores.given(core, &[])?;
    }
    drop(port);
    let listener = Listener::bind(site.bind, site.control_port, client::identity(&facts), guard(site)?)?;
    say_where(process, &listener);
    let (waiting, leaving) = (VecDeque::new(), VecDeque::new());
    let refusals = &Refusals::new(process.observer);
    let mut door = Door { listener, queues, process, waiting, leaving, refusals };
    let shop = Shop { site, process, cores, door: gettid(), expected: door.listener.expected(), refusals };
    let outcome = std::thread::scope(|scope| door.keep(&shop, scope));
    door.close();
    outcome
}

fn new_document(process: &Process<'_>) -> Document {
    Document::new(Tool::new("verbmark"), process.command.to_vec(), [].into())
}

fn open(site: &Site) -> Result<Option<Port>> {
    if site.tcp_only { Ok(None) } else { Port::open(site).map(Some) }
}

/// A client that has said hello.
struct Guest {
    control: Control,
    identity: Identity,
    since: Instant,
}

/// The thread that waits for connections, and who waits there.
struct Door<'a> {
    listener: Listener,
    queues: bool,
    process: &'a Process<'a>,
    waiting: VecDeque<Guest>,
    /// Refused, and kept until then so that they can read why.
    leaving: VecDeque<(Instant, Control)>,
    refusals: &'a Refusals<'a>,
}

/// A client that is being served.
struct Serving<'scope> {
    thread: ScopedJoinHandle<'scope, Ending>,
    is_over: Arc<AtomicBool>,
    /// Its data connections.
    streams: Sender<TcpStream>,
    leash: Option<Leash>,
}

/// What cuts off a client that goes on for longer than any test that is admitted: the client may be of any make.
struct Leash {
    until: Instant,
    /// What it is told then; none once that has been done.
    why: Option<Error>,
    tether: Tether,
}

impl Leash {
    /// Of a client whose turn begins; `None` where time has no limit.
    ///
    /// # Errors
    /// No descriptor is left for it. To serve the client without it would be to serve it without a limit.
    fn of(control: &Control, most: &Most) -> Result<Option<Self>> {
        let (Some(may), Some(turn)) = (most.duration, most.longest_turn()) else { return Ok(None) };
        let Some(until) = Instant::now().checked_add(turn) else { return Ok(None) };
        let tether = control.tether().map_err(|error| {
            let message = format!("this server has no descriptor left to hold it to --max-duration: {error}");
            Error::failed(Step::Plan, message)
                .with_remedy(format!("{ELSEWHERE}; who runs this one may raise `ulimit -n` for it"))
        })?;
        let message = format!(
            "cut off after {} s: this server takes tests of up to {} s",
            turn.as_secs_f64(),
            may.as_secs_f64()
        );
        let why = Error::failed(Step::Measure, message)
            .with_remedy(format!("{SHORTER}; see that nothing holds this end up"));
        Ok(Some(Self { until, why: Some(why), tether }))
    }

    /// Cuts the client off when its time is up, and then, if that was not enough, ends its connection.
    fn pull(&mut self) {
        if Instant::now() < self.until {
            return;
        }
        match self.why.take() {
            Some(why) => {
                self.tether.cut(why);
                self.until += LAST_WORDS;
            }
            None => self.tether.end(),
        }
    }

    /// When to pull next; `None` when there is nothing left to do.
    fn next(&self) -> Option<Instant> {
        (self.why.is_some() || Instant::now() < self.until).then_some(self.until)
    }
}

/// Tells the door that a client has been served, also where that panicked.
struct Over {
    flag: Arc<AtomicBool>,
    /// Rings when the flag is set.
    _bell: Bell,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.flag.store(true, Ordering::Release);
    }
}

impl Door<'_> {
    /// Takes clients until a signal.
    fn keep<'scope, 'env>(
        &mut self,
        shop: &'env Shop<'env>,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Result<Ending> {
        let mut serving: Option<Serving<'scope>> = None;
        let mut renewal = Instant::now();
        loop {
            if let Some(ended) = serving.take_if(|serving| serving.is_over.load(Ordering::Acquire)) {
                shop.expected.set(None);
                shop.let_door_go();
                let ending = ended.thread.join();
                if self.process.signalled.load(Ordering::Relaxed) {
                    return Ok(ending.unwrap_or(Ending::Cut));
                }
            }
            // Who cannot be served does not hold up the next one.
            while serving.is_none()
                && let Some(guest) = self.waiting.pop_front()
            {
                serving = self.begin(guest, shop, scope);
                self.tell_all();
            }
            let leash = serving.as_mut().and_then(|serving| serving.leash.as_mut()).and_then(|leash| {
                leash.pull();
                leash.next()
            });
            self.leaving.retain(|(until, _)| Instant::now() < *until);
            if renewal <= Instant::now() {
                self.renew();
                renewal = Instant::now() + if self.queues { RENEW } else { GRACE };
            }
            let is_quiet = self.waiting.is_empty() && self.leaving.is_empty();
            self.refusals.sum_up(Instant::now());
            let deadlines = (!is_quiet).then_some(renewal).into_iter().chain(leash);
            let deadline = deadlines.chain(self.refusals.due()).min();
            let incoming = match &serving {
                // The client's thread hears a signal, and ends.
                Some(_) => self.listener.next_unless_rung(deadline)?,
                None => match self.listener.next(deadline, self.process.signalled) {
                    Err(error) if error.kind == Kind::Interrupted => return Ok(Ending::Idle),
                    incoming => incoming?,
                },
            };
            match incoming {
                Some(Incoming::Control { control, hello }) => {
                    let guest = Guest { control, identity: hello.identity, since: Instant::now() };
                    self.receive(guest, serving.is_some());
                }
                // One that nobody waits for any more is closed.
                Some(Incoming::Data { stream, .. }) => {
                    drop(serving.as_ref().map(|serving| serving.streams.send(stream)));
                }
                Some(Incoming::Refused { peer, reason }) => {
                    self.refusals.tell(peer, &format!("it {reason}"));
                }
                Some(Incoming::Stray { peer, reason }) => {
                    self.process.observer.explain(&format!("ignored a connection: {peer} {reason}"));
                }
                None => {}
            }
        }
    }

    /// Starts the thread that serves a client; `None` where it cannot be served.
    fn begin<'scope, 'env>(
        &mut self,
        guest: Guest,
        shop: &'env Shop<'env>,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Option<Serving<'scope>> {
        let peer = guest.control.peer_addr();
        let leash = match Leash::of(&guest.control, &shop.site.most) {
            Ok(leash) => leash,
            Err(error) => {
                self.refuse(guest, &error);
                return None;
            }
        };
        let (streams, comes) = mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Over { flag: is_over.clone(), _bell: self.listener.bell() };
        let work = move || {
            let _over = over;
            shop.serve(guest, comes)
        };
        match std::thread::Builder::new().name("serve".into()).spawn_scoped(scope, work) {
            Ok(thread) => Some(Serving { thread, is_over, streams, leash }),
            Err(error) => {
                self.refusals.tell(peer, &format!("no thread for it: {error}"));
                None
            }
        }
    }

    /// Lets a client wait that has come while another is served, or refuses it.
    fn receive(&mut self, mut guest: Guest, is_serving: bool) {
        if self.waiting.len() >= MOST_WAITING {
            let why = format!("this server is busy, and {MOST_WAITING} clients wait already");
            return self.refuse(guest, &Error::failed(Step::Plan, why).with_remedy(ELSEWHERE));
        }
        let ahead = self.waiting.len() + usize::from(is_serving);
        if self.queues && ahead > 0 {
            // Who is gone already is noticed when it is told again.
            let _ = guest.control.tell(&Busy { ahead });
        }
        self.waiting.push_back(guest);
    }

    fn refuse(&mut self, mut guest: Guest, why: &Error) {
        self.refusals.tell(guest.control.peer_addr(), &why.message);
        guest.control.part(why);
        if self.leaving.len() >= MOST_WAITING {
            self.leaving.pop_front();
        }
        self.leaving.push_back((Instant::now() + FAREWELL, guest.control));
    }

    /// Tells the waiting clients that this end is alive; without a queue, refuses those whose time is up.
    fn renew(&mut self) {
        if self.queues {
            return self.tell_all();
        }
        while self.waiting.front().is_some_and(|guest| guest.since.elapsed() >= GRACE)
            && let Some(guest) = self.waiting.pop_front()
        {
            let why = "this server is busy with another client and keeps no queue";
            self.refuse(guest, &Error::failed(Step::Plan, why).with_remedy(ELSEWHERE));
        }
    }

    /// Tells the waiting clients how many are ahead of them, and forgets those that are gone.
    fn tell_all(&mut self) {
        if !self.queues {
            return;
        }
        let mut ahead = 0;
        self.waiting.retain_mut(|guest| {
            ahead += 1;
            let is_there = guest.control.tell(&Busy { ahead });
            if let Err(error) = &is_there {
                ahead -= 1;
                let why = format!("it left the queue ({})", error.message);
                self.refusals.tell(guest.control.peer_addr(), &why);
            }
            is_there.is_ok()
        });
    }

    /// Tells everybody who still waits, and gives them a moment to read it.
    fn close(&mut self) {
        let stopped = as_told(&Error::interrupted(Step::Plan));
        let waiting = self.waiting.drain(..).map(|guest| guest.control);
        let mut all: Vec<Control> =
            waiting.chain(self.leaving.drain(..).map(|(_, control)| control)).collect();
        all.iter_mut().for_each(|control| control.part(&stopped));
        all.extend(self.listener.dismiss(&stopped));
        let_read(&mut all);
        self.refusals.end();
    }
}

/// What all clients are served with.
struct Shop<'a> {
    site: &'a Site,
    process: &'a Process<'a>,
    cores: Cores,
    /// The thread at the door.
    door: Pid,
    expected: Expected,
    refusals: &'a Refusals<'a>,
}

impl Shop<'_> {
    /// Serves one client, and says how that ended.
    fn serve(&self, guest: Guest, streams: Receiver<TcpStream>) -> Ending {
        let Guest { mut control, identity, .. } = guest;
        let peer = control.peer_addr();
        let process = Process { epoch: Epoch::note(), ..*self.process };
        let began = Instant::now();
        let say = |how: String| process.observer.say(&format!("client {peer}{how}"));
        let mut document = new_document(&process);
        let mut entrance = Hallway { expected: &self.expected, streams };
        let end = match self.end(&process, &mut document) {
            Ok(end) => end,
            Err(error) => {
                self.refusals.tell(peer, &error.message);
                control.send_error(&error);
                return Ending::Idle;
            }
        };
        let agreement = match end.negotiate(&mut control, &identity, &mut entrance, &mut document) {
            Ok(agreement) => agreement,
            Err(error) => {
                self.refusals.tell(peer, &error.message);
                control.send_error(&as_told(&error));
                return Ending::Idle;
            }
        };
        self.clear(&agreement);
        let test = name(&agreement.test);
        let outcome = end.serve(control, agreement, &mut entrance, &mut document);
        let took = format_duration(began.elapsed());
        match outcome {
            Ok(()) => say(format!(": {test}: ok after {took}")),
            Err(error) => {
                say(format!(": {test}: failed after {took}: {error}"));
                if error.kind == Kind::Interrupted {
                    return Ending::Cut;
                }
            }
        }
        Ending::Idle
    }

    fn end<'a>(&'a self, process: &'a Process<'a>, document: &mut Document) -> Result<ServerEnd<'a>> {
        let port = open(self.site)?;
        document.local = Some(ends::describe(document, Side::Server, port.as_ref(), self.site.core));
        Ok(ServerEnd { site: self.site, only: None, process, port, cores: self.cores.clone() })
    }

    /// Sends the thread at the door away from the cores that measure.
    fn clear(&self, agreement: &Agreement) {
        self.keep_door_to(&self.cores.apart_from(&agreement.cores, &agreement.taken));
    }

    /// Lets it run anywhere again: the thread that it starts for the next client inherits that.
    fn let_door_go(&self) {
        self.keep_door_to(self.cores.allowed());
    }

    fn keep_door_to(&self, cores: &[usize]) {
        if !cores.is_empty()
            && let Err(error) = host::confine(self.door, cores)
        {
            self.process.observer.explain(&error.to_string());
        }
    }
}

/// A test in a few words.
fn name(test: &Test) -> String {
    let over = match (test.measures(Transport::Rdma), test.measures(Transport::Tcp)) {
        (true, false) => "RDMA",
        (false, _) => "TCP",
        (true, true) => "RDMA and TCP",
    };
    format!("{} over {over}", test.binary())
}

/// How data connections come from the door to the thread that serves their client.
struct Hallway<'a> {
    expected: &'a Expected,
    streams: Receiver<TcpStream>,
}

impl Entrance for Hallway<'_> {
    fn expect(&mut self, token: Option<Token>) {
        self.expected.set(token);
    }

    fn data(&mut self, deadline: Instant, stop: &AtomicBool) -> Result<Option<TcpStream>> {
        match self.streams.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(stream) => Ok(Some(stream)),
            Err(_) if stop.load(Ordering::Relaxed) => Err(Error::interrupted(Step::TcpConnect)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::failed(Step::TcpConnect, "this server takes no more connections"))
            }
        }
    }
}
