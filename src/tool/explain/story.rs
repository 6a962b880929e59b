//! What is run, in order: each scene a test of the suite with its options.

use std::ffi::OsString;
use std::time::Duration;

use crate::cli::tool::ExplainArgs;
use crate::error::{Error, Result};

/// Everything that is run.
#[derive(Debug, Clone)]
pub struct Story {
    /// Measured runs.
    pub scenes: Vec<Planned>,
    /// Traced runs.
    pub audits: Vec<Planned>,
    /// Longest time that one of them may take.
    pub timeout: Duration,
}

/// A run to be made.
#[derive(Debug, Clone)]
pub struct Planned {
    /// What the run is for.
    pub name: &'static str,
    /// What a person reads while it runs.
    pub what: &'static str,
    /// The test.
    pub binary: &'static str,
    /// Its options; those of an audit begin with the test.
    pub words: Vec<OsString>,
}

/// Runs that the slope of CPU time over bytes is taken from: the interval comes from how they differ.
pub const ROUNDS: usize = 5;

/// Sizes, short enough together for a minute.
const SIZES: &str = "64,4k,64k,1M";

/// Longest warm-up of a point.
const WARM_UP: Duration = Duration::from_millis(50);

/// How each path is audited: for a time, since a server with `--max-duration` takes no count of messages, and a shorter one
/// than the scenes take.
const AUDITED: &str = "-D 200ms --warm-up 50ms";

impl Story {
    /// Of these options.
    ///
    /// # Errors
    /// Usage: neither a host nor both ends here.
    pub fn new(args: &ExplainArgs) -> Result<Self> {
        if args.host.is_none() && !args.loopback {
            return Err(Error::usage("explain needs the host of a server, or --loopback")
                .with_remedy("run `verbmark serve` on HOST and `verbmark explain HOST` here"));
        }
        let ends = ends(args);
        let each = |share: u32| {
            let duration = args.duration / share;
            format!("-D {}us --warm-up {}us", duration.as_micros(), (duration / 4).min(WARM_UP).as_micros())
        };
        let (whole, half) = (each(1), each(2));
        let scene = |name, what, binary, options: &str| {
            let mut words: Vec<OsString> = options.split_whitespace().map(OsString::from).collect();
            words.extend(ends.iter().cloned());
            Planned { name, what, binary, words }
        };
        let mut scenes = vec![
            scene(
                "latency",
                "latency by size, polling and sleeping",
                "send_lat",
                &format!("-s {SIZES} {whole} --compare-wait --cpu-report"),
            ),
            scene(
                "bandwidth",
                "bandwidth by size, polling and sleeping",
                "write_bw",
                &format!("-s {SIZES} {whole} --compare-wait --cpu-report"),
            ),
            scene(
                "reads",
                "one-sided reads, and what the server's CPU does meanwhile",
                "read_lat",
                &format!("-s 64,64k {whole} --cpu-report"),
            ),
        ];
        // A copy into the work request would hide the payload's own path, and a spinning thread is always busy.
        let bytes = format!("-s 4k,16k,64k,256k,1M {half} -t 32 --events -I 0 --cpu-report");
        scenes.extend((0..ROUNDS).map(|_| scene("bytes", "CPU time by bytes", "write_bw", &bytes)));
        let audit = |what, options: &str| {
            let mut audited = scene("calls", what, "send_lat", options);
            audited.words.insert(0, audited.binary.into());
            audited
        };
        let audits = vec![
            audit("system calls of a polling test, under strace", AUDITED),
            audit("system calls of a sleeping test, under strace", &format!("{AUDITED} --events")),
        ];
        Ok(Self { scenes, audits, timeout: args.timeout })
    }
}

/// The options that say where both ends are.
fn ends(args: &ExplainArgs) -> Vec<OsString> {
    let mut words = Vec::new();
    let mut option = |name: &str, value: Option<OsString>| {
        words.extend(value.into_iter().flat_map(|value| [name.into(), value]));
    };
    option("--ib-dev", args.device.clone().map(OsString::from));
    option("--ib-port", args.ib_port.map(|port| port.to_string().into()));
    option("--gid-index", args.gid_index.map(|index| index.to_string().into()));
    option("--port", args.port.map(|port| port.to_string().into()));
    option("--secret-file", args.secret_file.as_ref().map(OsString::from));
    match &args.host {
        // What begins like an option is none.
        Some(host) => words.extend(["--".into(), host.into()]),
        None => words.push("--loopback".into()),
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tool::{self, Task};
    use crate::plan::{self, Most, Site};
    use crate::tool::test_command;

    #[test]
    fn a_server_that_takes_the_scenes_takes_the_audits() {
        let words = ["verbmark", "explain", "h"].map(OsString::from);
        let Task::Explain(args) = tool::parse(words).unwrap().task else { panic!("another task") };
        let story = Story::new(&args).unwrap();
        for planned in story.scenes.iter().chain(&story.audits) {
            let (verb, shape) = test_command::named(planned.binary).unwrap();
            let words = &planned.words[usize::from(planned.words[0] == planned.binary)..];
            let plan =
                plan::resolve(test_command::read(verb, shape, words).unwrap(), verb, shape, 0).unwrap();
            let most = Most { duration: Some(Duration::from_secs(6)), ..Most::default() };
            let admitted = plan.test.admit(None, &Site { most, ..plan.site });
            assert!(admitted.is_ok(), "{}: {admitted:?}", planned.what);
        }
    }
}
