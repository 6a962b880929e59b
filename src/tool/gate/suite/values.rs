//! Values of a suite file: each is looked at as it is read, so that what is wrong is told with its line.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::TypedTest;
use crate::cli::SizeSpec;
use crate::cli::tool::{PAIRS, RUNS};
use crate::error::Error;
use crate::gate::fingerprint::HARD;
use crate::gate::series::POINTS;
use crate::result::{LimitSpec, Quantity};
use crate::tool::test_command;
use crate::units::parse_duration;

/// Between a cause and what to do about it, in the one text that an error of a reader can carry.
pub const REMEDY: &str = "\n  try: ";

/// Longest name, in characters: those of files end at 255 bytes, and the run's number and its arm need some.
const LONGEST_NAME: usize = 200;

/// A cause, with what to do about it.
fn refused(cause: impl fmt::Display, remedy: impl fmt::Display) -> String {
    format!("{cause}{REMEDY}{remedy}")
}

/// A size of a message: `64`, or `"4k"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a size is a number of bytes, or a text such as \"4k\" or \"64..1M\"")]
enum Size {
    Bytes(u64),
    Text(String),
}

/// Sizes, as `-s` takes them; none where the list is not there.
pub fn sizes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let typed = Vec::<Size>::deserialize(deserializer)?;
    if typed.is_empty() {
        return Err(D::Error::custom(refused("sizes = [] names no size", "leave it away for the usual one")));
    }
    let texts = typed.into_iter().map(|size| match size {
        Size::Bytes(bytes) => bytes.to_string(),
        Size::Text(text) => text,
    });
    let text = texts.collect::<Vec<_>>().join(",");
    let wrong = |cause| {
        D::Error::custom(refused(format!("sizes: {cause}"), "write bytes, or as in \"4k\", each once"))
    };
    text.parse::<SizeSpec>().map_err(wrong)?;
    Ok(Some(text))
}

/// The name of a metric that has a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Metric(pub Quantity);

impl TryFrom<String> for Metric {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        // Without quotes a dot in a name makes two names.
        let advice = match name.as_str() {
            "cpu" => "put a name with a dot in quotes: \"cpu.client\" or \"cpu.server\"",
            _ => "name one of these",
        };
        metric(&name).map(Self).map_err(|cause| refused(cause, advice))
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

/// The first of them that stands there twice.
pub fn repeated(metrics: &[Quantity]) -> Option<Quantity> {
    metrics.iter().enumerate().find(|(i, metric)| metrics[..*i].contains(metric)).map(|(_, metric)| *metric)
}

/// Metrics to judge: at least one, and none twice.
pub fn metrics<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Quantity>>, D::Error> {
    let named = Vec::<Metric>::deserialize(deserializer)?;
    let named: Vec<_> = named.into_iter().map(|metric| metric.0).collect();
    let wrong = match repeated(&named) {
        _ if named.is_empty() => {
            refused("metrics = [] judges nothing", "leave it away for the usual ones, or name some")
        }
        Some(metric) => refused(format!("metrics has {} twice", metric.name()), "name it once"),
        None => return Ok(Some(named)),
    };
    Err(D::Error::custom(wrong))
}

/// `"2%"`, as a share.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct Share(pub f64);

impl TryFrom<String> for Share {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
        match number {
            Some(percent) if (0.0..10_000.0).contains(&percent) => Ok(Self(percent / 100.0)),
            _ => Err(refused(format!("'{text}' is not a share"), "write percent, as in \"2%\"")),
        }
    }
}

/// `"50ns"`, in ns; of latencies and of CPU time. Without its unit it would be seconds, below which nothing is a change.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct Floor(pub f64);

impl TryFrom<String> for Floor {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || refused(format!("'{text}' is not a floor"), "write a time, as in \"50ns\" or \"2us\"");
        if !text.ends_with(|last: char| last.is_alphabetic()) {
            return Err(wrong());
        }
        let nanoseconds = text.strip_suffix("ns").and_then(|number| number.trim_end().parse::<u32>().ok());
        match nanoseconds {
            Some(ns) => Ok(Self(ns.into())),
            None => parse_duration(&text)
                .map(|duration: Duration| Self(duration.as_secs_f64() * 1e9))
                .map_err(|_| wrong()),
        }
    }
}

/// One text, split as a shell would, or a list of words.
pub fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "options are one text, or a list of words")]
    enum Typed {
        Text(String),
        List(Vec<String>),
    }
    let words = match Typed::deserialize(deserializer)? {
        Typed::List(words) => words,
        Typed::Text(text) => shlex::split(&text).ok_or_else(|| {
            let cause = format!("'{}' has a quote that does not end", text.escape_debug());
            D::Error::custom(refused(cause, "end it, or write a list of words"))
        })?,
    };
    match words.iter().find(|word| word.contains('\0')) {
        None => Ok(words),
        Some(word) => Err(D::Error::custom(with_nul("the option", word))),
    }
}

/// No program can be given it: there a text ends.
fn with_nul(what: &str, text: &str) -> String {
    refused(format!("{what} '{}' has a NUL character", text.escape_debug()), "leave it out")
}

/// A number of pairs.
pub fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    within(deserializer, "pairs", PAIRS)
}

/// A number of runs.
pub fn runs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    within(deserializer, "runs", RUNS)
}

fn within<'de, D>(deserializer: D, what: &str, range: RangeInclusive<i64>) -> Result<Option<u8>, D::Error>
where
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "runs and pairs are whole numbers, without quotes")]
    enum Number {
        Whole(i64),
    }
    let Number::Whole(number) = Number::deserialize(deserializer)?;
    let (least, most) = (range.start(), range.end());
    match u8::try_from(number) {
        Ok(few) if range.contains(&number) => Ok(Some(few)),
        _ => {
            let cause = format!("{number} {what} are out of range");
            Err(D::Error::custom(refused(cause, format!("write {least} to {most}"))))
        }
    }
}

/// What a test or an arm is called, in tables, reports and names of files.
pub fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let cause = match () {
        () if name.is_empty() => "name = \"\" is empty".to_owned(),
        () if name.chars().any(char::is_control) => {
            format!("the name '{}' has a control character", name.escape_debug())
        }
        () if !name.chars().any(char::is_alphanumeric) => {
            format!("the name '{name}' has no letter and no digit")
        }
        () if name.chars().count() > LONGEST_NAME => {
            format!(
                "the name has {} characters, and {LONGEST_NAME} at most fit a file's",
                name.chars().count()
            )
        }
        () => return Ok(Some(name)),
    };
    Err(D::Error::custom(refused(cause, "write a short name, or leave it away for the usual one")))
}

/// The binary of a test.
pub fn binary<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let binary = String::deserialize(deserializer)?;
    if test_command::named(&binary).is_ok() {
        return Ok(binary);
    }
    let Error { message, remedy, .. } = test_command::not_a_test(&binary.escape_debug().to_string());
    Err(D::Error::custom(refused(message, remedy.unwrap_or_default())))
}

/// A directory of binaries.
pub fn programs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let directory = String::deserialize(deserializer)?;
    match () {
        () if directory.is_empty() => {
            let remedy = "name the directory of the binaries, or leave it away for those beside this program";
            Err(D::Error::custom(refused("programs = \"\" is no directory", remedy)))
        }
        () if directory.contains('\0') => Err(D::Error::custom(with_nul("the directory", &directory))),
        () => Ok(Some(directory.into())),
    }
}

/// Variables of an environment.
pub fn environment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    #[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
    #[serde(try_from = "String")]
    struct Variable(String);

    impl TryFrom<String> for Variable {
        type Error = String;

        fn try_from(name: String) -> Result<Self, String> {
            if name.is_empty() || name.contains(['=', '\0']) {
                let cause = format!("'{}' is no name of a variable", name.escape_debug());
                return Err(refused(cause, "name it as in environment = { LD_LIBRARY_PATH = \"lib\" }"));
            }
            Ok(Self(name))
        }
    }

    #[derive(Deserialize)]
    #[serde(try_from = "String")]
    struct Value(String);

    impl TryFrom<String> for Value {
        type Error = String;

        fn try_from(value: String) -> Result<Self, String> {
            if value.contains('\0') { Err(with_nul("the value", &value)) } else { Ok(Self(value)) }
        }
    }

    let typed = BTreeMap::<Variable, Value>::deserialize(deserializer)?;
    Ok(typed.into_iter().map(|(name, value)| (name.0, value.0)).collect())
}

/// A limit, as `--limit` takes it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct Limit(pub LimitSpec);

impl TryFrom<String> for Limit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = |told: String| {
            let (cause, remedy) = told.split_once("; ").unwrap_or((&told, "write it as --limit takes it"));
            refused(format!("limit '{}': {cause}", text.escape_debug()), remedy)
        };
        text.parse().map(Self).map_err(wrong)
    }
}

/// A hard field.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct HardField(pub String);

impl TryFrom<String> for HardField {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if HARD.contains(&name.as_str()) || name == POINTS {
            return Ok(Self(name));
        }
        let cause = format!("allow_mismatch: there is no field '{}'", name.escape_debug());
        Err(refused(cause, format!("one of {}, {POINTS}", HARD.join(", "))))
    }
}

/// The tests: a list, each of which begins with `[[test]]`.
pub fn tests<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Spanned<TypedTest>>, D::Error> {
    struct Tests;

    impl<'de> Visitor<'de> for Tests {
        type Value = Vec<Spanned<TypedTest>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("tests, each of which begins with [[test]]")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, tests: A) -> Result<Self::Value, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(tests))
        }

        fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
            let remedy = "write [[test]], in two brackets, before each test";
            Err(A::Error::custom(refused("[test] is one table, and tests are a list", remedy)))
        }
    }
    deserializer.deserialize_any(Tests)
}
