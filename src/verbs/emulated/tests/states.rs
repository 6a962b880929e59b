//! Transitions of a queue pair and the attributes each needs.

use super::harness::*;
use ibverbs_sys::{ibv_qp_attr, ibv_qp_attr_mask as bits, ibv_qp_state as states, ibv_qp_type};

const ALL: [states::Type; 7] = [
    states::IBV_QPS_RESET,
    states::IBV_QPS_INIT,
    states::IBV_QPS_RTR,
    states::IBV_QPS_RTS,
    states::IBV_QPS_SQD,
    states::IBV_QPS_SQE,
    states::IBV_QPS_ERR,
];

/// An end that was brought to `state`.
fn end_in(state: states::Type) -> (End, ibv_qp_attr) {
    let end = End::new(Setup::default());
    let attr = end.attributes(end.number());
    let way: &[(states::Type, u32)] = match state {
        states::IBV_QPS_RESET => &[],
        states::IBV_QPS_INIT => &[(states::IBV_QPS_INIT, TO_INIT)],
        states::IBV_QPS_RTR => &[(states::IBV_QPS_INIT, TO_INIT), (states::IBV_QPS_RTR, TO_RTR)],
        _ => &[(states::IBV_QPS_INIT, TO_INIT), (states::IBV_QPS_RTR, TO_RTR), (states::IBV_QPS_RTS, TO_RTS)],
    };
    for (state, mask) in way {
        end.modify(*state, &attr, *mask).unwrap();
    }
    if matches!(state, states::IBV_QPS_SQD | states::IBV_QPS_ERR) {
        end.modify(state, &attr, STATE).unwrap();
    }
    assert_eq!(end.state(), state);
    (end, attr)
}

fn needed(from: states::Type, to: states::Type) -> Option<u32> {
    match (from, to) {
        (states::IBV_QPS_RESET, states::IBV_QPS_INIT) => Some(TO_INIT),
        (states::IBV_QPS_INIT, states::IBV_QPS_RTR) => Some(TO_RTR),
        (states::IBV_QPS_RTR, states::IBV_QPS_RTS) => Some(TO_RTS),
        (states::IBV_QPS_INIT, states::IBV_QPS_INIT)
        | (states::IBV_QPS_RTS, states::IBV_QPS_RTS | states::IBV_QPS_SQD)
        | (states::IBV_QPS_SQD, states::IBV_QPS_SQD | states::IBV_QPS_RTS)
        | (_, states::IBV_QPS_RESET | states::IBV_QPS_ERR) => Some(STATE),
        _ => None,
    }
}

#[test]
fn there_are_these_transitions_and_no_others() {
    for from in ALL.into_iter().filter(|state| *state != states::IBV_QPS_SQE) {
        for to in ALL {
            let (end, attr) = end_in(from);
            let expected = needed(from, to);
            let result = end.modify(to, &attr, expected.unwrap_or(STATE));
            assert_eq!(result, expected.map(|_| ()).ok_or(EINVAL), "{from} to {to}");
            assert_eq!(end.state(), if expected.is_some() { to } else { from }, "{from} to {to}");
        }
    }
}

#[test]
fn each_required_attribute_is_required_and_no_other_is_taken() {
    let way = [states::IBV_QPS_RESET, states::IBV_QPS_INIT, states::IBV_QPS_RTR, states::IBV_QPS_RTS];
    for kind in [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UC, ibv_qp_type::IBV_QPT_UD] {
        let end = End::new(Setup { kind, ..Setup::default() });
        let attr = end.attributes(end.number());
        for (step, full) in way.windows(2).zip(masks(kind)) {
            let (from, to) = (step[0], step[1]);
            for bit in (0..21).map(|shift| 1 << shift).filter(|bit| full & bit != 0 && *bit != STATE) {
                assert_eq!(
                    end.modify(to, &attr, full & !bit),
                    Err(EINVAL),
                    "{kind}: {from} to {to} without {bit:#x}"
                );
            }
            let mut foreign = vec![bits::IBV_QP_ALT_PATH.0, bits::IBV_QP_CAP.0];
            if kind != ibv_qp_type::IBV_QPT_RC {
                foreign.extend(OF_RC_ALONE);
            }
            if kind == ibv_qp_type::IBV_QPT_UD {
                foreign.extend(OF_CONNECTIONS);
            } else {
                foreign.push(bits::IBV_QP_QKEY.0);
            }
            for foreign in foreign {
                assert_eq!(
                    end.modify(to, &attr, full | foreign),
                    Err(EINVAL),
                    "{kind}: {from} to {to} with {foreign:#x}"
                );
            }
            assert_eq!(end.state(), from);
            end.modify(to, &attr, full).unwrap();
        }
    }
}

/// Attributes of a peer.
const OF_CONNECTIONS: [u32; 5] = [
    bits::IBV_QP_AV.0,
    bits::IBV_QP_DEST_QPN.0,
    bits::IBV_QP_PATH_MTU.0,
    bits::IBV_QP_RQ_PSN.0,
    bits::IBV_QP_ACCESS_FLAGS.0,
];

/// Attributes of acknowledgements, reads and atomics.
const OF_RC_ALONE: [u32; 6] = [
    bits::IBV_QP_TIMEOUT.0,
    bits::IBV_QP_RETRY_CNT.0,
    bits::IBV_QP_RNR_RETRY.0,
    bits::IBV_QP_MAX_QP_RD_ATOMIC.0,
    bits::IBV_QP_MAX_DEST_RD_ATOMIC.0,
    bits::IBV_QP_MIN_RNR_TIMER.0,
];

#[test]
fn values_out_of_range_are_refused() {
    type Spoil = fn(&mut ibv_qp_attr);
    let cases: [(states::Type, states::Type, u32, &[Spoil]); 3] = [
        (
            states::IBV_QPS_RESET,
            states::IBV_QPS_INIT,
            TO_INIT,
            &[|attr| attr.port_num = 2, |attr| attr.pkey_index = 1],
        ),
        (
            states::IBV_QPS_INIT,
            states::IBV_QPS_RTR,
            TO_RTR,
            &[
                |attr| attr.path_mtu = 6,
                |attr| attr.path_mtu = 0,
                |attr| attr.dest_qp_num = 1 << 24,
                |attr| attr.max_dest_rd_atomic = 17,
                |attr| attr.min_rnr_timer = 32,
                |attr| attr.ah_attr.port_num = 0,
                |attr| attr.ah_attr.is_global = 0,
                |attr| attr.ah_attr.grh.sgid_index = 2,
            ],
        ),
        (
            states::IBV_QPS_RTR,
            states::IBV_QPS_RTS,
            TO_RTS,
            &[
                |attr| attr.timeout = 32,
                |attr| attr.retry_cnt = 8,
                |attr| attr.rnr_retry = 8,
                |attr| attr.max_rd_atomic = 17,
            ],
        ),
    ];
    for (from, to, mask, spoils) in cases {
        let (end, good) = end_in(from);
        for (number, spoil) in spoils.iter().enumerate() {
            let mut attr = good;
            spoil(&mut attr);
            assert_eq!(end.modify(to, &attr, mask), Err(EINVAL), "{from} to {to}, case {number}");
        }
        end.modify(to, &good, mask).unwrap();
    }
}

#[test]
fn the_current_state_is_compared_if_it_is_given() {
    let (end, mut attr) = end_in(states::IBV_QPS_RTR);
    let mask = TO_RTS | bits::IBV_QP_CUR_STATE.0;
    attr.cur_qp_state = states::IBV_QPS_INIT;
    assert_eq!(end.modify(states::IBV_QPS_RTS, &attr, mask), Err(EINVAL));
    attr.cur_qp_state = states::IBV_QPS_RTR;
    end.modify(states::IBV_QPS_RTS, &attr, mask).unwrap();
}

#[test]
fn posting_is_allowed_in_the_states_that_verbs_names() {
    for (state, receives, sends) in [
        (states::IBV_QPS_RESET, false, false),
        (states::IBV_QPS_INIT, true, false),
        (states::IBV_QPS_RTR, true, false),
        (states::IBV_QPS_RTS, true, true),
        (states::IBV_QPS_SQD, true, true),
        (states::IBV_QPS_ERR, true, true),
    ] {
        let (end, _) = end_in(state);
        assert_eq!(end.receive(1, &[]).is_ok(), receives, "receive in {state}");
        let wr = Wr::new(2, opcode::IBV_WR_RDMA_WRITE, &[end.sge(0, 1)]).to(&end, 8);
        assert_eq!(end.post(&[wr]), if sends { Ok(()) } else { Err((EINVAL, 0)) }, "send in {state}");
    }
}

#[test]
fn a_drained_queue_keeps_what_is_posted_until_it_runs_again() {
    let (end, attr) = end_in(states::IBV_QPS_SQD);
    end.write(0, &[1, 2]);
    let write = |id: u64| Wr::new(id, opcode::IBV_WR_RDMA_WRITE, &[end.sge(id as usize, 1)]).to(&end, 8);
    end.post(&[write(0), write(1)]).unwrap();
    assert!(end.sent().is_empty());
    assert_eq!(end.read(8, 1), [0]);
    end.modify(states::IBV_QPS_RTS, &attr, STATE).unwrap();
    assert_eq!(gist(&end.sent()), [(0, status::IBV_WC_SUCCESS), (1, status::IBV_WC_SUCCESS)]);
    assert_eq!(end.read(8, 1), [2]);
}

#[test]
fn a_queue_pair_can_be_reset_and_connected_again() {
    let (a, b) = pair(Setup { send_depth: 4, recv_depth: 4, ..Setup::default() });
    for round in 0..3 {
        for id in 0..4 {
            a.receive(id, &[]).unwrap();
        }
        // Neither these completions, nor what waits, nor the receives survive.
        a.post(&[Wr::new(1, opcode::IBV_WR_RDMA_WRITE, &[a.sge(0, 1)]).to(&b, 0)]).unwrap();
        a.post(&[Wr::new(2, opcode::IBV_WR_SEND, &[]), Wr::new(3, opcode::IBV_WR_SEND, &[])]).unwrap();
        for end in [&a, &b] {
            end.modify(states::IBV_QPS_RESET, &end.attributes(0), STATE).unwrap();
        }
        assert!(a.sent().is_empty() && a.received().is_empty());
        a.connect(&a.attributes(b.number()));
        b.connect(&b.attributes(a.number()));
        b.receive(8, &[]).unwrap();
        assert!(b.received().is_empty(), "round {round}");
        a.post(&[Wr::new(4, opcode::IBV_WR_SEND, &[])]).unwrap();
        assert_eq!(gist(&a.sent()), [(4, status::IBV_WC_SUCCESS)]);
        assert_eq!(gist(&b.received()), [(8, status::IBV_WC_SUCCESS)]);
        // Now that A's receives are gone, B waits.
        b.post(&[Wr::new(5, opcode::IBV_WR_SEND, &[])]).unwrap();
        assert!(b.sent().is_empty());
        a.receive(9, &[]).unwrap();
        assert_eq!(gist(&b.sent()), [(5, status::IBV_WC_SUCCESS)]);
        assert_eq!(gist(&a.received()), [(9, status::IBV_WC_SUCCESS)]);
    }
}

#[test]
fn a_query_tells_what_was_set() {
    let (end, attr) = end_in(states::IBV_QPS_RTS);
    // SAFETY: the queue pair is live.
    let told = unsafe { end.provider.query_qp(end.qp, STATE as i32) }.unwrap();
    assert_eq!((told.qp_state, told.cur_qp_state), (states::IBV_QPS_RTS, states::IBV_QPS_RTS));
    assert_eq!((told.sq_psn, told.rq_psn, told.dest_qp_num), (attr.sq_psn, attr.rq_psn, attr.dest_qp_num));
    assert_eq!(
        (told.timeout, told.retry_cnt, told.rnr_retry),
        (attr.timeout, attr.retry_cnt, attr.rnr_retry)
    );
    assert_eq!((told.path_mtu, told.port_num), (attr.path_mtu, attr.port_num));
    assert_eq!((told.cap.max_send_wr, told.cap.max_inline_data), (16, 220));
    // SAFETY: as above.
    assert_eq!(unsafe { (*end.qp).state }, states::IBV_QPS_RTS);
}
