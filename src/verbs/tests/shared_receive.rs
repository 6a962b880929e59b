//! Receives that several queue pairs take.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::ends::*;
use crate::verbs::*;

const OK: WcStatus = WcStatus::SUCCESS;

/// A queue pair of `end`'s domain that shares `srq` and completes where `end` does.
fn another(end: &End, transport: Transport, srq: &Srq) -> End {
    let qp = end
        .pd
        .create_qp(
            transport,
            &QpInit { srq: Some(srq), max_send_wr: 16, ..QpInit::new(&end.send_cq, &end.recv_cq) },
        )
        .unwrap();
    End {
        qp,
        send_cq: end.send_cq.clone(),
        recv_cq: end.recv_cq.clone(),
        mr: end.mr.clone(),
        context: end.context.clone(),
        pd: end.pd.clone(),
    }
}

/// Two clients, and two queue pairs of one server that share receives.
fn clients_of_one(transport: Transport) -> ([End; 2], [End; 2], Srq) {
    let (first, srq) = End::sharing("emu0", transport);
    let second = another(&first, transport, &srq);
    let clients = [End::new("emu0", transport), End::new("emu0", transport)];
    let servers = [first, second];
    for (client, server) in clients.iter().zip(&servers) {
        client.connect(server);
        server.connect(client);
    }
    (clients, servers, srq)
}

fn send(end: &End, opcode: Opcode, text: &[u8], id: u64, to: Option<RemoteSlice>) {
    end.mr.region().write(0, text);
    let mut sender = end.qp.sender(opcode, end.mr.slice(0, text.len()), to, false);
    sender.set_id(id);
    sender.post_signalled().unwrap();
}

#[test]
fn each_message_takes_the_oldest_and_names_its_queue_pair() {
    for transport in [Transport::Rc, Transport::Uc] {
        let (clients, servers, srq) = clients_of_one(transport);
        assert_eq!((srq.max_wr(), srq.max_sge()), (4, 2));
        assert_eq!((servers[0].qp.caps().max_recv_wr, servers[1].qp.caps().max_recv_wr), (0, 0));
        let mut receiver = srq.receiver([servers[0].mr.slice(0, 2), servers[0].mr.slice(500, 8)]);
        for (id, client) in [(1, 1), (2, 0), (3, 0), (4, 1)] {
            receiver.set_id(id);
            receiver.move_to(10 * id as usize);
            receiver.move_slice(1, 500 + 10 * id as usize);
            receiver.post().unwrap();
            let write = id == 3;
            let opcode = if write { Opcode::RdmaWriteWithImm } else { Opcode::Send };
            send(&clients[client], opcode, b"shared", 9, Some(servers[0].mr.remote(900)));
            let received = servers[0].received();
            assert_eq!(gist(&received), [(id, OK)], "{transport}");
            assert_eq!(received[0].qp_number(), servers[client].qp.number());
            let (first, rest) = (10 * id as usize, 500 + 10 * id as usize);
            let found = match write {
                true => servers[0].bytes(900, 6),
                false => [servers[0].bytes(first, 2), servers[0].bytes(rest, 4)].concat(),
            };
            assert_eq!(found, b"shared");
        }
    }
}

#[test]
fn a_queue_takes_as_many_receives_as_it_has_room_for() {
    let (clients, servers, srq) = clients_of_one(Transport::Rc);
    let mut receiver = srq.receiver(servers[0].mr.slice(0, 8));
    let error = receiver.post_many(5).unwrap_err();
    assert!(error.to_string().contains("ibv_post_srq_recv(4 of 5 posted"), "{error}");
    send(&clients[0], Opcode::Send, b"x", 1, None);
    receiver.post().unwrap();
    receiver.post().unwrap_err();
}

#[test]
fn what_a_failed_queue_pair_leaves_is_taken_by_the_others() {
    let (clients, servers, srq) = clients_of_one(Transport::Rc);
    let mut receiver = srq.receiver(servers[0].mr.slice(0, 4));
    receiver.post_many(2).unwrap();
    // Longer than the receive: that receive fails with its queue pair, and no other.
    send(&clients[0], Opcode::Send, b"too long", 1, None);
    assert_eq!(clients[0].sent(), [(1, WcStatus::REM_INV_REQ_ERR)]);
    assert_eq!(servers[0].qp.state().unwrap(), QpState::Error);
    assert_eq!(gist(&servers[0].received()), [(0, WcStatus::LOC_LEN_ERR)]);
    servers[0].qp.to_error().unwrap();
    assert!(servers[0].received().is_empty());
    send(&clients[1], Opcode::Send, b"good", 2, None);
    assert_eq!((clients[1].sent(), gist(&servers[1].received())), (vec![(2, OK)], vec![(0, OK)]));
}

#[test]
fn a_write_that_is_refused_takes_no_receive() {
    let (clients, servers, srq) = clients_of_one(Transport::Uc);
    srq.receiver(servers[0].mr.slice(0, 4)).post().unwrap();
    let beyond = RemoteSlice { addr: 0, rkey: 0 };
    send(&clients[0], Opcode::RdmaWriteWithImm, b"lost", 1, Some(beyond));
    send(&clients[0], Opcode::Send, b"too long", 2, None);
    assert_eq!(servers[0].context.dropped(), Some(2));
    send(&clients[1], Opcode::Send, b"good", 3, None);
    assert_eq!(gist(&servers[0].received()), [(0, OK)]);
    send(&clients[1], Opcode::Send, b"none", 4, None);
    assert_eq!(servers[0].context.dropped(), Some(3));
}

#[test]
fn senders_that_sleep_for_a_shared_receive_are_woken() {
    let (first, srq) = End::sharing("emu0", Transport::Rc);
    let second = another(&first, Transport::Rc, &srq);
    let servers = [first, second];
    let clients: Vec<(End, Channel)> = servers
        .iter()
        .map(|server| {
            let (client, channel) = End::with_channel("emu0", Transport::Rc);
            client.connect(server);
            server.connect(&client);
            (client, channel)
        })
        .collect();
    for (client, _) in &clients {
        client.send_cq.arm().unwrap();
        send(client, Opcode::Send, b"wait", 1, None);
        assert!(client.sent().is_empty());
    }
    let ready = |channel: &Channel| {
        poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
    };
    let mut receiver = srq.receiver(servers[0].mr.slice(0, 8));
    // One receive at a time: each wakes one, and the other goes on waiting.
    receiver.post().unwrap();
    assert_eq!(clients.iter().filter(|(_, channel)| ready(channel)).count(), 1);
    receiver.post().unwrap();
    assert!(clients.iter().all(|(_, channel)| ready(channel)));
    assert!(clients.iter().all(|(client, _)| client.sent() == [(1, OK)]));
    assert_eq!(servers[0].received().len(), 2);
}

#[test]
fn no_sender_sleeps_for_ever_while_receives_are_posted() {
    const EACH: usize = 300;
    let (first, srq) = End::sharing("emu0", Transport::Rc);
    let second = another(&first, Transport::Rc, &srq);
    let servers = [first, second];
    let clients = servers.each_ref().map(|server| {
        let (client, channel) = End::with_channel("emu0", Transport::Rc);
        client.connect(server);
        server.connect(&client);
        (client, channel)
    });
    std::thread::scope(|scope| {
        for (client, channel) in &clients {
            scope.spawn(move || {
                let mut sender = client.qp.sender(Opcode::Send, client.mr.slice(0, 8), None, false);
                for _ in 0..EACH {
                    // Armed before the post, and not polled before the event: only the event can say that it is done.
                    client.send_cq.arm().unwrap();
                    sender.post_signalled().unwrap();
                    let timeout = PollTimeout::from(30_000_u16);
                    let woken = poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], timeout);
                    assert_eq!(woken, Ok(1), "nobody woke it");
                    assert!(channel.take_event().unwrap());
                    assert_eq!(client.sent(), [(0, OK)]);
                }
            });
        }
        let mut receiver = srq.receiver(servers[0].mr.slice(0, 8));
        let (mut posted, mut taken) = (0, 0);
        let start = Instant::now();
        while taken < 2 * EACH {
            assert!(start.elapsed() < Duration::from_secs(60), "{taken} of {posted} arrived");
            if posted < 2 * EACH && posted - taken < 2 {
                receiver.post().unwrap();
                posted += 1;
            }
            taken += servers[0].received().len();
        }
    });
}

#[test]
fn datagrams_take_shared_receives() {
    let end = End::new("emu0", Transport::Rc);
    let srq = end.pd.create_srq(4, 2).unwrap();
    let qp =
        end.pd.create_ud_qp(&QpInit { srq: Some(&srq), ..QpInit::new(&end.send_cq, &end.recv_cq) }).unwrap();
    qp.to_init(&UdInit { port: 1, pkey_index: 0, qkey: 3 }).unwrap();
    qp.to_rtr().unwrap();
    qp.to_rts(0).unwrap();
    let handle = end.pd.create_ah(end.address()).unwrap();
    let destination = Destination { handle, qpn: qp.number(), qkey: 3 };
    let mut sender = qp.sender(Opcode::Send, end.mr.slice(0, 8), destination, false);
    let mut roomy = srq.receiver(end.mr.slice(200, GRH_BYTES + 8));
    roomy.post().unwrap();
    sender.post_signalled().unwrap();
    let received = end.received();
    assert_eq!((gist(&received), received[0].byte_len() as usize), (vec![(0, OK)], GRH_BYTES + 8));
    assert_eq!((received[0].qp_number(), end.sent()), (qp.number(), vec![(0, OK)]));

    let mut short = srq.receiver(end.mr.slice(100, GRH_BYTES + 7));
    short.post().unwrap();
    roomy.post().unwrap();
    for dropped in 1..=2 {
        sender.post_signalled().unwrap();
        assert_eq!((end.sent(), end.context.dropped()), (vec![(0, OK)], Some(dropped)));
    }
    assert!(end.received().is_empty(), "the oldest is still the one that is too short");
}

#[test]
#[should_panic = "takes its receives from a shared queue"]
fn a_queue_pair_that_shares_has_no_receives_of_its_own() {
    let (end, _srq) = End::sharing("emu0", Transport::Rc);
    end.qp.receiver(end.mr.slice(0, 8));
}

#[test]
fn a_shared_queue_is_within_what_the_device_can() {
    let end = End::new("emu0", Transport::Rc);
    for (wr, sge) in [(0, 1), (1 << 20, 1), (4, 0), (4, 99)] {
        let error = end.pd.create_srq(wr, sge).unwrap_err();
        assert!(error.message.contains("outside what emu0 can"), "{}", error.message);
    }
}
