use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::measure::Stop;
use crate::measure::clock::{Epoch, Raw};

/// A clock of one tick a nanosecond that moves by a tick when it is read, and as far as a path moves it.
#[derive(Clone, Copy)]
pub struct Virtual<'a>(pub &'a Cell<u64>);

impl Ticks for Virtual<'_> {
    fn now(self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

/// A server that takes `service` ticks for a message, one after the other, and does nothing while it is `stalled`.
pub struct Server<'a> {
    pub time: &'a Cell<u64>,
    pub service: u64,
    /// From when to when.
    pub stalled: (u64, u64),
    /// When each message outstanding will have ended.
    ends: VecDeque<u64>,
    free: u64,
    pub deepest: usize,
    stamped: u64,
    started: u64,
    ended: u64,
    checked: u64,
    /// Started and not yet settled.
    unsettled: u64,
}

impl<'a> Server<'a> {
    pub fn new(time: &'a Cell<u64>, service: u64) -> Self {
        Self {
            time,
            service,
            stalled: (0, 0),
            ends: VecDeque::new(),
            free: 0,
            deepest: 0,
            stamped: 0,
            started: 0,
            ended: 0,
            checked: 0,
            unsettled: 0,
        }
    }
}

impl Pipeline for Server<'_> {
    fn start(&mut self, _: usize, _: &Watch<'_>) -> Result<(), Halt> {
        let begin = self.free.max(self.time.get());
        let end = begin + self.service;
        let (from, to) = self.stalled;
        self.free =
            if (from..to).contains(&end) || (from..to).contains(&begin) { to + self.service } else { end };
        self.ends.push_back(self.free);
        self.deepest = self.deepest.max(self.ends.len());
        self.started += 1;
        self.unsettled += 1;
        Ok(())
    }
    fn finished(&mut self) -> Result<usize, Halt> {
        self.time.set(self.time.get() + 1);
        let ended = self.ends.iter().take_while(|end| **end <= self.time.get()).count();
        self.ends.drain(..ended);
        self.ended += ended as u64;
        Ok(ended)
    }
    fn wait(&mut self, _: &Watch<'_>) -> Result<usize, Halt> {
        let first = *self.ends.front().expect("a wait for nothing never ends");
        self.time.set(first.max(self.time.get()));
        self.finished()
    }
    fn settle(&mut self, ended: usize) -> Result<(), Halt> {
        self.unsettled -= ended as u64;
        assert_eq!(
            self.unsettled as usize,
            self.ends.len(),
            "each ended trip is settled before another starts"
        );
        Ok(())
    }
    fn inspect(&mut self) -> Result<(), Halt> {
        Ok(())
    }
    fn stamp(&mut self, _: usize) {
        assert_eq!(self.stamped, self.started);
        self.stamped += 1;
    }
    fn check(&mut self, ended: usize) -> Result<(), Halt> {
        self.checked += ended as u64;
        assert!(self.checked <= self.ended);
        Ok(())
    }
}

pub fn with_watch<R>(run: impl FnOnce(&Watch<'_>, &Clock) -> R) -> R {
    static QUIET: AtomicBool = AtomicBool::new(false);
    let (control, _peer) = UnixStream::pair().unwrap();
    let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
    // Whose ticks are nanoseconds.
    run(&watch, &Clock::calibrate(Epoch::note(), None))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_count_at_any_depth_is_measured_exactly(count in 1u64..4000, depth in 1u32..300, service in 1u64..200) {
        let time = Cell::new(0);
        let mut server = Server::new(&time, service);
        let mut histogram = LatencyHistogram::new();
        let made = with_watch(|watch, clock| {
            let limit = Stop::Count(count).into();
            initiate::<_, _, true>(&mut server, Virtual(&time), clock, depth, limit, watch, &mut histogram)
        });
        prop_assert_eq!(made.unwrap(), count);
        prop_assert_eq!(histogram.samples(), count);
        prop_assert_eq!((server.started, server.stamped, server.checked, server.ends.len()), (count, count, count, 0));
        prop_assert_eq!(server.deepest as u64, u64::from(depth).min(count));
    }
}

#[test]
fn with_many_outstanding_each_waits_for_those_before_it() {
    let time = Cell::new(0);
    let mut server = Server::new(&time, 1000);
    let mut histogram = LatencyHistogram::new();
    with_watch(|watch, clock| {
        let limit = Stop::Count(10_000).into();
        initiate::<_, _, false>(&mut server, Virtual(&time), clock, 8, limit, watch, &mut histogram).unwrap();
    });
    let median = histogram.quantile(0.5).unwrap();
    assert!((7_900..8_100).contains(&median), "a server of 1 us has 8 us at depth 8, not {median} ns");
}

#[test]
fn time_ends_a_run_and_what_is_under_way_is_waited_for() {
    with_watch(|watch, clock| {
        let time = Cell::new(0);
        let mut server = Server::new(&time, 10);
        let mut histogram = LatencyHistogram::new();
        let limit = Stop::After(Duration::from_micros(10)).into();
        let made =
            initiate::<_, _, false>(&mut server, Virtual(&time), clock, 8, limit, watch, &mut histogram);
        assert_eq!((made.unwrap(), histogram.samples()), (server.started, server.started));
        assert!((10_000..10_200).contains(&time.get()), "{}", time.get());
        // The real clock, for a path that takes no time.
        let limit = Stop::After(Duration::ZERO).into();
        let made = initiate::<_, _, false>(&mut server, Raw, clock, 8, limit, watch, &mut histogram);
        assert_eq!(made.unwrap(), 8, "a window at least");
    });
}
