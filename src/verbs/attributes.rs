//! Attributes of a queue pair one by one, for transitions other than the usual ones.

use std::fmt;

use ibverbs_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_state};

use super::datagram::{UdInit, UdQp};
use super::memory::Access;
use super::port::mtu_code;
use super::queue_pair::Qp;
use super::queues::Queues;
use super::transition::{Address, Init, QpState, Rtr, Rts, fits};
use crate::error::{Error, Result, Step};

/// What [`Qp::apply`] is to change: the attributes that are given, and no others.
///
/// Which of them a transition needs and which it allows depends on the kind of queue pair and on its state; the device
/// judges that, and changes nothing if it refuses. [`Qp::to_init`], [`Qp::to_rtr`] and [`Qp::to_rts`] give what the
/// usual way needs; this is for the rest: back to RESET, drained and resumed, or rights taken away while connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// The state to move to.
    pub state: Option<QpState>,
    /// The state it is believed to be in.
    pub current_state: Option<QpState>,
    /// Port of the device, from 1.
    pub port: Option<u8>,
    /// Index into the port's partition key table.
    pub pkey_index: Option<u16>,
    /// What the peer may do.
    pub access: Option<Access>,
    /// Largest packet payload on the path, in bytes.
    pub path_mtu: Option<u32>,
    /// The peer's queue pair, 24 bits.
    pub dest_qpn: Option<u32>,
    /// Packet sequence number the peer starts with, 24 bits.
    pub rq_psn: Option<u32>,
    /// RDMA READs and atomics taken in from the peer at once.
    pub max_dest_rd_atomic: Option<u8>,
    /// How long the peer is told to wait when no receive is posted, 5 bits.
    pub min_rnr_timer: Option<u8>,
    /// The way to the peer.
    pub address: Option<Address>,
    /// Packet sequence number this end starts with, 24 bits.
    pub sq_psn: Option<u32>,
    /// How long to wait for an acknowledgement, 5 bits.
    pub timeout: Option<u8>,
    /// How often to send again without an answer, 3 bits.
    pub retry_count: Option<u8>,
    /// How often to send again when the peer had no receive posted, 3 bits.
    pub rnr_retry: Option<u8>,
    /// RDMA READs and atomics of this end that may be outstanding.
    pub max_rd_atomic: Option<u8>,
    /// Key of datagrams.
    pub qkey: Option<u32>,
}

impl From<QpState> for Attributes {
    fn from(state: QpState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }
}

impl From<Init> for Attributes {
    fn from(init: Init) -> Self {
        Self {
            port: Some(init.port),
            pkey_index: Some(init.pkey_index),
            access: Some(init.access),
            ..QpState::Init.into()
        }
    }
}

impl From<UdInit> for Attributes {
    fn from(init: UdInit) -> Self {
        Self {
            port: Some(init.port),
            pkey_index: Some(init.pkey_index),
            qkey: Some(init.qkey),
            ..QpState::Init.into()
        }
    }
}

impl From<Rtr> for Attributes {
    fn from(rtr: Rtr) -> Self {
        Self {
            path_mtu: Some(rtr.path_mtu),
            dest_qpn: Some(rtr.dest_qpn),
            rq_psn: Some(rtr.rq_psn),
            max_dest_rd_atomic: Some(rtr.max_dest_rd_atomic),
            min_rnr_timer: Some(rtr.min_rnr_timer),
            address: Some(rtr.address),
            ..QpState::Rtr.into()
        }
    }
}

impl From<Rts> for Attributes {
    fn from(rts: Rts) -> Self {
        Self {
            sq_psn: Some(rts.sq_psn),
            timeout: Some(rts.timeout),
            retry_count: Some(rts.retry_count),
            rnr_retry: Some(rts.rnr_retry),
            max_rd_atomic: Some(rts.max_rd_atomic),
            ..QpState::Rts.into()
        }
    }
}

impl Attributes {
    fn to_raw(self) -> Result<(ibv_qp_attr, mask)> {
        let mut attr = ibv_qp_attr::default();
        let mut given = mask(0);
        macro_rules! set {
            ($($value:expr => $field:ident, $bit:ident;)*) => {
                $(if let Some(value) = $value {
                    attr.$field = value;
                    given |= mask::$bit;
                })*
            };
        }
        for (name, value, bits) in [
            ("destination QP number", self.dest_qpn, 24),
            ("packet sequence number", self.rq_psn, 24),
            ("packet sequence number", self.sq_psn, 24),
            ("minimum RNR timer", self.min_rnr_timer.map(u32::from), 5),
            ("timeout", self.timeout.map(u32::from), 5),
            ("retry count", self.retry_count.map(u32::from), 3),
            ("RNR retry count", self.rnr_retry.map(u32::from), 3),
        ] {
            fits(name, value.unwrap_or(0), bits)?;
        }
        set! {
            self.state.map(state_code).transpose()? => qp_state, IBV_QP_STATE;
            self.current_state.map(state_code).transpose()? => cur_qp_state, IBV_QP_CUR_STATE;
            self.port => port_num, IBV_QP_PORT;
            self.pkey_index => pkey_index, IBV_QP_PKEY_INDEX;
            // A signed constant in C, a mask in the structure.
            self.access.map(|access| access.flags() as u32) => qp_access_flags, IBV_QP_ACCESS_FLAGS;
            self.path_mtu.map(path_mtu_code).transpose()? => path_mtu, IBV_QP_PATH_MTU;
            self.dest_qpn => dest_qp_num, IBV_QP_DEST_QPN;
            self.rq_psn => rq_psn, IBV_QP_RQ_PSN;
            self.max_dest_rd_atomic => max_dest_rd_atomic, IBV_QP_MAX_DEST_RD_ATOMIC;
            self.min_rnr_timer => min_rnr_timer, IBV_QP_MIN_RNR_TIMER;
            self.address.map(Address::to_raw).transpose()? => ah_attr, IBV_QP_AV;
            self.sq_psn => sq_psn, IBV_QP_SQ_PSN;
            self.timeout => timeout, IBV_QP_TIMEOUT;
            self.retry_count => retry_cnt, IBV_QP_RETRY_CNT;
            self.rnr_retry => rnr_retry, IBV_QP_RNR_RETRY;
            self.max_rd_atomic => max_rd_atomic, IBV_QP_MAX_QP_RD_ATOMIC;
            self.qkey => qkey, IBV_QP_QKEY;
        }
        Ok((attr, given))
    }
}

fn state_code(state: QpState) -> Result<ibv_qp_state::Type> {
    Ok(match state {
        QpState::Reset => ibv_qp_state::IBV_QPS_RESET,
        QpState::Init => ibv_qp_state::IBV_QPS_INIT,
        QpState::Rtr => ibv_qp_state::IBV_QPS_RTR,
        QpState::Rts => ibv_qp_state::IBV_QPS_RTS,
        QpState::Sqd => ibv_qp_state::IBV_QPS_SQD,
        QpState::Sqe => ibv_qp_state::IBV_QPS_SQE,
        QpState::Error => ibv_qp_state::IBV_QPS_ERR,
        QpState::Unknown => {
            return Err(Error::failed(Step::ConnectQp, "a queue pair cannot be moved to an unknown state")
                .with_remedy("name a state"));
        }
    })
}

fn path_mtu_code(bytes: u32) -> Result<ibverbs_sys::ibv_mtu> {
    mtu_code(bytes).ok_or_else(|| {
        Error::failed(Step::ConnectQp, format!("a path MTU of {bytes} bytes does not exist"))
            .with_remedy("choose 256, 512, 1024, 2048 or 4096, at most what both ports have active")
    })
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        macro_rules! show {
            ($($field:ident, $name:literal;)*) => {
                $(if let Some(value) = self.$field {
                    write!(f, "{separator}{} {value}", $name)?;
                    separator = ", ";
                })*
            };
        }
        show! {
            current_state, "current state"; port, "port"; pkey_index, "pkey index"; access, "access";
            path_mtu, "path MTU"; dest_qpn, "destination QP"; rq_psn, "receive PSN";
            max_dest_rd_atomic, "reads in"; min_rnr_timer, "minimum RNR timer"; address, "address";
            sq_psn, "send PSN"; timeout, "timeout"; retry_count, "retry count";
            rnr_retry, "RNR retry count"; max_rd_atomic, "reads out"; qkey, "qkey";
        }
        if separator.is_empty() { f.write_str("nothing else") } else { Ok(()) }
    }
}

impl Qp {
    /// Changes what is given, and the state if one is. `ibv_modify_qp(3)`
    ///
    /// # Errors
    /// [`Step::ConnectQp`]: a value is out of its range; the device refused one, or an attribute is missing or not
    /// allowed. Nothing has changed then.
    pub fn apply(&self, attributes: &Attributes) -> Result<()> {
        apply(&self.queues, attributes)
    }
}

impl UdQp {
    /// As [`Qp::apply`].
    ///
    /// # Errors
    /// As that.
    pub fn apply(&self, attributes: &Attributes) -> Result<()> {
        apply(&self.0, attributes)
    }
}

fn apply(queues: &Queues, attributes: &Attributes) -> Result<()> {
    let (mut attr, given) = attributes.to_raw()?;
    let to = attributes.state.map_or_else(|| queues.state(), Ok)?;
    queues.modify(&mut attr, given, to, || attributes.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_in_the_mask_and_nothing_else() {
        let init = Init { port: 1, pkey_index: 0, access: Access::default() };
        let (attr, given) = Attributes::from(init).to_raw().unwrap();
        let expected =
            mask::IBV_QP_STATE | mask::IBV_QP_PORT | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_ACCESS_FLAGS;
        assert_eq!((given, attr.qp_state, attr.port_num), (expected, ibv_qp_state::IBV_QPS_INIT, 1));
        assert_eq!(Attributes::default().to_raw().unwrap().1, mask(0));
        let all = Attributes { rnr_retry: Some(7), qkey: Some(1), ..Attributes::default() };
        assert_eq!(all.to_raw().unwrap().1, mask::IBV_QP_RNR_RETRY | mask::IBV_QP_QKEY);
    }

    #[test]
    fn what_the_device_would_cut_off_is_refused() {
        for attributes in [
            Attributes { state: Some(QpState::Unknown), ..Attributes::default() },
            Attributes { dest_qpn: Some(1 << 24), ..Attributes::default() },
            Attributes { timeout: Some(32), ..Attributes::default() },
            Attributes { rnr_retry: Some(8), ..Attributes::default() },
            Attributes { path_mtu: Some(1000), ..Attributes::default() },
        ] {
            assert!(attributes.to_raw().is_err(), "{attributes}");
        }
    }

    #[test]
    fn they_tell_what_they_are() {
        assert_eq!(Attributes::from(QpState::Reset).to_string(), "nothing else");
        let some = Attributes { timeout: Some(14), sq_psn: Some(7), ..QpState::Rts.into() };
        assert_eq!(some.to_string(), "send PSN 7, timeout 14");
    }
}
