//! Where output goes. A file appears whole or not at all: it is written beside its place and renamed, so that a full
//! disk or a crash leaves the good old one.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::{Error, Kind, Step};

/// Where one output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `-`, or a path that is just another name for it.
    Stdout,
    /// A path.
    Path(PathBuf),
}

impl<T: AsRef<OsStr> + ?Sized> From<&T> for Target {
    fn from(text: &T) -> Self {
        match text.as_ref().to_str() {
            Some("-" | "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1") => Self::Stdout,
            _ => Self::Path(text.as_ref().into()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("standard output"),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How a path has to be written.
enum Place {
    /// Through a temporary file; the path with its links followed.
    Replace(PathBuf),
    /// As it stands: a device, a FIFO, an open descriptor.
    Direct(PathBuf),
}

impl Target {
    /// Asks, before anything is measured, whether the output could be written. Creates nothing that stays.
    ///
    /// # Errors
    /// The reason it could not, as a usage error.
    pub fn check(&self) -> Result<(), Error> {
        let Self::Path(path) = self else {
            return Ok(());
        };
        let try_it = || match place(path)? {
            // Opening a FIFO waits for its reader: it is left to the writing.
            Place::Direct(_) => Ok(()),
            Place::Replace(real) => {
                let exists = may_overwrite(&real)?;
                match beside(&real) {
                    Err(error) if !(exists && in_place_instead(&error)) => Err(error),
                    _ => Ok(()),
                }
            }
        };
        try_it().map_err(|cause: io::Error| Error { kind: Kind::Usage, ..explain(self, &cause) })
    }

    /// Writes all of `contents`.
    ///
    /// # Errors
    /// Path, cause and remedy. A pipe closed by its reader is an error too; [`reader_gone`] tells it from the others.
    pub fn write(&self, contents: &[u8]) -> Result<(), Error> {
        let written = match self {
            Self::Stdout => stdout(contents),
            Self::Path(path) => place(path).and_then(|place| match place {
                Place::Direct(path) => direct(&path, contents),
                Place::Replace(real) => replace(&real, contents),
            }),
        };
        written.map_err(|cause| explain(self, &cause))
    }

    /// The same for whoever reads it: one that has gone has had enough, and is no error.
    ///
    /// # Errors
    /// As of [`Target::write`].
    pub fn offer(&self, contents: &[u8]) -> Result<(), Error> {
        self.write(contents).or_else(|error| if reader_gone(&error) { Ok(()) } else { Err(error) })
    }
}

/// All of it, and flushed: an error must not wait for the end of the process.
fn stdout(contents: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(contents)?;
    out.flush()
}

/// Follows links and looks at what is there.
fn place(path: &Path) -> io::Result<Place> {
    let mut real = path.to_path_buf();
    // As many links as the kernel follows.
    for _ in 0..40 {
        if is_descriptor(&real) {
            return Ok(Place::Direct(real));
        }
        match fs::symlink_metadata(&real) {
            Ok(found) if found.is_symlink() => {
                let to = fs::read_link(&real)?;
                real = real.parent().unwrap_or(Path::new("")).join(to);
            }
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => return Ok(Place::Direct(real)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => return Ok(Place::Replace(real)),
        }
    }
    Err(io::Error::from_raw_os_error(nix::libc::ELOOP))
}

/// The path names a descriptor of some process. What it leads to may be a file, but one that is open already: renaming
/// over it would part the name from whoever writes there.
fn is_descriptor(path: &Path) -> bool {
    ["/dev/fd", "/proc"].iter().any(|root| path.starts_with(root)) || path == Path::new("/dev/stderr")
}

/// Writes to what is there, after whatever it holds.
fn direct(path: &Path, contents: &[u8]) -> io::Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(contents)
}

/// Writes a file beside the place, then puts it there.
fn replace(real: &Path, contents: &[u8]) -> io::Result<()> {
    let exists = may_overwrite(real)?;
    let written = beside(real).and_then(|mut new| {
        new.write_all(contents)?;
        if let Ok(old) = fs::metadata(real) {
            // Best effort: a file system without modes has none to keep.
            let _ = new.as_file().set_permissions(old.permissions());
        }
        new.as_file().sync_all()?;
        new.persist(real).map_err(|failed| failed.error)?;
        // The file is complete either way; this makes its name survive a power cut where directories can be synced.
        let _ = File::open(parent(real)).and_then(|directory| directory.sync_all());
        Ok(())
    });
    match written {
        Err(error) if exists && in_place_instead(&error) => {
            let mut file = OpenOptions::new().write(true).truncate(true).open(real)?;
            file.write_all(contents)?;
            file.sync_all()
        }
        other => other,
    }
}

/// Whether there is a file, and an error if it may not be written: renaming would not ask.
fn may_overwrite(real: &Path) -> io::Result<bool> {
    match OpenOptions::new().write(true).open(real) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A file that may be written where nothing may be created or renamed beside it (a directory of another user, a file
/// mounted into a container) is written as it stands.
fn in_place_instead(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ResourceBusy)
}

/// A temporary file in the same directory, with the mode the umask gives. It removes itself unless renamed.
fn beside(real: &Path) -> io::Result<NamedTempFile> {
    let name = real.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let mut prefix = std::ffi::OsString::from(".");
    // A name may have 255 bytes; what is added takes some.
    prefix.push(if name.len() < 200 { name } else { "verbmark".as_ref() });
    tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".tmp")
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(parent(real))
        .map_err(|error| match error.raw_os_error() {
            // tempfile adds the temporary path to the text; the user asked for another.
            Some(code) => io::Error::from_raw_os_error(code),
            None if error.kind() == io::ErrorKind::NotFound => {
                io::Error::from_raw_os_error(nix::libc::ENOENT)
            }
            None => io::Error::from(error.kind()),
        })
}

/// The directory of a file; an empty parent is the current one.
fn parent(real: &Path) -> &Path {
    real.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What is said of a pipe whose other end was closed.
const READER_GONE: &str = "its reader has gone";

/// The output's reader had enough, as `head` has: no more need be said, on any stream.
pub fn reader_gone(error: &Error) -> bool {
    error.step == Step::Output && error.message.ends_with(READER_GONE)
}

/// Path, cause, and what to do.
fn explain(target: &Target, cause: &io::Error) -> Error {
    if cause.kind() == io::ErrorKind::BrokenPipe {
        return Error::failed(Step::Output, format!("cannot write {target}: {READER_GONE}"));
    }
    let error = Error::failed(Step::Output, format!("cannot write {target}: {cause}"));
    let remedy = match cause.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "create the directory first",
        io::ErrorKind::IsADirectory => "name a file inside it",
        io::ErrorKind::PermissionDenied => "write to a place this user owns, or change its permissions",
        io::ErrorKind::ReadOnlyFilesystem => "write to a file system that is not read-only",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space, or write elsewhere",
        _ => return error,
    };
    error.with_remedy(remedy)
}
