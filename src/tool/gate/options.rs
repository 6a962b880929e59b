//! Options that belong to some ways to gate: where one would change nothing, it is refused.

use crate::cli::tool::GateArgs;
use crate::error::{Error, Result};
use crate::gate::document::Form;

/// An option that was given and changes nothing is a mistake, or hides one.
///
/// # Errors
/// Usage: the first of them, why it has no effect, and what to do.
pub fn check(args: &GateArgs, form: Form) -> Result<()> {
    let (arms, measuring) = (&args.arms, &args.measuring);
    let is_measured = arms.candidate.is_some();
    let is_paired = form.is_paired();
    let compares = matches!(form, Form::Turns | Form::Sittings);
    let refused_if =
        |is_idle: bool, option: &str, why: &str, remedy: &str| match is_idle {
            false => Ok(()),
            true => Err(Error::usage(format!("{option} has no effect {}: {why}", way(args, form)))
                .with_remedy(remedy)),
        };
    let (no_pairs, instead) = ("there are no pairs", "--runs N says how often each test runs");
    refused_if(measuring.min_pairs.is_some() && !is_paired, "--min-pairs", no_pairs, instead)?;
    refused_if(measuring.max_pairs.is_some() && !is_paired, "--max-pairs", no_pairs, instead)?;
    let in_pairs = "--min-pairs and --max-pairs say how many";
    refused_if(measuring.runs.is_some() && is_paired, "--runs", "the arms run in pairs", in_pairs)?;
    let is_told = "the candidate has as many as it has";
    refused_if(measuring.runs.is_some() && is_measured, "--runs", is_told, "leave it away")?;
    let no_order = "there is one arm, and no order to draw";
    refused_if(measuring.seed.is_some() && !is_paired, "--seed", no_order, "leave it away")?;
    let nothing_runs = "the candidate is measured already";
    refused_if(measuring.keep.is_some() && is_measured, "--keep", nothing_runs, "leave it away")?;
    let nothing_beside = "nothing is compared with anything else";
    let allows = !arms.allow_mismatch.is_empty();
    refused_if(allows && !compares, "--allow-mismatch", nothing_beside, "leave it away")?;
    let baseline = "leave it away, or give a baseline: --a or --baseline";
    refused_if(!arms.metric.is_empty() && form == Form::Limits, "--metric", "no metric is judged", baseline)?;
    refused_if(args.output.strict && form == Form::Record, "--strict", "nothing is judged", baseline)
}

/// How the candidate is held to what.
fn way(args: &GateArgs, form: Form) -> &'static str {
    match form {
        Form::Record => "with --record alone",
        Form::Turns => "where baseline and candidate take turns",
        Form::Sittings if args.arms.candidate.is_some() => "with --candidate",
        Form::Sittings => "with --baseline",
        Form::Limits => "with limits alone",
        Form::SelfTest => "with --self-test",
    }
}
