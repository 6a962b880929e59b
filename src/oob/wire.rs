//! Waiting for a socket with a deadline.
//!
//! Every socket of this layer is non-blocking and every wait is a `poll(2)` with a time at which it ends, so that a
//! peer that says nothing costs a known time and never more.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How often a wait looks at its stop flag: a signal may be handled on another thread, and then interrupts nothing.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// When a wait ends although nothing came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit<'a> {
    started: Instant,
    deadline: Option<Instant>,
    stop: Option<&'a AtomicBool>,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    Ready,
    TimedOut,
    Stopped,
}

impl<'a> Limit<'a> {
    /// From now for `timeout`, or until `stop` is set. A timeout too long for the clock never ends.
    pub(super) fn after(timeout: Duration, stop: Option<&'a AtomicBool>) -> Self {
        let started = Instant::now();
        Self { started, deadline: started.checked_add(timeout), stop }
    }

    /// From now until `deadline`, or until `stop` is set.
    pub(super) fn until(deadline: Option<Instant>, stop: Option<&'a AtomicBool>) -> Self {
        Self { started: Instant::now(), deadline, stop }
    }

    /// The same stop flag, and the earlier of both deadlines.
    pub(super) fn at_most(self, deadline: Instant) -> Self {
        Self { deadline: Some(self.deadline.map_or(deadline, |own| own.min(deadline))), ..self }
    }

    /// The same stop flag, and `time` from now at the least.
    pub(super) fn at_least(self, time: Duration) -> Self {
        let least = Instant::now().checked_add(time);
        Self { deadline: self.deadline.zip(least).map(|(own, least)| own.max(least)), ..self }
    }

    pub(super) fn waited(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn left(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Waits until one of `fds` is ready. With the deadline past it still looks once.
    pub(super) fn wait(&self, fds: &mut [PollFd<'_>]) -> io::Result<Wake> {
        loop {
            if self.stopped() {
                return Ok(Wake::Stopped);
            }
            let left = self.left();
            let slice = if self.stop.is_some() { left.min(STOP_CHECK) } else { left };
            match poll(fds, whole_milliseconds(slice)) {
                Ok(0) if left <= slice => return Ok(Wake::TimedOut),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(Wake::Ready),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    pub(super) fn wait_for(&self, socket: &impl AsFd, events: PollFlags) -> io::Result<Wake> {
        self.wait(&mut [PollFd::new(socket.as_fd(), events)])
    }
}

/// Rounded up, so that a wait does not spin through its last millisecond; `poll(2)` takes an `int`.
fn whole_milliseconds(time: Duration) -> PollTimeout {
    const LONGEST: Duration = Duration::from_secs(3600);
    let micros = time.min(LONGEST).as_nanos().div_ceil(1000);
    PollTimeout::try_from(micros.div_ceil(1000)).unwrap_or(PollTimeout::MAX)
}

/// What one attempt to move bytes came to.
#[derive(Debug)]
pub(super) enum Moved {
    Bytes(usize),
    /// Nothing now; wait.
    NotYet,
    /// End of the stream.
    End,
}

/// Reads once into `buffer`, which is not empty.
pub(super) fn read_once(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<Moved> {
    settle(stream.read(buffer))
}

/// Writes once from `bytes`, which is not empty.
pub(super) fn write_once(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<Moved> {
    settle(stream.write(bytes))
}

fn settle(outcome: io::Result<usize>) -> io::Result<Moved> {
    match outcome {
        Ok(0) => Ok(Moved::End),
        Ok(count) => Ok(Moved::Bytes(count)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(Moved::NotYet),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_wait_ends_at_its_deadline_and_not_before() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let limit = Limit::after(Duration::from_millis(30), None);
        assert_eq!(limit.wait_for(&listener, PollFlags::POLLIN).unwrap(), Wake::TimedOut);
        assert!(limit.waited() >= Duration::from_millis(30), "{:?}", limit.waited());
        assert!(limit.waited() < Duration::from_secs(5), "{:?}", limit.waited());
    }

    #[test]
    fn a_stop_flag_ends_a_wait_without_a_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                stop.store(true, Ordering::Relaxed);
            });
            let limit = Limit::until(None, Some(&stop));
            assert_eq!(limit.wait_for(&listener, PollFlags::POLLIN).unwrap(), Wake::Stopped);
        });
    }

    #[test]
    fn the_longest_timeout_does_not_overflow() {
        assert_eq!(Limit::after(Duration::MAX, None).left(), Duration::MAX);
        assert_eq!(whole_milliseconds(Duration::MAX), PollTimeout::try_from(3_600_000).unwrap());
        assert_eq!(whole_milliseconds(Duration::from_nanos(1_000_001)), PollTimeout::try_from(2).unwrap());
        assert_eq!(whole_milliseconds(Duration::ZERO), PollTimeout::ZERO);
    }
}
