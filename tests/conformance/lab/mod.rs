//! A device under test, and queue pairs on it that talk with each other.

mod end;
mod request;
mod wait;

use std::cell::Cell;
use std::fs;
use std::time::Instant;

use verbmark::verbs::{
    Access, Address, AsyncEvent, Context, Device, Grh, LinkLayer, Pd, PortAttr, Srq, find,
};

pub use end::{End, Setup, pattern, queues};
pub use request::Request;
pub use wait::{comes_to, gist, take, take_present};

use wait::{DEADLINE, is_readable};

/// The port that is used.
pub const PORT: u8 = 1;

/// Bytes of memory that an end has.
pub const MEMORY: usize = 32 << 10;

/// Every right.
pub const ALL: Access = Access { remote_read: true, remote_write: true, remote_atomic: true };

/// A device that is open.
pub struct Lab {
    pub device: Device,
    pub context: Context,
    pub port: PortAttr,
    route: Option<Grh>,
    applies: Cell<bool>,
}

impl Lab {
    pub fn open(name: &str) -> Self {
        let device = find(name).unwrap_or_else(|error| panic!("{error}"));
        let context = device.open().unwrap_or_else(|error| panic!("{error}"));
        let port = context.port(PORT).unwrap();
        let gids = context.gid_table(PORT).unwrap();
        // An address made of an IPv4 address works on every RoCE device; the first is as good where there is none.
        let best = gids.iter().find(|entry| entry.gid.is_v4_mapped()).or(gids.first());
        let route = best.filter(|_| port.link_layer == LinkLayer::Ethernet).map(|entry| Grh {
            dest: entry.gid,
            source_index: entry.index.try_into().expect("a GID index has 8 bits"),
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
        });
        Self { device, context, port, route, applies: Cell::new(true) }
    }

    pub fn driver(&self) -> String {
        self.device.driver().unwrap_or_default()
    }

    /// The rule says nothing about this device.
    pub fn does_not_apply(&self) {
        self.applies.set(false);
    }

    pub fn applies(&self) -> bool {
        self.applies.get()
    }

    pub fn is_ethernet(&self) -> bool {
        self.port.link_layer == LinkLayer::Ethernet
    }

    /// The way to the port itself.
    pub fn address(&self) -> Address {
        Address { port: PORT, lid: self.port.lid, service_level: 0, grh: self.route }
    }

    /// A counter of the port, where the kernel keeps it.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let path = format!("/sys/class/infiniband/{}/ports/{PORT}/hw_counters/{name}", self.device.name());
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Waits until a counter of the port has come to this.
    pub fn comes_to_count(&self, name: &str, count: u64) {
        let end = Instant::now() + DEADLINE;
        while self.counter(name) < Some(count) {
            assert!(Instant::now() < end, "{name} is {:?} and not {count}", self.counter(name));
            std::thread::yield_now();
        }
    }

    /// The next asynchronous event, which is waited for.
    pub fn async_event(&self) -> AsyncEvent {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(event) = self.context.take_async_event().unwrap() {
                return event;
            }
            assert!(is_readable(self.context.async_fd(), end), "there is no asynchronous event");
        }
    }

    /// A pair whose A has more completions of sends than its queue has room for, and how many there were.
    pub fn overfull(&self) -> (End, End, usize) {
        let (a, b) = self.pair(Setup { send_cq: 3, send_depth: 64, ..Setup::default() });
        let count = u64::from(a.send_cq.depth()) + 8;
        for id in 0..count {
            // Refused where the queue pair has failed with its queue.
            if a.post(&Request::write(a.slice(0, 8), b.remote(64)).id(id)).is_err() {
                break;
            }
        }
        (a, b, count as usize)
    }

    /// Sends something through the port both ways, on a connection of its own: what was under way before is through, as
    /// far as other traffic can tell.
    pub fn is_through(&self) {
        let (c, d) = self.pair(Setup::default());
        c.fence(&d);
        d.fence(&c);
    }

    pub fn end(&self, setup: Setup) -> End {
        End::new(self, self.context.alloc_pd().unwrap(), None, setup)
    }

    /// An end of the same protection domain as another.
    pub fn end_beside(&self, other: &End) -> End {
        End::new(self, other.pd.clone(), None, other.setup)
    }

    /// An end that takes its receives from a shared queue of this protection domain.
    pub fn end_sharing(&self, pd: &Pd, srq: &Srq, setup: Setup) -> End {
        End::new(self, pd.clone(), Some(srq), setup)
    }

    /// Two ends, connected.
    pub fn pair(&self, setup: Setup) -> (End, End) {
        let (a, b) = (self.end(setup), self.end(setup));
        a.connect(&b);
        b.connect(&a);
        (a, b)
    }
}
