//! Recorded runs side by side: which tests and points of two sides are the same, what stands in the way of comparing them,
//! and by how much each metric of each point changed.

use std::collections::HashMap;

use serde::Serialize;

use super::fingerprint::Field;
use super::many::{self, CONFIDENCE};
use super::sample::{Met, PointRuns, Runs, Seen, TestRuns};
use super::shift::fewest_runs;
use crate::result::{Point, Quantity, Transport};

/// What a reader of [`Compared::is_emulated`] is told.
pub const EMULATED: &str = "EMULATED: numbers of an emulated device measure this tool, not a network";

/// What a reader of [`Compared::is_unoptimised`] is told.
pub const UNOPTIMISED: &str = "an end was compiled without optimisation: its numbers mean nothing";

/// What comparing two sides gave.
#[derive(Debug, Clone, Default)]
pub struct Compared {
    /// Hard fields that differ, and whether they may.
    pub mismatches: Vec<Mismatch>,
    /// Soft fields that differ.
    pub differences: Vec<Mismatch>,
    /// What is on one side only.
    pub uncompared: Vec<Uncompared>,
    /// Each metric of each point of both sides; empty where a hard field forbids it.
    pub changes: Vec<Change>,
    /// An end used the emulated device.
    pub is_emulated: bool,
    /// An end was compiled without optimisation.
    pub is_unoptimised: bool,
}

/// A field that differs, within a side or between both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// The test.
    pub test: String,
    /// Name of the field.
    pub field: String,
    /// `client` or `server`; `null` where it belongs to neither.
    pub end: Option<&'static str>,
    /// Every value of the first side.
    pub a: Vec<Met>,
    /// Of the other side.
    pub b: Vec<Met>,
    /// It was asked for.
    pub allowed: bool,
}

/// What only one side has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Uncompared {
    /// The test.
    pub test: String,
    /// The point; `null` where the other side has nothing of the test.
    pub id: Option<String>,
    /// It is A that has it.
    pub in_a: bool,
}

/// One metric of one point on both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The binary, with the options that tell it from other tests of this binary.
    pub test: String,
    /// Id of the point on side A.
    pub id: String,
    /// The path.
    pub transport: Transport,
    /// Payload of one message.
    pub size_bytes: u64,
    /// What was varied, for people.
    #[serde(skip)]
    pub point: Point,
    /// What changed.
    pub metric: Quantity,
    /// Unit of the medians.
    pub unit: &'static str,
    /// The direction that is an improvement.
    pub better: Better,
    /// The first side.
    pub a: Summary,
    /// The other one.
    pub b: Summary,
    /// B over A, the estimate of Hodges and Lehmann; `null` where a value is 0.
    pub ratio: Option<f64>,
    /// Ends of its interval; `null` with too few runs.
    pub lower: Option<f64>,
    /// The upper one.
    pub upper: Option<f64>,
    /// What the interval says; `null`, shown as `~`, where it says nothing.
    pub verdict: Option<Verdict>,
    /// Why there is no verdict; `null` where there is one.
    pub reason: Option<Reason>,
}

/// The direction of an improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Better {
    Lower,
    Higher,
}

impl Better {
    /// That of a metric.
    pub fn of(metric: Quantity) -> Self {
        if metric.class().higher_is_worse() { Self::Lower } else { Self::Higher }
    }
}

/// The runs of a side.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// How many have the metric.
    pub runs: usize,
    /// Their median.
    pub median: f64,
    /// Standard deviation as a share of the mean; `null` for one run.
    pub cv: Option<f64>,
}

/// A change whose whole interval lies on one side of none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// An improvement, however small.
    Better,
    /// A worsening, however small.
    Worse,
}

/// Why there is no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No interval of this confidence can be made of so few runs.
    TooFewRuns,
    /// The interval holds no change, too.
    HoldsNoChange,
    /// A value is 0, and has no ratio.
    Zero,
}

/// Two sides beside each other.
#[derive(Debug, Clone, Default)]
pub struct Beside<'a> {
    /// Hard fields that differ, and whether they may.
    pub mismatches: Vec<Mismatch>,
    /// Soft fields that differ.
    pub differences: Vec<Mismatch>,
    /// What is on one side only.
    pub uncompared: Vec<Uncompared>,
    /// Each point of both sides.
    pub points: Vec<Shared<'a>>,
    /// An end used the emulated device.
    pub is_emulated: bool,
    /// An end was compiled without optimisation.
    pub is_unoptimised: bool,
}

/// A point that both sides have.
#[derive(Debug, Clone)]
pub struct Shared<'a> {
    /// The binary, with the options that tell it from other tests of this binary.
    pub test: String,
    /// The runs of the first side.
    pub a: &'a PointRuns,
    /// Of the other side.
    pub b: &'a PointRuns,
}

impl Beside<'_> {
    /// No hard field that must not differ does.
    pub fn is_comparable(&self) -> bool {
        self.mismatches.iter().all(|mismatch| mismatch.allowed)
    }
}

/// What tests of two sides are paired by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// By what a suite calls them, as far as it does: one of another name is another test.
    Names,
    /// By what they have in common: somebody asks for just that.
    Likeness,
}

/// Lays two sides beside each other, each with a run at least. `is_allowed` says of a hard field and its values on either
/// side whether they may differ.
pub fn beside<'a>(
    a: &'a Runs,
    b: &'a Runs,
    pairing: Pairing,
    is_allowed: impl Fn(&Field, &[Met], &[Met]) -> bool,
) -> Beside<'a> {
    let mut beside = Beside::default();
    let pairs = pairs(a, b, pairing, &mut beside.uncompared);
    for (first, second) in &pairs {
        beside.mismatches.extend(options_that_differ(first, second).into_iter().map(
            |(field, of_a, of_b)| {
                let met = |value, test: &TestRuns| vec![Met { value, file: test.first_file.clone() }];
                let (of_a, of_b) = (met(of_a, first), met(of_b, second));
                let allowed = is_allowed(&field, &of_a, &of_b);
                mismatch(first, &field, of_a, of_b, allowed)
            },
        ));
        beside.mismatches.extend(differing(first, &first.environment, &second.environment, &is_allowed));
        beside.differences.extend(differing(first, &first.soft, &second.soft, |_, _, _| true));
        beside.is_emulated |= first.is_emulated || second.is_emulated;
        beside.is_unoptimised |= first.is_unoptimised || second.is_unoptimised;
        points(first, second, &first.name_among(&a.tests), &mut beside);
    }
    // Whose name is known may have other points now: they are new.
    if pairing == Pairing::Likeness && beside.points.is_empty() && beside.is_comparable() {
        beside.mismatches.extend(nothing_in_common(a, b));
    }
    beside
}

/// Compares two sides, each with a run at least. `allowed` names hard fields that may differ.
pub fn compare(a: &Runs, b: &Runs, allowed: &[String]) -> Compared {
    let beside =
        beside(a, b, Pairing::Likeness, |field, _, _| allowed.iter().any(|name| *name == field.name));
    let changes = match beside.is_comparable() {
        true => beside.points.iter().flat_map(|point| metrics(point.a, point.b, &point.test)).collect(),
        false => Vec::new(),
    };
    let Beside { mismatches, differences, uncompared, is_emulated, is_unoptimised, .. } = beside;
    Compared { mismatches, differences, uncompared, changes, is_emulated, is_unoptimised }
}

/// The tests of both sides that belong together. Those of one name do, then those with the same options; of the others,
/// those of the same binary that differ least, so that what stands in the way can be named. What is left over is told.
fn pairs<'a>(
    a: &'a Runs,
    b: &'a Runs,
    pairing: Pairing,
    uncompared: &mut Vec<Uncompared>,
) -> Vec<(&'a TestRuns, &'a TestRuns)> {
    let mut pairs = Vec::new();
    let mut left: Vec<&TestRuns> = a.tests.iter().collect();
    let mut over: Vec<&TestRuns> = b.tests.iter().collect();
    let is_named_alike = |a: &TestRuns, b: &TestRuns| a.name.is_some() && a.name == b.name;
    let may_be = |a: &TestRuns, b: &TestRuns| {
        pairing == Pairing::Likeness || a.name.is_none() || b.name.is_none() || a.name == b.name
    };
    let has_same_options = |a: &TestRuns, b: &TestRuns| may_be(a, b) && a.options == b.options;
    for belongs in [&is_named_alike as &dyn Fn(&TestRuns, &TestRuns) -> bool, &has_same_options] {
        over.retain(|test| match left.iter().position(|candidate| belongs(candidate, test)) {
            Some(at) => {
                pairs.push((left.remove(at), *test));
                false
            }
            None => true,
        });
    }
    let is_only_way = pairs.is_empty() && a.tests.len() == 1 && b.tests.len() == 1;
    for test in over {
        let same_kind =
            |of: &TestRuns| ["op", "shape"].iter().all(|option| of.option(option) == test.option(option));
        let nearest =
            left.iter().enumerate().filter(|(_, of)| may_be(of, test) && (same_kind(of) || is_only_way));
        match nearest.min_by_key(|(_, of)| options_that_differ(of, test).len()).map(|(at, _)| at) {
            Some(at) => pairs.push((left.remove(at), test)),
            None => uncompared.push(Uncompared { test: test.name_among(&b.tests), id: None, in_a: false }),
        }
    }
    uncompared.extend(left.iter().map(|test| Uncompared {
        test: test.name_among(&a.tests),
        id: None,
        in_a: true,
    }));
    pairs
}

fn options_that_differ(a: &TestRuns, b: &TestRuns) -> Vec<(Field, String, String)> {
    let pairs = a.options.iter().zip(&b.options);
    let differing = pairs.filter(|((_, a), (_, b))| a != b);
    differing.map(|((field, a), (_, b))| (field.clone(), a.clone(), b.clone())).collect()
}

/// Fields that both sides have, with more than one value together. What only one has, as a device where the other
/// measured TCP alone, stands behind no point of both.
fn differing(
    test: &TestRuns,
    a: &Seen,
    b: &Seen,
    is_allowed: impl Fn(&Field, &[Met], &[Met]) -> bool,
) -> Vec<Mismatch> {
    let both = a.0.iter().filter_map(|(field, a)| Some((field, a, b.0.get(field)?)));
    both.filter(|(_, a, b)| a.iter().chain(*b).any(|met| met.value != a[0].value))
        .map(|(field, a, b)| mismatch(test, field, a.clone(), b.clone(), is_allowed(field, a, b)))
        .collect()
}

fn mismatch(test: &TestRuns, field: &Field, a: Vec<Met>, b: Vec<Met>, allowed: bool) -> Mismatch {
    let (field, end) = (field.name.clone().into_owned(), field.end);
    Mismatch { test: test.binary.clone(), field, end, a, b, allowed }
}

/// Points that are named where two sides have none in common.
const MOST_NAMED: usize = 16;

/// What two sides measured that have no point in common.
fn nothing_in_common(a: &Runs, b: &Runs) -> Option<Mismatch> {
    let ids = |runs: &Runs| -> Vec<Met> {
        let points = runs.tests.iter().flat_map(|test| test.points.iter().map(move |point| (test, point)));
        let met = |(test, point): (&TestRuns, &PointRuns)| Met {
            value: point.id.clone(),
            file: test.first_file.clone(),
        };
        points.map(met).take(MOST_NAMED).collect()
    };
    Some(Mismatch {
        test: a.tests.first()?.binary.clone(),
        field: "points".into(),
        end: None,
        a: ids(a),
        b: ids(b),
        allowed: false,
    })
}

/// Each point of both, and what only one of them has.
fn points<'a>(a: &'a TestRuns, b: &'a TestRuns, test: &str, beside: &mut Beside<'a>) {
    // What may differ between the sides may differ between their points.
    let differ: Vec<_> = options_that_differ(a, b).into_iter().map(|(field, ..)| field.name).collect();
    let masked = |names: &[&str]| names.iter().any(|name| differ.iter().any(|field| field == name));
    let key = |of: &PointRuns| {
        let mut point = of.point;
        if masked(&["depth", "tx_depth"]) {
            point.depth = 0;
        }
        if masked(&["qps"]) {
            point.qps = 0;
        }
        if masked(&["threads"]) {
            point.threads = 0;
        }
        if masked(&["rate_per_s"]) {
            point.offered_per_s = None;
        }
        let mut id = point.id(of.transport);
        if masked(&["wait"]) {
            id = id.replace("/busy/", "/*/").replace("/events/", "/*/");
        }
        if masked(&["bidirectional"]) {
            id = id.replace("/unidirectional", "/*").replace("/bidirectional", "/*");
        }
        id
    };
    let mut theirs: HashMap<String, &PointRuns> = b.points.iter().map(|point| (key(point), point)).collect();
    let only = |of: &PointRuns, in_a| Uncompared { test: test.into(), id: Some(of.id.clone()), in_a };
    for point in &a.points {
        match theirs.remove(&key(point)) {
            Some(other) => beside.points.push(Shared { test: test.into(), a: point, b: other }),
            None => beside.uncompared.push(only(point, true)),
        }
    }
    let left =
        b.points.iter().filter(|point| theirs.get(&key(point)).is_some_and(|left| left.id == point.id));
    beside.uncompared.extend(left.map(|point| only(point, false)));
}

fn metrics(a: &PointRuns, b: &PointRuns, test: &str) -> Vec<Change> {
    let both = a.metrics.iter().filter_map(|(metric, first)| {
        let (_, second) = b.metrics.iter().find(|(other, _)| other == metric)?;
        Some((*metric, first, second))
    });
    both.map(|(metric, first, second)| {
        let better = Better::of(metric);
        let found = ratio(first, second, better);
        Change {
            test: test.into(),
            id: a.id.clone(),
            transport: a.transport,
            size_bytes: a.point.size_bytes,
            point: a.point,
            metric,
            unit: metric.unit(),
            better,
            a: summary(first),
            b: summary(second),
            ratio: found.ratio,
            lower: found.bounds.map(|(lower, _)| lower),
            upper: found.bounds.map(|(_, upper)| upper),
            verdict: found.verdict.ok(),
            reason: found.verdict.err(),
        }
    })
    .collect()
}

struct Ratio {
    ratio: Option<f64>,
    bounds: Option<(f64, f64)>,
    verdict: Result<Verdict, Reason>,
}

fn ratio(a: &[f64], b: &[f64], better: Better) -> Ratio {
    if a.iter().chain(b).any(|value| *value <= 0.0) {
        return Ratio { ratio: None, bounds: None, verdict: Err(Reason::Zero) };
    }
    let logarithms = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<_>>();
    let shift = many::shift(&logarithms(a), &logarithms(b));
    let bounds = shift.bounds.map(|(lower, upper)| (lower.exp(), upper.exp()));
    let verdict = match shift.bounds {
        None => Err(Reason::TooFewRuns),
        Some((lower, upper)) if lower <= 0.0 && upper >= 0.0 => Err(Reason::HoldsNoChange),
        Some((lower, _)) if (lower > 0.0) == (better == Better::Higher) => Ok(Verdict::Better),
        Some(_) => Ok(Verdict::Worse),
    };
    Ratio { ratio: Some(shift.estimate.exp()), bounds, verdict }
}

fn summary(values: &[f64]) -> Summary {
    let runs = values.len();
    let mean = values.iter().sum::<f64>() / runs as f64;
    let squares = values.iter().map(|value| (value / mean - 1.0).powi(2)).sum::<f64>();
    let cv = (runs > 1 && mean > 0.0).then(|| (squares / (runs - 1) as f64).sqrt());
    Summary { runs, median: super::shift::median(values), cv: cv.filter(|cv| cv.is_finite()) }
}

/// Runs a side without which there is no interval, at any scatter.
pub fn fewest() -> usize {
    fewest_runs(CONFIDENCE)
}
