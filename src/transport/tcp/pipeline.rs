//! Several messages there and back at a time, over a socket.

use std::io::{self, ErrorKind};
use std::marker::PhantomData;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};

use super::{BLOCKED, REQUEST, Ring, Tcp, failed};
use crate::error::{Error, Result, Step};
use crate::measure::{Halt, Never, Pipeline, RoundTrip, Waiting, Watch};
use crate::ops::{Op, Peer};
use crate::plan::Side;
use crate::transport::pattern::Pattern;
use crate::transport::{Counted, Tally};

/// Messages and their echoes; requests and responses of verbs that do not echo. Message `n` of the path has the buffers
/// `n % depth`.
///
/// At the client a [`Pipeline`], at the server a [`RoundTrip`] that answers them one by one.
pub struct Pipelined<'s, O, W> {
    tcp: &'s Tcp,
    out: Ring,
    into: Ring,
    started: u64,
    /// Of those that arrived, so many were counted, and so many checked.
    taken: u64,
    checked: u64,
    tally: Tally,
    _types: PhantomData<(O, W)>,
}

impl<'s, O: Op, W: Waiting> Pipelined<'s, O, W> {
    /// A path for messages of `size` bytes, `depth` of them outstanding.
    ///
    /// # Errors
    /// There is no memory for the buffers.
    pub fn new(tcp: &'s Tcp, size: usize, depth: usize) -> Result<Self> {
        let (out, into) = match (O::FACTS.peer, tcp.side) {
            (Peer::Echoes, _) => (size, size),
            (Peer::Passive, Side::Client) => (REQUEST, size),
            (Peer::Passive, Side::Server) => (size, REQUEST),
        };
        Ok(Self {
            tcp,
            out: Ring::new(tcp, out, depth)?,
            into: Ring::new(tcp, into, depth)?,
            started: 0,
            taken: 0,
            checked: 0,
            tally: Tally::default(),
            _types: PhantomData,
        })
    }

    /// Reads what there is, without waiting. Whether there was anything.
    #[inline(always)]
    fn read_some(&mut self) -> Result<bool, Halt> {
        let into = &mut self.into;
        let read = |stream: &TcpStream| Ok(recv(stream.as_raw_fd(), into.room(), MsgFlags::MSG_DONTWAIT)?);
        let got = self.tcp.try_once(read, &mut self.tally)?;
        self.into.moved += got.unwrap_or(0) as u64;
        Ok(got.is_some())
    }

    /// Sends the next message. While the socket takes no more, replies are read: the peer may be unable to read because
    /// its own are not.
    #[inline(always)]
    fn send_next(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        let fd = self.tcp.stream.as_raw_fd();
        let mut sent = 0;
        let mut blocked = (W::default(), None);
        loop {
            let message = self.out.slot(self.started);
            match now(|| send(fd, &message[sent..], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.make_room(&mut blocked, watch)?,
                Err(error) => return Err(failed(&error)),
            }
            if sent == self.out.size {
                self.started += 1;
                return Ok(());
            }
        }
    }

    #[cold]
    fn make_room(&mut self, blocked: &mut (W, Option<Instant>), watch: &Watch<'_>) -> Result<(), Halt> {
        // Replies are as many as are outstanding at most, and each has its buffer. Requests at the server wait.
        if self.tcp.side == Side::Client && self.read_some()? {
            *blocked = Default::default();
            return Ok(());
        }
        if W::SLEEPS {
            // Either direction may be the one to move; the server has its reasons not to read.
            let reads = if self.tcp.side == Side::Client { PollFlags::POLLIN } else { PollFlags::empty() };
            let mut fds = [PollFd::new(self.tcp.stream.as_fd(), reads | PollFlags::POLLOUT)];
            // Whatever it brings, the next call tells.
            let _ = poll(&mut fds, PollTimeout::try_from(BLOCKED).unwrap_or(PollTimeout::ZERO));
            watch.look(&mut blocked.1)
        } else {
            blocked.0.idle(&mut Never, watch).map(drop)
        }
    }

    /// Waits for the next message that was not counted.
    #[inline(always)]
    fn read_message(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        while self.into.messages() == self.taken {
            let into = &mut self.into;
            let read = |mut stream: &TcpStream| io::Read::read(&mut stream, into.room());
            let got = self.tcp.until_moved::<W>(read, watch, &mut self.tally)?;
            self.into.moved += got as u64;
        }
        Ok(())
    }

    /// Counts what has arrived.
    fn count(&mut self) -> Result<usize, Halt> {
        let new = self.into.messages() - self.taken;
        self.taken += new;
        if self.taken > self.started {
            let text = format!("the peer answered {} messages of {} sent", self.taken, self.started);
            return Err(Error::invalid(Step::Measure, text).into());
        }
        Ok(new as usize)
    }

    fn pattern(&self, message: u64, arrives: bool) -> Pattern {
        let from_client = (self.tcp.side == Side::Client) != arrives;
        Pattern::new(self.tcp.seed, 2 * message + u64::from(from_client))
    }

    fn stamp_next(&mut self) {
        let pattern = self.pattern(self.started, false);
        pattern.fill(self.out.slot(self.started), 0);
    }

    fn check_next(&mut self) -> Result<(), Halt> {
        let (message, size) = (self.checked, self.into.size);
        self.checked += 1;
        let pattern = self.pattern(message, true);
        Ok(pattern.check_part(self.into.slot(message), 0, size, message)?)
    }
}

/// The outcome of a call that does not wait, again when a signal came in between.
#[inline(always)]
fn now(mut call: impl FnMut() -> nix::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(nix::Error::EINTR) => {}
            outcome => return outcome.map_err(io::Error::from),
        }
    }
}

impl<O, W> Counted for Pipelined<'_, O, W> {
    fn tally(&self) -> Tally {
        self.tally
    }
}

impl<O: Op, W: Waiting> Pipeline for Pipelined<'_, O, W> {
    #[inline(always)]
    fn start(&mut self, _lane: usize, watch: &Watch<'_>) -> Result<(), Halt> {
        self.send_next(watch)
    }

    #[inline(always)]
    fn finished(&mut self) -> Result<usize, Halt> {
        // What came while a message was sent is not asked for again.
        if self.into.messages() == self.taken {
            self.read_some()?;
        }
        self.count()
    }

    fn wait(&mut self, watch: &Watch<'_>) -> Result<usize, Halt> {
        self.read_message(watch)?;
        self.count()
    }

    #[inline(always)]
    fn settle(&mut self, _ended: usize) -> Result<(), Halt> {
        Ok(())
    }

    fn inspect(&mut self) -> Result<(), Halt> {
        Ok(())
    }

    fn stamp(&mut self, _lane: usize) {
        self.stamp_next();
    }

    fn check(&mut self, ended: usize) -> Result<(), Halt> {
        (0..ended).try_for_each(|_| self.check_next())
    }
}

impl<O: Op, W: Waiting> RoundTrip for Pipelined<'_, O, W> {
    #[inline(always)]
    fn start(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.send_next(watch)
    }

    #[inline(always)]
    fn finish(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.read_message(watch)?;
        self.taken += 1;
        Ok(())
    }

    #[inline(always)]
    fn settle(&mut self, _watch: &Watch<'_>) -> Result<(), Halt> {
        Ok(())
    }

    fn stamp(&mut self) {
        self.stamp_next();
    }

    fn check(&mut self) -> Result<(), Halt> {
        self.check_next()
    }
}
