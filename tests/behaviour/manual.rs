//! Manual pages and shell completions: every binary has them, and they know every option.

use crate::suite;

use std::collections::BTreeSet;

use crate::suite::{BINARIES, Files, REGISTRATION, Running, TOOL, line};
use clap::Command;
use verbmark::{cli, plan, suite::TESTS};

/// Commands that have a page, by its name.
fn commands() -> Vec<(String, Command)> {
    let tests =
        TESTS.iter().map(|&(verb, shape)| (plan::binary(verb, shape), verbmark::suite::command(verb, shape)));
    let registration = (REGISTRATION.to_owned(), verbmark::registration::command());
    let mut tool = cli::tool::command();
    tool.build();
    let tasks = tool.get_subcommands().filter(|task| !task.is_hide_set());
    let tasks: Vec<_> = tasks.map(|task| (format!("{TOOL}-{}", task.get_name()), task.clone())).collect();
    let mut commands: Vec<_> = tests.chain([registration, (TOOL.to_owned(), tool)]).chain(tasks).collect();
    commands.iter_mut().for_each(|(_, command)| command.build());
    commands
}

/// Every way to name an option, but for those that have no meaning for the binary and are hidden in its help.
fn options(command: &Command) -> Vec<String> {
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    let shorts = shown().filter_map(|arg| arg.get_short()).map(|short| format!("-{short}"));
    let longs = shown().filter_map(|arg| arg.get_long()).map(|long| format!("--{long}"));
    shorts.chain(longs).collect()
}

/// The words of a text that could be options.
fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect()
}

#[test]
fn every_binary_has_a_page_that_names_every_option() {
    let files = Files::new();
    let mut command = line(TOOL, "man");
    command.arg(files.path("man1"));
    let run = Running::start(command).finish().exits(0);
    assert!(run.stdout.is_empty() && run.stderr.is_empty());
    let commands = commands();
    for binary in BINARIES.iter().chain([&REGISTRATION, &TOOL, &"verbmark-devices"]) {
        assert!(commands.iter().any(|(name, _)| name == binary), "{binary} is not known");
    }
    for (name, command) in &commands {
        let path = files.path("man1").join(format!("{name}.1"));
        let page = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        // Fonts and hyphens of roff.
        let plain = page.replace("\\-", "-").replace("\\fB", " ").replace("\\fI", " ").replace("\\fR", " ");
        for option in options(command) {
            assert!(words(&plain).contains(option.as_str()), "{name}.1 lacks {option}:\n{page}");
        }
        assert!(plain.contains("verbmark manual"), "{page}");
    }
    assert_eq!(std::fs::read_dir(files.path("man1")).unwrap().count(), commands.len());
}

#[test]
fn every_binary_has_completions_that_know_every_option() {
    let files = Files::new();
    for shell in ["bash", "zsh", "fish"] {
        let mut command = line(TOOL, &format!("completions {shell}"));
        command.arg(files.path(shell));
        Running::start(command).finish().exits(0);
        assert_eq!(std::fs::read_dir(files.path(shell)).unwrap().count(), TESTS.len() + 2, "{shell}");
    }
    for (name, command) in commands().iter().filter(|(name, _)| !name.starts_with(TOOL)) {
        let text = std::fs::read_to_string(files.path("bash").join(format!("{name}.bash"))).unwrap();
        for option in options(command) {
            assert!(words(&text).contains(option.as_str()), "the completion of {name} lacks {option}");
        }
    }
}

#[test]
fn what_cannot_be_written_is_said() {
    suite::run(TOOL, "man /dev/null/man1").exits(5).says(&["/dev/null/man1"]);
    suite::run(TOOL, "completions tcsh /tmp").exits(2).says(&["tcsh", "bash"]);
}
