//! Sending without a copy: pages are lent to the kernel, which says on the socket's error queue when it is done with them
//! (`Documentation/networking/msg_zerocopy.rst`).

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc::{self, c_int, c_void};

/// `SO_EE_ORIGIN_ZEROCOPY` of `<linux/errqueue.h>`.
const ORIGIN_ZERO_COPY: u8 = 5;

/// `SO_EE_CODE_ZEROCOPY_COPIED`.
const CODE_COPIED: u8 = 1;

/// What the kernel is done with: sends by their number on the socket, which counts those with `MSG_ZEROCOPY` from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Returned {
    /// The first of them.
    pub first: u32,
    /// The last of them.
    pub last: u32,
    /// The kernel made a copy of their data after all.
    pub copied: bool,
}

/// Allows `MSG_ZEROCOPY` on a socket.
///
/// # Errors
/// The kernel or the protocol does not do that.
pub fn enable(socket: BorrowedFd<'_>) -> io::Result<()> {
    super::socket::set_int(socket, libc::SO_ZEROCOPY, 1)
}

/// The next entry of the error queue, without waiting for one.
///
/// # Errors
/// The queue cannot be read.
pub fn next_returned(socket: BorrowedFd<'_>) -> io::Result<Option<Returned>> {
    loop {
        // Room for the one message there is, which holds an error and an address, and its alignment.
        let mut control = [0_u64; 16];
        // SAFETY: integers and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_control = control.as_mut_ptr().cast::<c_void>();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: recvmsg(2) writes no payload, since there is no buffer for it, and at most the given length of
        // control data; the descriptor is open for as long as it is borrowed.
        if unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) } < 0 {
            return match Errno::last() {
                Errno::EAGAIN => Ok(None),
                Errno::EINTR => continue,
                errno => Err(errno.into()),
            };
        }
        if let Some(returned) = parse(&message) {
            return Ok(Some(returned));
        }
    }
}

/// What an entry says, if it is one of those.
fn parse(message: &libc::msghdr) -> Option<Returned> {
    // SAFETY: the kernel has filled the control data, and set its length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give headers that lie wholly within the control data, or null.
        let (level, kind, length) =
            unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len as usize) };
        let is_error =
            matches!((level, kind), (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR));
        // SAFETY: arithmetic only.
        let needed = unsafe { libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) } as usize;
        if is_error && length >= needed {
            // SAFETY: the header says that so many bytes follow; they are read without asking for an alignment.
            let error: libc::sock_extended_err =
                unsafe { libc::CMSG_DATA(header).cast::<libc::sock_extended_err>().read_unaligned() };
            if error.ee_origin == ORIGIN_ZERO_COPY {
                let copied = error.ee_code & CODE_COPIED != 0;
                return Some(Returned { first: error.ee_info, last: error.ee_data, copied });
            }
        }
        // SAFETY: as for the first one.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

const _: () = assert!(libc::MSG_ERRQUEUE as c_int > 0);

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use super::*;

    fn send(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: send(2) reads the bytes, which the caller keeps until it is told that they are done with.
        let sent =
            unsafe { libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_ZEROCOPY) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    #[test]
    fn each_send_comes_back_by_its_number_over_either_family() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                println!("not asked: no {address} here");
                continue;
            };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut peer, _) = listener.accept().unwrap();
            enable(stream.as_fd()).unwrap();
            assert_eq!(next_returned(stream.as_fd()).unwrap(), None);
            let bytes = vec![7; 64 << 10];
            for number in 0..3 {
                let sent = send(&stream, &bytes).unwrap();
                let mut got = vec![0; sent];
                peer.read_exact(&mut got).unwrap();
                assert!(got.iter().all(|byte| *byte == 7));
                let end = Instant::now() + Duration::from_secs(10);
                let returned = loop {
                    if let Some(returned) = next_returned(stream.as_fd()).unwrap() {
                        break returned;
                    }
                    assert!(Instant::now() < end, "send {number} never came back");
                };
                assert_eq!((returned.first, returned.last), (number, number), "{address}");
                assert!(returned.copied, "the loopback interface delivers into memory, and so copies");
            }
        }
    }
}
