//! What a test that streams both ways at once goes with.

use super::{Shape, Test};
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
        if !self.connection.is_reliable() {
            return refuse("-b counts on delivery, which -c RC alone gives", "leave -b or -c away");
        }
        if self.load.is_open() {
            return refuse(
                "-b keeps both directions full: it does not go with --rate",
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
