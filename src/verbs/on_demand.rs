//! On-demand paging: what a device can do with memory that is not pinned.

use ibverbs_sys::{
    IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_RECV,
    IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_WRITE, ibv_odp_caps,
};

use super::device::Context;
use super::queue_pair::Transport;
use crate::error::{Error, Result, Step};

/// Operations of one kind of queue pair whose memory need not be pinned, at either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OnDemandPaging {
    /// Sends.
    pub send: bool,
    /// Receives.
    pub receive: bool,
    /// RDMA WRITEs.
    pub write: bool,
    /// RDMA READs.
    pub read: bool,
    /// Atomics.
    pub atomic: bool,
}

impl OnDemandPaging {
    fn from_raw(caps: &ibv_odp_caps, transport: Option<Transport>) -> Self {
        let operations = match transport {
            _ if caps.general_caps & u64::from(IBV_ODP_SUPPORT) == 0 => 0,
            Some(Transport::Rc) => caps.per_transport_caps.rc_odp_caps,
            Some(Transport::Uc) => caps.per_transport_caps.uc_odp_caps,
            None => caps.per_transport_caps.ud_odp_caps,
        };
        let has = |operation| operations & operation != 0;
        Self {
            send: has(IBV_ODP_SUPPORT_SEND),
            receive: has(IBV_ODP_SUPPORT_RECV),
            write: has(IBV_ODP_SUPPORT_WRITE),
            read: has(IBV_ODP_SUPPORT_READ),
            atomic: has(IBV_ODP_SUPPORT_ATOMIC),
        }
    }

    /// It does all that `other` does.
    pub fn covers(self, other: Self) -> bool {
        let pairs = [
            (self.send, other.send),
            (self.receive, other.receive),
            (self.write, other.write),
            (self.read, other.read),
            (self.atomic, other.atomic),
        ];
        pairs.iter().all(|(has, needs)| *has || !needs)
    }

    /// The operations by name; "nothing" if there are none.
    pub fn names(self) -> String {
        let all = [
            (self.send, "send"),
            (self.receive, "receive"),
            (self.write, "write"),
            (self.read, "read"),
            (self.atomic, "atomic"),
        ];
        let names: Vec<_> = all.iter().filter_map(|(has, name)| has.then_some(*name)).collect();
        if names.is_empty() { "nothing".into() } else { names.join(", ") }
    }
}

impl Context {
    /// What the device does with memory that is registered without being pinned, over connections or, without
    /// `transport`, with datagrams. `ibv_query_device_ex(3)`
    ///
    /// # Errors
    /// [`Step::OpenDevice`]: the device did not answer.
    pub fn on_demand_paging(&self, transport: Option<Transport>) -> Result<OnDemandPaging> {
        // SAFETY: the context is open and of this provider.
        let caps = unsafe { self.0.provider.on_demand_paging(self.0.raw) }.map_err(|error| {
            Error::failed(Step::OpenDevice, format!("ibv_query_device_ex({}): {error}", self.device().name()))
        })?;
        Ok(OnDemandPaging::from_raw(&caps, transport))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_count_for_their_transport_and_only_with_general_support() {
        let mut caps = ibv_odp_caps { general_caps: 1, ..Default::default() };
        caps.per_transport_caps.rc_odp_caps = 1 | 2 | 8;
        caps.per_transport_caps.ud_odp_caps = 1;
        let rc = OnDemandPaging::from_raw(&caps, Some(Transport::Rc));
        assert_eq!(rc, OnDemandPaging { send: true, receive: true, write: false, read: true, atomic: false });
        assert_eq!(rc.names(), "send, receive, read");
        assert_eq!(OnDemandPaging::from_raw(&caps, Some(Transport::Uc)).names(), "nothing");
        assert_eq!(OnDemandPaging::from_raw(&caps, None).names(), "send");
        assert!(rc.covers(OnDemandPaging { read: true, ..Default::default() }));
        assert!(!rc.covers(OnDemandPaging { write: true, ..Default::default() }));
        caps.general_caps = 0;
        assert_eq!(OnDemandPaging::from_raw(&caps, Some(Transport::Rc)), OnDemandPaging::default());
    }
}
