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

/// An address alone is a prefix of its whole length. `::ffff:10.7.0.1` is the IPv4 address in it.
fn parse_prefix(text: &str) -> Result<IpNet, String> {
    let prefix = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address.to_canonical()),
        Err(_) => text.parse::<IpNet>().map(canonical).map_err(|_| {
            format!(
                "'{text}' is not an address or a prefix: write it as in 10.7.0.0/16, fd00::/8 or 10.7.0.1"
            )
        })?,
    };
    match prefix.trunc() {
        network if network == prefix => Ok(prefix),
        network => Err(format!(
            "'{text}' has an address within a network: write {network} for all of that, or {} for the one address",
            prefix.addr()
        )),
    }
}

/// A prefix of IPv4 addresses as a socket of both families shows them is one of IPv4.
fn canonical(prefix: IpNet) -> IpNet {
    match prefix.addr().to_canonical() {
        IpAddr::V4(address) if prefix.addr().is_ipv6() && prefix.prefix_len() >= 96 => {
            IpNet::new(address.into(), prefix.prefix_len() - 96).unwrap_or(prefix)
        }
        _ => prefix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_network_of_the_family_that_clients_have() {
        let read = |text: &str| parse_prefix(text).map(|prefix| prefix.to_string());
        for (text, expected) in [
            ("10.7.0.1", "10.7.0.1/32"),
            ("10.7.0.0/16", "10.7.0.0/16"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::ffff:10.7.0.1", "10.7.0.1/32"),
            ("::ffff:10.7.0.0/112", "10.7.0.0/16"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("fd00::/8", "fd00::/8"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(expected));
        }
        for (text, network) in [
            ("10.0.0.5/8", "write 10.0.0.0/8 for all of that, or 10.0.0.5 for the one address"),
            ("::ffff:10.0.0.5/104", "write 10.0.0.0/8 for"),
            ("fd00::1/8", "write fd00::/8 for"),
            ("::ffff:10.0.0.5/64", "write ::/64 for"),
        ] {
            assert!(read(text).is_err_and(|why| why.contains(network)), "{text}: {:?}", read(text));
        }
        assert!(read("10.7.0.0/33").is_err() && read("").is_err());
    }
}
