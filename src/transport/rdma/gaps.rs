//! What has come over a path that may lose messages: which of those that were sent it is, and whether it is whole.

use super::layout::share;
use super::queue::Queue;
use super::shared::Shared;
use crate::error::{Error, Result, Step};
use crate::ops::Op;
use crate::transport::Checked;
use crate::verbs::Wc;

/// A message that has come and is still to be checked.
#[derive(Debug)]
pub(super) struct Landed {
    /// Index of its queue pair.
    pub(super) queue: usize,
    /// Which one it is of those that have come there.
    pub(super) message: u64,
    /// Where its receive begins in the buffer.
    pub(super) at: usize,
    /// Of the receive.
    pub(super) byte_len: u32,
    pub(super) imm: u32,
}

impl Landed {
    pub(super) fn new(queue: usize, message: u64, at: usize, wc: &Wc) -> Self {
        Self { queue, message, at, byte_len: wc.byte_len(), imm: wc.imm() }
    }
}

/// Compares messages of verb `O` and of `size` bytes with those of which they must be, each of which comes once at most.
pub(super) fn check_among<O: Op>(
    landed: &[Landed],
    queues: &[Queue],
    shared: &Shared,
    size: usize,
    checked: &Checked,
) -> Result<()> {
    let wrong = |text: String| Err(Error::invalid(Step::Check, text));
    let mut candidates: Vec<_> = (0..queues.len())
        .map(|index| {
            let first = checked.first.get(index).copied().unwrap_or(0);
            Candidates::new(first, share(checked.count, index, queues.len()))
        })
        .collect();
    for landed in landed {
        let (queue, candidates) = (&queues[landed.queue], &mut candidates[landed.queue]);
        let (bytes, headroom) = (landed.byte_len as usize, shared.layout.headroom);
        if bytes != size + headroom {
            return wrong(format!("message {} has length {bytes}, not {}", landed.message, size + headroom));
        }
        let found = if O::FACTS.carries_imm() {
            let Some(message) = candidates.numbered(landed.imm) else {
                return wrong(format!("immediate data {} is that of no message sent", landed.imm));
            };
            queue.check(shared, message, size)?;
            message
        } else {
            let check = |message| queue.check_at(shared, landed.at + headroom, message, size);
            match candidates.left().find(|message| check(*message).is_ok()) {
                Some(found) => found,
                None => {
                    candidates.left().next().map_or(Ok(()), check)?;
                    return wrong(format!("message {} has come besides all that were sent", landed.message));
                }
            }
        };
        if !candidates.take(found) {
            return wrong(format!("message {found} has come twice"));
        }
    }
    Ok(())
}

/// Messages that were sent on a queue pair and may come.
struct Candidates {
    first: u64,
    has_come: Vec<bool>,
    /// The one behind the last that has come: most come in order.
    next: u64,
}

impl Candidates {
    fn new(first: u64, count: u64) -> Self {
        let first = first.min(u64::MAX - count);
        Self { first, has_come: vec![false; count as usize], next: first }
    }

    fn end(&self) -> u64 {
        self.first + self.has_come.len() as u64
    }

    /// Those that have not come, the likeliest first.
    fn left(&self) -> impl Iterator<Item = u64> + '_ {
        (self.next..self.end())
            .chain(self.first..self.next)
            .filter(|message| !self.has_come[(message - self.first) as usize])
    }

    /// The one with this immediate data: the sender counts from one.
    fn numbered(&self, imm: u32) -> Option<u64> {
        let ahead = imm.wrapping_sub((self.first as u32).wrapping_add(1));
        ((ahead as usize) < self.has_come.len()).then(|| self.first + u64::from(ahead))
    }

    /// False if it has come before.
    fn take(&mut self, message: u64) -> bool {
        self.next = message + 1;
        !std::mem::replace(&mut self.has_come[(message - self.first) as usize], true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_looked_for_behind_the_last_and_then_before_it() {
        let mut candidates = Candidates::new(10, 5);
        assert!(candidates.take(11) && candidates.take(13));
        assert_eq!(candidates.left().collect::<Vec<_>>(), [14, 10, 12]);
        assert!(candidates.take(10) && !candidates.take(13));
        assert_eq!(candidates.left().collect::<Vec<_>>(), [14, 12]);
    }

    #[test]
    fn immediate_data_counts_from_one_and_wraps() {
        let around = u64::from(u32::MAX) - 1;
        let candidates = Candidates::new(around, 4);
        let of = |message: u64| (message as u32).wrapping_add(1);
        for message in around..around + 4 {
            assert_eq!(candidates.numbered(of(message)), Some(message));
        }
        assert_eq!(candidates.numbered(of(around + 4)), None);
        assert_eq!(candidates.numbered(of(around - 1)), None);
        assert_eq!(Candidates::new(u64::MAX, 2).end(), u64::MAX);
    }
}
