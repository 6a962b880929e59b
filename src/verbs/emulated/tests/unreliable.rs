//! Connections on which nothing is acknowledged.

use super::super::faults::Faults;
use super::harness::*;
use ibverbs_sys::{ibv_qp_state as states, ibv_qp_type};

const OK: status::Type = status::IBV_WC_SUCCESS;

fn uc() -> Setup {
    Setup { kind: ibv_qp_type::IBV_QPT_UC, ..Setup::default() }
}

fn dropped(end: &End) -> u64 {
    // SAFETY: the context is live.
    unsafe { end.provider.dropped(end.context) }.unwrap()
}

fn send(a: &End, id: u64, len: usize) -> Wr {
    Wr::new(id, opcode::IBV_WR_SEND, &[a.sge(0, len)])
}

#[test]
fn what_has_a_receive_arrives() {
    for device in ["emu0", "emu1"] {
        let (a, b) = pair(Setup { device, ..uc() });
        let payload = pattern(3, 3000);
        a.write(0, &payload);
        for (id, op) in
            [opcode::IBV_WR_SEND, opcode::IBV_WR_SEND_WITH_IMM, opcode::IBV_WR_RDMA_WRITE_WITH_IMM]
                .into_iter()
                .enumerate()
        {
            b.write(4000, &[0; 3000]);
            b.receive(9, &[b.sge(4000, 3000)]).unwrap();
            a.post(&[Wr::new(id as u64, op, &[a.sge(0, 3000)]).to(&b, 4000)]).unwrap();
            assert_eq!(gist(&a.sent()), [(id as u64, OK)]);
            assert_eq!(gist(&b.received()), [(9, OK)], "{op}");
            assert_eq!(b.read(4000, 3000), payload, "{op}");
        }
        a.post(&[Wr::new(7, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 3000)]).to(&b, 9000)]).unwrap();
        assert_eq!((gist(&a.sent()), b.read(9000, 3000)), (vec![(7, OK)], payload));
        assert_eq!((dropped(&a), dropped(&b)), (0, 0));
    }
}

#[test]
fn what_has_no_receive_is_dropped_and_counted() {
    let (a, b) = pair(uc());
    a.write(0, b"one");
    a.post(&[send(&a, 1, 3)]).unwrap();
    let write = Wr::new(2, opcode::IBV_WR_RDMA_WRITE_WITH_IMM, &[a.sge(0, 3)]).to(&b, 50);
    a.post(&[write]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, OK), (2, OK)]);
    assert_eq!((dropped(&a), dropped(&b)), (0, 2));
    assert_eq!(b.read(50, 3), [0; 3], "nothing of it is written");
    // The next one is taken, whatever was lost before it.
    a.write(0, b"two");
    b.receive(5, &[b.sge(0, 3)]).unwrap();
    assert!(b.received().is_empty());
    a.post(&[send(&a, 3, 3)]).unwrap();
    assert_eq!((gist(&b.received()), b.read(0, 3)), (vec![(5, OK)], b"two".to_vec()));
}

#[test]
fn what_its_target_does_not_allow_is_dropped_and_both_go_on() {
    let (a, b) = pair(uc());
    b.receive(5, &[b.sge(0, 8)]).unwrap();
    let mut foreign = Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 3)]).to(&b, 0);
    foreign.rkey = foreign.rkey.wrapping_add(1);
    let beyond = Wr::new(2, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 3)]).to(&b, MEMORY - 2);
    let too_long = send(&a, 3, 9);
    a.post(&[foreign, beyond, too_long]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(dropped(&b), 3);
    assert!(b.received().is_empty(), "the receive is still there");
    a.post(&[send(&a, 4, 8)]).unwrap();
    assert_eq!(gist(&b.received()), [(5, OK)]);
    assert_eq!((a.state(), b.state()), (states::IBV_QPS_RTS, states::IBV_QPS_RTS));
}

#[test]
fn a_receive_that_cannot_be_used_fails_its_owner_and_nobody_else() {
    let (a, b) = pair(uc());
    let mut foreign = b.sge(0, 8);
    foreign.lkey = 0;
    b.receive(5, &[foreign]).unwrap();
    a.post(&[send(&a, 1, 8)]).unwrap();
    assert_eq!(gist(&a.sent()), [(1, OK)]);
    assert_eq!(gist(&b.received()), [(5, status::IBV_WC_LOC_PROT_ERR)]);
    assert_eq!((a.state(), b.state()), (states::IBV_QPS_RTS, states::IBV_QPS_ERR));
}

#[test]
fn a_way_that_leads_nowhere_takes_everything() {
    let gone = {
        let (a, b) = pair(uc());
        drop(b);
        a
    };
    let down = pair(Setup { faults: Faults { port_down: true, ..Faults::default() }, ..uc() });
    let stranger = End::new(uc());
    stranger.connect(&stranger.attributes(0x00ff_ffff));
    let reliable = pair(Setup::default());
    let mixed = End::new(uc());
    mixed.connect(&mixed.attributes(reliable.0.number()));
    for end in [&gone, &down.0, &stranger, &mixed] {
        end.post(&[send(end, 1, 8)]).unwrap();
        assert_eq!(gist(&end.sent()), [(1, OK)]);
    }
}

#[test]
fn reads_and_atomics_are_not_posted() {
    let (a, b) = pair(uc());
    for op in
        [opcode::IBV_WR_RDMA_READ, opcode::IBV_WR_ATOMIC_CMP_AND_SWP, opcode::IBV_WR_ATOMIC_FETCH_AND_ADD]
    {
        let wr = Wr::new(1, op, &[a.sge(0, 8)]).to(&b, 0);
        assert_eq!(a.post(&[send(&a, 0, 1), wr]), Err((EINVAL, 1)), "{op}");
    }
    assert_eq!(a.sent().len(), 3);
}

#[test]
fn a_failed_send_stops_the_send_queue_alone_and_it_can_be_brought_back() {
    let (a, b) = pair(uc());
    let mut foreign = a.sge(0, 8);
    foreign.lkey = 0;
    a.receive(9, &[a.sge(100, 8)]).unwrap();
    a.post(&[Wr::new(1, opcode::IBV_WR_SEND, &[foreign]).flags(0), send(&a, 2, 8)]).unwrap();
    a.post(&[send(&a, 3, 8)]).unwrap();
    let flushed = status::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(gist(&a.sent()), [(1, status::IBV_WC_LOC_PROT_ERR), (2, flushed), (3, flushed)]);
    assert_eq!(a.state(), states::IBV_QPS_SQE);
    b.post(&[send(&b, 4, 8)]).unwrap();
    assert_eq!(gist(&a.received()), [(9, OK)], "receives go on");
    a.modify(states::IBV_QPS_RTS, &a.attributes(0), STATE).unwrap();
    b.receive(6, &[b.sge(100, 8)]).unwrap();
    a.post(&[send(&a, 5, 8)]).unwrap();
    assert_eq!((gist(&a.sent()), gist(&b.received())), (vec![(5, OK)], vec![(6, OK)]));
}

#[test]
fn the_longest_message_is_the_ports_and_faults_are_seen_here_too() {
    let faults = Faults { max_message: 100, corrupt: Some(2), ..Faults::default() };
    let (a, b) = pair(Setup { faults, ..uc() });
    for id in 0..2 {
        b.receive(id, &[b.sge(100 * id as usize, 100)]).unwrap();
        a.post(&[send(&a, id, 100)]).unwrap();
    }
    assert_eq!((b.read(0, 100), b.read(100, 100) == vec![0; 100]), (vec![0; 100], false));
    a.post(&[send(&a, 2, 101)]).unwrap();
    assert_eq!(gist(&a.sent())[2], (2, status::IBV_WC_LOC_LEN_ERR));
}

#[test]
fn a_drained_queue_sends_when_it_runs_again() {
    let (a, b) = pair(uc());
    b.receive(5, &[b.sge(0, 8)]).unwrap();
    a.modify(states::IBV_QPS_SQD, &a.attributes(0), STATE).unwrap();
    a.post(&[send(&a, 1, 8), send(&a, 2, 8)]).unwrap();
    assert!(a.sent().is_empty() && b.received().is_empty());
    a.modify(states::IBV_QPS_RTS, &a.attributes(0), STATE).unwrap();
    assert_eq!((gist(&a.sent()), gist(&b.received())), (vec![(1, OK), (2, OK)], vec![(5, OK)]));
    assert_eq!(dropped(&b), 1);
}
