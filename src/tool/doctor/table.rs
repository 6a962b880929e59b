//! What a person sees: what disturbs first, with its effect and what mends it; what is as it should be in a line each.

use super::record::{Checkup, Finding, Level};
use crate::report::text::{labelled, wrap};
use crate::units::counted;

/// Levels in the order in which they are shown.
const ORDER: [Level; 4] = [Level::Warning, Level::Note, Level::Unknown, Level::Ok];

/// The whole report, no line wider than `width` where words allow it.
pub fn render(checkup: &Checkup, width: Option<usize>) -> String {
    let mut out = wrap(&header(checkup), 2, width) + "\n";
    for level in ORDER {
        let of_level = checkup.findings.iter().enumerate().filter(|(_, finding)| finding.level == level);
        for (index, finding) in of_level {
            out += &told(checkup, index, finding, width);
        }
    }
    let [warnings, notes, unknown, fine] = ORDER.map(|level| checkup.count(level));
    let sum = format!(
        "{}, {}, {unknown} not known, {fine} ok",
        counted(warnings, "warning"),
        counted(notes, "note")
    );
    out + "\n" + &wrap(&sum, 0, width)
}

fn header(checkup: &Checkup) -> String {
    let mut parts = vec!["verbmark doctor".to_owned()];
    parts.extend(checkup.host.clone());
    parts.extend(checkup.kernel.as_ref().map(|kernel| format!("kernel {kernel}")));
    parts.push(format!("core {}", checkup.core));
    if let (Some(device), Some(port)) = (&checkup.device, checkup.port) {
        let netdev = checkup.netdev.as_ref().map(|netdev| format!(" on {netdev}")).unwrap_or_default();
        parts.push(format!("{device}/{port}{netdev}"));
    }
    parts.join("  ")
}

fn told(checkup: &Checkup, index: usize, finding: &Finding, width: Option<usize>) -> String {
    /// Where the text begins: behind the longest name of a level.
    const INDENT: usize = 9;
    let place = format!("findings[{index}].seen");
    let reason = || {
        checkup.missing.iter().find(|missing| missing.path == place).map(|missing| missing.reason.as_str())
    };
    let seen = finding.seen.as_deref().or_else(reason).unwrap_or("-");
    let text = format!("{}: {seen}", finding.code.name());
    let mut out = labelled(&format!("{:<7}", finding.level.name()), &text, width);
    let indented = |text: &str| wrap(&format!("{:INDENT$}{text}", ""), INDENT + 2, width);
    if matches!(finding.level, Level::Warning | Level::Note) {
        out += &indented(&finding.effect);
    }
    if let Some(remedy) = &finding.remedy {
        out += &indented(&format!("try: {remedy}"));
    }
    out
}
