//! Two connected ends on the emulated device, in one thread.

use std::ffi::OsString;

use verbmark::error::Result;
use verbmark::ops::Verb;
use verbmark::plan::{Shape, Side, Test};
use verbmark::transport::path;
use verbmark::transport::rdma::{Port, Prepared, Rdma, Reads};
use verbmark::{cli, plan};

/// Bytes of a message.
pub const SIZE: u32 = 64;

/// Both ends of a test.
pub struct Rig {
    /// The end whose loops are measured.
    pub client: Rdma,
    /// The end that is written to and read from; kept for that alone.
    _server: Rdma,
    /// What both were made for.
    pub test: Test,
}

impl Rig {
    /// Connects two ends for messages of [`SIZE`] bytes, with the defaults of the binaries.
    /// Bandwidth is in lists of `list` messages.
    pub fn new(verb: Verb, shape: Shape, list: u64) -> Result<Self> {
        let line = format!("loops --loopback -d emu0 -s {SIZE} -l {list}");
        let words = line.split(' ').map(OsString::from);
        let typed = cli::parse("loops", "", words).expect("the options are constants that exist");
        let plan = plan::resolve(typed, verb, shape, 1)?;
        let port = Port::open(&plan.site)?;
        let facts = port.facts();
        let choice = path::choose(&facts, &facts, None, |_| None)?;
        let client = Prepared::new(&port, &plan.test, Side::Client)?;
        let server = Prepared::new(&port, &plan.test, Side::Server)?;
        let (ours, theirs) = (client.endpoint(), server.endpoint());
        let reads = Reads::agree(&plan.test, &facts, &facts);
        Ok(Self {
            client: client.connect(&theirs, &plan.test, &choice, reads)?,
            _server: server.connect(&ours, &plan.test, &choice, reads)?,
            test: plan.test,
        })
    }
}
