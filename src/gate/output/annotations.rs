//! Workflow commands of GitHub, one a line, which a step prints and GitHub shows beside the job and its change.
//!
//! GitHub keeps ten errors and ten warnings of a step, so the worst come first and the last says how many more there are.
//! Escaping is that of `actions/toolkit`, which the runner undoes: in text `%`, CR and LF, in a property `:` and `,` too.

use super::words::{ended, error, headline, limit, mismatch, printable, test};
use crate::gate::document::{Gate, Trouble};
use crate::gate::verdict::Verdict;
use crate::result::Status;

/// Annotations of a kind that GitHub keeps of one step.
const MOST: usize = 10;

/// Exit status of a gate that is inconclusive, and strict.
const STRICT: u8 = 3;

/// An annotation before it is escaped.
struct Annotation {
    title: String,
    message: String,
}

impl Annotation {
    fn new(title: impl Into<String>, message: impl Into<String>) -> Self {
        Self { title: title.into(), message: message.into() }
    }
}

/// The commands; nothing for a gate that passed.
pub fn to_string(gate: &Gate) -> String {
    let mut errors = errors(gate);
    let mut warnings = if gate.exit_status == STRICT { warnings(gate) } else { Vec::new() };
    if gate.exit_status != 0 && errors.is_empty() && warnings.is_empty() {
        let whole = Annotation::new(format!("verbmark gate: {}", ended(gate)), headline(gate));
        if gate.exit_status == STRICT { &mut warnings } else { &mut errors }.push(whole);
    }
    lines("error", errors) + &lines("warning", warnings)
}

fn errors(gate: &Gate) -> Vec<Annotation> {
    let how = if gate.status == Status::Interrupted { "interrupted" } else { "failed" };
    let failed = gate.error.iter().map(|cause| Annotation::new(format!("verbmark gate {how}"), error(cause)));
    let differing = gate.mismatches.iter().filter(|mismatch| !mismatch.allowed);
    let differing = differing.map(|of| Annotation::new(format!("NOT COMPARABLE {}", of.test), mismatch(of)));
    let troubles = gate.troubles().into_iter().map(|trouble| match trouble {
        Trouble::Series(series) => {
            let found = &series.judgement;
            let title = format!("{} {} {}", found.verdict, series.title(), found.metric.name());
            Annotation::new(title, &series.message)
        }
        Trouble::Limit(of) => Annotation::new(format!("LIMIT {} {}", of.test, of.result.limit), limit(of)),
        Trouble::Test(of) => Annotation::new(format!("INVALID {}", of.name), test(of)),
    });
    failed.chain(differing).chain(troubles).collect()
}

fn warnings(gate: &Gate) -> Vec<Annotation> {
    let unsure = gate
        .series
        .iter()
        .filter(|series| series.judgement.verdict == Verdict::Inconclusive && !series.judgement.advisory);
    let annotation = |series: &crate::gate::document::Series| {
        let title = format!("INCONCLUSIVE {} {}", series.title(), series.judgement.metric.name());
        Annotation::new(title, &series.message)
    };
    unsure.map(annotation).collect()
}

fn lines(command: &str, mut annotations: Vec<Annotation>) -> String {
    if annotations.len() > MOST {
        let more = annotations.len() - (MOST - 1);
        annotations.truncate(MOST - 1);
        annotations.push(Annotation::new("verbmark gate", format!("and {more} more, in the JSON document")));
    }
    let line =
        |of: &Annotation| format!("::{command} title={}::{}\n", property(&of.title), data(&of.message));
    annotations.iter().map(line).collect()
}

/// The text of a command. Of control characters only the ends of lines are kept, as GitHub shows them.
fn data(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(|line| printable(line).replace('%', "%25")).collect();
    lines.join("%0A")
}

/// A property of a command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
