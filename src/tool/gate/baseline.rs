//! A baseline on disk: a directory with one directory for each sitting, which holds the documents of its runs.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Error, Result, Step};
use crate::gate::document::Sitting;
use crate::gate::sample::Runs;
use crate::tool::compare;

/// Names of sittings that are not whole yet begin so.
const UNFINISHED: &str = ".sitting-";

/// A stored sitting.
#[derive(Debug)]
pub struct Stored {
    /// What it is called, and when it was.
    pub facts: Sitting,
    /// Its runs.
    pub runs: Runs,
}

/// Every sitting of a baseline, by name.
///
/// # Errors
/// There is no such directory, or a document in it is none, or must not be trusted.
pub fn stored(directory: &Path) -> Result<Vec<Stored>> {
    let unreadable = |error: std::io::Error| {
        Error::usage(format!("cannot read the baseline {}: {error}", directory.display()))
            .with_remedy("name a directory to which --record added sittings")
    };
    sittings(directory).map_err(unreadable)?.iter().map(|path| read(path)).collect()
}

/// Those that are whole.
fn sittings(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_dir() && !is_hidden {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Stored> {
    let runs = compare::runs(path.as_os_str())?.runs;
    let first = runs.first.clone();
    let facts = Sitting {
        name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        started_at: first.as_ref().map(|first| first.started_at.clone()).unwrap_or_default(),
        labels: first.map(|first| first.labels).unwrap_or_default(),
        runs: runs.count(),
    };
    Ok(Stored { facts, runs })
}

/// A sitting that is being measured. It is gone again unless it is added to its baseline.
#[derive(Debug)]
pub struct Unfinished {
    baseline: PathBuf,
    directory: TempDir,
}

impl Unfinished {
    /// Begins one; the directory of the baseline is made where it is missing.
    ///
    /// # Errors
    /// Usage: no sitting can be put there.
    pub fn begin(baseline: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::usage(format!("cannot record in {}: {error}", baseline.display()))
                .with_remedy("name a directory that can be written")
        };
        fs::create_dir_all(baseline).map_err(failed)?;
        // Less what the umask takes, as for every directory that a user makes.
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(UNFINISHED).permissions(Permissions::from_mode(0o777));
        Ok(Self { baseline: baseline.into(), directory: builder.tempdir_in(baseline).map_err(failed)? })
    }

    /// Where its documents go.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Adds it under a name of its own, which begins with the time of its first run. Gives its path, and how many there are.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn add(self, started_at: &str) -> Result<(PathBuf, usize)> {
        let time: String = started_at.chars().filter(|c| *c != ':').collect();
        // Two that began within a millisecond.
        let names = (1..).map(|n| if n == 1 { time.clone() } else { format!("{time}-{n}") });
        let free = names.map(|name| self.baseline.join(OsString::from(name))).find(|path| !path.exists());
        let place = free.unwrap_or_else(|| self.baseline.join(&time));
        let failed = |error: std::io::Error| {
            Error::failed(Step::Output, format!("cannot add {}: {error}", place.display()))
                .with_remedy("name a directory that can be written")
        };
        fs::rename(self.directory.path(), &place).map_err(failed)?;
        // It is not there any more to be taken away.
        let _ = self.directory.keep();
        let count = sittings(&self.baseline).map_err(failed)?.len();
        Ok((place, count))
    }
}
