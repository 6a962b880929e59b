//! What held the rate of a bandwidth test where it was, from what both ends counted anyway.
//!
//! A core that never waits in vain is the limit: more could not be done there. A core that often does was waiting for
//! something else. What lies between the two thresholds decides nothing, and what was not counted is not guessed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An end that idles no more than this share of its time is held to be always at work.
const ALWAYS_AT_WORK: f64 = 0.10;

/// An end that idles at least this share of its time has room to spare.
const ROOM_TO_SPARE: f64 = 0.25;

/// A rate within this share of the one asked for was kept.
const RATE_KEPT: f64 = 0.98;

/// Messages that found no receive, as a share of all, from which on waiting for receives shows in the rate: each such
/// wait takes as long as hundreds of messages (0.64 ms by default).
const NOT_POSTED: f64 = 0.001;

/// In a shorter window beginning and end weigh more than what lies between.
const SHORTEST_WINDOW: Duration = Duration::from_millis(10);

/// What held a rate where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitedBy {
    /// The core of the end that posts.
    SenderCore,
    /// What lies between the ends' cores: devices, the link, latency that the messages outstanding do not cover.
    Path,
    /// The core of the other end.
    ReceiverCore,
    /// Receives that were not there when messages came, though the other end's core had time.
    ReceiverNotPosting,
    /// The rate that was asked for.
    Rate,
    /// The counts do not tell.
    Unclear,
}

impl LimitedBy {
    /// The word of the document.
    pub fn name(self) -> &'static str {
        match self {
            Self::SenderCore => "sender_core",
            Self::Path => "path",
            Self::ReceiverCore => "receiver_core",
            Self::ReceiverNotPosting => "receiver_not_posting",
            Self::Rate => "rate",
            Self::Unclear => "unclear",
        }
    }
}

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Evidence {
    /// Share of its time that the posting end waited in vain, 0 to 1.
    pub client_idle: Option<f64>,
    /// The same of the other end.
    pub server_idle: Option<f64>,
    /// The other end's core takes part: it takes messages, or reads a socket.
    pub server_takes_part: bool,
    /// Messages that found no receive, where that is counted.
    pub not_ready: Option<u64>,
    /// Messages of the phase.
    pub messages: u64,
    /// Length of the window.
    pub window: Duration,
    /// Rate asked for in messages a second; `None` for as fast as possible.
    pub offered_per_s: Option<f64>,
    /// Rate reached.
    pub achieved_per_s: Option<f64>,
}

/// The verdict; `None` where what it would rest on was not counted.
pub fn limited_by(evidence: &Evidence) -> Option<LimitedBy> {
    if let (Some(offered), Some(achieved)) = (evidence.offered_per_s, evidence.achieved_per_s)
        && achieved >= RATE_KEPT * offered
    {
        return Some(LimitedBy::Rate);
    }
    let client = evidence.client_idle?;
    if evidence.window < SHORTEST_WINDOW {
        return Some(LimitedBy::Unclear);
    }
    if !evidence.server_takes_part {
        return Some(match client {
            idle if idle <= ALWAYS_AT_WORK => LimitedBy::SenderCore,
            idle if idle >= ROOM_TO_SPARE => LimitedBy::Path,
            _ => LimitedBy::Unclear,
        });
    }
    let server = evidence.server_idle?;
    let share = |count: u64| count as f64 / evidence.messages.max(1) as f64;
    let lacks_receives = evidence.not_ready.is_some_and(|count| share(count) >= NOT_POSTED);
    Some(match (client <= ALWAYS_AT_WORK, server <= ALWAYS_AT_WORK) {
        // Both at once: the one that had less time left.
        (true, true) if client < server => LimitedBy::SenderCore,
        (true, true) if server < client => LimitedBy::ReceiverCore,
        (true, true) => LimitedBy::Unclear,
        (true, false) => LimitedBy::SenderCore,
        (false, true) if client >= ROOM_TO_SPARE => LimitedBy::ReceiverCore,
        (false, false) if client >= ROOM_TO_SPARE && server >= ROOM_TO_SPARE => {
            if lacks_receives {
                LimitedBy::ReceiverNotPosting
            } else {
                LimitedBy::Path
            }
        }
        _ => LimitedBy::Unclear,
    })
}

/// Share of its time on a core that a polling thread polled in vain: what its empty polls cost, over the time it was
/// given. Time that others took its core is in neither. `None` where it had none.
pub fn idle_of_polling(empty_polls: u64, poll_ns: f64, on_core: Duration) -> Option<f64> {
    let share = empty_polls as f64 * poll_ns / on_core.as_nanos() as f64;
    share.is_finite().then_some(share.clamp(0.0, 1.0))
}

/// Share of its time that a thread which sleeps while nothing comes was off its core. `None` where no time has passed.
pub fn idle_of_sleeping(on_core: Duration, passed: Duration) -> Option<f64> {
    let share = 1.0 - on_core.as_secs_f64() / passed.as_secs_f64();
    share.is_finite().then_some(share.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    /// Nothing is lacking.
    const FULL: Evidence = Evidence {
        client_idle: Some(0.0),
        server_idle: Some(0.0),
        server_takes_part: true,
        not_ready: Some(0),
        messages: 1_000_000,
        window: Duration::from_secs(1),
        offered_per_s: None,
        achieved_per_s: Some(1e6),
    };

    fn verdict(client: f64, server: f64, not_ready: u64) -> LimitedBy {
        let (client_idle, server_idle) = (Some(client), Some(server));
        let evidence = Evidence { client_idle, server_idle, not_ready: Some(not_ready), ..FULL };
        limited_by(&evidence).unwrap()
    }

    #[test]
    fn who_never_waits_is_the_limit_and_where_all_wait_it_is_the_path() {
        for (client, server, not_ready, expected) in [
            (0.0, 0.9, 0, LimitedBy::SenderCore),
            (0.0, 0.9, 500_000, LimitedBy::SenderCore),
            (0.8, 0.02, 0, LimitedBy::ReceiverCore),
            (0.8, 0.02, 500_000, LimitedBy::ReceiverCore),
            (0.8, 0.9, 0, LimitedBy::Path),
            (0.8, 0.9, 999, LimitedBy::Path),
            (0.8, 0.9, 1_000, LimitedBy::ReceiverNotPosting),
            (0.8, 0.15, 0, LimitedBy::Unclear),
            (0.15, 0.9, 0, LimitedBy::Unclear),
            (0.02, 0.01, 0, LimitedBy::ReceiverCore),
            (0.01, 0.02, 0, LimitedBy::SenderCore),
            (0.0, 0.0, 0, LimitedBy::Unclear),
        ] {
            assert_eq!(verdict(client, server, not_ready), expected, "{client} {server} {not_ready}");
        }
    }

    #[test]
    fn a_rate_that_was_kept_was_the_limit() {
        let evidence = Evidence { offered_per_s: Some(1e6), ..FULL };
        assert_eq!(limited_by(&evidence), Some(LimitedBy::Rate));
        let evidence = Evidence { achieved_per_s: Some(0.9e6), ..evidence };
        assert_eq!(limited_by(&evidence), Some(LimitedBy::Unclear));
    }

    #[test]
    fn a_passive_end_is_not_asked() {
        let evidence = Evidence { server_idle: None, server_takes_part: false, ..FULL };
        let of = |client| limited_by(&Evidence { client_idle: Some(client), ..evidence });
        assert_eq!(of(0.05), Some(LimitedBy::SenderCore));
        assert_eq!(of(0.2), Some(LimitedBy::Unclear));
        assert_eq!(of(0.5), Some(LimitedBy::Path));
    }

    #[test]
    fn a_moment_tells_nothing() {
        let evidence = Evidence { window: Duration::from_millis(9), server_idle: Some(0.9), ..FULL };
        assert_eq!(limited_by(&evidence), Some(LimitedBy::Unclear));
    }

    #[test]
    fn shares_are_shares() {
        let second = Duration::from_secs(1);
        assert_eq!(idle_of_polling(1_000, 1_000.0, second), Some(0.001));
        assert_eq!(idle_of_polling(u64::MAX, 1e9, second), Some(1.0));
        assert_eq!(idle_of_polling(0, 1.0, Duration::ZERO), None);
        assert_eq!(idle_of_sleeping(second / 4, second), Some(0.75));
        assert_eq!(idle_of_sleeping(2 * second, second), Some(0.0));
        assert_eq!(idle_of_sleeping(Duration::ZERO, Duration::ZERO), None);
    }

    fn evidence() -> impl Strategy<Value = Evidence> {
        (
            (option::of(0.0..=1.0f64), option::of(0.0..=1.0f64), any::<bool>(), option::of(0..10_000_000u64)),
            (0..10_000_000u64, 0..1_000u64, option::of(0.0..1e9f64), option::of(0.0..1e9f64)),
        )
            .prop_map(|((client_idle, server_idle, server_takes_part, not_ready), rest)| {
                let (messages, ms, offered_per_s, achieved_per_s) = rest;
                Evidence {
                    client_idle,
                    server_idle,
                    server_takes_part,
                    not_ready,
                    messages,
                    window: Duration::from_millis(ms),
                    offered_per_s,
                    achieved_per_s,
                }
            })
    }

    proptest! {
        #[test]
        fn no_verdict_rests_on_what_was_not_counted(evidence in evidence()) {
            match limited_by(&evidence) {
                None => prop_assert!(
                    evidence.client_idle.is_none() || evidence.server_takes_part && evidence.server_idle.is_none()
                ),
                Some(LimitedBy::Rate) => {
                    prop_assert!(evidence.achieved_per_s.unwrap() >= 0.98 * evidence.offered_per_s.unwrap());
                }
                Some(LimitedBy::SenderCore) => prop_assert!(evidence.client_idle.unwrap() <= ALWAYS_AT_WORK),
                Some(LimitedBy::ReceiverCore) => {
                    prop_assert!(evidence.server_takes_part && evidence.server_idle.unwrap() <= ALWAYS_AT_WORK);
                }
                Some(LimitedBy::ReceiverNotPosting) => prop_assert!(evidence.not_ready.unwrap() > 0),
                Some(LimitedBy::Path) => prop_assert!(evidence.client_idle.unwrap() >= ROOM_TO_SPARE),
                Some(LimitedBy::Unclear) => prop_assert!(evidence.client_idle.is_some()),
            }
        }

        #[test]
        fn an_end_that_idles_less_is_never_acquitted_by_it(evidence in evidence(), less in 0.0..=1.0f64) {
            let Some(idle) = evidence.client_idle else { return Ok(()) };
            let busier = Evidence { client_idle: Some(idle * less), ..evidence };
            if limited_by(&evidence) == Some(LimitedBy::SenderCore) {
                prop_assert_eq!(limited_by(&busier), Some(LimitedBy::SenderCore));
            }
        }
    }
}
