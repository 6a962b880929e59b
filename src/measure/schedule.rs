//! When the messages of an open loop are due.

use serde::{Deserialize, Serialize};

/// How the messages of an open loop follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Each one mean gap after the one before.
    #[default]
    Constant,
    /// Gaps of an exponential distribution, as of many independent senders.
    Poisson,
}

/// A rate to be kept, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Messages a second, more than 0.
    pub rate_per_s: f64,
    /// Gaps between them.
    pub arrivals: Arrivals,
    /// What random gaps are drawn from: equal seeds give equal schedules.
    pub seed: u64,
}

/// Fractions of a tick that times are kept in. They add up exactly, so that the last message of a day is due when its
/// number says.
const FRACTION: u32 = 32;

/// Moments drawn ahead at most.
const AHEAD: usize = 256;

/// The due times of an open loop, in ticks since its start. The first message is due a gap after that.
#[derive(Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    /// Mean gap in ticks, and the same in fractions.
    mean: f64,
    gap: u128,
    /// When the last one drawn is due, in fractions of a tick.
    drawn: u128,
    random: SplitMix64,
    ahead: Box<[u64; AHEAD]>,
    /// Numbers of the next moment to give and of the next to draw.
    given: usize,
    made: usize,
}

impl Schedule {
    /// A schedule on a clock of `hz` ticks a second. Moments are drawn 256 at a time.
    pub fn new(pace: &Pace, hz: f64) -> Self {
        let mean = hz / pace.rate_per_s;
        let mut schedule = Self {
            arrivals: pace.arrivals,
            mean,
            gap: fractions(mean),
            drawn: 0,
            random: SplitMix64(pace.seed),
            ahead: Box::new([0; AHEAD]),
            given: 0,
            made: 0,
        };
        while schedule.draw_ahead() {}
        schedule
    }

    /// The mean gap, in ticks.
    pub fn mean_gap(&self) -> u64 {
        self.mean as u64
    }

    /// When the next message is due.
    #[inline]
    pub fn next_due(&mut self) -> u64 {
        if self.given == self.made {
            self.draw();
        }
        let due = self.ahead[self.given % AHEAD];
        self.given += 1;
        due
    }

    /// Draws one more moment if there is room for it. A loop does this while it has nothing else to do.
    #[inline]
    pub fn draw_ahead(&mut self) -> bool {
        let has_room = self.made - self.given < AHEAD;
        if has_room {
            self.draw();
        }
        has_room
    }

    fn draw(&mut self) {
        self.drawn += match self.arrivals {
            Arrivals::Constant => self.gap,
            // The inverse of the distribution function, of a number in 0..1 that is never 0.
            Arrivals::Poisson => fractions(-self.mean * self.random.unit().ln()),
        };
        self.ahead[self.made % AHEAD] = u64::try_from(self.drawn >> FRACTION).unwrap_or(u64::MAX);
        self.made += 1;
    }
}

fn fractions(ticks: f64) -> u128 {
    (ticks * (1u64 << FRACTION) as f64).round() as u128
}

/// Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014.
#[derive(Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform over the multiples of 2^-53 in (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schedule(rate_per_s: f64, arrivals: Arrivals, seed: u64, hz: f64) -> Schedule {
        Schedule::new(&Pace { rate_per_s, arrivals, seed }, hz)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_constant_schedule_does_not_drift(rate in 0.5..1e8_f64, hz in 1e9..5e9_f64) {
            let mut schedule = schedule(rate, Arrivals::Constant, 0, hz);
            for number in 1..=20_000u64 {
                let due = schedule.next_due();
                let exact = (number as f64 * (hz / rate)) as u128;
                // What double precision leaves of twenty thousand gaps.
                prop_assert!(u128::from(due).abs_diff(exact) <= 2, "message {number}: {due}, not {exact}");
                if number % 3 == 0 {
                    schedule.draw_ahead();
                }
            }
        }

        #[test]
        fn a_poisson_schedule_has_the_mean_and_the_spread_of_its_rate(seed: u64) {
            const COUNT: usize = 100_000;
            let mut schedule = schedule(1e6, Arrivals::Poisson, seed, 1e9);
            let (mut last, mut sum_of_squares) = (0, 0.0);
            for _ in 0..COUNT {
                let due = schedule.next_due();
                prop_assert!(due >= last);
                sum_of_squares += ((due - last) as f64 / 1000.0).powi(2);
                last = due;
            }
            // Six standard deviations of either estimate.
            let mean = last as f64 / 1000.0 / COUNT as f64;
            prop_assert!((mean - 1.0).abs() < 6.0 / (COUNT as f64).sqrt(), "{mean}");
            let second = sum_of_squares / COUNT as f64;
            prop_assert!((second - 2.0).abs() < 6.0 * (20.0 / COUNT as f64).sqrt(), "{second}");
        }

        #[test]
        fn drawing_ahead_changes_no_moment(seed: u64, pattern: u64) {
            let [mut plain, mut ahead] = [0; 2].map(|_| schedule(1e6, Arrivals::Poisson, seed, 1e9));
            for i in 0..2000 {
                if pattern >> (i % 64) & 1 == 1 {
                    ahead.draw_ahead();
                }
                prop_assert_eq!(plain.next_due(), ahead.next_due());
            }
        }
    }

    #[test]
    fn a_month_of_messages_ends_when_its_number_says() {
        // 1.5 million a second for 31 days on a clock of 2.1 GHz: gaps of exactly 1400 ticks.
        let mut schedule = schedule(1.5e6, Arrivals::Constant, 0, 2.1e9);
        let messages = 1_500_000u128 * 31 * 24 * 3600;
        schedule.drawn += schedule.gap * (messages - AHEAD as u128);
        (0..AHEAD).for_each(|_| _ = schedule.next_due());
        assert_eq!(u128::from(schedule.next_due()), (messages + 1) * 1400);
    }
}
