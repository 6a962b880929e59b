//! The answering end of a bandwidth path.

use std::io::Read;
use std::marker::PhantomData;
use std::net::TcpStream;

use super::ring::Ring;
use super::{REQUEST, Sending, Tcp};
use crate::error::Result;
use crate::measure::{Halt, Sink, Waiting, Watch};
use crate::ops::Op;
use crate::transport::{Counted, Payload, Tally};

/// Takes data and acknowledges it, or for verbs that pull, takes requests and sends data.
pub struct Taker<'s, O, W, S> {
    tcp: &'s mut Tcp,
    data: Ring,
    requests: [u8; 512 * REQUEST],
    partial: usize,
    taken: u64,
    tally: Tally,
    _types: PhantomData<(O, W, S)>,
}

impl<'s, O: Op, W: Waiting, S: Sending> Taker<'s, O, W, S> {
    /// A path for messages of `size` bytes spread over `slots` buffers.
    ///
    /// # Errors
    /// There is no memory for the buffers.
    pub fn new(tcp: &'s mut Tcp, size: usize, slots: usize) -> Result<Self> {
        Ok(Self {
            data: Ring::new(tcp, size, slots)?,
            tcp,
            requests: [0; 512 * REQUEST],
            partial: 0,
            taken: 0,
            tally: Tally::default(),
            _types: PhantomData,
        })
    }

    /// What came with `got` more bytes is answered; returns how many messages that were.
    #[inline]
    fn took(&mut self, got: usize, watch: &Watch<'_>) -> Result<u64, Halt> {
        if const { O::FACTS.pulls() } { self.took_requests(got, watch) } else { self.took_data(got, watch) }
    }

    #[inline]
    fn took_data(&mut self, got: usize, watch: &Watch<'_>) -> Result<u64, Halt> {
        self.data.moved += got as u64;
        let new = self.data.messages() - self.taken;
        if new > 0 {
            self.taken += new;
            self.tcp.send::<W>(&self.taken.to_be_bytes(), watch, &mut self.tally)?;
        }
        Ok(new)
    }

    #[inline]
    fn took_requests(&mut self, got: usize, watch: &Watch<'_>) -> Result<u64, Halt> {
        let got = self.partial + got;
        let new = (got / REQUEST) as u64;
        self.partial = got % REQUEST;
        self.requests.copy_within(got - self.partial..got, 0);
        for _ in 0..new {
            self.tcp.send_message::<S, W>(self.data.slot(self.taken), watch, &mut self.tally)?;
            self.taken += 1;
        }
        if const { S::LENDS } {
            self.tcp.take_back()?;
        }
        Ok(new)
    }
}

/// Where the next bytes go.
fn room<'a, O: Op>(data: &'a mut Ring, requests: &'a mut [u8], partial: usize) -> &'a mut [u8] {
    if const { O::FACTS.pulls() } { &mut requests[partial..] } else { data.room() }
}

impl<O, W, S> Counted for Taker<'_, O, W, S> {
    fn tally(&self) -> Tally {
        Tally { empty_polls: self.tally.empty_polls, ..self.tcp.ledger.tally() }
    }
}

impl<O: Op, W: Waiting, S: Sending> Sink for Taker<'_, O, W, S> {
    #[inline]
    fn take<const VERIFY: bool>(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        loop {
            let room = room::<O>(&mut self.data, &mut self.requests, self.partial);
            let read = |mut stream: &TcpStream| stream.read(room);
            let got = self.tcp.until_moved::<W>(read, watch, &mut self.tally)?;
            let new = self.took(got, watch)?;
            if new > 0 {
                return Ok(new);
            }
        }
    }

    fn look<const VERIFY: bool>(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        let room = room::<O>(&mut self.data, &mut self.requests, self.partial);
        let read = |mut stream: &TcpStream| stream.read(room);
        match self.tcp.try_once(read, &mut self.tally)? {
            Some(got) => self.took(got, watch),
            None => Ok(0),
        }
    }
}

impl<O: Op, W: Waiting, S: Sending> Payload for Taker<'_, O, W, S> {
    fn settle(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.tcp.until_back::<W>(self.tcp.ledger.lent(), watch)
    }

    fn slots(&self) -> u64 {
        self.data.slots()
    }

    fn positions(&self) -> Vec<u64> {
        vec![self.taken]
    }

    fn stamp(&mut self, count: u64) {
        self.data.stamp(self.tcp.seed, self.taken, count);
    }

    fn check(&mut self, count: u64) -> Result<()> {
        self.data.check(self.tcp.seed, self.taken - count, count)
    }
}
