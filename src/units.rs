//! Sizes, durations, rates and counts: read from the command line, written in tables. One place for both, so that what is
//! printed can be typed again.

use std::time::Duration;

/// `1 test`, `2 tests`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Parses a size in bytes: `64`, `64k`, `64K`, `64KiB`, `1M`, `1G`. Prefixes are binary.
///
/// # Errors
/// A text that says what was read and what would have been understood.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, suffix) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match suffix {
        "" | "B" => 0,
        "k" | "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => {
            return Err(format!(
                "'{text}' is not a size: write bytes, or a binary prefix as in 64k, 64KiB, 1M, 1G"
            ));
        }
    };
    let number: u64 = digits.parse().map_err(|_| {
        if digits.is_empty() {
            format!("'{text}' is not a size: no digits")
        } else {
            format!("'{text}' is too large")
        }
    })?;
    if digits.len() > 1 && digits.starts_with('0') {
        return Err(format!("'{text}' has a leading zero; sizes are decimal"));
    }
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is too large"))
}

/// Parses a duration: `2`, `0.5`, `2s`, `500ms`, `100us`, `1m`. A bare number is seconds.
///
/// # Errors
/// A text that says what was read and what would have been understood.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let scale = match suffix {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("'{text}' is not a duration: write seconds, or 500ms, 100us, 2m")),
    };
    let value: f64 = number.parse().map_err(|_| format!("'{text}' is not a duration: no number"))?;
    let seconds = value * scale;
    if !(0.0..=MONTH.as_secs_f64()).contains(&seconds) {
        return Err(format!("'{text}' is outside 0 to 31 days"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The longest duration any option takes.
const MONTH: Duration = Duration::from_secs(31 * 24 * 3600);

/// Parses a rate: `1000`, `10k`, `1.5M`. Prefixes are decimal.
///
/// # Errors
/// A text that says what was read and what would have been understood.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let scale = match suffix {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        _ => {
            return Err(format!(
                "'{text}' is not a rate: write a number, or a decimal prefix as in 10k, 1.5M"
            ));
        }
    };
    number.parse().map(|value: f64| value * scale).map_err(|_| format!("'{text}' is not a rate: no number"))
}

/// A rate as a person would say it, with at least three digits: `1,000`, `33.3`.
pub fn format_rate(per_s: f64) -> String {
    if per_s >= 100.0 { format_count(per_s.round() as u64) } else { format!("{per_s:.3}") }
}

/// A size as the table shows it: `64 B`, `4 KiB`, `1 MiB`; never rounded.
pub fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// A whole number with thousands separated by commas.
pub fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A duration as a person would say it: `1.00 s`, `100 ms`, `20 us`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.0} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_never_guessed() {
        for (text, bytes) in [
            ("1", 1),
            ("64", 64),
            ("64k", 65536),
            ("64K", 65536),
            ("64KiB", 65536),
            ("1M", 1 << 20),
            ("1G", 1 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "k",
            "64kB",
            "64KB",
            "64 k",
            "-1",
            "1.5k",
            "0x10",
            "010",
            "99999999999999999999",
            "17179869184G",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_bare_duration_is_seconds() {
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1m"), Ok(Duration::from_secs(60)));
        for text in ["", "s", "2 s", "-1", "1e9", "nan", "inf", "2d", "99999999"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_decimal() {
        for (text, rate) in [("1", 1.0), ("0.5", 0.5), ("10k", 1e4), ("10K", 1e4), ("1.5M", 1.5e6)] {
            assert_eq!(parse_rate(text), Ok(rate), "{text}");
        }
        for text in ["", "k", "10 k", "-1", "1e6", "inf", "nan", "10G", "10/s", "1.2.3"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
        assert_eq!((format_rate(1e6).as_str(), format_rate(2.5).as_str()), ("1,000,000", "2.500"));
    }

    #[test]
    fn what_is_printed_is_not_rounded() {
        assert_eq!(format_size(64), "64 B");
        assert_eq!(format_size(65536), "64 KiB");
        assert_eq!(format_size(65537), "65537 B");
        assert_eq!(format_count(1234567), "1,234,567");
        assert_eq!(format_count(999), "999");
    }
}
