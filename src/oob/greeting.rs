//! One connection between `accept(2)` and its hello: who is it, and what does it want?

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::frame::{self, Decoder, Fault};
use super::messages::{Envelope, Hello, Purpose, Token, Welcome, misread, printable};
use super::preamble::{self, PREAMBLE, PROTOCOL, Peer};
use super::wire::{Limit, Moved, read_once};
use crate::error::{Error, Step};
use crate::units::format_duration;

/// How long a connection may take to say hello.
const TO_SAY_HELLO: Duration = Duration::from_secs(5);

/// How long a refused peer is given to read why and to close first; see [`super::Control::send_error`].
const TO_READ_REFUSAL: Duration = Duration::from_secs(1);

/// Longest hello taken; what a stranger can make this end hold is this, times the number of pending connections.
const MAX_HELLO: usize = 4096;

/// A connection that is not known yet.
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    accepted: Instant,
    deadline: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    Preamble(preamble::Reader),
    Hello(Decoder),
    /// Refused; what still comes is thrown away.
    Refused,
}

/// What became of a connection.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Nothing new; keep it.
    Wait,
    /// A client, who has been welcomed.
    Client(Hello),
    /// Not a client of ours, for this reason; keep it until it is over.
    Refused(String),
    /// Not a client of ours, for this reason; drop it.
    Stray(String),
    /// A refused one that is over; drop it.
    Over,
}

impl Greeting {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let accepted = Instant::now();
        let state = State::Preamble(preamble::Reader::default());
        Ok(Self { stream, peer, accepted, deadline: accepted + TO_SAY_HELLO, state })
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn refused(&self) -> bool {
        matches!(self.state, State::Refused)
    }

    /// Takes what has come, without waiting.
    pub(super) fn advance(&mut self, welcome: &Welcome, expected: Option<&Token>) -> Outcome {
        loop {
            let mut waste = [0; 1024];
            let space = match &mut self.state {
                State::Preamble(reader) => reader.space(),
                State::Hello(decoder) => decoder.space(),
                State::Refused => &mut waste,
            };
            let count = match read_once(&self.stream, space) {
                Ok(Moved::Bytes(count)) => count,
                Ok(Moved::NotYet) if Instant::now() < self.deadline => return Outcome::Wait,
                Ok(Moved::NotYet) => return self.gave_up(),
                Ok(Moved::End) => return self.ended(&Fault::Closed),
                Err(cause) => return self.ended(&Fault::from(cause)),
            };
            match &mut self.state {
                State::Preamble(reader) => match reader.filled(count) {
                    None => {}
                    Some(Peer::Ours) => self.state = State::Hello(Decoder::new(MAX_HELLO)),
                    Some(other) => return self.not_ours(&other),
                },
                State::Hello(decoder) => match decoder.filled(count) {
                    Ok(None) => {}
                    Ok(Some(body)) => return self.hello(&body, welcome, expected),
                    Err(fault) => return self.refuse(format!("{fault} in place of its hello")),
                },
                // One piece at a time: a peer that sends without end must not hold up the others.
                State::Refused if Instant::now() < self.deadline => return Outcome::Wait,
                State::Refused => return Outcome::Over,
            }
        }
    }

    fn hello(&mut self, body: &[u8], welcome: &Welcome, expected: Option<&Token>) -> Outcome {
        let hello = match serde_json::from_slice::<Envelope<Hello>>(body) {
            Ok(Envelope::Ok(hello)) => hello,
            Ok(Envelope::Error(error)) => {
                return Outcome::Stray(format!("gave up: {}", printable(&error.message, 200)));
            }
            Err(cause) => {
                return self.refuse(format!("sent {} in place of its hello", misread(body, &cause)));
            }
        };
        if let Purpose::Data { token } = &hello.purpose
            && Some(token) != expected
        {
            return self.refuse("asked for a data connection of a run that is not under way here".to_owned());
        }
        match self.answer(&Envelope::Ok(welcome)) {
            Ok(()) => Outcome::Client(hello),
            Err(fault) => Outcome::Stray(format!("{fault} before it was answered")),
        }
    }

    /// Someone who does not speak this version of this protocol. Only who speaks another one can understand an answer.
    fn not_ours(&mut self, peer: &Peer) -> Outcome {
        match peer {
            Peer::OtherVersion(theirs) => {
                self.refuse(format!("speaks version {theirs} of the protocol, this end version {PROTOCOL}"))
            }
            Peer::Perftest(version) => Outcome::Stray(format!(
                "a perftest client (version {version}) connected; verbmark speaks its own protocol"
            )),
            Peer::Ours => Outcome::Wait,
            Peer::Stranger(sent) => Outcome::Stray(format!("not a verbmark client: sent {sent}")),
        }
    }

    /// Says why in a frame, and keeps the connection for a moment so that it can be read.
    fn refuse(&mut self, reason: String) -> Outcome {
        let error = Error::failed(Step::Hello, format!("refused: the client {reason}"));
        if self.answer(&Envelope::<()>::Error(error)).is_err() {
            return Outcome::Stray(reason);
        }
        let _ = self.stream.shutdown(Shutdown::Write);
        self.state = State::Refused;
        self.deadline = Instant::now() + TO_READ_REFUSAL;
        Outcome::Refused(reason)
    }

    /// Preamble and one frame: far below what an empty socket buffer takes at once, so this does not wait.
    fn answer(&self, message: &impl serde::Serialize) -> Result<(), Fault> {
        let frame = frame::encode(message).map_err(|why| Fault::Io(io::Error::other(why)))?;
        frame::write(&self.stream, &[PREAMBLE, &frame].concat(), &mut 0, &Limit::after(Duration::ZERO, None))
    }

    /// The deadline passed.
    fn gave_up(&self) -> Outcome {
        let waited = format_duration(self.accepted.elapsed());
        match &self.state {
            State::Preamble(reader) if !reader.started() => {
                Outcome::Stray(format!("said nothing for {waited}"))
            }
            State::Preamble(reader) => self.part(&reader.ended(), &format!("and nothing more for {waited}")),
            State::Hello(_) => Outcome::Stray(format!("did not complete its hello within {waited}")),
            State::Refused => Outcome::Over,
        }
    }

    fn ended(&self, fault: &Fault) -> Outcome {
        match &self.state {
            State::Preamble(reader) if !reader.started() => Outcome::Stray(format!("{fault} without a word")),
            State::Preamble(reader) => self.part(&reader.ended(), &format!("and {fault}")),
            State::Hello(_) => Outcome::Stray(format!("{fault} in the middle of its hello")),
            State::Refused => Outcome::Over,
        }
    }

    /// Part of a preamble, and then no more.
    fn part(&self, peer: &Peer, then: &str) -> Outcome {
        match peer {
            Peer::Stranger(sent) => Outcome::Stray(format!("not a verbmark client: sent {sent} {then}")),
            Peer::Perftest(version) => {
                Outcome::Stray(format!("a perftest client (version {version}) {then}"))
            }
            Peer::Ours | Peer::OtherVersion(_) => Outcome::Stray(then.to_owned()),
        }
    }
}
