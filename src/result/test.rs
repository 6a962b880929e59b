//! The test as the document records it: flat, with the unit of each value in its name.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::measure::{Arrivals, Limit, Stop};
use crate::ops::Verb;
use crate::plan::{Connection, Load, MemoryKind, Shape, Side, TcpOptions, Test, Transport, Wait};

/// Every resolved option of the test both ends ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestRecord {
    /// The verb.
    pub op: Verb,
    /// Latency or bandwidth.
    pub shape: Shape,
    /// Transport service of the queue pairs.
    pub connection: Connection,
    /// How both ends wait; each row's point says how it was measured.
    pub wait: Wait,
    /// Each size was measured in both ways of waiting, this one first.
    #[serde(default)]
    pub compare_waits: bool,
    /// Paths measured at each size, in this order.
    pub transports: Vec<Transport>,
    /// Message sizes in the order measured.
    pub sizes_bytes: Vec<u64>,
    /// When the measurement of a size ends.
    pub stop: StopRecord,
    /// When the warm-up before it ends.
    pub warm_up: StopRecord,
    /// Most messages outstanding.
    pub tx_depth: u32,
    /// Receives posted ahead.
    pub rx_depth: u32,
    /// Most messages outstanding in a latency test; in a bandwidth test `tx_depth`.
    #[serde(default = "one")]
    pub depth: u32,
    /// Rate of an open loop in messages a second; `null` where it is closed, or swept.
    #[serde(default)]
    pub rate_per_s: Option<f64>,
    /// How the messages of an open loop follow each other.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// Shares of each path's own rate in a closed loop at this depth, that open loops were offered.
    #[serde(default)]
    pub rate_shares: Vec<f64>,
    /// One completion for each this many sends.
    pub signal_every: u32,
    /// Work requests posted by one call.
    #[serde(default = "one")]
    pub post_list: u32,
    /// Completions taken with one poll.
    #[serde(default = "one")]
    pub cqe_batch: u32,
    /// Both ends streamed at once.
    #[serde(default)]
    pub bidirectional: bool,
    /// Queue pairs of each thread.
    pub qps: u32,
    /// They took their receives from one queue.
    #[serde(default)]
    pub shared_receive: bool,
    /// Buffers that messages went through in turn, as asked for; `null` took as many as were outstanding, within 1 MiB.
    #[serde(default)]
    pub buffers: Option<u32>,
    /// Threads an end.
    pub threads: u32,
    /// Kind of memory the payload lies in.
    pub memory: MemoryKind,
    /// The device may write to it in any order.
    #[serde(default)]
    pub relaxed_ordering: bool,
    /// It was registered without being pinned.
    #[serde(default)]
    pub on_demand_paging: bool,
    /// Inline payload asked for; what was granted is in each end's device.
    pub max_inline_bytes: u32,
    /// RDMA READs outstanding, as asked for.
    pub outstanding_reads: u8,
    /// Path MTU asked for; `null` took the smaller active MTU of both ports.
    pub mtu_bytes: Option<u32>,
    /// Service level.
    pub service_level: u8,
    /// Traffic class of the global route header.
    #[serde(default)]
    pub traffic_class: u8,
    /// Flow label of the global route header.
    #[serde(default)]
    pub flow_label: u32,
    /// Hop limit of the global route header.
    #[serde(default = "first_hop_limit")]
    pub hop_limit: u8,
    /// Local ACK timeout exponent: 4.096 us * 2^n.
    pub qp_timeout: u8,
    /// Retries after a timeout or sequence NAK.
    pub retry_count: u8,
    /// Retries after receiver-not-ready; 7 is endless.
    pub rnr_retry: u8,
    /// Encoded wait before such a retry (IBTA table 45).
    pub min_rnr_timer: u8,
    /// Options asked for the baseline's socket; what was granted is at each end.
    #[serde(default)]
    pub tcp: TcpOptions,
    /// Payloads were checked.
    pub verify: bool,
    /// The cost of each row was to be reported in full.
    #[serde(default)]
    pub cpu_report: bool,
    /// Who sends the first message of a ping-pong.
    pub first: Side,
    /// Longest wait for progress inside a loop.
    pub stall_timeout_s: f64,
    /// How long a message of an unreliable service may take before it counts as lost; `null` on RC.
    #[serde(default)]
    pub loss_timeout_s: Option<f64>,
}

/// What every run used whose document does not say.
fn first_hop_limit() -> u8 {
    64
}

fn one() -> u32 {
    1
}

impl From<&Test> for TestRecord {
    fn from(test: &Test) -> Self {
        // Taken apart without `..`: an option added to the plan does not compile until it is recorded here.
        let Test {
            verb,
            shape,
            connection,
            wait: _,
            compare_waits,
            transports,
            sizes,
            stop,
            warm_up,
            tx_depth,
            rx_depth,
            load: Load { depth, rate_per_s, arrivals, rate_shares },
            signal_every,
            post_list,
            cqe_batch,
            bidirectional,
            qps,
            shared_receive,
            buffers,
            threads,
            memory,
            relaxed_ordering,
            on_demand_paging,
            max_inline,
            outstanding_reads,
            mtu,
            service_level,
            traffic_class,
            flow_label,
            hop_limit,
            qp_timeout,
            retry_count,
            rnr_retry,
            min_rnr_timer,
            tcp,
            verify,
            cpu_report,
            payload_seed: _,
            first,
            stall_timeout,
            loss_timeout,
        } = test;
        Self {
            op: *verb,
            shape: *shape,
            connection: *connection,
            wait: test.waits()[0],
            compare_waits: *compare_waits,
            transports: transports.clone(),
            sizes_bytes: sizes.clone(),
            stop: (*stop).into(),
            warm_up: (*warm_up).into(),
            tx_depth: *tx_depth,
            rx_depth: *rx_depth,
            depth: *depth,
            rate_per_s: *rate_per_s,
            arrivals: *arrivals,
            rate_shares: rate_shares.clone(),
            signal_every: *signal_every,
            post_list: *post_list,
            cqe_batch: *cqe_batch,
            bidirectional: *bidirectional,
            qps: *qps,
            shared_receive: *shared_receive,
            buffers: *buffers,
            threads: *threads,
            memory: *memory,
            relaxed_ordering: *relaxed_ordering,
            on_demand_paging: *on_demand_paging,
            max_inline_bytes: *max_inline,
            outstanding_reads: *outstanding_reads,
            mtu_bytes: *mtu,
            service_level: *service_level,
            traffic_class: *traffic_class,
            flow_label: *flow_label,
            hop_limit: *hop_limit,
            qp_timeout: *qp_timeout,
            retry_count: *retry_count,
            rnr_retry: *rnr_retry,
            min_rnr_timer: *min_rnr_timer,
            tcp: tcp.clone(),
            verify: *verify,
            cpu_report: *cpu_report,
            first: *first,
            stall_timeout_s: stall_timeout.as_secs_f64(),
            loss_timeout_s: (!connection.is_reliable()).then_some(loss_timeout.as_secs_f64()),
        }
    }
}

/// When a measurement ends: at whichever of the two comes first; `null` does not end it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StopRecord {
    /// After exactly this many messages.
    pub messages: Option<u64>,
    /// After this long.
    pub seconds: Option<f64>,
}

impl From<Limit> for StopRecord {
    fn from(limit: Limit) -> Self {
        Self {
            messages: Some(limit.messages).filter(|messages| *messages < u64::MAX),
            seconds: Some(limit.span).filter(|span| *span < Duration::MAX).map(|span| span.as_secs_f64()),
        }
    }
}

impl From<Stop> for StopRecord {
    fn from(stop: Stop) -> Self {
        Limit::from(stop).into()
    }
}
