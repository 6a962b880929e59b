//! How CPU time grows with the size of a message: the one sign of copies that needs no privilege. A path that copies
//! nothing takes as long for a mebibyte as for a few kibibytes.

use serde::{Deserialize, Serialize};

use crate::gate::student;
use crate::plan::{Side, Transport};
use crate::result::{CpuUse, Document, ResultRow};

/// CPU time of one end's threads over the size of a message, over one path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slope {
    /// The path.
    pub transport: Transport,
    /// The end.
    pub end: Side,
    /// Smallest and largest size.
    pub size_bytes: [u64; 2],
    /// Runs, each of which has a slope of its own.
    pub runs: u32,
    /// CPU time that one byte more takes, in ns: the mean of the runs' slopes.
    pub ns_per_byte: f64,
    /// The ends of its 95 % interval, from how the runs differ (Student's t); `null` with fewer than three runs.
    pub interval: Option<[f64; 2]>,
    /// CPU time of a message of the smallest size, in ns: the mean of the runs.
    pub smallest_ns: f64,
    /// The same of the largest size.
    pub largest_ns: f64,
    /// Soft interrupts of all cores during a message of the largest size, in ns, over all runs; `null` where not known. What
    /// the machine does anyway is in it.
    pub largest_softirq_ns: Option<f64>,
    /// The same at rest, in as much time.
    pub resting_softirq_ns: Option<f64>,
}

/// CPU time a byte above which a slope is no copy that could be overlooked: memory that is read at 50 GB/s.
pub const FLAT_BELOW: f64 = 0.02;

impl Slope {
    /// No byte costs anything that could be told from nothing, and a copy would have been.
    pub fn is_flat(&self) -> bool {
        self.interval.is_some_and(|[low, high]| low <= 0.0 && high < FLAT_BELOW)
    }

    /// Each byte costs something.
    pub fn rises(&self) -> bool {
        self.interval.is_some_and(|[low, _]| low > 0.0)
    }
}

/// The slopes of each path and end that all runs have.
pub fn slopes<'a>(runs: impl Iterator<Item = &'a Document>) -> Vec<Slope> {
    let runs: Vec<&Document> = runs.collect();
    let paths = [Transport::Rdma, Transport::Tcp];
    let ends = [Side::Client, Side::Server];
    let all = paths.into_iter().flat_map(|path| ends.map(|end| (path, end)));
    all.filter_map(|(transport, end)| slope(&runs, transport, end)).collect()
}

fn slope(runs: &[&Document], transport: Transport, end: Side) -> Option<Slope> {
    let points: Vec<Vec<(f64, f64)>> = runs.iter().map(|run| points(run, transport, end)).collect();
    let each: Option<Vec<f64>> = points.iter().map(|points| of_run(points)).collect();
    let each = each.filter(|each| !each.is_empty())?;
    let (first, last) = (points.first()?.first()?, points.first()?.last()?);
    let at = |size: f64| {
        let all = points.iter().flatten().filter(|point| point.0 == size);
        mean(&all.map(|point| point.1).collect::<Vec<_>>())
    };
    let rows: Vec<(&Document, &ResultRow)> =
        runs.iter().filter_map(|run| Some((*run, largest(run, transport)?))).collect();
    let softirq =
        rows.iter().map(|(_, row)| softirq_per_message(row.cpu.of(end)?)).collect::<Option<Vec<_>>>();
    let resting =
        rows.iter().map(|(run, row)| resting_per_message(run, row, end)).collect::<Option<Vec<_>>>();
    Some(Slope {
        transport,
        end,
        size_bytes: [first.0 as u64, last.0 as u64],
        runs: each.len() as u32,
        ns_per_byte: mean(&each),
        interval: interval(&each),
        smallest_ns: at(first.0),
        largest_ns: at(last.0),
        largest_softirq_ns: softirq.map(|each| mean(&each)),
        resting_softirq_ns: resting.map(|each| mean(&each)),
    })
}

/// Size in bytes and CPU time a message in ns.
fn points(run: &Document, transport: Transport, end: Side) -> Vec<(f64, f64)> {
    let rows = run.results.iter().filter(|row| row.transport == transport);
    rows.filter_map(|row| Some((row.size_bytes as f64, row.cpu.of(end)?.ns_per_message?))).collect()
}

fn largest(run: &Document, transport: Transport) -> Option<&ResultRow> {
    run.results.iter().filter(|row| row.transport == transport).max_by_key(|row| row.size_bytes)
}

fn softirq_per_message(used: &CpuUse) -> Option<f64> {
    let machine = used.machine?;
    used.each(Some(machine.softirq_ns + machine.irq_ns))
}

fn resting_per_message(run: &Document, row: &ResultRow, end: Side) -> Option<f64> {
    let resting = run.end(end)?.idle_machine?;
    let used = row.cpu.of(end)?;
    let share = (resting.softirq_ns + resting.irq_ns) as f64 / resting.window_s;
    Some(share * used.machine?.window_s / used.messages()?)
}

/// The slope of the least squares line through the points of a run.
fn of_run(points: &[(f64, f64)]) -> Option<f64> {
    if points.len() < 3 {
        return None;
    }
    let (xs, ys): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
    let (x, y) = (mean(&xs), mean(&ys));
    let across: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let along: f64 = xs.iter().map(|size| (size - x).powi(2)).sum();
    (along > 0.0).then(|| across / along)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The 95 % interval of the mean of so many runs.
fn interval(each: &[f64]) -> Option<[f64; 2]> {
    let runs = each.len();
    if runs < 3 {
        return None;
    }
    let t = student::quantile(0.95, runs - 1);
    let centre = mean(each);
    let variance = each.iter().map(|slope| (slope - centre).powi(2)).sum::<f64>() / (runs - 1) as f64;
    let half = t * (variance / runs as f64).sqrt();
    Some([centre - half, centre + half])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_of_a_line_is_found_and_what_is_constant_is_flat() {
        let line: Vec<(f64, f64)> =
            [4096.0, 16384.0, 65536.0].iter().map(|size| (*size, 500.0 + 0.25 * size)).collect();
        assert!((of_run(&line).unwrap() - 0.25).abs() < 1e-12);
        let flat: Vec<(f64, f64)> = line.iter().map(|(size, _)| (*size, 500.0)).collect();
        assert_eq!(of_run(&flat), Some(0.0));
        assert_eq!(of_run(&line[..2]), None, "two points make any line");
        assert_eq!(of_run(&[(64.0, 1.0); 3]), None, "one size has no slope");
    }

    #[test]
    fn the_interval_is_students() {
        assert_eq!(interval(&[1.0, 1.0]), None);
        let [low, high] = interval(&[1.0, 2.0, 3.0]).unwrap();
        // Of two degrees of freedom it has a closed form; the standard deviation is 1.
        let t = 0.95 / (2.0 * 0.975 * 0.025f64).sqrt();
        assert!(
            (t - 4.303).abs() < 5e-4
                && (low - (2.0 - t / 3f64.sqrt())).abs() < 1e-9
                && (low + high - 4.0).abs() < 1e-9
        );
    }

    fn slope(interval: Option<[f64; 2]>) -> Slope {
        Slope {
            transport: Transport::Tcp,
            end: Side::Client,
            size_bytes: [4096, 1 << 20],
            runs: 5,
            ns_per_byte: 0.1,
            interval,
            smallest_ns: 1.0,
            largest_ns: 2.0,
            largest_softirq_ns: None,
            resting_softirq_ns: None,
        }
    }

    #[test]
    fn what_is_not_known_well_enough_is_neither_flat_nor_rising() {
        for (interval, flat, rises) in [
            (Some([-0.001, 0.002]), true, false),
            (Some([0.2, 0.3]), false, true),
            (Some([-0.1, 0.3]), false, false),
            (None, false, false),
        ] {
            let slope = slope(interval);
            assert_eq!((slope.is_flat(), slope.rises()), (flat, rises), "{interval:?}");
        }
    }
}
