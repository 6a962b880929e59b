//! Completion queues, the channels that wake whoever waits for them, and the completions themselves.

use std::ffi::{c_int, c_uint};
use std::fmt;
use std::io;
use std::mem::{align_of, offset_of, size_of};
use std::os::fd::{AsFd, BorrowedFd};
use std::slice;
use std::sync::Arc;

use ibverbs_sys::{ibv_comp_channel, ibv_cq, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use super::device::Context;
use crate::error::{Error, Result, Step};

/// Completion channel: a descriptor that becomes readable when an armed completion queue of it gets an entry. Clones
/// share it; it is destroyed when the last of them and the last queue on it are gone.
#[derive(Debug, Clone)]
pub struct Channel(Arc<ChannelInner>);

#[derive(Debug)]
struct ChannelInner {
    raw: *mut ibv_comp_channel,
    context: Context,
}

// SAFETY: verbs objects may be used from any thread, and from several at once (`ibv_alloc_td(3)`).
unsafe impl Send for ChannelInner {}
// SAFETY: as above.
unsafe impl Sync for ChannelInner {}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: the channel is live and destroyed once; its completion queues held it, so they are gone.
        let destroyed = unsafe { self.context.0.provider.destroy_channel(self.raw) };
        if destroyed.is_err() {
            std::mem::forget(self.context.clone());
        }
        debug_assert!(destroyed.is_ok(), "ibv_destroy_comp_channel: {destroyed:?}");
    }
}

impl Channel {
    /// Takes one event off the channel and acknowledges it; false when there is none. Never blocks: wait on the
    /// descriptor. `ibv_get_cq_event(3)`, `ibv_ack_cq_events(3)`
    ///
    /// An event says that a queue had a completion since it was armed, not that there is one now; the queue has to be
    /// armed again for another. Where several queues share a channel, look at all of them.
    ///
    /// # Errors
    /// [`Step::Measure`]: the device is gone.
    pub fn take_event(&self) -> Result<bool> {
        let provider = self.0.context.0.provider;
        // SAFETY: the channel is live and of this provider.
        match unsafe { provider.next_event(self.0.raw) } {
            Ok(cq) => {
                // SAFETY: one event of this queue was just taken, and the queue lives: destroying it waits for this.
                unsafe { provider.ack_events(cq, 1) };
                Ok(true)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(error) => Err(Error::failed(Step::Measure, format!("ibv_get_cq_event(): {error}"))
                .with_remedy("see the device's log (dmesg): it may have been removed or reset")),
        }
    }
}

impl AsFd for Channel {
    /// The descriptor, which does not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and so its descriptor, lives while it is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw).fd) }
    }
}

/// Completion queue. Clones share it, and each completion goes to one of those that poll; it is destroyed when the last
/// clone and the last queue pair that uses it are gone.
#[derive(Debug, Clone)]
pub struct Cq {
    /// The same as `inner.raw`, one load nearer to the loops.
    raw: *mut ibv_cq,
    inner: Arc<CqInner>,
}

#[derive(Debug)]
struct CqInner {
    raw: *mut ibv_cq,
    depth: u32,
    channel: Option<Channel>,
    context: Context,
}

// SAFETY: verbs objects may be used from any thread, and from several at once (`ibv_alloc_td(3)`).
unsafe impl Send for CqInner {}
// SAFETY: as above.
unsafe impl Sync for CqInner {}
// SAFETY: as above; the pointer is to what `inner` keeps alive.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Drop for CqInner {
    fn drop(&mut self) {
        // SAFETY: the queue is live and destroyed once; queue pairs that use it held it, so they are gone. Every event
        // was acknowledged when it was taken.
        let destroyed = unsafe { self.context.0.provider.destroy_cq(self.raw) };
        if destroyed.is_err() {
            std::mem::forget((self.channel.clone(), self.context.clone()));
        }
        debug_assert!(destroyed.is_ok(), "ibv_destroy_cq: {destroyed:?}");
    }
}

impl Context {
    /// Makes a completion channel, its descriptor non-blocking. `ibv_create_comp_channel(3)`
    ///
    /// # Errors
    /// [`Step::CreateQp`]: the process has no descriptors left (`EMFILE`).
    pub fn create_channel(&self) -> Result<Channel> {
        // SAFETY: the context is open and of this provider.
        let raw = unsafe { self.0.provider.create_channel(self.0.raw) }.map_err(|error| {
            Error::failed(
                Step::CreateQp,
                format!("ibv_create_comp_channel({}): {error}", self.device().name()),
            )
        })?;
        Ok(Channel(Arc::new(ChannelInner { raw, context: self.clone() })))
    }

    /// Makes a completion queue with room for at least `depth` entries; its events go to `channel`.
    /// `ibv_create_cq(3)`
    ///
    /// # Errors
    /// [`Step::CreateQp`]: `depth` is 0 or more than the device can, or the device is short of something.
    ///
    /// # Panics
    /// If the channel is of another context.
    pub fn create_cq(&self, depth: u32, channel: Option<&Channel>) -> Result<Cq> {
        if let Some(channel) = channel {
            assert!(self.is_same(&channel.0.context), "the completion channel is of another context");
        }
        let name = self.device().name();
        let most = self.cached_attr()?.max_cqe;
        if !(1..=most).contains(&depth) {
            return Err(Error::failed(
                Step::CreateQp,
                format!(
                    "a completion queue of {depth} entries is outside what {name} can: 1 to {most} (max_cqe)"
                ),
            )
            .with_remedy("choose a smaller queue depth"));
        }
        // SAFETY: the context is open, the channel is of it and live, and stays so until the queue is gone.
        let raw =
            unsafe { self.0.provider.create_cq(self.0.raw, depth, channel.map(|channel| channel.0.raw)) }
                .map_err(|error| {
                    Error::failed(Step::CreateQp, format!("ibv_create_cq({name}, {depth} entries): {error}"))
                        .with_remedy(
                            "choose a smaller queue depth, or allow more locked memory (ulimit -l unlimited)",
                        )
                })?;
        // SAFETY: just made and live; the size is set once.
        let granted = unsafe { (*raw).cqe };
        let inner = CqInner {
            raw,
            depth: u32::try_from(granted).unwrap_or(depth),
            channel: channel.cloned(),
            context: self.clone(),
        };
        Ok(Cq { raw, inner: Arc::new(inner) })
    }

    /// Both are clones of one open context.
    pub(super) fn is_same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Cq {
    /// Takes up to as many completions off the queue as fit; returns how many. The order of a queue pair's work
    /// requests is kept. `ibv_poll_cq(3)`
    ///
    /// # Errors
    /// [`Step::Measure`]: the queue is in error, as after an overrun. That a work request failed is no error here but
    /// in the [`Wc`].
    #[inline]
    pub fn poll(&self, into: &mut [Wc]) -> Result<usize> {
        let got = self.poll_raw(into);
        if got < 0 {
            return Err(self.failed("ibv_poll_cq", got));
        }
        Ok(got as usize)
    }

    /// Takes one completion off the queue; whether there was one. Fewer instructions than [`Cq::poll`].
    ///
    /// # Errors
    /// As [`Cq::poll`], told by [`Cq::polled`].
    #[inline(always)]
    pub fn poll_one(&self, into: &mut Wc) -> std::result::Result<bool, PollFailed> {
        match self.poll_raw(slice::from_mut(into)) {
            1 => Ok(true),
            0 => Ok(false),
            code => Err(PollFailed(code)),
        }
    }

    /// The outcome of [`Cq::poll_one`] as [`Cq::poll`] tells it.
    #[cold]
    pub fn polled(&self, outcome: std::result::Result<bool, PollFailed>) -> Result<usize> {
        outcome.map(usize::from).map_err(|PollFailed(code)| self.failed("ibv_poll_cq", code))
    }

    /// Polls until there is something, at most `tries` times. Returns how many completions were taken, and how many
    /// polls found nothing.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    #[inline(never)]
    pub fn poll_up_to(&self, into: &mut [Wc], tries: u32) -> Result<(usize, u32)> {
        for empty in 0..tries {
            let got = self.poll_raw(into);
            if got != 0 {
                return if got > 0 {
                    Ok((got as usize, empty))
                } else {
                    Err(self.failed("ibv_poll_cq", got))
                };
            }
        }
        Ok((0, tries))
    }

    #[inline(always)]
    fn poll_raw(&self, into: &mut [Wc]) -> c_int {
        // As in C, and harmless for the rest: a slice of 2^31 completions takes 96 GiB, and truncation makes it smaller.
        let most = into.len() as c_int;
        // SAFETY: the queue is live, and so is its context, whose table was found complete when it was opened. The
        // device writes at most `most` completions, and `Wc` has the layout of ibv_wc (asserted below).
        unsafe {
            (*(*self.raw).context).ops.poll_cq.unwrap_unchecked()(
                self.raw,
                most,
                into.as_mut_ptr().cast::<ibv_wc>(),
            )
        }
    }

    /// Asks for an event on the channel with the next completion, of whatever kind. One that is in the queue already
    /// brings none: arm, poll once more, then sleep. `ibv_req_notify_cq(3)`
    ///
    /// # Errors
    /// [`Step::Measure`]: the device refused.
    #[inline]
    pub fn arm(&self) -> Result<()> {
        // SAFETY: as in `poll`.
        let code = unsafe { (*(*self.raw).context).ops.req_notify_cq.unwrap_unchecked()(self.raw, 0) };
        if code != 0 {
            return Err(self.failed("ibv_req_notify_cq", code));
        }
        Ok(())
    }

    /// Entries granted: at least as many as asked for.
    pub fn depth(&self) -> u32 {
        self.inner.depth
    }

    /// The queue as the library knows it. It lives as long as `self`.
    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw
    }

    pub(super) fn context(&self) -> &Context {
        &self.inner.context
    }

    #[cold]
    #[inline(never)]
    fn failed(&self, call: &str, code: c_int) -> Error {
        let name = self.inner.context.device().name();
        let cause = if code > 0 {
            io::Error::from_raw_os_error(code).to_string()
        } else {
            format!("returned {code}")
        };
        Error::failed(Step::Measure, format!("{call}({name}, {} entries): {cause}", self.inner.depth))
            .with_remedy(
                "see the device's log (dmesg): the completion queue is in error, or the device was reset",
            )
    }
}

/// A poll failed: the queue is in error. Small enough for a register, so that a loop carries it at no cost.
#[derive(Debug, Clone, Copy)]
pub struct PollFailed(c_int);

/// Work completion: what became of one work request.
///
/// When it failed, only [`Wc::id`], [`Wc::status`], [`Wc::vendor_error`] and [`Wc::qp_number`] mean something; the
/// device need not fill the rest.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Wc {
    wr_id: u64,
    status: ibv_wc_status::Type,
    opcode: ibv_wc_opcode::Type,
    vendor_err: u32,
    byte_len: u32,
    imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

// The bindings keep some members of ibv_wc to themselves, so `Wc` is a twin of it. What can be asserted is, and a test
// writes through one and reads through the other.
const _: () = {
    assert!(size_of::<Wc>() == size_of::<ibv_wc>() && align_of::<Wc>() == align_of::<ibv_wc>());
    assert!(size_of::<Wc>() == 48);
    assert!(offset_of!(Wc, imm_data) == offset_of!(ibv_wc, imm_data));
    assert!(offset_of!(Wc, qp_num) == offset_of!(ibv_wc, qp_num));
    assert!(offset_of!(Wc, wc_flags) == offset_of!(ibv_wc, wc_flags));
    assert!(offset_of!(Wc, dlid_path_bits) == offset_of!(ibv_wc, dlid_path_bits));
    assert!(size_of::<ibv_wc_flags>() == size_of::<c_uint>());
};

impl Wc {
    /// Room for a completion.
    pub const EMPTY: Wc = Wc {
        wr_id: 0,
        status: ibv_wc_status::IBV_WC_GENERAL_ERR,
        opcode: 0,
        vendor_err: 0,
        byte_len: 0,
        imm_data: 0,
        qp_num: 0,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    };

    /// The number that the work request was given.
    #[inline]
    pub fn id(&self) -> u64 {
        self.wr_id
    }

    /// How it ended.
    #[inline]
    pub fn status(&self) -> WcStatus {
        WcStatus(self.status)
    }

    /// It did what it was asked for.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.status == ibv_wc_status::IBV_WC_SUCCESS
    }

    /// Immediate data, in host order; meaningful if [`Wc::has_imm`].
    #[inline]
    pub fn imm(&self) -> u32 {
        u32::from_be(self.imm_data)
    }

    /// A receive that was completed by a message with immediate data.
    #[inline]
    pub fn has_imm(&self) -> bool {
        self.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0
    }

    /// Bytes received, or read by an RDMA READ; undefined for other requests.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        self.byte_len
    }

    /// The vendor's own code for a failure.
    #[inline]
    pub fn vendor_error(&self) -> u32 {
        self.vendor_err
    }

    /// The own queue pair.
    #[inline]
    pub fn qp_number(&self) -> u32 {
        self.qp_num
    }

    /// Of the receive queue; meaningful if it succeeded.
    #[inline]
    pub fn is_recv(&self) -> bool {
        self.opcode & ibv_wc_opcode::IBV_WC_RECV != 0
    }
}

/// How a work request ended: `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcStatus(u32);

/// Declares the constants, their names and what they mean, from one table.
macro_rules! statuses {
    ($($name:ident = $raw:ident, $meaning:literal;)*) => {
        impl WcStatus {
            $(
                #[doc = concat!("`", stringify!($raw), "`: ", $meaning, ".")]
                pub const $name: WcStatus = WcStatus(ibv_wc_status::$raw);
            )*

            /// The name without its prefix, such as `RETRY_EXC_ERR`; `UNKNOWN` for a value that has none.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                    _ => "UNKNOWN",
                }
            }

            fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                    _ => "unknown status",
                }
            }
        }
    };
}

statuses! {
    SUCCESS = IBV_WC_SUCCESS, "success";
    LOC_LEN_ERR = IBV_WC_LOC_LEN_ERR, "local length error";
    LOC_QP_OP_ERR = IBV_WC_LOC_QP_OP_ERR, "local QP operation error";
    LOC_EEC_OP_ERR = IBV_WC_LOC_EEC_OP_ERR, "local EE context operation error";
    LOC_PROT_ERR = IBV_WC_LOC_PROT_ERR, "local protection error";
    WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR, "work request flushed";
    MW_BIND_ERR = IBV_WC_MW_BIND_ERR, "memory window bind error";
    BAD_RESP_ERR = IBV_WC_BAD_RESP_ERR, "bad response";
    LOC_ACCESS_ERR = IBV_WC_LOC_ACCESS_ERR, "local access error";
    REM_INV_REQ_ERR = IBV_WC_REM_INV_REQ_ERR, "remote invalid request";
    REM_ACCESS_ERR = IBV_WC_REM_ACCESS_ERR, "remote access error";
    REM_OP_ERR = IBV_WC_REM_OP_ERR, "remote operation error";
    RETRY_EXC_ERR = IBV_WC_RETRY_EXC_ERR, "transport retry counter exceeded";
    RNR_RETRY_EXC_ERR = IBV_WC_RNR_RETRY_EXC_ERR, "receiver-not-ready retry counter exceeded";
    LOC_RDD_VIOL_ERR = IBV_WC_LOC_RDD_VIOL_ERR, "local RDD violation";
    REM_INV_RD_REQ_ERR = IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid RD request";
    REM_ABORT_ERR = IBV_WC_REM_ABORT_ERR, "aborted by the remote end";
    INV_EECN_ERR = IBV_WC_INV_EECN_ERR, "invalid EE context number";
    INV_EEC_STATE_ERR = IBV_WC_INV_EEC_STATE_ERR, "invalid EE context state";
    FATAL_ERR = IBV_WC_FATAL_ERR, "fatal error";
    RESP_TIMEOUT_ERR = IBV_WC_RESP_TIMEOUT_ERR, "response timeout";
    GENERAL_ERR = IBV_WC_GENERAL_ERR, "general error";
    TM_ERR = IBV_WC_TM_ERR, "tag matching error";
    TM_RNDV_INCOMPLETE = IBV_WC_TM_RNDV_INCOMPLETE, "tag matching rendezvous incomplete";
}

impl WcStatus {
    /// The value of `enum ibv_wc_status`.
    pub fn code(self) -> u32 {
        self.0
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.meaning())
    }
}

impl fmt::Debug for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_reads_as_the_library_wrote_it() {
        let ours = Wc {
            wr_id: 0x1122_3344_5566_7788,
            status: WcStatus::RETRY_EXC_ERR.0,
            opcode: ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
            vendor_err: 0x81,
            byte_len: 4096,
            imm_data: 0x0102_0304_u32.to_be(),
            qp_num: 17,
            wc_flags: ibv_wc_flags::IBV_WC_WITH_IMM.0,
            ..Wc::EMPTY
        };
        // SAFETY: both are structures of plain integers with the same size and alignment, asserted above.
        let theirs: ibv_wc = unsafe { std::mem::transmute(ours) };
        assert_eq!(theirs.wr_id(), ours.id());
        assert_eq!(theirs.error(), Some((ours.status().code(), ours.vendor_error())));
        assert_eq!(theirs.opcode(), ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM);
        assert_eq!(theirs.len(), ours.byte_len() as usize);
        assert_eq!((theirs.qp_num, theirs.imm_data), (ours.qp_number(), ours.imm().to_be()));
        assert_eq!(ours.imm(), 0x0102_0304);
        assert!(ours.has_imm() && ours.is_recv() && !ours.is_success());
    }

    #[test]
    fn an_empty_completion_is_no_success() {
        assert!(!Wc::EMPTY.is_success() && !Wc::EMPTY.has_imm() && !Wc::EMPTY.is_recv());
    }

    #[test]
    fn statuses_have_their_names() {
        assert_eq!(WcStatus(12), WcStatus::RETRY_EXC_ERR);
        assert_eq!(WcStatus::RETRY_EXC_ERR.name(), "RETRY_EXC_ERR");
        assert_eq!(WcStatus::RETRY_EXC_ERR.to_string(), "transport retry counter exceeded");
        assert_eq!(format!("{:?}", WcStatus::SUCCESS), "SUCCESS(0)");
        assert_eq!((WcStatus(99).name(), WcStatus(99).code()), ("UNKNOWN", 99));
        for code in 0..=23 {
            assert_ne!(WcStatus(code).name(), "UNKNOWN", "{code}");
        }
    }
}
