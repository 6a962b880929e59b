//! The one clock-driven thing of the device: sends that give up waiting for a receive.
//!
//! It has a thread, started when first needed, because the owner of such a send may be asleep.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, Once, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use super::queue_pair::Qp;
use super::sync::lock;

/// Who to kick when; the number tells equal times apart.
type Alarms = BTreeMap<(Instant, u64), Weak<Qp>>;

static ALARMS: Mutex<Alarms> = Mutex::new(BTreeMap::new());
static CHANGED: Condvar = Condvar::new();
static START: Once = Once::new();

/// Kicks `qp` at `deadline` or a little later, if it still exists.
#[cold]
pub(super) fn kick_at(deadline: Instant, qp: Weak<Qp>) {
    let mut alarms = lock(&ALARMS);
    let mut number = 0;
    while alarms.contains_key(&(deadline, number)) {
        number += 1;
    }
    alarms.insert((deadline, number), qp);
    drop(alarms);
    CHANGED.notify_one();
    START.call_once(|| {
        // Without the thread such sends wait until their owner polls after the deadline.
        let _ = thread::Builder::new().name("emulated-timer".into()).spawn(run);
    });
}

fn run() {
    let mut alarms = lock(&ALARMS);
    loop {
        let Some(entry) = alarms.first_entry() else {
            alarms = CHANGED.wait(alarms).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let (deadline, _) = *entry.key();
        let now = Instant::now();
        if now < deadline {
            alarms = CHANGED.wait_timeout(alarms, deadline - now).unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        let qp = entry.remove();
        drop(alarms);
        if let Some(qp) = qp.upgrade() {
            qp.kick();
        }
        alarms = lock(&ALARMS);
    }
}
