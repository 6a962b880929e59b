//! From an open device and a control connection to connected paths: what both ends do alike.

use std::net::TcpStream;

use super::ends;
use super::lane::STEP;
use crate::error::{Error, Result, Step};
use crate::oob::Control;
use crate::oob::run::Introduction;
use crate::plan::{Side, Test, Wait};
use crate::result::{Buffers, Document, Missing};
use crate::transport::memory;
use crate::transport::path::{PathChoice, PortFacts};
use crate::transport::rdma::{Diagnosis, Endpoint, Port, Prepared, Rdma, Reads};
use crate::transport::tcp::Tcp;

/// The paths of a run, through all its points.
#[derive(Default)]
pub struct Paths {
    /// Connected queue pairs of each thread.
    pub rdma: Vec<Rdma>,
    /// Connected socket of each thread; where messages go both ways, one for those of the client and one for those of the
    /// server.
    pub tcp: Vec<Tcp>,
}

impl Paths {
    /// Waits this way on all of them from here on.
    ///
    /// # Errors
    /// As [`Tcp::wait_as`]; queue pairs of a test that sleeps anywhere can be waited on either way.
    pub fn wait_as(&self, wait: Wait) -> Result<()> {
        self.tcp.iter().try_for_each(|tcp| tcp.wait_as(wait))
    }
}

/// The path's choice, and the port facts it was made from: ours and the other end's.
pub struct Agreed {
    /// The same at both ends.
    pub choice: PathChoice,
    /// Ours.
    pub ours: PortFacts,
    /// The other end's.
    pub theirs: PortFacts,
}

/// Connects the queue pairs of every thread, one after the other.
///
/// # Errors
/// As [`connect_rdma`].
pub fn connect_all(
    control: &mut Control,
    port: &Port,
    test: &Test,
    side: Side,
    agreed: &Agreed,
) -> Result<Vec<Rdma>> {
    (0..test.threads).map(|_| connect_rdma(control, port, test, side, agreed)).collect()
}

/// Creates this end's queue pairs, exchanges endpoints, and connects. Both ends are in RTS when it returns.
///
/// # Errors
/// What the device refused, or the peer's error.
fn connect_rdma(
    control: &mut Control,
    port: &Port,
    test: &Test,
    side: Side,
    agreed: &Agreed,
) -> Result<Rdma> {
    control.set_step(Step::CreateQp);
    let prepared = Prepared::new(port, test, side)?;
    control.set_step(Step::Exchange);
    let remote: Endpoint = control.exchange(&prepared.endpoint(), "the peer's endpoint", STEP)?;
    control.set_step(Step::ConnectQp);
    let reads = Reads::agree(test, &agreed.ours, &agreed.theirs);
    let rdma = prepared.connect(&remote, test, &agreed.choice, reads)?;
    control.barrier("queue pairs are connected", STEP)?;
    Ok(rdma)
}

/// Takes a data connection over.
///
/// # Errors
/// A socket option was refused, or the peer's error.
pub fn connect_tcp(
    control: &mut Control,
    stream: TcpStream,
    test: &Test,
    side: Side,
    numa: Option<u32>,
) -> Result<Tcp> {
    control.set_step(Step::TcpConnect);
    let tcp = Tcp::new(stream, side, test, memory::placement(test, numa)?)?;
    control.barrier("data connection is open", STEP)?;
    Ok(tcp)
}

/// Exchanges the facts of both ends, and says in the document what follows from them.
///
/// # Errors
/// The peer's error.
pub fn introduce(control: &mut Control, document: &mut Document) -> Result<()> {
    control.set_step(Step::Exchange);
    let Some(local) = document.local.clone() else {
        return Err(Error::failed(Step::Exchange, "this end has no facts of itself"));
    };
    let ours = document.missing.iter().filter_map(|missing| {
        Some(Missing { path: missing.path.strip_prefix("local.")?.into(), reason: missing.reason.clone() })
    });
    let introduction = Introduction { end: local.clone(), missing: ours.collect() };
    let Introduction { end: remote, missing } =
        control.exchange(&introduction, "the facts of the other end", STEP)?;
    for missing in missing {
        document.miss(format!("remote.{}", missing.path), missing.reason);
    }
    let same_host = local.machine.boot_id.is_some() && local.machine.boot_id == remote.machine.boot_id;
    document.same_host = Some(same_host);
    let both_paths = local.device.is_some() && local.tcp.is_some();
    if same_host && both_paths {
        document.note(
            "same_host",
            "both ends are on one host: RDMA and TCP each take a shortcut there, so that their ratio says little of a network",
        );
    }
    if let (false, Some(false)) = (same_host, local.tcp.as_ref().and_then(|tcp| tcp.same_link)) {
        document.warn(
            "other_link",
            "TCP runs over another interface than RDMA: the two rows measure different links",
        );
    }
    document.remote = Some(remote);
    warn_of_buffers(document);
    Ok(())
}

/// The kernel cuts a buffer that is larger than it allows, without a word.
fn warn_of_buffers(document: &mut Document) {
    let Some(asked) = document.test.as_ref().map(|test| test.tcp.clone()) else { return };
    let mut cut = Vec::new();
    for end in [&document.local, &document.remote].into_iter().flatten() {
        let Some(tcp) = &end.tcp else { continue };
        let side = if end.side == Side::Client { "client" } else { "server" };
        for (option, limit, asked, granted) in [
            ("--tcp-sndbuf", "wmem_max", asked.send_buffer_bytes, tcp.send_buffer_bytes),
            ("--tcp-rcvbuf", "rmem_max", asked.receive_buffer_bytes, tcp.receive_buffer_bytes),
        ] {
            // It counts twice what is asked for.
            if let (Some(asked), Some(granted)) = (asked, granted)
                && granted / 2 < asked.into()
            {
                cut.push(format!(
                    "the {side}'s kernel granted {} of {option} {asked}: net.core.{limit} is its limit",
                    granted / 2
                ));
            }
        }
    }
    for line in cut {
        document.warn("tcp_buffer", line);
    }
}

/// Notes in this end's facts what its buffers will lie in.
///
/// # Errors
/// This kernel has no huge pages.
pub fn note_buffers(document: &mut Document, test: &Test, numa: Option<u32>) -> Result<()> {
    let placement = memory::placement(test, numa)?;
    if let Some(end) = &mut document.local {
        let page_bytes = memory::page_bytes(placement);
        end.buffers = Some(Buffers { page_bytes, numa_node: placement.numa_node });
    }
    Ok(())
}

/// What explains a failure of these queue pairs.
pub fn diagnosis(port: &Port, side: Side, agreed: &Agreed, rdma: &[Rdma]) -> Diagnosis {
    Diagnosis::new(port, side, &agreed.choice, (&agreed.ours, &agreed.theirs), rdma)
}

/// Notes the choice of the path in this end's facts.
pub fn note_path(document: &mut Document, port: &Port, agreed: &Agreed, rdma: &[Rdma]) {
    if let (Some(end), Some(rdma)) = (&mut document.local, rdma.first()) {
        ends::add_path(end, port, &agreed.choice, rdma);
    }
}

/// Notes the socket in this end's facts.
pub fn note_socket(document: &mut Document, tcp: &Tcp) {
    if let Some(end) = &mut document.local {
        for (key, reason) in ends::add_socket(end, tcp.stream()) {
            document.miss(format!("local.tcp.{key}"), reason);
        }
    }
}
