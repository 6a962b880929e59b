//! A device that does nothing: posts are accepted, and completions are there when asked for.
//!
//! What a loop costs on it is the loop's own. The operations replace those of an open device; they count in the
//! process, for one queue pair and one thread at a time.

// Writes into a context's table and through the pointers that its callers pass.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use ibverbs_sys::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_wc};
use verbmark::transport::rdma::Rdma;

const RING: u32 = 1024;

/// Identifiers of the signalled sends that were not polled yet.
static SIGNALLED: [AtomicU64; RING as usize] = [const { AtomicU64::new(0) }; RING as usize];
static PUSHED: AtomicU32 = AtomicU32::new(0);
static POPPED: AtomicU32 = AtomicU32::new(0);
/// Receives posted and not completed yet.
static RECEIVES: AtomicU32 = AtomicU32::new(0);

/// Makes the device of this end, and of every other end of the same context, do nothing from now on. `receives` are
/// posted already.
pub fn replace(rdma: &mut Rdma, receives: u32) {
    PUSHED.store(0, Relaxed);
    POPPED.store(0, Relaxed);
    RECEIVES.store(receives, Relaxed);
    let qp = rdma.qp().expect("it is connected").as_ptr();
    // SAFETY: queue pair, queues and context live while `rdma` does, and nobody else uses them: this program has one
    // thread. The contexts of the two queues are this program's to set; the table is read by each call anew.
    unsafe {
        // How a queue is told from the other: by its user context.
        (*(*qp).send_cq).cq_context = std::ptr::without_provenance_mut(1);
        (*(*qp).recv_cq).cq_context = std::ptr::null_mut();
        let ops = &raw mut (*(*qp).context).ops;
        (*ops).post_send = Some(post_send);
        (*ops).post_recv = Some(post_recv);
        (*ops).poll_cq = Some(poll_cq);
    }
}

unsafe extern "C" fn post_send(_: *mut ibv_qp, mut wr: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> c_int {
    while !wr.is_null() {
        // SAFETY: a list of work requests as ibv_post_send(3) asks for.
        let (id, flags, next) = unsafe { ((*wr).wr_id, (*wr).send_flags, (*wr).next) };
        if flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0 {
            let pushed = PUSHED.load(Relaxed);
            SIGNALLED[(pushed % RING) as usize].store(id, Relaxed);
            PUSHED.store(pushed.wrapping_add(1), Relaxed);
        }
        wr = next;
    }
    0
}

unsafe extern "C" fn post_recv(_: *mut ibv_qp, mut wr: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    while !wr.is_null() {
        RECEIVES.store(RECEIVES.load(Relaxed) + 1, Relaxed);
        // SAFETY: a list of work requests as ibv_post_recv(3) asks for.
        wr = unsafe { (*wr).next };
    }
    0
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the queue is live; `replace` told the two apart.
    let is_send = !unsafe { (*cq).cq_context }.is_null();
    let popped = POPPED.load(Relaxed);
    let there = if is_send { PUSHED.load(Relaxed).wrapping_sub(popped) } else { RECEIVES.load(Relaxed) };
    let taken = there.min(most as u32);
    for i in 0..taken {
        let id = if is_send { SIGNALLED[(popped.wrapping_add(i) % RING) as usize].load(Relaxed) } else { 0 };
        // SAFETY: the caller has room for `most` completions, each 48 bytes of plain integers; all zero is a success.
        unsafe {
            let wc = wc.add(i as usize).cast::<[u64; 6]>();
            *wc = [id, 0, 0, 0, 0, 0];
        }
    }
    if is_send {
        POPPED.store(popped.wrapping_add(taken), Relaxed);
    } else {
        RECEIVES.store(there - taken, Relaxed);
    }
    taken as c_int
}
