//! The control path over the system's libibverbs.

use std::ffi::{CStr, c_int};
use std::io;
use std::mem;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;

use ibverbs_sys::{
    IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE, IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_PORT_ACTIVE,
    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_SM_CHANGE, IBV_SRQ_LIMIT,
    IBV_TRANSPORT_IWARP, ibv_access_flags, ibv_ack_async_event, ibv_ack_cq_events, ibv_ah, ibv_ah_attr,
    ibv_alloc_pd, ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_close_device, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_create_ah, ibv_create_comp_channel, ibv_create_cq, ibv_create_qp,
    ibv_create_srq, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_ah, ibv_destroy_comp_channel, ibv_destroy_cq,
    ibv_destroy_qp, ibv_destroy_srq, ibv_device, ibv_device_attr, ibv_event_type, ibv_free_device_list,
    ibv_get_async_event, ibv_get_cq_event, ibv_get_device_list, ibv_get_device_name, ibv_gid_entry,
    ibv_modify_qp, ibv_modify_srq, ibv_mr, ibv_odp_caps, ibv_open_device, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr, ibv_query_device, ibv_query_pkey, ibv_query_port, ibv_query_qp,
    ibv_reg_mr, ibv_reg_mr_iova2, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::extended;
use super::provider::Provider;

/// `IBV_ACCESS_OPTIONAL_RANGE`, bits 20 to 29: access that a kernel or device may leave out.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;
const _: () = assert!(OPTIONAL_ACCESS & ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 != 0);

/// The system's library.
pub(super) struct Libibverbs;

/// The one value of it.
pub(super) static LIBIBVERBS: Libibverbs = Libibverbs;

/// `ibv_query_port` is exported under its old type, opaque in the bindings: it fills the members up to `flags` of what
/// is today `ibv_port_attr` and knows nothing of the two that were appended.
const _: () =
    assert!(mem::offset_of!(ibv_port_attr, flags) < mem::offset_of!(ibv_port_attr, port_cap_flags2));
const _: () =
    assert!(mem::offset_of!(ibv_port_attr, port_cap_flags2) == 48 && mem::size_of::<ibv_port_attr>() >= 52);

/// Names and GUIDs of the system's devices, in the library's order; none where the kernel has no RDMA subsystem.
pub(super) fn list() -> io::Result<Vec<(String, u64)>> {
    let devices = match ibverbs::devices() {
        Ok(devices) => devices,
        // What ibv_get_device_list(3) says where the ib_uverbs module is not loaded.
        Err(error) if error.raw_os_error() == Some(Errno::ENOSYS as i32) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok(devices
        .iter()
        .filter_map(|device| {
            let name = device.name()?.to_string_lossy().into_owned();
            // The crate keeps the bytes of the big-endian value as if it were native; undone here. No GUID, as devices
            // without a node GUID have it, is an error there and 0 here.
            let guid = device.guid().map_or(0, |guid| u64::from_be(u64::from(guid)));
            Some((name, guid))
        })
        .collect())
}

/// A list of `ibv_device`, freed on drop. Devices of it are usable as long as it lives; one that was opened stays.
struct List {
    first: *mut *mut ibv_device,
    len: usize,
}

impl List {
    fn get() -> io::Result<Self> {
        let mut len = 0;
        // SAFETY: ibv_get_device_list(3) fills the count and returns an array of that many devices, or null.
        let first = unsafe { ibv_get_device_list(&mut len) };
        if first.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { first, len: usize::try_from(len).unwrap_or(0) })
    }

    fn find(&self, name: &str) -> Option<*mut ibv_device> {
        // SAFETY: the array has `len` elements, is not changed by anyone, and lives as long as `self`.
        let devices = unsafe { std::slice::from_raw_parts(self.first, self.len) };
        devices.iter().copied().find(|&device| {
            // SAFETY: the device is of the living list; its name is a terminated string inside of it.
            let found = unsafe { CStr::from_ptr(ibv_get_device_name(device)) };
            found.to_bytes() == name.as_bytes()
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the pointer came from ibv_get_device_list, is freed once, and no device of it is used afterwards:
        // ibv_open_device(3) keeps what an opened one needs.
        unsafe { ibv_free_device_list(self.first) };
    }
}

/// The result of a call that returns 0, or an error number, or -1 with `errno`.
fn done(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(last_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}

/// The result of a call that returns an object, or null with `errno`.
fn made<T>(object: *mut T) -> io::Result<*mut T> {
    if object.is_null() { Err(last_error()) } else { Ok(object) }
}

/// Reading the descriptor, which must be open, returns at once from now on.
fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: open, by this function's contract; it is not kept.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = fcntl(fd, FcntlArg::F_GETFL)?;
    fcntl(fd, FcntlArg::F_SETFL(OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// What `errno` says. Not every call sets it: see that "Success" is not told as the reason of a failure.
fn last_error() -> io::Error {
    match Errno::last_raw() {
        0 => io::Error::other("the library gave no reason"),
        code => io::Error::from_raw_os_error(code),
    }
}

// Every call below is made under the contract of `Provider`: objects are live and this provider's own. Only what goes
// beyond that is said at each.
impl Provider for Libibverbs {
    unsafe fn open(&self, name: &str) -> io::Result<*mut ibv_context> {
        let list = List::get()?;
        let Some(device) = list.find(name) else {
            return Err(io::Error::from_raw_os_error(Errno::ENODEV as i32));
        };
        // SAFETY: the device is of the living list.
        if unsafe { (*device).transport_type } == IBV_TRANSPORT_IWARP {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "iWARP needs rdma_cm connections, which verbmark does not have yet",
            ));
        }
        Errno::clear();
        // SAFETY: the device is of the living list.
        let context = made(unsafe { ibv_open_device(device) })?;
        // SAFETY: the descriptor is the context's, which lives.
        if let Err(error) = set_nonblocking(unsafe { (*context).async_fd }) {
            // SAFETY: just opened, and used by nobody. The error that counts is the one we have.
            let _ = unsafe { ibv_close_device(context) };
            return Err(error);
        }
        Ok(context)
    }

    unsafe fn close(&self, context: *mut ibv_context) -> io::Result<()> {
        // SAFETY: the caller's contract; nothing made from the context is left.
        done(unsafe { ibv_close_device(context) })
    }

    unsafe fn query_device(&self, context: *mut ibv_context) -> io::Result<ibv_device_attr> {
        let mut attr = ibv_device_attr::default();
        // SAFETY: the caller's contract; `attr` is written to.
        done(unsafe { ibv_query_device(context, &mut attr) })?;
        Ok(attr)
    }

    unsafe fn on_demand_paging(&self, context: *mut ibv_context) -> io::Result<ibv_odp_caps> {
        // SAFETY: the caller's contract.
        Ok(unsafe { extended::query_device(context) }?.odp_caps)
    }

    unsafe fn query_port(&self, context: *mut ibv_context, port: u8) -> io::Result<ibv_port_attr> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the caller's contract; the exported function writes a prefix of `ibv_port_attr` (asserted above), the
        // rest stays zero.
        done(unsafe { ibv_query_port(context, port, (&raw mut attr).cast()) })?;
        Ok(attr)
    }

    unsafe fn gid_table(&self, context: *mut ibv_context) -> io::Result<Vec<ibv_gid_entry>> {
        // SAFETY: the caller's contract.
        let ports = unsafe { self.query_device(context) }?.phys_port_cnt;
        let mut most = 0;
        for port in 1..=ports {
            // SAFETY: the caller's contract.
            let attr = unsafe { self.query_port(context, port) }?;
            most += usize::try_from(attr.gid_tbl_len).unwrap_or(0);
        }
        let mut table = vec![ibv_gid_entry::default(); most];
        // SAFETY: the caller's contract; the table has room for `most` entries of the given size. The library asks the
        // kernel for the valid ones at once, or walks sysfs where the kernel is older than 5.10.
        let found = unsafe {
            ibverbs_sys::_ibv_query_gid_table(
                context,
                table.as_mut_ptr(),
                most,
                0,
                mem::size_of::<ibv_gid_entry>(),
            )
        };
        match usize::try_from(found) {
            Ok(found) => table.truncate(found),
            Err(_) => return Err(io::Error::from_raw_os_error(i32::try_from(-found).unwrap_or(0))),
        }
        Ok(table)
    }

    unsafe fn query_pkey(&self, context: *mut ibv_context, port: u8, index: u16) -> io::Result<u16> {
        let mut key = 0;
        Errno::clear();
        // SAFETY: the caller's contract; `key` is written to.
        done(unsafe { ibv_query_pkey(context, port, index.into(), &mut key) })?;
        Ok(u16::from_be(key))
    }

    unsafe fn alloc_pd(&self, context: *mut ibv_context) -> io::Result<*mut ibv_pd> {
        // SAFETY: the caller's contract.
        made(unsafe { ibv_alloc_pd(context) })
    }

    unsafe fn dealloc_pd(&self, pd: *mut ibv_pd) -> io::Result<()> {
        // SAFETY: the caller's contract; nothing made from it is left.
        done(unsafe { ibv_dealloc_pd(pd) })
    }

    unsafe fn reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut u8,
        length: usize,
        access: c_int,
    ) -> io::Result<*mut ibv_mr> {
        let flags = access as u32;
        // As the macro of the same name does in C: optional access is masked by the newer call where the kernel does not
        // know it, and refused by the older one.
        if flags & OPTIONAL_ACCESS != 0 {
            let iova = addr.addr() as u64;
            // SAFETY: as below.
            return made(unsafe { ibv_reg_mr_iova2(pd, addr.cast(), length, iova, flags) });
        }
        // SAFETY: the caller's contract, in particular that the memory stays mapped until ibv_dereg_mr succeeded.
        made(unsafe { ibv_reg_mr(pd, addr.cast(), length, access) })
    }

    unsafe fn dereg_mr(&self, mr: *mut ibv_mr) -> io::Result<()> {
        // SAFETY: the caller's contract.
        done(unsafe { ibv_dereg_mr(mr) })
    }

    unsafe fn create_channel(&self, context: *mut ibv_context) -> io::Result<*mut ibv_comp_channel> {
        // SAFETY: the caller's contract.
        let channel = made(unsafe { ibv_create_comp_channel(context) })?;
        // SAFETY: the descriptor is the channel's, which lives.
        if let Err(error) = set_nonblocking(unsafe { (*channel).fd }) {
            // SAFETY: just made, and used by nobody. The error that counts is the one we have.
            let _ = unsafe { ibv_destroy_comp_channel(channel) };
            return Err(error);
        }
        Ok(channel)
    }

    unsafe fn destroy_channel(&self, channel: *mut ibv_comp_channel) -> io::Result<()> {
        // SAFETY: the caller's contract; no CQ is attached to it any more.
        done(unsafe { ibv_destroy_comp_channel(channel) })
    }

    unsafe fn next_event(&self, channel: *mut ibv_comp_channel) -> io::Result<*mut ibv_cq> {
        let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the caller's contract. A CQ that an event names is alive: ibv_destroy_cq(3) takes its unread events
        // off the channel and waits for those that were read to be acknowledged.
        done(unsafe { ibv_get_cq_event(channel, &mut cq, &mut user) })?;
        Ok(cq)
    }

    unsafe fn ack_events(&self, cq: *mut ibv_cq, count: u32) {
        // SAFETY: the caller's contract: as many events of this CQ were taken and not yet acknowledged.
        unsafe { ibv_ack_cq_events(cq, count) };
    }

    unsafe fn create_cq(
        &self,
        context: *mut ibv_context,
        depth: u32,
        channel: Option<*mut ibv_comp_channel>,
    ) -> io::Result<*mut ibv_cq> {
        let depth = c_int::try_from(depth).map_err(|_| io::Error::from_raw_os_error(Errno::EINVAL as i32))?;
        // SAFETY: the caller's contract; vector 0 exists on every device.
        made(unsafe { ibv_create_cq(context, depth, ptr::null_mut(), channel.unwrap_or(ptr::null_mut()), 0) })
    }

    unsafe fn destroy_cq(&self, cq: *mut ibv_cq) -> io::Result<()> {
        // SAFETY: the caller's contract; no QP uses it any more and all its events are acknowledged.
        done(unsafe { ibv_destroy_cq(cq) })
    }

    unsafe fn create_ah(&self, pd: *mut ibv_pd, attr: &mut ibv_ah_attr) -> io::Result<*mut ibv_ah> {
        // SAFETY: the caller's contract.
        made(unsafe { ibv_create_ah(pd, attr) })
    }

    unsafe fn destroy_ah(&self, ah: *mut ibv_ah) -> io::Result<()> {
        // SAFETY: the caller's contract.
        done(unsafe { ibv_destroy_ah(ah) })
    }

    unsafe fn create_srq(&self, pd: *mut ibv_pd, attr: &mut ibv_srq_attr) -> io::Result<*mut ibv_srq> {
        let mut init = ibv_srq_init_attr { attr: *attr, ..Default::default() };
        // SAFETY: the caller's contract; what was granted is written back.
        let srq = made(unsafe { ibv_create_srq(pd, &mut init) })?;
        *attr = init.attr;
        Ok(srq)
    }

    unsafe fn set_srq_limit(&self, srq: *mut ibv_srq, limit: u32) -> io::Result<()> {
        let mut attr = ibv_srq_attr { srq_limit: limit, ..Default::default() };
        // SAFETY: the caller's contract.
        done(unsafe { ibv_modify_srq(srq, &mut attr, IBV_SRQ_LIMIT as c_int) })
    }

    unsafe fn destroy_srq(&self, srq: *mut ibv_srq) -> io::Result<()> {
        // SAFETY: the caller's contract; no QP uses it any more.
        done(unsafe { ibv_destroy_srq(srq) })
    }

    unsafe fn create_qp(&self, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> io::Result<*mut ibv_qp> {
        // SAFETY: the caller's contract, for the CQs in `init` too.
        made(unsafe { ibv_create_qp(pd, init) })
    }

    unsafe fn modify_qp(&self, qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: c_int) -> io::Result<()> {
        // SAFETY: the caller's contract.
        done(unsafe { ibv_modify_qp(qp, attr, mask) })
    }

    unsafe fn query_qp(&self, qp: *mut ibv_qp, mask: c_int) -> io::Result<ibv_qp_attr> {
        let mut attr = ibv_qp_attr::default();
        let mut init = ibv_qp_init_attr::default();
        // SAFETY: the caller's contract; both are written to.
        done(unsafe { ibv_query_qp(qp, &mut attr, mask, &mut init) })?;
        Ok(attr)
    }

    unsafe fn destroy_qp(&self, qp: *mut ibv_qp) -> io::Result<()> {
        // SAFETY: the caller's contract.
        done(unsafe { ibv_destroy_qp(qp) })
    }

    unsafe fn next_async_event(&self, context: *mut ibv_context) -> io::Result<(ibv_event_type, u32)> {
        let mut event =
            ibv_async_event { element: ibv_async_event__bindgen_ty_1 { port_num: 0 }, event_type: 0 };
        // SAFETY: the caller's contract; `event` is written to.
        done(unsafe { ibv_get_async_event(context, &mut event) })?;
        let number = match event.event_type {
            // SAFETY: such an event names a queue pair. It lives: ibv_destroy_qp(3) takes its unread events off the
            // context and waits for those that were read to be acknowledged.
            IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR | IBV_EVENT_QP_LAST_WQE_REACHED => unsafe {
                (*event.element.qp).qp_num
            },
            IBV_EVENT_PORT_ACTIVE..=IBV_EVENT_SM_CHANGE
            | IBV_EVENT_CLIENT_REREGISTER
            | IBV_EVENT_GID_CHANGE => {
                // SAFETY: such an event names a port.
                u32::try_from(unsafe { event.element.port_num }).unwrap_or(0)
            }
            _ => 0,
        };
        // SAFETY: taken just now, and acknowledged once.
        unsafe { ibv_ack_async_event(&mut event) };
        Ok((event.event_type, number))
    }

    unsafe fn not_ready(&self, _context: *mut ibv_context) -> Option<u64> {
        None
    }

    unsafe fn dropped(&self, _context: *mut ibv_context) -> Option<u64> {
        // No verb tells. Some drivers count for the whole port, in hw_counters of sysfs.
        None
    }

    unsafe fn async_fd<'a>(&self, context: *mut ibv_context) -> BorrowedFd<'a> {
        // SAFETY: the caller's contract: the context, and so its descriptor, lives through 'a.
        unsafe { BorrowedFd::borrow_raw((*context).async_fd) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_failing_becomes_its_error() {
        assert!(done(0).is_ok());
        for code in [Errno::EINVAL as i32, -(Errno::EINVAL as i32)] {
            assert_eq!(done(code).unwrap_err().raw_os_error(), Some(Errno::EINVAL as i32));
        }
        Errno::EAGAIN.set();
        assert_eq!(done(-1).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        Errno::ENOMEM.set();
        assert_eq!(made(ptr::null_mut::<u8>()).unwrap_err().raw_os_error(), Some(Errno::ENOMEM as i32));
        Errno::clear();
        assert_eq!(done(-1).unwrap_err().to_string(), "the library gave no reason");
    }

    #[test]
    fn a_machine_without_the_subsystem_has_no_devices() {
        // Whether it has any is the machine's business; that the list can be had is ours.
        assert!(list().is_ok());
    }
}
