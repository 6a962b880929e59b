//! `verbmark report`: what a run showed and wrote, made again from its document.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::Read;

use serde::Deserialize;

use crate::cli::tool::ReportArgs;
use crate::error::{Error, Result};
use crate::plan::Outputs;
use crate::registration;
use crate::report::{Target, files, render};
use crate::result::Document;
use crate::suite::{self, Files};
use crate::tool::{audit, explain};

/// Shows and writes, and gives the exit status: that the report was made, whatever became of the run.
///
/// # Errors
/// There is no such document, or an output cannot be written.
pub fn run(args: &ReportArgs) -> Result<u8> {
    let stdout = |name: &Option<_>| name.as_ref().is_some_and(|name| Target::from(name) == Target::Stdout);
    if stdout(&args.csv) && stdout(&args.hlog) {
        return Err(Error::usage("--csv and --hlog cannot both be standard output")
            .with_remedy("write one of them to a file"));
    }
    let files = Files::open(&Outputs { json: None, csv: args.csv.clone(), hlog: args.hlog.clone() })?;
    let text = read(&args.document)?;
    let named =
        |error: Error| Error { message: format!("{}: {}", shown(&args.document), error.message), ..error };
    if let Some(document) = registration::Document::from_json(&text).map_err(named)? {
        return registration_again(&document, args);
    }
    if let Some(text) = text_again(&text).map_err(named)? {
        if args.csv.is_some() || args.hlog.is_some() {
            return Err(Error::usage("an audit or an explanation has neither CSV nor an interval log")
                .with_remedy(
                    "leave --csv and --hlog away; an explanation has whole documents of runs in its `scenes`",
                ));
        }
        return Target::Stdout.offer(text.as_bytes()).map(|()| 0);
    }
    let document = Document::from_json(&text).map_err(named)?;
    let text = if files.take_stdout() { String::new() } else { render(&document, suite::width()) };
    let shown = Target::Stdout.offer(text.as_bytes());
    if let Some(error) = &document.error {
        suite::complain(error);
    }
    match files.write(&document) {
        Err(error) if !files::reader_gone(&error) => Err(error),
        _ => shown.map(|()| 0),
    }
}

/// What an audit or an explanation showed; `None` of any other document.
fn text_again(text: &str) -> Result<Option<String>> {
    #[derive(Deserialize)]
    struct Named {
        schema: Option<String>,
    }
    let broken = |error: serde_json::Error| Error::usage(format!("not a document of this suite: {error}"));
    let named: Named = serde_json::from_str(text).map_err(broken)?;
    Ok(match named.schema.as_deref() {
        Some(audit::SCHEMA) => {
            Some(audit::render(&serde_json::from_str(text).map_err(broken)?, suite::width()))
        }
        Some(explain::SCHEMA) => {
            Some(explain::render(&serde_json::from_str(text).map_err(broken)?, suite::width()))
        }
        _ => None,
    })
}

/// The same of a run of `reg_mr_lat`.
fn registration_again(document: &registration::Document, args: &ReportArgs) -> Result<u8> {
    if args.hlog.is_some() {
        return Err(Error::usage("registrations have no interval log")
            .with_remedy("leave --hlog away: the histograms are in the JSON document"));
    }
    let target = args.csv.as_deref().map(Target::from);
    let is_taken = target == Some(Target::Stdout);
    let text = if is_taken { String::new() } else { registration::render(document, suite::width()) };
    let shown = Target::Stdout.offer(text.as_bytes());
    if let Some(error) = &document.error {
        suite::complain(error);
    }
    if let Some(target) = target {
        target.offer(registration::csv::to_string(document)?.as_bytes())?;
    }
    shown.map(|()| 0)
}

fn read(name: &OsStr) -> Result<String> {
    let text = if name == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(name)
    };
    text.map_err(|error| {
        Error::usage(format!("cannot read {}: {error}", shown(name)))
            .with_remedy("name a document that a run wrote with --json")
    })
}

fn shown(name: &OsStr) -> Cow<'_, str> {
    if name == "-" { "standard input".into() } else { name.to_string_lossy() }
}
