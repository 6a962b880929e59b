//! One end of a connection: a queue pair with all it needs.

use std::os::fd::AsFd;
use std::time::Instant;

use verbmark::error::Result;
use verbmark::verbs::{
    Access, Address, Attributes, Channel, Cq, Init, Mr, Pd, Qp, QpInit, QpState, Region, RemoteSlice, Rtr,
    Rts, Sender, Slice, Srq, Transport, Wc, WcStatus,
};

use super::wait::{DEADLINE, comes_to, gist, is_readable, take, take_present};
use super::{ALL, Lab, MEMORY, PORT, Request};

/// What an end is to be like.
#[derive(Clone, Copy)]
pub struct Setup {
    pub transport: Transport,
    pub send_depth: u32,
    pub recv_depth: u32,
    /// Entries of the completion queue of sends.
    pub send_cq: u32,
    /// What the memory allows.
    pub memory_access: Access,
    /// What the queue pair allows.
    pub qp_access: Access,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    /// Reads and atomics taken in, and outstanding.
    pub reads_in: u8,
    pub reads_out: u8,
}

impl Default for Setup {
    /// Patient: an emulated processor may be late with any acknowledgement.
    fn default() -> Self {
        Self {
            transport: Transport::Rc,
            send_depth: 16,
            recv_depth: 16,
            send_cq: 64,
            memory_access: ALL,
            qp_access: ALL,
            timeout: 14,
            retry_count: 6,
            rnr_retry: 7,
            min_rnr_timer: 1,
            reads_in: 4,
            reads_out: 4,
        }
    }
}

impl Setup {
    /// Gives up on a silent peer as soon as it may.
    pub fn impatient() -> Self {
        Self { timeout: 1, retry_count: 1, ..Self::default() }
    }
}

/// A queue pair with memory and completion queues of its own.
pub struct End {
    pub lab_address: Address,
    pub mtu: u32,
    pub setup: Setup,
    pub channel: Channel,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    pub pd: Pd,
    pub mr: Mr,
    pub qp: Qp,
}

impl End {
    pub(super) fn new(lab: &Lab, pd: Pd, srq: Option<&Srq>, setup: Setup) -> Self {
        let channel = lab.context.create_channel().unwrap();
        let send_cq = lab.context.create_cq(setup.send_cq, Some(&channel)).unwrap();
        let recv_cq = lab.context.create_cq(64, Some(&channel)).unwrap();
        let mr = pd.register(Region::new(MEMORY).unwrap(), setup.memory_access).unwrap();
        let qp = create_qp(&pd, &send_cq, &recv_cq, srq, &setup);
        let (lab_address, mtu) = (lab.address(), lab.port.active_mtu);
        Self { lab_address, mtu, setup, channel, send_cq, recv_cq, pd, mr, qp }
    }

    /// Destroys the queue pair, and makes another in RESET.
    pub fn replace_queue_pair(&mut self) {
        self.qp = create_qp(&self.pd, &self.send_cq, &self.recv_cq, None, &self.setup);
    }

    pub fn init(&self) -> Init {
        Init { port: PORT, pkey_index: 0, access: self.setup.qp_access }
    }

    pub fn rtr(&self, peer: &End) -> Rtr {
        Rtr {
            path_mtu: self.mtu,
            dest_qpn: peer.qp.number(),
            rq_psn: peer.psn(),
            max_dest_rd_atomic: self.setup.reads_in,
            min_rnr_timer: self.setup.min_rnr_timer,
            address: self.lab_address,
        }
    }

    pub fn rts(&self) -> Rts {
        Rts {
            sq_psn: self.psn(),
            timeout: self.setup.timeout,
            retry_count: self.setup.retry_count,
            rnr_retry: self.setup.rnr_retry,
            max_rd_atomic: self.setup.reads_out,
        }
    }

    /// Differs between ends, so that they cannot be mixed up unnoticed, and wraps after some packets.
    fn psn(&self) -> u32 {
        0x00ff_fffc - (self.qp.number() & 0xff)
    }

    pub fn connect(&self, peer: &End) {
        self.qp.to_init(&self.init()).unwrap();
        self.qp.to_rtr(&self.rtr(peer)).unwrap();
        self.qp.to_rts(&self.rts()).unwrap();
    }

    pub fn modify(&self, attributes: impl Into<Attributes>) -> Result<()> {
        self.qp.apply(&attributes.into())
    }

    pub fn state(&self) -> QpState {
        self.qp.state().unwrap()
    }

    /// Fails unless the queue pair comes to this state: errors move it a moment before or after they complete.
    pub fn comes_to(&self, state: QpState) {
        comes_to(state, || self.state());
    }

    pub fn register(&self, len: usize, access: Access) -> Mr {
        self.pd.register(Region::new(len).unwrap(), access).unwrap()
    }

    pub fn slice(&self, offset: usize, len: usize) -> Slice {
        self.mr.slice(offset, len)
    }

    pub fn remote(&self, offset: usize) -> RemoteSlice {
        self.mr.remote(offset)
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        self.mr.region().write(offset, bytes);
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.region().read(offset, &mut bytes);
        bytes
    }

    /// Posts a receive.
    pub fn receive(&self, id: u64, into: impl Into<Vec<Slice>>) -> Result<()> {
        let mut receiver = self.qp.receiver(into);
        receiver.set_id(id);
        receiver.post()
    }

    /// Posts receives of 64 bytes, with these numbers.
    pub fn receives(&self, ids: impl IntoIterator<Item = u64>) {
        for id in ids {
            self.receive(id, self.slice(0, 64)).unwrap();
        }
    }

    /// The request, to be posted.
    pub fn sender(&self, request: &Request) -> Sender {
        let mut sender =
            self.qp.sender(request.opcode, request.local.clone(), request.remote, request.inline);
        sender.set_id(request.id);
        sender.set_imm(request.imm);
        if let Some((compare_add, swap)) = request.operands {
            sender.set_atomic(compare_add, swap);
        }
        sender.set_solicited(request.solicited);
        sender
    }

    pub fn post(&self, request: &Request) -> Result<()> {
        let mut sender = self.sender(request);
        sender.set_signalled(request.signalled);
        sender.post()
    }

    /// Posts all of them, which must succeed.
    pub fn post_all(&self, requests: &[Request]) {
        for request in requests {
            self.post(request).unwrap();
        }
    }

    /// Takes this many completions of sends, and waits for them.
    pub fn sent(&self, count: usize) -> Vec<Wc> {
        take(&self.send_cq, count)
    }

    /// Takes this many completions of receives, and waits for them.
    pub fn received(&self, count: usize) -> Vec<Wc> {
        take(&self.recv_cq, count)
    }

    /// Fails unless these and no others complete on the send queue, in this order.
    pub fn sends_end(&self, expected: &[(u64, WcStatus)]) {
        assert_eq!(gist(&self.sent(expected.len())), expected, "completions of sends");
        self.nothing_sent();
    }

    /// Fails unless these and no others complete on the receive queue, in this order.
    pub fn receives_end(&self, expected: &[(u64, WcStatus)]) {
        assert_eq!(gist(&self.received(expected.len())), expected, "completions of receives");
        self.nothing_received();
    }

    pub fn nothing_sent(&self) {
        assert_eq!(gist(&take_present(&self.send_cq)), [], "there is a completion of a send");
    }

    pub fn nothing_received(&self) {
        assert_eq!(gist(&take_present(&self.recv_cq)), [], "there is a completion of a receive");
    }

    /// Waits for this many events of the channel.
    pub fn events(&self, count: usize) {
        let end = Instant::now() + DEADLINE;
        let mut taken = 0;
        while taken < count {
            if self.channel.take_event().unwrap() {
                taken += 1;
                continue;
            }
            assert!(is_readable(self.channel.as_fd(), end), "{taken} of {count} events came");
        }
    }

    /// Fails if the channel has an event.
    pub fn no_event(&self) {
        assert!(!self.channel.take_event().unwrap(), "there is an event");
    }

    /// A send of no bytes from here to `peer`, start to end: whatever was under way from here before it has arrived.
    pub fn fence(&self, peer: &End) {
        const ID: u64 = u64::MAX;
        peer.receive(ID, peer.slice(0, 0)).unwrap();
        self.post(&Request::send(self.slice(0, 0)).id(ID)).unwrap();
        self.sends_end(&[(ID, WcStatus::SUCCESS)]);
        peer.receives_end(&[(ID, WcStatus::SUCCESS)]);
    }
}

/// What queue pairs of all kinds are to have.
pub fn queues<'a>(send_cq: &'a Cq, recv_cq: &'a Cq, setup: &Setup) -> QpInit<'a> {
    QpInit {
        max_send_wr: setup.send_depth,
        max_recv_wr: setup.recv_depth,
        max_inline: 64,
        max_send_sge: 4,
        max_recv_sge: 4,
        ..QpInit::new(send_cq, recv_cq)
    }
}

fn create_qp(pd: &Pd, send_cq: &Cq, recv_cq: &Cq, srq: Option<&Srq>, setup: &Setup) -> Qp {
    pd.create_qp(setup.transport, &QpInit { srq, ..queues(send_cq, recv_cq, setup) }).unwrap()
}

/// Bytes that differ from their neighbours and from those of another seed.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}
