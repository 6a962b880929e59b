//! Durations with a least value.

use std::time::Duration;

use crate::units::parse_duration;

pub(super) fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration.is_zero() { Err("must be longer than zero".into()) } else { Ok(duration) }
}

/// Shortest time after which a message counts as lost: a loop looks at the clock every 40 us or so while it waits.
pub const SHORTEST_LOSS_TIMEOUT: Duration = Duration::from_micros(100);

pub(super) fn parse_loss_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        duration if duration < SHORTEST_LOSS_TIMEOUT => {
            Err(format!("a loop that waits cannot tell less than {} us", SHORTEST_LOSS_TIMEOUT.as_micros()))
        }
        duration => Ok(duration),
    }
}
