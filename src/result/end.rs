//! One end of a run: the machine, the process, the device and the socket; and what they allow to be claimed.

use serde::{Deserialize, Serialize};

use crate::host::{CpuEvidence, Fingerprint, Machine, MachineCpu};
use crate::measure::{ClockReport, ClockSource};
use crate::plan::Side;

/// One end of a run. `local` wrote the document, `remote` told it over the control connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Which end of the test it was.
    pub side: Side,
    /// What is known of the machine; its fields stand beside these.
    #[serde(flatten)]
    pub machine: Machine,
    /// Core the measuring thread was pinned to.
    pub core: Option<usize>,
    /// NUMA node of that core.
    pub numa_node: Option<u32>,
    /// How core and device were set up: what two runs must have in common to be compared.
    #[serde(default)]
    pub fingerprint: Option<Fingerprint>,
    /// What its buffers lie in; `null` before they exist.
    #[serde(default)]
    pub buffers: Option<Buffers>,
    /// The process.
    pub process: Process,
    /// What time was read from.
    pub clock: Option<ClockFacts>,
    /// How much of what the test costs its CPU can be told.
    #[serde(default)]
    pub evidence: Option<CpuEvidence>,
    /// What all cores of the machine did while nothing was measured; with `--cpu-report` alone.
    #[serde(default)]
    pub idle_machine: Option<MachineCpu>,
    /// The RDMA device; `null` when none was opened.
    pub device: Option<Device>,
    /// The TCP baseline's socket; `null` when there was none.
    pub tcp: Option<TcpEnd>,
}

/// The memory of an end's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffers {
    /// Size of the pages they were mapped with.
    pub page_bytes: u64,
    /// NUMA node they were bound to; `null` left it to the kernel.
    pub numa_node: Option<u32>,
}

/// A process of the suite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Version of verbmark in it.
    pub version: String,
    /// It was compiled with optimisation; numbers of one that was not mean nothing.
    pub optimised: bool,
}

impl Process {
    /// This process.
    pub fn current() -> Self {
        Self {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            optimised: !cfg!(debug_assertions),
        }
    }
}

/// What time was read from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClockFacts {
    /// Such as `tsc`, `cntvct` or `clock_monotonic_raw`.
    pub source: String,
    /// Ticks a second of a counter; `null` for a system clock.
    pub frequency_hz: Option<f64>,
    /// What one reading costs.
    pub reading_ns: Option<f64>,
}

impl From<ClockReport> for ClockFacts {
    fn from(report: ClockReport) -> Self {
        let (source, counted) = match report.source {
            ClockSource::Tsc => ("tsc", true),
            ClockSource::Cntvct => ("cntvct", true),
            ClockSource::MonotonicRaw => ("clock_monotonic_raw", false),
        };
        Self {
            source: source.into(),
            frequency_hz: counted.then_some(report.hz),
            reading_ns: Some(report.reading_ns),
        }
    }
}

/// What a port's frames travel in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
}

/// The protocol a GID stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GidType {
    /// InfiniBand.
    #[serde(rename = "IB")]
    InfiniBand,
    /// RoCE on Ethernet frames.
    #[serde(rename = "RoCE v1")]
    RoceV1,
    /// RoCE on UDP.
    #[serde(rename = "RoCE v2")]
    RoceV2,
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Its place in the table.
    pub index: u32,
    /// As an IPv6 address.
    pub address: String,
    /// The protocol it stands for.
    #[serde(rename = "type")]
    pub kind: GidType,
}

/// The RDMA device and port of one end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Name, such as `mlx5_0`.
    pub name: String,
    /// Kernel driver.
    pub driver: Option<String>,
    /// User-space provider, such as `mlx5`, `rxe` or `emulated`; `null` when not known.
    pub provider: Option<String>,
    /// Firmware version.
    pub firmware: Option<String>,
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// A CPU does the device's work; `null` when the provider is not known.
    pub is_software: Option<bool>,
    /// Data rate of the port in 10^9 bits a second.
    pub rate_gbps: Option<f64>,
    /// Largest MTU the port can use now.
    pub active_mtu_bytes: Option<u32>,
    /// MTU of the path, agreed with the other end.
    pub path_mtu_bytes: Option<u32>,
    /// Port number, from 1.
    pub port: u8,
    /// The GID used; `null` on InfiniBand without a GRH.
    pub gid: Option<Gid>,
    /// Local identifier; `null` on Ethernet.
    pub lid: Option<u16>,
    /// Index of the partition key in the port's table.
    #[serde(default)]
    pub pkey_index: Option<u16>,
    /// The partition key there, as `0xffff`: 15 bits name the partition, the highest makes a full member.
    #[serde(default)]
    pub pkey: Option<String>,
    /// Network interface of the port.
    pub netdev: Option<String>,
    /// NUMA node the device is attached to.
    pub numa_node: Option<u32>,
    /// Inline payload granted.
    pub inline_bytes: Option<u32>,
    /// GUID of the node, as `xxxx:xxxx:xxxx:xxxx`.
    pub node_guid: Option<String>,
}

impl Device {
    /// The provider name of the emulated device.
    pub const EMULATED: &str = "emulated";

    /// It lives in this process, and its numbers measure this tool.
    pub fn is_emulated(&self) -> bool {
        self.provider.as_deref() == Some(Self::EMULATED)
    }
}

/// The socket of the TCP baseline at one end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpEnd {
    /// Address and port it is bound to.
    pub local_address: Option<String>,
    /// Address and port it talks to.
    pub peer_address: Option<String>,
    /// Interface the packets really leave by.
    pub interface: Option<String>,
    /// That is the RDMA port's own; `null` when it cannot be told.
    pub same_link: Option<bool>,
    /// Send buffer as the kernel counts it, bookkeeping included: twice what was asked for.
    #[serde(default)]
    pub send_buffer_bytes: Option<u64>,
    /// Receive buffer, in the same way.
    #[serde(default)]
    pub receive_buffer_bytes: Option<u64>,
    /// Congestion control in use.
    #[serde(default)]
    pub congestion: Option<String>,
    /// How long the kernel polls the network device before it sleeps.
    #[serde(default)]
    pub busy_poll_us: Option<u32>,
}

/// What the run may be quoted for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// No CPU copied the payload.
    pub zero_copy: bool,
    /// No system call was made on the data path.
    pub kernel_bypass: bool,
    /// Why, or why not, one line.
    pub reason: String,
}

impl Claims {
    /// What two ends allow to be claimed without evidence of an audit: nothing, and why.
    pub fn of(local: Option<&End>, remote: Option<&End>) -> Self {
        let devices = || [local, remote].into_iter().flatten().filter_map(|end| end.device.as_ref());
        let reason = if devices().next().is_none() {
            "no RDMA device took part".into()
        } else if let Some(device) = devices().find(|device| device.is_emulated()) {
            format!("{} is emulated in this process: a CPU copies every byte", device.name)
        } else if let Some(device) = devices().find(|device| device.is_software == Some(true)) {
            let provider = device.provider.as_deref().unwrap_or("a software provider");
            format!("{} is software RDMA ({provider}): a CPU copies every byte", device.name)
        } else if let Some(device) = devices().find(|device| device.is_software.is_none()) {
            let provider = device.provider.as_deref().unwrap_or("without a name");
            format!("the provider of {} ({provider}) is not known to be hardware", device.name)
        } else {
            "not audited in this run".into()
        };
        Self { zero_copy: false, kernel_bypass: false, reason }
    }
}
