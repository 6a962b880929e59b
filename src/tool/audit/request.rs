//! What is to be traced: a test of this suite and its options, made into one command for each path.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::Typed;
use crate::error::{Error, Result};
use crate::plan::{self, Connection, Plan, Role, Transport};
use crate::tool::{sibling, test_command};

/// Messages of a test whose options give neither a count nor a time.
const MESSAGES: &str = "1000";

/// Options for a path that the run of the other one goes without, and whether a value follows.
const OF_TCP: &[(&str, bool)] = &[
    ("--tcp-sndbuf", true),
    ("--tcp-rcvbuf", true),
    ("--tcp-congestion", true),
    ("--tcp-busy-poll", true),
    ("--tcp-zerocopy", false),
];
const OF_RDMA: &[(&str, bool)] = &[
    ("--odp", false),
    ("--relaxed-ordering", false),
    ("-c", true),
    ("--connection", true),
    ("--loss-timeout", true),
];

/// A test and its options, looked at.
#[derive(Debug, Clone)]
pub struct Request {
    /// The binary's name, such as `send_lat`.
    pub binary: String,
    /// Where it is.
    pub program: PathBuf,
    /// Which end, or both.
    pub role: Role,
    /// Longest time that a traced run may take.
    pub timeout: Duration,
    /// The options of each run.
    pub runs: Vec<Vec<OsString>>,
}

impl Request {
    /// Reads the name of a test and its options.
    ///
    /// # Errors
    /// Usage: no test of this suite, options that it does not take, or that no single phase could be traced with.
    pub fn new(test: &[OsString], timeout: Duration) -> Result<Self> {
        let (name, words) = test.split_first().ok_or_else(|| test_command::not_a_test(""))?;
        let name = name.to_string_lossy();
        let (verb, shape) = test_command::named(&name)?;
        let typed = test_command::read(verb, shape, words)?;
        check(&typed, &name)?;
        let resolved = plan::resolve(typed.clone(), verb, shape, 0)?;
        check_point(&resolved.test)?;
        let runs = runs(words, &typed, &resolved)?;
        for words in &runs {
            // What one path does not take is said before anything runs.
            plan::resolve(test_command::read(verb, shape, words)?, verb, shape, 0)?;
        }
        Ok(Self {
            program: sibling::beside_us(&name)?,
            binary: name.into(),
            role: resolved.role,
            timeout,
            runs,
        })
    }
}

fn check(typed: &Typed, name: &str) -> Result<()> {
    if let Some(option) = test_command::output(typed) {
        return Err(Error::usage(format!(
            "{option} among the options of {name}: the results of a traced run mean nothing"
        ))
        .with_remedy("leave it away; the audit has its own --json, before --"));
    }
    if let Some(limit) = typed.args.shape.limits.first() {
        return Err(Error::usage(format!(
            "--limit {limit}: a traced run is too slow to be held to anything"
        ))
        .with_remedy("leave --limit away, and hold a run without strace to it"));
    }
    if typed.args.shape.compare_wait {
        return Err(Error::usage("--compare-wait measures two ways of waiting, and an audit traces one")
            .with_remedy("audit it twice, with --events and without"));
    }
    if typed.args.shape.verify {
        return Err(Error::usage("--verify makes phases that would be counted for the measured one")
            .with_remedy("leave --verify away"));
    }
    Ok(())
}

/// A trace has one phase for each path.
fn check_point(test: &plan::Test) -> Result<()> {
    if test.sizes.len() > 1 {
        return Err(Error::usage(format!("{} sizes, and an audit traces one", test.sizes.len()))
            .with_remedy("give one size with -s"));
    }
    if test.load.rate_per_s.is_some() || !test.load.rate_shares.is_empty() {
        return Err(Error::usage("a traced run is too slow for the schedule of --rate or --rate-sweep")
            .with_remedy(
                "audit the closed loop, with --depth where several messages are to be outstanding",
            ));
    }
    Ok(())
}

/// The options of a run for each path that is asked for. Added ones stand first: what follows may end the options.
fn runs(words: &[OsString], typed: &Typed, plan: &Plan) -> Result<Vec<Vec<OsString>>> {
    let shape = &typed.args.shape;
    let is_one_path = shape.no_tcp || shape.tcp_only;
    if plan.role == Role::Server {
        // The client decides the path; that there is one run only is all that this end makes of --no-tcp.
        let words: Vec<_> = words.iter().filter(|word| *word != "--no-tcp").cloned().collect();
        if typed.args.endpoint.port == 0 && !is_one_path {
            return Err(Error::usage("-p 0 takes another port for each of two runs")
                .with_remedy("name a port, or audit one path with --no-tcp or --tcp-only"));
        }
        return Ok(vec![words; if is_one_path { 1 } else { 2 }]);
    }
    let mut added = Vec::new();
    if shape.iters.is_none() && shape.duration.is_none() {
        added.extend(["-n", MESSAGES].map(OsString::from));
    }
    if shape.size.is_none() && plan.test.connection == Connection::Ud {
        // Over TCP, whose run goes without -c, another size would be the default.
        added.extend(plan.test.sizes.first().map(|size| format!("-s{size}").into()));
    }
    let with = |more: Option<&str>, words: Vec<OsString>| {
        more.map(OsString::from).into_iter().chain(added.iter().cloned()).chain(words).collect()
    };
    if is_one_path {
        return Ok(vec![with(None, words.to_vec())]);
    }
    Ok([Transport::Rdma, Transport::Tcp]
        .map(|transport| match transport {
            Transport::Rdma => with(Some("--no-tcp"), without(words, OF_TCP)),
            Transport::Tcp => with(Some("--tcp-only"), without(words, OF_RDMA)),
        })
        .into())
}

/// The words but for these options and their values.
fn without(words: &[OsString], options: &[(&str, bool)]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        // A value may follow in the same word: --option=VALUE, -oVALUE.
        let is_named = |option: &&(&str, bool)| match text.strip_prefix(option.0) {
            Some(value) => value.is_empty() || value.starts_with('=') || !option.0.starts_with("--"),
            None => false,
        };
        match options.iter().find(is_named) {
            None => kept.push(word.clone()),
            Some((option, true)) if *option == text => drop(words.next()),
            Some(_) => {}
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Verb;
    use crate::plan::Shape;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    /// The command of each run, without the check that the binary is there: a test lies elsewhere.
    fn lines(line: &str) -> Vec<String> {
        let words = words(line);
        let typed = test_command::read(Verb::Send, Shape::Latency, &words).unwrap();
        let plan = plan::resolve(typed.clone(), Verb::Send, Shape::Latency, 0).unwrap();
        let join = |words: Vec<OsString>| words.join(" ".as_ref()).into_string().unwrap();
        runs(&words, &typed, &plan).unwrap().into_iter().map(join).collect()
    }

    #[test]
    fn each_path_has_a_run_with_the_options_that_it_takes() {
        for (line, expected) in [
            ("--loopback", ["--no-tcp -n 1000 --loopback", "--tcp-only -n 1000 --loopback"]),
            ("h -D 1 -e", ["--no-tcp h -D 1 -e", "--tcp-only h -D 1 -e"]),
            (
                "h -n 5 --tcp-sndbuf 64k --tcp-rcvbuf=64k --tcp-zerocopy --odp -s 8",
                [
                    "--no-tcp h -n 5 --odp -s 8",
                    "--tcp-only h -n 5 --tcp-sndbuf 64k --tcp-rcvbuf=64k --tcp-zerocopy -s 8",
                ],
            ),
            ("h -n 5 -cUC -e", ["--no-tcp h -n 5 -cUC -e", "--tcp-only h -n 5 -e"]),
            (
                "h -n 5 --connection UD --loss-timeout=1s",
                ["--no-tcp -s64 h -n 5 --connection UD --loss-timeout=1s", "--tcp-only -s64 h -n 5"],
            ),
            ("-p 1234", ["-p 1234", "-p 1234"]),
        ] {
            assert_eq!(lines(line), expected, "{line}");
        }
        for (line, expected) in [
            ("--loopback --no-tcp", "-n 1000 --loopback --no-tcp"),
            ("h --tcp-only", "-n 1000 h --tcp-only"),
            ("--no-tcp -p 0", "-p 0"),
            ("--tcp-only -p 0", "--tcp-only -p 0"),
        ] {
            assert_eq!(lines(line), [expected], "{line}");
        }
    }
}
