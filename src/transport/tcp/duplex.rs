//! Both directions of a bandwidth test at once, each over a connection of its own: with one for both, data would wait
//! behind acknowledgements.
//!
//! No call blocks, since the peer may be held up by the same: what a socket does not take yet is kept and pushed on.

use std::io::{Read, Write};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::ring::Ring;
use super::{ACK, REQUEST, Tcp, advance};
use crate::error::{Error, Result, Step};
use crate::measure::{Halt, TwoWay, Wake, Watch};
use crate::ops::Op;
use crate::plan::Side;
use crate::transport::pattern::WAY_BACK;
use crate::transport::{Counted, Exchanged, Tally};

/// Requests and acknowledgements: numbers of messages.
const WORD: usize = 8;
const _: () = assert!(REQUEST == WORD && ACK == WORD);

/// The streams of both directions for verb `O`, at one end.
pub struct Duplex<'s, O> {
    out: Outgoing<'s, O>,
    into: Incoming<'s, O>,
    tally: Tally,
    has_moved: bool,
    epoll: Epoll,
    /// What of the two connections wakes this end.
    awaited: [EpollFlags; 2],
}

impl<'s, O: Op> Duplex<'s, O> {
    /// A path for messages of `size` bytes spread over `slots` buffers each way: this end's go over `out`, and the
    /// peer's come over `into`.
    ///
    /// # Errors
    /// There is no memory for the buffers, or the process has no descriptors left.
    pub fn new(out: &'s Tcp, into: &'s Tcp, size: usize, slots: usize) -> Result<Self> {
        let epoll = || -> nix::Result<Epoll> {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            for tcp in [out, into] {
                epoll.add(&tcp.stream, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            }
            Ok(epoll)
        };
        let epoll = epoll().map_err(no_epoll)?;
        let is_client = out.side == Side::Client;
        let (ours, theirs) = if is_client { (0, WAY_BACK) } else { (WAY_BACK, 0) };
        Ok(Self {
            out: Outgoing {
                tcp: out,
                seed: out.seed ^ ours,
                data: Ring::new(out, size, slots)?,
                requests: WordOut::default(),
                requested: 0,
                acks: Words::new(),
                posted: 0,
                done: 0,
                _verb: PhantomData,
            },
            into: Incoming {
                tcp: into,
                seed: into.seed ^ theirs,
                data: Ring::new(into, size, slots)?,
                acks: WordOut::default(),
                acknowledged: 0,
                requests: Words::new(),
                taken: 0,
                _verb: PhantomData,
            },
            tally: Tally::default(),
            has_moved: false,
            epoll,
            awaited: [EpollFlags::EPOLLIN; 2],
        })
    }
}

fn no_epoll(errno: nix::errno::Errno) -> Error {
    Error::failed(Step::TcpConnect, format!("epoll: {}", std::io::Error::from(errno)))
}

/// A word on its way out.
#[derive(Default)]
struct WordOut {
    bytes: [u8; WORD],
    left: usize,
}

impl WordOut {
    fn put(&mut self, number: u64) {
        self.bytes = number.to_be_bytes();
        self.left = WORD;
    }

    /// Pushes on; whether the word is out.
    fn push(&mut self, tcp: &Tcp) -> Result<bool, Halt> {
        while self.left > 0 {
            let rest = &self.bytes[WORD - self.left..];
            match tcp.try_once(|mut stream| stream.write(rest), &mut Tally::default())? {
                Some(sent) => self.left -= sent,
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// Words as they come.
struct Words {
    bytes: [u8; 512 * WORD],
    partial: usize,
}

impl Words {
    fn new() -> Self {
        Self { bytes: [0; 512 * WORD], partial: 0 }
    }

    /// How many whole words there are now, and the last of them; `None` where nothing has come.
    fn read(&mut self, tcp: &Tcp, tally: &mut Tally) -> Result<Option<(u64, u64)>, Halt> {
        let room = &mut self.bytes[self.partial..];
        let Some(got) = tcp.try_once(|mut stream| stream.read(room), tally)? else { return Ok(None) };
        let got = self.partial + got;
        let whole = got / WORD * WORD;
        self.partial = got - whole;
        let last = self.bytes[..whole].last_chunk::<WORD>().map_or(0, |word| u64::from_be_bytes(*word));
        self.bytes.copy_within(whole..got, 0);
        Ok(Some(((whole / WORD) as u64, last)))
    }
}

/// Pushes data on until as many messages are out as may be; whether any byte has moved.
fn push_data(tcp: &Tcp, data: &mut Ring, messages: u64) -> Result<bool, Halt> {
    let before = data.moved;
    while data.moved < messages * data.size as u64 {
        let rest = data.size - (data.moved % data.size as u64) as usize;
        let part = &data.room()[..rest];
        match tcp.try_once(|mut stream| stream.write(part), &mut Tally::default())? {
            Some(sent) => data.moved += sent as u64,
            None => break,
        }
    }
    Ok(data.moved > before)
}

/// Reads data; whether any byte has moved.
fn read_data(tcp: &Tcp, data: &mut Ring, tally: &mut Tally) -> Result<bool, Halt> {
    let room = data.room();
    let got = tcp.try_once(|mut stream| stream.read(room), tally)?;
    data.moved += got.unwrap_or(0) as u64;
    Ok(got.is_some())
}

/// What this end sends, or for verbs that pull, asks for.
struct Outgoing<'s, O> {
    tcp: &'s Tcp,
    seed: u64,
    data: Ring,
    /// Of verbs that pull.
    requests: WordOut,
    requested: u64,
    /// Of those that push.
    acks: Words,
    posted: u64,
    done: u64,
    _verb: PhantomData<O>,
}

impl<O: Op> Outgoing<'_, O> {
    /// Pushes on what is posted; whether any byte has moved.
    #[inline]
    fn push(&mut self) -> Result<bool, Halt> {
        if const { !O::FACTS.pulls() } {
            return push_data(self.tcp, &mut self.data, self.posted);
        }
        let before = self.requested;
        while self.requests.push(self.tcp)? && self.requested < self.posted {
            self.requests.put(self.requested);
            self.requested += 1;
        }
        Ok(self.requested > before)
    }

    fn is_held_up(&self) -> bool {
        if const { O::FACTS.pulls() } {
            self.requests.left > 0
        } else {
            self.data.moved < self.posted * self.data.size as u64
        }
    }

    /// Reads answers; how many more messages are complete, and whether any byte has moved.
    #[inline]
    fn reap(&mut self, tally: &mut Tally) -> Result<(u64, bool), Halt> {
        let (done, moved) = if const { O::FACTS.pulls() } {
            let moved = read_data(self.tcp, &mut self.data, tally)?;
            (self.data.messages(), moved)
        } else {
            match self.acks.read(self.tcp, tally)? {
                Some((1.., last)) => (last, true),
                Some((0, _)) => (self.done, true),
                None => (self.done, false),
            }
        };
        Ok((advance(&mut self.done, done, self.posted)?, moved))
    }
}

/// What the peer sends, or asks for.
struct Incoming<'s, O> {
    tcp: &'s Tcp,
    seed: u64,
    data: Ring,
    /// Of verbs that push.
    acks: WordOut,
    acknowledged: u64,
    /// Of those that pull.
    requests: Words,
    taken: u64,
    _verb: PhantomData<O>,
}

impl<O: Op> Incoming<'_, O> {
    /// Pushes answers on; whether any byte has moved.
    #[inline]
    fn push(&mut self) -> Result<bool, Halt> {
        if const { O::FACTS.pulls() } {
            return push_data(self.tcp, &mut self.data, self.taken);
        }
        // The last one counts for all before it.
        while self.acks.push(self.tcp)? && self.acknowledged < self.taken {
            self.acks.put(self.taken);
            self.acknowledged = self.taken;
        }
        Ok(false)
    }

    fn is_held_up(&self) -> bool {
        if const { O::FACTS.pulls() } {
            self.data.moved < self.taken * self.data.size as u64
        } else {
            self.acks.left > 0
        }
    }

    /// Reads what has come; how many more messages have, and whether any byte has moved.
    #[inline]
    fn take(&mut self, tally: &mut Tally) -> Result<(u64, bool), Halt> {
        if const { O::FACTS.pulls() } {
            let read = self.requests.read(self.tcp, tally)?;
            let new = read.map_or(0, |(words, _)| words);
            self.taken += new;
            return Ok((new, read.is_some()));
        }
        let moved = read_data(self.tcp, &mut self.data, tally)?;
        let new = self.data.messages() - self.taken;
        self.taken += new;
        Ok((new, moved))
    }
}

impl<O: Op> Wake for Duplex<'_, O> {
    fn arm(&mut self) -> Result<(), Error> {
        let ends = [(self.out.tcp, self.out.is_held_up()), (self.into.tcp, self.into.is_held_up())];
        for ((tcp, is_held_up), awaited) in ends.into_iter().zip(&mut self.awaited) {
            let wanted = match is_held_up {
                true => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
                false => EpollFlags::EPOLLIN,
            };
            if wanted != std::mem::replace(awaited, wanted) {
                let event = &mut EpollEvent::new(wanted, 0);
                self.epoll.modify(&tcp.stream, event).map_err(|errno| no_epoll(errno).at(Step::Measure))?;
            }
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.0.as_fd())
    }

    // It is quiet as soon as the sockets are.
    fn disarm(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

impl<O: Op> TwoWay for Duplex<'_, O> {
    // Acknowledgements are cumulative: none has to be asked for.
    fn expect(&mut self, _messages: Option<u64>) {}

    #[inline]
    fn post(&mut self, count: u64, _watch: &Watch<'_>) -> Result<u64, Halt> {
        self.out.posted += count;
        self.has_moved |= self.out.push()?;
        Ok(count)
    }

    fn cover(&mut self, _watch: &Watch<'_>) -> Result<u64, Halt> {
        Ok(0)
    }

    #[inline]
    fn reap(&mut self) -> Result<u64, Halt> {
        if self.out.is_held_up() {
            self.has_moved |= self.out.push()?;
        }
        let (done, moved) = self.out.reap(&mut self.tally)?;
        self.has_moved |= moved;
        Ok(done)
    }

    #[inline]
    fn take<const VERIFY: bool>(&mut self, _watch: &Watch<'_>) -> Result<u64, Halt> {
        let (came, moved) = self.into.take(&mut self.tally)?;
        let pushed = if came > 0 || self.into.is_held_up() { self.into.push()? } else { false };
        self.has_moved |= moved | pushed;
        Ok(came)
    }

    #[inline]
    fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }
}

impl<O> Counted for Duplex<'_, O> {
    fn tally(&self) -> Tally {
        self.tally
    }
}

impl<O: Op> Exchanged for Duplex<'_, O> {
    const IS_TOLD: bool = true;

    fn slots(&self) -> u64 {
        self.out.data.slots()
    }

    fn sent(&self) -> Vec<u64> {
        vec![self.out.posted]
    }

    fn stamp(&mut self, count: u64) {
        let (out, into) = (&mut self.out, &mut self.into);
        if O::FACTS.pulls() {
            out.data.stamp(!out.seed, out.posted, count);
            into.data.stamp(into.seed, into.taken, count);
        } else {
            out.data.stamp(out.seed, out.posted, count);
        }
    }

    fn check(&mut self, _each: &[u64], checked: Option<u64>) -> Result<()> {
        let Some(count) = checked else { return Ok(()) };
        let (out, into) = (&mut self.out, &mut self.into);
        if O::FACTS.pulls() {
            out.data.check(out.seed, out.posted - count, count)
        } else {
            into.data.check(into.seed, into.taken - count, count)
        }
    }
}
