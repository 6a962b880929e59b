//! The memory of a test's buffers at this end: where it is to lie, and whether there is such memory.

use nix::unistd::{SysconfVar, sysconf};

use crate::error::{Error, Result, Step};
use crate::host::{self, HugePages};
use crate::ops::Arrival;
use crate::plan::{Connection, MemoryKind, Shape, Test, Transport};
use crate::transport::rdma::{Layout, Port};
use crate::units::format_size;
use crate::verbs::{OnDemandPaging, Placement, Transport as Service};

/// Where the buffers of a test are to lie, at an end whose user named a node or none.
///
/// # Errors
/// This kernel has no huge pages.
pub fn placement(test: &Test, numa_node: Option<u32>) -> Result<Placement> {
    let huge_page_bytes = match test.memory {
        MemoryKind::Anonymous => None,
        MemoryKind::HugePages => Some(huge_pages()?.page_bytes),
    };
    Ok(Placement { huge_page_bytes, numa_node, unjoined: false })
}

/// Size of the pages that buffers are mapped with.
pub fn page_bytes(placement: Placement) -> u64 {
    let base = || sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|size| size.try_into().ok());
    placement.huge_page_bytes.map_or_else(|| base().unwrap_or(4096), |size| size as u64)
}

/// Refuses what this end cannot have, before anything is made.
///
/// # Errors
/// What is missing, and how to get it.
pub fn check(test: &Test, port: Option<&Port>) -> Result<()> {
    if test.memory == MemoryKind::HugePages {
        check_huge_pages(test)?;
    }
    match port {
        Some(port) if test.on_demand_paging => check_paging(test, port),
        _ => Ok(()),
    }
}

/// Refuses a test whose buffers would take more than a server allows, at this end and with all its threads and paths.
///
/// # Errors
/// How much it would be.
pub fn check_most(test: &Test, most: Option<u64>) -> Result<()> {
    let Some(most) = most else { return Ok(()) };
    let layout = Layout::of(test)?;
    let copies = u64::from(test.threads) * test.transports.len() as u64;
    let bytes = (layout.bytes() as u64).saturating_mul(copies);
    if bytes <= most {
        return Ok(());
    }
    let [bytes, most] = [bytes, most].map(format_size);
    Err(Error::failed(
        Step::Plan,
        format!("this server gives a test up to {most} for its buffers, not {bytes}"),
    )
    .with_remedy("lower -s, -t, -q, --buffers or --threads, or ask who runs the server"))
}

/// The node a user named has memory.
///
/// # Errors
/// `Usage`: it has none, with those that have.
pub fn check_node(numa: Option<u32>) -> Result<()> {
    let Some(node) = numa else { return Ok(()) };
    let refuse = |why: String| {
        Err(Error::usage(format!("--numa {node}: {why}"))
            .with_remedy("name another node, or leave --numa away"))
    };
    match host::nodes_with_memory() {
        None => refuse("this kernel has no NUMA nodes".into()),
        Some(nodes) if nodes.contains(&(node as usize)) => Ok(()),
        Some(nodes) => {
            let nodes: Vec<String> = nodes.iter().map(usize::to_string).collect();
            refuse(format!("no such node has memory; there are {}", nodes.join(",")))
        }
    }
}

/// The huge pages of this machine.
///
/// # Errors
/// It has none.
pub fn huge_pages() -> Result<HugePages> {
    HugePages::read().map_err(|why| {
        Error::failed(Step::RegisterMemory, format!("no huge pages here: {why}"))
            .with_remedy("leave --hugepages away, or boot a kernel that has them (CONFIG_HUGETLBFS)")
    })
}

/// The registered buffer is there all the time, and the socket's beside it while a point is measured: out and in are two
/// of their own in a latency test, and where messages go both ways.
fn check_huge_pages(test: &Test) -> Result<()> {
    let HugePages { page_bytes, available } = huge_pages()?;
    let layout = Layout::of(test)?;
    let pages = |transport, share: u64| {
        let bytes = match transport {
            Transport::Rdma => layout.bytes(),
            Transport::Tcp if test.bidirectional => 2 * layout.stride * layout.slots,
            Transport::Tcp => layout.stride * layout.slots,
        };
        if test.measures(transport) { (bytes as u64 / share).div_ceil(page_bytes as u64) * share } else { 0 }
    };
    let sockets = if test.shape == Shape::Latency || test.bidirectional { 2 } else { 1 };
    let needed = pages(Transport::Rdma, 1) + pages(Transport::Tcp, sockets);
    if needed <= available {
        return Ok(());
    }
    let size = format_size(page_bytes as u64);
    Err(Error::failed(
        Step::RegisterMemory,
        format!("the buffers need {needed} huge pages of {size} at this end, and {available} are available"),
    )
    .with_remedy(format!(
        "reserve more (as root, `sysctl vm.nr_hugepages=N`; two ends on one host need twice {needed}), or leave \
         --hugepages away"
    )))
}

/// The device does without pinned memory what the verb asks of either end.
fn check_paging(test: &Test, port: &Port) -> Result<()> {
    let facts = test.verb.facts();
    let needed = OnDemandPaging {
        send: !facts.is_one_sided(),
        receive: facts.arrival == Arrival::RecvCompletion,
        write: facts.is_one_sided() && !facts.pulls(),
        read: facts.pulls() && !facts.is_atomic(),
        atomic: facts.is_atomic(),
    };
    let (connection, capabilities) = match test.connection {
        Connection::Rc => (Some(Service::Rc), "rc_odp_caps"),
        Connection::Uc => (Some(Service::Uc), "uc_odp_caps"),
        Connection::Ud => (None, "ud_odp_caps"),
    };
    let has = port.context().on_demand_paging(connection)?;
    if has.covers(needed) {
        return Ok(());
    }
    Err(Error::failed(
        Step::RegisterMemory,
        format!(
            "{} does on-demand paging for {} over {}; {} needs it for {}",
            port.device().name(),
            has.names(),
            test.connection,
            test.verb,
            needed.names()
        ),
    )
    .with_remedy(format!(
        "leave --odp away, or choose another device with -d (`ibv_devinfo -v` shows {capabilities})"
    )))
}
