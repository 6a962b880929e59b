//! `verbmark gate`: is a candidate slower than its baseline, by more than anybody would accept? The exit status decides.

use std::path::{Path, PathBuf};

use crate::cli::tool::GateArgs;
use crate::error::{Error, Result};
use crate::gate::Verdict;
use crate::gate::baseline::more_sittings;
use crate::gate::document::{Form, Gate, Series};
use crate::gate::recorded::TEST_LABEL;
use crate::report::Target;
use crate::result::LimitVerdict;
use crate::suite as binaries;
use crate::units::counted;

mod asked;
mod baseline;
mod candidate;
mod draft;
mod job;
mod options;
mod outputs;
mod plan;
mod preview;
mod self_test;
mod sitting;
mod suite;
mod table;
mod typed;

pub use suite::Suite;

use baseline::{Baseline, Unfinished};
use candidate::Candidate;
use job::Job;
use outputs::Outputs;
use plan::{Plan, without_libraries};
use sitting::say;

/// Gates, and gives the exit status.
///
/// # Errors
/// The options or the suite are no use, or an output could not be written: before anything is read or measured. What goes
/// wrong later is told by the outputs.
pub fn run(args: &GateArgs) -> Result<u8> {
    // From here on a signal ends a gate as anything else does that goes wrong in it.
    let signalled = binaries::catch_signals()?;
    if args.output.labels.iter().any(|(key, _)| key == TEST_LABEL) {
        return Err(Error::usage(format!(
            "--label {TEST_LABEL}: a gate itself labels each run with its test so"
        ))
        .with_remedy("give it another name"));
    }
    let outputs = Outputs::open(&args.output, args.suite.as_deref())?;
    let baseline =
        args.arms.baseline.as_deref().map(Baseline::read).transpose().map(Option::unwrap_or_default);
    let plan = Plan::new(args, baseline.as_ref().ok().and_then(Baseline::runs_of_a_sitting))?;
    let compared = baseline.and_then(|baseline| {
        let candidate = args.arms.candidate.as_deref();
        let candidate = candidate.map(|path| Candidate::read(path, &plan, &baseline)).transpose()?;
        Ok((baseline, candidate))
    });
    if args.measuring.dry_run {
        let (baseline, candidate) = compared?;
        let shown = preview::preview(args, &plan, &baseline, candidate.as_ref(), binaries::width());
        return Target::Stdout.offer(shown.as_bytes()).map(|()| 0);
    }
    if let Some(cause) = plan.arms.iter().find_map(without_libraries) {
        return Err(Error::usage(format!("{cause}: those of the system would be measured"))
            .with_remedy("build it, or name where it is; paths are as seen from here"));
    }
    let begun = compared.and_then(|(baseline, candidate)| {
        let unfinished = args.arms.record.as_deref().map(Unfinished::begin).transpose()?;
        let kept = args.measuring.keep.as_deref().map(create).transpose()?;
        Ok((baseline, candidate, unfinished, kept))
    });
    // A baseline that cannot be read ends a gate as everything else does that goes wrong in it: with its documents.
    let (baseline, candidate, unfinished, kept) = match begun {
        Ok((baseline, candidate, unfinished, kept)) => (baseline, Ok(candidate), unfinished, kept),
        Err(error) => (Baseline::default(), Err(error), None, None),
    };
    let directory = unfinished.as_ref().map(|unfinished| unfinished.path().to_path_buf()).or(kept);
    let job = Job { args, plan: &plan, baseline: &baseline, directory, signalled };
    let mut gate = match candidate {
        Ok(candidate) => job.hold(candidate, seed(args)?),
        Err(error) => job.refuse(error),
    };
    if let Some(error) = &gate.error {
        binaries::complain(error);
    }
    let added = unfinished.map_or(Ok(()), |unfinished| add_unless_worse(&gate, unfinished));
    if let Err(error) = added {
        binaries::complain(&error);
        gate.unwritten(error);
    }
    outputs.write(&mut gate);
    Ok(gate.exit_status)
}

/// What the order of the arms is drawn from.
fn seed(args: &GateArgs) -> Result<u32> {
    args.measuring.seed.map_or_else(|| binaries::random_seed().map(|seed| seed as u32), Ok)
}

/// A sitting that fails the gate is no baseline. While there are too few to decide, one that seems worse is: only sittings
/// as they come tell how much they differ, and what was left out would be left out for ever.
fn add_unless_worse(gate: &Gate, unfinished: Unfinished) -> Result<()> {
    let refusal = match gate.verdict {
        _ if gate.error.is_some() => "it was not measured to its end".to_owned(),
        verdict if verdict.is_trouble() => format!("the verdict is {verdict}{}", way_out(gate)),
        _ => return add(gate, unfinished),
    };
    say(&format!("not recorded, since {refusal}"));
    Ok(())
}

/// What can be done about a sitting that is not recorded, if anything besides what the verdict says.
fn way_out(gate: &Gate) -> String {
    let fails_alone = gate.limits.iter().any(|limit| limit.result.verdict != LimitVerdict::Pass)
        || gate.tests.iter().any(|test| test.error.is_some());
    let field = gate.mismatches.iter().find(|mismatch| !mismatch.allowed).map(|mismatch| &mismatch.field);
    match (gate.verdict, field) {
        _ if fails_alone => String::new(),
        (Verdict::NotComparable, Some(field)) => {
            format!("; --allow-mismatch {field} adds it beside the others, or begin another directory")
        }
        (Verdict::Regression, _) => "; --record without --baseline adds one that is worse on purpose".into(),
        _ => String::new(),
    }
}

fn add(gate: &Gate, unfinished: Unfinished) -> Result<()> {
    let (place, count) = unfinished.add(&gate.started_at)?;
    let seems_worse = |series: &&Series| series.judgement.verdict == Verdict::Regression;
    if let Some(series) = gate.series.iter().find(seems_worse) {
        let metric = series.judgement.metric.name();
        say(&format!(
            "{} {metric} seems worse, and that verdict is advisory: remove {} if it should not count",
            series.title(),
            place.display()
        ));
    }
    // Of those that were measured alike, with the one that was added; nobody knows yet what a recorded one is alike.
    let alike = gate.series.iter().map(|series| series.judgement.sittings.unwrap_or(0) + 1).min();
    let alike = alike.filter(|_| gate.form == Form::Sittings).unwrap_or(count);
    let more = more_sittings(alike).map(|more| format!("; {more}")).unwrap_or_default();
    say(&format!("recorded {}: {}{more}", place.display(), counted(count, "sitting")));
    Ok(())
}

/// A directory for the documents of this gate alone: their names are numbers, which another gate has used, too.
fn create(directory: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| {
        Error::usage(format!("cannot keep documents in {}: {error}", directory.display()))
            .with_remedy("name a directory that can be written")
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    match crate::tool::compare::documents(directory).map_err(failed)?.first() {
        None => Ok(directory.into()),
        Some(document) => Err(Error::usage(format!("cannot keep documents beside {}", document.display()))
            .with_remedy("name a directory for this gate alone, which need not exist yet")),
    }
}

#[cfg(test)]
mod tests;
