//! `verbmark devices`: every device and port, and whether a test can use it now.

use crate::cli::tool::DevicesArgs;
use crate::error::Result;
use crate::suite;
use crate::tool::output::Output;

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
    let output = Output::open(args.json.as_deref())?;
    let listing = Listing::now(args.device.as_deref());
    if listing.error.is_none() {
        output.show(|| render(&listing, suite::width()));
    }
    output.write(&listing)?;
    match listing.error {
        Some(error) => Err(error),
        None => Ok(0),
    }
}
