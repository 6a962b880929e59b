//! Options of the baseline's socket: asked for alike at both ends, and what the kernel made of them.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;

use nix::errno::Errno;
use socket2::{Domain, SockRef, Socket, Type};

use crate::error::{Error, Result, Step};
use crate::plan::{TcpOptions, Test, Transport};
use crate::sys;

/// What the kernel has in the end, or why it does not tell.
#[derive(Debug, Clone)]
pub struct Granted {
    /// Send buffer in bytes, twice what was asked for.
    pub send_buffer: Result<u64, String>,
    /// Receive buffer in bytes, twice what was asked for.
    pub receive_buffer: Result<u64, String>,
    /// Congestion control.
    pub congestion: Result<String, String>,
    /// Busy polling in us.
    pub busy_poll_us: Result<u32, String>,
}

impl Granted {
    /// Of a connected socket.
    pub fn of(stream: &TcpStream) -> Self {
        let socket = SockRef::from(stream);
        let told = |error: io::Error| error.to_string();
        Self {
            send_buffer: socket.send_buffer_size().map(|size| size as u64).map_err(told),
            receive_buffer: socket.recv_buffer_size().map(|size| size as u64).map_err(told),
            congestion: socket.tcp_congestion().map_err(told).map(|name| {
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                String::from_utf8_lossy(name).into_owned()
            }),
            busy_poll_us: sys::socket::busy_poll(stream.as_fd()).map_err(told),
        }
    }
}

/// Refuses what this kernel does not grant, before anything is made: on a socket that is thrown away.
///
/// # Errors
/// The option, what the kernel said, and what to do.
pub fn check(test: &Test) -> Result<()> {
    if !test.measures(Transport::Tcp) || test.tcp == TcpOptions::default() {
        return Ok(());
    }
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)
        .map_err(|error| Error::failed(Step::TcpConnect, format!("socket: {error}")))?;
    apply(SockRef::from(&socket), &test.tcp)
}

/// Sets what was asked for.
pub(super) fn apply(socket: SockRef<'_>, options: &TcpOptions) -> Result<()> {
    if let Some(size) = options.send_buffer_bytes {
        let outcome = socket.set_send_buffer_size(size as usize);
        outcome.map_err(|error| refused("--tcp-sndbuf", size, &error, "leave it away"))?;
    }
    if let Some(size) = options.receive_buffer_bytes {
        let outcome = socket.set_recv_buffer_size(size as usize);
        outcome.map_err(|error| refused("--tcp-rcvbuf", size, &error, "leave it away"))?;
    }
    if let Some(name) = &options.congestion {
        socket.set_tcp_congestion(name.as_bytes()).map_err(|error| congestion_refused(name, &error))?;
    }
    if let Some(us) = options.busy_poll_us {
        sys::socket::set_busy_poll(socket.as_fd(), us).map_err(|error| {
            let remedy = match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EPERM) => {
                    "more than net.core.busy_read needs CAP_NET_ADMIN: run as root, or raise that (sysctl)"
                }
                _ => "this kernel has no busy polling (CONFIG_NET_RX_BUSY_POLL): leave it away",
            };
            refused("--tcp-busy-poll", us, &error, remedy)
        })?;
    }
    if options.zero_copy {
        sys::zero_copy::enable(socket.as_fd()).map_err(|error| {
            refused("--tcp-zerocopy", "", &error, "it needs Linux 4.14 or newer: leave it away")
        })?;
    }
    Ok(())
}

fn refused(option: &str, value: impl std::fmt::Display, error: &io::Error, remedy: &str) -> Error {
    Error::failed(Step::TcpConnect, format!("{}: {error}", format!("{option} {value}").trim_end()))
        .with_remedy(remedy)
}

fn congestion_refused(name: &str, error: &io::Error) -> Error {
    let list = |file: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{file}"));
        text.map_or_else(|_| "not told".into(), |text| text.trim().to_owned())
    };
    let remedy = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM) => format!(
            "a user without CAP_NET_ADMIN may choose among {} (net.ipv4.tcp_allowed_congestion_control)",
            list("tcp_allowed_congestion_control")
        ),
        _ => format!(
            "this kernel has {}; others are modules (modprobe tcp_{name})",
            list("tcp_available_congestion_control")
        ),
    };
    Error::failed(Step::TcpConnect, format!("--tcp-congestion {name}: {error}")).with_remedy(remedy)
}
