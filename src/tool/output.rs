//! What a subcommand gives: text for people, and a document for programs.

use std::ffi::OsStr;
use std::io::Write;

use serde::Serialize;

use crate::error::Result;
use crate::report::{Target, json};

/// Where the document goes; the text has standard output, unless the document does.
pub struct Output {
    document: Option<Target>,
}

impl Output {
    /// Looks whether the document can be written there, before anything is done for it.
    ///
    /// # Errors
    /// It cannot.
    pub fn open(document: Option<&OsStr>) -> Result<Self> {
        let document = document.map(Target::from);
        document.iter().try_for_each(Target::check)?;
        Ok(Self { document })
    }

    /// Shows the text.
    pub fn show(&self, text: impl FnOnce() -> String) {
        if self.document != Some(Target::Stdout) {
            // Who closed the pipe has seen enough.
            let _ = std::io::stdout().write_all(text().as_bytes());
        }
    }

    /// Writes the document.
    ///
    /// # Errors
    /// It could not be written.
    pub fn write(&self, document: &impl Serialize) -> Result<()> {
        match &self.document {
            Some(target) => target.offer(json::to_string(document)?.as_bytes()),
            None => Ok(()),
        }
    }
}
