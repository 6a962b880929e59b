//! Payload patterns: what a message must contain, from its number alone.

use crate::error::{Error, Step};
use crate::verbs::Region;

/// Sets the patterns of the server's direction apart from those of the client's, where messages go both ways.
pub const WAY_BACK: u64 = 0xa076_1d64_78bd_642f;

/// Bytes copied at a time between a region and the stack.
const CHUNK: usize = 4096;

/// The pattern of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern(u64);

impl Pattern {
    /// The pattern of message `number` in the run that drew `seed`.
    pub fn new(seed: u64, number: u64) -> Self {
        Self(mix(seed ^ mix(number)))
    }

    fn word(self, index: usize) -> [u8; 8] {
        mix(self.0.wrapping_add(index as u64)).to_le_bytes()
    }

    /// Fills a part of the message that begins `at` bytes into it; `at` is a multiple of 8.
    pub fn fill(self, part: &mut [u8], at: usize) {
        for (i, word) in part.chunks_mut(8).enumerate() {
            word.copy_from_slice(&self.word(at / 8 + i)[..word.len()]);
        }
    }

    /// Offset within `part` of the first byte that is not the pattern's.
    pub fn mismatch(self, part: &[u8], at: usize) -> Option<usize> {
        part.chunks(8).enumerate().find_map(|(i, word)| {
            let expected = self.word(at / 8 + i);
            (0..word.len()).find(|&j| word[j] != expected[j]).map(|j| i * 8 + j)
        })
    }

    /// Fills `length` bytes of a region.
    pub fn stamp(self, region: &Region, offset: usize, length: usize) {
        let mut chunk = [0; CHUNK];
        for at in (0..length).step_by(CHUNK) {
            let part = &mut chunk[..CHUNK.min(length - at)];
            self.fill(part, at);
            region.write(offset + at, part);
        }
    }

    /// Compares `length` bytes of a region.
    ///
    /// # Errors
    /// `Invalid`, with the message, the first wrong byte and both values.
    pub fn check(self, region: &Region, offset: usize, length: usize, message: u64) -> Result<(), Error> {
        let mut chunk = [0; CHUNK];
        for at in (0..length).step_by(CHUNK) {
            let part = &mut chunk[..CHUNK.min(length - at)];
            region.read(offset + at, part);
            self.check_part(part, at, length, message)?;
        }
        Ok(())
    }

    /// Looks whether `length` bytes of a region have come whole that held the pattern `before`.
    ///
    /// # Errors
    /// `Invalid`: a byte is of neither.
    pub fn has_replaced(
        self,
        before: Self,
        region: &Region,
        offset: usize,
        length: usize,
        message: u64,
    ) -> Result<bool, Error> {
        let (mut chunk, mut old) = ([0; CHUNK], [0; CHUNK]);
        let mut is_whole = true;
        for at in (0..length).step_by(CHUNK) {
            let part = &mut chunk[..CHUNK.min(length - at)];
            region.read(offset + at, part);
            if self.mismatch(part, at).is_none() {
                continue;
            }
            is_whole = false;
            let old = &mut old[..part.len()];
            before.fill(old, at);
            let mut new = [0; CHUNK];
            let new = &mut new[..part.len()];
            self.fill(new, at);
            // What has come of it so far is not to be blamed for the rest.
            for ((byte, old), new) in part.iter_mut().zip(old.iter()).zip(new.iter()) {
                if byte == old {
                    *byte = *new;
                }
            }
            self.check_part(part, at, length, message)?;
        }
        Ok(is_whole)
    }

    /// Compares a part of the message that begins `at` bytes into it.
    ///
    /// # Errors
    /// As [`Pattern::check`].
    pub fn check_part(self, part: &[u8], at: usize, length: usize, message: u64) -> Result<(), Error> {
        let Some(wrong) = self.mismatch(part, at) else { return Ok(()) };
        let expected = self.word((at + wrong) / 8)[(at + wrong) % 8];
        Err(Error::invalid(
            Step::Check,
            format!(
                "payload of message {message} is wrong at byte {} of {length}: {:#04x}, not {expected:#04x}",
                at + wrong,
                part[wrong]
            ),
        )
        .with_remedy("the path corrupts or misplaces data; no number of this run can be trusted"))
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_byte_is_found_wherever_it_is() {
        for length in [1, 7, 8, 9, 4095, 4096, 4097, 10_000] {
            let region = Region::new(length + 3).unwrap();
            let pattern = Pattern::new(1, 7);
            pattern.stamp(&region, 3, length);
            pattern.check(&region, 3, length, 7).unwrap();
            for at in [0, length / 2, length - 1] {
                let mut byte = [0];
                region.read(3 + at, &mut byte);
                region.write(3 + at, &[byte[0] ^ 0x40]);
                let error = pattern.check(&region, 3, length, 7).unwrap_err();
                assert!(error.message.contains(&format!("byte {at} of {length}")), "{error}");
                region.write(3 + at, &byte);
            }
        }
    }

    #[test]
    fn a_message_comes_in_parts_and_nothing_else_does() {
        let (length, region) = (10_000, Region::new(10_000).unwrap());
        let (before, pattern) = (Pattern::new(!1, 7), Pattern::new(1, 7));
        let look = || pattern.has_replaced(before, &region, 0, length, 7);
        before.stamp(&region, 0, length);
        assert_eq!(look(), Ok(false));
        pattern.stamp(&region, 0, 5000);
        assert_eq!(look(), Ok(false));
        pattern.stamp(&region, 0, length);
        assert_eq!(look(), Ok(true));
        let mut byte = [0];
        region.read(4999, &mut byte);
        region.write(4999, &[byte[0] ^ 0x40]);
        assert!(look().unwrap_err().message.contains("byte 4999"));
    }

    #[test]
    fn messages_differ_by_number_and_by_run() {
        let bytes = |seed, number| {
            let mut bytes = [0; 64];
            Pattern::new(seed, number).fill(&mut bytes, 0);
            bytes
        };
        assert_ne!(bytes(1, 0), bytes(1, 1));
        assert_ne!(bytes(1, 0), bytes(2, 0));
    }
}
