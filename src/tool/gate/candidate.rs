//! A candidate that was measured already: a directory of documents, as a sitting is.

use std::path::Path;

use super::baseline::Baseline;
use super::plan::Plan;
use crate::error::{Error, Result};
use crate::gate::compare::{Mismatch, Uncompared};
use crate::gate::sample::{Begun, Met, Runs};
use crate::gate::series::{Asked, lacking};
use crate::gate::stored;
use crate::tool::compare;

/// Runs of the candidate, and what of them is judged.
#[derive(Debug)]
pub struct Candidate {
    /// When the first of them began, and its labels.
    pub first: Option<Begun>,
    /// Each test.
    pub tests: Vec<(Asked, Runs)>,
    /// What the latest stored sitting has and this has not.
    pub lost: Vec<Mismatch>,
}

impl Candidate {
    /// Reads it, before anything is held to anything.
    ///
    /// # Errors
    /// A document is none or must not be trusted, a test does not measure a metric that was asked for, or it is one of the
    /// stored sittings.
    pub fn read(directory: &Path, plan: &Plan, baseline: &Baseline) -> Result<Self> {
        let runs = compare::runs(directory.as_os_str())?.runs;
        let itself = baseline.sittings.iter().find(|stored| stored.runs.shared_with(&runs) > 0);
        if let Some(stored) = itself {
            return Err(Error::usage(format!(
                "the candidate {} has runs of the stored sitting {}: it would be held to itself",
                directory.display(),
                stored.facts.name
            ))
            .with_remedy("name another candidate, or move that sitting out of the baseline"));
        }
        let first = runs.first.clone();
        let mut lost = lost(&runs, baseline, &plan.asked.allowed);
        lost.extend(plan.missing(&runs).into_iter().filter_map(|test| {
            let met = Met { value: "all of it".into(), file: directory.display().to_string() };
            lacking(&test, vec![met], &plan.asked.allowed)
        }));
        let tests = runs.into_tests().into_iter();
        let tests = tests.map(|(name, runs)| Ok((plan.asked_of(&name, &runs)?, runs)));
        Ok(Self { first, tests: tests.collect::<Result<_>>()?, lost })
    }
}

/// What the latest sitting has that the candidate has not, a field for each test.
fn lost(runs: &Runs, baseline: &Baseline, allowed: &[String]) -> Vec<Mismatch> {
    let Some(latest) = baseline.latest() else { return Vec::new() };
    let lost = stored::lost(latest, &[runs]);
    let of_test = |of: &[Uncompared]| {
        let met = |lone: &Uncompared| Met {
            value: lone.id.clone().unwrap_or_else(|| "all of it".into()),
            file: latest.tests.first().map(|test| test.first_file.clone()).unwrap_or_default(),
        };
        lacking(&of[0].test, of.iter().map(met).collect(), allowed)
    };
    lost.chunk_by(|one, other| one.test == other.test).filter_map(of_test).collect()
}
