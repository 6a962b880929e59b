//! Messages, errors and deadlines between two ends that know each other.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::*;
use crate::error::{Kind, Step};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Facts {
    qpn: u32,
    rkey: u32,
    addr: u64,
}

const SHORT: Duration = Duration::from_millis(50);

/// A control connection whose other end is a bare socket.
fn bare() -> (Control, TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, from) = listener.accept().unwrap();
    (control::Control::new(stream, from, crate::plan::Side::Server, None).unwrap(), peer)
}

/// What the control end says about a peer that sends `bytes` and closes.
fn verdict(bytes: &[u8]) -> String {
    let (mut control, mut peer) = bare();
    peer.write_all(bytes).unwrap();
    let name = control.peer_addr().to_string();
    drop(peer);
    let error = control.recv::<Facts>("its facts", LONG).unwrap_err();
    assert!(!error.remote);
    error.to_string().replace(&name, "PEER")
}

fn frame(json: &str) -> Vec<u8> {
    [&u32::try_from(json.len()).unwrap().to_be_bytes(), json.as_bytes()].concat()
}

#[test]
fn both_ends_get_what_the_other_has() {
    let (mut client, mut server) = Control::pair().unwrap();
    let mine = Facts { qpn: 1, rkey: 2, addr: u64::MAX };
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            server.barrier("ready", LONG).unwrap();
            server.exchange(&Facts { qpn: 4, rkey: 5, addr: 6 }, "the client's facts", LONG).unwrap()
        });
        client.barrier("ready", LONG).unwrap();
        let theirs = client.exchange(&mine, "the server's facts", LONG).unwrap();
        assert_eq!(theirs, Facts { qpn: 4, rkey: 5, addr: 6 });
        assert_eq!(other.join().unwrap(), mine);
    });
}

#[test]
fn large_messages_of_both_ends_at_once_do_not_wait_for_each_other() {
    let (mut client, mut server) = Control::pair().unwrap();
    // Less than a message, so that whoever sends must be read from.
    for end in [&client, &server] {
        socket2::SockRef::from(end).set_send_buffer_size(64 << 10).unwrap();
    }
    let large = "x".repeat(900_000);
    std::thread::scope(|scope| {
        let at_server = scope.spawn(|| server.exchange(&large, "the client's table", LONG).unwrap());
        assert_eq!(client.exchange(&large, "the server's table", LONG).unwrap().len(), large.len());
        assert_eq!(at_server.join().unwrap().len(), large.len());
    });
}

#[test]
fn an_error_takes_the_place_of_any_message_and_is_shown_as_the_peers() {
    let (mut client, mut server) = Control::pair().unwrap();
    let refusal = Error::failed(Step::Plan, "this is send_lat; the client asks for write_bw")
        .with_remedy("start write_bw");
    std::thread::scope(|scope| {
        scope.spawn(|| server.send_error(&refusal));
        let error = client.recv::<Facts>("the server's facts", LONG).unwrap_err();
        assert_eq!(error, refusal.clone().as_remote());
        assert_eq!(error.to_string(), "peer: plan: this is send_lat; the client asks for write_bw");
        // Not sent back to where it came from.
        client.send_error(&error);
        drop(client);
    });
    assert_eq!(
        server.send(&1).unwrap_err().message,
        format!("the connection to {} has ended", server.peer_addr())
    );
}

#[test]
fn who_sends_to_a_peer_that_gave_up_learns_why() {
    let (mut client, mut server) = Control::pair().unwrap();
    client.send(&"a message that is never read").unwrap();
    server.send_error(&Error::failed(Step::RegisterMemory, "ibv_reg_mr: cannot allocate memory"));
    drop(server);
    // Small messages go into the void until the reset is here.
    let error = (0..100).find_map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        client.send(&"and more").err()
    });
    let error = error.expect("a closed connection takes no messages for ever");
    assert!(error.remote, "{error}");
    assert_eq!(error.step, Step::RegisterMemory);
}

#[test]
fn an_error_gets_through_although_the_peers_messages_were_not_read() {
    let (mut client, mut server) = Control::pair().unwrap();
    for _ in 0..200 {
        client.send(&"not read by a server that failed before").unwrap();
    }
    let failed = std::thread::spawn(move || server.send_error(&Error::failed(Step::OpenDevice, "no device")));
    let error = client.recv::<Facts>("the server's facts", LONG).unwrap_err();
    assert_eq!((error.message.as_str(), error.remote), ("no device", true));
    drop(client);
    failed.join().unwrap();
}

#[test]
fn an_error_waits_for_a_peer_that_is_behind_with_reading() {
    let (mut client, mut server) = Control::pair().unwrap();
    // More than the client's buffer takes, so that the error is still at the server when that closes; and bytes left
    // unread, which turn a close into a reset.
    let large = "x".repeat(1_000_000);
    client.send(&"never read").unwrap();
    let failed = std::thread::spawn({
        let large = large.clone();
        move || {
            socket2::SockRef::from(&server).set_send_buffer_size(2 << 20).unwrap();
            server.send(&large).unwrap();
            server.send_error(&Error::failed(Step::OpenDevice, "no device"));
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(client.recv::<String>("a table", LONG).unwrap(), large);
    assert_eq!(client.recv::<Facts>("facts", LONG).unwrap_err().message, "no device");
    drop(client);
    failed.join().unwrap();
}

#[test]
fn a_peers_error_cannot_write_to_the_terminal() {
    let (mut client, mut server) = Control::pair().unwrap();
    std::thread::spawn(move || {
        server.send_error(&Error::failed(Step::Plan, format!("\x1b[2J\nfake {}", "x".repeat(5000))));
    });
    let error = client.recv::<Facts>("facts", LONG).unwrap_err();
    assert!(error.message.starts_with("\\u{1b}[2J\\nfake x"), "{}", &error.message[..40]);
    assert!(error.message.len() < 2100, "{}", error.message.len());
}

#[test]
fn barriers_of_different_names_are_an_error_that_names_both() {
    let (mut client, mut server) = Control::pair().unwrap();
    let (at_client, at_server) = std::thread::scope(|scope| {
        let other = scope.spawn(|| server.barrier("warm", LONG).unwrap_err());
        (client.barrier("done", LONG).unwrap_err(), other.join().unwrap())
    });
    let expected = format!("this end is at barrier 'done', {} at barrier 'warm'", client.peer_addr());
    assert_eq!(at_client.message, expected);
    assert!(at_server.message.contains("'warm'") && at_server.message.contains("'done'"));
}

#[test]
fn the_end_of_the_connection_is_told_by_where_it_came() {
    assert_eq!(verdict(b""), "hello: PEER closed the connection while this end waited for its facts");
    assert_eq!(
        verdict(&frame("{\"ok\":{\"qpn\":1}}")[..10]),
        "hello: PEER closed the connection after 10 of the 20 bytes of a frame while this end waited for its facts"
    );
}

#[test]
fn a_reset_is_told_from_a_close() {
    let (mut control, peer) = bare();
    control.set_step(Step::Exchange);
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    let error = control.recv::<Facts>("its facts", LONG).unwrap_err();
    let expected = format!(
        "exchange endpoints: {} reset the connection while this end waited for its facts",
        control.peer_addr()
    );
    assert_eq!(error.to_string(), expected);
    assert!(error.remedy.is_some());
}

#[test]
fn garbage_is_shown_and_no_room_made_for_it() {
    assert_eq!(
        verdict(b"\x1b[2Jxxxxxxx"),
        "hello: PEER sent something that is no frame (first bytes \"\\x1b[2J\"; as a length 458961482, and 1048576 is the most) in place of its facts"
    );
    assert_eq!(verdict(&[0; 4]), "hello: PEER sent a frame of no bytes in place of its facts");
    let wrong = verdict(&frame(r#"{"ok":{"barrier":"x"}}"#));
    assert_eq!(
        wrong,
        r#"hello: PEER sent "{\"ok\":{\"barrier\":\"x\"}}" (missing field `qpn` at line 1 column 21) in place of its facts"#
    );
    let deep = verdict(&frame(&format!("{{\"ok\":{}", "[".repeat(100_000))));
    assert!(deep.contains("in place of its facts"), "{deep}");
}

#[test]
fn a_silent_peer_costs_the_deadline_and_no_more() {
    let (mut control, mut peer) = bare();
    peer.write_all(&frame("{\"ok\":{}}")[..6]).unwrap();
    let started = Instant::now();
    let error = control.recv::<Facts>("its facts", SHORT).unwrap_err();
    assert!((SHORT..Duration::from_secs(5)).contains(&started.elapsed()), "{:?}", started.elapsed());
    assert!(
        error.message.starts_with("timed out after ")
            && error.message.contains(" ms waiting for its facts ("),
        "{error}"
    );
    assert!(error.message.ends_with("; 6 of 13 bytes went through)"), "{error}");
}

#[test]
fn a_wait_that_timed_out_in_a_frame_can_be_taken_up_again() {
    let (mut control, mut peer) = bare();
    let message = frame(r#"{"ok":{"qpn":1,"rkey":2,"addr":3}}"#);
    for part in message.chunks(7) {
        assert!(control.recv::<Facts>("its facts", Duration::from_millis(1)).is_err());
        peer.write_all(part).unwrap();
    }
    assert_eq!(control.recv::<Facts>("its facts", LONG).unwrap(), Facts { qpn: 1, rkey: 2, addr: 3 });
}

#[test]
fn a_peer_that_does_not_read_ends_the_exchange_at_its_deadline() {
    let (mut client, server) = Control::pair().unwrap();
    let large = "x".repeat(1_000_000);
    let error = (0..50).find_map(|_| match client.exchange(&large, "the server's table", SHORT) {
        Err(error) if error.message.contains("to read a message") => Some(Ok(error)),
        Err(error) if client.send(&1).is_err() => Some(Err(error)),
        _ => None,
    });
    let error = error.expect("buffers are finite").expect("told as a failure to send");
    assert!(error.message.starts_with("timed out after "), "{error}");
    drop(server);
}

#[test]
fn a_stop_ends_a_wait_as_an_interrupt() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let (mut client, _server) = Control::pair().unwrap();
    client.set_stop(Some(&STOP));
    std::thread::spawn(|| {
        std::thread::sleep(SHORT);
        STOP.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let error = client.recv::<Facts>("facts", LONG).unwrap_err();
    assert_eq!(error.kind, Kind::Interrupted);
    assert_eq!(client.wait_readable(LONG).unwrap_err().kind, Kind::Interrupted);
    client.set_stop(None);
    assert!(!client.wait_readable(Duration::ZERO).unwrap());
}

#[test]
fn a_message_above_the_limit_is_refused_where_it_is_made_and_the_connection_lives() {
    let (mut client, mut server) = Control::pair().unwrap();
    let error = client.send(&"x".repeat(MAX_FRAME)).unwrap_err();
    assert_eq!(error.message, "a message cannot be sent: 1048585 bytes, and a frame takes 1048576");
    client.send(&7).unwrap();
    assert_eq!(server.recv::<u32>("a number", LONG).unwrap(), 7);
}

#[test]
fn a_vanished_peer_is_noticed_by_the_kernel() {
    let (client, _server) = Control::pair().unwrap();
    let socket = socket2::SockRef::from(&client);
    assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
    assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(5));
    assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(10)));
}
