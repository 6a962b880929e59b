//! The value of `-s`: one size, a list, or a range by doubling.

use std::str::FromStr;

use crate::units::parse_size;

/// Largest message any transport of the specification carries (IBTA 9.4.3: 2^31), less one so that it fits 32 bits
/// of a work request's length with room.
const LARGEST: u64 = 1 << 30;

/// Sizes in the order they were typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeSpec(Vec<u64>);

impl SizeSpec {
    /// The sizes, at least one, each 1 byte to 1 GiB.
    pub fn sizes(&self) -> &[u64] {
        &self.0
    }

    /// All sizes from `first` to `last` by doubling.
    pub fn doubling(first: u64, last: u64) -> Self {
        Self(
            std::iter::successors(Some(first), |size| size.checked_mul(2))
                .take_while(|size| *size <= last)
                .collect(),
        )
    }
}

impl FromStr for SizeSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            match part.split_once("..") {
                Some((first, last)) => {
                    let (first, last) = (parse_one(first)?, parse_one(last)?);
                    if first > last {
                        return Err(format!("the range {part} is empty"));
                    }
                    sizes.extend(Self::doubling(first, last).0);
                }
                None => sizes.push(parse_one(part)?),
            }
        }
        for (i, size) in sizes.iter().enumerate() {
            if sizes[..i].contains(size) {
                return Err(format!("{size} stands there twice"));
            }
        }
        Ok(Self(sizes))
    }
}

/// A most of 0 would refuse every test.
pub(super) fn parse_positive_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("would refuse every test: name a larger one, or leave the option away".into()),
        size => Ok(size),
    }
}

fn parse_one(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("a message has at least 1 byte".into()),
        size if size > LARGEST => Err(format!("{text} is more than the largest message, 1G")),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_keep_their_order() {
        let sizes = |text: &str| text.parse::<SizeSpec>().map(|spec| spec.0);
        assert_eq!(sizes("64"), Ok(vec![64]));
        assert_eq!(sizes("4k,64,1M"), Ok(vec![4096, 64, 1 << 20]));
        assert_eq!(sizes("64..512"), Ok(vec![64, 128, 256, 512]));
        assert_eq!(sizes("3..20"), Ok(vec![3, 6, 12]));
        assert_eq!(sizes("1G"), Ok(vec![1 << 30]));
        for wrong in ["", ",", "64,", "0", "2G", "512..64", "64,64", "1..4,2", "..", "64-128"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }
}
