//! `verbmark gate`: is a candidate slower than its baseline, by more than anybody would accept? The exit status decides.

use std::path::{Path, PathBuf};

use crate::cli::tool::GateArgs;
use crate::error::{Error, Result};
use crate::gate::baseline::more_sittings;
use crate::gate::document::{Form, Gate, Series};
use crate::gate::family;
use crate::report::Target;
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
use plan::Plan;
use sitting::say;

/// Gates, and gives the exit status.
///
/// # Errors
/// The options, the suite, the baseline or the candidate are no use, or an output could not be written: before anything is
/// measured. What goes wrong later is told by the outputs.
pub fn run(args: &GateArgs) -> Result<u8> {
    let outputs = Outputs::open(&args.output)?;
    let baseline = args.arms.baseline.as_deref().map(Baseline::read).transpose()?.unwrap_or_default();
    let plan = Plan::new(args, baseline.runs_of_a_sitting())?;
    let candidate = args.arms.candidate.as_deref();
    let candidate = candidate.map(|path| Candidate::read(path, &plan, &baseline)).transpose()?;
    if args.measuring.dry_run {
        let shown = preview::preview(args, &plan, &baseline, candidate.as_ref(), binaries::width());
        return Target::Stdout.offer(shown.as_bytes()).map(|()| 0);
    }
    let unfinished = args.arms.record.as_deref().map(Unfinished::begin).transpose()?;
    let directory = match (&unfinished, &args.measuring.keep) {
        (Some(unfinished), _) => Some(unfinished.path().to_path_buf()),
        (None, Some(directory)) => Some(create(directory)?),
        (None, None) => None,
    };
    let seed = match args.measuring.seed {
        Some(seed) => seed,
        None => binaries::random_seed()? as u32,
    };
    let signalled = binaries::catch_signals()?;
    let mut gate = Job { args, plan: &plan, baseline: &baseline, directory, signalled }.hold(candidate, seed);
    if let Some(error) = &gate.error {
        binaries::complain(error);
    }
    let added = unfinished.map_or(Ok(()), |unfinished| add_unless_worse(&gate, &plan, unfinished));
    if let Err(error) = added {
        binaries::complain(&error);
        gate.unwritten(error);
    }
    outputs.write(&mut gate);
    Ok(gate.exit_status)
}

/// A sitting that is worse than the baseline is none, also where the verdict decides nothing because there are few
/// sittings: the first of them would else hide what got worse on the second night.
fn add_unless_worse(gate: &Gate, plan: &Plan, unfinished: Unfinished) -> Result<()> {
    let never_decides = |series: &Series| {
        let planned = plan.tests.iter().find(|planned| planned.asked.test == series.test);
        let rule = planned.and_then(|planned| planned.asked.rule(series.judgement.metric, 0.0));
        rule.is_some_and(|rule| rule.advisory)
    };
    let of_series = gate.series.iter().filter(|series| !never_decides(series));
    let verdicts = of_series.map(|series| series.judgement.verdict).chain([gate.verdict]);
    let worst = family::worst(verdicts).unwrap_or(gate.verdict);
    let refusal = match worst {
        _ if gate.error.is_some() => "it was not measured to its end".to_owned(),
        _ if worst.is_trouble() => format!("the verdict is {worst}"),
        _ => return add(&gate.started_at, unfinished),
    };
    let alone =
        if gate.form == Form::Sittings { "; --record without --baseline adds it whatever it is" } else { "" };
    say(&format!("not recorded, since {refusal}{alone}"));
    Ok(())
}

fn add(started_at: &str, unfinished: Unfinished) -> Result<()> {
    let (place, count) = unfinished.add(started_at)?;
    let more = more_sittings(count).map(|more| format!("; {more}")).unwrap_or_default();
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
