//! Waiting for what must come, each time with a deadline.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbmark::verbs::{Cq, QpState, Wc, WcStatus};

/// How long anything may take. Nothing here is about speed: this only ends what would never end.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until a queue pair, whose state is asked for, is in this one.
pub fn comes_to(state: QpState, now: impl Fn() -> QpState) {
    let end = Instant::now() + DEADLINE;
    while now() != state {
        assert!(Instant::now() < end, "the queue pair is in {} and not in {state}", now());
        std::thread::yield_now();
    }
}

/// Sleeps until the descriptor is readable; false when it is late.
pub fn is_readable(descriptor: BorrowedFd<'_>, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let mut descriptors = [PollFd::new(descriptor, PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    poll(&mut descriptors, timeout).unwrap() > 0
}

/// Numbers and statuses.
pub fn gist(completions: &[Wc]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|wc| (wc.id(), wc.status())).collect()
}

/// Takes what is in the queue.
pub fn take_present(cq: &Cq) -> Vec<Wc> {
    let mut some = [Wc::EMPTY; 16];
    let mut all = Vec::new();
    loop {
        let count = cq.poll(&mut some).unwrap();
        all.extend_from_slice(&some[..count]);
        if count < some.len() {
            return all;
        }
    }
}

/// Takes this many completions, and waits for them.
pub fn take(cq: &Cq, count: usize) -> Vec<Wc> {
    let end = Instant::now() + DEADLINE;
    let mut all = Vec::new();
    let mut one = [Wc::EMPTY];
    while all.len() < count {
        if cq.poll(&mut one).unwrap() == 1 {
            all.push(one[0]);
        } else {
            assert!(
                Instant::now() < end,
                "{count} completions were expected, and these came: {:?}",
                gist(&all)
            );
            std::thread::yield_now();
        }
    }
    all
}
