//! The control path as raw calls: one trait, one implementation over libibverbs and one emulated.
//!
//! The data path is not here. Posting, polling and arming go through `ibv_context.ops`, which both implementations
//! fill, so that a loop runs the same machine code on either (see `post.rs` and `completion.rs`).

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;

use ibverbs_sys::{
    ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr, ibv_event_type,
    ibv_gid_entry, ibv_mr, ibv_odp_caps, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_srq, ibv_srq_attr,
};

/// The calls of libibverbs that set up, query and tear down. Errors carry the errno of the call.
///
/// # Safety
/// Every method is unsafe for the reasons its man page gives: pointers must come from the same provider, be live,
/// and be destroyed in the order libibverbs asks for (QP and MR before PD, CQ after its QPs, channel after its CQs,
/// context last). The owning types of this module keep that order by holding their parents.
pub(super) trait Provider: Sync {
    /// Opens the device of this name; its asynchronous descriptor does not block. `ibv_open_device(3)`
    unsafe fn open(&self, name: &str) -> io::Result<*mut ibv_context>;
    /// `ibv_close_device(3)`
    unsafe fn close(&self, context: *mut ibv_context) -> io::Result<()>;
    /// `ibv_query_device(3)`
    unsafe fn query_device(&self, context: *mut ibv_context) -> io::Result<ibv_device_attr>;
    /// The capabilities of on-demand paging, none where the library or the kernel does not tell.
    /// `ibv_query_device_ex(3)`
    unsafe fn on_demand_paging(&self, context: *mut ibv_context) -> io::Result<ibv_odp_caps>;
    /// `ibv_query_port(3)`
    unsafe fn query_port(&self, context: *mut ibv_context, port: u8) -> io::Result<ibv_port_attr>;
    /// The valid entries of all ports. `ibv_query_gid_table(3)`
    unsafe fn gid_table(&self, context: *mut ibv_context) -> io::Result<Vec<ibv_gid_entry>>;
    /// `ibv_query_pkey(3)`, in host byte order.
    unsafe fn query_pkey(&self, context: *mut ibv_context, port: u8, index: u16) -> io::Result<u16>;
    /// `ibv_alloc_pd(3)`
    unsafe fn alloc_pd(&self, context: *mut ibv_context) -> io::Result<*mut ibv_pd>;
    /// `ibv_dealloc_pd(3)`
    unsafe fn dealloc_pd(&self, pd: *mut ibv_pd) -> io::Result<()>;
    /// `ibv_reg_mr(3)`
    unsafe fn reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut u8,
        length: usize,
        access: c_int,
    ) -> io::Result<*mut ibv_mr>;
    /// `ibv_dereg_mr(3)`: after it returns the device touches the memory no more.
    unsafe fn dereg_mr(&self, mr: *mut ibv_mr) -> io::Result<()>;
    /// `ibv_create_comp_channel(3)`, its descriptor set to non-blocking.
    unsafe fn create_channel(&self, context: *mut ibv_context) -> io::Result<*mut ibv_comp_channel>;
    /// `ibv_destroy_comp_channel(3)`
    unsafe fn destroy_channel(&self, channel: *mut ibv_comp_channel) -> io::Result<()>;
    /// The CQ of the next event, or `WouldBlock`. `ibv_get_cq_event(3)`
    unsafe fn next_event(&self, channel: *mut ibv_comp_channel) -> io::Result<*mut ibv_cq>;
    /// `ibv_ack_cq_events(3)`
    unsafe fn ack_events(&self, cq: *mut ibv_cq, count: u32);
    /// `ibv_create_cq(3)`
    unsafe fn create_cq(
        &self,
        context: *mut ibv_context,
        depth: u32,
        channel: Option<*mut ibv_comp_channel>,
    ) -> io::Result<*mut ibv_cq>;
    /// `ibv_destroy_cq(3)`
    unsafe fn destroy_cq(&self, cq: *mut ibv_cq) -> io::Result<()>;
    /// `ibv_create_ah(3)`
    unsafe fn create_ah(&self, pd: *mut ibv_pd, attr: &mut ibv_ah_attr) -> io::Result<*mut ibv_ah>;
    /// `ibv_destroy_ah(3)`
    unsafe fn destroy_ah(&self, ah: *mut ibv_ah) -> io::Result<()>;
    /// `ibv_create_srq(3)`: writes what was granted back into `attr`.
    unsafe fn create_srq(&self, pd: *mut ibv_pd, attr: &mut ibv_srq_attr) -> io::Result<*mut ibv_srq>;
    /// `ibv_modify_srq(3)` with IBV_SRQ_LIMIT.
    unsafe fn set_srq_limit(&self, srq: *mut ibv_srq, limit: u32) -> io::Result<()>;
    /// `ibv_destroy_srq(3)`
    unsafe fn destroy_srq(&self, srq: *mut ibv_srq) -> io::Result<()>;
    /// `ibv_create_qp(3)`: writes what was granted back into `init.cap`.
    unsafe fn create_qp(&self, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> io::Result<*mut ibv_qp>;
    /// `ibv_modify_qp(3)`
    unsafe fn modify_qp(&self, qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: c_int) -> io::Result<()>;
    /// `ibv_query_qp(3)`
    unsafe fn query_qp(&self, qp: *mut ibv_qp, mask: c_int) -> io::Result<ibv_qp_attr>;
    /// `ibv_destroy_qp(3)`
    unsafe fn destroy_qp(&self, qp: *mut ibv_qp) -> io::Result<()>;
    /// The next asynchronous event, acknowledged: its kind and the number of the queue pair or port it is about, or 0.
    /// `WouldBlock` if there is none. `ibv_get_async_event(3)`
    unsafe fn next_async_event(&self, context: *mut ibv_context) -> io::Result<(ibv_event_type, u32)>;
    /// Messages that arrived at queue pairs of this context and were dropped without a word to their senders, where
    /// that is counted.
    unsafe fn dropped(&self, context: *mut ibv_context) -> Option<u64>;
    /// Times that a message of a queue pair of this context found no receive at its target, where that is counted here.
    unsafe fn not_ready(&self, context: *mut ibv_context) -> Option<u64>;
    /// Descriptor that becomes readable when the device has an asynchronous event.
    unsafe fn async_fd<'a>(&self, context: *mut ibv_context) -> BorrowedFd<'a>;
}
