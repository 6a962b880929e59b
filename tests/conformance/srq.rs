//! Receives that several queue pairs take from one queue.

use verbmark::error::Result;
use verbmark::verbs::{Opcode, Pd, QpState, Slice, Srq, Transport, WcStatus};

use crate::lab::{ALL, End, Lab, Request, Setup, gist, pattern};
use crate::rule::rules;

rules! {
    "Shared receive queues (RC, UC)";
    each_message_takes_the_oldest: "ibv_create_srq(3); ibv_post_srq_recv(3); IBTA 10.2.9",
        "SENDs over two RC connections take shared receives in the order posted; each completes on the queue of its queue pair, with its number.";
    unreliable_messages_take_them_too: "ibv_create_srq(3); IBTA 10.2.9",
        "The same over UC, with and without immediate data.";
    write_with_imm_takes_a_shared_receive: "ibv_create_srq(3); IBTA 9.4.3",
        "RDMA WRITE with immediate data takes a shared receive; RDMA WRITE and READ take none.";
    shared_receives_are_posted_in_any_state: "ibv_post_srq_recv(3); IBTA 10.2.9",
        "A shared receive is taken while the queue pairs are in RESET, and is filled once they are connected.";
    shared_receives_scatter: "ibv_post_srq_recv(3); IBTA 10.7.3",
        "A shared receive of two slices: each is filled before the next is begun.";
    a_full_shared_queue_refuses: "ibv_create_srq(3); ibv_post_srq_recv(3)",
        "As many shared receives as were granted are taken; the next is refused, and those taken are all filled.",
        but rxe "6.1": "15 are taken where 8 were granted: the room of its ring." => rxe_a_full_shared_queue_refuses;
    a_send_waits_for_a_shared_receive: "IBTA 9.7.5.2.8; IBTA 10.2.9",
        "RNR retry count 7: a SEND waits while the shared queue is empty, and succeeds once it is not.";
    a_sleeping_sender_is_woken_by_a_shared_receive: "ibv_get_cq_event(3); IBTA 9.7.5.2.8",
        "A, asleep on its channel with a SEND that waits, is woken by a shared receive, though A never polls.";
    an_empty_shared_queue_ends_the_retries: "IBTA 9.7.5.2.8; IBTA 9.9.2",
        "RNR retry count 0: a SEND while the shared queue is empty ends with RNR_RETRY_EXC_ERR; B stays in RTS.";
    an_error_leaves_shared_receives: "IBTA 10.2.9; IBTA 10.3.1.7",
        "A queue pair moved to ERROR flushes none of the shared receives; the other connection takes them.";
    a_shared_receive_too_small: "IBTA 9.9.3; IBTA 11.6.2",
        "SEND of one byte more than the shared receive has room for: LOC_LEN_ERR at B, REM_INV_REQ_ERR at A; the other connection goes on with the next receive.",
        but rxe "6.1": "LOC_QP_OP_ERR at B and REM_OP_ERR at A." => rxe_a_shared_receive_too_small;
}

/// Two clients, and two ends of one server that share receives.
struct Shared {
    clients: [End; 2],
    servers: [End; 2],
    srq: Srq,
}

fn unconnected(lab: &Lab, setup: Setup) -> Shared {
    let pd: Pd = lab.context.alloc_pd().unwrap();
    let srq = pd.create_srq(8, 2).unwrap();
    let servers = [(); 2].map(|()| lab.end_sharing(&pd, &srq, setup));
    Shared { clients: [(); 2].map(|()| lab.end(setup)), servers, srq }
}

impl Shared {
    fn connected(lab: &Lab, setup: Setup) -> Self {
        let shared = unconnected(lab, setup);
        shared.connect();
        shared
    }

    fn connect(&self) {
        for (client, server) in self.clients.iter().zip(&self.servers) {
            client.connect(server);
            server.connect(client);
        }
    }

    fn receive(&self, id: u64, into: impl Into<Vec<Slice>>) -> Result<()> {
        let mut receiver = self.srq.receiver(into);
        receiver.set_id(id);
        receiver.post()
    }

    /// Posts shared receives of 64 bytes, each elsewhere in the memory of the first server.
    fn receives(&self, ids: impl IntoIterator<Item = u64>) {
        for id in ids {
            self.receive(id, self.servers[0].slice(64 * id as usize, 64)).unwrap();
        }
    }

    /// The client sends a message of its own pattern, which must take this receive.
    fn takes(&self, client: usize, opcode: Opcode, receive: u64) {
        let (end, server) = (&self.clients[client], &self.servers[client]);
        let bytes = pattern(receive as u8, 20);
        end.fill(0, &bytes);
        end.post(&Request::new(opcode, end.slice(0, 20), None).imm(receive as u32)).unwrap();
        end.sends_end(&[(1, WcStatus::SUCCESS)]);
        let wc = server.received(1)[0];
        assert_eq!((wc.id(), wc.status(), wc.byte_len()), (receive, WcStatus::SUCCESS, 20));
        assert_eq!(wc.qp_number(), server.qp.number());
        assert_eq!(wc.has_imm(), opcode == Opcode::SendWithImm);
        assert_eq!(self.servers[0].bytes(64 * receive as usize, 20), bytes);
    }
}

fn each_message_takes_the_oldest(lab: &Lab) {
    let shared = Shared::connected(lab, Setup::default());
    shared.receives(1..=4);
    for (client, receive) in [(1, 1), (0, 2), (0, 3), (1, 4)] {
        shared.takes(client, Opcode::Send, receive);
    }
}

fn unreliable_messages_take_them_too(lab: &Lab) {
    let shared = Shared::connected(lab, Setup { transport: Transport::Uc, ..Setup::default() });
    shared.receives(1..=3);
    for (client, opcode, receive) in [(1, Opcode::Send, 1), (0, Opcode::SendWithImm, 2), (1, Opcode::Send, 3)]
    {
        shared.takes(client, opcode, receive);
    }
}

fn write_with_imm_takes_a_shared_receive(lab: &Lab) {
    let shared = Shared::connected(lab, Setup::default());
    shared.receives([1, 2]);
    let (a, b) = (&shared.clients[0], &shared.servers[0]);
    let request = |opcode, id| Request::new(opcode, a.slice(0, 8), Some(b.remote(4096))).id(id).imm(5);
    a.post_all(&[
        request(Opcode::RdmaWrite, 1),
        request(Opcode::RdmaRead, 2),
        request(Opcode::RdmaWriteWithImm, 3),
    ]);
    a.sends_end(&[1, 2, 3].map(|id| (id, WcStatus::SUCCESS)));
    let wc = b.received(1)[0];
    assert_eq!((wc.id(), wc.imm(), wc.byte_len()), (1, 5, 8));
    shared.takes(1, Opcode::Send, 2);
}

fn shared_receives_are_posted_in_any_state(lab: &Lab) {
    let shared = unconnected(lab, Setup::default());
    shared.receives([1]);
    shared.connect();
    shared.takes(0, Opcode::Send, 1);
}

fn shared_receives_scatter(lab: &Lab) {
    let shared = Shared::connected(lab, Setup::default());
    let (a, b) = (&shared.clients[0], &shared.servers[0]);
    a.fill(0, &pattern(3, 20));
    shared.receive(1, [b.slice(100, 3), b.slice(4000, 30)]).unwrap();
    a.post(&Request::send(a.slice(0, 20))).unwrap();
    b.receives_end(&[(1, WcStatus::SUCCESS)]);
    assert_eq!([b.bytes(100, 3), b.bytes(4000, 17)].concat(), pattern(3, 20));
}

/// How many shared receives were granted, and how many were taken.
fn room(lab: &Lab) -> (u64, u64) {
    let shared = Shared::connected(lab, Setup::default());
    let granted = u64::from(shared.srq.max_wr());
    let slice = shared.servers[0].slice(0, 64);
    let taken = (0..4 * granted).take_while(|&id| shared.receive(id, slice.clone()).is_ok()).count() as u64;
    let a = &shared.clients[0];
    for _ in 0..taken {
        a.post(&Request::send(a.slice(0, 8))).unwrap();
        a.sends_end(&[(1, WcStatus::SUCCESS)]);
    }
    let all: Vec<_> = (0..taken).map(|id| (id, WcStatus::SUCCESS)).collect();
    shared.servers[0].receives_end(&all);
    (granted, taken)
}

fn a_full_shared_queue_refuses(lab: &Lab) {
    let (granted, taken) = room(lab);
    assert_eq!(taken, granted);
}

fn rxe_a_full_shared_queue_refuses(lab: &Lab) {
    assert_eq!(room(lab), (8, 15));
}

fn a_send_waits_for_a_shared_receive(lab: &Lab) {
    let shared = Shared::connected(lab, Setup::default());
    let (a, b) = (&shared.clients[0], &shared.servers[0]);
    a.post(&Request::send(a.slice(0, 8))).unwrap();
    b.fence(a);
    a.nothing_sent();
    shared.receives([1]);
    a.sends_end(&[(1, WcStatus::SUCCESS)]);
    b.receives_end(&[(1, WcStatus::SUCCESS)]);
}

fn a_sleeping_sender_is_woken_by_a_shared_receive(lab: &Lab) {
    let shared = Shared::connected(lab, Setup::default());
    for client in &shared.clients {
        client.post(&Request::send(client.slice(0, 8))).unwrap();
        client.send_cq.arm().unwrap();
        client.nothing_sent();
    }
    shared.receives([1, 2]);
    for client in &shared.clients {
        // Nothing looks at the queue before the event came.
        client.events(1);
        client.sends_end(&[(1, WcStatus::SUCCESS)]);
    }
}

fn an_empty_shared_queue_ends_the_retries(lab: &Lab) {
    let shared = Shared::connected(lab, Setup { rnr_retry: 0, ..Setup::default() });
    let (a, b) = (&shared.clients[0], &shared.servers[0]);
    a.post(&Request::send(a.slice(0, 8))).unwrap();
    a.sends_end(&[(1, WcStatus::RNR_RETRY_EXC_ERR)]);
    a.comes_to(QpState::Error);
    assert_eq!(b.state(), QpState::Rts);
}

fn an_error_leaves_shared_receives(lab: &Lab) {
    let shared = Shared::connected(lab, Setup::default());
    shared.receives([1, 2]);
    shared.servers[0].modify(QpState::Error).unwrap();
    lab.is_through();
    shared.servers[0].nothing_received();
    for receive in [1, 2] {
        shared.takes(1, Opcode::Send, receive);
    }
    shared.servers[0].nothing_received();
}

fn too_small(lab: &Lab, at_a: WcStatus, at_b: WcStatus) {
    let shared = Shared::connected(lab, Setup::default());
    let (a, b) = (&shared.clients[0], &shared.servers[0]);
    let memory = b.register(64, ALL);
    shared.receive(7, memory.slice(0, 8)).unwrap();
    shared.receives([2]);
    a.post(&Request::send(a.slice(0, 9))).unwrap();
    a.sends_end(&[(1, at_a)]);
    assert_eq!(gist(&b.received(1)), [(7, at_b)]);
    b.comes_to(QpState::Error);
    shared.takes(1, Opcode::Send, 2);
    b.nothing_received();
}

fn a_shared_receive_too_small(lab: &Lab) {
    too_small(lab, WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR);
}

fn rxe_a_shared_receive_too_small(lab: &Lab) {
    too_small(lab, WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR);
}
