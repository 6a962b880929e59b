//! What tells one run from another: a random id and the time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// 128 random bits as 32 hexadecimal digits.
pub fn run_id() -> String {
    let mut bits = [0; 16];
    if getrandom::fill(&mut bits).is_err() {
        // No entropy source at all, as in a bare sandbox: time and process still differ from the run before.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        bits = (now.as_nanos() << 32 | u128::from(std::process::id())).to_be_bytes();
    }
    format!("{:032x}", u128::from_be_bytes(bits))
}

/// A time as RFC 3339 in UTC with milliseconds: `2026-11-29T16:45:42.123Z`.
pub fn timestamp(time: SystemTime) -> String {
    // Year 9999 is the last that the format can write; a clock set beyond either end is clipped, not a panic.
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().min(LAST);
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc() {
        for (seconds, millis, text) in [
            (0, 0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, 7, "2000-02-29T00:00:00.007Z"),
            (1_709_164_799, 999, "2024-02-28T23:59:59.999Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + millis)), text);
        }
    }

    #[test]
    fn a_clock_that_is_wrong_is_clipped() {
        assert_eq!(timestamp(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
        let far = UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(timestamp(far), "9999-12-31T23:59:59.000Z");
    }

    #[test]
    fn run_ids_are_32_digits_and_differ() {
        let (one, other) = (run_id(), run_id());
        assert_eq!(one.len(), 32);
        assert!(one.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(one, other);
    }
}
