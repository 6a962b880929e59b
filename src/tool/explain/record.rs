//! The document of an explanation: `verbmark.explain/1`.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::claims::{Claim, claims};
use super::slope::{Slope, slopes};
use crate::error::{Error, Kind};
use crate::result::{Document, Missing, Status, Tool, timestamp};
use crate::tool::audit::Audit;

/// Name and version of the format.
pub const SCHEMA: &str = "verbmark.explain/1";

/// A story that was run, and what follows from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// [`SCHEMA`].
    pub schema: String,
    /// What wrote it.
    pub tool: Tool,
    /// The command line.
    pub command: Vec<String>,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// How it ended; never `invalid`.
    pub status: Status,
    /// Why it ended before its end.
    pub error: Option<Error>,
    /// Values that could not be had.
    pub missing: Vec<Missing>,
    /// The runs in order, whole.
    pub scenes: Vec<Scene>,
    /// Traced runs.
    pub audits: Vec<Audit>,
    /// CPU time over bytes, from the scenes `bytes`.
    pub slopes: Vec<Slope>,
    /// What may be said, and what may not.
    pub claims: Vec<Claim>,
}

/// One run of the story.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scene {
    /// What it is for: `latency`, `bandwidth`, `reads`, or `bytes`.
    pub name: String,
    /// Its document.
    pub document: Document,
}

impl Explanation {
    /// Of this command line, which has just begun.
    pub fn new(command: Vec<String>) -> Self {
        Self {
            schema: SCHEMA.into(),
            tool: Tool::new("verbmark"),
            command,
            started_at: timestamp(SystemTime::now()),
            status: Status::Ok,
            error: None,
            missing: Vec::new(),
            scenes: Vec::new(),
            audits: Vec::new(),
            slopes: Vec::new(),
            claims: Vec::new(),
        }
    }

    /// Ends it with an error. What was measured before stands.
    pub fn fail(&mut self, error: Error) {
        self.status = if error.kind == Kind::Interrupted { Status::Interrupted } else { Status::Failed };
        self.error = Some(error);
    }

    /// Says why a value could not be had.
    pub fn miss(&mut self, path: &str, reason: &str) {
        let missing = Missing { path: path.into(), reason: reason.into() };
        if !self.missing.contains(&missing) {
            self.missing.push(missing);
        }
    }

    /// The runs of a name, in order.
    pub fn runs<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Document> {
        self.scenes.iter().filter(move |scene| scene.name == name).map(|scene| &scene.document)
    }

    /// Draws the conclusions.
    pub fn conclude(&mut self) {
        self.slopes = slopes(self.runs("bytes"));
        self.claims = claims(self);
    }
}
