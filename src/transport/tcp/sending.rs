//! How messages get from a buffer into the kernel, as a type: copied, or lent until the kernel says that it is done.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::libc;
use socket2::SockRef;

use super::{Tcp, failed};
use crate::measure::{Halt, Never, Waiting, Watch};
use crate::sys::zero_copy::next_returned;
use crate::transport::Tally;

/// How messages are sent. What goes with them, requests and acknowledgements, is copied always.
pub trait Sending: Send {
    /// Buffers are lent, and must not change until they are back.
    const LENDS: bool;
}

/// The kernel copies them.
pub enum Copied {}

impl Sending for Copied {
    const LENDS: bool = false;
}

/// The kernel sends from their pages (`MSG_ZEROCOPY`), or copies them after all and says so.
pub enum Lent {}

impl Sending for Lent {
    const LENDS: bool = true;
}

/// What of a socket was lent and has come back, in calls since it was made: the kernel numbers them so.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    lent: Cell<u64>,
    /// All calls before this one are back.
    returned: Cell<u64>,
    /// Calls that came back, whatever their order, and those of them whose data was copied.
    back: Cell<u64>,
    copied: Cell<u64>,
    /// Calls that came back before an earlier one did. TCP keeps the order but for a socket that is torn down.
    early: RefCell<Vec<(u64, u64)>>,
}

impl Ledger {
    /// The number of the next call.
    pub(super) fn lent(&self) -> u64 {
        self.lent.get()
    }

    /// All calls before this number are back.
    pub(super) fn returned(&self) -> u64 {
        self.returned.get()
    }

    /// The same as a tally: of calls that are back, since only of those it is known whether they were copied.
    pub(super) fn tally(&self) -> Tally {
        Tally { lent: self.back.get(), copied: self.copied.get(), ..Tally::default() }
    }

    fn lend(&self, stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_ZEROCOPY | libc::MSG_NOSIGNAL;
        match SockRef::from(stream).send_with_flags(bytes, flags) {
            Ok(sent) => {
                self.lent.set(self.lent.get() + 1);
                Ok(sent)
            }
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => Err(self.full(stream)?),
            Err(error) => Err(error),
        }
    }

    /// The kernel lends no more until something is back. With nothing outstanding that will never be.
    #[cold]
    fn full(&self, stream: &TcpStream) -> io::Result<io::Error> {
        if self.take_back(stream)? || self.returned() < self.lent() {
            return Ok(ErrorKind::WouldBlock.into());
        }
        Ok(io::Error::other(
            "the kernel takes no pages without a copy (ENOBUFS): raise net.core.optmem_max and the limit of locked \
             memory (ulimit -l), or leave --tcp-zerocopy away",
        ))
    }

    /// Takes what has come back. Whether anything has.
    #[inline]
    fn take_back(&self, stream: &TcpStream) -> io::Result<bool> {
        let mut came = false;
        while let Some(entry) = next_returned(stream.as_fd())? {
            self.enter(entry.first, entry.last, entry.copied);
            came = true;
        }
        Ok(came)
    }

    /// Notes that the calls from `first` to `last` are back. Numbers wrap at 32 bits; fewer than half of that are
    /// outstanding.
    fn enter(&self, first: u32, last: u32, copied: bool) {
        let begin = self.returned.get() + u64::from(first.wrapping_sub(self.returned.get() as u32));
        let end = begin + u64::from(last.wrapping_sub(first)) + 1;
        self.back.set(self.back.get() + (end - begin));
        if copied {
            self.copied.set(self.copied.get() + (end - begin));
        }
        if begin > self.returned.get() {
            self.early.borrow_mut().push((begin, end));
            return;
        }
        self.returned.set(end);
        let mut early = self.early.borrow_mut();
        while let Some(at) = early.iter().position(|(begin, _)| *begin == self.returned.get()) {
            self.returned.set(early.swap_remove(at).1);
        }
    }
}

impl Tcp {
    /// Sends a message, in as many calls as it takes.
    #[inline(always)]
    pub(super) fn send_message<S: Sending, W: Waiting>(
        &self,
        bytes: &[u8],
        watch: &Watch<'_>,
        tally: &mut Tally,
    ) -> Result<(), Halt> {
        if const { !S::LENDS } {
            return self.send::<W>(bytes, watch, tally);
        }
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.until_moved::<W>(|stream| self.ledger.lend(stream, &bytes[sent..]), watch, tally)?;
        }
        Ok(())
    }

    /// Takes back what the kernel is done with, without waiting.
    #[inline]
    pub(super) fn take_back(&self) -> Result<(), Halt> {
        self.ledger.take_back(&self.stream).map(drop).map_err(|error| failed(&error))
    }

    /// Waits until all calls before `number` are back. The peer's word does not end the wait: it may come first.
    #[inline]
    pub(super) fn until_back<W: Waiting>(&self, number: u64, watch: &Watch<'_>) -> Result<(), Halt> {
        let watch = watch.without_peer();
        let (mut wait, mut since) = (W::default(), None);
        self.take_back()?;
        while self.ledger.returned() < number {
            if W::SLEEPS {
                watch.sleep(self.stream.as_fd(), &mut since)?;
            } else {
                wait.idle(&mut Never, &watch)?;
            }
            self.take_back()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_back_when_all_before_it_are() {
        let ledger = Ledger::default();
        ledger.enter(0, 0, true);
        assert_eq!((ledger.returned(), ledger.tally().copied), (1, 1));
        ledger.enter(3, 4, false);
        ledger.enter(6, 6, false);
        assert_eq!(ledger.returned(), 1);
        ledger.enter(1, 2, true);
        assert_eq!((ledger.returned(), ledger.tally().copied), (5, 3));
        ledger.enter(5, 5, false);
        assert_eq!(ledger.returned(), 7);
        assert_eq!((ledger.tally().lent, ledger.tally().copied), (7, 3));
    }

    #[test]
    fn numbers_go_on_beyond_what_32_bits_hold() {
        let ledger = Ledger::default();
        let end = u64::from(u32::MAX) - 1;
        ledger.returned.set(end);
        ledger.enter(u32::MAX - 1, 1, false);
        assert_eq!(ledger.returned(), end + 4);
    }
}
