//! A series as histories know it: one name from gate to gate, and the candidate's number.

use super::words::printable;
use crate::gate::document::Series;
use crate::gate::shift::median;
use crate::gate::verdict::Verdict;
use crate::result::{Direction, Point, Wait};

/// What it is called in every gate, whatever else that measures: `send_lat.rdma.64.p50`, and
/// `send_bw.rdma.65536.depth128.bw` where more than the size is not one, or not the usual.
pub(super) fn name(series: &Series) -> String {
    let mut parts =
        vec![series.test.clone(), series.transport.name().into(), series.point.size_bytes.to_string()];
    parts.extend(beyond_size(&series.point));
    parts.push(series.judgement.metric.name().into());
    printable(&parts.join("."))
}

/// What of a point, besides its size, is more than one or not the usual: `depth128`, `events`.
pub(super) fn beyond_size(point: &Point) -> Vec<String> {
    let counts = [("qps", point.qps), ("depth", point.depth), ("threads", point.threads)];
    let mut parts: Vec<_> =
        counts.iter().filter(|(_, count)| *count != 1).map(|(of, count)| format!("{of}{count}")).collect();
    if point.wait == Wait::Events {
        parts.push("events".into());
    }
    if point.direction == Direction::Bidirectional {
        parts.push("bidirectional".into());
    }
    parts.extend(point.offered_per_s.map(|rate| format!("rate{rate}")));
    parts
}

/// The median of the candidate's runs, also where they were compared with nothing; `None` where they must not be trusted.
pub(super) fn candidate(series: &Series) -> Option<f64> {
    let found = &series.judgement;
    let is_trusted = found.verdict != Verdict::Invalid;
    found.median_b.or_else(|| median_of(&series.values_b)).filter(|_| is_trusted)
}

/// The median of runs, if there are any.
pub(super) fn median_of(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| median(values))
}
