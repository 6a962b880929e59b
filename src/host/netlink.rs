//! One question to the kernel and its answer over `rtnetlink(7)`.
//!
//! The layout of these messages is part of the kernel's interface with programs (`<linux/netlink.h>`,
//! `<linux/rtnetlink.h>`); they are few enough here to be put together and taken apart byte by byte.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Of one answer; that about an interface with many virtual functions has some tens of thousands.
const LONGEST: usize = 1 << 17;
/// The kernel answers from its tables, in microseconds.
const PATIENCE_MS: u16 = 1000;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The kernel answered with this error.
    Refused(Errno),
    /// It cannot be asked, as in some sandboxes, or its answer cannot be read.
    Unavailable,
}

impl From<Errno> for Failure {
    fn from(_: Errno) -> Self {
        Failure::Unavailable
    }
}

/// Asks with a message of type `kind`, which starts with the fixed part `body`; gives the answer, which must be of type
/// `answer`, from behind its header.
pub(super) fn ask(
    kind: u16,
    body: &[u8],
    attributes: &[(u16, &[u8])],
    answer: u16,
) -> Result<Vec<u8>, Failure> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    let kernel = NetlinkAddr::new(0, 0);
    sendto(socket.as_raw_fd(), &message(kind, body, attributes), &kernel, MsgFlags::empty())?;
    let mut buffer = vec![0; LONGEST];
    let count = loop {
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PATIENCE_MS) {
            Ok(0) => return Err(Failure::Unavailable),
            Ok(_) => break recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    unwrap(&buffer[..count], answer).map(<[u8]>::to_vec)
}

/// Header, fixed part and attributes, all in the byte order of this machine.
fn message(kind: u16, body: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = vec![0; HEADER];
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    message.extend_from_slice(body);
    for (kind, value) in attributes {
        message.extend_from_slice(&u16::try_from(4 + value.len()).unwrap_or_default().to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(value);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    let length = u32::try_from(message.len()).unwrap_or_default();
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message
}

/// What the first message among `bytes` carries.
fn unwrap(bytes: &[u8], expected: u16) -> Result<&[u8], Failure> {
    let length = word(bytes).ok_or(Failure::Unavailable)? as usize;
    let content = bytes.get(HEADER..length).ok_or(Failure::Unavailable)?;
    match half(&bytes[4..]) {
        Some(kind) if kind == expected => Ok(content),
        Some(NLMSG_ERROR) => {
            let code = word(content).ok_or(Failure::Unavailable)?.cast_signed();
            Err(Failure::Refused(Errno::from_raw(code.wrapping_neg())))
        }
        _ => Err(Failure::Unavailable),
    }
}

/// The attributes in `bytes`, up to the first that is cut short.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(half(bytes)?);
        let kind = half(bytes.get(2..)?)?;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The number at the start of `bytes`.
pub(super) fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_ne_bytes)
}

fn half(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().copied().map(u16::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attributes_are_found_past_those_of_odd_length() {
        let bytes = message(24, &[7; 12], &[(99, b"odd"), (4, &7u32.to_ne_bytes()), (5, b"")]);
        let content = unwrap(&bytes, 24).unwrap();
        let found: Vec<(u16, &[u8])> = attributes(&content[12..]).collect();
        assert_eq!(found, [(99, b"odd".as_slice()), (4, &7u32.to_ne_bytes()), (5, b"")]);
    }

    #[test]
    fn an_error_is_told_from_no_answer() {
        let refused = message(NLMSG_ERROR, &(-101i32).to_ne_bytes(), &[]);
        assert_eq!(unwrap(&refused, 24), Err(Failure::Refused(Errno::ENETUNREACH)));
        assert_eq!(unwrap(&message(3, &[], &[]), 24), Err(Failure::Unavailable));
        assert_eq!(unwrap(&refused[..refused.len() - 1], 24), Err(Failure::Unavailable), "cut short");
    }

    proptest! {
        #[test]
        fn any_answer_is_read_without_a_panic_or_an_endless_loop(
            bytes in prop::collection::vec(any::<u8>(), 0..80), claimed in 0u32..100,
        ) {
            let _ = unwrap(&bytes, 24);
            prop_assert!(attributes(&bytes).count() <= bytes.len());
            let framed = [claimed.to_ne_bytes().as_slice(), &24u16.to_ne_bytes(), &bytes].concat();
            let _ = unwrap(&framed, 24);
        }
    }
}
