//! The loops of loops.c.

// Calls into C, with pointers to what the caller's queue pair and memory keep alive.
#![allow(unsafe_code)]

use ibverbs_sys::ibv_qp;
use verbmark::transport::rdma::Rdma;

/// What the loops in C know of an end; `struct end` of loops.c.
#[repr(C)]
pub struct End<'r> {
    qp: *mut ibv_qp,
    local: u64,
    remote: u64,
    lkey: u32,
    rkey: u32,
    stride: u64,
    slots: u64,
    depth: u64,
    sent: u64,
    done: u64,
    size: u32,
    signal_every: u32,
    until_signal: u32,
    rdma: std::marker::PhantomData<&'r mut Rdma>,
}

unsafe extern "C" {
    fn c_read_latency(end: *mut End<'_>, block: *mut u64, count: u64, deadline: u64) -> i64;
    fn c_send_latency(end: *mut End<'_>, block: *mut u64, count: u64, deadline: u64) -> i64;
    fn c_write_imm_latency(end: *mut End<'_>, block: *mut u64, count: u64, deadline: u64) -> i64;
    fn c_write_stream(end: *mut End<'_>, count: u64) -> i64;
    fn c_send_stream(end: *mut End<'_>, count: u64) -> i64;
    fn c_write_lists(end: *mut End<'_>, count: u64) -> i64;
    fn c_sink(end: *mut End<'_>, count: u64) -> i64;
}

/// A loop that fills a block with the ticks of one round trip each.
pub type Latency = unsafe extern "C" fn(*mut End<'_>, *mut u64, u64, u64) -> i64;
/// A loop that moves a number of messages.
pub type Bandwidth = unsafe extern "C" fn(*mut End<'_>, u64) -> i64;

pub const READ_LATENCY: Latency = c_read_latency;
pub const SEND_LATENCY: Latency = c_send_latency;
pub const WRITE_IMM_LATENCY: Latency = c_write_imm_latency;
pub const WRITE_STREAM: Bandwidth = c_write_stream;
pub const SEND_STREAM: Bandwidth = c_send_stream;
pub const WRITE_LISTS: Bandwidth = c_write_lists;
pub const SINK: Bandwidth = c_sink;

impl<'r> End<'r> {
    /// The end as its loops in Rust see it.
    pub fn new(rdma: &'r mut Rdma, size: u32, depth: u32, signal_every: u32) -> Self {
        let (memory, remote, layout) = (rdma.memory(), rdma.remote(), rdma.layout());
        Self {
            qp: rdma.qp().expect("it is connected").as_ptr(),
            local: memory.remote(0).addr,
            remote: remote.addr,
            lkey: memory.lkey(),
            rkey: remote.rkey,
            stride: layout.stride as u64,
            slots: layout.slots as u64,
            depth: depth.into(),
            sent: 0,
            done: 0,
            size,
            signal_every,
            until_signal: signal_every,
            rdma: std::marker::PhantomData,
        }
    }

    /// Runs `body` for blocks of 1,024 until `count` messages are made.
    pub fn latency(&mut self, body: Latency, count: u64) {
        let mut block = [0u64; 1024];
        let mut left = count;
        while left > 0 {
            let most = left.min(block.len() as u64);
            // SAFETY: the block has room for `most`. Queue pair, queues and memory live while the end borrows the
            // `Rdma` that owns them; the loop returns when the completions of what it posted have come, or with the
            // process's end by the caller's panic.
            let made = unsafe { body(self, block.as_mut_ptr(), most, u64::MAX) };
            assert_eq!(made, most as i64, "the loop in C failed");
            std::hint::black_box(&block);
            left -= most;
        }
    }

    /// Runs `body` for `count` messages.
    pub fn bandwidth(&mut self, body: Bandwidth, count: u64) {
        // SAFETY: as in `latency`.
        let made = unsafe { body(self, count) };
        assert!(made >= count as i64, "the loop in C failed");
    }
}
