//! A server's port: every connection is greeted, and only a client gets through.
//!
//! One `poll(2)` loop, run by whoever waits in [`Listener::next`]; there is no thread of its own that could disturb a
//! measurement. Connections that come while nobody waits there stay in the kernel's queue. Those that do not say who
//! they are are bounded in number, in time and in what they make this end hold.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use socket2::{Domain, Protocol, Socket, Type};

use super::control::{Control, canonical};
use super::greeting::{Greeting, Guard, Host, Outcome};
use super::messages::{Hello, Identity, Purpose, Token};
use super::wire::{Limit, Wake};
use crate::error::{Error, Result, Step};
use crate::plan::Side;
use crate::units::format_duration;

/// Most connections that have not said hello; one more and the oldest is dropped.
const MOST_PENDING: usize = 64;

/// Most clients that have said hello and not yet what they want; one more and the oldest is dropped.
const MOST_SILENT: usize = 64;

/// Longest first message of a client: it names a core for each of its threads.
const MAX_FIRST: usize = 16 << 10;

/// Connections the kernel completes while nobody waits here; it caps this at `net.core.somaxconn`.
const BACKLOG: i32 = 1024;

/// Pause after `accept(2)` failed for want of descriptors or memory, so as not to spin until there are some.
const PAUSE: Duration = Duration::from_millis(50);

/// What came to the port.
#[derive(Debug)]
pub enum Incoming {
    /// A client that wants a run; it has been welcomed, and its first message is here or will not come.
    Control {
        /// Its connection.
        control: Control,
        /// What it said.
        hello: Hello,
    },
    /// A data connection of the run whose token was expected; raw bytes follow.
    Data {
        /// The connection, blocking, with `TCP_NODELAY`.
        stream: TcpStream,
        /// The token it showed.
        token: Token,
    },
    /// A client that was refused, or that did not do what is asked of one.
    Refused {
        /// Who it was.
        peer: SocketAddr,
        /// What it did, to follow its address in a line.
        reason: String,
    },
    /// Something else, which is no concern of a run: a probe, garbage, silence, another protocol.
    Stray {
        /// Who it was.
        peer: SocketAddr,
        /// What it did, to follow its address in a line.
        reason: String,
    },
}

/// The token that data connections must show, which another thread than the one that listens may set.
#[derive(Debug, Clone, Default)]
pub struct Expected(Arc<Mutex<Option<Token>>>);

impl Expected {
    /// From now on they must show this; without one they are refused.
    pub fn set(&self, token: Option<Token>) {
        *self.lock() = token;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Token>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the thread that listens, when it is dropped.
#[derive(Debug)]
pub struct Bell(Arc<EventFd>);

impl Drop for Bell {
    fn drop(&mut self) {
        // It holds a number that only grows far beyond any number of bells.
        let _ = self.0.write(1);
    }
}

/// A client that was welcomed, and whose first message is awaited until then.
#[derive(Debug)]
struct Silent {
    control: Control,
    hello: Hello,
    until: Instant,
}

/// A port that clients connect to.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    local: SocketAddr,
    identity: Identity,
    guard: Guard,
    expected: Expected,
    /// Readable when a bell has rung.
    rung: Arc<EventFd>,
    /// Oldest first.
    pending: VecDeque<Greeting>,
    /// Oldest first.
    silent: VecDeque<Silent>,
    ready: VecDeque<Incoming>,
}

impl Listener {
    /// Listens on `address`, or on all addresses of both families without one. Port 0 takes a free one. Who becomes a client
    /// is up to `guard`.
    ///
    /// # Errors
    /// The port is taken or may not be used, or the address is not one of this host.
    pub fn bind(address: Option<IpAddr>, port: u16, identity: Identity, guard: Guard) -> Result<Self> {
        let socket = match address {
            Some(address) => listen(SocketAddr::new(address, port)).map_err(|e| (address, e)),
            None => {
                let both = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
                listen(SocketAddr::new(both, port)).map_err(|e| (both, e)).or_else(|failed| match failed.1 {
                    // A host without IPv6.
                    ref e if lacks_family(e) => {
                        let four = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
                        listen(SocketAddr::new(four, port)).map_err(|e| (four, e))
                    }
                    _ => Err(failed),
                })
            }
        };
        let (socket, local) = socket.map_err(|(address, cause)| explain(address, port, &cause))?;
        let (pending, silent, ready) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let expected = Expected::default();
        let rung = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| Error::failed(Step::Listen, format!("eventfd: {e}")))?;
        let rung = Arc::new(rung);
        Ok(Self { socket, local, identity, guard, expected, rung, pending, silent, ready })
    }

    /// The address listened on; `[::]` stands for all addresses of both families.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The port listened on, also when any was asked for.
    pub fn local_port(&self) -> u16 {
        self.local.port()
    }

    /// What data connections must show.
    pub fn expected(&self) -> Expected {
        self.expected.clone()
    }

    /// What ends a wait in [`Listener::next_unless_rung`] from another thread.
    pub fn bell(&self) -> Bell {
        Bell(self.rung.clone())
    }

    /// What comes next; `None` when `deadline` passed first. Without a deadline it waits until `stop` is set.
    ///
    /// # Errors
    /// `stop` was set, or the port itself is of no use any more. No peer can cause one.
    pub fn next(&mut self, deadline: Option<Instant>, stop: &AtomicBool) -> Result<Option<Incoming>> {
        self.next_within(&Limit::until(deadline, Some(stop)))
    }

    /// The same, deaf to signals and so asleep all the time; `None` also when a bell has rung.
    ///
    /// # Errors
    /// The port itself is of no use any more.
    pub fn next_unless_rung(&mut self, deadline: Option<Instant>) -> Result<Option<Incoming>> {
        self.next_within(&Limit::until(deadline, None))
    }

    fn next_within(&mut self, limit: &Limit<'_>) -> Result<Option<Incoming>> {
        let wrap = |e: io::Error| Error::failed(Step::Listen, format!("waiting for clients: {e}"));
        loop {
            if let Some(incoming) = self.ready.pop_front() {
                return Ok(Some(incoming));
            }
            let deadlines = self.pending.iter().map(Greeting::deadline);
            let first = deadlines.chain(self.silent.iter().map(|silent| silent.until)).min();
            let first = first.map_or(*limit, |deadline| limit.at_most(deadline));
            if self.wait(&first).map_err(wrap)? == Wake::Stopped {
                return Err(Error::interrupted(Step::Listen));
            }
            // Also when nothing came: a greeting whose time is up finds out itself.
            self.greet();
            self.accept().map_err(wrap)?;
            self.hear_out();
            if self.ready.is_empty() && (self.was_rung() || limit.left().is_zero()) {
                return Ok(None);
            }
        }
    }

    fn wait(&self, limit: &Limit<'_>) -> io::Result<Wake> {
        let streams = self.pending.iter().map(|greeting| greeting.stream.as_fd());
        let silent = self.silent.iter().map(|silent| silent.control.as_fd());
        let all = [self.socket.as_fd(), self.rung.as_fd()].into_iter().chain(streams).chain(silent);
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        limit.wait(&mut fds)
    }

    /// A bell has rung since the last look.
    fn was_rung(&self) -> bool {
        self.rung.read().is_ok()
    }

    /// Lets every pending connection say what it has to say.
    fn greet(&mut self) {
        for greeting in std::mem::take(&mut self.pending) {
            self.advance(greeting);
        }
    }

    fn advance(&mut self, mut greeting: Greeting) {
        let peer = greeting.peer;
        let expected = self.expected.lock().clone();
        let host = Host { identity: &self.identity, guard: &self.guard, expected: expected.as_ref() };
        match greeting.advance(&host) {
            Outcome::Wait => self.pending.push_back(greeting),
            Outcome::Over => {}
            Outcome::Stray(reason) => self.ready.push_back(Incoming::Stray { peer, reason }),
            Outcome::Failed(reason) => self.ready.push_back(Incoming::Refused { peer, reason }),
            Outcome::Dismissed(reason) => {
                self.ready.push_back(Incoming::Stray { peer, reason });
                self.pending.push_back(greeting);
            }
            Outcome::Refused(reason) => {
                self.ready.push_back(Incoming::Refused { peer, reason });
                self.pending.push_back(greeting);
            }
            Outcome::Client(hello) => {
                // The peer is gone already; what is asked of the socket cannot fail otherwise.
                let incoming = admit(greeting.stream, peer, hello)
                    .unwrap_or_else(|e| Incoming::Stray { peer, reason: format!("went away: {e}") });
                self.take(incoming);
            }
        }
    }

    /// Who is to be served waits until it has said what for.
    fn take(&mut self, incoming: Incoming) {
        let Incoming::Control { mut control, hello } = incoming else {
            return self.ready.push_back(incoming);
        };
        // Those who have spoken push nobody out, however many come at once.
        if control.has_first(MAX_FIRST) {
            return self.ready.push_back(Incoming::Control { control, hello });
        }
        if self.silent.len() >= MOST_SILENT
            && let Some(oldest) = self.silent.pop_front()
        {
            let reason = format!("did not say what it wants while {MOST_SILENT} others came");
            self.give_up(oldest, reason);
        }
        self.silent.push_back(Silent { control, hello, until: Instant::now() + self.guard.patience });
    }

    /// Lets every client go on that has said what it wants, or whose time is up.
    fn hear_out(&mut self) {
        for mut silent in std::mem::take(&mut self.silent) {
            if silent.control.has_first(MAX_FIRST) {
                let Silent { control, hello, .. } = silent;
                self.ready.push_back(Incoming::Control { control, hello });
            } else if silent.until <= Instant::now() {
                let patience = format_duration(self.guard.patience);
                self.give_up(silent, format!("did not say what it wants within {patience}"));
            } else {
                self.silent.push_back(silent);
            }
        }
    }

    fn give_up(&mut self, mut silent: Silent, reason: String) {
        let error = Error::failed(Step::Plan, format!("refused: the client {reason}"));
        silent
            .control
            .part(&error.with_remedy("run it again; see that the network between the ends delivers"));
        self.ready.push_back(Incoming::Refused { peer: silent.control.peer_addr(), reason });
    }

    /// Tells clients that have not said what they want why nobody will hear it. They are to be let read it:
    /// [`Control::let_read`].
    pub fn dismiss(&mut self, why: &Error) -> Vec<Control> {
        let mut dismissed: Vec<Control> = self.silent.drain(..).map(|silent| silent.control).collect();
        dismissed.iter_mut().for_each(|control| control.part(why));
        dismissed
    }

    /// Takes a bounded number of connections from the kernel's queue. Each may speak at once: a client's hello is
    /// mostly there before its connection is taken, so a flood of silent ones does not push clients out.
    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..MOST_PENDING {
            let (stream, peer) = match self.socket.accept() {
                Ok((stream, peer)) => (stream, canonical(peer)),
                Err(e) => match e.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN) => return Ok(()),
                    Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                        if let Some(oldest) = self.pending.pop_front() {
                            self.drop_oldest(&oldest, &format!("dropped for want of resources: {e}"));
                        } else {
                            std::thread::sleep(PAUSE);
                        }
                        return Ok(());
                    }
                    // The socket itself; anything else is about one connection (`accept(2)`, "Error handling").
                    Some(
                        Errno::EBADF | Errno::EINVAL | Errno::ENOTSOCK | Errno::EOPNOTSUPP | Errno::EFAULT,
                    ) => {
                        return Err(e);
                    }
                    _ => continue,
                },
            };
            if self.pending.len() >= MOST_PENDING
                && let Some(oldest) = self.pending.pop_front()
            {
                self.drop_oldest(&oldest, &format!("said nothing while {MOST_PENDING} others came; dropped"));
            }
            match Greeting::new(stream, peer) {
                Ok(greeting) => self.advance(greeting),
                Err(e) => self.ready.push_back(Incoming::Stray { peer, reason: format!("went away: {e}") }),
            }
        }
        Ok(())
    }

    /// A refused one was reported when it was refused.
    fn drop_oldest(&mut self, oldest: &Greeting, reason: &str) {
        if !oldest.refused() {
            self.ready.push_back(Incoming::Stray { peer: oldest.peer, reason: reason.to_owned() });
        }
    }

    #[cfg(test)]
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }
}

fn admit(stream: TcpStream, peer: SocketAddr, hello: Hello) -> io::Result<Incoming> {
    match hello.purpose {
        Purpose::Run {} => {
            Ok(Incoming::Control { control: Control::new(stream, peer, Side::Server, None)?, hello })
        }
        Purpose::Data { token } => {
            stream.set_nonblocking(false)?;
            Ok(Incoming::Data { stream, token })
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A server started again at once must not wait for connections in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let listener = TcpListener::from(socket);
    let local = listener.local_addr()?;
    Ok((listener, local))
}

fn lacks_family(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error().map(Errno::from_raw), Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL))
}

fn explain(address: IpAddr, port: u16, cause: &io::Error) -> Error {
    let error =
        Error::failed(Step::Listen, format!("listening on {}: {cause}", SocketAddr::new(address, port)));
    match cause.kind() {
        ErrorKind::AddrInUse => error.with_remedy(format!(
            "find who listens with `ss -ltnp sport = :{port}`, or take another with -p"
        )),
        ErrorKind::AddrNotAvailable => {
            error.with_remedy("give an address of this host, as `ip address` lists them")
        }
        ErrorKind::PermissionDenied => {
            error.with_remedy("ports below 1024 need a privilege; take another with -p")
        }
        _ => error,
    }
}
