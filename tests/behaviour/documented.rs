//! The documentation holds: each command in it is one that its binary takes, and each output is that of a recorded run.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use verbmark::plan::binary;
use verbmark::{cli, suite};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages: the README and all of `docs`.
fn pages() -> Vec<(PathBuf, String)> {
    let docs = fs::read_dir(root().join("docs")).expect("docs").flatten().map(|entry| entry.path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let pages = pages.chain([root().join("README.md"), root().join("CONTRIBUTING.md")]);
    pages.map(|path| (path.clone(), fs::read_to_string(&path).expect("a page"))).collect()
}

/// A block of a page that stands between fences, and the line before it that is not empty.
struct Block<'a> {
    before: &'a str,
    lines: Vec<&'a str>,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let (mut before, mut open): (&str, Option<Block<'_>>) = ("", None);
    for line in page.lines() {
        match (line.trim_start().starts_with("```"), open.take()) {
            (true, None) => open = Some(Block { before, lines: Vec::new() }),
            (true, Some(block)) => blocks.push(block),
            (false, Some(mut block)) => {
                block.lines.push(line);
                open = Some(block);
            }
            (false, None) if !line.trim().is_empty() => before = line,
            (false, None) => {}
        }
    }
    assert!(open.is_none(), "a fence is not closed");
    blocks
}

/// The words of a command of this suite in a line; `None` where it is another's, or none.
fn command(line: &str) -> Option<Vec<OsString>> {
    // What stands before a prompt says whose it is.
    let line = line.split_once("$ ").map_or(line, |(_, typed)| typed);
    let line = line.rsplit_once(" -- target/").map_or(line, |(_, typed)| typed);
    let line = line.split(" # ").next().unwrap_or(line);
    let line = line.split([';', '>', '|']).next().unwrap_or(line);
    let words = shlex::split(line).unwrap_or_else(|| line.split_whitespace().map(String::from).collect());
    // Variables of its environment stand before a command.
    let words = words.into_iter().skip_while(|word| word.contains('=') && !word.starts_with('-'));
    let mut words: Vec<OsString> = words.map(OsString::from).collect();
    let first = words.first()?.to_str()?.to_owned();
    let name = first.rsplit('/').next()?.to_owned();
    words[0] = name.clone().into();
    let ours = suite::TESTS.iter().any(|&(verb, shape)| binary(verb, shape) == name);
    (ours || ["verbmark", "reg_mr_lat"].contains(&name.as_str())).then_some(words)
}

fn parses(words: &[OsString]) -> Result<(), String> {
    let name = words[0].to_string_lossy();
    let (test, words) =
        (suite::TESTS.iter().find(|&&(verb, shape)| binary(verb, shape) == name), words.to_vec());
    let outcome = match (test, &*name) {
        (Some(&(verb, shape)), _) => suite::parse(verb, shape, words).map(drop),
        (None, "verbmark") => match cli::tool::parse(words) {
            Ok(args) => match args.task {
                cli::tool::Task::Audit(audit) => return parses(&audit.test),
                cli::tool::Task::Gate(gate) => {
                    let arms = [gate.arms.a, gate.arms.b].into_iter().flatten();
                    return arms.filter_map(|arm| command(&arm)).try_for_each(|words| parses(&words));
                }
                _ => Ok(()),
            },
            Err(error) => Err(error),
        },
        _ => cli::registration::parse(words).map(drop),
    };
    outcome.map_err(|error| error.to_string())
}

#[test]
fn every_documented_command_is_one_that_its_binary_takes() {
    let (mut found, mut wrong) = (0, Vec::new());
    let mut check = |path: &Path, typed: &str, words: Vec<OsString>| {
        found += 1;
        wrong.extend(parses(&words).err().map(|error| format!("{}: {typed}\n{error}", path.display())));
    };
    for (path, page) in pages() {
        for line in
            blocks(&page).iter().filter(|block| source(block.before).is_none()).flat_map(|block| &block.lines)
        {
            // A table begins with the name of its test, too.
            let is_table = line.contains("  ") && !line.contains('#');
            if let Some(words) = command(line).filter(|_| !is_table) {
                check(&path, line, words);
            }
        }
        // Within a line: `send_lat -s 64`. A name alone, or that of a subcommand, is none.
        for code in page.split('`').skip(1).step_by(2).filter(|code| !code.contains('\n')) {
            let is_name = |words: &[OsString]| words.len() == 1 || words.len() == 2 && words[0] == "verbmark";
            if let Some(words) = command(code).filter(|words| !is_name(words)) {
                check(&path, code, words);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found > 45, "only {found} commands were recognised");
}

/// What marks an output: `<!-- results/FOLDER/NAME.txt -->`.
fn source(line: &str) -> Option<&str> {
    line.trim().strip_prefix("<!-- results/")?.strip_suffix(" -->")
}

#[test]
fn every_output_is_that_of_a_recorded_run() {
    let mut found = 0;
    for (path, page) in pages() {
        assert!(!page.contains("<!-- output:"), "{} waits for an output", path.display());
        for block in blocks(&page) {
            let Some(name) = source(block.before) else { continue };
            let recorded = fs::read_to_string(root().join("results").join(name))
                .unwrap_or_else(|error| panic!("{}: {name}: {error}", path.display()));
            found += 1;
            // Left out is what an ellipsis stands for.
            let mut rest = recorded.lines().map(str::trim_end);
            // Nor is the command that was typed in it.
            let shown = block.lines.iter().filter(|line| line.trim() != "..." && !line.starts_with("$ "));
            for line in shown.map(|line| line.trim_end()) {
                assert!(
                    rest.any(|recorded| recorded == line),
                    "{}: {name} has no such line, or not there: {line}",
                    path.display()
                );
            }
        }
        // A table without its source would be numbers from nowhere.
        for block in blocks(&page) {
            let is_table =
                block.lines.iter().any(|line| line.contains("transport  ") && line.contains("size"));
            assert!(
                !is_table || source(block.before).is_some(),
                "{}: a table without its recorded run: {}",
                path.display(),
                block.lines[0]
            );
        }
    }
    assert!(found >= 20, "only {found} outputs were recognised");
}

#[test]
fn both_languages_of_the_concepts_show_the_same() {
    let read = |name: &str| fs::read_to_string(root().join("docs").join(name)).expect("a page");
    let (english, chinese) = (read("concepts.md"), read("concepts.zh.md"));
    let shown = |page: &str| {
        let blocks = blocks(page);
        let shown: Vec<String> =
            blocks.iter().map(|block| format!("{:?} {:?}", source(block.before), block.lines)).collect();
        shown
    };
    assert_eq!(shown(&english), shown(&chinese));
    let headings = |page: &str| page.lines().filter(|line| line.starts_with('#')).count();
    assert_eq!(headings(&english), headings(&chinese));
}
