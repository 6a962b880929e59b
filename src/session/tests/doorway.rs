//! Who comes to a server of one test while its client's data connection is awaited.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Ears;
use crate::oob::{self, Guard, Identity, Listener, LocalEnd, Target, Token};
use crate::session::refusals::Refusals;
use crate::session::server::{Doorway, Entrance};

/// Longer than anything here may take.
const LONG: Duration = Duration::from_secs(20);

#[test]
fn who_comes_in_vain_has_a_line_and_a_remedy() {
    let identity = || Identity { tool: "0.1.0".into(), boot_id: None };
    let here = Some("127.0.0.1".parse().unwrap());
    let mut listener = Listener::bind(here, 0, identity(), Guard::default()).unwrap();
    let address = listener.local_addr();
    let ears = Ears::default();
    let refusals = Refusals::new(&ears);
    let mut doorway = Doorway { listener: &mut listener, refusals: &refusals, observer: &ears };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let strangers = scope.spawn(|| {
            // Each from an address of its own, and so with a line of its own.
            let from = |host: &str| LocalEnd {
                address: Some(SocketAddr::new(host.parse().unwrap(), 0)),
                interface: None,
            };
            let token = Token::random().unwrap();
            let data = oob::connect_data(address, &token, &identity(), &from("127.0.0.8"), LONG, None);
            let target = Target {
                host: "127.0.0.1",
                port: address.port(),
                timeout: LONG,
                from: from("127.0.0.9"),
                secret: None,
                stop: None,
            };
            let (mut control, _) = oob::connect(&target, &identity()).unwrap();
            control.send(&"what it wants").unwrap();
            let told = control.recv::<u32>("the reason", LONG);
            is_over.store(true, Ordering::Relaxed);
            (data.unwrap_err(), told.unwrap_err())
        });
        while !is_over.load(Ordering::Relaxed) {
            let soon = Instant::now() + Duration::from_millis(20);
            assert!(doorway.data(soon, &AtomicBool::new(false)).unwrap().is_none());
        }
        let (of_data, of_control) = strangers.join().unwrap();
        assert!(of_data.message.contains("not under way here"), "{of_data}");
        assert!(of_control.message.contains("busy with another client"), "{of_control}");
        assert!(of_control.remedy.is_some(), "{of_control}");
    });
    let said = ears.0.lock().unwrap();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].starts_with("client 127.0.0.8:") && said[0].contains(" was not served: it asked for"),
        "{said:?}"
    );
    assert!(
        said[1].starts_with("client 127.0.0.9:") && said[1].contains(" was not served: this server is busy"),
        "{said:?}"
    );
}
