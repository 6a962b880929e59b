//! One message there and one back, over a socket.

use std::io::Read;
use std::marker::PhantomData;

use super::{REQUEST, Sending, Tcp};
use crate::error::Result;
use crate::measure::{Halt, RoundTrip, Waiting, Watch};
use crate::ops::{Op, Peer};
use crate::plan::Side;
use crate::transport::pattern::Pattern;
use crate::transport::{Counted, Tally};
use crate::verbs::Bytes;

/// Ping-pong for verbs that echo; request and response for those that do not.
pub struct PingPong<'s, O, W, S> {
    tcp: &'s Tcp,
    /// One message, or where buffers are lent two that take turns: the one before may still be under way.
    out: Bytes,
    out_size: usize,
    /// Calls that had been made when the trip began; those before are of earlier trips.
    lent_before: u64,
    into: Bytes,
    started: u64,
    finished: u64,
    tally: Tally,
    _types: PhantomData<(O, W, S)>,
}

impl<'s, O: Op, W: Waiting, S: Sending> PingPong<'s, O, W, S> {
    /// A path for messages of `size` bytes.
    ///
    /// # Errors
    /// There is no memory for the buffers.
    pub fn new(tcp: &'s Tcp, size: usize) -> Result<Self> {
        let (out, into) = match (O::FACTS.peer, tcp.side) {
            (Peer::Echoes, _) => (size, size),
            (Peer::Passive, Side::Client) => (REQUEST, size),
            (Peer::Passive, Side::Server) => (size, REQUEST),
        };
        Ok(Self {
            tcp,
            out: tcp.buffer(if S::LENDS { 2 * out } else { out })?,
            out_size: out,
            lent_before: tcp.ledger.lent(),
            into: tcp.buffer(into)?,
            started: 0,
            finished: 0,
            tally: Tally::default(),
            _types: PhantomData,
        })
    }

    /// Where in `out` the message of a trip begins.
    #[inline(always)]
    fn turn(&self, trip: u64) -> usize {
        if const { S::LENDS } && trip % 2 == 1 { self.out_size } else { 0 }
    }

    fn pattern(&self, trip: u64, arrives: bool) -> Pattern {
        let from_client = (self.tcp.side == Side::Client) != arrives;
        Pattern::new(self.tcp.seed, 2 * trip + u64::from(from_client))
    }
}

impl<O, W, S> Counted for PingPong<'_, O, W, S> {
    fn tally(&self) -> Tally {
        Tally { empty_polls: self.tally.empty_polls, ..self.tcp.ledger.tally() }
    }

    #[inline]
    fn look_once(&mut self) -> Result<Option<bool>, Halt> {
        let mut not_of_the_run = Tally::default();
        let came = self.tcp.try_once(|mut stream| stream.read(&mut self.into), &mut not_of_the_run)?;
        Ok(Some(came.is_some()))
    }
}

impl<O: Op, W: Waiting, S: Sending> RoundTrip for PingPong<'_, O, W, S> {
    #[inline(always)]
    fn start(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.started += 1;
        let at = self.turn(self.started);
        let message = &self.out[at..at + self.out_size];
        self.tcp.send_message::<S, W>(message, watch, &mut self.tally)
    }

    #[inline(always)]
    fn finish(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.tcp.receive::<W>(&mut self.into, watch, &mut self.tally)?;
        self.finished += 1;
        Ok(())
    }

    #[inline(always)]
    fn settle(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        // What this trip has sent is back when the next one has been answered; the other buffer must be back now.
        if const { S::LENDS } {
            let before = std::mem::replace(&mut self.lent_before, self.tcp.ledger.lent());
            self.tcp.until_back::<W>(before, watch)?;
        }
        Ok(())
    }

    fn stamp(&mut self) {
        let pattern = self.pattern(self.started + 1, false);
        let at = self.turn(self.started + 1);
        pattern.fill(&mut self.out[at..at + self.out_size], 0);
    }

    fn check(&mut self) -> Result<(), Halt> {
        let trip = self.finished;
        Ok(self.pattern(trip, true).check_part(&self.into, 0, self.into.len(), trip)?)
    }
}
