//! A command as it was typed in an option: variables, a binary, its options.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::suite::TypedArm;
use crate::error::{Error, Result};
use crate::plan::Shape;
use crate::tool::sibling::{self, Invocation};
use crate::tool::test_command;

/// A command as it was typed in one option.
pub struct Typed {
    /// The option.
    pub option: &'static str,
    /// What it says of the arm.
    pub arm: TypedArm,
    /// The test's binary.
    pub binary: String,
    /// What it measures.
    pub shape: Shape,
    /// Where its binary lies.
    pub program: PathBuf,
}

impl Typed {
    /// Of a text: variables, a binary, its options.
    ///
    /// # Errors
    /// Usage: it is no command, or there is no such binary.
    pub fn new(option: &'static str, text: &str) -> Result<Self> {
        let unfit = |cause: &str| {
            Error::usage(format!("{option} '{text}': {cause}"))
                .with_remedy("write it as in --b 'VAR=1 send_lat -s 64 --loopback'")
        };
        let words = shlex::split(text).ok_or_else(|| unfit("a quote does not end"))?;
        let variables: Vec<_> = words.iter().map_while(|word| variable(word)).collect();
        let (program, options) =
            words[variables.len()..].split_first().ok_or_else(|| unfit("it names no test"))?;
        let (programs, binary) = match Path::new(program).parent() {
            Some(directory) if program.contains('/') => (Some(directory.into()), file_name(program)),
            _ => (None, program.clone()),
        };
        let (_, shape) = test_command::named(&binary).map_err(|error| error.within(option))?;
        let program = sibling::program(programs.as_deref(), &binary).map_err(|error| error.within(option))?;
        let environment: BTreeMap<_, _> = variables.into_iter().collect();
        let arm = TypedArm { name: None, programs, environment, options: options.to_vec() };
        Ok(Self { option, arm, binary, shape, program })
    }

    /// It is held to limits of its own.
    pub fn has_limits(&self) -> bool {
        self.arm.options.iter().any(|word| word == "--limit" || word.starts_with("--limit="))
    }
}

fn file_name(program: &str) -> String {
    Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// `NAME=value`, as a shell takes it before a command.
fn variable(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    Invocation::is_shell_name(name).then(|| (name.into(), value.into()))
}
