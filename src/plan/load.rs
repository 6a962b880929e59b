//! How many messages a latency test keeps under way, and at which rate.

use serde::{Deserialize, Serialize};

use super::{Shape, Test, Transport};
use crate::cli::{LoadArgs, MOST_RATE, MOST_SHARES, is_share};
use crate::error::{Error, Result};
use crate::measure::{Arrivals, Pace, Stop};
use crate::ops::{Arrival, Verb};

/// The load of a test. Without a rate the loop is closed: a message goes when there is room for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Most messages outstanding; of a bandwidth test its `tx_depth`.
    pub depth: u32,
    /// Messages a second of an open loop.
    pub rate_per_s: Option<f64>,
    /// How the messages of an open loop follow each other.
    pub arrivals: Arrivals,
    /// Shares of the rate of a closed loop, each of which is then the rate of an open one.
    pub rate_shares: Vec<f64>,
}

/// Bytes of all slots of a latency test at most: what is more is a slip of the keyboard.
const MOST_MEMORY: u64 = 8 << 30;

/// Gaps that must fit the stall timeout: a longer one, or a random one many times the mean, would look like a stall.
const CONSTANT_GAPS: f64 = 2.0;
const POISSON_GAPS: f64 = 20.0;

impl Load {
    /// What was typed has a meaning in a test of this shape.
    pub(super) fn check_typed(typed: &LoadArgs, shape: Shape) -> Result<()> {
        if let (Some(depth), Shape::Bandwidth) = (typed.depth, shape) {
            return Err(only_latency(depth));
        }
        if typed.arrivals.is_some() && typed.rate.is_none() && typed.rate_sweep.is_none() {
            return Err(Error::usage(
                "--arrivals has no meaning without --rate: a closed loop has no schedule",
            )
            .with_remedy("add --rate or --rate-sweep, or leave --arrivals away"));
        }
        Ok(())
    }

    /// From what was typed.
    pub(super) fn new(typed: &LoadArgs, verb: Verb, shape: Shape, tx_depth: u32, rx_depth: u32) -> Self {
        let is_open = typed.rate.is_some() || typed.rate_sweep.is_some();
        let receives = verb.facts().arrival == Arrival::RecvCompletion;
        let most = if receives { tx_depth.min(rx_depth) } else { tx_depth };
        let depth = match shape {
            Shape::Bandwidth => tx_depth,
            Shape::Latency if is_open => most,
            Shape::Latency => 1,
        };
        Self {
            depth: typed.depth.unwrap_or(depth),
            rate_per_s: typed.rate,
            arrivals: match typed.arrivals.as_deref() {
                Some("poisson") => Arrivals::Poisson,
                _ => Arrivals::Constant,
            },
            rate_shares: typed.rate_sweep.as_ref().map(|shares| shares.0.clone()).unwrap_or_default(),
        }
    }

    /// Some message is sent when it is due.
    pub fn is_open(&self) -> bool {
        self.rate_per_s.is_some() || !self.rate_shares.is_empty()
    }

    /// Ranges alone: the values may come from the network.
    pub(super) fn is_in_range(&self) -> bool {
        self.depth > 0
            && self.rate_per_s.is_none_or(|rate| rate > 0.0 && rate <= MOST_RATE)
            && self.rate_shares.len() <= MOST_SHARES
            && self.rate_shares.iter().all(|share| is_share(*share))
    }

    /// It goes with the rest of the test.
    pub(super) fn check(&self, test: &Test) -> Result<()> {
        let facts = test.verb.facts();
        let refuse = |message: String, remedy: &str| Err(Error::usage(message).with_remedy(remedy));
        if test.shape == Shape::Bandwidth {
            if self.depth != test.tx_depth {
                return Err(only_latency(self.depth));
            }
            if self.is_open() && test.threads > 1 {
                let message = format!("--threads {} with --rate: one thread keeps a schedule", test.threads);
                return refuse(message, "leave --threads away");
            }
            if self.is_open() && test.post_list > 1 {
                let message =
                    format!("-l {} with --rate: each message is posted when it is due", test.post_list);
                return refuse(message, "leave -l away");
            }
            if !self.rate_shares.is_empty() {
                return refuse("--rate-sweep is for latency tests".into(), "use the latency test, or --rate");
            }
        }
        if self.depth > test.tx_depth {
            let message =
                format!("--depth {} is more than the send queue of -t {}", self.depth, test.tx_depth);
            return refuse(message, "lower --depth, or raise -t");
        }
        let receives = facts.arrival == Arrival::RecvCompletion;
        if test.shape == Shape::Latency && receives && self.depth > test.rx_depth && test.is_pipelined() {
            let message = format!("--depth {} is more than the receives of -r {}", self.depth, test.rx_depth);
            return refuse(message, "lower --depth, or raise -r");
        }
        if (test.is_pipelined() || self.is_open()) && !test.connection.is_reliable() {
            return refuse(
                format!(
                    "--rate, and in a latency test --depth and -q, count on every message, of which {} may lose some",
                    test.connection
                ),
                "use -c RC, or leave them away",
            );
        }
        if self.is_open() && test.sleeps() {
            let option = if test.compare_waits { "--compare-wait" } else { "--events" };
            return refuse(
                format!("--rate with {option}: an open loop spins, since who sleeps is late"),
                &format!("leave {option} away"),
            );
        }
        if !self.rate_shares.is_empty() && test.sizes.len() != 1 {
            let message = format!("--rate-sweep works at one size, not at {}", test.sizes.len());
            return refuse(message, "name one size with -s");
        }
        if test.is_pipelined() && test.tcp.zero_copy {
            return refuse(
                "--tcp-zerocopy goes with one message outstanding: buffers would be lent while they are needed".into(),
                "leave --tcp-zerocopy away, or measure at --depth 1 without --rate",
            );
        }
        let outstanding = u64::from(self.depth) * u64::from(test.qps);
        let largest = test.sizes.iter().copied().max().unwrap_or(1);
        if test.shape == Shape::Latency && outstanding.saturating_mul(2 * largest) > MOST_MEMORY {
            let message = format!(
                "--depth {}: {outstanding} messages outstanding have two buffers each, which of {largest} bytes are {} GiB",
                self.depth,
                outstanding.saturating_mul(2 * largest) >> 30
            );
            return refuse(message, "lower --depth or -q");
        }
        self.rate_per_s.map_or(Ok(()), |rate| test.check_rate(rate))
    }
}

fn only_latency(depth: u32) -> Error {
    Error::usage(format!(
        "--depth {depth} is for latency tests: a bandwidth test keeps -t messages outstanding"
    ))
    .with_remedy("use -t")
}

impl Test {
    /// A latency test that needs more than one message at a time, or one when it is due.
    pub fn is_pipelined(&self) -> bool {
        self.shape == Shape::Latency && (self.load.depth > 1 || self.qps > 1 || self.load.is_open())
    }

    /// Some of the messages outstanding wait for others inside the device.
    pub fn keeps_more_than_the_device(&self, transport: Transport) -> bool {
        self.is_pipelined()
            && transport == Transport::Rdma
            && self.measures(transport)
            && self.verb.facts().pulls()
            && self.load.depth > self.outstanding_reads.into()
    }

    /// The pace of an open loop at a rate.
    pub fn pace(&self, rate_per_s: f64) -> Pace {
        Pace { rate_per_s, arrivals: self.load.arrivals, seed: self.payload_seed }
    }

    /// An open loop of this rate ends, and no wait in it looks like a stall.
    ///
    /// # Errors
    /// `Usage`: the values that do not go together.
    pub fn check_rate(&self, rate: f64) -> Result<()> {
        let gaps = match self.load.arrivals {
            Arrivals::Constant => CONSTANT_GAPS,
            Arrivals::Poisson => POISSON_GAPS,
        };
        let stall = self.stall_timeout.as_secs_f64();
        // The completions of a stream come for so many at a time.
        let together = if self.shape == Shape::Bandwidth { f64::from(self.signal_every) } else { 1.0 };
        if rate * stall < gaps * together {
            return Err(Error::usage(format!(
                "at --rate {rate} the path is silent for longer than --stall-timeout {stall:.1} s lets it"
            ))
            .with_remedy(format!(
                "raise --stall-timeout to {:.0} s or more{}",
                (gaps * together / rate).ceil(),
                if together > 1.0 { ", or ask for more completions with -Q 1" } else { "" }
            )));
        }
        match self.stop {
            Stop::After(span) if rate * span.as_secs_f64() < 1.0 => Err(Error::usage(format!(
                "no message is due within {:.3} s at --rate {rate}",
                span.as_secs_f64()
            ))
            .with_remedy("measure longer with -D, or give a number of messages with -n")),
            _ => Ok(()),
        }
    }
}
