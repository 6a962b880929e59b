//! Work completions: what became of a work request.

use std::ffi::c_uint;
use std::fmt;
use std::mem::{align_of, offset_of, size_of};

use ibverbs_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

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

    /// Each of them did what it was asked for. All statuses are looked at, without a branch for each: nearly always that
    /// is the answer.
    #[inline(always)]
    pub fn are_all_successes(wcs: &[Self]) -> bool {
        wcs.iter().fold(0, |any, wc| any | wc.status) == ibv_wc_status::IBV_WC_SUCCESS
    }

    /// Immediate data, in host order; meaningful if [`Wc::has_imm`].
    #[inline]
    pub fn imm(&self) -> u32 {
        u32::from_be(self.imm_data)
    }

    /// The queue pair that a datagram came from; meaningful for receives of datagrams that succeeded.
    #[inline]
    pub fn source_qp(&self) -> u32 {
        self.src_qp
    }

    /// The first [`GRH_BYTES`](super::GRH_BYTES) of a datagram's receive hold a global route header; over RoCE always.
    #[inline]
    pub fn has_grh(&self) -> bool {
        self.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0
    }

    /// A receive that was completed by a message with immediate data.
    #[inline]
    pub fn has_imm(&self) -> bool {
        self.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0
    }

    /// Bytes received, or read by an RDMA READ; undefined for other requests. Those of a datagram count its header
    /// space, [`GRH_BYTES`](super::GRH_BYTES), too.
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

    /// The status of a value of `enum ibv_wc_status`, which need not be one.
    pub fn of_code(code: u32) -> Self {
        Self(code)
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
