//! The TCP path: the same patterns over a socket, so that a ratio compares paths and not programs.
//!
//! Busy polling is a non-blocking socket read in a loop, events are a blocking one. A blocking call returns every few
//! milliseconds without data (`SO_RCVTIMEO`), which costs nothing while messages come and keeps deadlines.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::net::TcpStream;
use std::time::Duration;

use socket2::SockRef;

use crate::error::{Error, Result, Step};
use crate::measure::{Halt, Never, Stream, Waiting, Watch};
use crate::ops::Op;
use crate::plan::{Side, Test, Wait};
use crate::transport::{Counted, Payload, Tally};
use crate::verbs::{Bytes, Placement};

mod duplex;
mod options;
mod ping_pong;
mod pipeline;
mod ring;
mod sending;
mod taker;

pub use duplex::Duplex;
pub use options::{Granted, check};
pub use ping_pong::PingPong;
pub use pipeline::Pipelined;
use ring::Ring;
use sending::Ledger;
pub use sending::{Copied, Lent, Sending};
pub use taker::Taker;

/// What asks for data of a verb that pulls: as small as a message can be and still carry its number.
const REQUEST: usize = 8;

/// An acknowledgement: the number of messages received so far.
const ACK: usize = 8;

/// Empty receives between two looks around, at most: some 100 us, beyond any wait for a reply that is under way. Each is a
/// system call, and where these are slow, as under a tracer, as many as of polls of memory would outlast a deadline.
const POLLS: u32 = 256;

/// Longest a blocking call sleeps before the peer's word and the deadline are looked at.
const BLOCKED: Duration = Duration::from_millis(5);

/// The data connection of a run.
#[derive(Debug)]
pub struct Tcp {
    stream: TcpStream,
    side: Side,
    seed: u64,
    placement: Placement,
    ledger: Ledger,
    /// Each end sends on a connection and takes from another at once, and must never be held up by one of them.
    both_ways: bool,
}

impl Tcp {
    /// Takes a connected stream and sets it up as the test wants it; buffers will lie where `placement` says.
    ///
    /// # Errors
    /// A socket option the kernel refused.
    pub fn new(stream: TcpStream, side: Side, test: &Test, placement: Placement) -> Result<Self> {
        let set_up = || -> std::io::Result<()> {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(BLOCKED))?;
            stream.set_write_timeout(Some(BLOCKED))
        };
        options::apply(SockRef::from(&stream), &test.tcp)?;
        set_up().map_err(|error| Error::failed(Step::TcpConnect, format!("socket options: {error}")))?;
        let (seed, both_ways) = (test.payload_seed, test.bidirectional);
        let tcp = Self { stream, side, seed, placement, ledger: Ledger::default(), both_ways };
        tcp.wait_as(test.wait)?;
        Ok(tcp)
    }

    /// Spins or blocks from here on; paths over it are to be made for the same way of waiting.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn wait_as(&self, wait: Wait) -> Result<()> {
        self.stream
            .set_nonblocking(wait == Wait::Busy || self.both_ways)
            .map_err(|error| Error::failed(Step::Measure, format!("blocking mode of the socket: {error}")))
    }

    /// A buffer. It is written: the kernel backs untouched pages of zeros by one page, which would never leave the
    /// cache.
    fn buffer(&self, len: usize) -> Result<Bytes> {
        let mut bytes = Bytes::new(len, self.placement)?;
        bytes.fill(1);
        Ok(bytes)
    }

    /// The socket, for its addresses and options.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Calls `io` until it has moved something, waiting as `W` says while it cannot. Returns the bytes moved.
    #[inline(always)]
    fn until_moved<W: Waiting>(
        &self,
        mut io: impl FnMut(&TcpStream) -> std::io::Result<usize>,
        watch: &Watch<'_>,
        tally: &mut Tally,
    ) -> Result<usize, Halt> {
        let mut wait = W::default();
        let mut since = None;
        let polls = W::polls(watch).min(POLLS);
        loop {
            for empty in 0..polls {
                match io(&self.stream) {
                    Ok(0) => return Err(closed()),
                    Ok(moved) => {
                        tally.empty_polls += u64::from(empty);
                        return Ok(moved);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(failed(&error)),
                }
            }
            tally.empty_polls += u64::from(polls);
            if W::SLEEPS {
                // The call slept, and nothing came.
                watch.look(&mut since)?;
            } else {
                wait.idle(&mut Never, watch)?;
            }
        }
    }

    /// Calls `io` once; `None` where it can move nothing now.
    #[inline]
    fn try_once(
        &self,
        io: impl FnOnce(&TcpStream) -> std::io::Result<usize>,
        tally: &mut Tally,
    ) -> Result<Option<usize>, Halt> {
        match io(&self.stream) {
            Ok(0) => Err(closed()),
            Ok(moved) => Ok(Some(moved)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                tally.empty_polls += 1;
                Ok(None)
            }
            Err(error) => Err(failed(&error)),
        }
    }

    #[inline(always)]
    fn send<W: Waiting>(&self, bytes: &[u8], watch: &Watch<'_>, tally: &mut Tally) -> Result<(), Halt> {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.until_moved::<W>(|mut stream| stream.write(&bytes[sent..]), watch, tally)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn receive<W: Waiting>(&self, into: &mut [u8], watch: &Watch<'_>, tally: &mut Tally) -> Result<(), Halt> {
        let mut got = 0;
        while got < into.len() {
            got += self.until_moved::<W>(|mut stream| stream.read(&mut into[got..]), watch, tally)?;
        }
        Ok(())
    }
}

#[cold]
fn failed(error: &std::io::Error) -> Halt {
    Error::failed(Step::Measure, format!("TCP data connection: {error}")).into()
}

#[cold]
fn closed() -> Halt {
    Error::failed(Step::Measure, "the peer closed the TCP data connection").into()
}

/// Counts `done` up to message `to` of those `posted`, which the peer has acknowledged or sent; returns how many more that
/// are.
#[inline]
fn advance(done: &mut u64, to: u64, posted: u64) -> Result<u64, Halt> {
    if to < *done || to > posted {
        return Err(Error::invalid(
            Step::Measure,
            format!("the peer acknowledged message {to} of {posted} sent"),
        )
        .into());
    }
    Ok(to - std::mem::replace(done, to))
}

/// The requester's end of a bandwidth path: sends data and takes acknowledgements, or for verbs that pull, sends
/// requests and takes data.
pub struct Streamer<'s, O, W, S> {
    tcp: &'s mut Tcp,
    data: Ring,
    /// For each message that is lent, the call by which all of it will be back.
    lent: VecDeque<u64>,
    /// Messages the peer has acknowledged.
    acknowledged: u64,
    acks: [u8; 512 * ACK],
    /// Bytes of an acknowledgement that has not come whole.
    partial: usize,
    posted: u64,
    done: u64,
    tally: Tally,
    _types: PhantomData<(O, W, S)>,
}

impl<'s, O: Op, W: Waiting, S: Sending> Streamer<'s, O, W, S> {
    /// A path for messages of `size` bytes spread over `slots` buffers.
    ///
    /// # Errors
    /// There is no memory for the buffers.
    pub fn new(tcp: &'s mut Tcp, size: usize, slots: usize) -> Result<Self> {
        Ok(Self {
            data: Ring::new(tcp, size, slots)?,
            tcp,
            lent: VecDeque::new(),
            acknowledged: 0,
            acks: [0; 512 * ACK],
            partial: 0,
            posted: 0,
            done: 0,
            tally: Tally::default(),
            _types: PhantomData,
        })
    }

    /// Reads what acknowledgements there are; the last whole one counts for all before it.
    #[inline]
    fn read_ack(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        loop {
            let (acks, partial) = (&mut self.acks, self.partial);
            let read = |mut stream: &TcpStream| stream.read(&mut acks[partial..]);
            let got = self.tcp.until_moved::<W>(read, watch, &mut self.tally)?;
            if let Some(acknowledged) = self.last_ack(got) {
                return Ok(acknowledged);
            }
        }
    }

    /// The last whole acknowledgement, after `got` more bytes.
    #[inline]
    fn last_ack(&mut self, got: usize) -> Option<u64> {
        let got = self.partial + got;
        let whole = got / ACK * ACK;
        self.partial = got - whole;
        let mut last = [0; ACK];
        last.copy_from_slice(self.acks[..whole].last_chunk::<ACK>()?);
        self.acks.copy_within(whole..got, 0);
        Some(u64::from_be_bytes(last))
    }

    /// Counts up to message `done`, which the peer has acknowledged or sent.
    #[inline]
    fn advance(&mut self, done: u64) -> Result<u64, Halt> {
        advance(&mut self.done, done, self.posted)
    }

    /// Messages whose buffers are back.
    fn back(&mut self) -> Result<u64, Halt> {
        self.tcp.take_back()?;
        while self.lent.front().is_some_and(|call| *call <= self.tcp.ledger.returned()) {
            self.lent.pop_front();
        }
        Ok(self.posted - self.lent.len() as u64)
    }

    /// Waits until another message is acknowledged and its buffer back: only then it may be used again.
    #[inline]
    fn read_ack_and_take_back(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        loop {
            let back = self.back()?;
            match self.lent.front() {
                // Which is an error of the caller's to tell.
                _ if self.acknowledged > self.posted => return Ok(self.acknowledged),
                _ if back.min(self.acknowledged) > self.done => return Ok(back.min(self.acknowledged)),
                Some(call) if self.acknowledged > back => self.tcp.until_back::<W>(*call, watch)?,
                _ => self.acknowledged = self.read_ack(watch)?,
            }
        }
    }

    #[inline]
    fn read_data(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        while self.data.messages() == self.done {
            let data = &mut self.data;
            let read = |mut stream: &TcpStream| stream.read(data.room());
            let got = self.tcp.until_moved::<W>(read, watch, &mut self.tally)?;
            self.data.moved += got as u64;
        }
        Ok(self.data.messages())
    }
}

impl<O, W, S> Counted for Streamer<'_, O, W, S> {
    fn tally(&self) -> Tally {
        Tally { empty_polls: self.tally.empty_polls, ..self.tcp.ledger.tally() }
    }
}

impl<O: Op, W: Waiting, S: Sending> Stream for Streamer<'_, O, W, S> {
    // Acknowledgements are cumulative: none has to be asked for.
    fn expect(&mut self, _messages: Option<u64>) {}

    #[inline]
    fn post(&mut self, count: u64, watch: &Watch<'_>) -> Result<u64, Halt> {
        for _ in 0..count {
            if const { O::FACTS.pulls() } {
                self.tcp.send::<W>(&self.posted.to_be_bytes(), watch, &mut self.tally)?;
            } else {
                let message = self.data.slot(self.posted);
                self.tcp.send_message::<S, W>(message, watch, &mut self.tally)?;
                if const { S::LENDS } {
                    self.lent.push_back(self.tcp.ledger.lent());
                }
            }
            self.posted += 1;
        }
        Ok(count)
    }

    fn cover(&mut self, _watch: &Watch<'_>) -> Result<u64, Halt> {
        Ok(0)
    }

    #[inline]
    fn reap(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        let done = match const { (O::FACTS.pulls(), S::LENDS) } {
            (true, _) => self.read_data(watch)?,
            (false, false) => {
                self.acknowledged = self.read_ack(watch)?;
                self.acknowledged
            }
            (false, true) => self.read_ack_and_take_back(watch)?,
        };
        self.advance(done)
    }

    fn look(&mut self) -> Result<u64, Halt> {
        if const { O::FACTS.pulls() } {
            let data = &mut self.data;
            let read = |mut stream: &TcpStream| stream.read(data.room());
            let got = self.tcp.try_once(read, &mut self.tally)?;
            self.data.moved += got.unwrap_or(0) as u64;
            return self.advance(self.data.messages());
        }
        let (acks, partial) = (&mut self.acks, self.partial);
        let read = |mut stream: &TcpStream| stream.read(&mut acks[partial..]);
        if let Some(got) = self.tcp.try_once(read, &mut self.tally)?
            && let Some(acknowledged) = self.last_ack(got)
        {
            self.acknowledged = acknowledged;
        }
        let done = if const { S::LENDS } { self.back()?.min(self.acknowledged) } else { self.acknowledged };
        self.advance(done.max(self.done))
    }
}

impl<O: Op, W, S> Payload for Streamer<'_, O, W, S> {
    fn slots(&self) -> u64 {
        self.data.slots()
    }

    fn positions(&self) -> Vec<u64> {
        vec![self.posted]
    }

    fn stamp(&mut self, count: u64) {
        let seed = if O::FACTS.pulls() { !self.tcp.seed } else { self.tcp.seed };
        self.data.stamp(seed, self.posted, count);
    }

    fn check(&mut self, count: u64) -> Result<()> {
        self.data.check(self.tcp.seed, self.posted - count, count)
    }
}
