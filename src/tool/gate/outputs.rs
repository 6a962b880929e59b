//! Where the verdict goes: the text, files for programs, and what GitHub reads where it runs the job.

use std::env;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::table::render;
use crate::cli::tool::GateOutput;
use crate::error::{Error, Kind, Result, Step};
use crate::gate::compare::Better;
use crate::gate::document::Gate;
use crate::gate::output::{annotations, benchmark_action, junit, markdown, openmetrics, otava};
use crate::report::{Target, json};
use crate::suite;

/// Every output that was asked for, by the command line or by GitHub.
#[derive(Debug)]
pub struct Outputs {
    files: Vec<(Format, Target)>,
    /// As typed: Otava's configuration names it.
    history: Option<OsString>,
    /// What GitHub shows as the summary of the step, and others may have written to.
    summary: Option<PathBuf>,
    /// The runner reads commands in what the step says.
    annotates: bool,
}

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Junit,
    Markdown,
    OpenMetrics,
    Otava,
    OtavaConfiguration,
    BenchmarkAction(Better),
}

impl Outputs {
    /// Looks at each before anything is measured.
    ///
    /// # Errors
    /// Usage: why one of them could not be written, or must not be.
    pub fn open(typed: &GateOutput, suite: Option<&Path>) -> Result<Self> {
        let files = [
            (Format::Json, &typed.json),
            (Format::Junit, &typed.junit),
            (Format::Markdown, &typed.markdown),
            (Format::OpenMetrics, &typed.openmetrics),
            (Format::Otava, &typed.otava),
            (Format::OtavaConfiguration, &typed.otava_config),
            (Format::BenchmarkAction(Better::Lower), &typed.smaller_is_better),
            (Format::BenchmarkAction(Better::Higher), &typed.bigger_is_better),
        ];
        let files: Vec<_> = files
            .into_iter()
            .filter_map(|(format, name)| Some((format, Target::from(name.as_deref()?))))
            .collect();
        if files.iter().filter(|(_, target)| *target == Target::Stdout).count() > 1 {
            return Err(Error::usage("standard output cannot have two documents")
                .with_remedy("write all but one of them to files"));
        }
        files.iter().try_for_each(|(_, target)| target.check())?;
        let summary = env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()).map(PathBuf::from);
        let may_append = summary.as_deref().map_or(Ok(()), |path| append(path, ""));
        may_append.map_err(|error| Error { kind: Kind::Usage, ..error })?;
        let written = files.iter().filter_map(|(_, target)| match target {
            Target::Path(path) => Some(path.as_path()),
            Target::Stdout => None,
        });
        let named: Vec<_> = suite.into_iter().chain(summary.as_deref()).chain(written).collect();
        if let Some(twice) = named_twice(&named) {
            return Err(Error::usage(format!(
                "{} is the suite or the file of another output",
                twice.display()
            ))
            .with_remedy("give each output a file of its own"));
        }
        Ok(Self {
            files,
            history: typed.otava.clone(),
            summary,
            annotates: env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true"),
        })
    }

    /// The text, unless a document has standard output.
    ///
    /// # Errors
    /// It could not be written.
    fn show(&self, text: &str) -> Result<()> {
        if self.files.iter().any(|(_, target)| *target == Target::Stdout) {
            return Ok(());
        }
        Target::Stdout.offer(text.as_bytes())
    }

    /// Writes each, the document last, which then tells of the others; where one cannot be written, the files that can are
    /// written once more, so that none says that all is well. Who waits is told of each.
    pub fn write(&self, gate: &mut Gate) {
        let failed = self.write_files(gate, &[]);
        if let Some(path) = &self.summary {
            tell(gate, append(path, &markdown::to_string(gate)));
        }
        tell(gate, self.show(&render(gate, suite::width())));
        if self.annotates {
            tell(gate, self.show(&annotations::to_string(gate)));
        }
        for (format, target) in self.files.iter().filter(|(_, target)| *target == Target::Stdout) {
            tell(gate, self.put(*format, target, gate));
        }
        if gate.error.as_ref().is_some_and(|error| error.step == Step::Output) {
            self.write_files(gate, &failed);
        }
    }

    /// Writes the files, but for some by their place in the list, and gives the places of those that could not be written.
    fn write_files(&self, gate: &mut Gate, but: &[usize]) -> Vec<usize> {
        let is_meant = |place: &usize| !but.contains(place) && self.files[*place].1 != Target::Stdout;
        let mut places: Vec<_> = (0..self.files.len()).filter(is_meant).collect();
        // The document is the last.
        places.sort_by_key(|&place| self.files[place].0 == Format::Json);
        let mut failed = Vec::new();
        for place in places {
            let (format, target) = &self.files[place];
            let written = self.put(*format, target, gate);
            if written.is_err() {
                failed.push(place);
                remove_older(target);
            }
            tell(gate, written);
        }
        failed
    }

    fn put(&self, format: Format, target: &Target, gate: &Gate) -> Result<()> {
        self.text(format, gate).and_then(|text| target.offer(text.as_bytes()))
    }

    fn text(&self, format: Format, gate: &Gate) -> Result<String> {
        match format {
            Format::Json => json::to_string(gate),
            Format::Junit => junit::to_string(gate),
            Format::Markdown => Ok(markdown::to_string(gate)),
            Format::OpenMetrics => Ok(openmetrics::to_string(gate)),
            Format::Otava => otava::to_string(gate),
            Format::OtavaConfiguration => {
                let history = self.history.as_deref().unwrap_or_default();
                Ok(otava::configuration(gate, &history.to_string_lossy()))
            }
            Format::BenchmarkAction(better) => benchmark_action::to_string(gate, better),
        }
    }
}

/// What an earlier gate wrote there would be taken for this one's verdict.
fn remove_older(target: &Target) {
    if let Target::Path(path) = target
        && path.symlink_metadata().is_ok_and(|facts| facts.is_file())
    {
        // Where that is not possible either, nothing is.
        let _ = fs::remove_file(path);
    }
}

/// An output that could not be written is said, and fails a gate that would have passed.
fn tell(gate: &mut Gate, written: Result<()>) {
    if let Err(error) = written {
        suite::complain(&error);
        gate.unwritten(error);
    }
}

/// The first file that is named a second time, in whatever spelling.
fn named_twice<'a>(paths: &[&'a Path]) -> Option<&'a Path> {
    let places: Vec<_> = paths.iter().filter_map(|path| Some((*path, place(path)?))).collect();
    let is_met =
        |(i, (_, place)): &(usize, &(&Path, PathBuf))| places[..*i].iter().any(|(_, other)| other == place);
    places.iter().enumerate().find(is_met).map(|(_, (path, _))| *path)
}

/// Where a file is or would be; `None` of a device or a pipe, which takes one text after the other.
fn place(path: &Path) -> Option<PathBuf> {
    match path.canonicalize() {
        Ok(real) => real.is_file().then_some(real),
        Err(_) => place_of_new(path),
    }
}

/// Where something would be that is not there yet; `None` without its directory.
pub fn place_of_new(path: &Path) -> Option<PathBuf> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Some(parent.unwrap_or(Path::new(".")).canonicalize().ok()?.join(path.file_name()?))
}

/// Other steps' summaries may be there already.
fn append(path: &Path, text: &str) -> Result<()> {
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
        Error::failed(
            Step::Output,
            format!("GITHUB_STEP_SUMMARY: cannot append to {}: {error}", path.display()),
        )
        .with_remedy("let this user write the file, or leave the variable unset")
    })
}
