//! A server's port, with clients and with strangers.

use std::io::{Read, Write};
use std::net::Shutdown;

use super::*;
use crate::error::Kind;

/// What the listener says about a connection that sends `bytes` and then ends its side.
fn said(bytes: &[u8]) -> String {
    let (mut listener, address) = listener();
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(bytes).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    match next(&mut listener) {
        Incoming::Stray { reason, .. } => reason,
        Incoming::Refused { reason, .. } => format!("refused: {reason}"),
        other => panic!("neither: {other:?}"),
    }
}

fn hello_frame(json: &str) -> Vec<u8> {
    [b"verbmark/1\n", u32::try_from(json.len()).unwrap().to_be_bytes().as_slice(), json.as_bytes()].concat()
}

/// All that comes back until the end.
fn answer(mut peer: TcpStream) -> String {
    let mut bytes = Vec::new();
    peer.set_read_timeout(Some(LONG)).unwrap();
    peer.read_to_end(&mut bytes).unwrap();
    bytes.escape_ascii().to_string()
}

#[test]
fn a_client_and_a_server_introduce_themselves() {
    let (mut listener, address) = listener();
    let at_client = std::thread::spawn(move || {
        let (mut client, welcome) = connect(&target(address), &identity("client")).unwrap();
        client.send(&1).unwrap();
        (client, welcome)
    });
    let (mut server, hello) = client(&mut listener);
    let (client, welcome) = at_client.join().unwrap();
    assert_eq!(hello, Hello { identity: identity("client"), purpose: Purpose::Run {} });
    assert_eq!(welcome, Welcome { identity: identity("server"), challenge: None });
    assert_eq!((client.peer_addr(), client.local_addr()), (server.local_addr(), server.peer_addr()));
    assert_eq!(server.recv::<u32>("a number", LONG).unwrap(), 1);
}

#[test]
fn a_data_connection_needs_the_token_and_is_raw_from_its_first_byte() {
    let (mut listener, address) = listener();
    let (right, wrong) = (Token::random().unwrap(), Token::random().unwrap());
    let open = |token: Token| {
        std::thread::spawn(move || {
            let mut stream =
                connect_data(address, &token, &identity("client"), &LocalEnd::default(), LONG, None)?;
            stream.write_all(b"\0raw\xff").unwrap();
            Ok::<_, Error>(stream)
        })
    };
    // No run at all, then a run of another token.
    for expected in [None, Some(right.clone())] {
        listener.expected().set(expected);
        let other = open(wrong.clone());
        assert_eq!(refused(&mut listener), "asked for a data connection of a run that is not under way here");
        let error = other.join().unwrap().unwrap_err();
        assert!(error.remote && error.message.contains("not under way"), "{error}");
    }
    let taken = open(right.clone());
    // Past the refused ones that are still being let go.
    let Incoming::Data { mut stream, token } = next(&mut listener) else { panic!("no data connection") };
    assert_eq!(token, right);
    let mut bytes = [0; 5];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"\0raw\xff");
    stream.write_all(b"back").unwrap();
    let mut client = taken.join().unwrap().unwrap();
    client.read_exact(&mut bytes[..4]).unwrap();
    assert_eq!(&bytes[..4], b"back");
    for end in [&stream, &client] {
        assert!(end.nodelay().unwrap());
        assert_eq!(socket2::SockRef::from(end).tcp_user_timeout().unwrap(), None);
    }
}

#[test]
fn a_perftest_client_is_refused_by_name() {
    let mut version = [0; 16];
    version[..4].copy_from_slice(b"6.06");
    let (mut listener, address) = listener();
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(&version).unwrap();
    // It waits for an answer and closes nothing.
    assert_eq!(
        stray(&mut listener),
        "a perftest client (version 6.06) connected; verbmark speaks its own protocol"
    );
}

#[test]
fn strangers_are_told_by_what_they_did() {
    assert_eq!(said(b""), "closed the connection without a word");
    assert_eq!(said(b"GET / HTTP/1.1\r\n\r\n"), r#"not a verbmark client: sent HTTP, "GET / HTTP/""#);
    assert_eq!(said(b"verb"), r#"not a verbmark client: sent "verb" and closed the connection"#);
    assert_eq!(said(b"6"), r#"not a verbmark client: sent "6" and closed the connection"#);
    assert_eq!(said(b"verbmark/1\n\0\0"), "closed the connection in the middle of its hello");
    assert_eq!(said(b"verbmark/1\n\0\0\0\0"), "refused: sent a frame of no bytes in place of its hello");
    let long = said(b"verbmark/1\n\xff\xff\xff\xff");
    assert!(long.contains("as a length 4294967295, and 4096 is the most"), "{long}");
    let wrong = said(&hello_frame(r#"{"ok":{"purpose":"\u001b"}}"#));
    assert!(wrong.ends_with(" in place of its hello") && !wrong.contains('\x1b'), "{wrong}");
    let gave_up = said(&hello_frame(
        r#"{"error":{"step":"hello","kind":"failed","message":"no \u001b","remedy":null,"remote":false}}"#,
    ));
    assert_eq!(gave_up, r"gave up: no \u{1b}");
}

#[test]
fn another_version_is_told_to_both_ends_in_a_way_that_any_version_reads() {
    let (mut listener, address) = listener();
    let mut peer = TcpStream::connect(address).unwrap();
    // Much more than is read: the answer must survive the close.
    peer.write_all(b"verbmark/2\n").unwrap();
    peer.write_all(&[7; 8000]).unwrap();
    assert_eq!(refused(&mut listener), "speaks version 2 of the protocol, this end version 1");
    assert_eq!(listener.pending(), 1, "kept until its peer has read why");
    let reader = std::thread::spawn(move || answer(peer));
    let none =
        listener.next(Some(Instant::now() + Duration::from_millis(1500)), &AtomicBool::new(false)).unwrap();
    assert!(none.is_none(), "reported once: {none:?}");
    assert_eq!(listener.pending(), 0);
    let answer = reader.join().unwrap();
    assert!(answer.starts_with(r"verbmark/1\n\x00\x00\x00"), "{answer}");
    assert!(
        answer.contains("refused: the client speaks version 2 of the protocol, this end version 1"),
        "{answer}"
    );
}

#[test]
fn silence_is_given_five_seconds_and_the_port_stays_open() {
    let (mut listener, address) = listener();
    let silent = TcpStream::connect(address).unwrap();
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(b"verbmark/1\n\0").unwrap();
    let started = Instant::now();
    let mut reasons = [stray(&mut listener), stray(&mut listener)];
    reasons.sort();
    assert!((4.9..8.0).contains(&started.elapsed().as_secs_f64()), "{:?}", started.elapsed());
    assert!(reasons[0].starts_with("did not complete its hello within 5.0"), "{reasons:?}");
    assert!(reasons[1].starts_with("said nothing for 5.0"), "{reasons:?}");
    drop((silent, slow));
    let at_client = std::thread::spawn(move || connect(&target(address), &identity("client")).map(drop));
    client(&mut listener);
    at_client.join().unwrap().unwrap();
}

#[test]
fn a_client_is_served_promptly_among_two_hundred_strangers() {
    let (mut listener, address) = listener();
    let strangers: Vec<TcpStream> = (0..200)
        .map(|n| {
            let mut stranger = TcpStream::connect(address).unwrap();
            let says: &[u8] =
                [b"".as_slice(), b"GET / HTTP/1.0\r\n\r\n", b"verbmark/1\n\0\0\x01", b"6.06"][n % 4];
            stranger.write_all(says).unwrap();
            stranger
        })
        .collect();
    let started = Instant::now();
    let at_client = std::thread::spawn(move || connect(&target(address), &identity("client")).map(drop));
    client(&mut listener);
    at_client.join().unwrap().unwrap();
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    drop(strangers);
}

#[test]
fn ten_thousand_strangers_leave_nothing_behind() {
    let (mut listener, address) = listener();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let flood = std::thread::spawn(move || {
        let mut held = std::collections::VecDeque::new();
        for n in 0..10_000 {
            let mut stranger = TcpStream::connect(address).unwrap();
            let says: &[u8] = [b"".as_slice(), b"\x16\x03\x01", b"verbmark/1\n\0\0\x01\0{"][n % 3];
            // It may be thrown out while it speaks.
            let _ = stranger.write_all(says);
            held.push_back(stranger);
            if held.len() > 100 {
                held.pop_front();
            }
        }
    });
    let (mut strays, mut most_pending, mut most_open) = (0, 0, 0);
    while strays < 10_000 {
        stray(&mut listener);
        strays += 1;
        most_pending = most_pending.max(listener.pending());
        if strays % 100 == 0 {
            most_open = most_open.max(open());
        }
    }
    flood.join().unwrap();
    assert_eq!((listener.pending(), most_pending <= 64), (0, true), "{most_pending}");
    // Both ends are in this process: about a hundred held there, sixty-four here, and other tests' own.
    assert!(most_open < before + 400, "{before} then {most_open}");
}

#[test]
fn a_wait_ends_at_its_deadline_or_at_a_stop() {
    let (mut listener, _) = listener();
    let stop = AtomicBool::new(false);
    assert!(listener.next(Some(Instant::now()), &stop).unwrap().is_none());
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(listener.next(None, &stop).unwrap_err().kind, Kind::Interrupted);
}

#[test]
fn without_an_address_both_families_are_served() {
    let mut listener = Listener::bind(None, 0, identity("server"), Guard::default()).unwrap();
    let port = listener.local_port();
    let hosts: &[&str] = if listener.local_addr().is_ipv6() { &["127.0.0.1", "::1"] } else { &["127.0.0.1"] };
    for host in hosts {
        let at_client = std::thread::spawn(move || {
            connect(&Target { host, ..target(SocketAddr::from(([127, 0, 0, 1], port))) }, &identity("client"))
                .map(drop)
        });
        let (server, _) = client(&mut listener);
        assert_eq!(server.local_addr().ip(), host.parse::<IpAddr>().unwrap(), "shown in its own family");
        at_client.join().unwrap().unwrap();
    }
}

#[test]
fn a_taken_port_and_a_strange_address_are_told_with_a_remedy() {
    let (_listener, address) = listener();
    let taken =
        Listener::bind(Some(address.ip()), address.port(), identity("server"), Guard::default()).unwrap_err();
    assert_eq!(taken.message, format!("listening on {address}: Address already in use (os error 98)"));
    assert!(taken.remedy.unwrap().contains("-p"));
    let strange = Listener::bind(Some("192.0.2.1".parse().unwrap()), 0, identity("server"), Guard::default())
        .unwrap_err();
    assert!(strange.message.starts_with("listening on 192.0.2.1:0: Cannot assign"), "{strange}");
}

fn guarded(guard: Guard) -> (Listener, SocketAddr) {
    let here = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let listener = Listener::bind(here, 0, identity("server"), guard).unwrap();
    let address = listener.local_addr();
    (listener, address)
}

#[test]
fn a_client_that_does_not_say_what_it_wants_lets_others_go_first_and_is_told() {
    let (mut listener, address) = guarded(Guard { patience: LONG, ..Guard::default() });
    let hello = hello_frame(r#"{"ok":{"identity":{"tool":"0","boot_id":null},"purpose":{"run":{}}}}"#);
    let mut silent: Vec<TcpStream> = (0..65).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (index, stream) in silent.iter_mut().enumerate() {
        stream.write_all(&hello).unwrap();
        // Part of a message is none.
        stream.write_all(&b"\0\0\0\x02\""[..index % 6]).unwrap();
    }
    let at_client = std::thread::spawn(move || {
        let (mut control, _) = connect(&target(address), &identity("client")).unwrap();
        control.send(&"all of it").unwrap();
        control
    });
    // The one that came first makes room, and another only if the client is slower to speak than to come.
    assert_eq!(refused(&mut listener), "did not say what it wants while 64 others came");
    let (mut server, hello) = client(&mut listener);
    assert_eq!(hello.identity, identity("client"));
    assert!(server.wait_readable(Duration::ZERO).unwrap());
    assert_eq!(server.recv::<String>("a word", Duration::ZERO).unwrap(), "all of it");
    drop(at_client.join().unwrap());
    let mut dismissed = listener.dismiss(&Error::failed(crate::error::Step::Plan, "not today"));
    dismissed.iter_mut().for_each(|control| control.let_read(Duration::ZERO));
    drop(dismissed);
    assert!(answer(silent.remove(0)).contains("while 64 others came"));
    assert!(answer(silent.pop().unwrap()).contains("not today"));
}

#[test]
fn who_has_spoken_pushes_out_nobody_who_has_not() {
    let (mut listener, address) = guarded(Guard { patience: LONG, ..Guard::default() });
    let hello = hello_frame(r#"{"ok":{"identity":{"tool":"0","boot_id":null},"purpose":{"run":{}}}}"#);
    let come = |more: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&[&hello[..], more].concat()).unwrap();
        stream
    };
    let _silent = come(b"");
    let soon = Some(Instant::now() + Duration::from_millis(50));
    assert!(listener.next(soon, &AtomicBool::new(false)).unwrap().is_none());
    let _clients: Vec<TcpStream> = (0..100).map(|_| come(b"\0\0\0\x02\"\"")).collect();
    (0..100).for_each(|_| assert!(matches!(next(&mut listener), Incoming::Control { .. })));
    assert_eq!(listener.dismiss(&Error::failed(crate::error::Step::Plan, "over")).len(), 1);
}

#[test]
fn patience_has_an_end_and_a_first_message_a_longest() {
    let (mut listener, address) = guarded(Guard { patience: Duration::from_millis(50), ..Guard::default() });
    let hello = hello_frame(r#"{"ok":{"identity":{"tool":"0","boot_id":null},"purpose":{"run":{}}}}"#);
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(&hello).unwrap();
    assert!(refused(&mut listener).starts_with("did not say what it wants within 50"));
    let answer = answer(peer);
    assert!(
        answer.contains("refused: the client did not say what it wants") && answer.contains("run it again"),
        "{answer}"
    );
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(&[&hello[..], b"\0\x01\0\0"].concat()).unwrap();
    let (mut control, _) = client(&mut listener);
    let error = control.recv::<String>("a word", LONG).unwrap_err();
    assert!(error.message.contains("as a length 65536, and 16384 is the most"), "{error}");
}

#[test]
fn a_refused_client_is_told_what_to_do() {
    let allowed = vec!["10.7.0.0/16".parse().unwrap()];
    let (mut listener, address) = guarded(Guard { allowed, ..Guard::default() });
    let at_client = std::thread::spawn(move || connect(&target(address), &identity("client")).unwrap_err());
    assert_eq!(refused(&mut listener), "comes from an address that --allow does not name");
    let error = at_client.join().unwrap();
    assert!(
        error.remote && error.remedy.as_ref().is_some_and(|remedy| remedy.contains("127.0.0.1")),
        "{error:?}"
    );
}

#[test]
fn an_address_of_ipv4_is_one_however_it_comes() {
    let allowed = vec!["127.0.0.0/8".parse().unwrap()];
    let guard = Guard { allowed, ..Guard::default() };
    assert!(guard.admits("::ffff:127.0.0.1".parse().unwrap()));
    assert!(!guard.admits("::1".parse().unwrap()) && !guard.admits("::ffff:10.0.0.1".parse().unwrap()));
    // A socket of both families, where there are both.
    let mut listener = Listener::bind(None, 0, identity("server"), guard).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], listener.local_port()));
    let at_client = std::thread::spawn(move || connect(&target(address), &identity("client")).map(drop));
    client(&mut listener);
    at_client.join().unwrap().unwrap();
}
