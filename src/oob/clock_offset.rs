//! How far the clocks of the two ends are apart, found over the control connection as NTP finds it (RFC 5905, 8): the
//! server's reading is taken to have been made half way between the client's question and the answer. The shortest of
//! many round trips had the least in its way, and half of it is how far that may be off.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Control;
use crate::error::{Error, Result, Step};

/// Questions asked. They take a few milliseconds over a network of one host or rack.
const QUESTIONS: u32 = 32;

/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(15);

/// The server's clock against the client's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offset {
    /// What the server's clock shows less what the client's shows at the same moment, in ns.
    pub ns: i64,
    /// The truth is within this of it, in ns, however the way there and the way back differ.
    pub uncertainty_ns: u64,
}

/// Client: what does your clock show?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Question {
    /// Questions that follow this one.
    left: u32,
}

/// Server: this, in ns since an epoch of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Reading {
    ns: u64,
}

/// One question and its answer, in ns of the clock that was read.
#[derive(Debug, Clone, Copy)]
struct Trip {
    sent: u64,
    answered: u64,
    received: u64,
}

impl Trip {
    fn took(self) -> u64 {
        self.received.saturating_sub(self.sent)
    }
}

impl Offset {
    /// From the shortest trip; `None` without any.
    fn of(trips: impl IntoIterator<Item = Trip>) -> Option<Self> {
        let shortest = trips.into_iter().min_by_key(|trip| trip.took())?;
        let middle = i128::from(shortest.sent) + i128::from(shortest.took() / 2);
        let ns = i128::from(shortest.answered) - middle;
        Some(Self {
            ns: i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX }),
            uncertainty_ns: shortest.took().div_ceil(2),
        })
    }

    /// A moment of the server's clock as the client's would have shown it, in ns; 0 where that was before its epoch.
    pub fn to_client(self, server_ns: u64) -> u64 {
        let ns = i128::from(server_ns) - i128::from(self.ns);
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

/// Finds the offset of the server's clock, at the client: the server is in [`answer_offset`] meanwhile. `now` reads the
/// clock in ns since any epoch.
///
/// # Errors
/// The peer's error, or that it does not answer.
pub fn measure_offset(control: &mut Control, now: impl Fn() -> u64) -> Result<Offset> {
    let mut trips = Vec::with_capacity(QUESTIONS as usize);
    for left in (0..QUESTIONS).rev() {
        let sent = now();
        control.send(&Question { left })?;
        let Reading { ns: answered } = control.recv("the reading of the server's clock", ANSWER)?;
        trips.push(Trip { sent, answered, received: now() });
    }
    Offset::of(trips).ok_or_else(|| Error::failed(Step::Exchange, "no question about the clock was asked"))
}

/// Answers the client's [`measure_offset`] until it has asked its last question. `now` reads the clock in ns since any
/// epoch.
///
/// # Errors
/// The peer's error, or that it does not ask.
pub fn answer_offset(control: &mut Control, now: impl Fn() -> u64) -> Result<()> {
    loop {
        let Question { left } = control.recv("a question about the clock", ANSWER)?;
        control.send(&Reading { ns: now() })?;
        if left == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_truth_is_within_the_uncertainty_however_lopsided_the_ways(
            offset in -1_000_000_000_000i64..1_000_000_000_000,
            ways in proptest::collection::vec((0u64..10_000_000, 0u64..10_000_000), 1..50),
        ) {
            let mut at = 2_000_000_000_000u64;
            let trips: Vec<Trip> = ways.iter().map(|&(there, back)| {
                let sent = at;
                let answered = (sent + there).checked_add_signed(offset).unwrap();
                at += there + back + 5;
                Trip { sent, answered, received: sent + there + back }
            }).collect();
            let found = Offset::of(trips).unwrap();
            prop_assert!(found.ns.abs_diff(offset) <= found.uncertainty_ns, "{:?}", found);
            let shortest = ways.iter().map(|(there, back)| there + back).min().unwrap();
            prop_assert_eq!(found.uncertainty_ns, shortest.div_ceil(2));
        }
    }

    #[test]
    fn equal_ways_give_the_offset_exactly() {
        let trip = |sent, way: u64| Trip { sent, answered: sent + way + 7_000, received: sent + 2 * way };
        let found = Offset::of([trip(100, 900), trip(3_000, 40), trip(9_000, 500)]).unwrap();
        assert_eq!(found, Offset { ns: 7_000, uncertainty_ns: 40 });
        assert_eq!(found.to_client(10_000), 3_000);
        assert_eq!(found.to_client(6_999), 0);
        assert_eq!(Offset::of([]), None);
    }

    #[test]
    fn clocks_that_disagree_beyond_all_measure_do_not_overflow() {
        let trip = Trip { sent: u64::MAX, answered: 0, received: 0 };
        assert_eq!(Offset::of([trip]).unwrap().ns, i64::MIN);
        let trip = Trip { sent: 0, answered: u64::MAX, received: 1 };
        assert_eq!(Offset::of([trip]).unwrap().ns, i64::MAX);
    }

    #[test]
    fn two_ends_find_how_their_clocks_differ() {
        const AHEAD: u64 = 5_000_000_000;
        let (mut client, mut server) = Control::pair().unwrap();
        let epoch = Instant::now();
        let ns = move || epoch.elapsed().as_nanos() as u64;
        std::thread::scope(|scope| {
            let answering = scope.spawn(move || answer_offset(&mut server, || ns() + AHEAD));
            let found = measure_offset(&mut client, ns).unwrap();
            answering.join().unwrap().unwrap();
            assert!(found.ns.abs_diff(AHEAD as i64) <= found.uncertainty_ns, "{found:?}");
        });
    }

    #[test]
    fn a_peer_that_has_gone_is_an_error() {
        let (mut client, server) = Control::pair().unwrap();
        drop(server);
        assert!(measure_offset(&mut client, || 0).is_err());
        let (client, mut server) = Control::pair().unwrap();
        drop(client);
        assert!(answer_offset(&mut server, || 0).is_err());
    }
}
