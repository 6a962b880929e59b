//! Ends of a connection, as a caller makes them.

use crate::verbs::*;

/// Bytes of the memory of an end.
pub(super) const MEMORY: usize = 1 << 16;

pub(super) const ALL: Access = Access { remote_read: true, remote_write: true, remote_atomic: true };

/// A queue pair with memory and a completion queue for each direction.
pub(super) struct End {
    pub qp: Qp,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    pub mr: Mr,
    pub context: Context,
    pub pd: Pd,
}

impl End {
    /// In RESET.
    pub fn new(device: &str, transport: Transport) -> Self {
        Self::with_send_cq(device, transport, 64)
    }

    pub fn with_send_cq(device: &str, transport: Transport, send_depth: u32) -> Self {
        Self::build(device, transport, |context, _| {
            (context.create_cq(send_depth, None).unwrap(), None, None)
        })
    }

    /// With receives of a shared queue.
    pub fn sharing(device: &str, transport: Transport) -> (Self, Srq) {
        let mut shared = None;
        let end = Self::build(device, transport, |context, pd| {
            shared = Some(pd.create_srq(4, 2).unwrap());
            (context.create_cq(64, None).unwrap(), shared.clone(), None)
        });
        (end, shared.unwrap())
    }

    /// With events for what it sends and receives.
    pub fn with_channel(device: &str, transport: Transport) -> (Self, Channel) {
        let mut channel = None;
        let end = Self::build(device, transport, |context, _| {
            let made = channel.insert(context.create_channel().unwrap());
            (context.create_cq(64, Some(made)).unwrap(), None, Some(made.clone()))
        });
        (end, channel.unwrap())
    }

    fn build(
        device: &str,
        transport: Transport,
        choose: impl FnOnce(&Context, &Pd) -> (Cq, Option<Srq>, Option<Channel>),
    ) -> Self {
        let context = find(device).unwrap().open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let mr = pd.register(Region::new(MEMORY).unwrap(), ALL).unwrap();
        let (send_cq, srq, channel) = choose(&context, &pd);
        let recv_cq = context.create_cq(64, channel.as_ref()).unwrap();
        let qp = pd
            .create_qp(
                transport,
                &QpInit {
                    srq: srq.as_ref(),
                    max_send_wr: 16,
                    max_recv_wr: 16,
                    max_inline: 64,
                    max_send_sge: 4,
                    max_recv_sge: 4,
                    ..QpInit::new(&send_cq, &recv_cq)
                },
            )
            .unwrap();
        Self { qp, send_cq, recv_cq, mr, context, pd }
    }

    /// The way to the port of this end.
    pub fn address(&self) -> Address {
        let port = self.context.port(1).unwrap();
        let gids = self.context.gid_table(1).unwrap();
        let grh = (port.link_layer == LinkLayer::Ethernet).then(|| {
            let entry = gids.last().unwrap();
            Grh {
                dest: entry.gid,
                source_index: entry.index as u8,
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
            }
        });
        Address { port: 1, lid: port.lid, service_level: 0, grh }
    }

    pub fn connect(&self, peer: &End) {
        self.to_rtr(peer);
        self.to_rts();
    }

    /// From RESET.
    pub fn to_rtr(&self, peer: &End) {
        self.qp.to_init(&Init { port: 1, pkey_index: 0, access: ALL }).unwrap();
        self.qp
            .to_rtr(&Rtr {
                path_mtu: 1024,
                dest_qpn: peer.qp.number(),
                rq_psn: 7,
                max_dest_rd_atomic: 4,
                min_rnr_timer: 12,
                address: peer.address(),
            })
            .unwrap();
    }

    pub fn to_rts(&self) {
        self.qp
            .to_rts(&Rts { sq_psn: 7, timeout: 14, retry_count: 6, rnr_retry: 7, max_rd_atomic: 4 })
            .unwrap();
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.region().read(offset, &mut bytes);
        bytes
    }

    /// Numbers and statuses of what completed on the send queue.
    pub fn sent(&self) -> Vec<(u64, WcStatus)> {
        gist(&taken(&self.send_cq))
    }

    /// What completed on the receive queue.
    pub fn received(&self) -> Vec<Wc> {
        taken(&self.recv_cq)
    }
}

/// Two connected ends.
pub(super) fn pair(device: &str) -> (End, End) {
    pair_over(device, Transport::Rc)
}

pub(super) fn pair_over(device: &str, transport: Transport) -> (End, End) {
    let (a, b) = (End::new(device, transport), End::new(device, transport));
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

pub(super) fn taken(cq: &Cq) -> Vec<Wc> {
    let mut found = vec![Wc::EMPTY; 64];
    let count = cq.poll(&mut found).unwrap();
    found.truncate(count);
    found
}

pub(super) fn gist(completions: &[Wc]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|wc| (wc.id(), wc.status())).collect()
}
