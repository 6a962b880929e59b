//! What a person sees of a comparison.

use super::record::{At, Comparison, Given};
use crate::gate::compare::{Change, Mismatch, Verdict};
use crate::gate::message;
use crate::gate::output::words;
use crate::gate::sample::Met;
use crate::report::numbers::{NONE, significant};
use crate::report::text::{columns, labelled, plain, wrap};
use crate::result::{Direction, Wait};
use crate::units::{counted, format_rate, format_size};

/// Lines of a kind that are shown; the document has all.
const MOST_LINES: usize = 12;

/// Values of a field that are shown.
const MOST_VALUES: usize = 3;

/// The whole of it, no line of text wider than `width` where words allow it. Rows are as wide as they are.
pub fn render(comparison: &Comparison, width: Option<usize>) -> String {
    let runs = |given: &Given| format!("{}  {} ({})", given.side, given.path, counted(given.runs, "run"));
    let sides: Vec<_> = comparison.sides.iter().map(runs).collect();
    let mut out = wrap(&format!("compare  {}", sides.join("   ")), 9, width);
    for tests in comparison.results.chunk_by(|a, b| a.side == b.side && a.found.test == b.found.test) {
        out += &format!("\n{}\n\n", plain(&format!("{}  {} against A", tests[0].found.test, tests[0].side)));
        out += &rows(tests);
    }
    if !comparison.results.is_empty() {
        out += "\n";
    }
    let mut say = |label: &str, text: &str| out += &labelled(label, text, width);
    if comparison.is_comparable() {
        for line in limited(differences(&comparison.mismatches)) {
            say("advisory", &format!("{line}: allowed, and so this decides nothing"));
        }
    }
    let lone = comparison.uncompared.iter().map(|lone| {
        let what = lone.id.as_deref().map_or_else(|| "all of it".into(), words::point);
        format!("in {}, not in {}: {} {what}", lone.side, lone.not_in, lone.test)
    });
    limited(lone.collect()).iter().for_each(|line| say("only", line));
    limited(differences(&comparison.differences)).iter().for_each(|line| say("note", line));
    for note in &comparison.notes {
        say("note", &note.message);
    }
    out
}

/// The first of them, and how many more there are.
pub fn limited(mut lines: Vec<String>) -> Vec<String> {
    let all = lines.len();
    lines.truncate(MOST_LINES);
    if all > MOST_LINES {
        lines.push(format!("and {} more, in the document of --json", all - MOST_LINES));
    }
    lines
}

/// Why nothing is compared, and what to do.
pub fn refusal(comparison: &Comparison) -> String {
    let forbidding = comparison.mismatches.iter().filter(|mismatch| !mismatch.found.allowed);
    let forbidding: Vec<_> = forbidding.cloned().collect();
    let mut out = String::from("error: not comparable\n");
    for line in limited(differences(&forbidding)) {
        out += &format!("  {}\n", plain(&line));
    }
    let mut fields: Vec<_> = forbidding.iter().map(|mismatch| mismatch.found.field.as_str()).collect();
    fields.sort_unstable();
    fields.dedup();
    let allowed: Vec<_> = fields.into_iter().filter(|field| *field != "points").collect();
    out += &match allowed.is_empty() {
        true => "  try: compare runs that measured the same sizes, paths and rates\n".to_owned(),
        false => format!(
            "  try: measure both sides alike, or --allow-mismatch {}, which makes the comparison advisory\n",
            allowed.join(",")
        ),
    };
    out
}

/// Fields and their values, in one line where both ends have the same.
fn differences(mismatches: &[At<Mismatch>]) -> Vec<String> {
    let sides = mismatches.chunk_by(|one, other| one.side == other.side);
    sides
        .flat_map(|of_side| {
            let found: Vec<_> = of_side.iter().map(|mismatch| mismatch.found.clone()).collect();
            between(&found, "A", &of_side[0].side)
        })
        .collect()
}

/// The same between two sides of these names.
pub fn between(mismatches: &[Mismatch], first: &str, second: &str) -> Vec<String> {
    let alike = |one: &Mismatch, other: &Mismatch| {
        let both = Mismatch { end: one.end, ..other.clone() };
        one.end.is_some() && *one == both
    };
    let line = |alike: &[Mismatch]| {
        let found = &alike[0];
        let end = match (alike.len(), found.end) {
            (1, Some(end)) => format!(" ({end})"),
            _ => String::new(),
        };
        let [a, b] = [&found.a, &found.b].map(|values| shown(values));
        format!("{}: {}{end} is {a} in {first}, {b} in {second}", found.test, found.field)
    };
    mismatches.chunk_by(alike).map(line).collect()
}

/// Values of a side; where it has several, with a file of each.
fn shown(values: &[Met]) -> String {
    let one = |met: &Met| match values.len() {
        1 => met.value.clone(),
        _ => format!("{} ({})", met.value, met.file),
    };
    let some = values.iter().take(MOST_VALUES).map(one).collect::<Vec<_>>().join(" and ");
    match values.len() {
        0 => "none".into(),
        few if few <= MOST_VALUES => some,
        many => format!("{some} and {} more", many - MOST_VALUES),
    }
}

/// The rows of one test, aligned.
fn rows(results: &[At<Change>]) -> String {
    let titles =
        ["size", "transport", "metric", "A", &results[0].side, "change", "95 % interval", "runs", ""];
    let mut lines = vec![titles.map(str::to_owned)];
    let mut before: Option<&Change> = None;
    for change in results.iter().map(|result| &result.found) {
        let is_new = before.is_none_or(|before| before.id != change.id);
        let is_new_size = before.is_none_or(|before| before.size_bytes != change.size_bytes);
        before = Some(change);
        let only_if = |show: bool, text: String| if show { text } else { String::new() };
        let (metric, scale) = metric(change);
        lines.push([
            only_if(is_new_size, format_size(change.size_bytes)),
            only_if(is_new, path(change)),
            metric,
            significant(Some(change.a.median * scale), 11),
            significant(Some(change.b.median * scale), 11),
            percent(change.ratio),
            match (change.lower, change.upper) {
                (Some(lower), Some(upper)) => format!("{} .. {}", percent(Some(lower)), percent(Some(upper))),
                _ => "-".into(),
            },
            format!("{}+{}", change.a.runs, change.b.runs),
            match change.verdict {
                Some(Verdict::Better) => "better".into(),
                Some(Verdict::Worse) => "worse".into(),
                None => "~".into(),
            },
        ]);
    }
    columns(&lines, &[1, 2, 8])
}

/// The path, and what else was varied.
fn path(change: &Change) -> String {
    let mut words = vec![change.transport.name().to_owned()];
    let point = &change.point;
    words.extend((point.wait == Wait::Events).then(|| "events".into()));
    words.extend((point.direction == Direction::Bidirectional).then(|| "both ways".into()));
    words.extend(point.offered_per_s.map(|rate| format!("{}/s", format_rate(rate))));
    words.join(" ")
}

/// The metric with its unit, and what a value of documents is multiplied by for it.
fn metric(change: &Change) -> (String, f64) {
    let (unit, scale) = match change.unit {
        "ns" => ("us", 1e-3),
        "bytes_per_s" => ("Gb/s", 8e-9),
        "messages_per_s" => ("Mmsg/s", 1e-6),
        _ => ("ns/msg", 1.0),
    };
    (format!("{} {unit}", change.metric.name()), scale)
}

/// A ratio as a change: `+11.7 %`.
pub fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| NONE.into(), message::change)
}
