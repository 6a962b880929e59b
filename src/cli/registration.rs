//! What `reg_mr_lat` was told.

use std::ffi::OsString;
use std::time::Duration;

use clap::{CommandFactory, Parser, ValueEnum};

use super::{SizeSpec, parse_label, parse_positive_duration};

/// The options of `reg_mr_lat`.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "reg_mr_lat",
    version,
    about = "Latency of registering memory and of ending that, beside copying into memory that is registered already",
    after_help = "It is local: there is no server. Sizes are binary: 64, 64k, 64KiB, 1M. Durations: 2 (seconds), 500ms.\n\
                  Exit status: 0 as asked, 2 usage, 5 the measurement failed or must not be trusted, 130 interrupted."
)]
pub struct RegistrationArgs {
    /// RDMA device [default: the first usable one, or an emulated one]
    #[arg(short = 'd', long = "ib-dev", value_name = "NAME", help_heading = "This end")]
    pub device: Option<String>,

    /// NUMA node that the memory is to lie on [default: that of the core]
    #[arg(long, value_name = "N", help_heading = "This end", value_parser = clap::value_parser!(u32).range(0..=1023))]
    pub numa: Option<u32>,

    /// Core to run on [default: chosen near the device]
    #[arg(long, value_name = "N", help_heading = "This end")]
    pub cpu: Option<usize>,

    /// Size, a list (4k,1M), or a range by doubling (4k..64M) [default: 4k,64k,1M,16M,64M]
    #[arg(short, long, value_name = "SIZES", help_heading = "Test", conflicts_with = "all")]
    pub size: Option<SizeSpec>,

    /// All sizes from 4 KiB to 1 GiB, by doubling, as far as device and machine have room for them
    #[arg(short, long, help_heading = "Test")]
    pub all: bool,

    /// Exactly this many registrations of each size and kind of memory, and as many copies
    #[arg(short = 'n', long, value_name = "N", help_heading = "Test", conflicts_with = "duration",
          value_parser = clap::value_parser!(u64).range(1..u64::MAX))]
    pub iters: Option<u64>,

    /// This long for each of them [default: 300 ms]
    #[arg(short = 'D', long, value_name = "TIME", help_heading = "Test", value_parser = parse_positive_duration)]
    pub duration: Option<Duration>,

    /// Memory whose pages are there before it is registered (yes), which are not (no), or one after the other
    #[arg(long, value_name = "WHICH", help_heading = "Memory", default_value = "both")]
    pub touch: Touch,

    /// Memory in huge pages of the system's default size; they must be reserved
    #[arg(long, help_heading = "Memory")]
    pub hugepages: bool,

    /// On-demand paging alone: memory that is not pinned. Without this both are measured on devices that have it
    #[arg(long, help_heading = "Memory")]
    pub odp: bool,

    /// Write the result document, also of a failed run; - is standard output, then without the table
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<OsString>,

    /// Write one row a result
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub csv: Option<OsString>,

    /// Note for the result document, repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", help_heading = "Output", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,

    /// Say what was chosen and why
    #[arg(short, long, help_heading = "Output")]
    pub verbose: bool,
}

/// Which memory is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Touch {
    /// Touched, then untouched.
    Both,
    /// Touched.
    Yes,
    /// Untouched.
    No,
}

/// The command, as `--help` and the manual show it.
pub fn command() -> clap::Command {
    RegistrationArgs::command()
}

/// Reads a command line; `words` begins with the program's name.
///
/// # Errors
/// clap's error, which also carries `--help` and `--version`.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<RegistrationArgs, clap::Error> {
    RegistrationArgs::try_parse_from(words)
}
