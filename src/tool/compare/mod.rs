//! `verbmark compare`: recorded runs side by side, where they are comparable.

use std::io::Write;

use crate::cli::tool::CompareArgs;
use crate::error::{Error, Result};
use crate::gate::compare::compare;
use crate::gate::fingerprint::HARD;
use crate::report::{Target, csv, json};
use crate::suite;

mod read;
mod record;
mod table;

pub use read::{LARGEST, documents, runs};
pub use record::{Comparison, SCHEMA};
pub use table::{between, limited, percent, render};

/// Exit status of runs that are not comparable.
const NOT_COMPARABLE: u8 = 4;

/// Compares, and gives the exit status.
///
/// # Errors
/// There are no such runs, one must not be trusted, or an output cannot be written.
pub fn run(args: &CompareArgs) -> Result<u8> {
    check_fields("--allow-mismatch", &args.allow_mismatch)?;
    let targets = [&args.json, &args.csv].map(|name| name.as_deref().map(Target::from));
    if targets.iter().all(|target| *target == Some(Target::Stdout)) {
        return Err(Error::usage("--json and --csv cannot both be standard output")
            .with_remedy("write one of them to a file"));
    }
    targets.iter().flatten().try_for_each(Target::check)?;

    let sides = args.sides.iter().map(|side| runs(side)).collect::<Result<Vec<_>>>()?;
    let mut comparison = Comparison::new(&args.sides, &sides);
    for (index, side) in sides.iter().enumerate().skip(1) {
        comparison.add(index, compare(&sides[0].runs, &side.runs, &args.allow_mismatch));
    }
    let shows_table = !targets.contains(&Some(Target::Stdout));
    let text = if shows_table { render(&comparison, suite::width()) } else { String::new() };
    let shown = Target::Stdout.offer(text.as_bytes());
    if !comparison.is_comparable() {
        let _ = std::io::stderr().write_all(table::refusal(&comparison).as_bytes());
    }
    let [to_json, to_csv] = targets;
    if let Some(target) = to_json {
        target.offer(json::to_string(&comparison)?.as_bytes())?;
    }
    if let Some(target) = to_csv {
        target.offer(to_rows(&comparison)?.as_bytes())?;
    }
    shown.map(|()| if comparison.is_comparable() { 0 } else { NOT_COMPARABLE })
}

/// Every name is that of a hard field; `option` is where they were typed.
///
/// # Errors
/// Usage: the first that is not, and those that there are.
pub fn check_fields(option: &str, names: &[String]) -> Result<()> {
    match names.iter().find(|name| !HARD.contains(&name.as_str())) {
        None => Ok(()),
        Some(unknown) => Err(Error::usage(format!("{option} {unknown}: there is no such field"))
            .with_remedy(format!("one of {}", HARD.join(", ")))),
    }
}

/// One row a metric of a point; one in all where nothing was compared.
fn to_rows(comparison: &Comparison) -> Result<String> {
    let value = serde_json::to_value(comparison)
        .map_err(|error| Error::failed(crate::error::Step::Output, format!("cannot write CSV: {error}")))?;
    csv::rows(&value, &["compared_at", "status", "advisory", "confidence"], record::COLUMNS)
}
