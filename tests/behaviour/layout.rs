//! The house stays as it was laid out: modules use only those that `src/lib.rs` allows them, unsafe code keeps to its
//! two rooms, and the loops stay free of what would slow them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Which modules a module may use. `error` and `units` are leaves that all may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("ops", &[]),
    ("cli", &[]),
    ("sys", &[]),
    ("verbs", &[]),
    ("error", &[]),
    ("units", &[]),
    ("host", &["sys"]),
    ("measure", &["sys"]),
    ("plan", &["cli", "ops", "measure"]),
    ("result", &["plan", "ops", "host", "measure"]),
    ("oob", &["plan", "ops", "result"]),
    ("transport", &["verbs", "ops", "measure", "plan", "host", "sys"]),
    ("report", &["result"]),
    ("gate", &["result"]),
    ("session", &["cli", "plan", "ops", "measure", "transport", "verbs", "oob", "host", "result"]),
    ("suite", &["cli", "plan", "ops", "measure", "session", "report", "gate", "result", "host"]),
    ("registration", &["cli", "plan", "measure", "transport", "verbs", "host", "result", "report", "suite"]),
    (
        "tool",
        &[
            "cli",
            "suite",
            "registration",
            "session",
            "measure",
            "oob",
            "ops",
            "plan",
            "report",
            "gate",
            "result",
            "host",
            "verbs",
            "sys",
        ],
    ),
    ("bin", &["suite", "registration", "tool", "ops", "plan"]),
];

/// Modules whose code runs inside the measured loops.
const HOT: &[&str] = &["measure", "ops", "transport"];

/// Lines above which a file owns more than one thing.
const LONGEST_FILE: usize = 500;

/// A source file: the module it belongs to, its path, and its text without tests and comments.
struct Source {
    module: String,
    path: PathBuf,
    code: String,
    lines: usize,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    collect(&root, &root, &mut sources);
    assert!(sources.len() > 40, "{} files are not this project", sources.len());
    sources
}

fn collect(root: &Path, directory: &Path, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // Tests beside the code may do as they like.
            if path.file_name().unwrap() != "tests" {
                collect(root, &path, sources);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let first = path.strip_prefix(root).unwrap().iter().next().unwrap().to_str().unwrap();
            let module = first.trim_end_matches(".rs").to_owned();
            sources.push(Source { module, lines: text.lines().count(), code: without_tests(&text), path });
        }
    }
}

/// The text up to the tests, which stand last in a file, without comments.
fn without_tests(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    code.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The modules named behind `crate::` or, in binaries, `verbmark::`.
fn used(code: &str) -> BTreeSet<&str> {
    let named = code.split("crate::").skip(1).chain(code.split("verbmark::").skip(1));
    named
        .flat_map(|rest| match rest.strip_prefix('{') {
            Some(group) => group.split('}').next().unwrap().split(',').map(str::trim).collect(),
            None => vec![rest],
        })
        .map(|path| path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap())
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn modules_use_only_those_behind_them() {
    for source in sources().iter().filter(|source| source.module != "lib") {
        let allowed = MAY_USE.iter().find(|(module, _)| *module == source.module);
        let (_, allowed) = allowed.unwrap_or_else(|| panic!("{} has no place in the table", source.module));
        for used in used(&source.code) {
            let known = MAY_USE.iter().any(|(module, _)| *module == used);
            assert!(
                !known
                    || used == source.module
                    || ["error", "units"].contains(&used)
                    || allowed.contains(&used),
                "{} uses {used}, which {} may not",
                source.path.display(),
                source.module
            );
        }
    }
}

#[test]
fn unsafe_code_keeps_to_its_rooms() {
    for source in sources().iter().filter(|source| !["verbs", "sys"].contains(&source.module.as_str())) {
        let found =
            source.code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
        assert!(!found, "{} has unsafe code", source.path.display());
    }
}

#[test]
fn nothing_in_the_loops_is_chosen_at_run_time_by_a_pointer() {
    for source in sources().iter().filter(|source| HOT.contains(&source.module.as_str())) {
        assert!(!source.code.contains("dyn "), "{} has a dyn", source.path.display());
    }
}

#[test]
fn a_binary_is_a_comment_and_a_call() {
    for source in sources().iter().filter(|source| source.module == "bin") {
        assert!(source.lines <= 15, "{} has {} lines", source.path.display(), source.lines);
    }
}

#[test]
fn every_test_binary_is_in_the_table_of_tests() {
    let table = verbmark::suite::TESTS.iter().map(|&(verb, shape)| verbmark::plan::binary(verb, shape));
    let sources = sources();
    let files = sources.iter().filter(|source| source.module == "bin").map(|source| source.path.file_stem());
    let files = files.map(|name| name.unwrap().to_str().unwrap().to_owned());
    assert_eq!(
        table.chain([verbmark::registration::BINARY.to_owned()]).collect::<BTreeSet<_>>(),
        files.filter(|name| name != "verbmark").collect::<BTreeSet<_>>()
    );
}

#[test]
fn a_file_owns_one_thing_and_says_so_in_its_name() {
    for source in sources() {
        let name = source.path.file_stem().unwrap().to_str().unwrap();
        assert!(
            !["util", "utils", "common", "helpers", "manager", "misc"].contains(&name),
            "{name} says nothing"
        );
        assert!(source.lines <= LONGEST_FILE, "{} has {} lines", source.path.display(), source.lines);
    }
}

#[test]
fn nothing_is_left_to_do_and_nothing_gives_up() {
    for source in sources() {
        for word in ["todo!(", "unimplemented!(", "dbg!(", ".unwrap()", "println!("] {
            assert!(!source.code.contains(word), "{} has {word}", source.path.display());
        }
    }
}

#[test]
fn the_checks_see_what_they_look_for() {
    assert_eq!(
        used("use crate::plan::Test; crate::{ops, verbs::Qp}"),
        BTreeSet::from(["ops", "plan", "verbs"])
    );
    assert_eq!(without_tests("a // b\n#[cfg(test)]\nmod tests {}"), "a ");
}
