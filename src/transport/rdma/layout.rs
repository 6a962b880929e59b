//! How the buffer of a path is divided.

use crate::error::{Error, Result, Step};
use crate::plan::{Connection, Shape, Side, Test};
use crate::verbs::{GRH_BYTES, Slots};

/// How the buffer is divided: so many slots for each queue pair, one queue pair behind the other; where messages go both
/// ways, once for each direction. A message lies at the same place at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes from one slot to the next.
    pub stride: usize,
    /// Slots of each queue pair.
    pub slots: usize,
    /// Queue pairs.
    pub queues: usize,
    /// Directions in which messages go at once, 1 or 2.
    pub directions: usize,
    /// Bytes at the start of a receive's slot that are not of the message.
    pub headroom: usize,
}

/// Slots of a bandwidth test are spread over at most this much, but for very large messages.
const WORKING_SET: u64 = 1 << 20;

/// Slots begin on cache lines of their own, on every processor we know.
const ALIGNMENT: u64 = 128;

impl Layout {
    /// Latency has a slot to send from and one to land in for each message outstanding. Bandwidth has as many as were
    /// asked for, or else as may be outstanding, as far as a working set of 1 MiB holds them, and at least two for one
    /// queue pair, one for each of many.
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
        let directions = if test.bidirectional { 2 } else { 1 };
        let parts = queues * directions;
        let bytes = stride.checked_mul(slots).and_then(|each| each.checked_mul(parts));
        match (usize::try_from(stride), usize::try_from(slots), bytes.map(usize::try_from)) {
            (Ok(stride), Ok(slots), Some(Ok(_))) => Ok(Self {
                stride,
                slots,
                queues: test.qps as usize,
                directions: directions as usize,
                headroom,
            }),
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
        self.all_slots(0).count * self.stride * self.directions
    }

    /// The direction of what an end sends, and that of what it takes.
    pub(super) fn directions_of(self, side: Side) -> (usize, usize) {
        match (self.directions, side) {
            (1, _) => (0, 0),
            (_, Side::Client) => (0, 1),
            (_, Side::Server) => (1, 0),
        }
    }

    /// The slots of one queue pair for one direction.
    pub(super) fn slots_of(self, queue: usize, direction: usize) -> Slots {
        let Slots { offset, stride, .. } = self.all_slots(direction);
        Slots { offset: offset + queue * stride * self.slots, stride, count: self.slots }
    }

    /// All slots of one direction, one behind the other.
    pub(super) fn all_slots(self, direction: usize) -> Slots {
        let count = self.slots * self.queues;
        Slots { offset: direction * count * self.stride, stride: self.stride, count }
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
        fn slots_of_all_queue_pairs_and_directions_lie_apart(
            slots in 1usize..9, queues in 1usize..9, directions in 1usize..3,
        ) {
            let layout = Layout { stride: 128, slots, queues, directions, headroom: 0 };
            let each = (0..directions).flat_map(|way| (0..queues).map(move |queue| layout.slots_of(queue, way)));
            let starts: Vec<_> = each.map(|slots| slots.offset).collect();
            let expected: Vec<_> = (0..directions * queues).map(|part| part * slots * 128).collect();
            prop_assert_eq!(starts, expected);
            prop_assert_eq!(layout.bytes(), directions * queues * slots * 128);
            let (client, server) = (layout.directions_of(Side::Client), layout.directions_of(Side::Server));
            prop_assert_eq!(client, (server.1, server.0), "what one sends the other takes");
        }

        #[test]
        fn shares_differ_by_one_and_sum_up(messages in 0u64..1_000_000, queues in 1usize..1025) {
            let shares: Vec<u64> = (0..queues).map(|queue| share(messages, queue, queues)).collect();
            prop_assert_eq!(shares.iter().sum::<u64>(), messages);
            prop_assert!(shares[0] - shares[queues - 1] <= 1);
        }
    }
}
