//! Socket options no crate wraps.

use std::ffi::c_int;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

/// Segments this connection has sent again since it was made (`tcp(7)`, `TCP_INFO`: `tcpi_total_retrans`).
///
/// # Errors
/// Not a TCP socket.
pub fn retransmits(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which has as many; the descriptor is open for as long
    // as it is borrowed.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all fields are integers, zeroed before and written as far as this kernel knows them.
    Ok(unsafe { info.assume_init() }.tcpi_total_retrans)
}

/// How long the kernel polls the queue of the network device for this socket before it sleeps, in us (`socket(7)`,
/// `SO_BUSY_POLL`).
///
/// # Errors
/// The kernel has no such polling, or this user may not ask for more than the system's own.
pub fn set_busy_poll(socket: BorrowedFd<'_>, microseconds: u32) -> io::Result<()> {
    set_int(socket, libc::SO_BUSY_POLL, c_int::try_from(microseconds).unwrap_or(c_int::MAX))
}

/// What [`set_busy_poll`] has set, or the system's own.
///
/// # Errors
/// The kernel has no such polling.
pub fn busy_poll(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`; the descriptor is open for as long as it is borrowed.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BUSY_POLL,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if code == 0 { Ok(u32::try_from(value).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option of the socket level that is an `int`.
pub(super) fn set_int(socket: BorrowedFd<'_>, option: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the kernel reads an `int`; the descriptor is open for as long as it is borrowed.
    let code = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_fresh_connection_has_sent_nothing_twice_and_other_sockets_have_no_count() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(retransmits(stream.as_fd()).unwrap(), 0);
        let (unix, _) = UnixStream::pair().unwrap();
        assert!(retransmits(unix.as_fd()).is_err());
    }
}
