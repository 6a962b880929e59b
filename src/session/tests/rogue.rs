//! A client that uses what an earlier test was given: the key of a buffer of which it was told. It speaks the protocol by
//! hand, up to connected queue pairs, and then reads where it likes.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Ears;
use crate::cli;
use crate::measure::{Epoch, Halt, RoundTrip, Spin, Stop, Watch};
use crate::oob::run::{Accept, Answer, Proposal, Request};
use crate::oob::{self, Control, Identity, LocalEnd, Target};
use crate::ops::{Read, Verb};
use crate::plan::{self, Most, Shape, Side, Site, Test, Transport};
use crate::session::{Ending, Process, serve};
use crate::transport::path::{self, PortFacts};
use crate::transport::rdma::{Endpoint, PingPong, Port, Prepared, Rdma, Reads};
use crate::verbs::{RemoteSlice, WcStatus};

/// Longer than anything here may take.
const LONG: Duration = Duration::from_secs(20);

impl Ears {
    /// Waits for a line with this in it.
    fn hear(&self, part: &str) -> String {
        let end = Instant::now() + LONG;
        loop {
            let found = self.0.lock().unwrap().iter().find(|line| line.contains(part)).cloned();
            match found {
                Some(line) => return line,
                None if Instant::now() > end => panic!("nobody said '{part}'"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

/// A test of reads, and where an end of it is: on the emulated device, which both ends find in this process.
fn test() -> (Test, Site) {
    let words = ["read_lat", "127.0.0.1", "-d", "emu0", "--no-tcp", "-s", "64"].map(OsString::from);
    let typed = cli::parse("read_lat", "about", words).unwrap();
    let plan = plan::resolve(typed, Verb::Read, Shape::Latency, 7).unwrap();
    let site = Site { bind: Some("127.0.0.1".parse().unwrap()), control_port: 0, ..plan.site };
    (plan.test, site)
}

/// A client with connected queue pairs.
struct Rogue {
    control: Control,
    /// Reads go to what the server told, or to what an earlier one did.
    rdma: Rdma,
    /// What the server told of its buffer.
    told: RemoteSlice,
}

impl Rogue {
    fn come(control_port: u16, stale: Option<RemoteSlice>) -> Self {
        let (test, site) = test();
        Self::come_for(test, &site, control_port, stale)
    }

    fn come_for(test: Test, site: &Site, control_port: u16, stale: Option<RemoteSlice>) -> Self {
        let port = Port::open(site).unwrap();
        let target = Target {
            host: "127.0.0.1",
            port: control_port,
            timeout: LONG,
            from: LocalEnd::default(),
            secret: None,
            stop: None,
        };
        let identity = Identity { tool: "0.1.0".into(), boot_id: None };
        let (mut control, _) = oob::connect(&target, &identity).unwrap();
        let proposal = Proposal {
            verb: test.verb,
            shape: test.shape,
            transports: vec![Transport::Rdma],
            cores: Vec::new(),
            threads: 1,
            server_core: None,
            run_id: "0123456789abcdef0123456789abcdef".into(),
        };
        control.send(&proposal).unwrap();
        while !matches!(control.recv("an offer", LONG).unwrap(), Answer::Offer(_)) {}
        let theirs: PortFacts = control.recv("facts", LONG).unwrap();
        let ours = port.facts();
        let choice = path::choose(&ours, &theirs, None, |_| None).unwrap();
        control.send(&Request { test: test.clone() }).unwrap();
        control.send(&ours).unwrap();
        control.send(&choice).unwrap();
        let Accept { .. } = control.recv("an agreement", LONG).unwrap();
        let prepared = Prepared::new(&port, &test, Side::Client).unwrap();
        let remote: Endpoint = control.exchange(&prepared.endpoint(), "an endpoint", LONG).unwrap();
        let told = remote.memory;
        let aimed = Endpoint { memory: stale.unwrap_or(told), ..remote };
        let reads = Reads::agree(&test, &ours, &theirs);
        let rdma = prepared.connect(&aimed, &test, &choice, reads).unwrap();
        control.barrier("queue pairs are connected", LONG).unwrap();
        Self { control, rdma, told }
    }

    /// One READ of 64 bytes.
    fn read(&mut self) -> Result<(), Halt> {
        let nobody = AtomicBool::new(false);
        let watch = Watch::new(self.control.as_fd(), &nobody, LONG).without_peer();
        let mut path = PingPong::<Read, Spin>::new(&mut self.rdma, 64);
        path.start(&watch)?;
        path.finish(&watch)
    }
}

/// Stops the server when it is dropped, also where an assertion failed: the scope waits for the server.
struct StopServer(&'static AtomicBool);

impl Drop for StopServer {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_key_of_an_earlier_test_opens_nothing() {
    let stopped: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let ears = Ears::default();
    let process = Process { command: &[], epoch: Epoch::note(), signalled: stopped, observer: &ears };
    let (_, site) = test();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&site, true, &process));
        let stop = StopServer(stopped);
        let said = ears.hear("listening on");
        let port: u16 = said.rsplit(' ').next().unwrap().parse().unwrap();

        let mut first = Rogue::come(port, None);
        first.read().expect("the buffer of its own test");
        let key = first.told;
        drop(first);
        ears.hear("read_lat over RDMA: failed");

        let mut second = Rogue::come(port, Some(key));
        assert_ne!(second.told.rkey, key.rkey, "a key is not given twice in a row");
        match second.read() {
            Err(Halt::Work(failed)) => {
                assert_eq!(failed.status, WcStatus::REM_ACCESS_ERR.code(), "{failed:?}")
            }
            other => panic!("it read with the key of an earlier test: {other:?}"),
        }
        drop(second);
        drop(stop);
        assert!(matches!(server.join().unwrap(), Ok(Ending::Idle | Ending::Cut)));
    });
}

#[test]
fn a_client_that_stays_for_longer_than_any_test_may_take_is_told_why_it_is_cut_off() {
    let stopped: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let ears = Ears::default();
    let process = Process { command: &[], epoch: Epoch::note(), signalled: stopped, observer: &ears };
    let (mut test, mut site) = test();
    let short = Duration::from_millis(1);
    (test.stop, test.warm_up.span) = (Stop::After(short), Duration::ZERO);
    site.most = Most { duration: Some(short), spare: Duration::from_millis(500), ..Most::default() };
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&site, true, &process));
        let stop = StopServer(stopped);
        let said = ears.hear("listening on");
        let port: u16 = said.rsplit(' ').next().unwrap().parse().unwrap();

        // It agrees to a test, and then asks for no point of it.
        let mut idle = Rogue::come_for(test, &site, port, None);
        let told = idle.control.recv::<u32>("the reason", LONG).unwrap_err();
        assert!(told.remote && told.message.contains("cut off after 0.502 s"), "{told}");
        assert!(told.message.contains("takes tests of up to 0.001 s"), "{told}");
        assert!(told.remedy.is_some_and(|remedy| remedy.contains("lower -D")));
        ears.hear("read_lat over RDMA: failed after");
        ears.hear("cut off after 0.502 s");
        drop(stop);
        assert!(matches!(server.join().unwrap(), Ok(Ending::Idle)));
    });
}
