//! What the device itself costs. Not a test: it prints, and nothing depends on the numbers.
//!
//! `cargo test --release --lib emulated::tests::cost -- --ignored --nocapture --test-threads 1`

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Instant;

use super::harness::*;
use ibverbs_sys::{ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc};

/// A work request built once and patched, as the layer above does it.
struct Sender<'a> {
    end: &'a End,
    wr: Box<(ibv_send_wr, ibv_sge)>,
}

impl<'a> Sender<'a> {
    fn new(end: &'a End, wr: &Wr) -> Self {
        // SAFETY: integers and pointers.
        let mut raw: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        raw.opcode = wr.opcode;
        raw.num_sge = 1;
        raw.send_flags = wr.flags;
        raw.wr.rdma.remote_addr = wr.remote;
        raw.wr.rdma.rkey = wr.rkey;
        let mut wr = Box::new((raw, wr.local[0]));
        wr.0.sg_list = &raw mut wr.1;
        Self { end, wr }
    }

    #[inline(always)]
    fn post(&mut self, signalled: bool) {
        self.wr.0.send_flags = self.wr.0.send_flags & !SIGNALED | if signalled { SIGNALED } else { 0 };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair and the memory are live.
        let result = unsafe {
            (*(*self.end.qp).context).ops.post_send.unwrap_unchecked()(self.end.qp, &mut self.wr.0, &mut bad)
        };
        assert_eq!(result, 0);
    }
}

#[inline(always)]
fn poll(end: &End, cq: *mut ibverbs_sys::ibv_cq, into: &mut [ibv_wc; 16]) -> c_int {
    // SAFETY: the queue is live and there is room.
    let found = unsafe { (*(*cq).context).ops.poll_cq.unwrap_unchecked()(cq, 16, into.as_mut_ptr()) };
    assert!(found >= 0 && into[..found as usize].iter().all(ibv_wc::is_valid), "{:?}", end.state());
    found
}

/// CPU time of this thread in ns, which a loaded machine does not stretch.
fn cpu_ns() -> i64 {
    use nix::sys::time::TimeValLike;
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().num_nanoseconds()
}

fn best(runs: usize, mut run: impl FnMut() -> f64) -> String {
    let mut all: Vec<f64> = (0..runs).map(|_| run()).collect();
    all.sort_by(f64::total_cmp);
    format!("best {:.1}, median {:.1} ns", all[0], all[runs / 2])
}

#[test]
#[ignore = "prints what the device costs"]
fn stream_on_one_core() {
    const COUNT: u64 = 2_000_000;
    for (depth, every, inline) in [(64, 1, INLINE), (128, 64, INLINE), (128, 64, 0)] {
        let (a, b) = pair(Setup { send_depth: depth, cq_depth: 128, ..Setup::default() });
        let wr = Wr::new(0, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 64)]).to(&b, 0).flags(inline);
        let mut sender = Sender::new(&a, &wr);
        let mut found = [ibv_wc::default(); 16];
        let cost = best(9, || {
            let (mut posted, mut done) = (0, 0);
            let start = cpu_ns();
            while done < COUNT {
                while posted < COUNT && posted - done < u64::from(depth) {
                    posted += 1;
                    sender.post(posted % every == 0);
                }
                done += every * poll(&a, a.send_cq, &mut found) as u64;
            }
            (cpu_ns() - start) as f64 / COUNT as f64
        });
        println!("write stream, window {depth}, signal every {every}, inline {}: {cost}", inline != 0);
    }
}

#[test]
#[ignore = "prints what the device costs"]
fn post_and_poll_on_one_core() {
    const COUNT: u64 = 1_000_000;
    for op in [opcode::IBV_WR_RDMA_WRITE, opcode::IBV_WR_RDMA_READ] {
        let (a, b) = pair(Setup::default());
        let mut sender = Sender::new(&a, &Wr::new(0, op, &[a.sge(0, 64)]).to(&b, 0));
        let mut found = [ibv_wc::default(); 16];
        let cost = best(9, || {
            let start = cpu_ns();
            for _ in 0..COUNT {
                sender.post(true);
                assert_eq!(poll(&a, a.send_cq, &mut found), 1);
            }
            (cpu_ns() - start) as f64 / COUNT as f64
        });
        println!("post and poll, opcode {op}: {cost}");
    }
}

#[test]
#[ignore = "prints what the device costs"]
fn send_and_receive_on_one_core() {
    const COUNT: u64 = 1_000_000;
    let (a, b) = pair(Setup::default());
    let mut sender = Sender::new(&a, &Wr::new(0, opcode::IBV_WR_SEND, &[a.sge(0, 64)]));
    let mut sge = b.sge(4096, 64);
    let mut wr = ibv_recv_wr { wr_id: 0, next: ptr::null_mut(), sg_list: &raw mut sge, num_sge: 1 };
    let mut found = [ibv_wc::default(); 16];
    let cost = best(9, || {
        let start = cpu_ns();
        for _ in 0..COUNT {
            let mut bad = ptr::null_mut();
            // SAFETY: the queue pair and the memory are live.
            let result =
                unsafe { (*(*b.qp).context).ops.post_recv.unwrap_unchecked()(b.qp, &mut wr, &mut bad) };
            assert_eq!(result, 0);
            sender.post(true);
            assert_eq!((poll(&a, a.send_cq, &mut found), poll(&b, b.recv_cq, &mut found)), (1, 1));
        }
        (cpu_ns() - start) as f64 / COUNT as f64
    });
    println!("receive, send and poll both: {cost}");
}

/// Pins the calling thread, if there are enough cores.
fn pin(core: usize) {
    if let Some(id) = core_affinity::get_core_ids().and_then(|ids| ids.get(core).copied()) {
        core_affinity::set_for_current(id);
    }
}

/// Half of the median round trip of `rounds` exchanges, in ns.
fn half_median(rounds: usize, mut exchange: impl FnMut()) -> f64 {
    let mut all: Vec<u128> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            exchange();
            start.elapsed().as_nanos()
        })
        .collect();
    all.sort_unstable();
    all[rounds / 2] as f64 / 2.0
}

fn wait_for(end: &End, offset: usize, value: u8) {
    // SAFETY: in bounds of live memory that is only used atomically meanwhile.
    let byte = unsafe { AtomicU8::from_ptr(end.memory.add(offset)) };
    while byte.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
    }
}

#[test]
#[ignore = "prints what the device costs"]
fn ping_pong_between_two_cores() {
    const ROUNDS: usize = 200_000;
    let stamp = |round: usize| (round % 250 + 1) as u8;
    let floor = best(5, || {
        let (a, b) = (End::new(Setup::default()), End::new(Setup::default()));
        // SAFETY: as in `wait_for`.
        let (to, from) = unsafe { (AtomicU8::from_ptr(b.memory), AtomicU8::from_ptr(a.memory)) };
        thread::scope(|scope| {
            scope.spawn(|| {
                pin(1);
                for round in 0..ROUNDS {
                    wait_for(&b, 0, stamp(round));
                    from.store(stamp(round), Ordering::Release);
                }
            });
            pin(0);
            let mut round = 0;
            half_median(ROUNDS, || {
                to.store(stamp(round), Ordering::Release);
                wait_for(&a, 0, stamp(round));
                round += 1;
            })
        })
    });
    println!("two cache lines, one way: {floor}");

    let write = best(5, || {
        let (a, b) = pair(Setup { send_depth: 128, ..Setup::default() });
        let play = |end: &End, peer: &End, starts: bool| {
            pin(usize::from(!starts));
            let wr = Wr::new(0, opcode::IBV_WR_RDMA_WRITE, &[end.sge(0, 64)]).to(peer, 4096).flags(INLINE);
            let mut sender = Sender::new(end, &wr);
            let mut found = [ibv_wc::default(); 16];
            let (mut round, mut outstanding) = (0, 0);
            half_median(ROUNDS, || {
                if !starts {
                    wait_for(end, 4096 + 63, stamp(round));
                }
                end.write(63, &[stamp(round)]);
                outstanding += 1;
                sender.post(outstanding == 64);
                if starts {
                    wait_for(end, 4096 + 63, stamp(round));
                }
                if outstanding == 64 {
                    while poll(end, end.send_cq, &mut found) == 0 {}
                    outstanding = 0;
                }
                round += 1;
            })
        };
        thread::scope(|scope| {
            scope.spawn(|| play(&b, &a, false));
            play(&a, &b, true)
        })
    });
    println!("write: {write}");

    let send = best(5, || {
        let (a, b) = pair(Setup { send_depth: 128, recv_depth: 64, cq_depth: 256, ..Setup::default() });
        let play = |end: &End, starts: bool| {
            pin(usize::from(!starts));
            let mut sender =
                Sender::new(end, &Wr::new(0, opcode::IBV_WR_SEND, &[end.sge(0, 64)]).flags(INLINE));
            let mut found = [ibv_wc::default(); 16];
            let mut sge = end.sge(4096, 64);
            let mut wr = ibv_recv_wr { wr_id: 0, next: ptr::null_mut(), sg_list: &raw mut sge, num_sge: 1 };
            let mut receive = || {
                let mut bad = ptr::null_mut();
                // SAFETY: the queue pair and the memory are live.
                let result = unsafe {
                    (*(*end.qp).context).ops.post_recv.unwrap_unchecked()(end.qp, &mut wr, &mut bad)
                };
                assert_eq!(result, 0);
            };
            (0..32).for_each(|_| receive());
            let mut outstanding = 0;
            half_median(ROUNDS, || {
                if !starts {
                    while poll(end, end.recv_cq, &mut found) == 0 {}
                }
                outstanding += 1;
                sender.post(outstanding == 64);
                if starts {
                    while poll(end, end.recv_cq, &mut found) == 0 {}
                }
                receive();
                if outstanding == 64 {
                    while poll(end, end.send_cq, &mut found) == 0 {}
                    outstanding = 0;
                }
            })
        };
        thread::scope(|scope| {
            scope.spawn(|| play(&b, false));
            play(&a, true)
        })
    });
    println!("send: {send}");
}
