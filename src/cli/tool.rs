//! What `verbmark` was told: one subcommand with its own options.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use super::EndpointArgs;
use super::durations::parse_positive_duration;
pub use super::gate::{GateArgs, GateArms, GateMeasuring, GateOutput, PAIRS, RUNS};
use super::sizes::parse_positive_size;

/// The options of `verbmark`.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "verbmark",
    version,
    about = "What belongs to RDMA tests: devices, a look at the machine, a server of all of them, audits, explanations, \
             reports, comparisons, gates",
    disable_help_subcommand = true,
    arg_required_else_help = true,
    after_help = "Exit status: 0 as asked, 1 a gate failed, 2 usage, 3 a warning of doctor --strict or an inconclusive gate \
                  --strict, 4 not comparable, 5 failed, 130 interrupted."
)]
pub struct ToolArgs {
    /// What to do.
    #[command(subcommand)]
    pub task: Task,
}

/// The subcommands, one each.
#[derive(Debug, Clone, Subcommand)]
pub enum Task {
    /// List RDMA devices and ports, and say of each port whether a test can use it now, and why
    Devices(DevicesArgs),

    /// Run a test under strace: its system calls a message at each end and on each path, and the copies that follow from
    /// the path
    Audit(AuditArgs),

    /// Say what of this machine disturbs measurements, what that does to results, and what mends it; changes nothing
    Doctor(DoctorArgs),

    /// Show what zero copy and kernel bypass gain over TCP and what they cost, with the evidence, in about a minute
    Explain(ExplainArgs),

    /// Show the table of a recorded run again, and write its CSV and histogram log
    Report(ReportArgs),

    /// Show by how much runs differ from others: files or directories of recorded runs side by side, where they are
    /// comparable
    Compare(CompareArgs),

    /// Decide whether a candidate is slower than a baseline, for a CI job: in turns, against stored sittings, or by limits
    Gate(Box<GateArgs>),

    /// Serve any test to any client, one after the other, until stopped by SIGINT or SIGTERM
    Serve(ServeArgs),

    /// Write the manual page of every binary and subcommand
    #[command(hide = true)]
    Man(ManArgs),

    /// Write the completions of every binary for a shell
    #[command(hide = true)]
    Completions(CompletionsArgs),
}

/// Options of `verbmark devices`.
#[derive(Debug, Clone, Args)]
pub struct DevicesArgs {
    /// Only this device
    #[arg(short = 'd', long = "ib-dev", value_name = "NAME")]
    pub device: Option<String>,

    /// Write one JSON document; without FILE, or with -, to standard output, and then no table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<OsString>,
}

/// Options of `verbmark doctor`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "It reads, and spins on one core for as long as -D says; it needs no root and changes nothing.\n\
                        Exit status: 0 looked, whatever was found, 2 usage, 3 with --strict a warning, 5 failed."
)]
pub struct DoctorArgs {
    /// Also look at the way to this host, and whether a server answers there; what disturbs it must be asked there
    #[arg(value_name = "HOST")]
    pub host: Option<String>,

    /// RDMA device that a test would use [default: the first usable one]
    #[arg(short = 'd', long = "ib-dev", value_name = "NAME")]
    pub device: Option<String>,

    /// Port of the device [default: the first active one]
    #[arg(short = 'i', long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub ib_port: Option<u8>,

    /// Core that would measure [default: the one that a test would take]
    #[arg(long, value_name = "CORE")]
    pub cpu: Option<usize>,

    /// TCP port of the server on HOST
    #[arg(short, long, value_name = "PORT", default_value_t = 18515, requires = "host", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// How long the core is watched for what interrupts it
    #[arg(short = 'D', long, value_name = "TIME", default_value = "1", value_parser = parse_positive_duration)]
    pub duration: Duration,

    /// End with status 3 if there is a warning
    #[arg(long)]
    pub strict: bool,

    /// Write one JSON document; without FILE, or with -, to standard output, and then no table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<OsString>,

    /// Judge the files of a machine below this directory, as copied from its /proc and /sys, instead of this machine
    #[arg(long, value_name = "DIR", hide = true, conflicts_with = "host")]
    pub root: Option<PathBuf>,
}

/// Options of `verbmark explain`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// Host on which `verbmark serve` runs
    #[arg(value_name = "HOST")]
    pub host: Option<String>,

    /// Both ends on this host, on the first usable device or an emulated one
    #[arg(long, conflicts_with = "host")]
    pub loopback: bool,

    /// RDMA device of this end [default: the first usable one]
    #[arg(short = 'd', long = "ib-dev", value_name = "NAME")]
    pub device: Option<String>,

    /// Port of the device [default: 1]
    #[arg(short = 'i', long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub ib_port: Option<u8>,

    /// Index in the port's GID table [default: chosen by type, family, subnet and route]
    #[arg(short = 'x', long, value_name = "N")]
    pub gid_index: Option<u32>,

    /// TCP port of the server [default: 18515]
    #[arg(short, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,

    /// Secret that the server must know, too: a file of 16 bytes or more, with the same content at both ends
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,

    /// How long each size is measured each way; CPU time by bytes takes five times half of it
    #[arg(short = 'D', long, value_name = "TIME", default_value = "300ms", value_parser = parse_positive_duration)]
    pub duration: Duration,

    /// Longest time that one of the runs may take
    #[arg(long, value_name = "TIME", default_value = "120", value_parser = parse_positive_duration)]
    pub timeout: Duration,

    /// Write one JSON document with every run in it; - is standard output, then without the text
    #[arg(long, value_name = "FILE")]
    pub json: Option<OsString>,
}

/// Options of `verbmark audit`.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "verbmark audit [OPTIONS] -- TEST [OPTIONS] --loopback   both ends\n       \
                      verbmark audit [OPTIONS] -- TEST [OPTIONS] HOST         the client's end\n       \
                      verbmark audit [OPTIONS] -- TEST [OPTIONS]              the server's end, a run for each path",
    after_help = "TEST is a binary of this suite, such as send_lat, with its own options: one size, and no output. It \
                  runs once for each path, with -n 1000 unless they say otherwise. strace slows it down: no time is \
                  shown.\n\
                  Exit status: 0 as asked, 2 usage, 5 failed, 130 interrupted."
)]
pub struct AuditArgs {
    /// Write one JSON document; without FILE, or with -, to standard output, and then no table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<OsString>,

    /// End a traced run that takes longer than this, the wait of a server for its client included
    #[arg(long, value_name = "TIME", default_value = "120", value_parser = parse_positive_duration)]
    pub timeout: Duration,

    /// The test to trace, and its options
    #[arg(value_name = "TEST", last = true, required = true)]
    pub test: Vec<OsString>,
}

/// Options of `verbmark report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// The document of a run, as --json wrote it; - is standard input
    #[arg(value_name = "FILE")]
    pub document: OsString,

    /// Write one row a result; - is standard output, then without the table
    #[arg(long, value_name = "FILE")]
    pub csv: Option<OsString>,

    /// Write the histograms as an HdrHistogram interval log
    #[arg(long, value_name = "FILE")]
    pub hlog: Option<OsString>,
}

/// Options of `verbmark compare`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "In a directory, every *.json is a run of that side. An interval takes 4 runs a side or more. `~` says that the \
                  runs show no change: too few, or an interval with no change in it.\n\
                  Exit status: 0 compared, whatever changed; 2 usage; 4 not comparable; 5 a run that must not be trusted."
)]
pub struct CompareArgs {
    /// Recorded runs, as --json wrote them: a file or a directory a side; each side is compared with the first
    #[arg(value_name = "RUNS", required = true, num_args = 2..=26)]
    pub sides: Vec<OsString>,

    /// Compare although this field differs, and say so; repeatable, or a list with commas
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    pub allow_mismatch: Vec<String>,

    /// Write one JSON document; - is standard output, then without the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<OsString>,

    /// Write one row a metric of a point
    #[arg(long, value_name = "FILE")]
    pub csv: Option<OsString>,
}

/// Options of `verbmark serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub endpoint: EndpointArgs,

    /// Open no device, and refuse RDMA
    #[arg(long, conflicts_with = "device")]
    pub tcp_only: bool,

    /// Refuse clients that come while another is served, instead of letting them wait
    #[arg(long)]
    pub no_queue: bool,

    /// Refuse tests with larger messages
    #[arg(long, value_name = "SIZE", value_parser = parse_positive_size)]
    pub max_size: Option<u64>,

    /// Refuse tests whose buffers take more memory at this end
    #[arg(long, value_name = "SIZE", value_parser = parse_positive_size)]
    pub max_memory: Option<u64>,

    /// Refuse tests that warm up and measure for longer in all, and those of a count of messages; cut off what takes longer
    /// than twice that and 30 s
    #[arg(long, value_name = "TIME", value_parser = parse_positive_duration)]
    pub max_duration: Option<Duration>,

    /// Refuse tests with more queue pairs, or connections
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_qps: Option<u32>,

    /// Say what was chosen and why, and who else connected
    #[arg(short, long)]
    pub verbose: bool,
}

/// Options of `verbmark man`, which is for those who build packages.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Where the pages go; created if it is not there
    #[arg(value_name = "DIR")]
    pub directory: OsString,
}

/// Options of `verbmark completions`, likewise.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// For which shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,

    /// Where the files go; created if it is not there
    #[arg(value_name = "DIR")]
    pub directory: OsString,
}

/// The command, as `--help` and the manual show it.
pub fn command() -> clap::Command {
    ToolArgs::command()
}

/// Reads a command line; `words` begins with the program's name.
///
/// # Errors
/// clap's error, which also carries `--help` and `--version`.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<ToolArgs, clap::Error> {
    ToolArgs::try_parse_from(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn json_needs_no_file() {
        let json = |line: &str| {
            let words = line.split_whitespace().map(OsString::from);
            match parse(words).unwrap().task {
                Task::Devices(args) => args.json,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(json("verbmark devices"), None);
        assert_eq!(json("verbmark devices --json"), Some("-".into()));
        assert_eq!(json("verbmark devices --json -d emu0"), Some("-".into()));
        assert_eq!(json("verbmark devices --json out.json"), Some("out.json".into()));
    }
}
