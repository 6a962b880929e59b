//! An end that streams and takes at once: what the bandwidth loop runs over where messages go both ways.

use std::marker::PhantomData;

use super::bandwidth::Stream;
use super::watch::{Halt, LOOK_EVERY, Waiting, Wake, Watch};

/// An end of a path that carries messages both ways. It never waits: what wakes it is awaited between two calls.
pub trait TwoWay: Wake {
    /// As [`Stream::expect`].
    fn expect(&mut self, messages: Option<u64>);

    /// As [`Stream::post`].
    ///
    /// # Errors
    /// The path failed.
    fn post(&mut self, count: u64, watch: &Watch<'_>) -> Result<u64, Halt>;

    /// As [`Stream::cover`].
    ///
    /// # Errors
    /// The path failed.
    fn cover(&mut self, watch: &Watch<'_>) -> Result<u64, Halt>;

    /// Returns how many more of the messages posted are complete.
    ///
    /// # Errors
    /// The path failed.
    fn reap(&mut self) -> Result<u64, Halt>;

    /// Takes what has arrived, makes room for as many, and returns how many came. With `VERIFY` what the arrival itself
    /// carries is compared with what it must be.
    ///
    /// # Errors
    /// The path failed, or what came is wrong.
    fn take<const VERIFY: bool>(&mut self, watch: &Watch<'_>) -> Result<u64, Halt>;

    /// Whether a part of a message has moved, either way, since this was asked last.
    fn has_moved(&mut self) -> bool;
}

/// A path that carries messages both ways as a stream: while it waits for its own messages to complete, it takes those
/// of the peer. `W` says how it waits where neither does.
pub struct Both<'p, P, W, const VERIFY: bool> {
    path: &'p mut P,
    taken: u64,
    _waiting: PhantomData<W>,
}

/// A wait in which neither direction has brought anything.
#[derive(Default)]
struct Lull<W> {
    wait: W,
    empty: u32,
    /// Turns that brought something, but not what is waited for.
    busy: u32,
}

impl<'p, P: TwoWay, W: Waiting, const VERIFY: bool> Both<'p, P, W, VERIFY> {
    /// Nothing has been taken yet.
    pub fn new(path: &'p mut P) -> Self {
        Self { path, taken: 0, _waiting: PhantomData }
    }

    /// What is looked at.
    pub fn path(&self) -> &P {
        self.path
    }

    /// Messages taken so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes messages until `limit` have come in all. Everything posted must be complete.
    ///
    /// # Errors
    /// The reason to leave the wait: [`Halt::Peer`] when the other end has told how many it sent.
    pub fn take_until(&mut self, limit: u64, watch: &Watch<'_>) -> Result<(), Halt> {
        let mut lull = Lull::<W>::default();
        while self.taken < limit {
            self.turn(&mut lull, watch)?;
        }
        Ok(())
    }

    /// Looks at both directions once, and idles where neither brought anything. Returns how many messages are complete.
    #[inline]
    fn turn(&mut self, lull: &mut Lull<W>, watch: &Watch<'_>) -> Result<u64, Halt> {
        let done = self.path.reap()?;
        let mut came = 0;
        loop {
            let got = self.path.take::<VERIFY>(watch)?;
            came += got;
            // As many come as go: neither direction starves the other.
            if got == 0 || came >= done {
                break;
            }
        }
        self.taken += came;
        if done > 0 {
            return Ok(done);
        }
        if came > 0 || self.path.has_moved() {
            *lull = Lull { busy: lull.busy.wrapping_add(1), ..Lull::default() };
            if lull.busy.is_multiple_of(LOOK_EVERY) {
                watch.look(&mut None)?;
            }
            return Ok(0);
        }
        lull.empty += 1;
        if lull.empty == W::polls(watch) {
            lull.empty = 0;
            lull.wait.idle(self.path, watch)?;
        }
        Ok(0)
    }
}

impl<P: TwoWay, W: Waiting, const VERIFY: bool> Stream for Both<'_, P, W, VERIFY> {
    fn expect(&mut self, messages: Option<u64>) {
        self.path.expect(messages);
    }

    #[inline]
    fn post(&mut self, count: u64, watch: &Watch<'_>) -> Result<u64, Halt> {
        self.path.post(count, watch)
    }

    fn cover(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        self.path.cover(watch)
    }

    #[inline]
    fn reap(&mut self, watch: &Watch<'_>) -> Result<u64, Halt> {
        let mut lull = Lull::<W>::default();
        loop {
            let done = self.turn(&mut lull, watch)?;
            if done > 0 {
                return Ok(done);
            }
        }
    }

    fn look(&mut self) -> Result<u64, Halt> {
        self.path.reap()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::error::Error;
    use crate::measure::bandwidth::{self, BandwidthSample, Load};
    use crate::measure::{Clock, Counter, Epoch, Sleep, Spin, Stop};

    static QUIET: AtomicBool = AtomicBool::new(false);

    /// A device that completes `burst` messages a look and brings `arrivals`, as many a look as the list says in turn.
    struct Device {
        burst: u64,
        outstanding: u64,
        arrivals: u64,
        each: Vec<u64>,
        looks: usize,
        /// Looks left in which a part of a message moves.
        parts: u32,
        calls: Vec<&'static str>,
        channel: (UnixStream, UnixStream),
    }

    impl Device {
        fn new(burst: u64, arrivals: u64, each: Vec<u64>) -> Self {
            let channel = UnixStream::pair().unwrap();
            Self { burst, outstanding: 0, arrivals, each, looks: 0, parts: 0, calls: vec![], channel }
        }
    }

    impl Wake for Device {
        fn arm(&mut self) -> Result<(), Error> {
            self.calls.push("arm");
            Ok(())
        }
        fn fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.channel.0.as_fd())
        }
        fn disarm(&mut self) -> Result<(), Error> {
            self.calls.push("disarm");
            // What woke the end.
            self.arrivals += 1;
            Ok(())
        }
    }

    impl TwoWay for Device {
        fn expect(&mut self, _: Option<u64>) {}
        fn post(&mut self, count: u64, _: &Watch<'_>) -> Result<u64, Halt> {
            self.outstanding += count;
            Ok(count)
        }
        fn cover(&mut self, _: &Watch<'_>) -> Result<u64, Halt> {
            Ok(0)
        }
        fn reap(&mut self) -> Result<u64, Halt> {
            self.calls.push("reap");
            let done = self.burst.min(self.outstanding);
            self.outstanding -= done;
            Ok(done)
        }
        fn take<const VERIFY: bool>(&mut self, _: &Watch<'_>) -> Result<u64, Halt> {
            self.calls.push("take");
            let got = self.each[self.looks % self.each.len()].min(self.arrivals);
            self.looks += 1;
            self.arrivals -= got;
            Ok(got)
        }
        fn has_moved(&mut self) -> bool {
            let moved = self.parts > 0;
            self.parts = self.parts.saturating_sub(1);
            moved
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn both_counts_are_exact_however_they_come(
            count in 1u64..3000, arrivals in 0u64..3000, depth in 1u64..200, burst in 1u64..50,
            each in prop::collection::vec(0u64..20, 1..6),
        ) {
            let (control, _peer) = UnixStream::pair().unwrap();
            let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
            let clock = Clock::calibrate(Epoch::note(), Some("tsc"));
            let each = each.into_iter().chain([1]).collect();
            let mut device = Device::new(burst, arrivals, each);
            let mut both = Both::<_, Spin, false>::new(&mut device);
            let mut sample = BandwidthSample::default();
            let load = Load { depth, warm_up: Stop::Count(7).into(), stop: Stop::Count(count) };
            bandwidth::stream(&mut both, Counter, &clock, &load, &watch, &mut sample).unwrap();
            prop_assert_eq!((sample.messages, sample.posted), (count, count + 7));
            both.take_until(arrivals, &watch).unwrap();
            prop_assert_eq!(both.taken(), arrivals);
            prop_assert_eq!((device.outstanding, device.arrivals), (0, 0));
        }
    }

    #[test]
    fn as_many_come_as_go_however_few_a_look_brings() {
        let (control, _peer) = UnixStream::pair().unwrap();
        let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
        let mut device = Device::new(32, u64::MAX, vec![4]);
        let mut both = Both::<_, Spin, false>::new(&mut device);
        bandwidth::batch(&mut both, 3200, &watch).unwrap();
        assert_eq!(both.taken(), 3200);
    }

    #[test]
    fn an_end_sleeps_when_both_directions_are_still_empty_once_it_is_armed() {
        let (control, _peer) = UnixStream::pair().unwrap();
        let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
        let mut device = Device::new(1, 0, vec![1]);
        device.channel.1 = {
            use std::io::Write;
            device.channel.1.write_all(b"wakes at once").unwrap();
            device.channel.1
        };
        device.parts = 1;
        let mut both = Both::<_, Sleep, false>::new(&mut device);
        both.take_until(1, &watch).unwrap();
        let turn = ["reap", "take"];
        let calls = [&turn[..], &turn, &["arm"], &turn, &["disarm"], &turn].concat();
        assert_eq!(device.calls, calls, "a part that moved, then nothing, then nothing still");
    }

    #[test]
    fn a_peer_that_is_gone_is_noticed_while_its_messages_keep_coming() {
        let (control, peer) = UnixStream::pair().unwrap();
        let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5)).until_gone();
        drop(peer);
        let mut device = Device::new(0, u64::MAX, vec![1]);
        let mut both = Both::<_, Spin, false>::new(&mut device);
        assert!(matches!(bandwidth::batch(&mut both, 1, &watch), Err(Halt::Peer)));
    }
}
