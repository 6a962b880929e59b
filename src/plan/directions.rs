//! What a test that streams both ways at once goes with.

use super::{Connection, Shape, Test};
use crate::error::{Error, Result};

impl Test {
    /// A test of both directions is one that this version has.
    pub(super) fn check_directions(&self) -> Result<()> {
        if !self.bidirectional {
            return Ok(());
        }
        let refuse = |message: &str, remedy: &str| Err(Error::usage(message).with_remedy(remedy));
        if self.shape == Shape::Latency {
            return refuse(
                "-b is for bandwidth tests: a ping-pong goes both ways already",
                "leave -b away, or use the bandwidth test",
            );
        }
        if self.threads > 1 {
            return refuse(
                "-b runs on one thread an end: it does not go with --threads yet",
                "leave one of the two away",
            );
        }
        if self.connection != Connection::Rc {
            return refuse("-b runs over RC: it does not go with -c yet", "leave one of the two away");
        }
        if self.load.rate_per_s.is_some() || !self.load.rate_shares.is_empty() {
            return refuse(
                "-b keeps as much outstanding as it may: it does not go with a rate yet",
                "leave one of the two away",
            );
        }
        if self.tcp.zero_copy {
            return refuse(
                "-b sends over TCP without blocking: it does not go with --tcp-zerocopy yet",
                "leave one of the two away",
            );
        }
        Ok(())
    }
}
