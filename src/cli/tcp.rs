//! Options of the socket that is measured beside the queue pair.

use clap::Args;

use crate::units::parse_size;

/// The socket that is measured beside the queue pair.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "TCP, decided by the client")]
pub struct TcpArgs {
    /// Send buffer of the socket (SO_SNDBUF) [default: the kernel's, which adapts]
    #[arg(long, value_name = "SIZE", value_parser = parse_socket_buffer)]
    pub tcp_sndbuf: Option<u32>,

    /// Receive buffer of the socket (SO_RCVBUF) [default: the kernel's, which adapts]
    #[arg(long, value_name = "SIZE", value_parser = parse_socket_buffer)]
    pub tcp_rcvbuf: Option<u32>,

    /// Congestion control, one of net.ipv4.tcp_available_congestion_control [default: the kernel's]
    #[arg(long, value_name = "NAME", value_parser = parse_congestion)]
    pub tcp_congestion: Option<String>,

    /// Let the kernel poll the network device for this long before it sleeps (SO_BUSY_POLL), in us
    #[arg(long, value_name = "USEC", value_parser = clap::value_parser!(u32).range(1..=MOST_BUSY_POLL))]
    pub tcp_busy_poll: Option<u32>,

    /// Send messages without copying them (MSG_ZEROCOPY); what the kernel copied after all is counted
    #[arg(long)]
    pub tcp_zerocopy: bool,
}

/// Largest buffer of a socket: the kernel keeps twice as much in an `int`.
pub const MOST_SOCKET_BUFFER: u32 = 1 << 29;

/// Longest busy polling, in us: a second.
pub const MOST_BUSY_POLL: i64 = 1_000_000;

fn parse_socket_buffer(text: &str) -> Result<u32, String> {
    match parse_size(text)? {
        0 => Err("a socket needs a buffer of at least 1 byte".into()),
        size if size <= MOST_SOCKET_BUFFER.into() => Ok(size as u32),
        size => Err(format!("{size} is more than a socket can have ({MOST_SOCKET_BUFFER})")),
    }
}

/// The text has the form of a congestion control's name: `TCP_CA_NAME_MAX` is 16, its end included.
pub fn is_congestion_name(text: &str) -> bool {
    (1..16).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

fn parse_congestion(text: &str) -> Result<String, String> {
    if is_congestion_name(text) {
        Ok(text.into())
    } else {
        Err("write a name as in `sysctl net.ipv4.tcp_available_congestion_control`, such as cubic".into())
    }
}
