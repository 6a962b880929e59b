//! What a gate would do, for who asks before it runs: commands as bash takes them, and what each is held to.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::baseline::Baseline;
use super::candidate::Candidate;
use super::draft::PlannedTest;
use super::plan::Plan;
use crate::cli::tool::GateArgs;
use crate::gate::Rule;
use crate::gate::baseline::more_sittings;
use crate::gate::document::Form;
use crate::gate::sample::Runs;
use crate::gate::series::Asked;
use crate::report::text::{labelled, plain};
use crate::result::Quantity;
use crate::tool::sibling::Invocation;
use crate::units::counted;

/// All of it, no line of text wider than `width` where words allow it; commands are as long as they are.
pub fn preview(
    args: &GateArgs,
    plan: &Plan,
    baseline: &Baseline,
    candidate: Option<&Candidate>,
    width: Option<usize>,
) -> String {
    let mut out = String::new();
    for planned in &plan.tests {
        out += &labelled(&plain(&planned.asked.test), &held_to(plan, planned), width);
        for (name, invocation) in planned.a.iter().map(|a| ("A", a)).chain([("B", &planned.b)]) {
            out += &format!("  {name}  {}\n", line(invocation));
        }
    }
    let mut say = |label: &str, text: &str| out += &labelled(label, text, width);
    say("runs", &runs(args, plan, candidate));
    if let Some(directory) = &args.arms.baseline {
        let stored = baseline.sittings.len();
        let more = more_sittings(stored).map(|more| format!("; {more}")).unwrap_or_default();
        let stored = counted(stored, "stored sitting");
        say("against", &format!("{stored} of {}{more}", directory.display()));
    }
    if let Some(directory) = &args.arms.record {
        let condition = match plan.form {
            Form::Record => " unless a limit fails",
            _ => " unless it got worse or is not comparable",
        };
        say("records", &format!("a sitting in {}{condition}", directory.display()));
    }
    plan.notes.iter().for_each(|note| say("note", &note.message));
    out
}

/// What of a test is judged: its metrics where it is compared, and its limits.
fn held_to(plan: &Plan, planned: &PlannedTest) -> String {
    let metrics = match plan.form {
        Form::Limits | Form::Record => &[][..],
        _ => &planned.asked.metrics,
    };
    let recorded = (plan.form == Form::Record).then(|| "recorded".to_owned());
    let rules = metrics.iter().map(|metric| rule(*metric, planned));
    let limits = planned.b.limits().into_iter().map(|limit| format!("limit {limit}"));
    recorded.into_iter().chain(rules).chain(limits).collect::<Vec<_>>().join(", ")
}

fn rule(metric: Quantity, planned: &PlannedTest) -> String {
    let shown = |rule: Rule| {
        let share = |share: f64| (share * 1e4).round() / 100.0;
        let advisory = if rule.advisory { ", advisory" } else { "" };
        let (tolerance, must_detect) = (share(rule.tolerance), share(rule.must_detect));
        let floor = match rule.floor > 0.0 {
            true => format!(", floor {}", metric.show(rule.floor)),
            false => String::new(),
        };
        format!(" (tolerance {tolerance} %, must detect {must_detect} %{floor}{advisory})")
    };
    format!("{}{}", metric.name(), planned.asked.rule(metric, 0.0).map(shown).unwrap_or_default())
}

fn runs(args: &GateArgs, plan: &Plan, candidate: Option<&Candidate>) -> String {
    let Plan { first_look, last_look, runs, rounds, .. } = *plan;
    let pairs = match first_look == last_look {
        true => format!("each test {} an arm", times(first_look)),
        false => format!("each test {first_look} to {last_look} times an arm"),
    };
    match (plan.form, candidate) {
        (Form::SelfTest, _) => format!("{}, and in a round {pairs}", counted(rounds, "round")),
        (Form::Turns, _) => pairs,
        (_, Some(candidate)) => {
            let directory = args.arms.candidate.as_deref().unwrap_or(Path::new(""));
            format!("none: {} has {}", directory.display(), measured(candidate))
        }
        (Form::Limits, None) if runs > 1 => {
            format!("each test {}, whose median is held to the limits", times(runs))
        }
        _ => format!("each test {}", times(runs)),
    }
}

/// What there is of a candidate that is measured already.
fn measured(candidate: &Candidate) -> String {
    let of_test = |(asked, runs): &(Asked, Runs)| {
        let metrics: Vec<_> = asked.metrics.iter().map(|metric| metric.name()).collect();
        format!("{} of {} ({})", counted(runs.most_of_a_point(), "run"), asked.test, metrics.join(", "))
    };
    candidate.tests.iter().map(of_test).collect::<Vec<_>>().join(", ")
}

/// `once`, `6 times`.
fn times(count: usize) -> String {
    if count == 1 { "once".into() } else { format!("{count} times") }
}

/// A command to be pasted into bash.
fn line(invocation: &Invocation) -> String {
    // Other names than a shell's are no assignments to it.
    let needs_env = !invocation.environment.keys().all(|name| Invocation::is_shell_name(name));
    let environment = invocation.environment.iter().map(|(name, value)| match needs_env {
        true => quoted(format!("{name}={value}").as_ref()),
        false => format!("{name}={}", quoted(value.as_ref())),
    });
    let words = std::iter::once(invocation.program.as_os_str());
    let words = words.chain(invocation.words.iter().map(|word| word.as_os_str())).map(quoted);
    let all = needs_env.then(|| "env".to_owned()).into_iter().chain(environment).chain(words);
    all.collect::<Vec<_>>().join(" ")
}

/// A word as bash takes it, and any shell where it is plain ASCII. What a terminal would obey, or show as something else, is
/// written in octal, which `sh` may not know.
fn quoted(word: &OsStr) -> String {
    let bytes = word.as_bytes();
    match word.to_str().filter(|_| bytes.iter().all(|byte| matches!(byte, b' '..=b'~'))) {
        // It has no NUL, which alone is refused.
        Some(text) => shlex::try_quote(text).map_or_else(|_| text.into(), |quoted| quoted.into_owned()),
        None => {
            let escaped = bytes.iter().map(|byte| match byte {
                b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
                b' '..=b'~' => char::from(*byte).to_string(),
                other => format!("\\{other:03o}"),
            });
            format!("$'{}'", escaped.collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_line_does_in_bash_what_the_gate_does() {
        let values = ["a b", "it's", "$HOME", "plain", "", "\u{fc}\n\x1b[31m", "back\\slash", "*"];
        for name in ["VALUE", "NO.SHELL-NAME"] {
            for value in values {
                let invocation = Invocation {
                    program: "/usr/bin/env".into(),
                    environment: [(name.to_owned(), value.to_owned())].into(),
                    words: vec!["printf".into(), "%s|".into(), value.into()],
                };
                let shown = line(&invocation);
                assert!(shown.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{shown}");
                let out = Command::new("bash").args(["-c", &shown]).output().unwrap();
                assert_eq!(String::from_utf8_lossy(&out.stdout), format!("{value}|"), "{shown}");
                let printed = Invocation { words: Vec::new(), ..invocation };
                let out = Command::new("bash").args(["-c", &line(&printed)]).output().unwrap();
                let all = String::from_utf8_lossy(&out.stdout).into_owned();
                assert!(all.contains(&format!("{name}={value}\n")), "{name} {value:?}: {all}");
            }
        }
    }
}
