//! Looking who is there, which nobody notices but who answers.

use std::io::Write;
use std::net::TcpListener;

use super::*;

/// What is heard at a port where `serve` answers the one connection.
fn heard(timeout: Duration, serve: impl FnOnce(&mut TcpStream) + Send + 'static) -> Heard {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served = std::thread::spawn(move || serve(&mut listener.accept().unwrap().0));
    let (at, heard) = look(&Target { timeout, ..target(address) }).unwrap();
    assert_eq!(at, address);
    served.join().unwrap();
    heard
}

#[test]
fn a_server_is_known_and_still_waits_for_its_client() {
    let (mut listener, address) = listener();
    let looked = std::thread::spawn(move || look(&target(address)).unwrap().1);
    let reason = stray(&mut listener);
    assert!(reason.contains("only looks who answers"), "{reason}");
    assert_eq!(looked.join().unwrap(), Heard::Server(PROTOCOL));
    let at_client = std::thread::spawn(move || connect(&target(address), &identity("client")).map(drop));
    client(&mut listener);
    at_client.join().unwrap().unwrap();
}

#[test]
fn others_are_told_by_what_they_say() {
    let says = |bytes: &'static [u8]| heard(LONG, move |stream| stream.write_all(bytes).unwrap());
    assert_eq!(says(b"verbmark/7\n"), Heard::Server(7));
    assert_eq!(
        says(b"SSH-2.0-OpenSSH_9.2\r\n"),
        Heard::Another(r#"an SSH banner, "SSH-2.0-Ope""#.to_owned())
    );
    assert_eq!(says(b"6.06\0"), Heard::Another("perftest 6.06".to_owned()));
    assert!(matches!(says(b""), Heard::Silence(_)));
}

#[test]
fn who_says_nothing_is_not_waited_for_longer_than_asked() {
    let started = Instant::now();
    let silent = heard(Duration::from_millis(200), |_| std::thread::sleep(Duration::from_millis(400)));
    assert!(matches!(&silent, Heard::Silence(how) if how.starts_with("nothing within")), "{silent:?}");
    assert!(started.elapsed() < LONG);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (_, heard) = look(&target(nobody)).unwrap();
    assert!(matches!(&heard, Heard::Nobody(why) if why.contains("refused")), "{heard:?}");
    assert!(look(&Target { host: "no-such-host.invalid", ..target(nobody) }).is_err());
}
