//! Two threads at once. Nothing here depends on who is faster.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::super::queue_pair::Qp;
use super::harness::*;
use ibverbs_sys::{ibv_cq, ibv_qp_state as states, ibv_qp_type};

/// Rounds of a test that wants many; fewer where every access is checked.
const ROUNDS: u64 = if cfg!(debug_assertions) { 5_000 } else { 20_000 };

/// One completion, by polling with a look at the other threads. Two minutes mean that it was lost, or that whoever was to
/// cause it has failed.
fn spin(end: &End, cq: *mut ibv_cq) -> (u64, status::Type) {
    let start = Instant::now();
    loop {
        if let Some(found) = gist(&end.poll(cq, 1).unwrap()).pop() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "no completion");
        thread::yield_now();
    }
}

/// One completion, by sleeping: arm, look, sleep.
fn sleep(end: &End, cq: *mut ibv_cq) -> (u64, status::Type) {
    loop {
        if let Some(found) = gist(&end.poll(cq, 1).unwrap()).pop() {
            return found;
        }
        end.arm(cq, false);
        if let Some(found) = gist(&end.poll(cq, 1).unwrap()).pop() {
            return found;
        }
        end.sleep();
    }
}

fn ping_pong(wait: fn(&End, *mut ibv_cq) -> (u64, status::Type), early: bool) {
    let (a, b) = pair(Setup { events: true, cq_depth: 8, send_depth: 4, recv_depth: 4, ..Setup::default() });
    let play = |end: &End, starts: bool| {
        for round in 0..ROUNDS {
            let stamp = round.to_ne_bytes();
            if early || starts {
                end.receive(round, &[end.sge(64, 8)]).unwrap();
            }
            if !starts {
                if !early {
                    // The peer is sending already, or will: it must be carried on by this.
                    end.receive(round, &[end.sge(64, 8)]).unwrap();
                }
                assert_eq!(wait(end, end.recv_cq), (round, status::IBV_WC_SUCCESS));
                assert_eq!(end.read(64, 8), stamp);
            }
            end.write(0, &stamp);
            end.post(&[Wr::new(round, opcode::IBV_WR_SEND, &[end.sge(0, 8)])]).unwrap();
            assert_eq!(wait(end, end.send_cq), (round, status::IBV_WC_SUCCESS));
            if starts {
                assert_eq!(wait(end, end.recv_cq), (round, status::IBV_WC_SUCCESS));
                assert_eq!(end.read(64, 8), stamp);
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| play(&a, true));
        play(&b, false);
    });
}

#[test]
fn no_wake_up_is_lost_in_a_ping_pong_of_sleepers() {
    ping_pong(sleep, true);
}

#[test]
fn no_wake_up_is_lost_when_receives_come_late() {
    ping_pong(sleep, false);
}

#[test]
fn a_ping_pong_of_pollers_keeps_its_payload() {
    ping_pong(spin, false);
}

#[test]
fn a_fast_sender_and_a_slow_receiver_lose_nothing() {
    for wait in [spin, sleep] {
        let (a, b) = pair(Setup { events: true, cq_depth: 64, recv_depth: 4, ..Setup::default() });
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut posted, mut done) = (0_u64, 0);
                while done < ROUNDS {
                    while posted < ROUNDS && posted - done < 16 {
                        let flags = SIGNALED | INLINE;
                        a.write(0, &posted.to_ne_bytes());
                        let wr = Wr::new(posted, opcode::IBV_WR_SEND, &[a.sge(0, 8)]).flags(flags);
                        a.post(&[wr]).unwrap();
                        posted += 1;
                    }
                    assert_eq!(wait(&a, a.send_cq), (done, status::IBV_WC_SUCCESS));
                    done += 1;
                }
            });
            for round in 0..ROUNDS {
                // One receive at a time: the sender waits nearly always.
                b.receive(round, &[b.sge(0, 8)]).unwrap();
                assert_eq!(wait(&b, b.recv_cq), (round, status::IBV_WC_SUCCESS));
                assert_eq!(b.read(0, 8), round.to_ne_bytes());
            }
        });
    }
}

#[test]
fn whoever_sees_the_last_byte_of_a_write_sees_all() {
    const LEN: usize = 8192;
    let (a, b) = pair(Setup::default());
    let last = |end: &End| {
        // SAFETY: inside the memory of the end, and both sides use it atomically.
        unsafe { AtomicU8::from_ptr(end.memory.add(1000 + LEN - 1)) }.load(Ordering::Acquire)
    };
    let play = |end: &End, peer: &End, starts: bool| {
        for round in 0..ROUNDS {
            let stamp = (round % 250 + 1) as u8;
            let wait = || {
                let mut looks = 0;
                while last(end) != stamp {
                    looks += 1;
                    if looks % 1000 == 0 {
                        thread::yield_now();
                    }
                }
                assert_eq!(end.read(1000, LEN - 1), vec![stamp; LEN - 1]);
            };
            if !starts {
                wait();
            }
            end.write(0, &[stamp; LEN]);
            end.post(&[Wr::new(round, opcode::IBV_WR_RDMA_WRITE, &[end.sge(0, LEN)]).to(peer, 1000)])
                .unwrap();
            assert_eq!(spin(end, end.send_cq), (round, status::IBV_WC_SUCCESS));
            if starts {
                wait();
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| play(&a, &b, true));
        play(&b, &a, false);
    });
}

#[test]
fn a_sender_that_sleeps_right_after_its_post_is_carried_on() {
    // It arms before it posts and polls nothing in between, so only the receive can carry it on. Both sides act at the
    // same time, for the moments in which each has almost seen the other.
    let (a, b) = pair(Setup { events: true, ..Setup::default() });
    const MANY: u64 = ROUNDS * 10;
    let turn = AtomicU64::new(0);
    let meet = |round: u64| {
        turn.fetch_add(1, Ordering::AcqRel);
        while turn.load(Ordering::Acquire) < 2 * round + 2 {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..MANY {
                meet(round);
                (0..round % 32).for_each(|_| std::hint::spin_loop());
                b.receive(round, &[]).unwrap();
                assert_eq!(spin(&b, b.recv_cq), (round, status::IBV_WC_SUCCESS));
                b.post(&[Wr::new(round, opcode::IBV_WR_SEND, &[])]).unwrap();
                assert_eq!(spin(&b, b.send_cq), (round, status::IBV_WC_SUCCESS));
            }
        });
        for round in 0..MANY {
            a.receive(round, &[]).unwrap();
            a.arm(a.recv_cq, false);
            meet(round);
            let flags = if round % 8 == 7 { SIGNALED } else { 0 };
            a.post(&[Wr::new(round, opcode::IBV_WR_SEND, &[]).flags(flags)]).unwrap();
            a.sleep();
            assert_eq!(gist(&a.received()), [(round, status::IBV_WC_SUCCESS)]);
            a.sent();
        }
    });
}

#[test]
fn whoever_holds_a_send_queue_finds_the_note_of_a_receive_posted_meanwhile() {
    let (a, b) = pair(Setup { events: true, ..Setup::default() });
    a.arm(a.send_cq, false);
    a.post(&[Wr::new(1, opcode::IBV_WR_SEND, &[])]).unwrap();
    // SAFETY: the queue pair is live.
    let qp = unsafe { Qp::from_raw(a.qp) };
    let held = qp.send.lock();
    b.receive(2, &[]).unwrap();
    assert_eq!(a.event(), None);
    qp.unlock_send(held);
    assert_eq!(a.event(), Some(a.send_cq));
    assert_eq!(gist(&b.received()), [(2, status::IBV_WC_SUCCESS)]);
}

#[test]
fn an_end_can_be_torn_down_while_its_peer_writes_into_it() {
    for round in 0..30 {
        let (a, mut b) = pair(Setup::default());
        let (go, gone) = (Barrier::new(2), AtomicBool::new(false));
        let target = Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, MEMORY)]).to(&b, 0);
        let seen = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                go.wait();
                loop {
                    let too_late = gone.load(Ordering::Acquire);
                    a.post(std::slice::from_ref(&target)).unwrap();
                    match spin(&a, a.send_cq) {
                        (_, status::IBV_WC_SUCCESS) => assert!(!too_late, "written after the end"),
                        (_, other) => return other,
                    }
                }
            });
            go.wait();
            for _ in 0..round * 1000 {
                std::hint::spin_loop();
            }
            // One or the other ends it, and a write that was under way is over.
            if round % 2 == 0 {
                b.deregister();
            } else {
                b.destroy_qp();
            }
            gone.store(true, Ordering::Release);
            b.write(0, &[0xee; MEMORY]);
            let seen = writer.join().unwrap();
            assert!(
                b.read(0, MEMORY).iter().all(|byte| *byte == 0xee),
                "round {round}: written after the end"
            );
            // The memory is really gone before the writer's end is.
            drop(b);
            seen
        });
        assert!(matches!(seen, status::IBV_WC_REM_ACCESS_ERR | status::IBV_WC_RETRY_EXC_ERR), "{seen}");
    }
}

#[test]
fn an_end_can_be_torn_down_while_it_is_sent_what_nobody_acknowledges() {
    for round in 0..30 {
        let kind = if round % 4 < 2 { ibv_qp_type::IBV_QPT_UC } else { ibv_qp_type::IBV_QPT_UD };
        let setup = Setup { kind, recv_depth: 1024, cq_depth: 2048, ..Setup::default() };
        let (a, mut b) = pair(setup);
        // SAFETY: the domain is live.
        let ah = unsafe { a.provider.create_ah(a.pd, &mut a.attributes(0).ah_attr) }.unwrap();
        let mut send = Wr::new(1, opcode::IBV_WR_SEND, &[a.sge(0, 4096)]);
        if kind == ibv_qp_type::IBV_QPT_UD {
            send = send.datagram(ah, b.number(), QKEY);
        }
        for id in 0..1024 {
            b.receive(id, &[b.sge(0, 5000)]).unwrap();
        }
        let (go, gone) = (Barrier::new(2), AtomicBool::new(false));
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                go.wait();
                let mut late = 0;
                while late < 20 {
                    late += u32::from(gone.load(Ordering::Acquire));
                    a.post(std::slice::from_ref(&send)).unwrap();
                    assert_eq!(spin(&a, a.send_cq), (1, status::IBV_WC_SUCCESS));
                }
            });
            go.wait();
            for _ in 0..round * 1000 {
                std::hint::spin_loop();
            }
            if round % 2 == 0 {
                b.deregister();
            } else {
                b.destroy_qp();
            }
            b.write(0, &[0xee; MEMORY]);
            gone.store(true, Ordering::Release);
            sender.join().unwrap();
            assert!(b.read(0, MEMORY).iter().all(|byte| *byte == 0xee), "round {round}");
            drop(b);
        });
        // SAFETY: the handle is live and not used again.
        unsafe { a.provider.destroy_ah(ah) }.unwrap();
    }
}

#[test]
fn every_receive_is_flushed_once_and_in_order_whenever_the_error_comes() {
    for round in 0..300 {
        let (a, _b) = pair(Setup { recv_depth: 64, ..Setup::default() });
        let go = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                go.wait();
                for id in 0..40 {
                    a.receive(id, &[]).unwrap();
                }
            });
            go.wait();
            for _ in 0..round {
                std::hint::spin_loop();
            }
            a.to_error();
        });
        let expected: Vec<_> = (0..40).map(|id| (id, status::IBV_WC_WR_FLUSH_ERR)).collect();
        assert_eq!(gist(&a.received()), expected, "round {round}");
    }
}

#[test]
fn every_send_completes_once_and_in_order_whenever_the_error_comes() {
    for round in 0..300 {
        let (a, b) = pair(Setup { send_depth: 64, ..Setup::default() });
        let go = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                go.wait();
                for id in 0..40 {
                    // Every fourth needs a receive, and there is one for the first of them only.
                    let op = if id % 4 == 3 { opcode::IBV_WR_SEND } else { opcode::IBV_WR_RDMA_WRITE };
                    a.post(&[Wr::new(id, op, &[a.sge(0, 1)]).to(&b, 0)]).unwrap();
                }
            });
            b.receive(1, &[b.sge(0, 1)]).unwrap();
            go.wait();
            for _ in 0..round {
                std::hint::spin_loop();
            }
            a.to_error();
        });
        let seen = gist(&a.sent());
        let ids: Vec<u64> = seen.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, (0..40).collect::<Vec<_>>(), "round {round}");
        let good = seen.iter().take_while(|(_, status)| *status == status::IBV_WC_SUCCESS).count();
        assert!(good <= 7 && seen[good..].iter().all(|(_, status)| *status == status::IBV_WC_WR_FLUSH_ERR));
        assert_eq!(a.state(), states::IBV_QPS_ERR);
    }
}

#[test]
fn many_queue_pairs_may_share_a_completion_queue() {
    let main = End::new(Setup { cq_depth: 64, events: true, ..Setup::default() });
    let peers: Vec<End> = (0..3).map(|_| End::new(Setup::default())).collect();
    // Each peer sends to a queue pair of its own, and all of those complete in one queue.
    // SAFETY: the domain and the queues are live; the queue pairs are destroyed below.
    let qps: Vec<_> = peers
        .iter()
        .map(|_| unsafe { main.provider.create_qp(main.pd, &mut main.init()) }.unwrap())
        .collect();
    let mut ends: Vec<End> = Vec::new();
    let mut spares = Vec::new();
    for (qp, peer) in qps.iter().zip(&peers) {
        let mut end = End::new(Setup::default());
        spares.push(std::mem::replace(&mut end.qp, *qp));
        end.connect(&end.attributes(peer.number()));
        peer.connect(&peer.attributes(end.number()));
        ends.push(end);
    }
    let each = ROUNDS / 10;
    thread::scope(|scope| {
        for peer in &peers {
            scope.spawn(move || {
                for round in 0..each {
                    peer.post(&[Wr::new(round, opcode::IBV_WR_SEND, &[])]).unwrap();
                    assert_eq!(spin(peer, peer.send_cq), (round, status::IBV_WC_SUCCESS));
                }
            });
        }
        let mut next = [0_u64; 3];
        for (index, end) in ends.iter().enumerate() {
            end.receive(index as u64, &[]).unwrap();
        }
        for _ in 0..each * 3 {
            let (id, status) = sleep(&main, main.recv_cq);
            assert_eq!(status, status::IBV_WC_SUCCESS);
            next[id as usize] += 1;
            ends[id as usize].receive(id, &[]).unwrap();
        }
        assert_eq!(next, [each; 3]);
    });
    for (end, spare) in ends.iter_mut().zip(spares) {
        end.destroy_qp();
        end.qp = spare;
    }
}
