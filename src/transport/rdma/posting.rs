//! How messages of a stream are handed to the device: one work request a call, or linked lists of them.

use super::Rdma;
use super::ping_pong::opcode;
use crate::error::Result;
use crate::ops::{Op, Opcode};
use crate::verbs::{Patch, SendList, Sender};

/// A way of handing messages over, as a type, so that a loop is compiled for one.
pub trait Posting: Sized {
    /// Work requests for messages of `size` bytes of verb `O`, the first of them for the next message of the path.
    fn new<O: Op>(rdma: &Rdma, size: usize) -> Self;

    /// Posts `count` messages. With `last` the final one asks for its completion whatever its turn.
    ///
    /// # Errors
    /// The device refused one.
    fn post<O: Op>(&mut self, rdma: &mut Rdma, count: u64, last: bool) -> Result<()>;
}

/// A work request for the messages of verb `O`, which begins in a slot of the buffer.
fn request<O: Op>(rdma: &Rdma, size: usize, slot: usize) -> Sender {
    let facts = const { O::FACTS };
    let inline = facts.may_inline && size as u64 <= u64::from(rdma.qp.caps().max_inline);
    let remote = facts.is_one_sided().then_some(rdma.remote);
    let mut sender = rdma.qp.sender(opcode(facts.opcode), rdma.memory.slice(0, size), remote, inline);
    if facts.opcode == Opcode::FetchAdd {
        sender.set_atomic(1, 0);
    }
    match remote {
        // All operations are on one word.
        Some(_) if facts.is_atomic() => sender.cycle(rdma.layout.slots(), slot),
        Some(remote) => sender.cycle_both(rdma.layout.slots(), slot, remote),
        None => sender.cycle(rdma.layout.slots(), slot),
    }
    sender
}

/// One work request, patched and posted for each message.
pub struct Single(Sender);

impl Posting for Single {
    fn new<O: Op>(rdma: &Rdma, size: usize) -> Self {
        Self(request::<O>(rdma, size, rdma.slot(rdma.sent)))
    }

    #[inline(always)]
    fn post<O: Op>(&mut self, rdma: &mut Rdma, count: u64, last: bool) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let run = left.min(rdma.until_signal.into());
            left -= run;
            if run == u64::from(rdma.until_signal) || (last && left == 0) {
                self.post_run::<O>(rdma, run - 1)?;
                rdma.until_signal = rdma.signal_every;
                // It completes with its number.
                self.0.set_id(rdma.sent + 1);
                self.0.set_signalled(true);
                self.post_run::<O>(rdma, 1)?;
                self.0.set_signalled(false);
            } else {
                self.post_run::<O>(rdma, run)?;
                rdma.until_signal -= run as u32;
            }
        }
        Ok(())
    }
}

impl Single {
    #[inline(always)]
    fn post_run<O: Op>(&mut self, rdma: &mut Rdma, count: u64) -> Result<()> {
        let facts = const { O::FACTS };
        let patch = match facts.opcode {
            // The peer counts from one.
            Opcode::RdmaWriteWithImm => Patch::Imm(rdma.sent as u32 + 1),
            Opcode::CompareSwap => Patch::Swap(rdma.sent),
            _ => Patch::None,
        };
        self.0.post_run(count, facts.is_one_sided() && !facts.is_atomic(), patch)?;
        rdma.sent += count;
        Ok(())
    }
}

/// Lists of work requests that are linked once, one behind the other through all slots, each posted by one call. What
/// does not fill a list is posted singly.
pub struct Lists {
    lists: Vec<SendList>,
    len: u64,
    single: Single,
}

impl Posting for Lists {
    fn new<O: Op>(rdma: &Rdma, size: usize) -> Self {
        let len = rdma.post_list;
        let list = |first: usize| {
            let requests = (first..first + len).map(|slot| request::<O>(rdma, size, slot));
            SendList::new(requests.collect())
        };
        let lists = (0..rdma.layout.slots / len).map(|i| list(i * len)).collect();
        Self { lists, len: len as u64, single: Single::new::<O>(rdma, size) }
    }

    #[inline(always)]
    fn post<O: Op>(&mut self, rdma: &mut Rdma, count: u64, last: bool) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let into = rdma.sent % self.len;
            if into == 0 && left >= self.len {
                left -= self.len;
                self.post_list::<O>(rdma, last && left == 0)?;
            } else {
                let part = left.min(self.len - into);
                left -= part;
                self.single.0.seek(rdma.slot(rdma.sent));
                self.single.post::<O>(rdma, part, last && left == 0)?;
            }
        }
        Ok(())
    }
}

impl Lists {
    /// Posts the list that is next.
    #[inline(always)]
    fn post_list<O: Op>(&mut self, rdma: &mut Rdma, must_signal: bool) -> Result<()> {
        let (len, first) = (self.len as usize, rdma.sent);
        let list = &mut self.lists[rdma.slot(first) / len];
        match const { O::FACTS.opcode } {
            Opcode::RdmaWriteWithImm => {
                (0..len).for_each(|i| list.request(i).set_imm((first + i as u64) as u32 + 1));
            }
            Opcode::CompareSwap => {
                (0..len as u64).for_each(|i| list.request(i as usize).set_atomic(first + i, first + i + 1));
            }
            _ => {}
        }
        // Another list without a completion would be more messages than may share one.
        let signalled = must_signal || rdma.until_signal < 2 * self.len as u32;
        let mut end = list.request(len - 1);
        end.set_signalled(signalled);
        end.set_id(first + self.len);
        list.post().map_err(|partial| partial.error)?;
        rdma.sent += self.len;
        rdma.until_signal = if signalled { rdma.signal_every } else { rdma.until_signal - self.len as u32 };
        Ok(())
    }
}
