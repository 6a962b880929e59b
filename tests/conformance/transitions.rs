//! States of a queue pair, and what each transition needs.

use verbmark::verbs::{Access, Address, Attributes, Grh, Opcode, QpState, WcStatus};

use crate::lab::{End, Lab, Request, Setup};
use crate::rule::rules;

rules! {
    "States and transitions (RC)";
    usual_way_to_rts: "ibv_modify_qp(3); IBTA 10.3.1",
        "RESET, INIT, RTR and RTS follow each other, and a query tells the state.";
    init_needs_each_of_its_attributes: "ibv_modify_qp(3), table for RC",
        "To INIT without the P_Key index, the port or the access rights: an error, and the state stays RESET.";
    rtr_needs_each_of_its_attributes: "ibv_modify_qp(3), table for RC",
        "To RTR without the address, path MTU, destination QP, receive PSN, reads taken in or RNR timer: an error, and the state stays INIT.";
    rts_needs_each_of_its_attributes: "ibv_modify_qp(3), table for RC",
        "To RTS without the send PSN, timeout, retry count, RNR retry count or outstanding reads: an error, and the state stays RTR.";
    init_takes_no_others: "IBTA 11.2.5.2, state transition properties",
        "To INIT with an attribute that this transition does not allow: an error, and the state stays RESET.";
    rtr_takes_no_others: "IBTA 11.2.5.2, state transition properties",
        "To RTR with an attribute that this transition does not allow: an error, and the state stays INIT.";
    rts_takes_no_others: "IBTA 11.2.5.2, state transition properties",
        "To RTS with an attribute that this transition does not allow: an error, and the state stays RTR.";
    no_state_is_skipped: "IBTA 10.3.1",
        "RESET to RTR or RTS, and INIT to RTS, are errors whatever is given with them.";
    no_way_back_but_to_reset: "IBTA 10.3.1",
        "RTR to INIT, RTS to INIT or RTR, and ERROR to INIT, RTR or RTS are errors.";
    reset_from_every_state: "IBTA 10.3.1",
        "INIT, RTR, RTS and ERROR all lead to RESET, with nothing but the state given.";
    error_from_every_state: "IBTA 10.3.1",
        "INIT, RTR and RTS lead to ERROR, with nothing but the state given.";
    reset_forgets_and_connects_anew: "IBTA 10.3.1.1",
        "After RESET no receive of before is left or completes, and the queue pair connects and works again.";
    a_refused_change_changes_nothing: "ibv_modify_qp(3), notes",
        "A transition refused for one attribute has taken over no other: the rights are those of before.";
    init_again_changes_rights: "IBTA 11.2.5.2, INIT to INIT",
        "INIT to INIT changes the access rights.";
    rights_change_while_connected: "IBTA 11.2.5.2, RTS to RTS",
        "RTS to RTS takes the right of RDMA WRITE away; the next one ends with REM_INV_REQ_ERR.";
    no_such_port: "IBTA 11.2.5.2, result \"invalid port\"",
        "To INIT with a port the device does not have: an error, and the state stays RESET.";
    no_such_pkey: "IBTA 11.2.5.2, result \"P_Key index out of range\"",
        "To INIT with an index outside of the P_Key table: an error, and the state stays RESET.",
        but rxe "6.1": "Any index is taken." => rxe_no_such_pkey;
    no_such_source_gid: "IBTA 11.2.5.2, result \"invalid address vector\"",
        "To RTR with an index outside of the GID table: an error, and the state stays INIT.";
    roce_needs_a_global_route: "ibv_modify_qp(3), notes; IBTA A16 (RoCE)",
        "On Ethernet, to RTR without a global route: an error, and the state stays INIT.";
    infiniband_needs_no_global_route: "IBTA 8.3",
        "On InfiniBand within a subnet, a connection by LID works, and one by LID and GID does too.";
    drained_sends_wait: "IBTA 10.3.1.5",
        "In SQD a send is accepted and not begun; back in RTS it is sent.",
        but rxe "6.1": "Back in RTS it is sent only when another one is posted." => rxe_drained_sends_wait;
}

/// An end in this state, and the peer it would talk with.
fn in_state(lab: &Lab, state: QpState) -> (End, End) {
    let (a, b) = (lab.end(Setup::default()), lab.end(Setup::default()));
    for (step, attributes) in [
        (QpState::Init, a.init().into()),
        (QpState::Rtr, a.rtr(&b).into()),
        (QpState::Rts, Attributes::from(a.rts())),
    ] {
        if a.state() == state || state == QpState::Error {
            break;
        }
        a.modify(attributes).unwrap_or_else(|error| panic!("to {step}: {error}"));
    }
    if state == QpState::Error {
        a.modify(a.init()).unwrap();
        a.modify(QpState::Error).unwrap();
    }
    assert_eq!(a.state(), state);
    (a, b)
}

/// Fails if the device accepts any of these; each must leave the state as it is.
fn refused<const N: usize>(a: &End, attempts: [(&str, Attributes); N]) {
    let before = a.state();
    for (what, attributes) in attempts {
        assert!(a.modify(attributes).is_err(), "{before}: {what} was accepted");
        assert_eq!(a.state(), before, "{what}");
    }
}

fn usual_way_to_rts(lab: &Lab) {
    let (a, b) = (lab.end(Setup::default()), lab.end(Setup::default()));
    assert_eq!(a.state(), QpState::Reset);
    a.qp.to_init(&a.init()).unwrap();
    assert_eq!(a.state(), QpState::Init);
    a.qp.to_rtr(&a.rtr(&b)).unwrap();
    assert_eq!(a.state(), QpState::Rtr);
    a.qp.to_rts(&a.rts()).unwrap();
    assert_eq!(a.state(), QpState::Rts);
}

fn init_needs_each_of_its_attributes(lab: &Lab) {
    let (a, _) = in_state(lab, QpState::Reset);
    let all = Attributes::from(a.init());
    refused(
        &a,
        [
            ("no P_Key index", Attributes { pkey_index: None, ..all }),
            ("no port", Attributes { port: None, ..all }),
            ("no rights", Attributes { access: None, ..all }),
        ],
    );
    a.modify(all).unwrap();
}

fn rtr_needs_each_of_its_attributes(lab: &Lab) {
    let (a, b) = in_state(lab, QpState::Init);
    let all = Attributes::from(a.rtr(&b));
    refused(
        &a,
        [
            ("no address", Attributes { address: None, ..all }),
            ("no path MTU", Attributes { path_mtu: None, ..all }),
            ("no destination", Attributes { dest_qpn: None, ..all }),
            ("no PSN", Attributes { rq_psn: None, ..all }),
            ("no reads", Attributes { max_dest_rd_atomic: None, ..all }),
            ("no RNR timer", Attributes { min_rnr_timer: None, ..all }),
        ],
    );
    a.modify(all).unwrap();
}

fn rts_needs_each_of_its_attributes(lab: &Lab) {
    let (a, _) = in_state(lab, QpState::Rtr);
    let all = Attributes::from(a.rts());
    refused(
        &a,
        [
            ("no PSN", Attributes { sq_psn: None, ..all }),
            ("no timeout", Attributes { timeout: None, ..all }),
            ("no retry count", Attributes { retry_count: None, ..all }),
            ("no RNR retry count", Attributes { rnr_retry: None, ..all }),
            ("no reads", Attributes { max_rd_atomic: None, ..all }),
        ],
    );
    a.modify(all).unwrap();
}

fn init_takes_no_others(lab: &Lab) {
    let (a, b) = in_state(lab, QpState::Reset);
    let (all, rtr, rts) =
        (Attributes::from(a.init()), Attributes::from(a.rtr(&b)), Attributes::from(a.rts()));
    refused(
        &a,
        [
            ("an address", Attributes { address: rtr.address, ..all }),
            ("a path MTU", Attributes { path_mtu: rtr.path_mtu, ..all }),
            ("a destination", Attributes { dest_qpn: rtr.dest_qpn, ..all }),
            ("a timeout", Attributes { timeout: rts.timeout, ..all }),
            ("a PSN", Attributes { sq_psn: rts.sq_psn, ..all }),
            ("a Q_Key", Attributes { qkey: Some(1), ..all }),
        ],
    );
    a.modify(all).unwrap();
}

fn rtr_takes_no_others(lab: &Lab) {
    let (a, b) = in_state(lab, QpState::Init);
    let (all, init, rts) =
        (Attributes::from(a.rtr(&b)), Attributes::from(a.init()), Attributes::from(a.rts()));
    refused(
        &a,
        [
            ("a port", Attributes { port: init.port, ..all }),
            ("a PSN", Attributes { sq_psn: rts.sq_psn, ..all }),
            ("a timeout", Attributes { timeout: rts.timeout, ..all }),
            ("a retry count", Attributes { retry_count: rts.retry_count, ..all }),
            ("reads out", Attributes { max_rd_atomic: rts.max_rd_atomic, ..all }),
            ("a Q_Key", Attributes { qkey: Some(1), ..all }),
        ],
    );
    a.modify(all).unwrap();
}

fn rts_takes_no_others(lab: &Lab) {
    let (a, b) = in_state(lab, QpState::Rtr);
    let (all, init, rtr) =
        (Attributes::from(a.rts()), Attributes::from(a.init()), Attributes::from(a.rtr(&b)));
    refused(
        &a,
        [
            ("a port", Attributes { port: init.port, ..all }),
            ("a P_Key index", Attributes { pkey_index: init.pkey_index, ..all }),
            ("an address", Attributes { address: rtr.address, ..all }),
            ("a path MTU", Attributes { path_mtu: rtr.path_mtu, ..all }),
            ("a destination", Attributes { dest_qpn: rtr.dest_qpn, ..all }),
            ("a receive PSN", Attributes { rq_psn: rtr.rq_psn, ..all }),
            ("a Q_Key", Attributes { qkey: Some(1), ..all }),
        ],
    );
    a.modify(all).unwrap();
}

fn no_state_is_skipped(lab: &Lab) {
    let (a, b) = in_state(lab, QpState::Reset);
    refused(&a, [("to RTR", a.rtr(&b).into()), ("to RTS", a.rts().into())]);
    let (a, _) = in_state(lab, QpState::Init);
    refused(&a, [("to RTS", a.rts().into())]);
}

fn no_way_back_but_to_reset(lab: &Lab) {
    let (a, _) = in_state(lab, QpState::Rtr);
    refused(&a, [("to INIT", a.init().into())]);
    for state in [QpState::Rts, QpState::Error] {
        let (a, b) = in_state(lab, state);
        refused(&a, [("to INIT", a.init().into()), ("to RTR", a.rtr(&b).into())]);
    }
    let (a, _) = in_state(lab, QpState::Error);
    refused(&a, [("to RTS", a.rts().into())]);
}

fn reset_from_every_state(lab: &Lab) {
    for state in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Error] {
        let (a, _) = in_state(lab, state);
        a.modify(QpState::Reset).unwrap_or_else(|error| panic!("from {state}: {error}"));
        assert_eq!(a.state(), QpState::Reset, "from {state}");
    }
}

fn error_from_every_state(lab: &Lab) {
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let (a, _) = in_state(lab, state);
        a.modify(QpState::Error).unwrap_or_else(|error| panic!("from {state}: {error}"));
        assert_eq!(a.state(), QpState::Error, "from {state}");
    }
}

fn reset_forgets_and_connects_anew(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    a.receives([10, 11, 12]);
    b.receives([20, 21]);
    a.post(&Request::send(a.slice(0, 8))).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    b.receives_end(&[(20, WcStatus::SUCCESS)]);
    for end in [&a, &b] {
        end.modify(QpState::Reset).unwrap();
        end.nothing_sent();
        end.nothing_received();
    }
    a.connect(&b);
    b.connect(&a);
    // Were a receive of before still there, it would complete instead of these.
    b.receives([30]);
    a.receives([31]);
    a.post(&Request::send(a.slice(0, 8)).id(2)).unwrap();
    b.post(&Request::send(b.slice(0, 8)).id(3)).unwrap();
    a.sends_end(&[(2, WcStatus::SUCCESS)]);
    b.sends_end(&[(3, WcStatus::SUCCESS)]);
    a.receives_end(&[(31, WcStatus::SUCCESS)]);
    b.receives_end(&[(30, WcStatus::SUCCESS)]);
}

/// A writes to B; how that ends.
fn write(a: &End, b: &End) -> WcStatus {
    a.post(&Request::write(a.slice(0, 8), b.remote(64))).unwrap();
    a.sent(1)[0].status()
}

fn a_refused_change_changes_nothing(lab: &Lab) {
    let (a, b) = (lab.end(Setup::default()), lab.end(Setup::default()));
    a.connect(&b);
    b.modify(b.init()).unwrap();
    let without_rights = Attributes { access: Some(Access::default()), path_mtu: None, ..b.rtr(&a).into() };
    refused(&b, [("no path MTU", without_rights)]);
    b.modify(b.rtr(&a)).unwrap();
    assert_eq!(write(&a, &b), WcStatus::SUCCESS);
}

fn init_again_changes_rights(lab: &Lab) {
    let (a, b) = (lab.end(Setup::default()), lab.end(Setup::default()));
    a.connect(&b);
    b.modify(b.init()).unwrap();
    b.modify(Attributes { access: Some(Access::default()), ..QpState::Init.into() }).unwrap();
    b.modify(b.rtr(&a)).unwrap();
    assert_eq!(write(&a, &b), WcStatus::REM_INV_REQ_ERR);
}

fn rights_change_while_connected(lab: &Lab) {
    let (a, b) = lab.pair(Setup::default());
    assert_eq!(write(&a, &b), WcStatus::SUCCESS);
    let reading = Access { remote_read: true, ..Access::default() };
    b.modify(Attributes { access: Some(reading), ..QpState::Rts.into() }).unwrap();
    a.post(&Request::new(Opcode::RdmaRead, a.slice(0, 8), Some(b.remote(64)))).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    assert_eq!(write(&a, &b), WcStatus::REM_INV_REQ_ERR);
    b.comes_to(QpState::Error);
}

fn no_such_port(lab: &Lab) {
    let (a, _) = in_state(lab, QpState::Reset);
    let beyond = lab.context.attr().unwrap().port_count + 1;
    let all = Attributes::from(a.init());
    refused(
        &a,
        [
            ("port 0", Attributes { port: Some(0), ..all }),
            ("a port too many", Attributes { port: Some(beyond), ..all }),
        ],
    );
}

fn no_such_pkey(lab: &Lab) {
    let (a, _) = in_state(lab, QpState::Reset);
    let beyond = lab.port.pkey_table_len.try_into().unwrap();
    refused(&a, [("a P_Key", Attributes { pkey_index: Some(beyond), ..a.init().into() })]);
}

fn rxe_no_such_pkey(lab: &Lab) {
    let (a, _) = in_state(lab, QpState::Reset);
    let beyond = lab.port.pkey_table_len.try_into().unwrap();
    a.modify(Attributes { pkey_index: Some(beyond), ..a.init().into() }).unwrap();
    assert_eq!(a.state(), QpState::Init);
}

fn no_such_source_gid(lab: &Lab) {
    let (a, b) = in_state(lab, QpState::Init);
    let all = a.rtr(&b);
    let gids = lab.context.gid_table(1).unwrap();
    let beyond = u8::try_from(gids.last().unwrap().index + 1).unwrap();
    let grh = Grh { dest: gids[0].gid, source_index: beyond, hop_limit: 64, traffic_class: 0, flow_label: 0 };
    let address = Some(Address { grh: Some(grh), ..all.address });
    refused(&a, [("a source GID", Attributes { address, ..all.into() })]);
}

fn roce_needs_a_global_route(lab: &Lab) {
    if !lab.is_ethernet() {
        return lab.does_not_apply();
    }
    let (a, b) = in_state(lab, QpState::Init);
    let all = a.rtr(&b);
    let address = Some(Address { grh: None, ..all.address });
    refused(&a, [("no route", Attributes { address, ..all.into() })]);
    a.modify(all).unwrap();
}

fn infiniband_needs_no_global_route(lab: &Lab) {
    if lab.is_ethernet() {
        return lab.does_not_apply();
    }
    let gid = lab.context.gid_table(1).unwrap()[0].gid;
    let grh = Grh { dest: gid, source_index: 0, hop_limit: 1, traffic_class: 0, flow_label: 0 };
    for route in [None, Some(grh)] {
        let (mut a, mut b) = (lab.end(Setup::default()), lab.end(Setup::default()));
        for end in [&mut a, &mut b] {
            end.lab_address = Address { grh: route, ..lab.address() };
        }
        a.connect(&b);
        b.connect(&a);
        assert_eq!(write(&a, &b), WcStatus::SUCCESS, "{route:?}");
    }
}

/// A pair of which A was drained, had a write posted, and is in RTS again.
fn drained(lab: &Lab) -> (End, End) {
    let (a, b) = lab.pair(Setup::default());
    a.fill(0, &[7; 8]);
    a.modify(QpState::Sqd).unwrap();
    assert_eq!(a.state(), QpState::Sqd);
    a.post(&Request::write(a.slice(0, 8), b.remote(64))).unwrap();
    // Other traffic of the same port passes it meanwhile.
    b.fence(&a);
    a.nothing_sent();
    assert_eq!(b.bytes(64, 8), [0; 8]);
    a.modify(QpState::Rts).unwrap();
    (a, b)
}

fn drained_sends_wait(lab: &Lab) {
    let (a, b) = drained(lab);
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    assert_eq!(b.bytes(64, 8), [7; 8]);
}

fn rxe_drained_sends_wait(lab: &Lab) {
    let (a, b) = drained(lab);
    lab.is_through();
    a.nothing_sent();
    a.post(&Request::write(a.slice(0, 8), b.remote(128)).id(2)).unwrap();
    a.sends_end(&[(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    assert_eq!(b.bytes(64, 8), [7; 8]);
}
