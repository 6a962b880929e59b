//! What was typed: options as they stand on the command line, with no default that depends on another option.
//!
//! Names follow perftest where the meaning is the same. What the options decide is in `plan`.

use std::ffi::OsString;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser};

use crate::units::{parse_duration, parse_size};

mod durations;
mod endpoint;
mod gate;
mod limit;
mod rates;
pub mod registration;
mod sizes;
mod tcp;
pub mod tool;

pub use durations::SHORTEST_LOSS_TIMEOUT;
use durations::{parse_loss_timeout, parse_positive_duration};
pub use endpoint::{EndpointArgs, ReachArgs};
pub use limit::{Bound, BoundSide, LimitSpec, Of, Quantity};
pub use rates::{LoadArgs, MOST_RATE, MOST_SHARES, Shares, is_share};
pub use sizes::SizeSpec;
pub use tcp::{MOST_BUSY_POLL, MOST_SOCKET_BUFFER, TcpArgs, is_congestion_name};

/// The options of one test binary.
#[derive(Debug, Clone, Parser)]
#[command(
    version,
    disable_help_subcommand = true,
    after_help = "Sizes are binary: 64, 64k, 64KiB, 1M. Durations: 2 (seconds), 500ms, 100us.\n\
                  Limits: METRIC:max=VALUE or METRIC:min=VALUE, held to at every size. Metrics and their units: min p50 p90 p99 p99.9 \
                  p99.99 max mean (ns, us, ms), bw (Gbps, MBps, GiBps, %link), rate (/s, k/s, M/s), cpu.client cpu.server \
                  (ns); they are RDMA's, with tcp. before them TCP's; and as in the table tcp/rdma.p50, rdma/tcp.bw (a \
                  number).\n\
                  Exit status: 0 as asked, 1 a limit failed, 2 usage, 5 the measurement failed, must not be trusted, or a \
                  limit could not be evaluated, 130 interrupted."
)]
pub struct TestArgs {
    /// Server to measure against; without it this end serves
    #[arg(value_name = "HOST")]
    pub host: Option<String>,

    /// Run both ends in this process, on the first usable device or an emulated one
    #[arg(long, conflicts_with = "host")]
    pub loopback: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub endpoint: EndpointArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub reach: ReachArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shape: ShapeArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub queues: QueueArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub path: PathArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub tcp: TcpArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
}

/// What is measured, decided by the client.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Test, decided by the client")]
pub struct ShapeArgs {
    /// Message size, a list (64,4k,1M), or a range by doubling (64..64k) [default: 64 for latency, 64k for bandwidth]
    #[arg(short, long, value_name = "SIZES", conflicts_with = "all")]
    pub size: Option<SizeSpec>,

    /// All sizes from 1 byte to 8 MiB, by doubling, as far as both devices take them
    #[arg(short, long)]
    pub all: bool,

    /// Exactly this many messages a size
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..u64::MAX))]
    pub iters: Option<u64>,

    /// This long a size [default: 1 s]
    #[arg(short = 'D', long, value_name = "TIME", value_parser = parse_positive_duration)]
    pub duration: Option<Duration>,

    /// Warm-up before each size [default: 100 ms; with -n the shorter of that and a tenth of -n]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub warm_up: Option<Duration>,

    /// Transport service: all verbs run over RC; send, write and write_imm over UC; send over UD, up to the path's MTU
    #[arg(short, long, value_name = "SERVICE", default_value = "RC", ignore_case = true, value_parser = ["RC", "UC", "UD"])]
    pub connection: String,

    /// How long a message over UC or UD may take before it counts as lost, at least 100us
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = parse_loss_timeout)]
    pub loss_timeout: Duration,

    /// Operation: what is added is 1, and what is swapped in is one more than was there
    #[arg(short = 'A', long, value_name = "OPERATION", default_value = "fetch_add", hide = true, ignore_case = true,
          value_parser = atomic_parser())]
    pub atomic: String,

    /// Stream both ways at once; bandwidth only
    #[arg(short, long)]
    pub bidirectional: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub load: LoadArgs,

    /// Sleep until woken by the device (RDMA) or the kernel (TCP) instead of busy polling
    #[arg(short, long)]
    pub events: bool,

    /// Measure each size busy polling and then with events, over both paths: what polling gains, and what it costs
    #[arg(long, conflicts_with = "events")]
    pub compare_wait: bool,

    /// Check every latency message and the last window of a bandwidth run, outside the timed span
    #[arg(long)]
    pub verify: bool,

    /// Report what each row cost the CPUs of both ends: in user mode and in the kernel, switches, faults, polls, what the
    /// machine counts, and what all its cores did beside an idle second
    #[arg(long)]
    pub cpu_report: bool,

    /// Core for the server to run on, unless it was given one of its own
    #[arg(long, value_name = "N")]
    pub peer_cpu: Option<usize>,

    /// Fail with status 1 where a metric lies beyond a bound at any size, repeatable: p99:max=5us, bw:min=90%link,
    /// tcp/rdma.p50:min=3
    #[arg(long = "limit", value_name = "METRIC:BOUND", value_parser = clap::value_parser!(LimitSpec))]
    pub limits: Vec<LimitSpec>,

    /// Measure RDMA only
    #[arg(long, conflicts_with = "tcp_only")]
    pub no_tcp: bool,

    /// Measure TCP only; needs no RDMA device
    #[arg(long)]
    pub tcp_only: bool,
}

/// Queue depths and what goes with them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Queues, decided by the client")]
pub struct QueueArgs {
    /// Queue pairs of each thread
    #[arg(short = 'q', long = "qp", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MOST_QPS as i64))]
    pub qps: u32,

    /// Threads of each end, with a core, queue pairs and a connection of their own; bandwidth only
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MOST_THREADS as i64))]
    pub threads: u32,

    /// Send queue depth of each queue pair; for bandwidth the most messages outstanding [default: 128, less for many
    /// queue pairs]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub tx_depth: Option<u32>,

    /// Receives posted ahead on each queue pair, or with --srq on the shared queue [default: 512, less for many queue
    /// pairs]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub rx_depth: Option<u32>,

    /// Receives come from one queue that all queue pairs share
    #[arg(long)]
    pub srq: bool,

    /// Ask for a completion each N sends [default: 32 or a quarter of -t]
    #[arg(short = 'Q', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub cq_mod: Option<u32>,

    /// Post work requests in linked lists of N, one call each; bandwidth only
    #[arg(short = 'l', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub post_list: u32,

    /// Take up to N completions with one poll; bandwidth only [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub cqe_batch: Option<u32>,

    /// Largest payload copied into the work request [default: what the device grants up to 220 for latency, 0 for bandwidth]
    #[arg(short = 'I', long = "inline-size", value_name = "SIZE", value_parser = parse_inline)]
    pub inline: Option<u32>,

    /// RDMA READs outstanding, within both devices' limits
    #[arg(short = 'o', long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..))]
    pub outs: u8,
}

/// The memory that messages lie in.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Memory, decided by the client")]
pub struct MemoryArgs {
    /// Buffers that messages go through in turn, for each queue pair or connection; bandwidth only [default: as many as
    /// may be outstanding, within 1 MiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_BUFFERS as i64))]
    pub buffers: Option<u32>,

    /// Buffers in huge pages of the system's default size, at both ends and on both paths; they must be reserved
    #[arg(long)]
    pub hugepages: bool,

    /// Let the device write to memory in any order; not for tests that wait for the last byte
    #[arg(long)]
    pub relaxed_ordering: bool,

    /// Do not pin the buffers: on-demand paging, on devices that have it
    #[arg(long)]
    pub odp: bool,
}

/// Attributes of the path between the queue pairs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Path, decided by the client")]
pub struct PathArgs {
    /// Path MTU in bytes [default: the smaller active MTU of both ports]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_mtu)]
    pub mtu: Option<u32>,

    /// Service level
    #[arg(short = 'S', long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub sl: u8,

    /// Traffic class of the global route header: DSCP and ECN of RoCE v2
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=255))]
    pub tclass: u8,

    /// Flow label of the global route header, 20 bits
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=0xf_ffff))]
    pub flow_label: u32,

    /// Hop limit of the global route header: the time to live of RoCE v2
    #[arg(long, value_name = "N", default_value_t = HOP_LIMIT, value_parser = clap::value_parser!(u8).range(1..=255))]
    pub hop_limit: u8,

    /// Local ACK timeout: 4.096 us * 2^N
    #[arg(short = 'u', long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..=31))]
    pub qp_timeout: u8,

    /// Retries after a timeout
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u8).range(0..=6))]
    pub retry_count: u8,

    /// Retries while the receiver has no receive posted; 7 is endless
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(0..=7))]
    pub rnr_retry: u8,

    /// Code of the wait that a sender without a posted receive is told: 12 is 0.64 ms, 1 is 0.01 ms, 0 is 655 ms
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u8).range(0..=31))]
    pub min_rnr_timer: u8,

    /// Give up when nothing has moved for this long
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = parse_positive_duration)]
    pub stall_timeout: Duration,
}

/// Routers a packet may pass, and one, unless another number is asked for: more than any data centre has.
pub const HOP_LIMIT: u8 = 64;

/// Most queue pairs of a thread: their index has a part of a work request's identifier.
pub const MOST_QPS: u32 = 4096;

/// Most threads of an end.
pub const MOST_THREADS: u32 = 256;

/// Most buffers.
pub const MOST_BUFFERS: u32 = 1 << 20;

/// Where results go.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Write the result document, also of a failed run; - is standard output, then without the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<OsString>,

    /// Write one row a result
    #[arg(long, value_name = "FILE")]
    pub csv: Option<OsString>,

    /// Write the histograms as an HdrHistogram interval log
    #[arg(long, value_name = "FILE")]
    pub hlog: Option<OsString>,

    /// Note for the result document, repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,

    /// Say what was chosen and why
    #[arg(short, long)]
    pub verbose: bool,
}

/// Operations by our names, and by perftest's.
fn atomic_parser() -> impl clap::builder::TypedValueParser<Value = String> {
    use clap::builder::{PossibleValue, PossibleValuesParser};
    PossibleValuesParser::new([
        PossibleValue::new("fetch_add").alias("FETCH_AND_ADD"),
        PossibleValue::new("compare_swap").alias("CMP_AND_SWP").alias("CMP_AND_SWAP"),
    ])
}

fn parse_inline(text: &str) -> Result<u32, String> {
    const MOST: u64 = 4096;
    match parse_size(text)? {
        size if size <= MOST => Ok(size as u32),
        size => Err(format!("{size} is more than any device takes inline ({MOST})")),
    }
}

fn parse_mtu(text: &str) -> Result<u32, String> {
    match parse_size(text)? {
        mtu @ (256 | 512 | 1024 | 2048 | 4096) => Ok(mtu as u32),
        other => Err(format!("{other} is not a path MTU: 256, 512, 1024, 2048 or 4096")),
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("write KEY=VALUE".into()),
    }
}

/// What one binary was told, and which of the client's options a server would ignore.
#[derive(Debug, Clone)]
pub struct Typed {
    /// The options.
    pub args: TestArgs,
    /// Options of the client's that stand on the command line, as typed there.
    pub client_options: Vec<String>,
}

/// The command of a test binary: its name, and in one sentence what it measures.
pub fn command(name: &'static str, about: &'static str) -> clap::Command {
    let usage = format!(
        "{name} [OPTIONS]              serve one test, then exit with its status\n       \
         {name} [OPTIONS] HOST         measure against the server on HOST\n       \
         {name} [OPTIONS] --loopback   both ends in this process"
    );
    let command = TestArgs::command().name(name).bin_name(name).about(about).override_usage(usage);
    if name.starts_with("atomic_") { command.mut_arg("atomic", |atomic| atomic.hide(false)) } else { command }
}

/// Reads a command line; `words` begins with the program's name.
///
/// # Errors
/// clap's error, which also carries `--help` and `--version`.
pub fn parse(
    name: &'static str,
    about: &'static str,
    words: impl IntoIterator<Item = OsString>,
) -> Result<Typed, clap::Error> {
    let command = command(name, about);
    let mut matches = command.try_get_matches_from(words)?;
    let client_options = client_options(&matches);
    Ok(Typed { args: TestArgs::from_arg_matches_mut(&mut matches)?, client_options })
}

/// Headings whose options only a client decides.
const CLIENTS: [&str; 5] = [
    "Test, decided by the client",
    "Queues, decided by the client",
    "Memory, decided by the client",
    "Path, decided by the client",
    "TCP, decided by the client",
];

fn client_options(matches: &ArgMatches) -> Vec<String> {
    TestArgs::command()
        .get_arguments()
        .filter(|arg| arg.get_help_heading().is_some_and(|heading| CLIENTS.contains(&heading)))
        .filter(|arg| arg.get_id() != "tcp_only")
        .filter(|arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine))
        .filter_map(|arg| arg.get_long().map(|long| format!("--{long}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Typed, clap::Error> {
        let words = std::iter::once("send_lat").chain(line.split_whitespace());
        parse("send_lat", "about", words.map(OsString::from))
    }

    #[test]
    fn the_command_is_well_formed() {
        command("send_lat", "about").debug_assert();
    }

    #[test]
    fn contradictions_and_values_out_of_range_are_usage_errors() {
        for line in [
            "-n 10 -D 1",
            "-n 0",
            "-D 0",
            "-s 0",
            "-s 64kB",
            "-s 64,,1",
            "-s 4k..64",
            "-t 0",
            "-t 65537",
            "-p 70000",
            "-x -1",
            "-S 16",
            "-u 32",
            "--retry-count 7",
            "--tclass 256",
            "--flow-label 1048576",
            "--hop-limit 0",
            "--hop-limit 256",
            "--min-rnr-timer 32",
            "--pkey-index 65536",
            "--pkey-index -1",
            "-m 1500",
            "--no-tcp --tcp-only",
            "host --loopback",
            "-a -s 64",
            "--events --compare-wait",
            "-c XRC",
            "--loss-timeout 99us",
            "-I 1G",
            "--label novalue",
            "-s 18446744073709551616",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }

    #[test]
    fn options_of_the_client_are_known_as_such() {
        let typed = read("-s 64 --tcp-only -d rxe0 -p 0 -Q 4").unwrap();
        assert_eq!(typed.client_options, ["--size", "--cq-mod"]);
    }
}
