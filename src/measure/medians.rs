//! How sure a run can be of its median: the medians of its slices, and what their spread says.
//!
//! Samples that follow each other are alike, so that an interval computed as if they were independent is too narrow.
//! The medians of long slices are much less alike (batch means: Law and Kelton, Simulation Modeling and Analysis, 9.5).

/// Medians kept at most; beyond it neighbours are merged, so that a day takes no more memory than a second.
const MOST: usize = 512;

/// Slices that the interval is computed from.
const SLICES: usize = 32;

/// With fewer the spread is a guess.
const FEWEST: usize = 8;

/// The medians of equally long stretches of samples, in order.
#[derive(Debug, Clone)]
pub struct Medians {
    values: Vec<f64>,
    /// Blocks behind each value.
    blocks: u32,
    /// Blocks and sum of their medians that make no value yet.
    pending: (u32, f64),
}

impl Default for Medians {
    fn default() -> Self {
        Self { values: Vec::with_capacity(MOST), blocks: 1, pending: (0, 0.0) }
    }
}

impl Medians {
    /// Adds the median of a block. All blocks have the same number of samples. Allocates nothing.
    pub fn push(&mut self, median: f64) {
        self.pending = (self.pending.0 + 1, self.pending.1 + median);
        if self.pending.0 < self.blocks {
            return;
        }
        if self.values.len() == MOST {
            for i in 0..MOST / 2 {
                self.values[i] = (self.values[2 * i] + self.values[2 * i + 1]) / 2.0;
            }
            self.values.truncate(MOST / 2);
            self.blocks *= 2;
            // Half of a value now.
            return;
        }
        self.values.push(self.pending.1 / f64::from(self.blocks));
        self.pending = (0, 0.0);
    }

    /// Half the width of a 95 % interval around the median of all, by Student's t over at most 32 slices; `None` below
    /// eight.
    pub fn half_width(&self) -> Option<f64> {
        if self.values.len() < FEWEST {
            return None;
        }
        // What does not fill the last slice is left out.
        let each = self.values.len().div_ceil(SLICES);
        let slices: Vec<f64> =
            self.values.chunks_exact(each).map(|slice| slice.iter().sum::<f64>() / each as f64).collect();
        let count = slices.len() as f64;
        let mean = slices.iter().sum::<f64>() / count;
        let variance = slices.iter().map(|slice| (slice - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Some(student(count - 1.0) * (variance / count).sqrt())
    }
}

/// The 97.5th percentile of Student's t, within 0.5 % from 7 degrees of freedom on (Abramowitz and Stegun, 26.7.5).
fn student(freedom: f64) -> f64 {
    const Z: f64 = 1.959_964;
    Z + (Z.powi(3) + Z) / (4.0 * freedom)
        + (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / (96.0 * freedom * freedom)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uniform numbers in 0..1, the same in every run.
    fn noise(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        }
    }

    #[test]
    fn the_interval_holds_the_truth_as_often_as_it_says() {
        let held = (0..2000).filter(|&seed| {
            let mut noise = noise(seed);
            let mut medians = Medians::default();
            let values: Vec<f64> = (0..64).map(|_| 100.0 + noise() + noise()).collect();
            values.iter().for_each(|&value| medians.push(value));
            let mean = values.iter().sum::<f64>() / 64.0;
            (mean - 101.0).abs() <= medians.half_width().unwrap()
        });
        let held = held.count();
        assert!((1860..=1940).contains(&held), "{held} of 2000, not 95 %");
    }

    #[test]
    fn a_long_run_is_kept_in_constant_memory_and_gives_the_same_interval() {
        let (mut short, mut long) = (Medians::default(), Medians::default());
        for slice in 0..32 {
            let value = 100.0 + f64::from(slice % 5);
            (0..16).for_each(|_| short.push(value));
            (0..16 * 64).for_each(|_| long.push(value));
        }
        assert!(long.values.len() <= MOST && long.values.capacity() == MOST);
        let (short, long) = (short.half_width().unwrap(), long.half_width().unwrap());
        assert!((short / long - 1.0).abs() < 0.1, "{short} and {long}");
    }

    #[test]
    fn few_slices_tell_nothing() {
        let mut medians = Medians::default();
        (0..7).for_each(|_| medians.push(1.0));
        assert_eq!(medians.half_width(), None);
        medians.push(1.0);
        assert_eq!(medians.half_width(), Some(0.0));
    }

    #[test]
    fn student_agrees_with_the_tables() {
        for (freedom, table) in [(7.0, 2.365), (15.0, 2.131), (31.0, 2.040)] {
            assert!((student(freedom) / table - 1.0).abs() < 0.005, "{freedom}");
        }
    }
}
