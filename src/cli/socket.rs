//! What a socket can be given.

use crate::units::parse_size;

/// Largest buffer of a socket: the kernel keeps twice as much in an `int`.
pub const MOST_SOCKET_BUFFER: u32 = 1 << 29;

/// Longest busy polling, in us: a second.
pub const MOST_BUSY_POLL: i64 = 1_000_000;

pub(super) fn parse_socket_buffer(text: &str) -> Result<u32, String> {
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

pub(super) fn parse_congestion(text: &str) -> Result<String, String> {
    if is_congestion_name(text) {
        Ok(text.into())
    } else {
        Err("write a name as in `sysctl net.ipv4.tcp_available_congestion_control`, such as cubic".into())
    }
}
