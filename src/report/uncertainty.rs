//! What of the numbers is the tool's own, in one line.

use super::numbers::significant;
use crate::result::ResultRow;
use crate::units::format_size;

/// The line for all rows of a table: what one reading of the clock and one turn of the loop cost, and how far what is
/// derived from them may be off, by the row where that is most. `None` where nothing of it is known.
pub fn line(rows: &[ResultRow]) -> Option<String> {
    let first = rows.first()?;
    let mut parts = Vec::new();
    let ns = |ns: f64| format!("{} ns", significant(Some(ns), 9));
    parts.extend(first.uncertainty.clock_ns.map(|clock| format!("reading the clock {}", ns(clock))));
    parts.extend(first.uncertainty.loop_ns.map(|turn| format!("an empty loop {}", ns(turn))));
    parts.extend(first.uncertainty.quantisation.map(|width| format!("histogram {}", percent(width))));
    let ppm = rows.iter().filter_map(|row| row.uncertainty.calibration_ppm).map(f64::abs).reduce(f64::max);
    parts.extend(ppm.map(|ppm| format!("clock rate {} ppm", significant(Some(ppm), 9))));
    parts.extend(widest(rows).map(|(row, relative)| {
        let path = row.path(rows.iter().any(|other| other.point.wait != row.point.wait));
        let most = if rows.len() > 1 { " at most" } else { "" };
        format!("medians +-{}{most} ({} {path})", percent(relative), format_size(row.size_bytes))
    }));
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The row whose median is least sure, and by how much of itself.
fn widest(rows: &[ResultRow]) -> Option<(&ResultRow, f64)> {
    let relative = |row: &ResultRow| {
        let median = row.latency_ns.as_ref()?.p50?;
        Some(row.uncertainty.median_interval_ns? / median)
    };
    rows.iter().filter_map(|row| Some((row, relative(row)?))).max_by(|a, b| a.1.total_cmp(&b.1))
}

fn percent(share: f64) -> String {
    format!("{} %", significant(Some(share * 100.0), 9))
}
