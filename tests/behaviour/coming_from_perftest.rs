//! `docs/coming-from-perftest.md` keeps up with the options there are: what it names exists, and what it says there is
//! none of does not.

use std::collections::BTreeSet;

use verbmark::{cli, plan, registration, suite};

const PAGE: &str = include_str!("../../docs/coming-from-perftest.md");

/// The cells of a table's line; `None` for what is not one, or a title, or a rule.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.strip_prefix("| ")?.trim_end().strip_suffix('|')?;
    let cells: Vec<_> = inner.split('|').map(str::trim).collect();
    (cells[0] != "perftest").then_some(cells)
}

fn rows() -> Vec<Vec<&'static str>> {
    PAGE.lines().filter_map(cells).collect()
}

/// What a cell has in code.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Options named in a cell's code, without their values.
fn named(cell: &str) -> Vec<&str> {
    let words = code(cell).into_iter().flat_map(str::split_whitespace);
    words.filter(|word| word.starts_with('-') && *word != "-").collect()
}

/// Every name of every option of the test binaries.
fn ours() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let tests = suite::TESTS.iter().map(|&(verb, shape)| suite::command(verb, shape));
    for mut command in tests.chain([registration::command()]) {
        command.build();
        for arg in command.get_arguments() {
            names.extend(arg.get_short().map(|short| format!("-{short}")));
            names.extend(arg.get_long().map(|long| format!("--{long}")));
        }
    }
    names
}

#[test]
fn the_page_is_read() {
    let rows = rows();
    assert!(rows.len() > 60, "{} rows", rows.len());
    assert_eq!(named("`-s 64,4k`, see `--json`, `-` and `send_lat`"), ["-s", "--json"]);
    assert_eq!(cells("|---|---|"), None);
}

#[test]
fn options_said_to_be_ours_are() {
    let ours = ours();
    for row in rows() {
        for option in row[1..].iter().flat_map(|cell| named(cell)) {
            assert!(ours.contains(option), "{option} of '{}' does not exist", row.join(" | "));
        }
    }
    let text = PAGE.lines().filter(|line| cells(line).is_none());
    for option in text.flat_map(named) {
        assert!(ours.contains(option), "{option} does not exist");
    }
}

#[test]
fn binaries_said_to_be_ours_are() {
    let tests = suite::TESTS.iter().map(|&(verb, shape)| plan::binary(verb, shape));
    let tests: Vec<_> = tests.chain([registration::BINARY.to_owned()]).collect();
    let tool = cli::tool::command();
    let tasks: Vec<_> = tool.get_subcommands().map(|task| task.get_name()).collect();
    for row in rows() {
        for code in code(row[1]) {
            let mut words = code.split_whitespace();
            let (first, second) = (words.next().unwrap_or_default(), words.next());
            if first == "verbmark" {
                assert!(second.is_some_and(|task| tasks.contains(&task)), "{code}");
            } else if first.ends_with("_lat") || first.ends_with("_bw") {
                assert!(tests.iter().any(|test| test == first), "{code}");
            }
        }
    }
}

#[test]
fn options_said_to_be_missing_are() {
    let ours = ours();
    for row in rows().into_iter().filter(|row| row[1].starts_with("none")) {
        for option in named(row[0]).into_iter().filter(|option| option.starts_with("--")) {
            let same = option.replace('_', "-");
            assert!(!ours.contains(&same), "{same} exists: say in docs/coming-from-perftest.md what it does");
        }
    }
}

#[test]
fn options_of_the_same_name_are_on_the_page() {
    // Whoever knows the name from there looks for it here.
    let theirs: BTreeSet<String> =
        rows().iter().flat_map(|row| named(row[0])).map(|o| o.replace('_', "-")).collect();
    for long in ["--port", "--ib-dev", "--size", "--iters", "--duration", "--tx-depth", "--mtu", "--events"] {
        assert!(theirs.contains(long) && ours().contains(long), "{long}");
    }
}
