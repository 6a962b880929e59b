//! One connection between `accept(2)` and its hello: who is it, and what does it want?

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::frame::{self, Decoder, Fault};
use super::messages::{Envelope, Hello, Identity, Purpose, Token, Welcome, misread, printable};
use super::preamble::{self, LOOKS, PREAMBLE, PROTOCOL, Peer};
use super::secret::{Proof, Secret};
use super::wire::{Limit, Moved, read_once};
use crate::error::{Error, Step};
use crate::plan::Side;
use crate::units::format_duration;

/// How long a connection may take to say hello.
const TO_SAY_HELLO: Duration = Duration::from_secs(5);

/// How long a refused peer is given to read why and to close first; see [`super::Control::send_error`].
const TO_READ_REFUSAL: Duration = Duration::from_secs(1);

/// How long a client that was welcomed may take to say what it wants.
const TO_SPEAK: Duration = Duration::from_secs(15);

/// Longest hello taken; what a stranger can make this end hold is this, times the number of pending connections.
const MAX_HELLO: usize = 4096;

/// What mends a client that cannot make itself understood.
const SAME: &str = "install the same version at both ends";

/// What mends one that has another secret, or none.
const SAME_SECRET: &str = "give both ends a file of the same content with --secret-file";

/// Who may become a client.
#[derive(Debug, Clone)]
pub struct Guard {
    /// What a client must prove to know; `None` asks for nothing.
    pub secret: Option<Secret>,
    /// Where it must come from; anywhere if this is empty.
    pub allowed: Vec<IpNet>,
    /// How long a client that was welcomed may take to send its first message, while others go first.
    pub patience: Duration,
}

impl Default for Guard {
    /// Anyone, from anywhere.
    fn default() -> Self {
        Self { secret: None, allowed: Vec::new(), patience: TO_SPEAK }
    }
}

impl Guard {
    /// An IPv4 address is the same one where it comes through a socket of both families, or is written as if it did.
    pub(super) fn admits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.allowed.is_empty() || self.allowed.iter().any(|prefix| prefix.contains(&address))
    }
}

/// Whom a connection meets.
#[derive(Debug)]
pub(super) struct Host<'a> {
    pub(super) identity: &'a Identity,
    pub(super) guard: &'a Guard,
    /// What a data connection must show.
    pub(super) expected: Option<&'a Token>,
}

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
    /// Has said hello, and must prove that it knows the secret.
    Proof {
        decoder: Decoder,
        hello: Hello,
        asked: Token,
    },
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
    /// A client that is refused, for this reason; keep it until it is over.
    Refused(String),
    /// A client that did not do what is asked of one; drop it.
    Failed(String),
    /// No client, and told so; keep it until it is over.
    Dismissed(String),
    /// No client, for this reason; drop it.
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
    pub(super) fn advance(&mut self, host: &Host<'_>) -> Outcome {
        if !self.refused() && !host.guard.admits(self.peer.ip()) {
            let address = self.peer.ip();
            return self.refuse(
                "comes from an address that --allow does not name",
                &format!(
                    "come from another address with --bind, or ask who runs the server to allow {address}"
                ),
            );
        }
        loop {
            let mut waste = [0; 1024];
            let space = match &mut self.state {
                State::Preamble(reader) => reader.space(),
                State::Hello(decoder) | State::Proof { decoder, .. } => decoder.space(),
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
                    Ok(Some(body)) => match self.hello(&body, host) {
                        Outcome::Wait => {}
                        outcome => return outcome,
                    },
                    Err(fault) => return self.refuse(&format!("{fault} in place of its hello"), SAME),
                },
                State::Proof { decoder, .. } => match decoder.filled(count) {
                    Ok(None) => {}
                    Ok(Some(body)) => return self.proof(&body, host),
                    Err(fault) => return self.refuse(&format!("{fault} in place of its proof"), SAME),
                },
                // One piece at a time: a peer that sends without end must not hold up the others.
                State::Refused if Instant::now() < self.deadline => return Outcome::Wait,
                State::Refused => return Outcome::Over,
            }
        }
    }

    fn hello(&mut self, body: &[u8], host: &Host<'_>) -> Outcome {
        let hello = match serde_json::from_slice::<Envelope<Hello>>(body) {
            Ok(Envelope::Ok(hello)) => hello,
            Ok(Envelope::Error(error)) => {
                return Outcome::Stray(format!("gave up: {}", printable(&error.message, 200)));
            }
            Err(cause) => {
                return self.refuse(&format!("sent {} in place of its hello", misread(body, &cause)), SAME);
            }
        };
        if let Purpose::Data { token } = &hello.purpose
            && Some(token) != host.expected
        {
            return self.refuse(
                "asked for a data connection of a run that is not under way here",
                "run the test again; see that no other server has taken this one's address and port",
            );
        }
        // The token of a data connection was given to who had proved it.
        let is_asked = host.guard.secret.is_some() && hello.purpose == Purpose::Run {};
        let challenge = match is_asked.then(Token::random).transpose() {
            Ok(challenge) => challenge,
            Err(error) => return Outcome::Stray(format!("was not asked for the secret: {error}")),
        };
        let welcome = Welcome { identity: host.identity.clone(), challenge };
        if let Err(fault) = self.answer(&[PREAMBLE], &Envelope::Ok(&welcome)) {
            return Outcome::Stray(format!("{fault} before it was answered"));
        }
        let Some(asked) = welcome.challenge else { return Outcome::Client(hello) };
        self.state = State::Proof { decoder: Decoder::new(MAX_HELLO), hello, asked };
        Outcome::Wait
    }

    /// The answer to the challenge; the client hears in turn that this end knows the secret, too.
    fn proof(&mut self, body: &[u8], host: &Host<'_>) -> Outcome {
        let State::Proof { hello, asked, .. } = &self.state else { return Outcome::Wait };
        let Some(secret) = &host.guard.secret else { return Outcome::Wait };
        let (hello, asked) = (hello.clone(), asked.clone());
        let proof = match serde_json::from_slice::<Envelope<Proof>>(body) {
            Ok(Envelope::Ok(proof)) => proof,
            Ok(Envelope::Error(error)) => {
                let why = printable(&error.message, 200);
                return Outcome::Failed(format!("was asked for the secret and gave up: {why}"));
            }
            // What it sent may be anything, but not what is to be shown.
            Err(_) => {
                return self.refuse("did not prove that it knows the secret: --secret-file", SAME_SECRET);
            }
        };
        if !secret.proves(Side::Client, &asked, &proof) {
            return self.refuse("does not know the secret", SAME_SECRET);
        }
        match self.answer(&[], &Envelope::Ok(secret.prove(Side::Server, &proof.challenge, &asked))) {
            Ok(()) => Outcome::Client(hello),
            Err(fault) => Outcome::Stray(format!("{fault} before it was answered")),
        }
    }

    /// Someone who does not speak this version of this protocol. Only who speaks another one can understand an answer.
    fn not_ours(&mut self, peer: &Peer) -> Outcome {
        match peer {
            Peer::OtherVersion(LOOKS) => match self.refuse("only looks who answers here", SAME) {
                Outcome::Refused(reason) => Outcome::Dismissed(reason),
                outcome => outcome,
            },
            Peer::OtherVersion(theirs) => {
                let reason = format!("speaks version {theirs} of the protocol, this end version {PROTOCOL}");
                self.refuse(&reason, SAME)
            }
            Peer::Perftest(version) => Outcome::Stray(format!(
                "a perftest client (version {version}) connected; verbmark speaks its own protocol"
            )),
            Peer::Ours => Outcome::Wait,
            Peer::Stranger(sent) => Outcome::Stray(format!("not a verbmark client: sent {sent}")),
        }
    }

    /// Says why in a frame, and what to do about it, and keeps the connection for a moment so that it can be read.
    fn refuse(&mut self, reason: &str, remedy: &str) -> Outcome {
        let error = Error::failed(Step::Hello, format!("refused: the client {reason}")).with_remedy(remedy);
        // After the welcome the preamble has been said.
        let first: &[&[u8]] = if matches!(self.state, State::Proof { .. }) { &[] } else { &[PREAMBLE] };
        if self.answer(first, &Envelope::<()>::Error(error)).is_err() {
            return Outcome::Failed(reason.to_owned());
        }
        let _ = self.stream.shutdown(Shutdown::Write);
        self.state = State::Refused;
        self.deadline = Instant::now() + TO_READ_REFUSAL;
        Outcome::Refused(reason.to_owned())
    }

    /// What comes first and one frame: far below what an empty socket buffer takes at once, so this does not wait.
    fn answer(&self, first: &[&[u8]], message: &impl serde::Serialize) -> Result<(), Fault> {
        let frame = frame::encode(message).map_err(|why| Fault::Io(io::Error::other(why)))?;
        let bytes = [first, &[&*frame]].concat().concat();
        frame::write(&self.stream, &bytes, &mut 0, &Limit::after(Duration::ZERO, None))
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
            State::Proof { .. } => {
                Outcome::Failed(format!("did not prove that it knows the secret within {waited}"))
            }
            State::Refused => Outcome::Over,
        }
    }

    fn ended(&self, fault: &Fault) -> Outcome {
        match &self.state {
            State::Preamble(reader) if !reader.started() => Outcome::Stray(format!("{fault} without a word")),
            State::Preamble(reader) => self.part(&reader.ended(), &format!("and {fault}")),
            State::Hello(_) => Outcome::Stray(format!("{fault} in the middle of its hello")),
            State::Proof { .. } => Outcome::Failed(format!("{fault} when it was asked for the secret")),
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
