//! RDMA devices without hardware: `emu0` (RoCE v2) and `emu1` (InfiniBand), between threads of one process.
//!
//! They are devices like any other behind [`Provider`]: they fill `ibv_context.ops` with functions of their own, so a
//! loop runs the same machine code on them as on a NIC. What they measure is this suite and the machine's memory, never
//! a network: a message is a copy made by the thread that posts it, complete when the post returns.
//!
//! They obey the rules of verbs: states and their attributes, keys with generations, bounds and rights, queue depths
//! that are given back by polling, packet sequence numbers, errors and flushes in order, completion events that fire
//! once, and asynchronous events where no completion tells. What they do not do: lose or reorder packets, multicast,
//! automatic path migration, memory windows.
//!
//! * **RC.** A send without a receive waits (receiver not ready). Whoever posts that receive carries it on, so a sender
//!   that sleeps for its completion is woken by it.
//! * **UC and UD.** A message that has no receive, or that its target does not allow, is dropped and counted, and its
//!   sender succeeds. What is wrong on the sender's side stops its send queue alone (SQE).
//! * **UD.** A datagram brings the header of its network, if it has one: always on `emu0`, by a global route on `emu1`;
//!   without one, the space for it is left as it was. One that is longer than the MTU completes with a local length
//!   error; some devices pretend to send it.
//! * **Shared receive queues.** A place is free as soon as a message took its receive; on other devices, when its
//!   completion was polled.
//!
//! # Misbehaviour on demand
//!
//! The environment variable `VERBMARK_EMULATED` is read whenever a device is opened. It holds a list of words,
//! separated by commas; opening fails with EINVAL if one is not known.
//!
//! | word | what happens |
//! |---|---|
//! | `corrupt=N` | a byte in the middle of every Nth message of a queue pair is changed on the way |
//! | `lose=N` | every Nth message of a queue pair is lost, over UC and UD |
//! | `port-down` | the port is DOWN; what is sent is never acknowledged |
//! | `no-memlock` | registering memory fails with ENOMEM |
//! | `no-inline` | no inline data is granted; asking for some is EINVAL |
//! | `max-msg=BYTES` | the largest message of the port; a longer one completes with a local length error |
//! | `fail-qp` | creating a queue pair fails with ENOMEM |
//! | `delay=NS` | nothing posted to a send queue is visible before that many nanoseconds have passed |
//! | `die-after=N` | the send after the Nth of a queue pair completes with a fatal error, and the queue pair is in ERR |
//! | `port-error-after=N` | the port goes down, with an event, at the send after the Nth of a queue pair |
//! | `device-fatal-after=N` | the device fails, with an event, at the send after the Nth of a queue pair: nothing completes any more |
//! | `qp-fatal-after=N` | a queue pair fails, with an event, at the send after its Nth: nothing of it completes any more |
//! | `pace=NS` | a queue pair takes a message only that many nanoseconds after the one before, for RC |
//! | `late-receives=NS` | a receive can be used only that many nanoseconds after the one before, as if posted late, for RC |
//! | `slow-receives=NS` | posting a receive keeps its poster busy for that many nanoseconds |
//! | `no-odp` | memory that is not pinned is refused |
//! | `pkey=N` | the port's one partition key is this number; nothing but the query looks at it |
//! | `gids=link-local` | the Ethernet port has no GID made of an IPv4 address |
//! | `gids=ipv4` | the Ethernet port has no other GID |
//! | `gids=roce-v1` | its GIDs are those of RoCE v1, as it says; packets are what they were |
//! | `mtu=BYTES` | the active MTU of the port; nothing but the query looks at it |
//! | `send-error=STATUS` | the first send of a queue pair completes with this number of `ibv_wc_status`, and the queue pair is in ERR |
//! | `withhold-receives` | a message finds no receive at its target, for RC |
//! | `short-receives=BYTES` | a receive has no more room than this for a message, for RC |
//! | `wrong-rkey` | memory is told of with a remote key that is not its own |
//! | `wrong-qpn` | a connection sends to a number that no queue pair has |
//! | `first:WORD` | the word, for the first device alone that the process opens: the server's, in a loopback |
//!
//! # Who owns what
//!
//! | file | owns |
//! |---|---|
//! | `device` | the two devices, opened ones, ports, addresses |
//! | `limits`, `faults`, `misbehaviour` | what is promised, and how promises are broken |
//! | `memory` | protection domains, regions, keys, copies |
//! | `completion`, `channel` | completion queues and their events |
//! | `async_event` | what is told outside of any queue |
//! | `queue_pair`, `numbers` | what a queue pair is made of, and its number |
//! | `states` | transitions, and what moving to ERR or RESET does |
//! | `send_queue`, `requester` | posting a send and executing it |
//! | `unacknowledged` | executing one that nobody answers |
//! | `address_handle`, `grh` | where a datagram goes, and the header that it brings |
//! | `receive_queue`, `responder` | posting a receive and what the target of a message does |
//! | `shared_receive` | receives that several queue pairs take |
//! | `deferral`, `timer` | sends that wait for a receive |
//! | `wire` | what the two halves tell each other |
//! | `ring`, `sync` | building blocks |
//! | `virtual_time` | in tests alone: delays that take no time |
//!
//! Every pointer to memory that the data path uses was found by its key, under the lock of a send queue; the caller of
//! `reg_mr` vouched for it, and `dereg_mr` returns when nobody holds such a lock any more.

mod address_handle;
mod async_event;
mod channel;
mod completion;
mod deferral;
mod device;
mod faults;
mod grh;
mod limits;
mod memory;
mod misbehaviour;
mod numbers;
mod queue_pair;
mod receive_queue;
mod requester;
mod responder;
mod ring;
mod send_queue;
mod shared_receive;
mod states;
mod sync;
#[cfg(test)]
mod tests;
mod timer;
mod unacknowledged;
#[cfg(test)]
mod virtual_time;
mod wire;

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;

use ibverbs_sys::{
    ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr, ibv_event_type,
    ibv_gid_entry, ibv_mr, ibv_odp_caps, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_srq, ibv_srq_attr,
};
use nix::errno::Errno;

use super::provider::Provider;
use address_handle::AddressHandle;
use channel::Channel;
use completion::Cq;
use device::Context;
use faults::Faults;
use memory::Pd;
use queue_pair::Qp;
use shared_receive::SharedReceives;
#[cfg(test)]
pub(crate) use virtual_time::VirtualTime;

/// The provider of the emulated devices.
pub(super) fn provider() -> &'static dyn Provider {
    &Emulated
}

/// Their names, in the order in which they are to be listed.
pub(super) fn device_names() -> &'static [&'static str] {
    &device::NAMES
}

/// The GUID of one of them; 0 for any other name.
pub(super) fn node_guid(name: &str) -> u64 {
    device::DEVICES.iter().find(|device| device.name == name).map_or(0, |device| device.guid)
}

struct Emulated;

// SAFETY of every unsafe block below: the contract of the trait, which is that of the man page each method names:
// pointers are live objects of this provider and are not used after they were destroyed.
impl Provider for Emulated {
    unsafe fn open(&self, name: &str) -> io::Result<*mut ibv_context> {
        Context::open(name, Faults::from_environment()?)
    }

    unsafe fn close(&self, context: *mut ibv_context) -> io::Result<()> {
        // SAFETY: see above.
        unsafe { Context::close(context) }
    }

    unsafe fn query_device(&self, context: *mut ibv_context) -> io::Result<ibv_device_attr> {
        // SAFETY: see above.
        Ok(unsafe { Context::from_raw(context) }.attributes())
    }

    unsafe fn on_demand_paging(&self, context: *mut ibv_context) -> io::Result<ibv_odp_caps> {
        // SAFETY: see above.
        Ok(unsafe { Context::from_raw(context) }.on_demand_paging())
    }

    unsafe fn query_port(&self, context: *mut ibv_context, port: u8) -> io::Result<ibv_port_attr> {
        // SAFETY: see above.
        unsafe { Context::from_raw(context) }.port(port)
    }

    unsafe fn gid_table(&self, context: *mut ibv_context) -> io::Result<Vec<ibv_gid_entry>> {
        // SAFETY: see above.
        Ok(unsafe { Context::from_raw(context) }.gid_table())
    }

    unsafe fn query_pkey(&self, context: *mut ibv_context, port: u8, index: u16) -> io::Result<u16> {
        // SAFETY: see above.
        let faults = unsafe { Context::from_raw(context) }.faults;
        if (port, index) == (device::PORT, 0) { Ok(faults.pkey) } else { Err(Errno::EINVAL.into()) }
    }

    unsafe fn alloc_pd(&self, context: *mut ibv_context) -> io::Result<*mut ibv_pd> {
        // SAFETY: see above.
        Ok(Pd::allocate(unsafe { Context::share(context) }))
    }

    unsafe fn dealloc_pd(&self, pd: *mut ibv_pd) -> io::Result<()> {
        // SAFETY: see above.
        unsafe { Pd::deallocate(pd) }
    }

    unsafe fn reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut u8,
        length: usize,
        access: c_int,
    ) -> io::Result<*mut ibv_mr> {
        // SAFETY: see above.
        unsafe { memory::register(pd, addr, length, access) }
    }

    unsafe fn dereg_mr(&self, mr: *mut ibv_mr) -> io::Result<()> {
        // SAFETY: see above.
        unsafe { memory::deregister(mr) };
        Ok(())
    }

    unsafe fn create_channel(&self, context: *mut ibv_context) -> io::Result<*mut ibv_comp_channel> {
        // SAFETY: see above.
        Channel::create(unsafe { Context::share(context) })
    }

    unsafe fn destroy_channel(&self, channel: *mut ibv_comp_channel) -> io::Result<()> {
        // SAFETY: see above.
        unsafe { Channel::destroy(channel) }
    }

    unsafe fn next_event(&self, channel: *mut ibv_comp_channel) -> io::Result<*mut ibv_cq> {
        // SAFETY: see above.
        unsafe { Channel::share(channel) }.take()
    }

    unsafe fn ack_events(&self, cq: *mut ibv_cq, count: u32) {
        // SAFETY: see above.
        unsafe { Cq::from_raw(cq) }.acknowledge(count);
    }

    unsafe fn create_cq(
        &self,
        context: *mut ibv_context,
        depth: u32,
        channel: Option<*mut ibv_comp_channel>,
    ) -> io::Result<*mut ibv_cq> {
        // SAFETY: see above.
        let (context, channel) = unsafe { (Context::share(context), channel.map(|raw| Channel::share(raw))) };
        Cq::create(context, depth, channel)
    }

    unsafe fn destroy_cq(&self, cq: *mut ibv_cq) -> io::Result<()> {
        // SAFETY: see above.
        unsafe { Cq::destroy(cq) }
    }

    unsafe fn create_ah(&self, pd: *mut ibv_pd, attr: &mut ibv_ah_attr) -> io::Result<*mut ibv_ah> {
        // SAFETY: see above.
        unsafe { AddressHandle::create(pd, attr) }
    }

    unsafe fn destroy_ah(&self, ah: *mut ibv_ah) -> io::Result<()> {
        // SAFETY: see above.
        unsafe { AddressHandle::destroy(ah) };
        Ok(())
    }

    unsafe fn create_srq(&self, pd: *mut ibv_pd, attr: &mut ibv_srq_attr) -> io::Result<*mut ibv_srq> {
        // SAFETY: see above.
        unsafe { SharedReceives::create(pd, attr) }
    }

    unsafe fn set_srq_limit(&self, srq: *mut ibv_srq, limit: u32) -> io::Result<()> {
        // SAFETY: see above.
        unsafe { SharedReceives::share(srq) }.set_limit(limit)
    }

    unsafe fn destroy_srq(&self, srq: *mut ibv_srq) -> io::Result<()> {
        // SAFETY: see above.
        unsafe { SharedReceives::destroy(srq) }
    }

    unsafe fn create_qp(&self, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> io::Result<*mut ibv_qp> {
        // SAFETY: see above.
        unsafe { Qp::create(pd, init) }
    }

    unsafe fn modify_qp(&self, qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: c_int) -> io::Result<()> {
        // SAFETY: see above.
        unsafe { Qp::from_raw(qp) }.modify(attr, mask)
    }

    unsafe fn query_qp(&self, qp: *mut ibv_qp, _mask: c_int) -> io::Result<ibv_qp_attr> {
        // SAFETY: see above.
        Ok(unsafe { Qp::from_raw(qp) }.query())
    }

    unsafe fn destroy_qp(&self, qp: *mut ibv_qp) -> io::Result<()> {
        // SAFETY: see above.
        unsafe { Qp::destroy(qp) };
        Ok(())
    }

    unsafe fn next_async_event(&self, context: *mut ibv_context) -> io::Result<(ibv_event_type, u32)> {
        // SAFETY: see above.
        let event = unsafe { Context::from_raw(context) }.events.take()?;
        Ok((event.kind, event.number))
    }

    unsafe fn not_ready(&self, context: *mut ibv_context) -> Option<u64> {
        // SAFETY: see above.
        Some(unsafe { Context::from_raw(context) }.not_ready())
    }

    unsafe fn dropped(&self, context: *mut ibv_context) -> Option<u64> {
        // SAFETY: see above.
        Some(unsafe { Context::from_raw(context) }.dropped())
    }

    unsafe fn async_fd<'a>(&self, context: *mut ibv_context) -> BorrowedFd<'a> {
        // SAFETY: see above; the caller does not use the descriptor after closing the context.
        unsafe { Context::from_raw(context) }.events.fd()
    }
}
