//! The two devices and what an opened one is: identity, port, addresses and limits.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use ibverbs_sys::{
    IBV_ATOMIC_GLOB, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ERR, IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1,
    IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_MTU_4096, IBV_NODE_CA,
    IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_RECV,
    IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_WRITE, IBV_TRANSPORT_IB, ibv_ah_attr, ibv_context, ibv_device,
    ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_odp_caps, ibv_port_attr, ibv_port_state,
};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;

use super::super::port::mtu_code;
use super::async_event::{AsyncEvent, AsyncEvents};
use super::faults::{Faults, Gids};
use super::{completion, limits, receive_queue, requester, shared_receive};

/// The one port of a device.
pub(super) const PORT: u8 = 1;
/// Interface index of `lo`, when the kernel does not tell.
const LOOPBACK_INDEX: u32 = 1;

/// What a port is attached to; it decides how a destination is addressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkLayer {
    /// By GID, as RoCE v2 does.
    Ethernet,
    /// By LID.
    InfiniBand,
}

/// A device that can be opened.
#[derive(Debug)]
pub(super) struct Device {
    /// Name, as in `ibv_devices`.
    pub name: &'static str,
    /// What its port is attached to.
    pub link_layer: LinkLayer,
    /// Local identifier of the port; 0 on Ethernet.
    pub lid: u16,
    /// Node GUID in host byte order. The company bits are "locally administered".
    pub guid: u64,
}

/// The devices, in the order in which they are listed.
pub(super) static DEVICES: [Device; 2] = [
    Device { name: "emu0", link_layer: LinkLayer::Ethernet, lid: 0, guid: 0x0200_00ff_fe00_0e00 },
    Device { name: "emu1", link_layer: LinkLayer::InfiniBand, lid: 17, guid: 0x0200_00ff_fe00_0e01 },
];

/// Their names, in the same order.
pub(super) static NAMES: [&str; 2] = [DEVICES[0].name, DEVICES[1].name];

/// An address that callers may read an `ibv_device` at, for as long as the process lives.
struct Listing([ibv_device; 2]);

// SAFETY: never written after it was built, and its function pointers are null.
unsafe impl Sync for Listing {}
// SAFETY: as above.
unsafe impl Send for Listing {}

static LISTING: LazyLock<Listing> = LazyLock::new(|| {
    Listing(DEVICES.each_ref().map(|device| {
        // SAFETY: integers, arrays of them and optional function pointers, for all of which zero is a value.
        let mut ibv: ibv_device = unsafe { MaybeUninit::zeroed().assume_init() };
        ibv.node_type = IBV_NODE_CA;
        ibv.transport_type = IBV_TRANSPORT_IB;
        write_text(&mut ibv.name, device.name);
        write_text(&mut ibv.dev_name, device.name);
        ibv
    }))
});

/// Writes `text` into a zeroed C string buffer, cut to fit.
fn write_text<const N: usize>(into: &mut [c_char; N], text: &str) {
    for (to, from) in into[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

impl Device {
    /// The link-local GID made of the node GUID, which every port has at index 0.
    fn link_local(&self) -> ibv_gid {
        let mut raw = [0; 16];
        raw[..2].copy_from_slice(&[0xfe, 0x80]);
        raw[8..].copy_from_slice(&self.guid.to_be_bytes());
        ibv_gid { raw }
    }

    /// The GIDs by index.
    fn gids(&self, faults: &Faults) -> Vec<ibv_gid> {
        let mut raw = [0; 16];
        raw[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
        let (link_local, of_ipv4) = (self.link_local(), ibv_gid { raw });
        match faults.gids {
            Gids::All | Gids::RoceV1 if self.link_layer == LinkLayer::Ethernet => vec![link_local, of_ipv4],
            Gids::Ipv4 if self.link_layer == LinkLayer::Ethernet => vec![of_ipv4],
            _ => vec![link_local],
        }
    }
}

/// An opened device. Its address is the `ibv_context` that callers hold.
#[repr(C)]
pub(super) struct Context {
    ibv: UnsafeCell<ibv_context>,
    /// Which one.
    pub device: &'static Device,
    /// How it misbehaves.
    pub faults: Faults,
    /// What it has to say outside of any queue.
    pub events: AsyncEvents,
    port_down: AtomicBool,
    /// Nothing that is posted has any effect.
    silent: AtomicBool,
    /// Times that a message found no receive.
    not_ready: AtomicU64,
    /// Messages that arrived and were dropped.
    dropped: AtomicU64,
    /// Protection domains, CQs and channels.
    children: AtomicU32,
}

// SAFETY: `ibv` is written before the context is shared and only read afterwards; the rest synchronises itself.
unsafe impl Sync for Context {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Context {}

impl Context {
    /// Opens the device of this name. ENODEV when there is none.
    pub(super) fn open(name: &str, faults: Faults) -> io::Result<*mut ibv_context> {
        let index = NAMES.iter().position(|known| *known == name).ok_or(Errno::ENODEV)?;
        let events = AsyncEvents::new()?;
        // SAFETY: integers, pointers, optional functions and a POSIX mutex, for all of which zero is a value.
        let mut ibv: ibv_context = unsafe { MaybeUninit::zeroed().assume_init() };
        ibv.device = (&raw const LISTING.0[index]).cast_mut();
        ibv.cmd_fd = -1;
        ibv.async_fd = events.fd().as_raw_fd();
        ibv.num_comp_vectors = 1;
        ibv.ops.post_send = Some(requester::post_send);
        ibv.ops.post_recv = Some(receive_queue::post_recv);
        ibv.ops.post_srq_recv = Some(shared_receive::post_srq_recv);
        ibv.ops.poll_cq = Some(completion::poll_cq);
        ibv.ops.req_notify_cq = Some(completion::req_notify_cq);
        let context = Self {
            ibv: UnsafeCell::new(ibv),
            device: &DEVICES[index],
            faults,
            events,
            port_down: AtomicBool::new(faults.port_down),
            silent: AtomicBool::new(false),
            not_ready: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            children: AtomicU32::new(0),
        };
        Ok(Arc::into_raw(Arc::new(context)).cast_mut().cast())
    }

    /// The context behind `raw`.
    ///
    /// # Safety
    /// `raw` came from [`Context::open`] and is not closed while the reference is in use.
    pub(super) unsafe fn from_raw<'a>(raw: *mut ibv_context) -> &'a Self {
        // SAFETY: the caller's contract.
        unsafe { &*raw.cast_const().cast::<Self>() }
    }

    /// Another owner of the context behind `raw`.
    ///
    /// # Safety
    /// As for [`Context::from_raw`], for the duration of the call.
    pub(super) unsafe fn share(raw: *mut ibv_context) -> Arc<Self> {
        let raw = raw.cast_const().cast::<Self>();
        // SAFETY: the strong count that `open` gave to the caller is still there.
        unsafe {
            Arc::increment_strong_count(raw);
            Arc::from_raw(raw)
        }
    }

    /// Closes the context. EBUSY while objects of it exist.
    ///
    /// # Safety
    /// As for [`Context::from_raw`], and `raw` is not used again when this succeeds.
    pub(super) unsafe fn close(raw: *mut ibv_context) -> io::Result<()> {
        // SAFETY: the caller's contract.
        if unsafe { Self::from_raw(raw) }.children.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY.into());
        }
        // SAFETY: the strong count that `open` gave to the caller, who gives it back here.
        drop(unsafe { Arc::from_raw(raw.cast_const().cast::<Self>()) });
        Ok(())
    }

    /// The address that objects of this context show in their `context` field.
    pub(super) fn as_ibv(&self) -> *mut ibv_context {
        self.ibv.get()
    }

    /// An object of this context was created.
    pub(super) fn add_child(&self) {
        self.children.fetch_add(1, Ordering::Relaxed);
    }

    /// An object of this context was destroyed.
    pub(super) fn remove_child(&self) {
        self.children.fetch_sub(1, Ordering::Release);
    }

    /// Nothing that is sent through the port arrives.
    pub(super) fn is_down(&self) -> bool {
        self.port_down.load(Ordering::Relaxed)
    }

    /// The port goes down for good.
    #[cold]
    pub(super) fn lose_port(&self) {
        if !self.port_down.swap(true, Ordering::Relaxed) {
            self.events.raise(AsyncEvent { kind: IBV_EVENT_PORT_ERR, number: PORT.into(), object: 0 });
        }
    }

    /// The device failed, and nothing that is sent through it completes any more.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// The device fails: an event is the last that is heard of it.
    #[cold]
    pub(super) fn fall_silent(&self) {
        if !self.silent.swap(true, Ordering::Relaxed) {
            self.events.raise(AsyncEvent { kind: IBV_EVENT_DEVICE_FATAL, number: 0, object: 0 });
        }
    }

    /// A message of a queue pair here found no receive at its target, and waits for one.
    #[cold]
    pub(super) fn count_not_ready(&self) {
        self.not_ready.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was so.
    pub(super) fn not_ready(&self) -> u64 {
        self.not_ready.load(Ordering::Relaxed)
    }

    /// A message arrived that no receive was posted for, or that its target does not take, and whose sender is not
    /// told.
    #[cold]
    pub(super) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Messages that were dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The limits of the device.
    pub(super) fn attributes(&self) -> ibv_device_attr {
        // SAFETY: integers and arrays of them.
        let mut attr: ibv_device_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        write_text(&mut attr.fw_ver, concat!("emulated ", env!("CARGO_PKG_VERSION")));
        attr.node_guid = self.device.guid.to_be();
        attr.sys_image_guid = self.device.guid.to_be();
        attr.max_mr_size = u64::MAX;
        attr.page_size_cap = 0xffff_f000;
        attr.max_qp = limits::MAX_QP as c_int;
        attr.max_qp_wr = limits::MAX_QP_WR as c_int;
        attr.max_sge = limits::MAX_SGE as c_int;
        attr.max_sge_rd = limits::MAX_SGE as c_int;
        attr.max_cq = c_int::from(u16::MAX);
        attr.max_cqe = limits::MAX_CQE as c_int;
        attr.max_mr = limits::MAX_MR as c_int - 1;
        attr.max_pd = c_int::from(u16::MAX);
        attr.max_srq = c_int::from(u16::MAX);
        attr.max_srq_wr = limits::MAX_QP_WR as c_int;
        attr.max_srq_sge = limits::MAX_SGE as c_int;
        attr.max_ah = limits::MAX_AH as c_int;
        attr.max_qp_rd_atom = c_int::from(limits::MAX_RD_ATOMIC);
        attr.max_qp_init_rd_atom = c_int::from(limits::MAX_RD_ATOMIC);
        attr.max_res_rd_atom = limits::MAX_QP as c_int * c_int::from(limits::MAX_RD_ATOMIC);
        attr.atomic_cap = IBV_ATOMIC_GLOB;
        attr.max_pkeys = 1;
        attr.phys_port_cnt = 1;
        attr
    }

    /// A processor that makes the copies brings in what it touches, in whichever queue pair.
    pub(super) fn on_demand_paging(&self) -> ibv_odp_caps {
        let mut caps = ibv_odp_caps::default();
        if !self.faults.no_odp {
            let all = IBV_ODP_SUPPORT_SEND
                | IBV_ODP_SUPPORT_RECV
                | IBV_ODP_SUPPORT_WRITE
                | IBV_ODP_SUPPORT_READ
                | IBV_ODP_SUPPORT_ATOMIC;
            caps.general_caps = u64::from(IBV_ODP_SUPPORT);
            caps.per_transport_caps.rc_odp_caps = all;
            caps.per_transport_caps.uc_odp_caps = all;
            caps.per_transport_caps.ud_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV;
        }
        caps
    }

    /// The port. EINVAL for a number other than 1. Width and speed are left out: there is no wire that could have any.
    pub(super) fn port(&self, port: u8) -> io::Result<ibv_port_attr> {
        if port != PORT {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: integers only.
        let mut attr: ibv_port_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        let (state, physical) = match self.is_down() {
            true => (ibv_port_state::IBV_PORT_DOWN, 3),    // "Disabled"
            false => (ibv_port_state::IBV_PORT_ACTIVE, 5), // "LinkUp"
        };
        attr.state = state;
        attr.phys_state = physical;
        // The code of `limits::MTU`.
        attr.max_mtu = IBV_MTU_4096;
        attr.active_mtu = mtu_code(self.faults.mtu).unwrap_or(IBV_MTU_4096);
        attr.gid_tbl_len = self.device.gids(&self.faults).len() as c_int;
        attr.max_msg_sz = self.faults.max_message;
        attr.pkey_tbl_len = 1;
        attr.lid = self.device.lid;
        attr.link_layer = match self.device.link_layer {
            LinkLayer::Ethernet => IBV_LINK_LAYER_ETHERNET as u8,
            LinkLayer::InfiniBand => {
                attr.sm_lid = 1;
                IBV_LINK_LAYER_INFINIBAND as u8
            }
        };
        Ok(attr)
    }

    /// The GIDs of the port.
    pub(super) fn gid_table(&self) -> Vec<ibv_gid_entry> {
        let (kind, interface) = match self.device.link_layer {
            LinkLayer::Ethernet => {
                let is_v1 = self.faults.gids == Gids::RoceV1;
                let kind = if is_v1 { IBV_GID_TYPE_ROCE_V1 } else { IBV_GID_TYPE_ROCE_V2 };
                (kind, if_nametoindex("lo").unwrap_or(LOOPBACK_INDEX))
            }
            LinkLayer::InfiniBand => (IBV_GID_TYPE_IB, 0),
        };
        let gids = self.device.gids(&self.faults);
        let entry = |(index, gid): (usize, ibv_gid)| ibv_gid_entry {
            gid,
            gid_index: index as u32,
            port_num: u32::from(PORT),
            gid_type: kind,
            ndev_ifindex: interface,
        };
        gids.into_iter().enumerate().map(entry).collect()
    }

    /// A queue pair may be given this address: what the kernel checks. Whether anybody is there is another question.
    pub(super) fn accepts(&self, address: &ibv_ah_attr) -> bool {
        let global = address.is_global != 0;
        address.port_num == PORT
            && (global || self.device.link_layer == LinkLayer::InfiniBand)
            && (!global || usize::from(address.grh.sgid_index) < self.device.gids(&self.faults).len())
    }

    /// The own GID that an address names; zeroes if it names none.
    pub(super) fn source_gid(&self, address: &ibv_ah_attr) -> [u8; 16] {
        let gids = self.device.gids(&self.faults);
        let named = gids.get(usize::from(address.grh.sgid_index)).filter(|_| address.is_global != 0);
        // SAFETY: every bit pattern is a GID.
        named.map_or([0; 16], |gid| unsafe { gid.raw })
    }

    /// Packets to this address come out at a port of the same device.
    pub(super) fn reaches(&self, address: &ibv_ah_attr) -> bool {
        if self.is_down() {
            return false;
        }
        let gids = self.device.gids(&self.faults);
        // SAFETY: every bit pattern is a GID.
        let raw = |gid: &ibv_gid| unsafe { gid.raw };
        let global = address.is_global != 0;
        // On Ethernet a path has a source of the same family as its destination; here that is the very same GID.
        let same_gid = || {
            gids.get(usize::from(address.grh.sgid_index))
                .is_some_and(|gid| raw(gid) == raw(&address.grh.dgid))
        };
        match self.device.link_layer {
            LinkLayer::Ethernet => global && same_gid(),
            LinkLayer::InfiniBand => address.dlid == self.device.lid && (!global || same_gid()),
        }
    }
}
