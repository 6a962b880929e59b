//! A client's way to a server, which may not be there yet.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollFlags;
use socket2::{Domain, Protocol, Socket, Type};

use super::control::{Control, canonical};
use super::frame;
use super::messages::{Envelope, Hello, Identity, Purpose, Token, Welcome};
use super::preamble::{self, PREAMBLE, PROTOCOL, Peer};
use super::secret::{Proof, Secret};
use super::wire::{Limit, Moved, Wake, read_once};
use crate::error::{Error, Result, Step};
use crate::plan::Side;
use crate::units::format_duration;

/// Pauses between attempts: the first and the longest; each is twice the one before.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// Least time a server that took the connection has to answer, however late that came.
const TO_ANSWER: Duration = Duration::from_secs(5);

/// Least time one of several addresses is given before the next one has its turn.
const A_TURN: Duration = Duration::from_secs(1);

/// What this end of a connection is bound to before it is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalEnd {
    /// Source address, and port unless that is 0.
    pub address: Option<SocketAddr>,
    /// Interface that packets must leave by (`socket(7)`, `SO_BINDTODEVICE`). One host talking to itself goes through
    /// `lo` and is not reached with another one here.
    pub interface: Option<String>,
}

/// Where a server is looked for, and how long.
#[derive(Debug, Clone)]
pub struct Target<'a> {
    /// A name, or an address of either family; brackets around an IPv6 address are taken, and a zone after it.
    pub host: &'a str,
    /// The server's port.
    pub port: u16,
    /// How long a server that is not there yet is waited for.
    pub timeout: Duration,
    /// What this end is bound to.
    pub from: LocalEnd,
    /// What the server must prove to know, and this end proves to it; `None` where it must ask for nothing.
    pub secret: Option<&'a Secret>,
    /// Ends the wait soon after it is set; passed on to the [`Control`].
    pub stop: Option<&'static AtomicBool>,
}

/// Reaches a server and agrees on the protocol with it. All addresses of the host are tried in turn until one answers;
/// an address that refuses or cannot be reached is tried again until the time is over.
///
/// # Errors
/// The name has no address; no address answered in time; or something else than a server of this protocol did.
pub fn connect(target: &Target<'_>, identity: &Identity) -> Result<(Control, Welcome)> {
    let limit = Limit::after(target.timeout, target.stop);
    let addresses = resolve(target.host, target.port, &limit)?;
    let hello = Hello { identity: identity.clone(), purpose: Purpose::Run {} };
    reach(&addresses, &target.from, &limit, true, |stream, server| {
        let (mut control, welcome) = greet(stream, server, &hello, &limit, target.stop)?;
        match (&welcome.challenge, target.secret) {
            (None, None) => {}
            (Some(asked), Some(secret)) => know_each_other(&mut control, secret, asked, &limit)?,
            (Some(_), None) => return Err(give_up(control, "it was given no secret", no_secret(server))),
            (None, Some(_)) => {
                return Err(give_up(control, "it wants a server that asks for a secret", not_asked(server)));
            }
        }
        Ok((control, welcome))
    })
}

/// Each end proves that it knows the secret, this one first: a server shows nothing to who does not.
fn know_each_other(control: &mut Control, secret: &Secret, asked: &Token, limit: &Limit<'_>) -> Result<()> {
    let limit = limit.at_least(TO_ANSWER);
    let asks = Token::random()?;
    control.send(&secret.prove(Side::Client, asked, &asks))?;
    let proof: Proof = control.recv_within("the server's proof that it knows the secret", &limit)?;
    if secret.proves(Side::Server, &asks, &proof) {
        return Ok(());
    }
    Err(Error::failed(Step::Hello, "the server does not know the secret of --secret-file")
        .with_remedy("give both ends a file of the same content"))
}

/// Tells the server why this end leaves it, for its log.
fn give_up(mut control: Control, why: &str, error: Error) -> Attempt {
    control.part(&Error::failed(Step::Hello, why));
    Attempt::Fatal(error)
}

fn no_secret(server: SocketAddr) -> Error {
    Error::failed(Step::Hello, format!("{server} asks for a secret"))
        .with_remedy("give this end --secret-file, with a file of the same content as the server's")
}

/// A server that asks for nothing may be anyone.
fn not_asked(server: SocketAddr) -> Error {
    Error::failed(
        Step::Hello,
        format!("{server} asks for no secret, and so may not be the server that is meant"),
    )
    .with_remedy("start it with --secret-file, or leave that away here")
}

/// Opens a data connection of the run that holds `token`, to the address where its control connection goes or another
/// of the same server. One attempt: the server listens, or is gone. What comes back is blocking, has `TCP_NODELAY`,
/// and carries raw bytes from here on.
///
/// # Errors
/// Those of [`connect`], and the server does not know the token.
pub fn connect_data(
    server: SocketAddr,
    token: &Token,
    identity: &Identity,
    from: &LocalEnd,
    timeout: Duration,
    stop: Option<&'static AtomicBool>,
) -> Result<TcpStream> {
    let limit = Limit::after(timeout, stop);
    let hello = Hello { identity: identity.clone(), purpose: Purpose::Data { token: token.clone() } };
    reach(&[server], from, &limit, false, |stream, server| {
        let (control, _) = greet(stream, server, &hello, &limit, stop)?;
        control.into_data().map_err(judge)
    })
    .map_err(|e| if e.remote { e } else { e.at(Step::TcpConnect) })
}

/// How one attempt at one address ended without a connection.
#[derive(Debug)]
pub(super) enum Attempt {
    /// The server may still be coming up.
    Again(String),
    /// This address will not do.
    Never(String),
    /// No address will do.
    Fatal(Error),
}

impl From<Error> for Attempt {
    fn from(error: Error) -> Self {
        Attempt::Fatal(error)
    }
}

/// Tries `addresses` in turn until `greet` is content with one; over and over if `again`, else once.
fn reach<T>(
    addresses: &[SocketAddr],
    from: &LocalEnd,
    limit: &Limit<'_>,
    again: bool,
    mut greet: impl FnMut(TcpStream, SocketAddr) -> std::result::Result<T, Attempt>,
) -> Result<T> {
    let mut causes: Vec<(SocketAddr, String)> = Vec::new();
    let mut pause = PAUSE.0;
    loop {
        causes.clear();
        let mut hope = false;
        for (at, &address) in addresses.iter().enumerate() {
            // The last address has all the time that is left, those before it a share of it.
            let others = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
            let turn = limit.left().checked_div(others).unwrap_or_default().max(A_TURN);
            let turn = Instant::now().checked_add(turn).map_or(*limit, |end| limit.at_most(end));
            match open(address, from, &turn).and_then(|stream| greet(stream, address)) {
                Ok(connection) => return Ok(connection),
                Err(Attempt::Fatal(error)) => return Err(error),
                Err(Attempt::Again(cause)) => {
                    hope = again;
                    causes.push((address, cause));
                }
                Err(Attempt::Never(cause)) => causes.push((address, cause)),
            }
        }
        if limit.stopped() {
            return Err(Error::interrupted(Step::Connect));
        }
        if !hope || limit.left() <= pause {
            return Err(nobody(&causes, limit));
        }
        sleep(pause, limit);
        pause = (pause * 2).min(PAUSE.1);
    }
}

fn nobody(causes: &[(SocketAddr, String)], limit: &Limit<'_>) -> Error {
    let tried: Vec<String> = causes.iter().map(|(address, cause)| format!("{address}: {cause}")).collect();
    let waited = format_duration(limit.waited());
    Error::failed(Step::Connect, format!("no server answered within {waited} ({})", tried.join("; ")))
        .with_remedy("start the server there with the same port (-p), let the port through firewalls, or wait longer with --connect-timeout")
}

/// Pauses are short, but an interrupt is shorter.
fn sleep(pause: Duration, limit: &Limit<'_>) {
    let end = Instant::now() + pause;
    // Nothing to wait for but time.
    let _ = limit.at_most(end).wait(&mut []);
}

/// One connection to one address.
pub(super) fn open(
    address: SocketAddr,
    from: &LocalEnd,
    limit: &Limit<'_>,
) -> std::result::Result<TcpStream, Attempt> {
    if let Some(own) = from.address
        && own.is_ipv4() != address.is_ipv4()
    {
        return Err(Attempt::Never(format!("not of the family of {}, which this end is to use", own.ip())));
    }
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)).map_err(judge)?;
    socket.set_nonblocking(true).map_err(judge)?;
    socket.set_tcp_nodelay(true).map_err(judge)?;
    if let Some(interface) = &from.interface {
        socket
            .bind_device(Some(interface.as_bytes()))
            .map_err(|e| Attempt::Never(format!("binding to interface {interface}: {e}")))?;
    }
    if let Some(own) = from.address {
        socket.bind(&own.into()).map_err(|e| Attempt::Never(format!("binding to {own}: {e}")))?;
    }
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(e) if e.raw_os_error() == Some(Errno::EINPROGRESS as i32) => {
            match limit.wait_for(&socket, PollFlags::POLLOUT).map_err(judge)? {
                Wake::Ready => {}
                Wake::TimedOut => {
                    return Err(Attempt::Again("no answer to the connection request".to_owned()));
                }
                Wake::Stopped => return Err(Attempt::Fatal(Error::interrupted(Step::Connect))),
            }
            if let Some(e) = socket.take_error().map_err(judge)? {
                return Err(judge(e));
            }
        }
        Err(e) => return Err(judge(e)),
    }
    let stream = TcpStream::from(socket);
    // Whoever knocks on a free port of its own host often enough is given that port as its own, and meets itself.
    if stream.local_addr().map_err(judge)? == address {
        return Err(Attempt::Again("nobody but this end itself".to_owned()));
    }
    Ok(stream)
}

/// Whether time may help.
fn judge(cause: io::Error) -> Attempt {
    use ErrorKind::{
        AddrInUse, ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkDown,
        NetworkUnreachable, TimedOut,
    };
    match cause.kind() {
        ConnectionRefused | ConnectionReset | ConnectionAborted | HostUnreachable | NetworkUnreachable
        | NetworkDown | TimedOut | AddrInUse => Attempt::Again(cause.to_string()),
        _ => Attempt::Never(cause.to_string()),
    }
}

/// Says hello, and hears that the other end speaks this protocol; a frame with its welcome or refusal follows.
fn introduce(
    stream: &TcpStream,
    server: SocketAddr,
    hello: &Hello,
    limit: &Limit<'_>,
) -> std::result::Result<(), Attempt> {
    let failed = |why: String| Attempt::Fatal(Error::failed(Step::Hello, format!("{server} {why}")));
    let hello =
        frame::encode(&Envelope::Ok(hello)).map_err(|why| failed(format!("cannot be greeted: {why}")))?;
    // Small enough for an empty socket buffer. A server that closed has perhaps said why, so that is read regardless.
    let _ = frame::write(stream, &[PREAMBLE, &hello].concat(), &mut 0, limit);
    let mut reader = preamble::Reader::default();
    let peer = loop {
        match read_once(stream, reader.space()) {
            Ok(Moved::Bytes(count)) => match reader.filled(count) {
                None => {}
                Some(Peer::Ours) => return Ok(()),
                Some(other) => break other,
            },
            Ok(Moved::NotYet) => match limit.wait_for(stream, PollFlags::POLLIN).map_err(judge)? {
                Wake::Ready => {}
                Wake::Stopped => return Err(Attempt::Fatal(Error::interrupted(Step::Hello))),
                Wake::TimedOut if reader.started() => break reader.ended(),
                Wake::TimedOut => {
                    let waited = format_duration(limit.waited());
                    return Err(failed(format!(
                        "took the connection and said nothing; gave up after {waited}"
                    )));
                }
            },
            Ok(Moved::End) | Err(_) if reader.started() => break reader.ended(),
            // A port forwarder whose server is not there yet does this, and so does a server on its way out.
            Ok(Moved::End) => {
                return Err(Attempt::Again("took the connection and closed it without a word".to_owned()));
            }
            Err(cause) => return Err(Attempt::Again(format!("took the connection and dropped it: {cause}"))),
        }
    };
    Err(Attempt::Fatal(not_ours(server, &peer)))
}

/// Introduces this end and hears the welcome.
fn greet(
    stream: TcpStream,
    server: SocketAddr,
    hello: &Hello,
    limit: &Limit<'_>,
    stop: Option<&'static AtomicBool>,
) -> std::result::Result<(Control, Welcome), Attempt> {
    let limit = limit.at_least(TO_ANSWER);
    introduce(&stream, server, hello, &limit)?;
    let mut control = Control::new(stream, server, Side::Client, stop).map_err(judge)?;
    let welcome = control.recv_within("the server's welcome", &limit)?;
    Ok((control, welcome))
}

fn not_ours(server: SocketAddr, peer: &Peer) -> Error {
    let message = match peer {
        Peer::Ours => "speaks this protocol".to_owned(),
        Peer::OtherVersion(theirs) => {
            format!("speaks version {theirs} of the protocol, this end version {PROTOCOL}")
        }
        Peer::Perftest(version) => {
            format!("is a perftest server (version {version}); verbmark speaks its own protocol")
        }
        Peer::Stranger(sent) => format!("is not a verbmark server: it sent {sent}"),
    };
    let remedy = match peer {
        Peer::OtherVersion(_) => "install the same version at both ends",
        _ => "check the port (-p), and start the test of the same name from this suite at the other end",
    };
    Error::failed(Step::Hello, format!("{server} {message}")).with_remedy(remedy)
}

/// All addresses of `host`, each once, in the order the resolver prefers (`getaddrinfo(3)`).
pub(super) fn resolve(host: &str, port: u16, limit: &Limit<'_>) -> Result<Vec<SocketAddr>> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    // The resolver has no deadline of its own worth the name; a thread that outlives its use ends with the process.
    let (answer, resolved) = mpsc::channel();
    let name = bare.to_owned();
    let lookup = std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
        let addresses = (name.as_str(), port).to_socket_addrs();
        let _ = answer.send(addresses.map(Iterator::collect::<Vec<_>>));
    });
    let failed = |why: String| Error::failed(Step::Connect, format!("'{bare}' has no address: {why}"));
    lookup.map_err(|e| failed(format!("no thread for the resolver: {e}")))?;
    loop {
        if limit.stopped() {
            return Err(Error::interrupted(Step::Connect));
        }
        match resolved.recv_timeout(limit.left().min(Duration::from_millis(50))) {
            Ok(Ok(found)) => {
                let mut addresses: Vec<SocketAddr> = Vec::new();
                for address in found.into_iter().map(canonical) {
                    if !addresses.contains(&address) {
                        addresses.push(address);
                    }
                }
                return if addresses.is_empty() {
                    Err(failed("the name is known".to_owned()))
                } else {
                    Ok(addresses)
                };
            }
            Ok(Err(cause)) => {
                return Err(failed(cause.to_string()).with_remedy("check the name, or give an address"));
            }
            Err(_) if limit.left().is_zero() => {
                let waited = format_duration(limit.waited());
                return Err(failed(format!("the resolver did not answer within {waited}")));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(failed("the resolver gave up".to_owned()));
            }
        }
    }
}
