//! Which arm runs when: ABBA, so that a machine that warms up or slows down steadily favours neither.

use serde::{Deserialize, Serialize};

/// One of the two that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Arm {
    /// The baseline.
    A,
    /// The candidate.
    B,
}

impl Arm {
    fn other(self) -> Arm {
        if self == Arm::A { Arm::B } else { Arm::A }
    }
}

/// The order of `pairs` pairs of runs: blocks of ABBA or BAAB, drawn from `seed`, so that nothing periodic keeps step with
/// an arm. A longer order begins with the shorter one: more pairs are a continuation.
pub fn order(seed: u64, pairs: usize) -> Vec<Arm> {
    (0..pairs)
        .flat_map(|pair| {
            let block = pair as u64 / 2;
            let first = if mixed(seed, block) >> 63 == 0 { Arm::A } else { Arm::B };
            if pair % 2 == 0 { [first, first.other()] } else { [first.other(), first] }
        })
        .collect()
}

/// Draw `index` of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
fn mixed(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(index.wrapping_add(1)));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_balanced_in_number_and_in_time() {
        for seed in 0..100 {
            for block in order(seed, 14).chunks(4) {
                let places = |arm| (0..4).filter(|&i| block[i] == arm).sum::<usize>();
                assert_eq!((places(Arm::A), places(Arm::B)), (3, 3), "{block:?}");
            }
        }
    }

    #[test]
    fn more_pairs_continue_the_same_order() {
        assert_eq!(order(7, 15)[..12], order(7, 6));
        assert_eq!(order(7, 15).iter().filter(|&&arm| arm == Arm::A).count(), 15);
        assert_eq!(order(7, 0), []);
    }

    #[test]
    fn either_arm_comes_first_half_of_the_time() {
        let first = (0..10_000).filter(|&seed| order(seed, 1)[0] == Arm::A).count();
        assert!((4800..=5200).contains(&first), "{first} of 10000");
    }
}
