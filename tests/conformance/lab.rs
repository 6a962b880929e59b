//! A device under test, and two queue pairs on it that talk with each other.

use std::cell::Cell;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbmark::verbs::{
    Access, Address, Attributes, Channel, Context, Cq, Device, Grh, Init, LinkLayer, Mr, Opcode, Pd,
    PortAttr, Qp, QpInit, QpState, Region, RemoteSlice, Rtr, Rts, Slice, Transport, Wc, WcStatus, find,
};

/// How long anything may take. Nothing here is about speed: this only ends what would never end.
const DEADLINE: Duration = Duration::from_secs(60);

/// The port that is used.
pub const PORT: u8 = 1;

/// Bytes of memory that an end has.
pub const MEMORY: usize = 32 << 10;

/// Every right.
pub const ALL: Access = Access { remote_read: true, remote_write: true, remote_atomic: true };

/// A device that is open.
pub struct Lab {
    pub device: Device,
    pub context: Context,
    pub port: PortAttr,
    route: Option<Grh>,
    applies: Cell<bool>,
}

impl Lab {
    pub fn open(name: &str) -> Self {
        let device = find(name).unwrap_or_else(|error| panic!("{error}"));
        let context = device.open().unwrap_or_else(|error| panic!("{error}"));
        let port = context.port(PORT).unwrap();
        let gids = context.gid_table(PORT).unwrap();
        // An address made of an IPv4 address works on every RoCE device; the first is as good where there is none.
        let best = gids.iter().find(|entry| entry.gid.is_v4_mapped()).or(gids.first());
        let route = best.filter(|_| port.link_layer == LinkLayer::Ethernet).map(|entry| Grh {
            dest: entry.gid,
            source_index: entry.index.try_into().expect("a GID index has 8 bits"),
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
        });
        Self { device, context, port, route, applies: Cell::new(true) }
    }

    pub fn driver(&self) -> String {
        self.device.driver().unwrap_or_default()
    }

    /// The rule says nothing about this device.
    pub fn does_not_apply(&self) {
        self.applies.set(false);
    }

    pub fn applies(&self) -> bool {
        self.applies.get()
    }

    pub fn is_ethernet(&self) -> bool {
        self.port.link_layer == LinkLayer::Ethernet
    }

    /// The way to the port itself.
    pub fn address(&self) -> Address {
        Address { port: PORT, lid: self.port.lid, service_level: 0, grh: self.route }
    }

    /// A counter of the port, where the kernel keeps it.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let path = format!("/sys/class/infiniband/{}/ports/{PORT}/hw_counters/{name}", self.device.name());
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Waits until a counter of the port has come to this.
    pub fn comes_to_count(&self, name: &str, count: u64) {
        let end = Instant::now() + DEADLINE;
        while self.counter(name) < Some(count) {
            assert!(Instant::now() < end, "{name} is {:?} and not {count}", self.counter(name));
            std::thread::yield_now();
        }
    }

    /// Waits for an asynchronous event of the device.
    pub fn has_asynchronous_event(&self) {
        let end = Instant::now() + DEADLINE;
        assert!(is_readable(self.context.async_fd(), end), "there is no asynchronous event");
    }

    /// Sends something through the port both ways, on a connection of its own: what was under way before is through, as
    /// far as other traffic can tell.
    pub fn is_through(&self) {
        let (c, d) = self.pair(Setup::default());
        c.fence(&d);
        d.fence(&c);
    }

    pub fn end(&self, setup: Setup) -> End {
        End::new(self, self.context.alloc_pd().unwrap(), setup)
    }

    /// An end of the same protection domain as another.
    pub fn end_beside(&self, other: &End) -> End {
        End::new(self, other.pd.clone(), other.setup)
    }

    /// Two ends, connected.
    pub fn pair(&self, setup: Setup) -> (End, End) {
        let (a, b) = (self.end(setup), self.end(setup));
        a.connect(&b);
        b.connect(&a);
        (a, b)
    }
}

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
    fn new(lab: &Lab, pd: Pd, setup: Setup) -> Self {
        let channel = lab.context.create_channel().unwrap();
        let send_cq = lab.context.create_cq(setup.send_cq, Some(&channel)).unwrap();
        let recv_cq = lab.context.create_cq(64, Some(&channel)).unwrap();
        let mr = pd.register(Region::new(MEMORY).unwrap(), setup.memory_access).unwrap();
        let qp = create_qp(&pd, &send_cq, &recv_cq, &setup);
        let (lab_address, mtu) = (lab.address(), lab.port.active_mtu);
        Self { lab_address, mtu, setup, channel, send_cq, recv_cq, pd, mr, qp }
    }

    /// Destroys the queue pair, and makes another in RESET.
    pub fn replace_queue_pair(&mut self) {
        self.qp = create_qp(&self.pd, &self.send_cq, &self.recv_cq, &self.setup);
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

    pub fn modify(&self, attributes: impl Into<Attributes>) -> verbmark::error::Result<()> {
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
    pub fn receive(&self, id: u64, into: impl Into<Vec<Slice>>) -> verbmark::error::Result<()> {
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

    pub fn post(&self, request: &Request) -> verbmark::error::Result<()> {
        let mut sender =
            self.qp.sender(request.opcode, request.local.clone(), request.remote, request.inline);
        sender.set_id(request.id);
        sender.set_imm(request.imm);
        if let Some((compare_add, swap)) = request.operands {
            sender.set_atomic(compare_add, swap);
        }
        sender.post(request.signalled)
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

fn create_qp(pd: &Pd, send_cq: &Cq, recv_cq: &Cq, setup: &Setup) -> Qp {
    pd.create_qp(setup.transport, &queues(send_cq, recv_cq, setup)).unwrap()
}

/// A work request of the send queue.
#[derive(Clone)]
pub struct Request {
    pub opcode: Opcode,
    pub local: Vec<Slice>,
    pub remote: Option<RemoteSlice>,
    pub id: u64,
    pub imm: u32,
    /// Of an atomic: what is added or compared, and what it is swapped for.
    pub operands: Option<(u64, u64)>,
    pub inline: bool,
    pub signalled: bool,
}

impl Request {
    /// A signalled request with number 1.
    pub fn new(opcode: Opcode, local: impl Into<Vec<Slice>>, remote: Option<RemoteSlice>) -> Self {
        let local = local.into();
        Self { opcode, local, remote, id: 1, imm: 0, operands: None, inline: false, signalled: true }
    }

    pub fn send(local: impl Into<Vec<Slice>>) -> Self {
        Self::new(Opcode::Send, local, None)
    }

    pub fn write(local: impl Into<Vec<Slice>>, remote: RemoteSlice) -> Self {
        Self::new(Opcode::RdmaWrite, local, Some(remote))
    }

    pub fn fetch_add(local: Slice, remote: RemoteSlice, addend: u64) -> Self {
        Self { operands: Some((addend, 0)), ..Self::new(Opcode::FetchAdd, local, Some(remote)) }
    }

    pub fn compare_swap(local: Slice, remote: RemoteSlice, compare: u64, swap: u64) -> Self {
        Self { operands: Some((compare, swap)), ..Self::new(Opcode::CompareSwap, local, Some(remote)) }
    }

    pub fn id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    pub fn imm(self, imm: u32) -> Self {
        Self { imm, ..self }
    }

    pub fn inline(self) -> Self {
        Self { inline: true, ..self }
    }

    pub fn unsignalled(self) -> Self {
        Self { signalled: false, ..self }
    }
}

/// Waits until a queue pair, whose state is asked for, is in this one.
pub fn comes_to(state: QpState, now: impl Fn() -> QpState) {
    let end = Instant::now() + DEADLINE;
    while now() != state {
        assert!(Instant::now() < end, "the queue pair is in {} and not in {state}", now());
        std::thread::yield_now();
    }
}

/// Sleeps until the descriptor is readable; false when it is late.
fn is_readable(descriptor: BorrowedFd<'_>, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let mut descriptors = [PollFd::new(descriptor, PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    poll(&mut descriptors, timeout).unwrap() > 0
}

/// Numbers and statuses.
pub fn gist(completions: &[Wc]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|wc| (wc.id(), wc.status())).collect()
}

/// Takes what is in the queue.
pub fn take_present(cq: &Cq) -> Vec<Wc> {
    let mut some = [Wc::EMPTY; 16];
    let mut all = Vec::new();
    loop {
        let count = cq.poll(&mut some).unwrap();
        all.extend_from_slice(&some[..count]);
        if count < some.len() {
            return all;
        }
    }
}

/// Takes this many completions, and waits for them.
pub fn take(cq: &Cq, count: usize) -> Vec<Wc> {
    let end = Instant::now() + DEADLINE;
    let mut all = Vec::new();
    let mut one = [Wc::EMPTY];
    while all.len() < count {
        if cq.poll(&mut one).unwrap() == 1 {
            all.push(one[0]);
        } else {
            assert!(
                Instant::now() < end,
                "{count} completions were expected, and these came: {:?}",
                gist(&all)
            );
            std::thread::yield_now();
        }
    }
    all
}

/// Bytes that differ from their neighbours and from those of another seed.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}
