//! What a subcommand gives: text for people, and a document for programs.

use std::cell::OnceCell;
use std::ffi::OsStr;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::report::{Target, json};

/// Where the document goes; the text has standard output, unless the document does.
pub struct Output {
    document: Option<Target>,
    /// Why the text could not be shown.
    unshown: OnceCell<Error>,
}

impl Output {
    /// Looks whether the document can be written there, before anything is done for it.
    ///
    /// # Errors
    /// It cannot.
    pub fn open(document: Option<&OsStr>) -> Result<Self> {
        let document = document.map(Target::from);
        document.iter().try_for_each(Target::check)?;
        Ok(Self { document, unshown: OnceCell::new() })
    }

    /// Shows the text. That it could not be is told when the document has been written.
    pub fn show(&self, text: impl FnOnce() -> String) {
        if self.document != Some(Target::Stdout)
            && let Err(error) = Target::Stdout.offer(text().as_bytes())
        {
            let _ = self.unshown.set(error);
        }
    }

    /// Writes the document.
    ///
    /// # Errors
    /// It could not be written, or the text not be shown before.
    pub fn write(&self, document: &impl Serialize) -> Result<()> {
        if let Some(target) = &self.document {
            target.offer(json::to_string(document)?.as_bytes())?;
        }
        self.unshown.get().cloned().map_or(Ok(()), Err)
    }
}
