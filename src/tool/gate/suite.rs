//! A suite file: what a gate measures, what of it is judged, and what is tolerated. TOML, described in `docs/formats.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use crate::error::{Error, Result};
use crate::gate::Arm;
use crate::gate::series::Tolerance;
use crate::result::Quantity;

mod checks;
mod values;

pub use checks::{is_measured, names};
use values::{Floor, REMEDY, Share};
pub use values::{HardField, Limit, Metric, metric, repeated};

/// Largest suite file that is read, in bytes.
const LARGEST: u64 = 1 << 20;

/// What a tolerance is, for who wrote something else.
const TOLERANCE: &str = "a table of what is tolerated";

/// Keys that stand before the first header: after it they would be the header's.
const OF_ALL: [&str; 5] = ["tcp", "min_pairs", "max_pairs", "runs", "allow_mismatch"];

/// The file as it is written.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Suite {
    /// Options of every test: one text, or a list of words.
    #[serde(deserialize_with = "values::words")]
    pub options: Vec<String>,
    /// Measure TCP beside RDMA, and judge it, too.
    pub tcp: bool,
    /// Pairs of runs before the first look.
    #[serde(deserialize_with = "values::pairs")]
    pub min_pairs: Option<u8>,
    /// Pairs of runs before the last look.
    #[serde(deserialize_with = "values::pairs")]
    pub max_pairs: Option<u8>,
    /// Runs of each test in a sitting, or of one that is held to limits alone.
    #[serde(deserialize_with = "values::runs")]
    pub runs: Option<u8>,
    /// Hard fields that may differ.
    pub allow_mismatch: Vec<HardField>,
    /// What is tolerated, by metric.
    pub tolerance: Tolerances,
    /// The baseline, which is measured in turns with the candidate.
    pub a: Option<TypedArm>,
    /// The candidate, where it is not what runs without further words.
    pub b: Option<TypedArm>,
    /// The tests, in order, none but in a suite that was not read.
    #[serde(deserialize_with = "values::tests")]
    pub test: Vec<Spanned<TypedTest>>,
    /// The file's name as typed, and its text.
    #[serde(skip)]
    source: (String, String),
}

/// What is tolerated, by metric, each with its place in the text.
pub type Tolerances = BTreeMap<Metric, Spanned<TypedTolerance>>;

/// One of the two that are compared.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table such as [a]")]
pub struct TypedArm {
    /// What it is called.
    #[serde(deserialize_with = "values::name")]
    pub name: Option<String>,
    /// The directory of its binaries.
    #[serde(deserialize_with = "values::programs")]
    pub programs: Option<PathBuf>,
    /// Variables of its environment.
    #[serde(deserialize_with = "values::environment")]
    pub environment: BTreeMap<String, String>,
    /// Options that it adds to every test.
    #[serde(deserialize_with = "values::words")]
    pub options: Vec<String>,
}

impl TypedArm {
    /// What it is called, or is usually.
    pub fn name_as(&self, arm: Arm) -> &str {
        let usual = if arm == Arm::A { "baseline" } else { "candidate" };
        self.name.as_deref().unwrap_or(usual)
    }
}

/// One test.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table that begins with [[test]]")]
pub struct TypedTest {
    /// The binary, such as `send_lat`.
    #[serde(deserialize_with = "values::binary")]
    pub binary: String,
    /// What it is called, unlike any other test of the suite.
    #[serde(default, deserialize_with = "values::name")]
    pub name: Option<String>,
    /// Sizes, as `-s` takes them.
    #[serde(default, deserialize_with = "values::sizes")]
    pub sizes: Option<String>,
    /// Options.
    #[serde(default, deserialize_with = "values::words")]
    pub options: Vec<String>,
    /// Metrics to judge, each once; `None` for the usual ones.
    #[serde(default, deserialize_with = "values::metrics")]
    pub metrics: Option<Vec<Quantity>>,
    /// What is tolerated of this test.
    #[serde(default)]
    pub tolerance: Tolerances,
    /// Limits, as `--limit` takes them.
    #[serde(default)]
    pub limits: Vec<Limit>,
}

/// What is tolerated of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table of what is tolerated")]
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

/// The same by metric.
pub fn tolerances(typed: &Tolerances) -> BTreeMap<Quantity, Tolerance> {
    typed.iter().map(|(metric, typed)| (metric.0, (*typed.get_ref()).into())).collect()
}

impl Suite {
    /// One of its tests is held to a limit.
    pub fn has_limits(&self) -> bool {
        self.test.iter().any(|test| !test.get_ref().limits.is_empty())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Usage: it cannot be read, or is not what a suite is; with its line, and the test where it is one's.
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
        Self::parse(&shown.to_string(), &text)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// Usage: where in the file of this name it is wrong, how, and what to write.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut suite: Self = toml::from_str(text).map_err(|error| explained(name, text, &error))?;
        if suite.test.is_empty() {
            return Err(Error::usage(format!("{name}: it has no [[test]]"))
                .with_remedy("add one, as in docs/suites: [[test]] and binary = \"send_lat\""));
        }
        suite.source = (name.into(), text.into());
        Ok(suite)
    }

    /// The file's name, as typed.
    pub fn name(&self) -> &str {
        &self.source.0
    }

    /// File and line of what stands there.
    pub fn place<T>(&self, of: &Spanned<T>) -> String {
        let (name, text) = &self.source;
        format!("{name}: line {}", line(text, of.span().start))
    }
}

/// The number of a line, from 1.
fn line(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

/// What the reader says, with the line, the test, and what to do.
fn explained(name: &str, text: &str, error: &toml::de::Error) -> Error {
    let message = error.message();
    let (cause, remedy) = message.split_once(REMEDY).unwrap_or((message, ""));
    let mut place = name.to_owned();
    let (mut typed, mut before) = ("", "");
    if let Some(span) = error.span() {
        let number = line(text, span.start);
        typed = text.lines().nth(number - 1).unwrap_or_default();
        before = text.get(..span.start).and_then(|text| text.rsplit('\n').next()).unwrap_or_default();
        place += &format!(": line {number}");
        place += &test_at(text, number).map(|test| format!(": test {test}")).unwrap_or_default();
    }
    let remedy = match remedy {
        "" => usual_remedy(cause, typed, before),
        known => known.to_owned(),
    };
    Error::usage(format!("{place}: {}", cause.replace(char::is_control, " "))).with_remedy(remedy)
}

/// What to do where the reader itself found what is wrong: in which line, and what stands before it there.
fn usual_remedy(cause: &str, typed: &str, before: &str) -> String {
    let key = before.rsplit(['{', ',']).next().unwrap_or_default().trim();
    let is_value = key.ends_with('=');
    let key = if is_value { format!("{key} ") } else { String::new() };
    let is_header = typed.trim_start().starts_with("[[");
    let is_of_all = |field: &&str| cause.starts_with(&format!("unknown field `{field}`"));
    match () {
        () if typed.trim_start().starts_with("p99.9") || cause.starts_with("unknown field `9") => {
            "put a name with a dot in quotes, as in \"p99.9\" = { tolerance = \"10%\" }".into()
        }
        () if is_header && cause.starts_with("invalid type") => {
            "write its name in one bracket, as in [a]".into()
        }
        () if OF_ALL.iter().any(is_of_all) => {
            "move it to the beginning of the file, before the first header in brackets".into()
        }
        () if cause.ends_with(TOLERANCE) => format!("write {key}{{ tolerance = \"3%\" }}"),
        () if cause.ends_with("expected a sequence") => format!("write a list in brackets: {key}[ ... ]"),
        () if cause.ends_with("expected a string") => format!("write a text in quotes: {key}\" ... \""),
        () if cause.ends_with("expected a boolean") => {
            format!("write {key}true, or false, without quotes")
        }
        () if cause.ends_with("expected a map") => format!("write a table in braces: {key}{{ ... }}"),
        () if cause.starts_with("missing field `binary`") => "add binary = \"send_lat\", or another".into(),
        () => "docs/formats.md tells what a suite has".into(),
    }
}

/// The name of the test that a line belongs to, or its binary.
fn test_at(text: &str, number: usize) -> Option<String> {
    let lines = text.lines().take(number).map(|line| line.replace([' ', '\t'], ""));
    let headers: Vec<_> = lines.filter(|line| line.starts_with('[')).collect();
    let is_first = |header: &&String| header.starts_with("[[test]]");
    headers.last().filter(|header| is_first(header) || header.starts_with("[test."))?;
    let index = headers.iter().filter(is_first).count().checked_sub(1)?;
    // What is wrong in it must not keep its name from being told.
    let all: toml::Table = toml::from_str(text).ok()?;
    let test = all.get("test")?.as_array()?.get(index)?;
    let named = |key| test.get(key).and_then(toml::Value::as_str).filter(|name| !name.trim().is_empty());
    let name = named("name").or_else(|| named("binary"))?;
    Some(name.escape_debug().to_string())
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
        let suite = Suite::parse("suite.toml", WHOLE).unwrap();
        assert_eq!(suite.options, ["-D", "1", "-d", "a device"]);
        let tolerance = |name| Tolerance::from(*suite.tolerance[&Metric(metric(name).unwrap())].get_ref());
        let p50 = tolerance("p50");
        assert_eq!((p50.tolerance, p50.must_detect, p50.floor), (Some(0.025), Some(0.12), Some(50.0)));
        assert_eq!((tolerance("p99.9").advisory, tolerance("p99.9").floor), (Some(false), Some(2000.0)));
        assert_eq!(suite.a.as_ref().unwrap().programs, Some("base/bin".into()));
        assert_eq!(suite.b.as_ref().unwrap().options, ["-I", "0"]);
        assert_eq!(suite.test[0].get_ref().sizes.as_deref(), Some("64,4k"));
        assert_eq!(suite.test[1].get_ref().metrics.as_ref().unwrap()[1], Quantity::CpuClient);
        assert_eq!(suite.place(&suite.test[1]), "suite.toml: line 16");
    }

    const TEST: &str = "[[test]]\nbinary = \"send_lat\"\n";

    /// Cause and remedy of a suite that is none.
    fn refused(text: &str) -> String {
        let error = Suite::parse("s.toml", text).expect_err(text);
        assert_eq!(error.exit_status(), 2, "{error}");
        format!("{} / {}", error.message, error.remedy.expect(text))
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_what_to_write() {
        for (text, says) in [
            ("", "s.toml: it has no [[test]] / add one"),
            ("\nspeed = 1", "s.toml: line 2: unknown field `speed`"),
            ("[[test]]", "missing field `binary` / add binary ="),
            ("[test]\nbinary = \"send_lat\"", "[test] is one table, and tests are a list / write [[test]]"),
            ("test = 3", "expected tests, each of which begins with [[test]]"),
            ("a = 3", "expected a table such as [a]"),
            ("[tolerance]\np50 = { tolerance = \"2\" }", "line 2: '2' is not a share / write percent"),
            ("[tolerance]\np50 = { floor = \"2 parsec\" }", "'2 parsec' is not a floor / write a time"),
            ("[tolerance]\np50 = { floor = \"20\" }", "'20' is not a floor / write a time"),
            ("[tolerance]\np50 = \"3%\"", "line 2: invalid type: string \"3%\", expected a table"),
            ("[tolerance]\np50 = \"3%\"", "/ write p50 = { tolerance = \"3%\" }"),
            ("[tolerance]\np99.9 = { floor = \"1us\" }", "line 2: unknown field `9`"),
            ("[tolerance]\np99.9 = { floor = \"1us\" }", "/ put a name with a dot in quotes"),
            ("[tolerance]\ncpu.client = { tolerance = \"3%\" }", "line 2: 'cpu' is not a metric"),
            ("[tolerance]\ncpu.client = { tolerance = \"3%\" }", "in quotes: \"cpu.client\""),
            ("[tolerance]\np50 = { floor = \"20\" }", "'20' is not a floor"),
            ("options = \"-d 'x\"", "line 1: '-d \\'x' has a quote that does not end"),
            ("options = 7", "options are one text, or a list of words"),
            ("options = [\"a\\u0000\"]", "line 1: the option 'a\\0' has a NUL character / leave it out"),
            ("min_pairs = 300", "line 1: 300 pairs are out of range / write 3 to 40"),
            ("max_pairs = 2", "2 pairs are out of range"),
            ("runs = 0", "line 1: 0 runs are out of range / write 1 to 40"),
            ("runs = 41", "41 runs are out of range"),
            ("runs = \"3\"", "runs and pairs are whole numbers, without quotes"),
            (
                "allow_mismatch = [\"colour\"]",
                "line 1: allow_mismatch: there is no field 'colour' / one of op",
            ),
            ("[a]\nname = \"\"", "line 2: name = \"\" is empty / write a short name"),
            ("[a]\nprograms = \"\"", "line 2: programs = \"\" is no directory / name the directory"),
            ("[a.environment]\n\"\" = \"1\"", "line 2: '' is no name of a variable / name it as in"),
            ("[a.environment]\n\"A=B\" = \"1\"", "line 2: 'A=B' is no name of a variable"),
            ("[a.environment]\n\"A\\u0000\" = \"1\"", "line 2: 'A\\0' is no name of a variable"),
            ("[a.environment]\nA = \"\\u0000\"", "line 2: the value '\\0' has a NUL character"),
            ("tcp = 3", "line 1: invalid type: integer `3`, expected a boolean / write tcp = true"),
            ("allow_mismatch = \"x\"", "expected a sequence / write a list in brackets: allow_mismatch = ["),
            ("[[a]]\nname = \"x\"", "line 1: invalid type: map, expected a string / write its name in one"),
            ("[a]\nenvironment = 3", "expected a map / write a table in braces: environment = {"),
            (
                "[a]\nenvironment = { X = 1 }",
                "line 2: invalid type: integer `1`, expected a string / write a text in quotes: X =",
            ),
            ("[tolerance]\np99 = {}\np99.9 = {}", "/ put a name with a dot in quotes"),
            ("= 3", "line 1:"),
        ] {
            let found = refused(text);
            assert!(found.contains(says), "{text:?}: {found}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_test_is_told_with_the_test() {
        for (line, says) in [
            ("metrics = [\"max\"]", "s.toml: line 6: test send_bw: 'max' is not a metric that is compared"),
            ("metrics = []", "test send_bw: metrics = [] judges nothing / leave it away"),
            ("metrics = [\"bw\", \"rate\", \"bw\"]", "metrics has bw twice / name it once"),
            ("sizes = [1.5]", "a size is a number of bytes"),
            ("sizes = []", "sizes = [] names no size"),
            ("sizes = [64, \"64\"]", "line 6: test send_bw: sizes: 64 stands there twice"),
            ("name = \"\"", "line 6: test send_bw: name = \"\" is empty"),
            ("name = \" -/\"", "the name ' -/' has no letter and no digit"),
            ("runs = 3", "test send_bw: unknown field `runs`"),
            ("runs = 3", "/ move it to the beginning of the file"),
            ("name = \"a\\u0007\"", "the name 'a\\u{7}' has a control character"),
            (
                "limits = [\"p98:max=5us\"]",
                "line 6: test send_bw: limit 'p98:max=5us': 'p98' is not a metric",
            ),
            ("[test.tolerance]\nbw = { floor = \"x\" }", "line 7: test send_bw: 'x' is not a floor"),
            ("[b]\noptions = 7", "s.toml: line 7: options are one text"),
        ] {
            let found = refused(&format!("{TEST}\n[[test]]\nbinary = \"send_bw\"\n{line}\n"));
            assert!(found.contains(says), "{line:?}: {found}");
        }
        let long = format!("{TEST}name = \"{}\"", "x".repeat(201));
        assert!(refused(&long).contains("201 characters, and 200 at most"));
        assert!(
            refused("[[test]]\nbinary = \"send_latt\"")
                .contains("'send_latt' is no test of this suite / one of")
        );
    }
}
