//! A suite file: what a gate measures, what of it is judged, and what is tolerated. TOML, described in `docs/formats.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::error::{Error, Result};
use crate::gate::series::Tolerance;
use crate::result::Quantity;
use crate::units::parse_duration;

/// Largest suite file that is read, in bytes.
const LARGEST: u64 = 1 << 20;

/// The file as it is written.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Suite {
    /// Options of every test: one text, or a list of words.
    #[serde(deserialize_with = "words")]
    pub options: Vec<String>,
    /// Measure TCP beside RDMA, and judge it, too.
    pub tcp: bool,
    /// Pairs of runs before the first look.
    pub min_pairs: Option<u8>,
    /// Pairs of runs before the last look.
    pub max_pairs: Option<u8>,
    /// Runs of each test in a sitting, or of one that is held to limits alone.
    pub runs: Option<u8>,
    /// Hard fields that may differ.
    pub allow_mismatch: Vec<String>,
    /// What is tolerated, by metric.
    pub tolerance: BTreeMap<Metric, TypedTolerance>,
    /// The baseline, which is measured in turns with the candidate.
    pub a: Option<TypedArm>,
    /// The candidate, where it is not what runs without further words.
    pub b: Option<TypedArm>,
    /// The tests, in order.
    pub test: Vec<TypedTest>,
}

/// One of the two that are compared.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TypedArm {
    /// What it is called.
    pub name: Option<String>,
    /// The directory of its binaries.
    pub programs: Option<PathBuf>,
    /// Variables of its environment.
    pub environment: BTreeMap<String, String>,
    /// Options that it adds to every test.
    #[serde(deserialize_with = "words")]
    pub options: Vec<String>,
}

/// One test.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypedTest {
    /// The binary, such as `send_lat`.
    pub binary: String,
    /// What it is called, unlike any other test of the suite.
    pub name: Option<String>,
    /// Sizes, as `-s` takes them.
    #[serde(default)]
    pub sizes: Vec<Size>,
    /// Options.
    #[serde(default, deserialize_with = "words")]
    pub options: Vec<String>,
    /// Metrics to judge.
    #[serde(default)]
    pub metrics: Option<Vec<Metric>>,
    /// What is tolerated of this test.
    #[serde(default)]
    pub tolerance: BTreeMap<Metric, TypedTolerance>,
    /// Limits, as `--limit` takes them.
    #[serde(default)]
    pub limits: Vec<String>,
}

/// What is tolerated of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TypedTolerance {
    tolerance: Option<Share>,
    must_detect: Option<Share>,
    floor: Option<Floor>,
    advisory: Option<bool>,
}

impl From<TypedTolerance> for Tolerance {
    fn from(typed: TypedTolerance) -> Self {
        Self {
            tolerance: typed.tolerance.map(|share| share.0),
            must_detect: typed.must_detect.map(|share| share.0),
            floor: typed.floor.map(|floor| floor.0),
            advisory: typed.advisory,
        }
    }
}

/// A size of a message: `64`, or `"4k"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a size is a number of bytes, or a text such as \"4k\" or \"64..1M\"")]
pub enum Size {
    /// In bytes.
    Bytes(u64),
    /// As `-s` takes it.
    Text(String),
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// The name of a metric that has a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Metric(pub Quantity);

impl TryFrom<String> for Metric {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        metric(&name).map(Self)
    }
}

/// A metric that has a rule, by its name.
///
/// # Errors
/// Those that there are.
pub fn metric(name: &str) -> Result<Quantity, String> {
    let known = Quantity::named(name).filter(|metric| Quantity::GATED.contains(metric));
    known.ok_or_else(|| {
        let names = Quantity::GATED.map(Quantity::name).join(", ");
        format!("'{name}' is not a metric that is compared: {names}")
    })
}

/// `"2%"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "String")]
struct Share(f64);

impl TryFrom<String> for Share {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
        match number {
            Some(percent) if (0.0..10_000.0).contains(&percent) => Ok(Self(percent / 100.0)),
            _ => Err(format!("'{text}' is not a share: write percent, as in \"2%\"")),
        }
    }
}

/// `"50ns"`; of latencies, which alone are read from a clock.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "String")]
struct Floor(f64);

impl TryFrom<String> for Floor {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let nanoseconds = text.strip_suffix("ns").and_then(|number| number.trim_end().parse::<u32>().ok());
        match nanoseconds {
            Some(ns) => Ok(Self(ns.into())),
            None => parse_duration(&text)
                .map(|duration: Duration| Self(duration.as_secs_f64() * 1e9))
                .map_err(|_| format!("'{text}' is not a floor: write a time, as in \"50ns\" or \"2us\"")),
        }
    }
}

/// One text, split as a shell would, or a list of words.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "options are one text, or a list of words")]
    enum Typed {
        Text(String),
        List(Vec<String>),
    }
    match Typed::deserialize(deserializer)? {
        Typed::List(words) => Ok(words),
        Typed::Text(text) => {
            let wrong = || serde::de::Error::custom(format!("'{text}' has a quote that does not end"));
            shlex::split(&text).ok_or_else(wrong)
        }
    }
}

impl Suite {
    /// Reads a file.
    ///
    /// # Errors
    /// Usage: it cannot be read, or is not what a suite is; with line and column.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let unreadable = |cause: String| {
            Error::usage(format!("cannot read the suite {shown}: {cause}"))
                .with_remedy("name a suite file in TOML; docs/suites has two")
        };
        let facts = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
        if !facts.is_file() {
            return Err(unreadable("it is no regular file".into()));
        }
        if facts.len() > LARGEST {
            return Err(unreadable(format!("it is larger than {} MiB", LARGEST >> 20)));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        Self::parse(&text).map_err(|cause| {
            Error::usage(format!("{shown}: {cause}")).with_remedy("docs/formats.md tells what a suite has")
        })
    }

    /// Reads a text.
    ///
    /// # Errors
    /// Where it is wrong, and how.
    pub fn parse(text: &str) -> Result<Self, String> {
        let suite: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            format!("{place}{}", error.message().replace('\n', " "))
        })?;
        if suite.test.is_empty() {
            return Err("it has no [[test]]".into());
        }
        Ok(suite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        options = "-D 1 -d 'a device'"
        min_pairs = 6
        [tolerance]
        p50 = { tolerance = "2.5%", must_detect = "12 %", floor = "50ns" }
        "p99.9" = { advisory = false, floor = "2us" }
        [a]
        programs = "base/bin"
        [b]
        environment = { LD_LIBRARY_PATH = "head/lib" }
        options = ["-I", "0"]
        [[test]]
        binary = "send_lat"
        sizes = [64, "4k"]
        limits = ["p99:max=5us"]
        [[test]]
        binary = "write_bw"
        metrics = ["bw", "cpu.client"]
    "#;

    #[test]
    fn a_suite_says_all_of_it() {
        let suite = Suite::parse(WHOLE).unwrap();
        assert_eq!(suite.options, ["-D", "1", "-d", "a device"]);
        let tolerance = |name| Tolerance::from(suite.tolerance[&Metric(metric(name).unwrap())]);
        let p50 = tolerance("p50");
        assert_eq!((p50.tolerance, p50.must_detect, p50.floor), (Some(0.025), Some(0.12), Some(50.0)));
        assert_eq!((tolerance("p99.9").advisory, tolerance("p99.9").floor), (Some(false), Some(2000.0)));
        assert_eq!(suite.a.unwrap().programs, Some("base/bin".into()));
        assert_eq!(suite.b.unwrap().options, ["-I", "0"]);
        assert_eq!(suite.test[0].sizes.iter().map(Size::to_string).collect::<Vec<_>>(), ["64", "4k"]);
        assert_eq!(suite.test[1].metrics.as_ref().unwrap()[1], Metric(Quantity::CpuClient));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, says) in [
            ("", "it has no [[test]]"),
            ("\nspeed = 1", "line 2: unknown field `speed`"),
            ("[[test]]", "missing field `binary`"),
            (
                "[[test]]\nbinary = \"send_lat\"\nmetrics = [\"max\"]",
                "line 3: 'max' is not a metric that is compared",
            ),
            ("[tolerance]\np50 = { tolerance = \"2\" }", "line 2: '2' is not a share"),
            ("[tolerance]\np50 = { floor = \"2 parsec\" }", "'2 parsec' is not a floor"),
            ("options = \"-d 'x\"", "line 1: '-d 'x' has a quote that does not end"),
            ("options = 7", "options are one text, or a list of words"),
            ("min_pairs = 300", "line 1:"),
            ("[[test]]\nbinary = \"send_lat\"\nsizes = [1.5]", "a size is a number of bytes"),
            ("= 3", "line 1:"),
        ] {
            let found = Suite::parse(text).unwrap_err();
            assert!(found.contains(says), "{text:?}: {found}");
        }
    }
}
