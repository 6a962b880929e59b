//! What all queue pairs of a path have together.

use super::Layout;
use super::completion::{RECEIVES, SENDS, Source};
use crate::plan::{Shape, Side};
use crate::verbs::{Channel, Cq, Mr, RemoteSlice, Slots, Srq};

/// What all queue pairs of a path have together.
#[derive(Debug)]
pub struct Shared {
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
    pub(super) send_channel: Option<Channel>,
    pub(super) recv_channel: Option<Channel>,
    pub(super) srq: Option<Srq>,
    pub(super) memory: Mr,
    pub(super) layout: Layout,
    /// Where shared receives go.
    pub(super) landing: Slots,
    /// Start and key of the peer's buffer.
    pub(super) remote: RemoteSlice,
    /// Bytes of it, as the peer told.
    pub(super) remote_bytes: u64,
    /// Numbers of the peer's queue pairs.
    pub(super) peers: Vec<u32>,
    pub(super) shape: Shape,
    pub(super) seed: u64,
    pub(super) side: Side,
    /// Most sends outstanding on each.
    pub(super) depth: u64,
    /// Receives posted ahead on each, or on the queue they share.
    pub(super) rx_depth: u64,
    /// Work requests of a list; 1 where they are posted singly.
    pub(super) post_list: usize,
    /// Completions taken with one poll of a stream.
    pub(super) cqe_batch: usize,
    /// Messages may be lost.
    pub(super) may_lose: bool,
}

impl Shared {
    /// Where sends complete.
    pub(super) fn sends(&self) -> Source<'_, SENDS> {
        Source { cq: &self.send_cq, channel: self.send_channel.as_ref() }
    }

    /// Where receives complete.
    pub(super) fn arrivals(&self) -> Source<'_, RECEIVES> {
        Source { cq: &self.recv_cq, channel: self.recv_channel.as_ref() }
    }
}
