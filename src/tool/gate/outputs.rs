//! Where the verdict goes: the text, and files for programs.

use std::io::Write;

use crate::cli::tool::GateOutput;
use crate::error::{Error, Result};
use crate::gate::document::Gate;
use crate::report::{Target, json};

/// Every output that was asked for.
#[derive(Debug)]
pub struct Outputs {
    files: Vec<(Format, Target)>,
}

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
}

impl Outputs {
    /// Looks at each before anything is measured.
    ///
    /// # Errors
    /// Usage: why one of them could not be written.
    pub fn open(typed: &GateOutput) -> Result<Self> {
        let files = [(Format::Json, &typed.json)];
        let files: Vec<_> = files
            .into_iter()
            .filter_map(|(format, name)| Some((format, Target::from(name.as_deref()?))))
            .collect();
        if files.iter().filter(|(_, target)| *target == Target::Stdout).count() > 1 {
            return Err(Error::usage("standard output cannot have two documents")
                .with_remedy("write all but one of them to files"));
        }
        files.iter().try_for_each(|(_, target)| target.check())?;
        Ok(Self { files })
    }

    /// The text, unless a document has standard output.
    pub fn show(&self, text: &str) {
        if self.files.iter().all(|(_, target)| *target != Target::Stdout) {
            // Who closed the pipe has seen enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
        }
    }

    /// Writes each; one that cannot be written keeps none of the others from it.
    ///
    /// # Errors
    /// The first that could not be written.
    pub fn write(&self, gate: &Gate) -> Result<()> {
        let write = |(format, target): &(Format, Target)| target.offer(text(*format, gate)?.as_bytes());
        self.files.iter().map(write).fold(Ok(()), Result::and)
    }
}

fn text(format: Format, gate: &Gate) -> Result<String> {
    match format {
        Format::Json => json::to_string(gate),
    }
}
