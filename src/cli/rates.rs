//! Rates of open loops, and shares of a capacity.

use std::str::FromStr;

use clap::Args;

use crate::units::parse_rate;

/// How many messages a latency test keeps under way, and when those of any test are sent.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Messages outstanding in a latency test, each measured from its post to its end [default: 1; with --rate -t or -r]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub depth: Option<u32>,

    /// Send N messages a second, each when it is due (1000, 10k, 1.5M); latency counts from then
    #[arg(long, value_name = "N", value_parser = parse_offered_rate)]
    pub rate: Option<f64>,

    /// Rate of a closed loop first, then open loops at shares of it: 10%..95%, 10%..95%/5 points, or 10%,50%,90%
    #[arg(long, value_name = "SHARES", conflicts_with = "rate")]
    pub rate_sweep: Option<Shares>,

    /// How messages of a rate follow each other: one mean gap apart, or at random as from many senders
    #[arg(long, value_name = "HOW", value_parser = ["constant", "poisson"])]
    pub arrivals: Option<String>,
}

/// Highest rate in messages a second: more than any clock could tell apart.
pub const MOST_RATE: f64 = 1e9;

/// Most points of a sweep.
pub const MOST_SHARES: usize = 100;

/// Points of a range that does not say how many.
const POINTS: usize = 9;

/// Shares of a capacity in the order to be measured, each more than 0 and at most 2.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares(pub Vec<f64>);

/// Within what can be measured: beyond the capacity to show what happens there, but not far.
pub fn is_share(share: f64) -> bool {
    (0.001..=2.0).contains(&share)
}

impl FromStr for Shares {
    type Err = String;

    /// `50%`, `10%,50%,90%`, `10%..95%` for nine points evenly apart, or `10%..95%/5`.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some((from, to)) = text.split_once("..") else {
            let shares = text.split(',').map(percent).collect::<Result<Vec<_>, _>>()?;
            return if shares.len() <= MOST_SHARES { Ok(Self(shares)) } else { Err(too_many(shares.len())) };
        };
        let (to, points) = match to.split_once('/') {
            None => (to, POINTS),
            Some((to, points)) => {
                let points: usize =
                    points.parse().map_err(|_| format!("'{points}' is not a number of points"))?;
                (to, points)
            }
        };
        let (from, to) = (percent(from)?, percent(to)?);
        if from >= to {
            return Err(format!("'{text}' goes down or stands still: begin with the smaller share"));
        }
        if points < 2 {
            return Err(format!("'{text}' has two ends, so at least 2 points"));
        }
        if points > MOST_SHARES {
            return Err(too_many(points));
        }
        let step = (to - from) / (points - 1) as f64;
        // Rounded to what was typed, so that a share is 0.55 and not 0.5500000000000002.
        Ok(Self((0..points).map(|i| ((from + step * i as f64) * 1e5).round() / 1e5).collect()))
    }
}

fn too_many(points: usize) -> String {
    format!("{points} points; at most {MOST_SHARES} are possible")
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|digits| digits.parse::<f64>().ok());
    match number.map(|number| number / 100.0) {
        Some(share) if is_share(share) => Ok(share),
        Some(_) => Err(format!("'{text}' is outside 0.1% to 200%")),
        None => Err(format!("'{text}' is not a share: write percent as in 50%")),
    }
}

/// A rate within what can be measured.
pub(super) fn parse_offered_rate(text: &str) -> Result<f64, String> {
    match parse_rate(text)? {
        rate if rate > 0.0 && rate <= MOST_RATE => Ok(rate),
        _ => Err(format!("'{text}' is outside what can be offered: more than 0, and at most 1000M a second")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_a_list_or_a_range() {
        for (text, shares) in [
            ("50%", &[0.5][..]),
            ("10%,50%,90%", &[0.1, 0.5, 0.9]),
            ("90%,10%", &[0.9, 0.1]),
            ("10%..90%", &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
            ("10%..95%/2", &[0.1, 0.95]),
            ("99.5%..120%/3", &[0.995, 1.0975, 1.2]),
        ] {
            assert_eq!(text.parse(), Ok(Shares(shares.to_vec())), "{text}");
        }
        for text in [
            "",
            "50",
            "0%",
            "201%",
            "10%..",
            "..90%",
            "90%..10%",
            "10%..90%/1",
            "10%..90%/x",
            "10%..90%/101",
            "10%,",
            "nan%",
            "-5%",
            "10%..50%..90%",
        ] {
            assert!(text.parse::<Shares>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_has_a_range() {
        assert_eq!(parse_offered_rate("1.5M"), Ok(1.5e6));
        for text in ["0", "1001M", "-1", "fast"] {
            assert!(parse_offered_rate(text).is_err(), "{text}");
        }
    }
}
