//! The control connection: how two ends find each other, and pass messages with a deadline on every step.
//!
//! * [`Listener`] takes connections for a server, and tells clients of this protocol from strangers; [`connect()`] and
//!   [`connect_data`] reach it. One port serves the control connection of a run and its data connections.
//! * [`Control`] then sends and receives any serde type in frames, carries errors to the other end, and holds
//!   barriers.
//!
//! On the wire each end first sends `verbmark/1` and a line feed. Then come frames: four bytes of length, most
//! significant first, and so many bytes of JSON, either `{"ok": message}` or `{"error": error}`. The client's first
//! message is [`Hello`], the server's [`Welcome`]. On a data connection raw bytes follow these two. Where both ends are given a
//! [`Secret`], each then proves that it knows it, the client first.
//!
//! What the messages of a run are and in which order they go is decided in the session. A second protocol (stock
//! perftest as the peer) would be a sibling of [`Control`]: the session asks either for the peer's facts.

pub mod clock_offset;
mod connect;
mod control;
mod frame;
mod greeting;
mod listener;
mod look;
mod messages;
mod preamble;
pub mod run;
mod secret;
mod wire;

#[cfg(test)]
mod tests;

pub use connect::{LocalEnd, Target, connect, connect_data};
pub use control::{Control, Tether};
pub use frame::MAX_FRAME;
pub use greeting::Guard;
pub use listener::{Bell, Expected, Incoming, Listener};
pub use look::{Heard, look};
pub use messages::{Hello, Identity, Purpose, Token, Welcome};
pub use preamble::PROTOCOL;
pub use secret::Secret;
