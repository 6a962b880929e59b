//! What the emulated devices promise: one place for the numbers that several files and the queries must agree on.

/// Largest message of a port, in bytes.
pub(super) const MAX_MESSAGE: u32 = 1 << 30;
/// Largest packet of a port, in bytes, and so the largest datagram.
pub(super) const MTU: u32 = 4096;
/// Queue pairs that may exist at a time, on all emulated devices of the process together.
pub(super) const MAX_QP: usize = 2048;
/// Work requests of one queue.
pub(super) const MAX_QP_WR: u32 = 65_536;
/// Scatter-gather entries of one work request. With six a receive fills two cache lines, and with one it fits into
/// the first.
pub(super) const MAX_SGE: usize = 6;
/// Bytes a work request may carry itself.
pub(super) const MAX_INLINE: u32 = 220;
/// Entries of one completion queue.
pub(super) const MAX_CQE: u32 = (1 << 22) - 1;
/// Memory regions that may exist at a time.
pub(super) const MAX_MR: usize = 1 << 16;
/// Address handles that may exist, as the device says; nothing here ends before memory does.
pub(super) const MAX_AH: u32 = 1 << 20;
/// Reads and atomics a queue pair may have outstanding, as requester and as responder.
pub(super) const MAX_RD_ATOMIC: u8 = 16;
