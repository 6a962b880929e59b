//! Numbers in a table: at least three significant digits at any magnitude, never wider than their column.

use crate::units::format_count;

/// What stands for a value that could not be had.
pub const NONE: &str = "-";

/// A measured value in at most `width` characters, `width` being at least 7.
pub fn significant(value: Option<f64>, width: usize) -> String {
    let Some(value) = value.filter(|v| v.is_finite()) else {
        return NONE.into();
    };
    // Each bound is where the digits below it would round up to the next line.
    let text = match value.abs() {
        0.0 => "0".into(),
        v if v < 0.001 => return exponent(value, width),
        v if v < 0.009_999_5 => format!("{value:.5}"),
        v if v < 0.099_995 => format!("{value:.4}"),
        v if v < 0.999_5 => format!("{value:.3}"),
        v if v < 99.995 => format!("{value:.2}"),
        v if v < 999.95 => format!("{value:.1}"),
        v if v < 1e15 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", format_count(v.round() as u64))
        }
        _ => return exponent(value, width),
    };
    if text.len() <= width { text } else { exponent(value, width) }
}

/// A whole number in at most `width` characters.
pub fn count(value: Option<u64>, width: usize) -> String {
    let Some(value) = value else {
        return NONE.into();
    };
    let text = format_count(value);
    if text.len() <= width { text } else { exponent(value as f64, width) }
}

/// A ratio in at most seven characters: two decimals while they say something.
pub fn ratio(value: Option<f64>) -> String {
    match value {
        Some(v) if (0.1..9.995).contains(&v) => format!("{v:.2}"),
        Some(v) if (9.995..999.95).contains(&v) => format!("{v:.1}"),
        _ => significant(value, 7),
    }
}

/// Seconds with their unit, in at most `width` characters.
pub fn seconds(value: Option<f64>, width: usize) -> String {
    match value {
        Some(s) if (1e-6..1e-3).contains(&s) => format!("{} us", significant(Some(s * 1e6), width - 3)),
        Some(s) if (1e-3..1.0).contains(&s) => format!("{} ms", significant(Some(s * 1e3), width - 3)),
        Some(s) if s.is_finite() => format!("{} s", significant(value, width - 2)),
        _ => NONE.into(),
    }
}

/// As many digits of the mantissa as fit.
fn exponent(value: f64, width: usize) -> String {
    (0..=3)
        .rev()
        .map(|digits| format!("{value:.digits$e}"))
        .find(|text| text.len() <= width)
        .unwrap_or_else(|| NONE.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn three_digits_at_every_magnitude() {
        for (value, text) in [
            (0.0, "0"),
            (0.000_012_3, "1.230e-5"),
            (0.001_5, "0.00150"),
            (0.012, "0.0120"),
            (0.405, "0.405"),
            (0.999_9, "1.00"),
            (5.614, "5.61"),
            (63.0, "63.00"),
            (123.44, "123.4"),
            (999.96, "1,000"),
            (12_345.6, "12,346"),
            (1_234_567.0, "1,234,567"),
            (123_456_789.0, "1.235e8"),
        ] {
            assert_eq!(significant(Some(value), 9), text);
        }
        assert_eq!(significant(Some(1_234_567.0), 7), "1.235e6");
        assert_eq!(significant(None, 9), "-");
        assert_eq!(count(Some(u64::MAX), 11), "1.845e19");
        assert_eq!(seconds(Some(1.0), 8), "1.00 s");
        assert_eq!(ratio(Some(8.51)), "8.51");
        assert_eq!(ratio(Some(10.06)), "10.1");
    }

    proptest! {
        #[test]
        fn nothing_is_wider_than_its_column(value in proptest::num::f64::ANY, width in 7_usize..12) {
            for text in [significant(Some(value.abs()), width), ratio(Some(value.abs()))] {
                prop_assert!(text.len() <= width, "{value}: {text}");
            }
            prop_assert!(seconds(Some(value.abs()), width + 2).len() <= width + 2);
            prop_assert!(count(Some(value.abs() as u64), width).len() <= width);
        }

        #[test]
        fn what_is_printed_is_within_half_a_percent(value in 1e-6..1e12_f64) {
            let printed: f64 = significant(Some(value), 9).replace(',', "").parse().unwrap();
            prop_assert!((printed / value - 1.0).abs() <= 0.005_001, "{value}: {printed}");
        }
    }
}
