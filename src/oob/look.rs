//! Who answers at a server's port, found out without becoming its client.

use std::net::{SocketAddr, TcpStream};

use nix::poll::PollFlags;

use super::connect::{Attempt, Target, open, resolve};
use super::frame;
use super::preamble::{self, PROTOCOL, Peer};
use super::wire::{Limit, Moved, Wake, read_once};
use crate::error::{Error, Result, Step};
use crate::units::format_duration;

/// The preamble of a version that never was. A server of any version answers it with its own preamble and a refusal, and
/// goes on as if nobody had come; whoever says nothing at all is not answered either.
const NO_VERSION: &[u8] = b"verbmark/0\n";

/// What was heard at a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A server of this suite, and the version of its protocol.
    Server(u32),
    /// Another program: what it said.
    Another(String),
    /// The connection was taken, and then nothing came.
    Silence(String),
    /// Nobody: why.
    Nobody(String),
}

/// Looks once at each address of the host, until somebody answers there; each has an equal share of the target's timeout,
/// and so has finding them.
///
/// # Errors
/// The name has no address.
pub fn look(target: &Target<'_>) -> Result<(SocketAddr, Heard)> {
    let addresses = resolve(target.host, target.port, &Limit::after(target.timeout, target.stop))?;
    let turn = target.timeout / u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let mut nobody = None;
    for address in addresses {
        let limit = Limit::after(turn, target.stop);
        let cause = match open(address, &target.from, &limit) {
            Ok(stream) => return Ok((address, listen(&stream, &limit))),
            Err(Attempt::Again(cause) | Attempt::Never(cause)) => cause,
            Err(Attempt::Fatal(error)) => return Err(error),
        };
        nobody.get_or_insert((address, Heard::Nobody(cause)));
    }
    nobody.ok_or_else(|| Error::failed(Step::Connect, format!("'{}' has no address", target.host)))
}

fn listen(stream: &TcpStream, limit: &Limit<'_>) -> Heard {
    // Eleven bytes fit an empty socket buffer. What a server that closed had to say is read all the same.
    let _ = frame::write(stream, NO_VERSION, &mut 0, limit);
    let mut reader = preamble::Reader::default();
    let peer = loop {
        match read_once(stream, reader.space()) {
            Ok(Moved::Bytes(count)) => {
                if let Some(peer) = reader.filled(count) {
                    break peer;
                }
            }
            Ok(Moved::NotYet) => match limit.wait_for(stream, PollFlags::POLLIN) {
                Ok(Wake::Ready) => {}
                _ if reader.started() => break reader.ended(),
                _ => return Heard::Silence(format!("nothing within {}", format_duration(limit.waited()))),
            },
            Ok(Moved::End) | Err(_) if reader.started() => break reader.ended(),
            Ok(Moved::End) => return Heard::Silence("closed without a word".to_owned()),
            Err(cause) => return Heard::Silence(format!("dropped: {cause}")),
        }
    };
    match peer {
        Peer::Ours => Heard::Server(PROTOCOL),
        Peer::OtherVersion(version) => Heard::Server(version),
        Peer::Perftest(version) => Heard::Another(format!("perftest {version}")),
        Peer::Stranger(sent) => Heard::Another(sent),
    }
}
