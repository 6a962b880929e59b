//! Finding a server that is not there yet, not there at all, or something else.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;
use crate::error::{Kind, Step};

/// What a client says about a port where `serve` answers every connection.
fn verdict(timeout: Duration, serve: impl Fn(&mut TcpStream) + Send + 'static) -> Error {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            serve(&mut stream);
        }
    });
    let mut error = connect(&Target { timeout, ..target(address) }, &identity("client")).unwrap_err();
    error.message = error.message.replace(&address.to_string(), "SERVER");
    error
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn the_client_may_start_first() {
    let address = free_port();
    let at_client = std::thread::spawn(move || connect(&target(address), &identity("client")).map(drop));
    std::thread::sleep(Duration::from_millis(300));
    let mut listener =
        Listener::bind(Some(address.ip()), address.port(), identity("server"), Guard::default()).unwrap();
    client(&mut listener);
    at_client.join().unwrap().unwrap();
}

#[test]
fn a_server_that_never_comes_is_told_with_addresses_cause_and_time() {
    let address = free_port();
    let started = Instant::now();
    let timeout = Duration::from_millis(400);
    let error = connect(&Target { timeout, ..target(address) }, &identity("client")).unwrap_err();
    assert!((0.2..3.0).contains(&started.elapsed().as_secs_f64()), "{:?}", started.elapsed());
    assert_eq!(error.step, Step::Connect);
    assert!(error.message.starts_with("no server answered within "), "{error}");
    assert!(error.message.ends_with(&format!("({address}: Connection refused (os error 111))")), "{error}");
    assert!(error.remedy.unwrap().contains("--connect-timeout"));
}

#[test]
fn a_name_without_an_address_is_told_at_once() {
    let started = Instant::now();
    let target = Target { host: "no-such-host.invalid", ..target(free_port()) };
    let error = connect(&target, &identity("client")).unwrap_err();
    assert!(error.message.starts_with("'no-such-host.invalid' has no address: "), "{error}");
    assert!(started.elapsed() < LONG);
}

#[test]
fn names_and_addresses_of_both_families_are_taken() {
    let mut listener = Listener::bind(None, 0, identity("server"), Guard::default()).unwrap();
    let port = listener.local_port();
    let hosts: &[&str] =
        if listener.local_addr().is_ipv6() { &["localhost", "[::1]"] } else { &["localhost"] };
    for host in hosts {
        let at_client = std::thread::spawn(move || {
            connect(&Target { host, ..target(SocketAddr::from(([127, 0, 0, 1], port))) }, &identity("client"))
                .map(drop)
        });
        client(&mut listener);
        at_client.join().unwrap().unwrap();
    }
}

#[test]
fn a_perftest_server_is_known_by_its_answer() {
    let error = verdict(LONG, |stream| {
        let mut version = [0; 16];
        stream.read_exact(&mut version).unwrap();
        version = *b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
        stream.write_all(&version).unwrap();
    });
    assert_eq!(error.message, "SERVER is a perftest server (version 6.06); verbmark speaks its own protocol");
}

#[test]
fn another_protocol_and_another_version_are_named() {
    let error = verdict(LONG, |stream| stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n").unwrap());
    assert_eq!(error.message, r#"SERVER is not a verbmark server: it sent an SSH banner, "SSH-2.0-Ope""#);
    assert!(error.remedy.unwrap().contains("-p"));
    let error = verdict(LONG, |stream| stream.write_all(b"verbmark/2\n").unwrap());
    assert_eq!(error.message, "SERVER speaks version 2 of the protocol, this end version 1");
    assert_eq!(error.remedy.as_deref(), Some("install the same version at both ends"));
}

#[test]
fn a_refusal_in_place_of_the_welcome_is_the_servers() {
    let error = verdict(LONG, |stream| {
        let body =
            br#"{"error":{"step":"plan","kind":"failed","message":"no","remedy":null,"remote":false}}"#;
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        stream.write_all(&[b"verbmark/1\n", length.as_slice(), body].concat()).unwrap();
    });
    assert_eq!((error.message.as_str(), error.remote, error.step), ("no", true, Step::Plan));
}

#[test]
fn a_port_that_takes_connections_and_closes_them_is_tried_until_the_time_is_over() {
    let error = verdict(Duration::from_millis(300), |stream| {
        let mut hello = [0; 256];
        let _ = stream.read(&mut hello);
    });
    assert!(error.message.contains("(SERVER: took the connection and closed it without a word)"), "{error}");
}

#[test]
fn a_port_that_takes_the_connection_and_says_nothing_is_given_five_seconds() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let error =
        connect(&Target { timeout: Duration::from_millis(1), ..target(address) }, &identity("client"))
            .unwrap_err();
    let expected = format!("hello: {address} took the connection and said nothing; gave up after 5.0");
    assert!(error.to_string().starts_with(&expected), "{error}");
}

#[test]
fn what_this_end_is_bound_to_holds() {
    let (mut listener, address) = listener();
    let own: SocketAddr = "127.0.0.9:0".parse().unwrap();
    let from = LocalEnd { address: Some(own), interface: Some("lo".to_owned()) };
    let at_client = std::thread::spawn(move || {
        connect(&Target { from, ..target(address) }, &identity("client")).map(drop)
    });
    let (server, _) = client(&mut listener);
    assert_eq!(server.peer_addr().ip(), own.ip());
    at_client.join().unwrap().unwrap();

    let bound = |from: LocalEnd| {
        connect(&Target { from, ..target(address) }, &identity("client")).unwrap_err().message
    };
    let nowhere = bound(LocalEnd { interface: Some("no-such-if".to_owned()), ..LocalEnd::default() });
    assert!(nowhere.contains("binding to interface no-such-if: No such device"), "{nowhere}");
    let strange = bound(LocalEnd { address: Some("192.0.2.1:0".parse().unwrap()), ..LocalEnd::default() });
    assert!(strange.contains("binding to 192.0.2.1:0: Cannot assign"), "{strange}");
    let family = bound(LocalEnd { address: Some("[::1]:0".parse().unwrap()), ..LocalEnd::default() });
    assert!(family.contains("not of the family of ::1"), "{family}");
}

#[test]
fn a_client_does_not_meet_itself() {
    // A port of the ephemeral range, as a free one from the kernel is; binding to it makes the meeting certain.
    let own = free_port();
    let from = LocalEnd { address: Some(own), interface: None };
    let timeout = Duration::from_millis(1);
    let error = connect(&Target { from, timeout, ..target(own) }, &identity("client")).unwrap_err();
    assert!(error.message.contains("nobody but this end itself"), "{error}");
}

#[test]
fn a_stop_ends_the_search() {
    static STOP: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(100));
        STOP.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let started = Instant::now();
    let error =
        connect(&Target { stop: Some(&STOP), ..target(free_port()) }, &identity("client")).unwrap_err();
    assert_eq!((error.kind, error.step), (Kind::Interrupted, Step::Connect));
    assert!(started.elapsed() < Duration::from_secs(5));
}
