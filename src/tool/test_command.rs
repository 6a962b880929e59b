//! A test of this suite with its options, as typed within another command: looked at before anything runs.

use std::ffi::OsString;

use crate::cli::Typed;
use crate::error::{Error, Result};
use crate::ops::Verb;
use crate::plan::{self, Shape};
use crate::suite;

/// The test of a binary's name.
///
/// # Errors
/// Usage: there is none.
pub fn named(name: &str) -> Result<(Verb, Shape)> {
    let known = suite::TESTS.iter().find(|(verb, shape)| plan::binary(*verb, *shape) == name);
    known.copied().ok_or_else(|| not_a_test(name))
}

/// That there is no such test, and which there are.
pub fn not_a_test(name: &str) -> Error {
    let tests: Vec<_> = suite::TESTS.iter().map(|(verb, shape)| plan::binary(*verb, *shape)).collect();
    Error::usage(format!("'{name}' is no test of this suite"))
        .with_remedy(format!("one of {}", tests.join(", ")))
}

/// Reads its options.
///
/// # Errors
/// Usage: it does not take them.
pub fn read(verb: Verb, shape: Shape, words: &[OsString]) -> Result<Typed> {
    let name = plan::binary(verb, shape);
    let line = std::iter::once(OsString::from(&name)).chain(words.iter().cloned());
    suite::parse(verb, shape, line).map_err(|error| {
        let text = error.to_string();
        let cause = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let message = match error.use_stderr() {
            true => format!("{name}: {cause}"),
            false => format!("{name}: --help and --version run no test"),
        };
        Error::usage(message).with_remedy(format!("see {name} --help"))
    })
}

/// The first option among them that would write a file.
pub fn output(typed: &Typed) -> Option<&'static str> {
    let output = &typed.args.output;
    let outputs = [("--json", &output.json), ("--csv", &output.csv), ("--hlog", &output.hlog)];
    outputs.iter().find(|(_, file)| file.is_some()).map(|(option, _)| *option)
}
