//! Manual pages and shell completions of every binary, for those who package them: written by the program whose
//! options they tell of, so that they are never of another version.

use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

use crate::cli;
use crate::cli::tool::{CompletionsArgs, ManArgs};
use crate::error::{Error, Result, Step};
use crate::registration;
use crate::suite;

/// Writes a page for each binary and each subcommand.
///
/// # Errors
/// A file that cannot be written.
pub fn pages(args: &ManArgs) -> Result<u8> {
    let directory = Path::new(&args.directory);
    create(directory)?;
    for mut command in commands() {
        // Subcommands learn their full names by this.
        command.build();
        page(&command, directory)?;
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            page(subcommand, directory)?;
        }
    }
    Ok(0)
}

fn page(command: &Command, directory: &Path) -> Result<()> {
    let source = concat!("verbmark ", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).manual("verbmark manual").source(source);
    page.generate_to(directory).map(drop).map_err(|error| unwritten(directory, &error))
}

/// Writes the completions of each binary.
///
/// # Errors
/// A file that cannot be written.
pub fn completions(args: &CompletionsArgs) -> Result<u8> {
    let directory = Path::new(&args.directory);
    create(directory)?;
    for mut command in commands() {
        let name = command.get_name().to_owned();
        clap_complete::generate_to(args.shell, &mut command, name, directory)
            .map_err(|error| unwritten(directory, &error))?;
    }
    Ok(0)
}

/// Every binary's.
fn commands() -> Vec<Command> {
    let tests = suite::TESTS.iter().map(|&(verb, shape)| suite::command(verb, shape));
    tests.chain([registration::command(), cli::tool::command()]).collect()
}

fn create(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).map_err(|error| unwritten(directory, &error))
}

fn unwritten(directory: &Path, error: &io::Error) -> Error {
    Error::failed(Step::Output, format!("cannot write to {}: {error}", directory.display()))
        .with_remedy("name a directory that this user may create or write to")
}
