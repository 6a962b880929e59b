//! Compare-and-swap and fetch-and-add.

use verbmark::verbs::{Access, AtomicCap, Opcode, QpState, RemoteSlice, WcStatus};

use crate::lab::{ALL, End, Lab, MEMORY, Request, Setup};
use crate::rule::rules;

rules! {
    "Atomic operations (RC)";
    fetch_and_add_adds_and_brings: "ibv_post_send(3); IBTA 9.4.5",
        "FETCH AND ADD: A gets the 8 bytes that were there, B has their sum with the operand; nothing completes at B and no receive is taken.";
    sums_wrap: "IBTA 9.4.5",
        "FETCH AND ADD: the sum is modulo 2^64, and no carry reaches other bytes.";
    compare_and_swap_of_equals: "ibv_post_send(3); IBTA 9.4.5",
        "COMPARE AND SWAP, equal: B has the swap operand, A gets what was there.";
    compare_and_swap_of_others: "ibv_post_send(3); IBTA 9.4.5",
        "COMPARE AND SWAP, not equal: B is unchanged, A gets what is there.";
    atomics_happen_once_each_in_order: "IBTA 9.4.5; IBTA 10.8.3",
        "Sixteen FETCH AND ADDs of 1 bring sixteen consecutive numbers, in the order posted.";
    atomics_of_two_connections_exclude_each_other: "IBTA 9.4.5; ibv_query_device(3), atomic_cap",
        "Two connections add to the same 8 bytes at the same time: no addition is lost.";
    misaligned_atomic: "IBTA 9.4.5; IBTA 9.7.5.2",
        "An atomic at an address that is no multiple of 8: REM_INV_REQ_ERR, what follows is flushed; A and B in ERROR, their receives flushed, B unchanged.",
        but rxe "6.1": "It is refused at the post, and the queue pair goes on." => rxe_misaligned_atomic;
    atomic_with_a_key_of_nobody: "IBTA 9.9.3; IBTA 11.6.2",
        "An atomic with an R_Key nobody has: REM_ACCESS_ERR, both ends as above.";
    atomic_a_byte_beyond: "IBTA 9.9.3; IBTA 10.6.3",
        "An atomic whose last byte is behind the region: REM_ACCESS_ERR, both ends as above.";
    atomic_on_memory_without_the_right: "ibv_reg_mr(3); IBTA 10.6.3",
        "An atomic on a region without remote atomic, but with remote read and write: REM_ACCESS_ERR, both ends as above.";
    atomic_through_a_queue_pair_without_the_right: "ibv_modify_qp(3); IBTA 9.7.4.1",
        "An atomic on a queue pair without remote atomic: REM_INV_REQ_ERR, both ends as above.";
    atomic_on_a_queue_pair_that_takes_none: "ibv_modify_qp(3); IBTA 9.7.4.1",
        "An atomic on a queue pair that takes in no reads and atomics: REM_INV_REQ_ERR, both ends as above.";
    atomics_that_wait_are_flushed: "IBTA 10.3.1.7",
        "An atomic behind a SEND that waits, A moved to ERROR: WR_FLUSH_ERR, B unchanged.";
}

/// Where the bytes of B are that atomics work on, and where A's answers go.
const TARGET: usize = 64;
const ANSWER: usize = 1024;

const SENT: &[(u64, WcStatus)] = &[(1, WcStatus::SUCCESS)];

/// Numbers are of the host's byte order at both ends.
fn number(end: &End, offset: usize) -> u64 {
    u64::from_ne_bytes(end.bytes(offset, 8).try_into().unwrap())
}

fn set(end: &End, offset: usize, number: u64) {
    end.fill(offset, &number.to_ne_bytes());
}

fn add(a: &End, remote: RemoteSlice, addend: u64) -> Request {
    Request::fetch_add(a.slice(ANSWER, 8), remote, addend)
}

fn swap(a: &End, remote: RemoteSlice, compare: u64, with: u64) -> Request {
    Request::compare_swap(a.slice(ANSWER, 8), remote, compare, with)
}

/// Whether the device has atomics at all; a rule about them says nothing of one that has none.
fn has_atomics(lab: &Lab) -> bool {
    let has = lab.context.attr().unwrap().atomic != AtomicCap::None;
    if !has {
        lab.does_not_apply();
    }
    has
}

fn fetch_and_add_adds_and_brings(lab: &Lab) {
    if !has_atomics(lab) {
        return;
    }
    let (a, b) = lab.pair(Setup::default());
    b.receives([10]);
    set(&b, TARGET, 0x0102_0304_0506_0708);
    a.post(&add(&a, b.remote(TARGET), 0x1010)).unwrap();
    a.sends_end(SENT);
    assert_eq!(number(&a, ANSWER), 0x0102_0304_0506_0708);
    assert_eq!(number(&b, TARGET), 0x0102_0304_0506_1718);
    b.nothing_received();
    a.post(&Request::send(a.slice(0, 8))).unwrap();
    a.sends_end(SENT);
    b.receives_end(&[(10, WcStatus::SUCCESS)]);
}

fn sums_wrap(lab: &Lab) {
    if !has_atomics(lab) {
        return;
    }
    let (a, b) = lab.pair(Setup::default());
    set(&b, TARGET, u64::MAX);
    a.post(&add(&a, b.remote(TARGET), 3)).unwrap();
    a.sends_end(SENT);
    assert_eq!((number(&a, ANSWER), number(&b, TARGET)), (u64::MAX, 2));
    assert_eq!((number(&b, TARGET - 8), number(&b, TARGET + 8)), (0, 0));
}

fn compare_and_swap_of_equals(lab: &Lab) {
    if !has_atomics(lab) {
        return;
    }
    let (a, b) = lab.pair(Setup::default());
    set(&b, TARGET, 0x0102_0304_0506_0708);
    a.post(&swap(&a, b.remote(TARGET), 0x0102_0304_0506_0708, 0x1112_1314_1516_1718)).unwrap();
    a.sends_end(SENT);
    assert_eq!(number(&a, ANSWER), 0x0102_0304_0506_0708);
    assert_eq!(number(&b, TARGET), 0x1112_1314_1516_1718);
}

fn compare_and_swap_of_others(lab: &Lab) {
    if !has_atomics(lab) {
        return;
    }
    let (a, b) = lab.pair(Setup::default());
    set(&b, TARGET, 0x0102_0304_0506_0708);
    a.post(&swap(&a, b.remote(TARGET), 0x0102_0304_0506_0709, 1)).unwrap();
    a.sends_end(SENT);
    assert_eq!(number(&a, ANSWER), 0x0102_0304_0506_0708);
    assert_eq!(number(&b, TARGET), 0x0102_0304_0506_0708);
}

fn atomics_happen_once_each_in_order(lab: &Lab) {
    if !has_atomics(lab) {
        return;
    }
    let (a, b) = lab.pair(Setup::default());
    set(&b, TARGET, 100);
    for i in 0..16 {
        let answer = a.slice(ANSWER + 8 * i, 8);
        a.post(&Request::fetch_add(answer, b.remote(TARGET), 1).id(i as u64)).unwrap();
    }
    assert!(a.sent(16).iter().zip(0..).all(|(wc, id)| wc.is_success() && wc.id() == id));
    for i in 0..16 {
        assert_eq!(number(&a, ANSWER + 8 * i), 100 + i as u64);
    }
    assert_eq!(number(&b, TARGET), 116);
}

fn atomics_of_two_connections_exclude_each_other(lab: &Lab) {
    if !has_atomics(lab) {
        return;
    }
    const EACH: u64 = 200;
    let (a, b) = lab.pair(Setup::default());
    // A responder of the same protection domain as B, to which the same key is good.
    let (c, d) = (lab.end(Setup::default()), lab.end_beside(&b));
    c.connect(&d);
    d.connect(&c);
    let shared = b.register(64, ALL);
    std::thread::scope(|scope| {
        for end in [&a, &c] {
            let remote = shared.remote(8);
            scope.spawn(move || {
                for _ in 0..EACH {
                    end.post(&add(end, remote, 1)).unwrap();
                    end.sends_end(SENT);
                }
            });
        }
    });
    let mut sum = [0; 8];
    shared.region().read(8, &mut sum);
    assert_eq!(u64::from_ne_bytes(sum), 2 * EACH);
}

/// Posts both atomics, each from a new A with a request behind; checks both ends.
fn refused(lab: &Lab, setup: Setup, spoil: impl Fn(&End) -> RemoteSlice, expected: WcStatus) {
    if !has_atomics(lab) {
        return;
    }
    for opcode in [Opcode::FetchAdd, Opcode::CompareSwap] {
        let (a, b) = lab.pair(setup);
        a.receives([20]);
        b.receives([30, 31]);
        let before = b.bytes(0, MEMORY);
        let remote = spoil(&b);
        // Zero is what is there, so that a swap would be seen.
        a.post(&if opcode == Opcode::FetchAdd { add(&a, remote, 1) } else { swap(&a, remote, 0, 1) })
            .unwrap();
        let _ = a.post(&Request::write(a.slice(0, 8), b.remote(TARGET)).id(2).unsignalled());
        a.sends_end(&[(1, expected), (2, WcStatus::WR_FLUSH_ERR)]);
        a.comes_to(QpState::Error);
        b.comes_to(QpState::Error);
        a.receives_end(&[(20, WcStatus::WR_FLUSH_ERR)]);
        b.receives_end(&[(30, WcStatus::WR_FLUSH_ERR), (31, WcStatus::WR_FLUSH_ERR)]);
        assert_eq!(b.bytes(0, MEMORY), before, "memory of B changed");
    }
}

fn misaligned_atomic(lab: &Lab) {
    for offset in [1, 4] {
        refused(lab, Setup::default(), |b| b.remote(TARGET + offset), WcStatus::REM_INV_REQ_ERR);
    }
}

fn rxe_misaligned_atomic(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    for offset in [1, 4] {
        assert!(a.post(&add(&a, b.remote(TARGET + offset), 1)).is_err());
        assert!(a.post(&swap(&a, b.remote(TARGET + offset), 0, 1)).is_err());
    }
    a.post(&add(&a, b.remote(TARGET), 1)).unwrap();
    a.sends_end(SENT);
    assert_eq!(number(&b, TARGET), 1);
}

fn atomic_with_a_key_of_nobody(lab: &Lab) {
    let nobodys = |b: &End| RemoteSlice { rkey: !b.mr.rkey(), ..b.remote(TARGET) };
    refused(lab, Setup::default(), nobodys, WcStatus::REM_ACCESS_ERR);
}

fn atomic_a_byte_beyond(lab: &Lab) {
    // Regions, which end when the pair does: seven bytes are left at the last multiple of 8.
    let kept = std::cell::RefCell::new(Vec::new());
    let short = |b: &End| {
        let region = b.register(64 + 7, ALL);
        let remote = region.remote(64);
        kept.borrow_mut().push(region);
        remote
    };
    refused(lab, Setup::default(), short, WcStatus::REM_ACCESS_ERR);
}

fn atomic_on_memory_without_the_right(lab: &Lab) {
    let memory_access = Access { remote_atomic: false, ..ALL };
    let setup = Setup { memory_access, ..Setup::default() };
    refused(lab, setup, |b| b.remote(TARGET), WcStatus::REM_ACCESS_ERR);
}

fn atomic_through_a_queue_pair_without_the_right(lab: &Lab) {
    let qp_access = Access { remote_atomic: false, ..ALL };
    let setup = Setup { qp_access, ..Setup::default() };
    refused(lab, setup, |b| b.remote(TARGET), WcStatus::REM_INV_REQ_ERR);
}

fn atomic_on_a_queue_pair_that_takes_none(lab: &Lab) {
    let setup = Setup { reads_in: 0, ..Setup::default() };
    refused(lab, setup, |b| b.remote(TARGET), WcStatus::REM_INV_REQ_ERR);
}

fn atomics_that_wait_are_flushed(lab: &Lab) {
    if !has_atomics(lab) {
        return;
    }
    let (a, b) = lab.pair(Setup::default());
    a.post_all(&[Request::send(a.slice(0, 8)), add(&a, b.remote(TARGET), 1).id(2)]);
    a.modify(QpState::Error).unwrap();
    a.sends_end(&[(1, WcStatus::WR_FLUSH_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!(number(&b, TARGET), 0);
}
