//! Recorded runs, read one after the other: of each no more is kept than is compared.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, Step};
use crate::gate::recorded::{Recorded, Refusal};
use crate::gate::sample::Runs;
use crate::result::SCHEMA;

/// Largest document that is read, in bytes: hundreds of times what a long sweep writes.
pub const LARGEST: u64 = 64 << 20;

/// One side of a comparison.
#[derive(Debug, Default)]
pub struct Side {
    /// Its runs.
    pub runs: Runs,
    /// Documents of this suite in its directory that are no results.
    pub others: Vec<String>,
}

/// The runs of a file, or of every `*.json` in a directory, by name.
///
/// # Errors
/// There is none, or one that cannot be read, is no document of this format, or must not be trusted.
pub fn runs(name: &OsStr) -> Result<Side> {
    let path = Path::new(name);
    let unreadable = |error: std::io::Error| {
        Error::usage(format!("cannot read {}: {error}", path.display()))
            .with_remedy("name documents that runs wrote with --json, or directories of them")
    };
    let is_directory = fs::metadata(path).map_err(unreadable)?.is_dir();
    let mut side = Side::default();
    // One buffer for all: each document is read whole, and gone before the next.
    let mut buffer = Vec::new();
    let files = if is_directory { documents(path).map_err(unreadable)? } else { vec![path.into()] };
    for file in files {
        read(&file, &mut buffer)?;
        match Recorded::read(&buffer) {
            Ok(recorded) => {
                let shown = file.display().to_string();
                side.runs.add(&recorded, &shown).map_err(|cause| {
                    Error::usage(format!("{shown}: {cause}"))
                        .with_remedy("leave one of the two documents out")
                })?;
            }
            Err(Refusal::OtherSchema(_)) if is_directory => side.others.push(file.display().to_string()),
            Err(refusal) => return Err(refused(&file, refusal)),
        }
    }
    if side.runs.count() == 0 {
        return Err(Error::usage(format!("{} holds no {SCHEMA} document", path.display()))
            .with_remedy("name a directory in which runs wrote theirs with --json"));
    }
    Ok(side)
}

/// The documents of a directory, not of those in it, by name.
///
/// # Errors
/// It cannot be read.
pub fn documents(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Fills the buffer with a file, if it is one and not too large.
fn read(path: &Path, buffer: &mut Vec<u8>) -> Result<()> {
    let failed = |cause: String| {
        Error::usage(format!("cannot read {}: {cause}", path.display()))
            .with_remedy("leave it out, or name a document that a run wrote with --json")
    };
    let too_large = || failed(format!("it is larger than {} MiB", LARGEST >> 20));
    // A FIFO would be waited for.
    let facts = fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if !facts.is_file() {
        return Err(failed("it is no regular file".into()));
    }
    if facts.len() > LARGEST {
        return Err(too_large());
    }
    buffer.clear();
    // It may have grown since.
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(buffer));
    match read.map_err(|error| failed(error.to_string()))? {
        bytes if bytes as u64 > LARGEST => Err(too_large()),
        _ => Ok(()),
    }
}

fn refused(path: &Path, refusal: Refusal) -> Error {
    let path = path.display();
    match refusal {
        Refusal::OtherSchema(schema) => {
            Error::usage(format!("{path}: its schema is '{schema}', and {SCHEMA} is compared"))
                .with_remedy("name documents that tests wrote with --json")
        }
        Refusal::Broken(cause) => Error::usage(format!("{path}: {cause}"))
            .with_remedy("name documents that tests wrote with --json, as they were written"),
        Refusal::Untrusted(cause) => Error::invalid(Step::Read, format!("{path}: {cause}"))
            .with_remedy("leave this run out, or measure it again"),
    }
}
