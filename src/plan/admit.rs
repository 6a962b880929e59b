//! What a server looks at before it agrees to a client's test. Numbers from the network are checked here, once.

use std::time::Duration;

use super::{Most, Shape, Site, Test, Transport, binary};
use crate::cli::{MOST_BUFFERS, MOST_QPS, MOST_THREADS};
use crate::error::{Error, Kind, Result, Step};
use crate::measure::Stop;
use crate::ops::Verb;
use crate::units::format_size;

/// Largest message, as in the command line.
const LARGEST: u64 = 1 << 30;

/// Most sizes of one test.
const MOST_SIZES: usize = 1000;

/// Deepest queue.
const DEEPEST: u32 = 1 << 16;

/// Most work requests of a list, and most completions taken at once.
const LONGEST_LIST: u32 = 1024;

/// What makes a test shorter.
pub const SHORTER: &str = "lower -D or --warm-up, or measure fewer sizes, rates, paths or ways to wait";

/// A server that serves `only` one test serves this one.
///
/// # Errors
/// The refusal, with both names.
pub fn serves(only: Option<(Verb, Shape)>, verb: Verb, shape: Shape) -> Result<()> {
    let wanted = binary(verb, shape);
    match only.map(|(verb, shape)| binary(verb, shape)) {
        Some(served) if served != wanted => {
            Err(Error::failed(Step::Plan, format!("this server serves {served}, not {wanted}"))
                .with_remedy(format!("run {wanted} or `verbmark serve` there, or {served} here")))
        }
        _ => Ok(()),
    }
}

/// The refusal of a client that wants RDMA from a server without it.
pub fn tcp_only_server() -> Error {
    Error::failed(Step::Plan, "this server was started with --tcp-only and has no RDMA")
        .with_remedy("start it without --tcp-only, or add --tcp-only here")
}

impl Test {
    /// Agrees to the test as a server that serves `only` one verb and shape, or any, or says why not.
    ///
    /// # Errors
    /// Another test than the one served, a value out of range, or RDMA asked of a server without it.
    pub fn admit(&self, only: Option<(Verb, Shape)>, site: &Site) -> Result<()> {
        let refuse = |message: String| Err(Error::failed(Step::Plan, message));
        serves(only, self.verb, self.shape)?;
        if site.tcp_only && self.measures(Transport::Rdma) {
            return Err(tcp_only_server());
        }
        if self.sizes.is_empty() || self.sizes.len() > MOST_SIZES {
            return refuse(format!("{} sizes; 1 to {MOST_SIZES} are possible", self.sizes.len()));
        }
        if let Some(size) = self.sizes.iter().find(|size| !(1..=LARGEST).contains(size)) {
            return refuse(format!("size {size} is outside 1 to {LARGEST}"));
        }
        for (name, depth) in [("-t", self.tx_depth), ("-r", self.rx_depth), ("-Q", self.signal_every)] {
            if !(1..=DEEPEST).contains(&depth) {
                return refuse(format!("{name} {depth} is outside 1 to {DEEPEST}"));
            }
        }
        for (name, count) in [("-l", self.post_list), ("--cqe-batch", self.cqe_batch)] {
            if !(1..=LONGEST_LIST).contains(&count) {
                return refuse(format!("{name} {count} is outside 1 to {LONGEST_LIST}"));
            }
        }
        if self.stop == Stop::Count(0) || self.transports.is_empty() {
            return refuse("a test without messages or paths".into());
        }
        if !(1..=MOST_THREADS).contains(&self.threads) {
            return refuse(format!("--threads {} is outside 1 to {MOST_THREADS}", self.threads));
        }
        if !(1..=MOST_QPS).contains(&self.qps) {
            return refuse(format!("-q {} is outside 1 to {MOST_QPS}", self.qps));
        }
        if let Some(buffers) = self.buffers.filter(|buffers| !(1..=MOST_BUFFERS).contains(buffers)) {
            return refuse(format!("--buffers {buffers} is outside 1 to {MOST_BUFFERS}"));
        }
        let in_range = self.qp_timeout <= 31
            && self.retry_count <= 7
            && self.rnr_retry <= 7
            && self.min_rnr_timer <= 31
            && self.service_level <= 15
            && self.flow_label >> 20 == 0
            && self.hop_limit > 0;
        if !in_range {
            return refuse("a path attribute is out of its range".into());
        }
        if !self.load.is_in_range() {
            return refuse(format!("a depth or a rate is out of its range: {:?}", self.load));
        }
        if !self.tcp.is_in_range() {
            return refuse(format!("an option of the socket is out of its range: {:?}", self.tcp));
        }
        self.check_most(&site.most)?;
        self.check().map_err(|error| Error { kind: Kind::Failed, ..error.at(Step::Plan) })
    }

    /// The server's own limits; that of memory is looked at where it is laid out.
    fn check_most(&self, most: &Most) -> Result<()> {
        let refuse = |message: String, remedy: &str| {
            Err(Error::failed(Step::Plan, message)
                .with_remedy(format!("{remedy}, or ask who runs the server")))
        };
        if let Some(most) = most.size
            && let Some(size) = self.sizes.iter().find(|size| **size > most)
        {
            return refuse(
                format!(
                    "this server takes messages of up to {}, not {}",
                    format_size(most),
                    format_size(*size)
                ),
                "choose smaller sizes with -s",
            );
        }
        // Of each thread.
        let qps = self.qps.saturating_mul(self.threads);
        if let Some(most) = most.qps.filter(|most| qps > *most) {
            return refuse(
                format!("this server takes up to {most} queue pairs, not {qps}"),
                "lower -q or --threads",
            );
        }
        let Some(most) = most.duration else { return Ok(()) };
        let shown = most.as_secs_f64();
        match self.takes() {
            None => refuse(
                format!("this server takes tests of up to {shown} s, and a count of messages tells no time"),
                "use -D instead of -n",
            ),
            Some((points, each)) if each.saturating_mul(points) > most => refuse(
                format!(
                    "this server takes tests of up to {shown} s, not {} s: {points} x {} s, of which {} s is warm-up",
                    each.saturating_mul(points).as_secs_f64(),
                    each.as_secs_f64(),
                    self.warm_up.span.as_secs_f64()
                ),
                SHORTER,
            ),
            Some(_) => Ok(()),
        }
    }

    /// How many points are measured, and how long each of them warms up and measures; `None` of a count of messages.
    fn takes(&self) -> Option<(u32, Duration)> {
        let Stop::After(measured) = self.stop else { return None };
        // A sweep of rates measures each path without a rate first.
        let ways = self.waits().len().saturating_add(self.load.rate_shares.len());
        let points = self.sizes.len().saturating_mul(self.transports.len()).saturating_mul(ways);
        Some((u32::try_from(points).unwrap_or(u32::MAX), measured.saturating_add(self.warm_up.span)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::plan::resolve;

    /// Points, and milliseconds of each.
    fn takes(line: &str) -> Option<(u32, u128)> {
        let words = std::iter::once("x").chain(line.split_whitespace()).map(Into::into);
        let typed = cli::parse("x", "about", words).unwrap();
        let test = resolve(typed, Verb::Send, Shape::Latency, 1).unwrap().test;
        test.takes().map(|(points, each)| (points, each.as_millis()))
    }

    #[test]
    fn all_that_is_measured_counts_with_its_warm_up() {
        for (line, expected) in [
            ("h -D 1 --tcp-only", Some((1, 1100))),
            ("h -D 1", Some((2, 1100))),
            ("h -D 1 -s 64,4k --warm-up 2", Some((4, 3000))),
            ("h -D 1 --compare-wait --warm-up 0", Some((4, 1000))),
            // Without a rate, and then at each share of what that gave.
            ("h -D 1 --rate-sweep 20%,50%", Some((6, 1100))),
            ("h -n 1000", None),
        ] {
            assert_eq!(takes(line), expected, "{line}");
        }
    }
}
