//! A baseline on disk: a directory with one directory for each sitting, which holds the documents of its runs.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::error::{Error, Result, Step};
use crate::gate::document::Sitting;
use crate::gate::sample::Runs;
use crate::tool::compare;
use crate::units::counted;

/// Names of sittings that are not whole yet begin so.
const UNFINISHED: &str = ".sitting-";

/// Age beyond which nobody goes on with one of them: its gate was killed.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// What `mkfs` makes in every new file system, and only root can read.
const LOST_AND_FOUND: &str = "lost+found";

/// The sittings of a baseline.
#[derive(Debug, Default)]
pub struct Baseline {
    /// Every one of them, by name.
    pub sittings: Vec<Stored>,
    /// Directories in it that are none.
    pub others: Vec<String>,
}

/// A stored sitting.
#[derive(Debug)]
pub struct Stored {
    /// What it is called, and when it was.
    pub facts: Sitting,
    /// Its runs.
    pub runs: Runs,
}

impl Baseline {
    /// Reads every sitting of a baseline; none where there is no such directory.
    ///
    /// # Errors
    /// The directory is a sitting itself or cannot be read, a document in it is none or must not be trusted, or two sittings
    /// have a run in common.
    pub fn read(directory: &Path) -> Result<Self> {
        let unreadable = |error: std::io::Error| {
            Error::usage(format!("cannot read the baseline {}: {error}", directory.display()))
                .with_remedy("name a directory to which --record added sittings")
        };
        if !directory.try_exists().map_err(unreadable)? {
            return Ok(Self::default());
        }
        let paths = sittings(directory).map_err(unreadable)?;
        if paths.is_empty() && !compare::documents(directory).map_err(unreadable)?.is_empty() {
            return Err(Error::usage(format!(
                "{} has documents of runs and no sittings: it is a sitting itself",
                directory.display()
            ))
            .with_remedy("name the directory that holds it, or compare it with `verbmark compare`"));
        }
        let mut baseline = Self::default();
        for path in paths {
            let documents = compare::documents(&path).map_err(|error| {
                Error::usage(format!("cannot read the sitting {}: {error}", path.display()))
                    .with_remedy("let this user read it, or move it out of the baseline")
            })?;
            match documents.is_empty() {
                true => baseline.others.push(name_of(&path)),
                false => baseline.sittings.push(Stored::read(&path)?),
            }
        }
        baseline.check(directory)?;
        Ok(baseline)
    }

    /// A sitting that was copied would count twice, and make the spread smaller than it is.
    fn check(&self, directory: &Path) -> Result<()> {
        for (index, one) in self.sittings.iter().enumerate() {
            for other in &self.sittings[..index] {
                let shared = one.runs.shared_with(&other.runs);
                if shared > 0 {
                    let (first, second) = (&other.facts.name, &one.facts.name);
                    return Err(Error::usage(format!(
                        "the sittings {first} and {second} of {} have {} in common, which would count twice",
                        directory.display(),
                        counted(shared, "run")
                    ))
                    .with_remedy("remove one of the two"));
                }
            }
        }
        Ok(())
    }

    /// The runs of the sitting that was measured last.
    pub fn latest(&self) -> Option<&Runs> {
        let latest = self.sittings.iter().max_by_key(|stored| &stored.facts.started_at);
        latest.map(|stored| &stored.runs)
    }

    /// The most runs that any sitting has of a point: as many does a further one need. `None` without sittings.
    pub fn runs_of_a_sitting(&self) -> Option<usize> {
        self.sittings.iter().map(|stored| stored.runs.most_of_a_point()).max()
    }
}

impl Stored {
    fn read(path: &Path) -> Result<Self> {
        let runs = compare::runs(path.as_os_str())?.runs;
        let first = runs.first.clone();
        let facts = Sitting {
            name: name_of(path),
            started_at: first.as_ref().map(|first| first.started_at.clone()).unwrap_or_default(),
            labels: first.map(|first| first.labels).unwrap_or_default(),
            runs: runs.count(),
        };
        Ok(Self { facts, runs })
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Directories that may be whole sittings, by name.
fn sittings(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = name_of(&path);
        if path.is_dir() && !name.starts_with('.') && name != LOST_AND_FOUND {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
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
        if let Some(document) = compare::documents(baseline).map_err(failed)?.first() {
            return Err(Error::usage(format!(
                "{} is a sitting itself: it has {}",
                baseline.display(),
                name_of(document)
            ))
            .with_remedy("name the directory that holds it, or a new one"));
        }
        remove_abandoned(baseline);
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
        let failed = |place: &Path, error: std::io::Error| {
            Error::failed(Step::Output, format!("cannot add {}: {error}", place.display()))
                .with_remedy("name a directory that can be written")
        };
        let mut number = 1;
        let place = loop {
            // Two that began within a millisecond; another gate may add its own at this moment.
            let name = if number == 1 { time.clone() } else { format!("{time}-{number}") };
            let place = self.baseline.join(OsString::from(name));
            match fs::rename(self.directory.path(), &place) {
                Ok(()) => break place,
                Err(error) if is_taken(&error) => number += 1,
                Err(error) => return Err(failed(&place, error)),
            }
        };
        // It is not there any more to be taken away.
        let _ = self.directory.keep();
        let has_documents = |path: &PathBuf| compare::documents(path).is_ok_and(|found| !found.is_empty());
        let all = sittings(&self.baseline).unwrap_or_default();
        Ok((place, all.iter().filter(|path| has_documents(path)).count()))
    }
}

/// A directory takes the place of another one only if that is empty.
fn is_taken(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists | ErrorKind::NotADirectory)
}

/// What gates left that were killed. One that cannot be removed is in nobody's way.
fn remove_abandoned(baseline: &Path) {
    let entries = fs::read_dir(baseline).into_iter().flatten().filter_map(std::result::Result::ok);
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(UNFINISHED)) {
        let age = entry.metadata().and_then(|facts| facts.modified()).ok().and_then(|at| at.elapsed().ok());
        if age.is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
