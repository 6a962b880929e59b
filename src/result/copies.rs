//! Copies of the payload that a CPU makes, as the path implies them. Nothing here is measured: what a driver is known to
//! do is multiplied by what an end sends and receives.

use super::{Device, Document, ResultRow};
use crate::ops::Facts;
use crate::plan::{Shape, Side, Transport};

/// Counter of the calls by which a socket lent its buffers to the kernel (`--tcp-zerocopy`), and that came back.
pub const LENT: &str = "zerocopy_sends";

/// Counter of those that the kernel copied after all.
pub const COPIED: &str = "zerocopy_copied";

/// What the copies at one end follow from.
#[derive(Debug, Clone, Copy)]
pub struct PayloadPath<'a> {
    /// Of the verb.
    pub facts: &'a Facts,
    /// A latency test's message is a round trip where the verb echoes.
    pub shape: Shape,
    /// Each end sends half of the messages counted.
    pub bidirectional: bool,
    /// Payload of one message in bytes.
    pub size_bytes: u64,
    /// What carries it at this end.
    pub carrier: Carrier<'a>,
}

/// What carries payload at one end.
#[derive(Debug, Clone, Copy)]
pub enum Carrier<'a> {
    /// A socket, and how many of its sends were lent to the kernel, and copied after all.
    Tcp {
        /// [`LENT`]
        lent: u64,
        /// [`COPIED`]
        copied: u64,
    },
    /// A device; `None` where it is not known.
    Rdma(Option<&'a Device>),
}

/// Copies by a CPU at one end, derived.
#[derive(Debug, Clone, PartialEq)]
pub struct DerivedCopies {
    /// A message, as a row counts them; `None` where it cannot be told.
    pub per_message: Option<f64>,
    /// What it follows from, or why it cannot be told, one line.
    pub reason: String,
}

/// Copies of a payload that is sent, and of one that is received, each with what makes them.
struct Each {
    sent: Option<f64>,
    received: f64,
    how_sent: String,
    how_received: &'static str,
}

/// The copies at one end of a row of a run.
pub fn derived_copies(document: &Document, row: &ResultRow, side: Side) -> DerivedCopies {
    let Some(test) = &document.test else {
        return DerivedCopies { per_message: None, reason: "no test was agreed".into() };
    };
    let carrier = match row.transport {
        Transport::Tcp => {
            let counters = match side {
                Side::Client => &row.counters.client,
                Side::Server => &row.counters.server,
            };
            let count =
                |name| counters.as_ref().and_then(|counters| counters.get(name)).copied().unwrap_or(0);
            Carrier::Tcp { lent: count(LENT), copied: count(COPIED) }
        }
        Transport::Rdma => Carrier::Rdma(document.end(side).and_then(|end| end.device.as_ref())),
    };
    let (facts, shape, bidirectional) = (test.op.facts(), test.shape, test.bidirectional);
    PayloadPath { facts, shape, bidirectional, size_bytes: row.size_bytes, carrier }.copies(side)
}

impl PayloadPath<'_> {
    /// The copies at this end.
    pub fn copies(&self, side: Side) -> DerivedCopies {
        if self.facts.is_atomic() {
            let reason = "an atomic operation has no payload: one word travels in its request".into();
            return DerivedCopies { per_message: None, reason };
        }
        let (sends, receives) = self.moves(side);
        let each = match self.carrier {
            Carrier::Tcp { lent, copied } => over_tcp(lent, copied),
            Carrier::Rdma(device) => match self.over_rdma(device) {
                Ok(each) => each,
                Err(reason) => return DerivedCopies { per_message: None, reason },
            },
        };
        let sent = if sends > 0.0 { each.sent.map(|copies| sends * copies) } else { Some(0.0) };
        let parts = [
            (sends > 0.0).then(|| format!("sending, {}", each.how_sent)),
            (receives > 0.0).then(|| format!("receiving, {}", each.how_received)),
        ];
        DerivedCopies {
            per_message: sent.map(|sent| sent + receives * each.received),
            reason: parts.into_iter().flatten().collect::<Vec<_>>().join("; "),
        }
    }

    /// Payloads that this end sends and receives for each message counted.
    fn moves(&self, side: Side) -> (f64, f64) {
        use crate::ops::Peer;
        let sender = if self.facts.pulls() { Side::Server } else { Side::Client };
        match (self.shape, self.facts.peer) {
            _ if self.bidirectional => (0.5, 0.5),
            (Shape::Latency, Peer::Echoes) => (1.0, 1.0),
            _ if side == sender => (1.0, 0.0),
            _ => (0.0, 1.0),
        }
    }

    fn over_rdma(&self, device: Option<&Device>) -> Result<Each, String> {
        let device = device.ok_or("the device of this end is not known")?;
        let is_inline =
            self.facts.may_inline && self.size_bytes <= u64::from(device.inline_bytes.unwrap_or(0));
        let inline = f64::from(u8::from(is_inline));
        let into_request = |rest: &str| match is_inline {
            true => format!("the CPU copies it into the work request (inline){rest}"),
            false => rest.trim_start_matches(", then ").to_owned(),
        };
        let provider = device.provider.as_deref().unwrap_or("without a name");
        match (provider, device.is_software) {
            (Device::EMULATED, _) => {
                // Who posts moves the bytes, whichever way they go.
                let received = f64::from(u8::from(self.facts.pulls()));
                let poster = "the CPU of this end, which posts, copies from buffer to buffer";
                let other = "the CPU of the other end, which posts, has copied it";
                let (how_sent, how_received) = if received > 0.0 { (other, poster) } else { (poster, other) };
                Ok(Each { sent: Some(1.0 - received), received, how_sent: how_sent.into(), how_received })
            }
            ("rxe", _) => Ok(Each {
                sent: Some(1.0 + inline),
                received: 1.0,
                how_sent: into_request(", then the kernel (rxe) copies it into packets"),
                how_received: "the kernel (rxe) copies it out of packets",
            }),
            ("siw", _) => Ok(Each {
                sent: None,
                received: 1.0,
                how_sent: "the kernel (siw) copies small payloads and lends pages of large ones".into(),
                how_received: "the kernel (siw) copies it out of TCP",
            }),
            (_, Some(false)) => Ok(Each {
                sent: Some(inline),
                received: 0.0,
                how_sent: into_request(", then the device reads it"),
                how_received: "the device writes to the buffer",
            }),
            _ => Err(format!("the provider of {} ({provider}) is not known to be hardware", device.name)),
        }
    }
}

fn over_tcp(lent: u64, copied: u64) -> Each {
    let (sent, how_sent) = match lent {
        0 => (1.0, "the kernel copies it into the socket".into()),
        _ => {
            let share = copied as f64 / lent as f64;
            (
                share,
                format!(
                    "the kernel borrowed the pages of {lent} sends and copied {copied} of them after all"
                ),
            )
        }
    };
    Each { sent: Some(sent), received: 1.0, how_sent, how_received: "the kernel copies it out of the socket" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Verb;

    fn device(provider: &str, is_software: Option<bool>, inline_bytes: u32) -> Device {
        let facts = serde_json::json!({
            "name": "x0", "provider": provider, "link_layer": "Ethernet", "is_software": is_software, "port": 1,
            "inline_bytes": inline_bytes,
        });
        serde_json::from_value(facts).unwrap()
    }

    /// Copies at the client and the server.
    fn copies(verb: Verb, shape: Shape, carrier: Carrier<'_>) -> [Option<f64>; 2] {
        let path = PayloadPath { facts: verb.facts(), shape, bidirectional: false, size_bytes: 64, carrier };
        [Side::Client, Side::Server].map(|side| {
            let copies = path.copies(side);
            assert!(!copies.reason.is_empty());
            copies.per_message
        })
    }

    #[test]
    fn each_path_has_the_copies_that_it_is_known_to_make() {
        use Shape::{Bandwidth, Latency};
        use Verb::{Read, Send, Write};
        let tcp = |lent, copied| Carrier::Tcp { lent, copied };
        let (nic, inline) = (device("mlx5_core", Some(false), 0), device("mlx5_core", Some(false), 64));
        let (rxe, rxe_inline) = (device("rxe", Some(true), 63), device("rxe", Some(true), 220));
        let (siw, emulated) = (device("siw", Some(true), 0), device("emulated", Some(true), 220));
        let [nic, inline, rxe, rxe_inline, siw, emulated] =
            [&nic, &inline, &rxe, &rxe_inline, &siw, &emulated].map(|device| Carrier::Rdma(Some(device)));
        for (verb, shape, carrier, client, server) in [
            (Send, Latency, tcp(0, 0), Some(2.0), Some(2.0)),
            (Send, Bandwidth, tcp(0, 0), Some(1.0), Some(1.0)),
            (Read, Latency, tcp(0, 0), Some(1.0), Some(1.0)),
            (Write, Bandwidth, tcp(100, 0), Some(0.0), Some(1.0)),
            (Write, Bandwidth, tcp(100, 100), Some(1.0), Some(1.0)),
            (Send, Latency, tcp(4, 1), Some(1.25), Some(1.25)),
            (Send, Latency, nic, Some(0.0), Some(0.0)),
            (Send, Latency, inline, Some(1.0), Some(1.0)),
            (Write, Bandwidth, inline, Some(1.0), Some(0.0)),
            (Read, Bandwidth, inline, Some(0.0), Some(0.0)),
            (Send, Latency, rxe, Some(2.0), Some(2.0)),
            (Send, Bandwidth, rxe_inline, Some(2.0), Some(1.0)),
            (Read, Bandwidth, rxe, Some(1.0), Some(1.0)),
            (Send, Bandwidth, siw, None, Some(1.0)),
            (Send, Latency, siw, None, None),
            (Send, Latency, emulated, Some(1.0), Some(1.0)),
            (Write, Bandwidth, emulated, Some(1.0), Some(0.0)),
            (Read, Latency, emulated, Some(1.0), Some(0.0)),
        ] {
            assert_eq!(copies(verb, shape, carrier), [client, server], "{verb} {shape:?} {carrier:?}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let (unknown, other) = (device("hfi1", None, 0), device("newsoft", Some(true), 0));
        for carrier in [Carrier::Rdma(None), Carrier::Rdma(Some(&unknown)), Carrier::Rdma(Some(&other))] {
            assert_eq!(copies(Verb::Send, Shape::Latency, carrier), [None, None]);
        }
        let tcp = Carrier::Tcp { lent: 0, copied: 0 };
        assert_eq!(copies(Verb::FetchAdd, Shape::Latency, tcp), [None, None]);
    }

    #[test]
    fn of_two_directions_each_end_sends_half() {
        let device = device("rxe", Some(true), 64);
        let path = PayloadPath {
            facts: Verb::Send.facts(),
            shape: Shape::Bandwidth,
            bidirectional: true,
            size_bytes: 64,
            carrier: Carrier::Rdma(Some(&device)),
        };
        assert_eq!(path.copies(Side::Server).per_message, Some(1.5));
    }
}
