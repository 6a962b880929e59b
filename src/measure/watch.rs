//! What a wait looks at when nothing has come for a while: the peer's word, a signal, the time.
//!
//! A loop never reads the control connection. It only learns that there is something to read, and hands back.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::Error;

/// Why a loop ended before its time.
#[derive(Debug)]
pub enum Halt {
    /// The control connection has something to read, or is gone.
    Peer,
    /// A signal asked the process to stop.
    Interrupted,
    /// Nothing came for the whole stall timeout.
    Stalled(Duration),
    /// The path failed.
    Failed(Error),
    /// A work request of the RDMA path failed.
    Work(FailedWork),
}

/// A failed work request in the numbers of its completion: all that a device tells of it (`ibv_poll_cq(3)`). Whoever knows
/// both ends explains them, outside of the loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedWork {
    /// A value of `enum ibv_wc_status`.
    pub status: u32,
    /// The vendor's own code.
    pub vendor_error: u32,
    /// The own queue pair.
    pub qp_number: u32,
    /// It was a receive.
    pub is_receive: bool,
}

impl From<Error> for Halt {
    #[cold]
    fn from(error: Error) -> Self {
        Halt::Failed(error)
    }
}

/// What to keep an eye on while waiting, for one phase.
#[derive(Debug, Clone, Copy)]
pub struct Watch<'a> {
    control: Option<BorrowedFd<'a>>,
    /// What of the control connection ends a wait.
    heeds: PollFlags,
    signalled: &'a AtomicBool,
    stall: Duration,
    /// Empty polls of a spinner between two looks, or offers of its core.
    polls: u32,
}

/// Longest sleep between two looks. A signal that lands just before poll(2) costs at most this.
const NAP: Duration = Duration::from_millis(100);

impl<'a> Watch<'a> {
    /// `control` becomes readable when the peer speaks or dies; `signalled` is set by a signal; `stall` is the
    /// longest wait for any progress.
    pub fn new(control: BorrowedFd<'a>, signalled: &'a AtomicBool, stall: Duration) -> Self {
        Self { control: Some(control), heeds: PollFlags::POLLIN, signalled, stall, polls: LOOK_EVERY }
    }

    /// The same, deaf to the control connection: for the rest of a phase whose end the peer has already told.
    #[must_use]
    pub fn without_peer(self) -> Self {
        Self { control: None, ..self }
    }

    /// The same for a thread that shares its core with one that it waits for.
    #[must_use]
    pub fn sharing_core(self) -> Self {
        Self { polls: 1, ..self }
    }

    fn shares_core(&self) -> bool {
        self.polls == 1
    }

    /// The same, with another longest wait.
    #[must_use]
    pub fn with_stall(self, stall: Duration) -> Self {
        Self { stall, ..self }
    }

    /// The same, deaf to what the peer says, but not to its end: for a phase that the peer may have done with first.
    #[must_use]
    pub fn until_gone(self) -> Self {
        Self { heeds: PollFlags::from_bits_retain(libc::POLLRDHUP), ..self }
    }

    /// A signal has asked the process to stop.
    #[inline]
    pub fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::Relaxed)
    }

    /// One look, without sleeping. `since` is when this wait began; the first look sets it.
    ///
    /// # Errors
    /// The reason to leave the loop.
    #[cold]
    pub fn look(&self, since: &mut Option<Instant>) -> Result<(), Halt> {
        self.check_time(since)?;
        self.poll_fds(None, Duration::ZERO).map(drop)
    }

    /// Sleeps until `fd` is readable, the peer speaks, or a tenth of a second has passed, or the longest wait if that is
    /// shorter.
    ///
    /// # Errors
    /// The reason to leave the loop. Data on `fd` comes first: a peer's word never hides a message.
    pub fn sleep(&self, fd: BorrowedFd<'_>, since: &mut Option<Instant>) -> Result<(), Halt> {
        self.check_time(since)?;
        self.poll_fds(Some(fd), NAP.min(self.stall))
    }

    fn check_time(&self, since: &mut Option<Instant>) -> Result<(), Halt> {
        if self.is_signalled() {
            return Err(Halt::Interrupted);
        }
        let waited = since.get_or_insert_with(Instant::now).elapsed();
        if waited > self.stall { Err(Halt::Stalled(waited)) } else { Ok(()) }
    }

    fn poll_fds(&self, data: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<(), Halt> {
        let control = self.control.map(|control| (control, self.heeds));
        let data = data.map(|data| (data, PollFlags::POLLIN));
        let (Some(first), Some(second)) = (control.or(data), data.or(control)) else { return Ok(()) };
        let mut fds = [first, second].map(|(fd, events)| PollFd::new(fd, events));
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
        match poll(&mut fds, timeout) {
            Ok(0) | Err(Errno::EINTR) => Ok(()),
            Ok(_) if data.is_some() && fds[1].any() == Some(true) => Ok(()),
            Ok(_) if self.control.is_some() => Err(Halt::Peer),
            Ok(_) => Ok(()),
            Err(errno) => Err(Halt::Failed(Error::failed(
                crate::error::Step::Measure,
                format!("poll: {}", std::io::Error::from(errno)),
            ))),
        }
    }
}

/// What a path does while nothing has come, as a type: one loop is compiled for each.
pub trait Waiting: Default + Send {
    /// The path sleeps instead of spinning.
    const SLEEPS: bool;

    /// Empty polls in a row, at least 1, before [`Waiting::idle`] is called.
    fn polls(watch: &Watch<'_>) -> u32;

    /// Called when nothing came. It may ask the source for a wake-up, which is followed by another poll before any
    /// sleep, so that what came in between is not slept over. Once the wait has become a long one, each look around asks
    /// whether the source still works.
    ///
    /// Returns whether this was a look around, after which a path checks what else may have gone wrong.
    ///
    /// # Errors
    /// The reason to leave the loop.
    fn idle<S: Wake>(&mut self, source: &mut S, watch: &Watch<'_>) -> Result<bool, Halt>;
}

/// Something that can wake a sleeper.
pub trait Wake {
    /// Asks for a wake-up at the next arrival.
    ///
    /// # Errors
    /// The device refused.
    fn arm(&mut self) -> Result<(), Error>;
    /// Becomes readable at the wake-up.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
    /// Takes the wake-up, so that the descriptor is quiet again.
    ///
    /// # Errors
    /// The device failed.
    fn disarm(&mut self) -> Result<(), Error>;
    /// Looks whether what should bring something still works.
    ///
    /// # Errors
    /// It does not.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// A source that wakes nobody.
pub struct Never;

impl Wake for Never {
    fn arm(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn disarm(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Polls without pause; where the core is shared, each empty poll offers it to the other thread.
#[derive(Debug, Default)]
pub struct Spin {
    yields: u32,
    looks: u32,
    since: Option<Instant>,
}

/// Empty polls between two looks: some 40 us of polling on a NIC, so that a look never falls into a short wait.
pub(super) const LOOK_EVERY: u32 = 4096;

impl Waiting for Spin {
    const SLEEPS: bool = false;

    #[inline]
    fn polls(watch: &Watch<'_>) -> u32 {
        watch.polls
    }

    #[inline]
    fn idle<S: Wake>(&mut self, source: &mut S, watch: &Watch<'_>) -> Result<bool, Halt> {
        // Some milliseconds of polling. Where the core is shared, a look comes as seldom as that.
        let mut patience = 64;
        if watch.shares_core() {
            patience = 1;
            std::thread::yield_now();
            // A wait that ends with a few yields never looks around.
            if watch.is_signalled() {
                return Err(Halt::Interrupted);
            }
            self.yields = self.yields.wrapping_add(1);
            if !self.yields.is_multiple_of(LOOK_EVERY) {
                return Ok(false);
            }
        }
        watch.look(&mut self.since)?;
        self.looks += 1;
        if self.looks > patience {
            source.check()?;
        }
        Ok(true)
    }
}

/// Arms after the first empty poll, sleeps after the second.
#[derive(Debug, Default)]
pub struct Sleep {
    armed: bool,
    looks: u32,
    since: Option<Instant>,
}

impl Waiting for Sleep {
    const SLEEPS: bool = true;

    #[inline]
    fn polls(_watch: &Watch<'_>) -> u32 {
        1
    }

    #[inline]
    fn idle<S: Wake>(&mut self, source: &mut S, watch: &Watch<'_>) -> Result<bool, Halt> {
        if !self.armed {
            source.arm()?;
            self.armed = true;
            return Ok(false);
        }
        if let Some(fd) = source.fd() {
            watch.sleep(fd.as_fd(), &mut self.since)?;
        }
        source.disarm()?;
        self.armed = false;
        self.looks += 1;
        // The first may be a wake-up; the next has slept for its whole nap.
        if self.looks > 1 {
            source.check()?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    struct Script {
        fd: UnixStream,
        calls: Vec<&'static str>,
    }

    impl Wake for Script {
        fn arm(&mut self) -> Result<(), Error> {
            self.calls.push("arm");
            Ok(())
        }
        fn fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.fd.as_fd())
        }
        fn disarm(&mut self) -> Result<(), Error> {
            self.calls.push("disarm");
            Ok(())
        }
    }

    static QUIET: AtomicBool = AtomicBool::new(false);

    #[test]
    fn a_sleeper_polls_once_more_between_arming_and_sleeping() {
        let (control, _peer) = UnixStream::pair().unwrap();
        let (fd, mut waker) = UnixStream::pair().unwrap();
        waker.write_all(b"x").unwrap();
        let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
        let mut source = Script { fd, calls: vec![] };
        let mut sleep = Sleep::default();
        assert!(!sleep.idle(&mut source, &watch).unwrap());
        assert_eq!(source.calls, ["arm"], "the caller polls before the next call");
        assert!(sleep.idle(&mut source, &watch).unwrap());
        assert_eq!(source.calls, ["arm", "disarm"]);
    }

    #[test]
    fn data_comes_before_the_peers_word() {
        let (control, mut peer) = UnixStream::pair().unwrap();
        let (fd, mut waker) = UnixStream::pair().unwrap();
        peer.write_all(b"done").unwrap();
        let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
        assert!(matches!(watch.sleep(fd.as_fd(), &mut None), Err(Halt::Peer)));
        waker.write_all(b"x").unwrap();
        assert!(watch.sleep(fd.as_fd(), &mut None).is_ok());
        assert!(watch.without_peer().look(&mut None).is_ok());
    }

    #[test]
    fn a_peer_that_is_done_first_is_not_one_that_is_gone() {
        let (control, mut peer) = UnixStream::pair().unwrap();
        let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
        let (fd, _quiet) = UnixStream::pair().unwrap();
        peer.write_all(b"done").unwrap();
        assert!(watch.until_gone().look(&mut None).is_ok());
        assert!(watch.until_gone().sleep(fd.as_fd(), &mut None).is_ok());
        assert!(matches!(watch.look(&mut None), Err(Halt::Peer)));
        drop(peer);
        assert!(matches!(watch.until_gone().look(&mut None), Err(Halt::Peer)));
        assert!(matches!(watch.until_gone().sleep(fd.as_fd(), &mut None), Err(Halt::Peer)));
    }

    #[test]
    fn a_wait_ends_with_its_stall_timeout_or_a_signal() {
        let (control, _peer) = UnixStream::pair().unwrap();
        let watch = Watch::new(control.as_fd(), &QUIET, Duration::ZERO);
        let mut since = Some(Instant::now() - Duration::from_secs(1));
        assert!(matches!(watch.look(&mut since), Err(Halt::Stalled(_))));
        static SIGNAL: AtomicBool = AtomicBool::new(true);
        let watch = Watch::new(control.as_fd(), &SIGNAL, Duration::from_secs(5));
        assert!(matches!(watch.look(&mut None), Err(Halt::Interrupted)));
    }
}
