//! What an end chooses for itself, and how it reaches the other or is reached.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;

use crate::units::parse_duration;

/// What each end chooses for itself.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "This end")]
pub struct EndpointArgs {
    /// RDMA device [default: the first usable one]
    #[arg(short = 'd', long = "ib-dev", value_name = "NAME")]
    pub device: Option<String>,

    /// Port of the device
    #[arg(short = 'i', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    pub ib_port: u8,

    /// Index in the port's GID table [default: chosen by type, family, subnet and route]
    #[arg(short = 'x', long, value_name = "N")]
    pub gid_index: Option<u32>,

    /// Index in the port's partition key table; both ends' keys must be of one partition
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub pkey_index: u16,

    /// TCP port of the control connection and of the TCP baseline; a server takes a free one for 0
    #[arg(short, long, value_name = "PORT", default_value_t = 18515)]
    pub port: u16,

    /// Local address to listen on or to connect from
    #[arg(long, value_name = "ADDRESS")]
    pub bind: Option<IpAddr>,

    /// Secret that the other end must know, too: a file of 16 bytes or more, with the same content at both ends
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,

    /// As a server, take clients only from this address or prefix, such as 10.7.0.0/16; repeatable, or a list with commas
    #[arg(long, value_name = "PREFIX", value_delimiter = ',', value_parser = parse_prefix)]
    pub allow: Vec<IpNet>,

    /// NUMA node that the buffers are to lie on [default: that of the core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1023))]
    pub numa: Option<u32>,

    /// Core to run on [default: chosen near the device, another one for each end on one host]
    #[arg(long, alias = "core", value_name = "N")]
    pub cpu: Option<usize>,
}

/// How a client reaches a server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "This end")]
pub struct ReachArgs {
    /// Longest wait for a server to appear
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = parse_duration)]
    pub connect_timeout: Duration,
}

/// An address alone is a prefix of its whole length.
fn parse_prefix(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    address.or_else(|_| text.parse()).map_err(|_| {
        format!("'{text}' is not an address or a prefix: write it as in 10.7.0.0/16, fd00::/8 or 10.7.0.1")
    })
}
