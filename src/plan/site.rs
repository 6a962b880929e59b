//! One end's own choices.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::cli::EndpointArgs;

/// What an end chooses for itself and does not tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Name of the RDMA device; `None` takes the first usable one.
    pub device: Option<String>,
    /// Port of the device, from 1.
    pub port: u8,
    /// Index in the port's GID table; `None` leaves the choice open.
    pub gid_index: Option<u32>,
    /// Index in the port's partition key table.
    pub pkey_index: u16,
    /// The emulated device will do if there is no other.
    pub may_emulate: bool,
    /// Core to run on; `None` leaves the choice open.
    pub core: Option<usize>,
    /// NUMA node of the buffers; `None` leaves it to the kernel, which takes that of the core.
    pub numa: Option<u32>,
    /// Port of the control connection.
    pub control_port: u16,
    /// Local address of the control connection.
    pub bind: Option<IpAddr>,
    /// What both ends must know; `None` asks for nothing, and proves nothing.
    pub secret_file: Option<PathBuf>,
    /// As a server: where clients must come from; anywhere if this is empty.
    pub allowed: Vec<IpNet>,
    /// As a server: what no test may exceed.
    pub most: Most,
    /// Longest wait for a server to appear.
    pub connect_timeout: Duration,
    /// As a server: open no device and refuse RDMA.
    pub tcp_only: bool,
    /// Say what was chosen and why.
    pub verbose: bool,
}

/// What a server refuses to exceed; `None` sets no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Most {
    /// Bytes of a message.
    pub size: Option<u64>,
    /// Bytes of the buffers at this end.
    pub memory: Option<u64>,
    /// Time that a test warms up and measures, all its points together.
    pub duration: Option<Duration>,
    /// Beyond twice that time, how long all else of a test may take before it is cut off.
    pub spare: Duration,
    /// Queue pairs, or connections.
    pub qps: Option<u32>,
}

impl Most {
    /// What registering memory, connecting, checking payloads and the like take in all, on a slow network, too.
    pub const SPARE: Duration = Duration::from_secs(30);

    /// From its turn on, when a client is cut off that goes on for longer than any admitted test; `None` sets no limit.
    pub fn longest_turn(&self) -> Option<Duration> {
        self.duration.map(|most| most.saturating_mul(2).saturating_add(self.spare))
    }
}

impl Site {
    /// Of a server with these options; on an emulated device only where that is named.
    pub fn of_server(typed: EndpointArgs, tcp_only: bool, verbose: bool) -> Self {
        let EndpointArgs {
            device,
            ib_port,
            gid_index,
            pkey_index,
            port,
            bind,
            secret_file,
            allow,
            numa,
            cpu,
        } = typed;
        Self {
            device,
            port: ib_port,
            gid_index,
            pkey_index,
            may_emulate: false,
            core: cpu,
            numa,
            control_port: port,
            bind,
            secret_file,
            allowed: allow,
            most: Most::default(),
            connect_timeout: Duration::ZERO,
            tcp_only,
            verbose,
        }
    }
}
