//! The document of a comparison: `verbmark.compare/1`, described in `docs/formats.md` and `docs/compare.schema.json`.

use std::ffi::OsString;
use std::time::SystemTime;

use serde::Serialize;

use super::read::Side;
use crate::gate::compare::{Change, Compared, EMULATED, Mismatch, Reason, UNOPTIMISED, Uncompared, fewest};
use crate::gate::many::CONFIDENCE;
use crate::result::{Notice, Tool, timestamp};
use crate::suite;

/// Name and version of the format.
pub const SCHEMA: &str = "verbmark.compare/1";

/// What of a result stands in a row of the CSV.
pub const COLUMNS: &[&str] = &[
    "side",
    "test",
    "id",
    "transport",
    "size_bytes",
    "metric",
    "unit",
    "better",
    "a.runs",
    "a.median",
    "a.cv",
    "b.runs",
    "b.median",
    "b.cv",
    "ratio",
    "lower",
    "upper",
    "verdict",
    "reason",
];

/// Whether anything was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It was.
    Ok,
    /// A hard field that differs forbade it.
    NotComparable,
}

/// Sides of runs, each compared with the first.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What wrote it.
    pub tool: Tool,
    /// The command line.
    pub command: Vec<String>,
    /// RFC 3339, UTC.
    pub compared_at: String,
    /// Whether anything was compared.
    pub status: Status,
    /// A hard field differs, and was allowed to: what is shown decides nothing.
    pub advisory: bool,
    /// Probability with which an interval holds the true ratio.
    pub confidence: f64,
    /// The sides in order.
    pub sides: Vec<Given>,
    /// Hard fields that differ.
    pub mismatches: Vec<At<Mismatch>>,
    /// Soft fields that differ.
    pub differences: Vec<At<Mismatch>>,
    /// What is on one side only.
    pub uncompared: Vec<Lone>,
    /// What a reader should know.
    pub notes: Vec<Notice>,
    /// Each metric of each point.
    pub results: Vec<At<Change>>,
}

/// One side as it was given.
#[derive(Debug, Clone, Serialize)]
pub struct Given {
    /// `A`, `B` and so on.
    pub side: String,
    /// The file or directory.
    pub path: String,
    /// Runs in it.
    pub runs: usize,
}

/// What was found between the first side and another.
#[derive(Debug, Clone, Serialize)]
pub struct At<T> {
    /// The other side.
    pub side: String,
    /// What was found.
    #[serde(flatten)]
    pub found: T,
}

/// What only one side has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lone {
    /// The side that has it.
    pub side: String,
    /// The side that has it not.
    pub not_in: String,
    /// The test.
    pub test: String,
    /// The point; `null` where it is all of the test.
    pub id: Option<String>,
}

/// The name of a side.
fn letter(index: usize) -> String {
    char::from(b'A' + (index % 26) as u8).to_string()
}

impl Comparison {
    /// Sides that were not compared yet.
    pub fn new(names: &[OsString], sides: &[Side]) -> Self {
        let given = names.iter().zip(sides).enumerate().map(|(index, (name, side))| Given {
            side: letter(index),
            path: name.to_string_lossy().into(),
            runs: side.runs.count(),
        });
        let mut comparison = Self {
            schema: SCHEMA,
            tool: Tool::new("verbmark"),
            command: suite::command_line(),
            compared_at: timestamp(SystemTime::now()),
            status: Status::Ok,
            advisory: false,
            confidence: CONFIDENCE,
            sides: given.collect(),
            mismatches: Vec::new(),
            differences: Vec::new(),
            uncompared: Vec::new(),
            notes: Vec::new(),
            results: Vec::new(),
        };
        for (index, side) in sides.iter().enumerate() {
            if let [first, ..] = &side.others[..] {
                let others = side.others.len();
                let text =
                    format!("{}: {others} documents that are no results, such as {first}", letter(index));
                comparison.note("other_documents", text);
            }
            let shared = side.runs.shared_with(&sides[0].runs);
            if index > 0 && shared > 0 {
                let text =
                    format!("A and {} have {shared} runs in common, and are not independent", letter(index));
                comparison.note("shared_runs", text);
            }
        }
        comparison
    }

    /// Adds what comparing the first side with another gave.
    pub fn add(&mut self, index: usize, compared: Compared) {
        let side = letter(index);
        if compared.mismatches.iter().any(|mismatch| !mismatch.allowed) {
            self.status = Status::NotComparable;
        }
        self.advisory |= !compared.mismatches.is_empty();
        if compared.is_emulated {
            self.note("emulated", EMULATED.into());
        }
        if compared.is_unoptimised {
            self.note("unoptimised", UNOPTIMISED.into());
        }
        self.mismatches.extend(at(&side, compared.mismatches));
        self.differences.extend(at(&side, compared.differences));
        self.results.extend(at(&side, compared.changes));
        self.uncompared.extend(compared.uncompared.into_iter().map(|Uncompared { test, id, in_a }| {
            let (has, lacks) = if in_a { ("A".into(), side.clone()) } else { (side.clone(), "A".into()) };
            Lone { side: has, not_in: lacks, test, id }
        }));
        if self.results.iter().any(|result| result.found.reason == Some(Reason::TooFewRuns)) {
            let (percent, fewest) = (CONFIDENCE * 100.0, fewest());
            let text = format!(
                "an interval of {percent:.0} % takes at least {fewest} runs a side: with fewer no change has a verdict"
            );
            self.note("too_few_runs", text);
        }
        let judged = self.results.iter().filter(|result| result.found.lower.is_some()).count();
        if judged > 1 {
            self.notes.retain(|note| note.code != "chance");
            let text = format!(
                "{judged} intervals of {:.0} %: about {:.1} of them have a verdict by chance where nothing changed",
                CONFIDENCE * 100.0,
                (judged as f64 * (1.0 - CONFIDENCE)).ceil()
            );
            self.note("chance", text);
        }
    }

    /// Nothing forbids it.
    pub fn is_comparable(&self) -> bool {
        self.status == Status::Ok
    }

    fn note(&mut self, code: &str, message: String) {
        if !self.notes.iter().any(|note| note.code == code && note.message == message) {
            self.notes.push(Notice { code: code.into(), message });
        }
    }
}

fn at<T>(side: &str, found: Vec<T>) -> impl Iterator<Item = At<T>> {
    found.into_iter().map(move |found| At { side: side.into(), found })
}
