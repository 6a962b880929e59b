//! Where output goes, and that a good old file survives what may go wrong.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use verbmark::error::{Error, Kind, Step};
use verbmark::report::{Target, files};

fn directory() -> TempDir {
    tempfile::tempdir().expect("tests have a temporary directory")
}

fn target(path: &Path) -> Target {
    Target::from(path.to_str().expect("temporary paths are UTF-8"))
}

/// The error of both the early check and the writing.
fn refused(path: &Path) -> Error {
    let error = target(path).write(b"new").unwrap_err();
    assert_eq!((error.step, error.kind), (Step::Output, Kind::Failed), "{error}");
    assert!(error.message.contains(path.to_str().unwrap()), "{error}");
    let early = target(path).check().unwrap_err();
    assert_eq!((early.kind, &early.message), (Kind::Usage, &error.message));
    error
}

/// The directory holds these names and no temporary file.
fn holds(directory: &Path, names: &[&str]) {
    let mut found: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, names);
}

/// Permissions do not bind root.
fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[test]
fn a_file_is_replaced_whole_and_keeps_its_mode() {
    let directory = directory();
    let path = directory.path().join("out.json");
    target(&path).check().unwrap();
    holds(directory.path(), &[]);
    target(&path).write(b"first").unwrap();
    let by_umask = directory.path().join("plain");
    fs::write(&by_umask, b"").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), mode(&by_umask), "a new file has the mode any new file has");

    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let old = fs::File::open(&path).unwrap();
    target(&path).check().unwrap();
    target(&path).write(b"2").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"2");
    assert_eq!(
        std::io::read_to_string(old).unwrap(),
        "first",
        "who has the old file open still reads it whole"
    );
    assert_eq!(mode(&path), 0o640);
    holds(directory.path(), &["out.json", "plain"]);
}

#[test]
fn links_are_followed_not_replaced() {
    let directory = directory();
    fs::create_dir(directory.path().join("real")).unwrap();
    let link = directory.path().join("link");
    symlink("real/out", &link).unwrap();
    for contents in ["dangling before", "there before"] {
        target(&link).write(contents.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(directory.path().join("real/out")).unwrap(), contents);
    }
    assert!(link.is_symlink());

    let round = directory.path().join("round");
    symlink("round", &round).unwrap();
    refused(&round);
}

#[test]
fn a_place_that_cannot_be_is_refused_with_a_remedy() {
    let directory = directory();
    let missing = refused(&directory.path().join("missing/out"));
    assert!(missing.remedy.as_ref().unwrap().contains("create the directory"), "{missing:?}");
    let is_directory = refused(directory.path());
    assert!(is_directory.remedy.as_ref().unwrap().contains("inside it"), "{is_directory:?}");
    fs::write(directory.path().join("file"), b"").unwrap();
    refused(&directory.path().join("file/out"));
    holds(directory.path(), &["file"]);
}

#[test]
fn permissions_are_obeyed() {
    if is_root() {
        eprintln!("skipped: permissions do not bind root");
        return;
    }
    let directory = directory();
    let path = directory.path().join("out");
    fs::write(&path, b"old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    assert!(refused(&path).remedy.is_some());
    assert_eq!(fs::read(&path).unwrap(), b"old", "renaming would have replaced a read-only file");

    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
    target(&path).check().unwrap();
    target(&path).write(b"in place").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"in place");
    refused(&directory.path().join("new"));
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn special_files_are_written_as_they_stand() {
    target(Path::new("/dev/null")).check().unwrap();
    target(Path::new("/dev/null")).write(b"gone").unwrap();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());

    let full = target(Path::new("/dev/full")).write(b"x").unwrap_err();
    assert!(full.message.contains("No space left"), "{full}");
    assert!(full.remedy.is_some_and(|remedy| remedy.contains("space")));

    let directory = directory();
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    target(&fifo).check().unwrap();
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read_to_string(fifo).unwrap()
    });
    target(&fifo).write(b"through").unwrap();
    assert_eq!(reader.join().unwrap(), "through");
    holds(directory.path(), &["fifo"]);
}

#[test]
fn an_open_descriptor_is_written_not_renamed_over() {
    use std::os::fd::AsRawFd;
    let directory = directory();
    let path = directory.path().join("log");
    fs::write(&path, b"before ").unwrap();
    let open = fs::File::open(&path).unwrap();
    target(Path::new(&format!("/dev/fd/{}", open.as_raw_fd()))).write(b"after").unwrap();
    assert_eq!(std::io::read_to_string(open).unwrap(), "before after");
}

#[test]
fn standard_output_has_several_names() {
    for name in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        assert_eq!(Target::from(name), Target::Stdout, "{name}");
    }
    assert_eq!(Target::from("./-"), Target::Path("./-".into()));
}

/// Run again by the test below with its standard output where that test wants it.
#[test]
fn write_to_standard_output() {
    if std::env::var_os("VERBMARK_STDOUT").is_none() {
        return;
    }
    let text = "x".repeat(1 << 20);
    if let Err(error) = Target::Stdout.write(text.as_bytes()) {
        eprintln!("gone: {}, {error}", files::reader_gone(&error));
    }
}

#[test]
fn a_closed_standard_output_is_an_error_not_a_panic() {
    // The harness itself prints to standard output: only standard error is looked at.
    let script = "VERBMARK_STDOUT=1 \"$0\" --exact --nocapture --quiet report_files::write_to_standard_output | head -c 10 > /dev/null";
    let output =
        Command::new("sh").args(["-c", script]).arg(std::env::current_exe().unwrap()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("gone: true, write output: cannot write standard output: its reader has gone"),
        "{said}"
    );
}

#[test]
fn a_full_disk_leaves_the_old_file() {
    // A file system of one page, where the user may make one.
    let directory = directory();
    let script = r#"
        set -e
        mount -t tmpfs -o size=8k tmpfs "$1"
        printf old > "$1/out"
        VERBMARK_FULL="$1/out" "$0" --exact --quiet report_files::write_more_than_there_is_room
        printf '%s ' "$(cat "$1/out")"; ls -A "$1"
    "#;
    let run = Command::new("unshare")
        .args(["--mount", "--user", "--map-root-user", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(directory.path())
        .output();
    match run {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.trim_end().ends_with("old out"), "{text}");
        }
        other => eprintln!("skipped: no mount namespace of one's own here ({other:?})"),
    }
}

/// Run again by the test above on a file system without room.
#[test]
fn write_more_than_there_is_room() {
    let Ok(path) = std::env::var("VERBMARK_FULL") else {
        return;
    };
    let error = Target::from(path.as_str()).write(&vec![b'x'; 1 << 20]).unwrap_err();
    assert!(error.message.contains("No space left"), "{error}");
    assert!(error.remedy.is_some());
}
