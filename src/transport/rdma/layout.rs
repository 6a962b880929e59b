//! How the buffer of a path is divided.

use crate::error::{Error, Result, Step};
use crate::plan::{Connection, Shape, Test};
use crate::verbs::{GRH_BYTES, Slots};

/// How the buffer is divided: so many slots for each queue pair, one queue pair behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes from one slot to the next.
    pub stride: usize,
    /// Slots of each queue pair.
    pub slots: usize,
    /// Queue pairs.
    pub queues: usize,
    /// Bytes at the start of a receive's slot that are not of the message.
    pub headroom: usize,
}

/// Slots of a bandwidth test are spread over at most this much, but for very large messages.
const WORKING_SET: u64 = 1 << 20;

/// Slots begin on cache lines of their own, on every processor we know.
const ALIGNMENT: u64 = 128;

impl Layout {
    /// Latency has a slot to send from and one to land in for each message outstanding. Bandwidth has as many as were asked for, or else as may be
    /// outstanding, as far as a working set of 1 MiB holds them, and at least two for one queue pair, one for each of
    /// many.
    ///
    /// # Errors
    /// They do not fit an address space.
    pub fn of(test: &Test) -> Result<Self> {
        let largest = test.sizes.iter().copied().max().unwrap_or(1);
        let headroom = if test.connection == Connection::Ud { GRH_BYTES } else { 0 };
        let stride = largest.saturating_add(headroom as u64).next_multiple_of(ALIGNMENT);
        let queues = u64::from(test.qps);
        let slots = match (test.shape, test.buffers) {
            (Shape::Latency, _) => 2 * u64::from(test.load.depth),
            (Shape::Bandwidth, Some(buffers)) => buffers.into(),
            (Shape::Bandwidth, None) => {
                let fewest = if queues == 1 { 2 } else { 1 };
                let slots = (WORKING_SET / stride / queues).clamp(fewest, u64::from(test.tx_depth).max(2));
                // Lists go through the slots one behind the other.
                let list = u64::from(test.post_list);
                (slots / list * list).max(list)
            }
        };
        let bytes = stride.checked_mul(slots).and_then(|each| each.checked_mul(queues));
        match (usize::try_from(stride), usize::try_from(slots), bytes.map(usize::try_from)) {
            (Ok(stride), Ok(slots), Some(Ok(_))) => {
                Ok(Self { stride, slots, queues: test.qps as usize, headroom })
            }
            _ => Err(Error::failed(
                Step::RegisterMemory,
                format!(
                    "{slots} buffers of {largest} bytes for each of {queues} queue pairs do not fit an address space"
                ),
            )),
        }
    }

    /// Bytes of the whole buffer.
    pub fn bytes(self) -> usize {
        self.stride * self.slots * self.queues
    }

    /// The slots of one queue pair.
    pub(super) fn slots_of(self, queue: usize) -> Slots {
        Slots { offset: queue * self.stride * self.slots, stride: self.stride, count: self.slots }
    }

    /// All slots, one behind the other.
    pub(super) fn all_slots(self) -> Slots {
        Slots { offset: 0, stride: self.stride, count: self.slots * self.queues }
    }
}

/// The part of `messages` that queue pair `queue` of `queues` has: they are dealt out one by one.
pub fn share(messages: u64, queue: usize, queues: usize) -> u64 {
    let (queue, queues) = (queue as u64, queues as u64);
    messages / queues + u64::from(queue < messages % queues)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_differ_by_one_and_sum_up(messages in 0u64..1_000_000, queues in 1usize..1025) {
            let shares: Vec<u64> = (0..queues).map(|queue| share(messages, queue, queues)).collect();
            prop_assert_eq!(shares.iter().sum::<u64>(), messages);
            prop_assert!(shares[0] - shares[queues - 1] <= 1);
        }
    }
}
