//! What a failed work request may come from: for each status the likely causes, most likely first, and what to look at.
//!
//! The order is that of what the status says, narrowed down by what is known: the service, the link layer, whether a send
//! or a receive failed, and whether the port still works. `docs/diagnosis.md` is this table as a page, and a test keeps it
//! so.

use crate::ops::Connection;
use crate::verbs::{LinkLayer, WcStatus};

/// What is known of a failed work request besides its status.
#[derive(Debug, Clone, Copy)]
pub struct Situation {
    /// Service of its queue pair.
    pub connection: Connection,
    /// What its port is connected to.
    pub link_layer: LinkLayer,
    /// It was a receive.
    pub is_receive: bool,
    /// The port is active now.
    pub port_is_active: bool,
}

/// When a cause is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    PortFailed,
    OnEthernet,
    OnInfiniband,
    OfSend,
    OfReceive,
    OfDatagramSent,
    OfDatagramReceived,
    Unacknowledged,
}

impl When {
    fn holds(self, situation: &Situation) -> bool {
        let is_datagram = situation.connection == Connection::Ud;
        match self {
            Self::Always => true,
            Self::PortFailed => !situation.port_is_active,
            Self::OnEthernet => situation.link_layer == LinkLayer::Ethernet,
            // Old drivers for InfiniBand do not say what they are connected to.
            Self::OnInfiniband => situation.link_layer != LinkLayer::Ethernet,
            Self::OfSend => !situation.is_receive && !is_datagram,
            Self::OfReceive => situation.is_receive,
            Self::OfDatagramSent => is_datagram && !situation.is_receive,
            Self::OfDatagramReceived => is_datagram && situation.is_receive,
            Self::Unacknowledged => !situation.connection.is_reliable(),
        }
    }

    /// As the page has it.
    #[cfg(test)]
    fn name(self) -> &'static str {
        match self {
            Self::Always => "",
            Self::PortFailed => "the port is not active now",
            Self::OnEthernet => "Ethernet",
            Self::OnInfiniband => "InfiniBand",
            Self::OfSend => "a send of RC or UC",
            Self::OfReceive => "a receive",
            Self::OfDatagramSent => "a send of UD",
            Self::OfDatagramReceived => "a receive of UD",
            Self::Unacknowledged => "UC, UD",
        }
    }
}

/// A likely cause, and what to look at or to do.
#[derive(Debug, Clone, Copy)]
pub struct Cause {
    when: When,
    /// What may be wrong.
    pub what: &'static str,
    /// What tells, or what mends it.
    pub look: &'static str,
}

const fn cause(when: When, what: &'static str, look: &'static str) -> Cause {
    Cause { when, what, look }
}

/// What a status says, and what it comes from.
struct Explained {
    status: WcStatus,
    /// In a sentence, for the page.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the page, which a test writes"))]
    says: &'static str,
    /// Who says so: sections of the InfiniBand Architecture Specification, volume 1 (IBTA), man pages of rdma-core, files
    /// of the kernel.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the page, which a test writes"))]
    sources: &'static str,
    causes: &'static [Cause],
}

use When::{
    Always, OfDatagramReceived, OfDatagramSent, OfReceive, OfSend, OnEthernet, OnInfiniband, PortFailed,
    Unacknowledged,
};

const PORT_FAILED: Cause = cause(
    PortFailed,
    "the port of this end is not active any more",
    "see the cable and the interface (ip link, ibstat), and dmesg",
);

const SEE_DMESG: Cause = cause(
    Always,
    "the device or its driver failed",
    "see the device's log (dmesg) on both ends, look the vendor code up, try another firmware",
);

/// In the order of their numbers, but for those that are not of this tool's making, which come last.
const EXPLAINED: &[Explained] = &[
    Explained {
        status: WcStatus::LOC_LEN_ERR,
        says: "A message does not fit: the receive posted for it, or what the port sends.",
        sources: "IBTA 9.9.2, 9.9.3, 11.6.2; drivers/infiniband/sw/rxe/rxe_resp.c",
        causes: &[
            cause(
                OfDatagramReceived,
                "a receive lacks the 40 bytes before a datagram",
                "that is a fault of verbmark: report it with the document of the run (--json)",
            ),
            cause(
                OfReceive,
                "the message is longer than the receive that it came to",
                "the ends disagree on the size: run the same verbmark at both, and compare the sizes above",
            ),
            cause(
                OfDatagramSent,
                "the datagram is longer than a packet of the port",
                "lower -s, or raise the MTU of the port",
            ),
            cause(
                OfSend,
                "the message is longer than the largest of the port",
                "lower -s to what both ports take (ibv_devinfo -v: max_msg_sz)",
            ),
        ],
    },
    Explained {
        status: WcStatus::LOC_QP_OP_ERR,
        says: "The own device finds the work request or its queue pair inconsistent.",
        sources: "IBTA 9.9.2, 11.6.2; drivers/infiniband/sw/rxe/rxe_req.c",
        causes: &[
            cause(
                OfSend,
                "more is asked of the queue pair than it was granted",
                "lower what is unusual: -o, -I, -l",
            ),
            cause(
                OnEthernet,
                "the address of a GID or the route to the peer went away, as a software device tells it",
                "see ip addr and ip route, and whether the GIDs that -v shows are still there",
            ),
            cause(
                Unacknowledged,
                "the device lacks this operation over this service",
                "try -c RC, which every device has",
            ),
            SEE_DMESG,
        ],
    },
    Explained {
        status: WcStatus::LOC_PROT_ERR,
        says: "A buffer of this end is not registered for what the work request does with it.",
        sources: "IBTA 9.9.2, 9.9.3, 10.6.3, 11.6.2; ibv_reg_mr(3)",
        causes: &[
            cause(
                Always,
                "the registration does not cover the buffer, or is gone",
                "that is a fault of verbmark or of the driver: report it with the document of the run (--json)",
            ),
            cause(
                Always,
                "a page of a buffer that is not pinned could not be brought in",
                "leave --odp away, and see that memory is free",
            ),
            SEE_DMESG,
        ],
    },
    Explained {
        status: WcStatus::WR_FLUSH_ERR,
        says: "The queue pair was in error already: the cause is its first error, at this end or at the peer.",
        sources: "IBTA 10.3.1.7, 10.8.3, 11.6.2; ibv_modify_qp(3)",
        causes: &[
            PORT_FAILED,
            cause(
                Unacknowledged,
                "an earlier send failed, and stopped the send queue",
                "see its error at this end",
            ),
            cause(
                Always,
                "a request of the peer failed here, or one of this end there",
                "see the error of the other end: it is the first",
            ),
            cause(Always, "the device was reset or removed", "see the device's log (dmesg) on both ends"),
        ],
    },
    Explained {
        status: WcStatus::BAD_RESP_ERR,
        says: "The answer of the peer is none to the request: of another kind or length.",
        sources: "IBTA 9.9.2, 11.6.2; drivers/infiniband/sw/rxe/rxe_comp.c",
        causes: &[
            cause(
                Always,
                "the devices of both ends read the protocol differently",
                "bring both to one firmware or kernel, and try -o 1 where reads or atomics fail",
            ),
            cause(
                Always,
                "packets of an earlier connection of the same number arrive",
                "start again: each run numbers its packets anew",
            ),
            SEE_DMESG,
        ],
    },
    Explained {
        status: WcStatus::LOC_ACCESS_ERR,
        says: "The peer's RDMA was refused by this end's device, which completes a receive with it.",
        sources: "IBTA 9.9.3, 11.6.2; drivers/infiniband/sw/rxe/rxe_resp.c",
        causes: &[
            cause(
                Always,
                "the peer used a key or bounds that this end's buffer does not have",
                "compare it with what the peer says of its request, and run the same verbmark at both ends",
            ),
            SEE_DMESG,
        ],
    },
    Explained {
        status: WcStatus::REM_INV_REQ_ERR,
        says: "The peer's device calls the request invalid: it does not fit the receive, or is not allowed.",
        sources: "IBTA 9.7.4.1, 9.9.3, 11.6.2; ibv_modify_qp(3); drivers/infiniband/sw/rxe/rxe_resp.c",
        causes: &[
            cause(
                Always,
                "the message is longer than the peer's receive or than its device takes",
                "the ends disagree on the size: run the same verbmark at both, and see the peer's error",
            ),
            cause(
                Always,
                "the peer's queue pair does not allow the operation, or as many reads or atomics at once",
                "lower -o, and see that the peer's device has the operation (ibv_devinfo -v)",
            ),
            cause(
                Always,
                "the ends cut messages into packets of different size",
                "set the same path MTU with -m, and report it",
            ),
        ],
    },
    Explained {
        status: WcStatus::REM_ACCESS_ERR,
        says: "The peer's device refuses access to the memory that the request names.",
        sources: "IBTA 9.9.3, 10.6.3, 11.6.2; ibv_reg_mr(3); drivers/infiniband/sw/rxe/rxe_resp.c",
        causes: &[
            cause(
                Always,
                "the key is none of the peer's memory, or of memory that it has given up",
                "see whether the peer's process goes on, and run the same verbmark at both ends",
            ),
            cause(
                Always,
                "the addresses go beyond the peer's buffer",
                "the ends disagree on its size: compare the bounds above",
            ),
            cause(
                Always,
                "the peer's buffer or queue pair lacks the right to be written, read or worked on",
                "that is a fault of verbmark: report it with the document of the run (--json)",
            ),
        ],
    },
    Explained {
        status: WcStatus::REM_OP_ERR,
        says: "The peer's device took the request and could not carry it out.",
        sources: "IBTA 9.9.3, 11.6.2; drivers/infiniband/sw/rxe/rxe_resp.c",
        causes: &[
            cause(
                Always,
                "the peer's receive names memory that it may not use",
                "see the peer's error, which says which",
            ),
            cause(
                Always,
                "the peer's completion queue or device failed",
                "see the peer's log (dmesg), and lower -q or -r",
            ),
        ],
    },
    Explained {
        status: WcStatus::RETRY_EXC_ERR,
        says: "No answer came from the peer to any of the tries.",
        sources: "IBTA 9.7.6.1.3, 9.9.2.1.3, 11.6.2; ibv_modify_qp(3) (timeout, retry_cnt); \
                  drivers/infiniband/sw/rxe/rxe_comp.c",
        causes: &[
            PORT_FAILED,
            cause(
                OnEthernet,
                "the path drops packets",
                "ping one GID's address from the other's, let UDP port 4791 through firewalls, compare VLANs and \
                 discards (ethtool -S)",
            ),
            cause(
                OnInfiniband,
                "the path drops packets",
                "see link errors and discards (ibqueryerrors), and whether ibping reaches the peer's LID",
            ),
            cause(
                Always,
                "a link on the way takes smaller packets than the path MTU",
                "try -m 1024, or raise the MTU of every interface and switch on the way",
            ),
            cause(
                OnEthernet,
                "the GIDs are of networks that do not reach each other",
                "see -v, choose others with -x on each end",
            ),
            cause(
                OnInfiniband,
                "the addresses lead elsewhere since the subnet manager swept",
                "compare the LIDs above with ibstat on each end",
            ),
            cause(
                Always,
                "the peer is gone: its process ended or its queue pair failed",
                "see what the other end said last",
            ),
            cause(Always, "the peer answers too late", "raise --qp-timeout or --retry-count"),
        ],
    },
    Explained {
        status: WcStatus::RNR_RETRY_EXC_ERR,
        says: "The peer had no receive posted at any of the tries.",
        sources: "IBTA 9.7.5.2.8, 9.9.2, 11.6.2; ibv_modify_qp(3) (rnr_retry, min_rnr_timer); \
                  drivers/infiniband/sw/rxe/rxe_comp.c",
        causes: &[
            cause(
                Always,
                "the peer posts receives more slowly than messages come",
                "raise -r, or lower -t or --depth",
            ),
            cause(
                Always,
                "the peer's thread is held up",
                "give it a core of its own (--cpu there, --peer-cpu here), and see what else runs on it",
            ),
            cause(
                Always,
                "the tries end too early",
                "raise --rnr-retry, of which 7 is for ever, or --min-rnr-timer",
            ),
        ],
    },
    Explained {
        status: WcStatus::REM_ABORT_ERR,
        says: "The peer's device gave the operation up.",
        sources: "IBTA 11.6.2",
        causes: &[
            cause(
                Always,
                "the peer's device was reset, or its queue pair taken away",
                "see the peer's last words and its log (dmesg)",
            ),
            SEE_DMESG,
        ],
    },
    Explained {
        status: WcStatus::FATAL_ERR,
        says: "The own device failed; nothing works on it until it was reset.",
        sources: "IBTA 11.6.2, 11.6.3; ibv_get_async_event(3)",
        causes: &[
            cause(
                Always,
                "the device failed, was reset or was removed",
                "see dmesg, and reload its driver or replug it",
            ),
            cause(Always, "its PCIe link fails", "see lspci -vv for errors of the link"),
        ],
    },
    Explained {
        status: WcStatus::RESP_TIMEOUT_ERR,
        says: "An answer that had begun did not come to its end in time.",
        sources: "IBTA 11.6.2",
        causes: &[
            PORT_FAILED,
            cause(
                Always,
                "the peer stopped within an answer",
                "see what the other end said last, and its log (dmesg)",
            ),
            cause(Always, "the path drops packets", "see discards and link errors at both ends"),
        ],
    },
    Explained {
        status: WcStatus::GENERAL_ERR,
        says: "The device has no status for what happened.",
        sources: "IBTA 11.6.2",
        causes: &[SEE_DMESG],
    },
    Explained {
        status: WcStatus::MW_BIND_ERR,
        says: "A memory window could not be bound; this tool has none.",
        sources: "IBTA 10.6.6, 11.6.2",
        causes: &[SEE_DMESG],
    },
];

/// Those of other services and operations, and numbers that are no status.
const OTHERS: &[Cause] = &[SEE_DMESG];

/// The likely causes of a status, most likely first.
pub fn causes(status: WcStatus, situation: &Situation) -> Vec<&'static Cause> {
    let explained = EXPLAINED.iter().find(|explained| explained.status == status);
    let all = explained.map_or(OTHERS, |explained| explained.causes);
    all.iter().filter(|cause| cause.when.holds(situation)).collect()
}

#[cfg(test)]
mod tests;
