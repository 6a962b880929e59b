//! Two ends of a connection, held by raw pointers and destroyed in the right order.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr;

use ibverbs_sys::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::completion::Completion;
use super::super::device::Context;
use super::super::faults::Faults;
use super::super::{Provider, provider};
pub(super) use super::request::Wr;

pub(super) use ibverbs_sys::ibv_wc_opcode as wc_opcode;
pub(super) use ibverbs_sys::ibv_wc_status as status;
pub(super) use ibverbs_sys::ibv_wr_opcode as opcode;

pub(super) const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
pub(super) const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
pub(super) const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
pub(super) const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
pub(super) const REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
pub(super) const REMOTE_READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
pub(super) const REMOTE_ATOMIC: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
pub(super) const ALL_ACCESS: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

/// Key of datagram queue pairs.
pub(super) const QKEY: u32 = 0x1234_5678;
/// Bytes of the registered memory of an end.
pub(super) const MEMORY: usize = 1 << 16;
pub(super) const EINVAL: c_int = nix::libc::EINVAL;
pub(super) const ENOMEM: c_int = nix::libc::ENOMEM;

/// What a test wants to be different.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub device: &'static str,
    pub kind: ibv_qp_type::Type,
    pub faults: Faults,
    pub send_depth: u32,
    pub recv_depth: u32,
    pub cq_depth: u32,
    pub sge: u32,
    pub inline: u32,
    /// Completions can be slept for.
    pub events: bool,
    /// Rights of the memory and of the queue pair.
    pub memory_access: u32,
    pub qp_access: u32,
    pub sq_psn: u32,
    pub rq_psn: u32,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub rd_atomic: u8,
    pub mtu: ibv_mtu,
    pub signal_all: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            device: "emu0",
            kind: ibv_qp_type::IBV_QPT_RC,
            faults: Faults::default(),
            send_depth: 16,
            recv_depth: 16,
            cq_depth: 64,
            sge: 4,
            inline: 220,
            events: false,
            memory_access: ALL_ACCESS,
            qp_access: ALL_ACCESS,
            sq_psn: 0x00ff_fffe,
            rq_psn: 0x00ff_fffe,
            rnr_retry: 7,
            rnr_timer: 12,
            rd_atomic: 16,
            mtu: IBV_MTU_1024,
            signal_all: false,
        }
    }
}

/// One end. Public pointers, because tests break things.
pub(super) struct End {
    pub provider: &'static dyn Provider,
    pub setup: Setup,
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub mr: *mut ibv_mr,
    pub memory: *mut u8,
}

// SAFETY: everything behind these pointers may be used from any thread.
unsafe impl Send for End {}
// SAFETY: as above.
unsafe impl Sync for End {}

impl End {
    /// An end in RESET.
    pub fn new(setup: Setup) -> Self {
        let provider = provider();
        // SAFETY: objects are made from live parents and destroyed in `drop`; zeroes are values of these structures.
        unsafe {
            let memory = alloc_zeroed(layout());
            let context = Context::open(setup.device, setup.faults).unwrap();
            let pd = provider.alloc_pd(context).unwrap();
            let mr = provider.reg_mr(pd, memory, MEMORY, setup.memory_access as c_int).unwrap();
            let channel =
                if setup.events { provider.create_channel(context).unwrap() } else { ptr::null_mut() };
            let on = setup.events.then_some(channel);
            let send_cq = provider.create_cq(context, setup.cq_depth, on).unwrap();
            let recv_cq = provider.create_cq(context, setup.cq_depth, on).unwrap();
            let mut end = Self {
                provider,
                setup,
                context,
                pd,
                channel,
                send_cq,
                recv_cq,
                qp: ptr::null_mut(),
                mr,
                memory,
            };
            end.qp = provider.create_qp(pd, &mut end.init()).unwrap();
            end
        }
    }

    pub fn init(&self) -> ibv_qp_init_attr {
        // SAFETY: integers and pointers.
        let mut init: ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        init.send_cq = self.send_cq;
        init.recv_cq = self.recv_cq;
        init.qp_type = self.setup.kind;
        init.sq_sig_all = self.setup.signal_all.into();
        init.cap.max_send_wr = self.setup.send_depth;
        init.cap.max_recv_wr = self.setup.recv_depth;
        init.cap.max_send_sge = self.setup.sge;
        init.cap.max_recv_sge = self.setup.sge;
        init.cap.max_inline_data = self.setup.inline;
        init
    }

    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { (*self.qp).qp_num }
    }

    pub fn key(&self) -> u32 {
        // SAFETY: the region is live.
        unsafe { (*self.mr).rkey }
    }

    pub fn addr(&self, offset: usize) -> u64 {
        self.memory.expose_provenance() as u64 + offset as u64
    }

    pub fn sge(&self, offset: usize, length: usize) -> ibv_sge {
        ibv_sge { addr: self.addr(offset), length: length as u32, lkey: self.key() }
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= MEMORY);
        // SAFETY: in bounds; tests do not touch memory that a device is using.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.add(offset), bytes.len()) };
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= MEMORY);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.memory.add(offset), len) }.to_vec()
    }

    /// Attributes for every transition, towards a queue pair of this number on the same device.
    pub fn attributes(&self, peer: u32) -> ibv_qp_attr {
        // SAFETY: integers and a GID.
        let mut attr: ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attr.port_num = 1;
        attr.qp_access_flags = self.setup.qp_access;
        attr.path_mtu = self.setup.mtu;
        attr.dest_qp_num = peer;
        attr.rq_psn = self.setup.rq_psn;
        attr.sq_psn = self.setup.sq_psn;
        attr.max_rd_atomic = self.setup.rd_atomic;
        attr.max_dest_rd_atomic = self.setup.rd_atomic;
        attr.min_rnr_timer = self.setup.rnr_timer;
        attr.qkey = QKEY;
        attr.timeout = 14;
        attr.retry_cnt = 6;
        attr.rnr_retry = self.setup.rnr_retry;
        attr.ah_attr.port_num = 1;
        // SAFETY: the context is live.
        let (port, gids) = unsafe {
            (
                self.provider.query_port(self.context, 1).unwrap(),
                self.provider.gid_table(self.context).unwrap(),
            )
        };
        if port.link_layer == IBV_LINK_LAYER_ETHERNET as u8 {
            let last = gids.last().unwrap();
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid = last.gid;
            attr.ah_attr.grh.sgid_index = last.gid_index as u8;
            attr.ah_attr.grh.hop_limit = 64;
        } else {
            attr.ah_attr.dlid = port.lid;
        }
        attr
    }

    pub fn modify(&self, state: ibv_qp_state::Type, attr: &ibv_qp_attr, mask: u32) -> Result<(), c_int> {
        let mut attr = *attr;
        attr.qp_state = state;
        // SAFETY: the queue pair is live.
        unsafe { self.provider.modify_qp(self.qp, &mut attr, mask as c_int) }
            .map_err(|error| error.raw_os_error().unwrap())
    }

    /// RESET to RTS.
    pub fn connect(&self, attr: &ibv_qp_attr) {
        let [to_init, to_rtr, to_rts] = masks(self.setup.kind);
        self.modify(ibv_qp_state::IBV_QPS_INIT, attr, to_init).unwrap();
        self.modify(ibv_qp_state::IBV_QPS_RTR, attr, to_rtr).unwrap();
        self.modify(ibv_qp_state::IBV_QPS_RTS, attr, to_rts).unwrap();
    }

    pub fn to_error(&self) {
        self.modify(ibv_qp_state::IBV_QPS_ERR, &self.attributes(0), STATE).unwrap();
    }

    pub fn state(&self) -> ibv_qp_state::Type {
        // SAFETY: the queue pair is live.
        unsafe { self.provider.query_qp(self.qp, STATE as c_int) }.unwrap().qp_state
    }

    /// Posts a linked list; the error comes with the index of the work request that was refused.
    pub fn post(&self, list: &[Wr]) -> Result<(), (c_int, usize)> {
        let mut entries: Vec<Vec<ibv_sge>> = list.iter().map(|wr| wr.local.clone()).collect();
        let mut wrs: Vec<ibv_send_wr> = Vec::with_capacity(list.len());
        for (wr, entries) in list.iter().zip(&mut entries) {
            // SAFETY: integers and pointers.
            let mut raw: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
            raw.wr_id = wr.id;
            raw.opcode = wr.opcode;
            raw.send_flags = wr.flags;
            raw.sg_list = entries.as_mut_ptr();
            raw.num_sge = entries.len() as c_int;
            raw.__bindgen_anon_1.imm_data = wr.imm.to_be();
            if let Some((ah, remote_qpn, remote_qkey)) = wr.datagram {
                raw.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey };
            } else if matches!(
                wr.opcode,
                opcode::IBV_WR_ATOMIC_CMP_AND_SWP | opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
            ) {
                raw.wr.atomic = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                    remote_addr: wr.remote,
                    compare_add: wr.compare_add,
                    swap: wr.swap,
                    rkey: wr.rkey,
                };
            } else {
                raw.wr.rdma =
                    ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: wr.remote, rkey: wr.rkey };
            }
            wrs.push(raw);
        }
        let first = wrs.as_mut_ptr();
        let mut bad = ptr::null_mut();
        // SAFETY: the list is linked within `wrs`, which outlives the call, and the queue pair is live.
        unsafe {
            for index in 1..wrs.len() {
                (*first.add(index - 1)).next = first.add(index);
            }
            match (*self.context).ops.post_send.unwrap()(self.qp, first, &mut bad) {
                0 => Ok(()),
                errno => Err((errno, bad.offset_from(first) as usize)),
            }
        }
    }

    /// Posts one receive.
    pub fn receive(&self, id: u64, local: &[ibv_sge]) -> Result<(), c_int> {
        let mut entries = local.to_vec();
        let mut wr = ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: entries.as_mut_ptr(),
            num_sge: entries.len() as c_int,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the work request outlives the call, and the queue pair is live.
        match unsafe { (*self.context).ops.post_recv.unwrap()(self.qp, &mut wr, &mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Up to `room` completions of a queue, or what the poll said instead.
    pub fn poll(&self, cq: *mut ibv_cq, room: usize) -> Result<Vec<Completion>, c_int> {
        let mut found: Vec<Completion> = Vec::with_capacity(room);
        // SAFETY: there is room, the layouts are the same, and the poll wrote as many as it says.
        unsafe {
            match (*self.context).ops.poll_cq.unwrap()(cq, room as c_int, found.as_mut_ptr().cast()) {
                count if count >= 0 => {
                    found.set_len(count as usize);
                    Ok(found)
                }
                error => Err(error),
            }
        }
    }

    pub fn sent(&self) -> Vec<Completion> {
        self.poll(self.send_cq, 1024).unwrap()
    }

    pub fn received(&self) -> Vec<Completion> {
        self.poll(self.recv_cq, 1024).unwrap()
    }

    pub fn arm(&self, cq: *mut ibv_cq, solicited_only: bool) {
        // SAFETY: the queue is live.
        assert_eq!(unsafe { (*self.context).ops.req_notify_cq.unwrap()(cq, solicited_only.into()) }, 0);
    }

    /// Takes and acknowledges an event, if there is one.
    pub fn event(&self) -> Option<*mut ibv_cq> {
        // SAFETY: the channel is live.
        match unsafe { self.provider.next_event(self.channel) } {
            Ok(cq) => {
                // SAFETY: the queue is live.
                unsafe { self.provider.ack_events(cq, 1) };
                Some(cq)
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                None
            }
        }
    }

    /// Sleeps for an event. A minute means that it was lost.
    pub fn sleep(&self) {
        loop {
            // SAFETY: the channel is live.
            let fd = unsafe { BorrowedFd::borrow_raw((*self.channel).fd) };
            let ready =
                poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::from(60_000_u16)).unwrap();
            assert_eq!(ready, 1, "no event within a minute");
            if self.event().is_some() {
                return;
            }
        }
    }

    pub fn destroy_qp(&mut self) {
        // SAFETY: the queue pair is live and not used again.
        unsafe { self.provider.destroy_qp(self.qp) }.unwrap();
        self.qp = ptr::null_mut();
    }

    pub fn deregister(&mut self) {
        // SAFETY: the region is live and not used again.
        unsafe { self.provider.dereg_mr(self.mr) }.unwrap();
        self.mr = ptr::null_mut();
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.qp.is_null() {
            self.destroy_qp();
        }
        if !self.mr.is_null() {
            self.deregister();
        }
        // SAFETY: children before parents, each once.
        unsafe {
            self.provider.destroy_cq(self.send_cq).unwrap();
            self.provider.destroy_cq(self.recv_cq).unwrap();
            if !self.channel.is_null() {
                self.provider.destroy_channel(self.channel).unwrap();
            }
            self.provider.dealloc_pd(self.pd).unwrap();
            self.provider.close(self.context).unwrap();
            dealloc(self.memory, layout());
        }
    }
}

fn layout() -> Layout {
    Layout::from_size_align(MEMORY, 4096).unwrap()
}

pub(super) const STATE: u32 = ibv_qp_attr_mask::IBV_QP_STATE.0;
pub(super) const TO_INIT: u32 = STATE
    | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0
    | ibv_qp_attr_mask::IBV_QP_PORT.0
    | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0;
pub(super) const TO_RTR: u32 = STATE
    | ibv_qp_attr_mask::IBV_QP_AV.0
    | ibv_qp_attr_mask::IBV_QP_PATH_MTU.0
    | ibv_qp_attr_mask::IBV_QP_DEST_QPN.0
    | ibv_qp_attr_mask::IBV_QP_RQ_PSN.0
    | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
    | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
pub(super) const TO_RTS: u32 = STATE
    | ibv_qp_attr_mask::IBV_QP_TIMEOUT.0
    | ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0
    | ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0
    | ibv_qp_attr_mask::IBV_QP_SQ_PSN.0
    | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0;

/// What a queue pair of this kind must be given on its way to INIT, RTR and RTS.
pub(super) fn masks(kind: ibv_qp_type::Type) -> [u32; 3] {
    match kind {
        ibv_qp_type::IBV_QPT_UC => {
            let to_rtr = STATE
                | ibv_qp_attr_mask::IBV_QP_AV.0
                | ibv_qp_attr_mask::IBV_QP_PATH_MTU.0
                | ibv_qp_attr_mask::IBV_QP_DEST_QPN.0
                | ibv_qp_attr_mask::IBV_QP_RQ_PSN.0;
            [TO_INIT, to_rtr, STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN.0]
        }
        ibv_qp_type::IBV_QPT_UD => {
            let to_init = STATE
                | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0
                | ibv_qp_attr_mask::IBV_QP_PORT.0
                | ibv_qp_attr_mask::IBV_QP_QKEY.0;
            [to_init, STATE, STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN.0]
        }
        _ => [TO_INIT, TO_RTR, TO_RTS],
    }
}

/// Two connected ends.
pub(super) fn pair(setup: Setup) -> (End, End) {
    let (a, b) = (End::new(setup), End::new(setup));
    a.connect(&a.attributes(b.number()));
    b.connect(&b.attributes(a.number()));
    (a, b)
}

/// Payload that differs from byte to byte and from seed to seed.
pub(super) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 13 + 1) as u8).collect()
}

/// Ids and statuses, the gist of most assertions.
pub(super) fn gist(completions: &[Completion]) -> Vec<(u64, status::Type)> {
    completions.iter().map(|completion| (completion.wr_id, completion.status)).collect()
}
