//! Options that belong to some ways to gate: where one would change nothing, it is refused.

use crate::cli::tool::GateArgs;
use crate::error::{Error, Result};
use crate::gate::document::Form;

/// An option that was given and changes nothing is a mistake, or hides one.
///
/// # Errors
/// Usage: the first of them, why it has no effect, and what to do.
pub fn check(args: &GateArgs, form: Option<Form>) -> Result<()> {
    let (arms, measuring) = (&args.arms, &args.measuring);
    let is_measured = arms.candidate.is_some();
    let is_paired = matches!(form, Some(Form::Turns | Form::SelfTest));
    let compares = matches!(form, Some(Form::Turns | Form::Sittings));
    let judges = compares || form == Some(Form::SelfTest);
    let options = [
        (
            "--min-pairs",
            measuring.min_pairs.is_some(),
            is_paired,
            "there are no pairs",
            "--runs N says how often each test runs",
        ),
        (
            "--max-pairs",
            measuring.max_pairs.is_some(),
            is_paired,
            "there are no pairs",
            "--runs N says how often each test runs",
        ),
        (
            "--seed",
            measuring.seed.is_some(),
            is_paired,
            "there is one arm, and no order to draw",
            "leave it away",
        ),
        (
            "--runs",
            measuring.runs.is_some(),
            !is_paired,
            "the arms run in pairs",
            "--min-pairs and --max-pairs say how many",
        ),
        (
            "--keep",
            measuring.keep.is_some(),
            !is_measured,
            "the candidate is measured already",
            "leave it away",
        ),
        (
            "--allow-mismatch",
            !arms.allow_mismatch.is_empty(),
            compares,
            "nothing is compared with anything else",
            "leave it away",
        ),
        (
            "--metric",
            !arms.metric.is_empty(),
            judges,
            "no metric is judged",
            "leave it away, or give a baseline: --a or --baseline",
        ),
    ];
    match options.into_iter().find(|(_, is_given, has_effect, ..)| *is_given && !has_effect) {
        None => Ok(()),
        Some((option, _, _, why, remedy)) => {
            let way = way(args, form);
            Err(Error::usage(format!("{option} has no effect {way}: {why}")).with_remedy(remedy))
        }
    }
}

/// How the candidate is held to what.
fn way(args: &GateArgs, form: Option<Form>) -> &'static str {
    match form {
        None => "with --record alone",
        Some(Form::Turns) => "where baseline and candidate take turns",
        Some(Form::Sittings) if args.arms.candidate.is_some() => "with --candidate",
        Some(Form::Sittings) => "with --baseline",
        Some(Form::Limits) => "with limits alone",
        Some(Form::SelfTest) => "with --self-test",
    }
}
