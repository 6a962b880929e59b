//! Lines about clients that are no clients: who runs a server sees that somebody fails to get in, and no flood of them fills
//! a log.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Observer;
use crate::units::counted;

/// How long an address is not named again.
const MINUTE: Duration = Duration::from_secs(60);

/// Most addresses named in that time.
const MOST: usize = 16;

/// Who was not served in the minute under way; several threads may tell.
pub struct Refusals<'a> {
    observer: &'a dyn Observer,
    minute: Mutex<Minute>,
}

#[derive(Default)]
struct Minute {
    /// When it is over; `None` while nobody was refused.
    until: Option<Instant>,
    named: Vec<IpAddr>,
    /// Refused since then without a line.
    more: usize,
}

impl<'a> Refusals<'a> {
    /// Nobody yet; `observer` hears the lines.
    pub fn new(observer: &'a dyn Observer) -> Self {
        Self { observer, minute: Mutex::default() }
    }

    /// Says in a line that a client was not served, the first time of its address in a minute.
    pub fn tell(&self, peer: SocketAddr, why: &str) {
        self.tell_at(Instant::now(), peer, why);
    }

    fn tell_at(&self, now: Instant, peer: SocketAddr, why: &str) {
        self.sum_up(now);
        let line = format!("client {peer} was not served: {why}");
        let is_named = self.minute().names(peer.ip(), now);
        if is_named { self.observer.say(&line) } else { self.observer.explain(&line) }
    }

    /// Says how many had no line, if the minute is over.
    pub fn sum_up(&self, now: Instant) {
        let is_over = self.minute().until.is_some_and(|until| until <= now);
        if is_over {
            self.end();
        }
    }

    /// The same although it is not over.
    pub fn end(&self) {
        let more = std::mem::take(&mut *self.minute()).more;
        if more > 0 {
            let clients = counted(more, "more client");
            self.observer.say(&format!("{clients} refused within a minute (-v has a line for each)"));
        }
    }

    /// When there is something to sum up; `None` if there is nothing.
    pub fn due(&self) -> Option<Instant> {
        let minute = self.minute();
        minute.until.filter(|_| minute.more > 0)
    }

    fn minute(&self) -> MutexGuard<'_, Minute> {
        self.minute.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Minute {
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
    use super::*;
    use crate::session::tests::Ears;

    #[test]
    fn an_address_has_a_line_a_minute_and_all_of_them_a_count() {
        let ears = Ears::default();
        let refusals = Refusals::new(&ears);
        let began = Instant::now();
        // Whether it had a line.
        let tell = |number: u32, now| {
            let lines = ears.0.lock().unwrap().len();
            refusals.tell_at(now, (IpAddr::from(number.to_be_bytes()), 1).into(), "why");
            ears.0.lock().unwrap().len() > lines
        };
        assert_eq!(refusals.due(), None);
        assert!(tell(1, began));
        assert_eq!(*ears.0.lock().unwrap(), ["client 0.0.0.1:1 was not served: why"]);
        assert_eq!(refusals.due(), None, "nothing to count");
        assert!(!tell(1, began));
        assert!(tell(2, began));
        assert_eq!(refusals.due(), Some(began + MINUTE));
        let lines = (0..10_000).filter(|&number| tell(number, began)).count();
        assert_eq!(lines, MOST - 2);
        refusals.sum_up(began + MINUTE / 2);
        assert_eq!(ears.0.lock().unwrap().len(), MOST);
        refusals.sum_up(began + MINUTE);
        let counted = 1 + 10_000 - (MOST - 2);
        let said = format!("{counted} more clients refused within a minute (-v has a line for each)");
        assert_eq!(ears.0.lock().unwrap()[MOST..], [said]);
        assert!(tell(1, began + MINUTE), "another minute");
        refusals.end();
        assert_eq!(ears.0.lock().unwrap().len(), MOST + 2, "nothing to count");
    }
}
