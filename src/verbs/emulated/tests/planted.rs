//! Faults on purpose, of the two kinds that this module could have without a test noticing: whoever watches memory must
//! report them, or its silence about everything else means nothing. `scripts/sanitize` runs each under its checker and
//! fails where that says nothing; by themselves they pass.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_int;
use std::sync::Barrier;
use std::thread;

use super::harness::*;

/// Reads memory that a device may be writing: without a completion taken, and without an acquire load of the last byte,
/// nothing orders the bytes.
#[test]
#[ignore = "a planted fault, for scripts/sanitize"]
fn a_race() {
    let (a, b) = pair(Setup::default());
    let go = Barrier::new(2);
    let write = Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 64)]).to(&b, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            go.wait();
            a.post(std::slice::from_ref(&write)).unwrap();
        });
        go.wait();
        std::hint::black_box(b.read(0, 64));
    });
}

/// Registers a byte more than there is, so that the last byte of a message to its end is written behind the memory. The
/// allocator has some bytes to spare there, which nobody else uses.
#[test]
#[ignore = "a planted fault, for scripts/sanitize"]
fn an_overrun() {
    const LEN: usize = 4092;
    let (a, b) = pair(Setup::default());
    let layout = Layout::from_size_align(LEN, 64).unwrap();
    // SAFETY: not sound, and meant so: the memory is a byte shorter than its registration says. Otherwise it is valid
    // until the registration has ended.
    unsafe {
        let memory = alloc_zeroed(layout);
        let mr = b.provider.reg_mr(b.pd, memory, LEN + 1, ALL_ACCESS as c_int).unwrap();
        let mut write = Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, LEN + 1)]);
        (write.remote, write.rkey) = (memory.expose_provenance() as u64, (*mr).rkey);
        a.post(&[write]).unwrap();
        assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_SUCCESS)]);
        b.provider.dereg_mr(mr).unwrap();
        dealloc(memory, layout);
    }
}
