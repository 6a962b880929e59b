//! How far the clocks of the two ends are apart, from small messages over the control connection.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Control;
use crate::error::Result;

/// The server's clock less the client's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offset {
    /// In ns, each clock counting from its own start.
    pub ns: i64,
    /// It may be off by as much, either way: half of the shortest round trip, since the answer may have left at any
    /// moment within it.
    pub uncertainty_ns: u64,
}

/// Client: what time is it?
#[derive(Debug, Serialize, Deserialize)]
struct Ask {}

/// Server: this, in ns since its start.
#[derive(Debug, Serialize, Deserialize)]
struct Time {
    at_ns: u64,
}

/// Round trips. The shortest counts: it waited least.
const ROUND_TRIPS: usize = 16;

/// Longest wait for one.
const ANSWER: Duration = Duration::from_secs(15);

/// Asks the server, which answers by [`answer_offset`] at the same place. `now_ns` reads this end's clock.
///
/// # Errors
/// The peer's error, or that it does not answer.
pub fn measure_offset(control: &mut Control, now_ns: impl Fn() -> u64) -> Result<Offset> {
    let mut best = Offset { ns: 0, uncertainty_ns: u64::MAX };
    for _ in 0..ROUND_TRIPS {
        let asked = now_ns();
        control.send(&Ask {})?;
        let Time { at_ns } = control.recv("the time at the server", ANSWER)?;
        let answered = now_ns();
        let offset = between(asked, at_ns, answered);
        if offset.uncertainty_ns < best.uncertainty_ns {
            best = offset;
        }
    }
    Ok(best)
}

/// Answers [`measure_offset`].
///
/// # Errors
/// The peer's error, or that it does not ask.
pub fn answer_offset(control: &mut Control, now_ns: impl Fn() -> u64) -> Result<()> {
    for _ in 0..ROUND_TRIPS {
        let Ask {} = control.recv("the client's question for the time", ANSWER)?;
        control.send(&Time { at_ns: now_ns() })?;
    }
    Ok(())
}

/// The offset if the answer was given half way between, and how far it may have been from there.
fn between(asked: u64, at: u64, answered: u64) -> Offset {
    let round_trip = answered.saturating_sub(asked);
    let middle = i128::from(asked) + i128::from(round_trip / 2);
    let ns = i128::from(at) - middle;
    Offset { ns: ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64, uncertainty_ns: round_trip.div_ceil(2) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_true_offset_is_within_the_uncertainty(
            asked in 0u64..1 << 40, there in 0u64..1 << 30, back in 0u64..1 << 30, offset in -(1i64 << 40)..1 << 40,
        ) {
            let at = (asked + there) as i64 + offset;
            prop_assume!(at >= 0);
            let found = between(asked, at as u64, asked + there + back);
            prop_assert!(found.ns.abs_diff(offset) <= found.uncertainty_ns, "{found:?}");
        }
    }

    #[test]
    fn a_time_from_the_network_may_be_anything() {
        assert_eq!(between(5, u64::MAX, 9).ns, i64::MAX);
        assert_eq!(between(u64::MAX, 0, 0), Offset { ns: i64::MIN, uncertainty_ns: 0 });
    }

    #[test]
    fn two_ends_agree_over_a_connection() {
        let (mut client, mut server) = Control::pair().unwrap();
        let start = std::time::Instant::now();
        let ahead = 1_000_000_000;
        let now = move || start.elapsed().as_nanos() as u64;
        std::thread::scope(|scope| {
            let answers = scope.spawn(|| answer_offset(&mut server, move || now() + ahead));
            let offset = measure_offset(&mut client, now).unwrap();
            answers.join().unwrap().unwrap();
            assert!(offset.ns.abs_diff(ahead as i64) <= offset.uncertainty_ns, "{offset:?}");
        });
    }
}
