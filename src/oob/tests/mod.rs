//! Both ends over real sockets, and strangers at the port.

mod control;
mod greeting;
mod looking;
mod reaching;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::*;
use crate::error::Error;

/// Longer than anything here may take.
const LONG: Duration = Duration::from_secs(20);

fn identity(tool: &str) -> Identity {
    Identity { tool: tool.to_owned(), boot_id: Some("boot".to_owned()) }
}

fn listener() -> (Listener, SocketAddr) {
    let listener =
        Listener::bind(Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), 0, identity("server"), Guard::default())
            .unwrap();
    let address = listener.local_addr();
    (listener, address)
}

fn target(address: SocketAddr) -> Target<'static> {
    Target {
        host: "127.0.0.1",
        port: address.port(),
        timeout: LONG,
        from: LocalEnd::default(),
        secret: None,
        stop: None,
    }
}

/// The next thing at the port.
fn next(listener: &mut Listener) -> Incoming {
    listener.next(Some(Instant::now() + LONG), &AtomicBool::new(false)).unwrap().expect("something came")
}

/// The reason of the next stray.
fn stray(listener: &mut Listener) -> String {
    match next(listener) {
        Incoming::Stray { reason, .. } => reason,
        other => panic!("no stray: {other:?}"),
    }
}

/// Why the next client is refused.
fn refused(listener: &mut Listener) -> String {
    match next(listener) {
        Incoming::Refused { reason, .. } => reason,
        other => panic!("not refused: {other:?}"),
    }
}

/// The next client, past any strays.
fn client(listener: &mut Listener) -> (Control, Hello) {
    loop {
        match next(listener) {
            Incoming::Control { control, hello } => return (control, hello),
            Incoming::Stray { .. } | Incoming::Refused { .. } => {}
            other => panic!("no client: {other:?}"),
        }
    }
}
