//! Lines about clients that are no clients: who runs a server sees that somebody fails to get in, and no flood of them fills
//! a log.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::Observer;

/// How long an address is not named again.
const MINUTE: Duration = Duration::from_secs(60);

/// Most addresses named in that time.
const MOST: usize = 16;

/// Who was refused in the minute under way.
#[derive(Debug, Default)]
pub struct Refusals {
    /// When the minute is over; `None` while nobody was refused.
    until: Option<Instant>,
    named: Vec<IpAddr>,
    /// Refused since then without a line.
    more: u64,
}

impl Refusals {
    /// Says in a line that a client was refused, the first time of its address in a minute.
    pub fn tell(&mut self, peer: SocketAddr, reason: &str, observer: &dyn Observer) {
        let now = Instant::now();
        self.sum_up(now, observer);
        let line = format!("client {peer} was not served: it {reason}");
        if self.names(peer.ip(), now) { observer.say(&line) } else { observer.explain(&line) }
    }

    /// Says how many had no line, if the minute is over.
    pub fn sum_up(&mut self, now: Instant, observer: &dyn Observer) {
        if self.until.is_some_and(|until| until <= now) {
            self.end(observer);
        }
    }

    /// The same although it is not over.
    pub fn end(&mut self, observer: &dyn Observer) {
        if self.more > 0 {
            let (more, s) = (self.more, if self.more == 1 { "" } else { "s" });
            observer.say(&format!("{more} more client{s} refused within a minute (-v has a line for each)"));
        }
        *self = Self::default();
    }

    /// When there is something to sum up; `None` if there is nothing.
    pub fn due(&self) -> Option<Instant> {
        self.until.filter(|_| self.more > 0)
    }

    /// Whether a client of this address has a line; it is counted where it has none.
    fn names(&mut self, address: IpAddr, now: Instant) -> bool {
        self.until.get_or_insert(now + MINUTE);
        let is_new = self.named.len() < MOST && !self.named.contains(&address);
        if is_new {
            self.named.push(address);
        } else {
            self.more += 1;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::result::Document;

    #[derive(Default)]
    struct Ears(Mutex<Vec<String>>);

    impl Observer for Ears {
        fn say(&self, line: &str) {
            self.0.lock().unwrap().push(line.into());
        }

        fn explain(&self, _: &str) {}
        fn connected(&self, _: &Document) {}
        fn measuring(&self, _: &str, _: usize, _: usize) {}
        fn measured(&self, _: &Document) {}
    }

    #[test]
    fn an_address_has_a_line_a_minute_and_all_of_them_a_count() {
        let (mut refusals, ears) = (Refusals::default(), Ears::default());
        let began = Instant::now();
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        assert_eq!(refusals.due(), None);
        assert!(refusals.names(address(1), began));
        assert_eq!(refusals.due(), None, "nothing to count");
        assert!(!refusals.names(address(1), began));
        assert!(refusals.names(address(2), began));
        assert_eq!(refusals.due(), Some(began + MINUTE));
        let lines = (0..10_000).filter(|&number| refusals.names(address(number), began)).count();
        assert_eq!(lines, MOST - 2);
        refusals.sum_up(began + MINUTE / 2, &ears);
        assert!(ears.0.lock().unwrap().is_empty());
        refusals.sum_up(began + MINUTE, &ears);
        let counted = 1 + 10_000 - (MOST - 2);
        let said = format!("{counted} more clients refused within a minute (-v has a line for each)");
        assert_eq!(*ears.0.lock().unwrap(), [said]);
        assert!(refusals.names(address(1), began + MINUTE), "another minute");
        refusals.end(&ears);
        assert_eq!(ears.0.lock().unwrap().len(), 1, "nothing to count");
    }
}
