//! Queue pair numbers: who is behind one, and which are free.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, Weak};

use super::limits;
use super::queue_pair::Qp;
use super::sync::lock;

/// Bits of a number that are the index of its slot.
const INDEX_BITS: u32 = limits::MAX_QP.ilog2();
/// Generations of a slot: the rest of the 24 bits. Generation 0 is left out, so that no number is 0 or 1, which
/// belong to the management of a subnet.
const GENERATIONS: u32 = 1 << (24 - INDEX_BITS);

struct Slot {
    generation: u32,
    qp: Weak<Qp>,
}

struct Slots {
    /// Grows to [`limits::MAX_QP`].
    slots: Vec<Slot>,
    /// Generation of the first number of a slot.
    first_generation: u32,
    /// Slots whose queue pair was destroyed; the one freed first comes first.
    freed: VecDeque<usize>,
}

static SLOTS: Mutex<Option<Slots>> = Mutex::new(None);

fn with_slots<T>(work: impl FnOnce(&mut Slots) -> T) -> T {
    let mut slots = lock(&SLOTS);
    work(slots.get_or_insert_with(|| Slots {
        slots: Vec::new(),
        // Another process has other numbers: whoever mixes ends of two processes up gets an error, no coincidence.
        first_generation: 1 + RandomState::new().hash_one(0) as u32 % (GENERATIONS - 1),
        freed: VecDeque::new(),
    }))
}

/// Takes a number that was not used for as long as possible; nobody is behind it yet. `None` when all are in use.
pub(super) fn take() -> Option<u32> {
    with_slots(|all| {
        let index = if all.slots.len() < limits::MAX_QP {
            all.slots.push(Slot { generation: all.first_generation, qp: Weak::new() });
            all.slots.len() - 1
        } else {
            all.freed.pop_front()?
        };
        Some(all.slots[index].generation << INDEX_BITS | index as u32)
    })
}

fn index_of(number: u32) -> usize {
    number as usize & (limits::MAX_QP - 1)
}

/// Puts `qp` behind its number.
pub(super) fn publish(qp: &Arc<Qp>) {
    with_slots(|all| all.slots[index_of(qp.number)].qp = Arc::downgrade(qp));
}

/// Gives `number` back, for good: the slot's next number is another.
pub(super) fn give_back(number: u32) {
    with_slots(|all| {
        let slot = &mut all.slots[index_of(number)];
        slot.qp = Weak::new();
        slot.generation = slot.generation % (GENERATIONS - 1) + 1;
        all.freed.push_back(index_of(number));
    });
}

/// The queue pair behind `number`.
pub(super) fn find(number: u32) -> Option<Arc<Qp>> {
    with_slots(|all| {
        let slot = all.slots.get(index_of(number))?;
        (slot.generation == number >> INDEX_BITS).then(|| slot.qp.upgrade())?
    })
}

/// Visits every queue pair there is, with no lock held.
pub(super) fn for_each(mut visit: impl FnMut(&Qp)) {
    let all: Vec<Arc<Qp>> = with_slots(|all| all.slots.iter().filter_map(|slot| slot.qp.upgrade()).collect());
    for qp in all {
        visit(&qp);
    }
}
