//! The control connection of a run, once both ends know each other.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::poll::PollFlags;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use socket2::{SockRef, TcpKeepalive};

use super::frame::{self, Decoder, Fault, MAX_FRAME};
use super::messages::{Barrier, Envelope, misread, printable};
use super::wire::{Limit, Wake};
use crate::error::{Error, Result, Step};
use crate::plan::Side;
use crate::units::format_duration;

/// Longest wait for room to send: the peer reads as soon as it is done with the step before.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an error is given to get out, and then to be read, before the connection is closed under it.
const FAREWELL: Duration = Duration::from_secs(1);

/// A peer that vanished without a FIN is noticed after about this long: idle time until the first probe and the pause
/// between probes (`tcp(7)`, `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`).
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(1), 5);

/// How long sent data may stay unacknowledged (`tcp(7)`, `TCP_USER_TIMEOUT`).
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages to and from the other end of a run, each with a deadline.
///
/// In place of any message the peer may send its [`Error`]; whoever waits then gets that, marked as remote. What a
/// message means, and which comes when, is the session's: this knows frames, time and the two ends.
#[derive(Debug)]
pub struct Control {
    stream: TcpStream,
    side: Side,
    peer: SocketAddr,
    local: SocketAddr,
    step: Step,
    stop: Option<&'static AtomicBool>,
    decoder: Decoder,
    /// The first message, or what came in its place, if it has come before anybody waited for it.
    heard: Option<Result<Vec<u8>, Fault>>,
    /// Nothing more can be sent: a frame went out in part, or this end said its last word.
    finished: bool,
    /// Why another thread of this end has cut it off.
    cut: Arc<OnceLock<Error>>,
}

/// What ends a connection from another thread than the one that speaks over it.
#[derive(Debug)]
pub struct Tether {
    stream: TcpStream,
    cut: Arc<OnceLock<Error>>,
}

impl Tether {
    /// Whoever waits for the peer gets this error in place of what it waits for, and can tell the peer.
    pub fn cut(&self, why: Error) {
        let _ = self.cut.set(why);
        // Every wait for the peer ends with this, and what is sent still goes out: `shutdown(2)`.
        let _ = self.stream.shutdown(Shutdown::Read);
    }

    /// Ends the connection at once, also for who writes to a peer that does not read.
    pub fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Control {
    /// Takes over a connection to `peer` whose preambles are through. The address is given because the kernel forgets
    /// it when the peer resets the connection, and the peer's last message is still to be read then.
    pub(super) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        side: Side,
        stop: Option<&'static AtomicBool>,
    ) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let (idle, interval, probes) = KEEPALIVE;
        let socket = SockRef::from(&stream);
        socket.set_tcp_keepalive(
            &TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes),
        )?;
        socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
        let (peer, local) = (canonical(peer), canonical(stream.local_addr()?));
        let decoder = Decoder::new(MAX_FRAME);
        let cut = Arc::default();
        Ok(Self {
            stream,
            side,
            peer,
            local,
            step: Step::Hello,
            stop,
            decoder,
            heard: None,
            finished: false,
            cut,
        })
    }

    /// Gives up the frames: what a data connection is after its welcome. Blocking, without the keepalive and user
    /// timeout of a control connection, which would end a transfer whose receiver pauses.
    pub(super) fn into_data(self) -> std::io::Result<TcpStream> {
        let socket = SockRef::from(&self.stream);
        socket.set_keepalive(false)?;
        socket.set_tcp_user_timeout(None)?;
        self.stream.set_nonblocking(false)?;
        Ok(self.stream)
    }

    /// A connected client and server within this process, over the loopback interface.
    ///
    /// # Errors
    /// There is no IPv4 loopback address, or another process got in between.
    pub fn pair() -> Result<(Self, Self)> {
        let wrap = |e| Error::failed(Step::Connect, format!("connecting to ourselves on 127.0.0.1: {e}"));
        let listener = TcpListener::bind("127.0.0.1:0").map_err(wrap)?;
        let address = listener.local_addr().map_err(wrap)?;
        let client = TcpStream::connect(address).map_err(wrap)?;
        let (server, from) = listener.accept().map_err(wrap)?;
        if client.local_addr().map_err(wrap)? != from {
            return Err(wrap(std::io::Error::other(format!("{from}, another process, connected first"))));
        }
        let ends =
            (Self::new(client, address, Side::Client, None), Self::new(server, from, Side::Server, None));
        Ok((ends.0.map_err(wrap)?, ends.1.map_err(wrap)?))
    }

    /// The step that later errors of this connection are said to happen in.
    pub fn set_step(&mut self, step: Step) {
        self.step = step;
    }

    /// Ends every wait soon after this flag is set, with [`Error::interrupted`]; `None` waits on regardless, as is
    /// right for the last exchange of an interrupted run.
    pub fn set_stop(&mut self, stop: Option<&'static AtomicBool>) {
        self.stop = stop;
    }

    /// Whether a wait for the first message would end at once: it has come, or will not come any more. Until it has, no more
    /// of it is kept than `limit` bytes.
    pub(super) fn has_first(&mut self, limit: usize) -> bool {
        if self.heard.is_none() {
            self.decoder.limit_to(limit);
            let heard = frame::read(&self.stream, &mut self.decoder, &Limit::after(Duration::ZERO, None));
            if let Err(Fault::TimedOut { .. }) = heard {
                return false;
            }
            self.decoder.limit_to(MAX_FRAME);
            self.heard = Some(heard);
        }
        true
    }

    /// The next frame.
    fn next_frame(&mut self, limit: &Limit<'_>) -> Result<Vec<u8>, Fault> {
        match self.heard.take() {
            Some(heard) => heard,
            None => frame::read(&self.stream, &mut self.decoder, limit),
        }
    }

    /// Which end this is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// What ends this connection from another thread, whatever goes over it.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn tether(&self) -> std::io::Result<Tether> {
        Ok(Tether { stream: self.stream.try_clone()?, cut: self.cut.clone() })
    }

    /// Address of the other end; an IPv4 address that came through an IPv6 socket is shown as IPv4.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Address of this end, likewise.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Sends one message. Returns when the kernel has all of it.
    ///
    /// # Errors
    /// The peer is gone or does not read; or the error it sent when it stopped reading.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let limit = Limit::after(SEND_TIMEOUT, self.stop);
        self.send_within(&Envelope::Ok(message), &limit)
    }

    /// Sends one message that fits into an empty socket buffer, or fails at once.
    ///
    /// # Errors
    /// As [`Control::send`], and the peer has not read what was sent before.
    pub fn tell<T: Serialize>(&mut self, message: &T) -> Result<()> {
        self.send_within(&Envelope::Ok(message), &Limit::after(Duration::ZERO, None))
    }

    /// Waits for one message; `what` names it in errors, as in "the server's endpoint".
    ///
    /// # Errors
    /// The peer's own error, or: closed, reset, silent for `timeout`, or not speaking the protocol.
    pub fn recv<T: DeserializeOwned>(&mut self, what: &str, timeout: Duration) -> Result<T> {
        let limit = Limit::after(timeout, self.stop);
        self.recv_within(what, &limit)
    }

    /// Sends `mine` and waits for the peer's of the same kind. The client sends first and the server listens first,
    /// so that two large messages never wait for each other.
    ///
    /// # Errors
    /// Those of [`Control::send`] and [`Control::recv`].
    pub fn exchange<T: Serialize + DeserializeOwned>(
        &mut self,
        mine: &T,
        what: &str,
        timeout: Duration,
    ) -> Result<T> {
        let limit = Limit::after(timeout, self.stop);
        match self.side {
            Side::Client => {
                self.send_within(&Envelope::Ok(mine), &limit)?;
                self.recv_within(what, &limit)
            }
            Side::Server => {
                let theirs = self.recv_within(what, &limit)?;
                self.send_within(&Envelope::Ok(mine), &limit)?;
                Ok(theirs)
            }
        }
    }

    /// Waits until both ends have come to the barrier of this name.
    ///
    /// # Errors
    /// The peer waits at another barrier, or any of [`Control::exchange`].
    pub fn barrier(&mut self, name: &str, timeout: Duration) -> Result<()> {
        let mine = Barrier { barrier: name.to_owned() };
        let theirs: Barrier = self.exchange(&mine, &format!("barrier '{name}'"), timeout)?;
        if theirs.barrier == name {
            return Ok(());
        }
        let theirs = printable(&theirs.barrier, 80);
        Err(self.failed(format!("this end is at barrier '{name}', {} at barrier '{theirs}'", self.peer)))
    }

    /// Tells the peer why this end stops, in place of whatever it waits for, and says nothing after it. An error that
    /// came from the peer is not sent back. Best effort: it takes at most two seconds and cannot fail.
    pub fn send_error(&mut self, error: &Error) {
        if self.finished || error.remote {
            return;
        }
        // Not `self.stop`: an interrupt is what most needs to be told.
        if self.say_last(error, &Limit::after(FAREWELL, None)) {
            self.let_read(FAREWELL);
        }
    }

    /// The same without a wait. Whoever calls this keeps the connection for a moment, see [`Control::let_read`].
    pub fn part(&mut self, error: &Error) {
        if !self.finished && !error.remote {
            self.say_last(error, &Limit::after(Duration::ZERO, None));
        }
    }

    /// Gives the peer time to read this end's last word and to close first: closing with bytes unread resets the
    /// connection and may lose what was just sent.
    pub fn let_read(&mut self, time: Duration) {
        if self.cut.get().is_some() {
            // Its read half is shut, so that there is nothing to await but time.
            return std::thread::sleep(time);
        }
        let limit = Limit::after(time, None);
        while self.next_frame(&limit).is_ok() {}
    }

    /// Whether it went out.
    fn say_last(&mut self, error: &Error, limit: &Limit<'_>) -> bool {
        let sent = self.send_within(&Envelope::<()>::Error(error.clone()), limit);
        self.finished = true;
        sent.is_ok() && self.stream.shutdown(Shutdown::Write).is_ok()
    }

    /// Waits until there is something to receive, an error or the end of the connection included. False when
    /// `timeout` passed first; a timeout of zero only looks.
    ///
    /// # Errors
    /// The stop flag was set, or `poll(2)` failed.
    pub fn wait_readable(&self, timeout: Duration) -> Result<bool> {
        if self.heard.is_some() {
            return Ok(true);
        }
        match Limit::after(timeout, self.stop).wait_for(&self.stream, PollFlags::POLLIN) {
            Ok(Wake::Ready) => Ok(true),
            Ok(Wake::TimedOut) => Ok(false),
            Ok(Wake::Stopped) => Err(Error::interrupted(self.step)),
            Err(e) => Err(self.failed(format!("waiting for {}: {e}", self.peer))),
        }
    }

    fn send_within<T: Serialize>(&mut self, message: &Envelope<T>, limit: &Limit<'_>) -> Result<()> {
        if self.finished {
            return Err(self.failed(format!("the connection to {} has ended", self.peer)));
        }
        let bytes =
            frame::encode(message).map_err(|why| self.failed(format!("a message cannot be sent: {why}")))?;
        let mut written = 0;
        let Err(fault) = frame::write(&self.stream, &bytes, &mut written, limit) else { return Ok(()) };
        self.finished = true;
        // Whoever stopped reading may have said why before.
        Err(self.said_already().unwrap_or_else(|| self.explain(fault, "it to read a message", limit)))
    }

    pub(super) fn recv_within<T: DeserializeOwned>(&mut self, what: &str, limit: &Limit<'_>) -> Result<T> {
        // A peer that keeps sending would otherwise never be found silent.
        if let Some(why) = self.cut.get() {
            return Err(why.clone());
        }
        let body = self.next_frame(limit).map_err(|fault| self.explain(fault, what, limit))?;
        match serde_json::from_slice::<Envelope<T>>(&body) {
            Ok(Envelope::Ok(message)) => Ok(message),
            Ok(Envelope::Error(error)) => Err(from_peer(error)),
            Err(cause) => {
                Err(self.failed(format!("{} sent {} in place of {what}", self.peer, misread(&body, &cause))))
            }
        }
    }

    /// The peer's error, when one lies in the receive buffer.
    fn said_already(&mut self) -> Option<Error> {
        let limit = Limit::after(Duration::ZERO, None);
        while let Ok(body) = self.next_frame(&limit) {
            if let Ok(Envelope::Error(error)) = serde_json::from_slice::<Envelope<IgnoredAny>>(&body) {
                return Some(from_peer(error));
            }
        }
        None
    }

    fn explain(&self, fault: Fault, what: &str, limit: &Limit<'_>) -> Error {
        if let Some(why) = self.cut.get() {
            return why.clone();
        }
        let (peer, waited) = (self.peer, format_duration(limit.waited()));
        match fault {
            Fault::Stopped => Error::interrupted(self.step),
            Fault::TimedOut { progress } => {
                let part = progress
                    .map(|(have, of)| format!("; {have} of {of} bytes went through"))
                    .unwrap_or_default();
                self.failed(format!("timed out after {waited} waiting for {what} ({peer}{part})"))
                    .with_remedy(
                        "see what the other end is doing; it may be stopped, or cut off by the network",
                    )
            }
            // What keepalive and the user timeout end with, or what routers say meanwhile.
            Fault::Io(cause) => {
                self.failed(format!("{peer}: {cause}, while this end waited for {what}")).with_remedy(
                    "see whether the other end's host is up and the network between the two delivers",
                )
            }
            Fault::Closed | Fault::ClosedInside { .. } | Fault::Reset => self
                .failed(format!("{peer} {fault} while this end waited for {what}"))
                .with_remedy("see what the other end printed"),
            Fault::Empty | Fault::TooLong { .. } => self.failed(format!("{peer} {fault} in place of {what}")),
        }
    }

    fn failed(&self, message: String) -> Error {
        Error::failed(self.step, message)
    }
}

impl AsFd for Control {
    /// Readable when a message, an error or the end of the connection has come. Not to be read from.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// `::ffff:10.0.0.1` is how a dual-stack socket shows `10.0.0.1`; interfaces and routes know only the latter.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip == address.ip() => address,
        ip => SocketAddr::new(ip, address.port()),
    }
}

/// An error as the peer sent it, fit for a terminal: one line, no control characters, of a length one can read.
fn from_peer(error: Error) -> Error {
    let tidy = |text: String| printable(&text, 2000);
    Error { message: tidy(error.message), remedy: error.remedy.map(tidy), ..error }.as_remote()
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn what_becomes_of_a_peer_that_vanished_comes_with_a_remedy() {
        let (control, _peer) = Control::pair().unwrap();
        for errno in [Errno::ETIMEDOUT, Errno::EHOSTUNREACH] {
            let limit = Limit::after(Duration::ZERO, None);
            let error = control.explain(Fault::from(std::io::Error::from(errno)), "an answer", &limit);
            assert!(error.message.contains("while this end waited for an answer"), "{error}");
            assert!(error.remedy.is_some(), "{error}");
        }
    }
}
