//! A document as JSON.

use serde::Serialize;

use crate::error::{Error, Step};

/// The document, indented for people, with a newline at its end.
///
/// # Errors
/// A value that JSON cannot hold, which the document's types do not have.
pub fn to_string(document: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string_pretty(document);
    text.map(|text| text + "\n").map_err(|e| Error::failed(Step::Output, format!("cannot write JSON: {e}")))
}
