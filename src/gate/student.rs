//! Student's t, whose spread is itself an estimate from few values.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};

/// The t that |T| does not exceed with probability `confidence`, for 1 or more degrees of freedom.
pub fn quantile(confidence: f64, freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    // Each step halves an angle: far below what a double of t can tell.
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if within(middle, freedom) < confidence {
            low = middle;
        } else {
            high = middle;
        }
    }
    (freedom as f64).sqrt() * low.tan()
}

/// The probability that |T| is below sqrt(freedom) * tan(angle): Abramowitz and Stegun, 26.7.3 and 26.7.4.
fn within(angle: f64, freedom: usize) -> f64 {
    let (sine, cosine) = angle.sin_cos();
    let odd = freedom % 2 == 1;
    // The series begins with cos for an odd number, with 1 for an even one, and each term has cos^2 more.
    let mut term = if odd { cosine } else { 1.0 };
    let mut sum = 0.0;
    for k in (2 + usize::from(odd)..=freedom).step_by(2) {
        sum += term;
        term *= cosine * cosine * (k - 1) as f64 / k as f64;
    }
    if odd { FRAC_2_PI * (angle + sine * sum) } else { sine * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (confidence, freedom, table) in [
            (0.95, 1, 12.706),
            (0.95, 2, 4.303),
            (0.95, 3, 3.182),
            (0.99, 4, 4.604),
            (0.99, 7, 3.499),
            (0.99, 9, 3.250),
            (0.99, 30, 2.750),
            (0.9, 120, 1.658),
            (0.99, 1000, 2.581),
        ] {
            let found = quantile(confidence, freedom);
            assert!((found - table).abs() < 6e-4, "{confidence} {freedom}: {found}");
        }
    }
}
