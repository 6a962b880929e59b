//! Calls of libibverbs that are no functions but members of a table before the context.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem;

use ibverbs_sys::{ibv_context, ibv_device_attr_ex, ibv_query_device_ex_input};
use nix::errno::Errno;

/// The end of `struct verbs_context`, which grows at its front and has the context as its last member
/// (`<infiniband/verbs.h>`; the bindings leave it out). A library that is older has less before it.
#[repr(C)]
struct Tail {
    query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    /// Flows, queue pairs, shared receive queues and XRC domains, with two placeholders.
    others: [*const c_void; 10],
    placeholder: u64,
    /// Bytes the library has in its table.
    size: usize,
    context: ibv_context,
}

const _: () = assert!(
    mem::offset_of!(Tail, context) == 11 * size_of::<usize>() + size_of::<u64>() + size_of::<usize>()
        && mem::offset_of!(Tail, context) + size_of::<ibv_context>() == size_of::<Tail>()
);

/// `__VERBS_ABI_IS_EXTENDED`: there is a table before this context.
const IS_EXTENDED: usize = usize::MAX;

/// Limits of the device beyond those of `ibv_query_device`; all 0 where the library, the provider or the kernel knows
/// of none.
///
/// # Safety
/// `context` is open, and of libibverbs.
pub(super) unsafe fn query_device(context: *mut ibv_context) -> io::Result<ibv_device_attr_ex> {
    let mut attr = ibv_device_attr_ex::default();
    // SAFETY: the caller's contract.
    if unsafe { (*context).abi_compat }.addr() != IS_EXTENDED {
        return Ok(attr);
    }
    // SAFETY: an extended context is the last member of a `verbs_context`, and so of its end.
    let table = unsafe { context.byte_sub(mem::offset_of!(Tail, context)) }.cast::<Tail>();
    // SAFETY: the size stands right before every extended context. Read through pointers: the table may begin later than
    // `Tail`, and no reference to what is not there is made.
    if unsafe { (&raw const (*table).size).read() } < size_of::<Tail>() {
        return Ok(attr);
    }
    // SAFETY: the table is at least as long as `Tail`, its members are functions or null.
    let Some(query) = (unsafe { (&raw const (*table).query_device_ex).read() }) else { return Ok(attr) };
    // SAFETY: no input is asked for, and at most the given size is written.
    match unsafe { query(context, std::ptr::null(), &mut attr, size_of::<ibv_device_attr_ex>()) } {
        0 => Ok(attr),
        code if [Errno::EOPNOTSUPP as i32, Errno::ENOSYS as i32].contains(&code.abs()) => {
            Ok(ibv_device_attr_ex::default())
        }
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}
