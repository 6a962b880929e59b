//! `verbmark devices`: every device and port, and whether a test can use it now.

use std::io::Write;

use crate::cli::tool::DevicesArgs;
use crate::error::{Error, Result, Step};
use crate::report::{Target, files};
use crate::suite;

mod listing;
mod table;
mod usable;

pub use listing::{Device, Gid, Limits, Listing, Port, ProviderKind, SCHEMA};
pub use table::render;
pub use usable::{Code, Reason};

/// Lists, and gives the exit status.
///
/// # Errors
/// Nothing could be listed, or the document not be written.
pub fn run(args: &DevicesArgs) -> Result<u8> {
    let target = args.json.as_deref().map(Target::from);
    if let Some(target) = &target {
        target.check()?;
    }
    let listing = Listing::now(args.device.as_deref());
    if target != Some(Target::Stdout) && listing.error.is_none() {
        // Who closed the pipe has seen enough.
        let _ = std::io::stdout().write_all(render(&listing, suite::width()).as_bytes());
    }
    if let Some(target) = &target {
        match target.write(to_json(&listing)?.as_bytes()) {
            Err(error) if !files::reader_gone(&error) => return Err(error),
            _ => {}
        }
    }
    match listing.error {
        Some(error) => Err(error),
        None => Ok(0),
    }
}

fn to_json(listing: &Listing) -> Result<String> {
    serde_json::to_string_pretty(listing)
        .map(|text| text + "\n")
        .map_err(|error| Error::failed(Step::Output, format!("cannot write JSON: {error}")))
}
