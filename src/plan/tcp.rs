//! What is asked of the baseline's socket.

use serde::{Deserialize, Serialize};

use super::{Test, Transport};
use crate::cli::{MOST_BUSY_POLL, MOST_SOCKET_BUFFER, TcpArgs, is_congestion_name};
use crate::error::{Error, Result};
use crate::ops::ATOMIC_SIZE;

/// Options of the socket at both ends; `None` leaves one as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TcpOptions {
    /// Send buffer in bytes, as asked for.
    pub send_buffer_bytes: Option<u32>,
    /// Receive buffer in bytes, as asked for.
    pub receive_buffer_bytes: Option<u32>,
    /// Congestion control.
    pub congestion: Option<String>,
    /// How long the kernel polls the network device before it sleeps.
    pub busy_poll_us: Option<u32>,
    /// Messages are sent without copying them, as far as the kernel does that.
    pub zero_copy: bool,
}

impl From<&TcpArgs> for TcpOptions {
    fn from(typed: &TcpArgs) -> Self {
        Self {
            send_buffer_bytes: typed.tcp_sndbuf,
            receive_buffer_bytes: typed.tcp_rcvbuf,
            congestion: typed.tcp_congestion.clone(),
            busy_poll_us: typed.tcp_busy_poll,
            zero_copy: typed.tcp_zerocopy,
        }
    }
}

impl TcpOptions {
    /// The options that were given, as typed.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            ("--tcp-sndbuf", self.send_buffer_bytes.is_some()),
            ("--tcp-rcvbuf", self.receive_buffer_bytes.is_some()),
            ("--tcp-congestion", self.congestion.is_some()),
            ("--tcp-busy-poll", self.busy_poll_us.is_some()),
            ("--tcp-zerocopy", self.zero_copy),
        ];
        all.into_iter().filter_map(|(option, is_given)| is_given.then_some(option))
    }

    /// Every value is one that the command line would take: they come from the network, too.
    pub(super) fn is_in_range(&self) -> bool {
        let is_buffer = |size: Option<u32>| size.is_none_or(|size| (1..=MOST_SOCKET_BUFFER).contains(&size));
        is_buffer(self.send_buffer_bytes)
            && is_buffer(self.receive_buffer_bytes)
            && self.busy_poll_us.is_none_or(|us| (1..=MOST_BUSY_POLL).contains(&us.into()))
            && self.congestion.as_deref().is_none_or(is_congestion_name)
    }

    /// They have a socket to be about.
    pub(super) fn check(&self, test: &Test) -> Result<()> {
        match self.given().next() {
            Some(option) if !test.measures(Transport::Tcp) => {
                Err(Error::usage(format!("{option} is for TCP, which --no-tcp leaves out"))
                    .with_remedy(format!("leave {option} or --no-tcp away")))
            }
            _ if self.zero_copy && test.verb.facts().is_atomic() => Err(Error::usage(format!(
                "--tcp-zerocopy has no meaning for {}: nothing but words of {ATOMIC_SIZE} bytes is sent",
                test.verb
            ))
            .with_remedy("leave --tcp-zerocopy away")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_from_the_network_are_held_to_the_ranges_of_the_command_line() {
        assert!(TcpOptions::default().is_in_range());
        for wrong in [
            TcpOptions { send_buffer_bytes: Some(0), ..TcpOptions::default() },
            TcpOptions { receive_buffer_bytes: Some(u32::MAX), ..TcpOptions::default() },
            TcpOptions { busy_poll_us: Some(u32::MAX), ..TcpOptions::default() },
            TcpOptions { congestion: Some(String::new()), ..TcpOptions::default() },
            TcpOptions { congestion: Some("cubic\0".into()), ..TcpOptions::default() },
            TcpOptions { congestion: Some("a-name-of-sixteen".into()), ..TcpOptions::default() },
        ] {
            assert!(!wrong.is_in_range(), "{wrong:?}");
        }
    }
}
