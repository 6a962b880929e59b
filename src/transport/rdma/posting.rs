//! How messages of a stream are handed to the device: one work request a call, or linked lists of them.

use super::Shared;
use super::completion::counted;
use super::ping_pong::opcode;
use super::queue::Queue;
use crate::error::Result;
use crate::ops::{Op, Opcode};
use crate::verbs::{Patch, RemoteSlice, SendList, Sender};

/// A way of handing messages over, as a type, so that a loop is compiled for one.
pub trait Posting: Sized {
    /// Work requests for messages of `size` bytes of verb `O`, the first of them for the queue pair's next message.
    fn new<O: Op>(queue: &Queue, shared: &Shared, size: usize) -> Self;

    /// Posts `count` messages, for which there is room.
    ///
    /// # Errors
    /// The device refused one.
    fn post<O: Op>(&mut self, queue: &mut Queue, count: u64) -> Result<()>;
}

/// A work request for the messages of verb `O`, which begins in a slot of the queue pair's.
fn request<O: Op>(queue: &Queue, shared: &Shared, size: usize, slot: usize) -> Sender {
    let facts = const { O::FACTS };
    let inline = facts.may_inline && size as u64 <= u64::from(queue.qp.caps().max_inline);
    let word = RemoteSlice { addr: shared.remote.addr + queue.ours() as u64, ..shared.remote };
    let remote = facts.is_one_sided().then_some(if facts.is_atomic() { word } else { shared.remote });
    let local = shared.memory.slice(queue.ours(), size);
    let mut sender = queue.qp.sender(opcode(facts.opcode), local, remote, inline);
    if facts.opcode == Opcode::FetchAdd {
        sender.set_atomic(1, 0);
    }
    match remote {
        // All operations are on one word.
        Some(_) if facts.is_atomic() => sender.cycle(queue.slots, slot),
        Some(remote) => sender.cycle_both(queue.slots, slot, remote),
        None => sender.cycle(queue.slots, slot),
    }
    sender
}

/// One work request, patched and posted for each message.
pub struct Single(Sender);

impl Posting for Single {
    fn new<O: Op>(queue: &Queue, shared: &Shared, size: usize) -> Self {
        Self(request::<O>(queue, shared, size, queue.slot(queue.sent)))
    }

    #[inline(always)]
    fn post<O: Op>(&mut self, queue: &mut Queue, count: u64) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let run = left.min(queue.until_signal.into());
            left -= run;
            if run == u64::from(queue.until_signal) || queue.sent + run == queue.end {
                self.post_run::<O>(queue, run - 1)?;
                queue.until_signal = queue.signal_every;
                // It completes with its number.
                self.0.set_id(queue.tag | (queue.sent + 1));
                self.0.set_signalled(true);
                self.post_run::<O>(queue, 1)?;
                self.0.set_signalled(false);
            } else {
                self.post_run::<O>(queue, run)?;
                queue.until_signal -= run as u32;
            }
        }
        Ok(())
    }
}

impl Single {
    #[inline(always)]
    fn post_run<O: Op>(&mut self, queue: &mut Queue, count: u64) -> Result<()> {
        let facts = const { O::FACTS };
        let patch = match facts.opcode {
            Opcode::RdmaWriteWithImm => Patch::Imm(counted(queue.sent)),
            Opcode::CompareSwap => Patch::Swap(queue.sent),
            _ => Patch::None,
        };
        self.0.post_run(count, facts.is_one_sided() && !facts.is_atomic(), patch)?;
        queue.sent += count;
        Ok(())
    }
}

/// Lists of work requests that are linked once, one behind the other through all slots, each posted by one call. What
/// does not fill a list is posted singly.
pub struct Lists {
    lists: Vec<SendList>,
    len: u64,
    /// The list that is next, and messages of it that were posted singly.
    next: usize,
    into: u64,
    single: Single,
}

impl Posting for Lists {
    fn new<O: Op>(queue: &Queue, shared: &Shared, size: usize) -> Self {
        let len = shared.post_list;
        let list = |first: usize| {
            let requests = (first..first + len).map(|slot| request::<O>(queue, shared, size, slot));
            SendList::new(requests.collect())
        };
        let lists = (0..queue.slots.count / len).map(|i| list(i * len)).collect();
        let slot = queue.slot(queue.sent);
        let (next, into) = (slot / len, (slot % len) as u64);
        Self { lists, len: len as u64, next, into, single: Single::new::<O>(queue, shared, size) }
    }

    #[inline(always)]
    fn post<O: Op>(&mut self, queue: &mut Queue, count: u64) -> Result<()> {
        let mut left = count;
        while left > 0 {
            left -= if self.into == 0 && left >= self.len {
                self.post_list::<O>(queue)?
            } else {
                self.post_part::<O>(queue, left)?
            };
        }
        Ok(())
    }
}

impl Lists {
    /// Posts the list that is next; returns its messages.
    #[inline(always)]
    fn post_list<O: Op>(&mut self, queue: &mut Queue) -> Result<u64> {
        let (len, first) = (self.len as usize, queue.sent);
        let list = &mut self.lists[self.next];
        match const { O::FACTS.opcode } {
            Opcode::RdmaWriteWithImm => {
                (0..len).for_each(|i| list.request(i).set_imm(counted(first + i as u64)));
            }
            Opcode::CompareSwap => {
                (0..len as u64).for_each(|i| list.request(i as usize).set_atomic(first + i, first + i + 1));
            }
            _ => {}
        }
        queue.sent += self.len;
        // Another list without a completion would be more messages than may share one.
        let signalled = queue.sent == queue.end || queue.until_signal < 2 * self.len as u32;
        list.set_last_id(queue.tag | queue.sent);
        if signalled {
            list.post().map_err(|partial| partial.error)?;
            queue.until_signal = queue.signal_every;
        } else {
            // A list asks for a completion unless it is told otherwise.
            list.request(len - 1).set_signalled(false);
            list.post().map_err(|partial| partial.error)?;
            list.request(len - 1).set_signalled(true);
            queue.until_signal -= self.len as u32;
        }
        self.step();
        Ok(self.len)
    }

    /// Posts singly what does not fill the list that is next, or the rest of it; returns how many messages that were.
    #[cold]
    #[inline(never)]
    fn post_part<O: Op>(&mut self, queue: &mut Queue, left: u64) -> Result<u64> {
        let part = left.min(self.len - self.into);
        self.single.0.seek(queue.slot(queue.sent));
        self.single.post::<O>(queue, part)?;
        self.into += part;
        if self.into == self.len {
            self.into = 0;
            self.step();
        }
        Ok(part)
    }

    #[inline(always)]
    fn step(&mut self) {
        self.next = if self.next + 1 == self.lists.len() { 0 } else { self.next + 1 };
    }
}
