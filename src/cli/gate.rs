//! What `verbmark gate` was told.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::durations::parse_positive_duration;
use super::parse_label;

/// Runs of a test in one sitting.
pub const RUNS: RangeInclusive<i64> = 1..=40;

/// Pairs of runs before a look.
pub const PAIRS: RangeInclusive<i64> = 3..=40;

/// Options of `verbmark gate`.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "verbmark gate [OPTIONS] --a COMMAND --b COMMAND                baseline and candidate, in turns\n       \
                      verbmark gate [OPTIONS] SUITE [HOST | --loopback]              what a suite file says: in turns, or limits\n       \
                      verbmark gate [OPTIONS] --baseline DIR (SUITE | --b COMMAND)   a candidate against stored sittings\n       \
                      verbmark gate [OPTIONS] --record DIR (SUITE | --b COMMAND)     one more sitting\n       \
                      verbmark gate [OPTIONS] --self-test N (SUITE | --b COMMAND)    how often it fails where nothing changed",
    after_help = "COMMAND is a test with its options, and variables of its environment before it, as in 'VAR=1 send_lat -s 64 HOST'. \
                  On HOST runs `verbmark serve`. \
                  An option that changes nothing in the way that was chosen is refused.\n\
                  Verdicts: improved, pass, regression, inconclusive, not comparable, invalid.\n\
                  Exit status: 0 improved, pass or inconclusive; 1 a regression, or a limit failed; 2 usage; 3 inconclusive with \
                  --strict; 4 not comparable, or no baseline; 5 a run failed, must not be trusted, or a limit could not be \
                  judged; 130 interrupted."
)]
pub struct GateArgs {
    /// Suite file, in TOML: tests, sizes, metrics, what is tolerated, limits, and the arms
    #[arg(value_name = "SUITE", required_unless_present_any = ["b", "candidate"])]
    pub suite: Option<PathBuf>,

    /// Host on which `verbmark serve` runs; added to every test of the suite
    #[arg(value_name = "HOST")]
    pub host: Option<String>,

    /// Both ends on this host; added to every test of the suite
    #[arg(long, conflicts_with = "host", requires = "suite")]
    pub loopback: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub arms: GateArms,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub measuring: GateMeasuring,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: GateOutput,
}

/// What is compared with what.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "What is compared")]
pub struct GateArms {
    /// The baseline: a test with its options
    #[arg(long, value_name = "COMMAND", conflicts_with = "suite", requires = "b")]
    pub a: Option<String>,

    /// The candidate
    #[arg(long, value_name = "COMMAND", conflicts_with = "suite")]
    pub b: Option<String>,

    /// Metric to compare, with --b, repeatable, or a list with commas: p50, p99, p99.9, bw, rate, cpu.client, cpu.server [default: p50 and p99, or bw]
    #[arg(long, value_name = "METRIC", value_delimiter = ',', conflicts_with = "suite")]
    pub metric: Vec<String>,

    /// Hold the candidate to the sittings in this directory, as --record wrote them
    #[arg(long, value_name = "DIR", conflicts_with = "a")]
    pub baseline: Option<PathBuf>,

    /// The candidate is measured already: a directory of documents, as a sitting is
    #[arg(long, value_name = "DIR", requires = "baseline", conflicts_with_all = ["b", "host", "loopback", "record"])]
    pub candidate: Option<PathBuf>,

    /// Add a sitting to this directory, unless it fails its limits or, with --baseline, the gate
    #[arg(long, value_name = "DIR", conflicts_with = "a")]
    pub record: Option<PathBuf>,

    /// Hold the candidate to itself, N times, and say how often that failed and what to tolerate
    #[arg(long, value_name = "N", conflicts_with_all = ["a", "baseline", "record"], value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub self_test: Option<u16>,

    /// Compare although this field differs: the verdict is advisory, until eight sittings are alike; repeatable, or a list with commas
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    pub allow_mismatch: Vec<String>,
}

/// How it is measured.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Measuring")]
pub struct GateMeasuring {
    /// Pairs of runs before the first look, after which only what has surely not become worse is done [default: 6, or the suite's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(PAIRS))]
    pub min_pairs: Option<u8>,

    /// Pairs of runs before the last look, which decides [default: 15, or the suite's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(PAIRS))]
    pub max_pairs: Option<u8>,

    /// Runs of each test in a sitting, or of one that is held to limits alone [default: as stored sittings have, or 6; and 1; or the suite's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(RUNS))]
    pub runs: Option<u8>,

    /// What the order of the arms is drawn from [default: a random number, which the document tells]
    #[arg(long, value_name = "N")]
    pub seed: Option<u32>,

    /// End a run that takes longer
    #[arg(long, value_name = "TIME", default_value = "120", value_parser = parse_positive_duration)]
    pub timeout: Duration,

    /// Keep the document of every run in this directory; a sitting that is recorded has them anyway
    #[arg(long, value_name = "DIR", conflicts_with = "record")]
    pub keep: Option<PathBuf>,

    /// Say what would be run and held to what, and run nothing: commands as bash takes them
    #[arg(long)]
    pub dry_run: bool,
}

/// What becomes of the verdict.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct GateOutput {
    /// End with status 3 where the verdict is inconclusive
    #[arg(long)]
    pub strict: bool,

    /// Note for the documents, repeatable; `commit` has a column of its own in --otava
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,

    /// Write one JSON document; - is standard output, then without the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<OsString>,

    /// Write JUnit XML: a case for each metric of each point, and each limit
    #[arg(long, value_name = "FILE")]
    pub junit: Option<OsString>,

    /// Write Markdown; where GITHUB_STEP_SUMMARY is set, it is appended to that file, too
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<OsString>,

    /// Write OpenMetrics text, as for a node_exporter textfile
    #[arg(long, value_name = "FILE")]
    pub openmetrics: Option<OsString>,

    /// Write CSV for Apache Otava: a row for each sitting
    #[arg(long, value_name = "FILE")]
    pub otava: Option<OsString>,

    /// Write the configuration by which Apache Otava reads that CSV
    #[arg(long, value_name = "FILE", requires = "otava")]
    pub otava_config: Option<OsString>,

    /// Write what is better when smaller, as JSON for github-action-benchmark
    #[arg(long, value_name = "FILE")]
    pub smaller_is_better: Option<OsString>,

    /// Write what is better when bigger, likewise
    #[arg(long, value_name = "FILE")]
    pub bigger_is_better: Option<OsString>,
}
