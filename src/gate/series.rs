//! Every metric of every point of a test: gathered from its runs, then judged together with those of all other tests, since
//! how sure each must be depends on how many there are.

use std::collections::BTreeMap;

use super::baseline::judge_sitting;
use super::compare::{Beside, Better, Mismatch, Pairing, Uncompared, beside};
use super::document::Series;
use super::family;
use super::fingerprint::Field;
use super::metric::Class;
use super::rule::{FEWEST_RUNS, Rule, describe, judge};
use super::sample::{Met, PointRuns, Runs, TestRuns, joined};
use super::stored::LeftOut;
use super::verdict::{Code, Judgement, Verdict};
use crate::result::{Quantity, Transport};

/// What of a test is judged, and what of it is tolerated.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// Name of the test.
    pub test: String,
    /// Metrics, each of which has a rule.
    pub metrics: Vec<Quantity>,
    /// They are the usual ones: nobody misses one of them that runs are too short for.
    pub is_usual: bool,
    /// The path that is judged; `None` for whatever was measured.
    pub transport: Option<Transport>,
    /// What is tolerated of some of them.
    pub tolerances: BTreeMap<Quantity, Tolerance>,
    /// Runs of each arm without which nothing is decided.
    pub minimum_runs: usize,
    /// Hard fields that may differ.
    pub allowed: Vec<String>,
    /// No stored sitting needs to have it: this one may be the first.
    pub may_be_first: bool,
}

/// What `--allow-mismatch` calls points that the candidate lacks.
pub const POINTS: &str = "points";

/// What of a metric is tolerated, where it is not as usual.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Tolerance {
    /// As [`Rule::tolerance`].
    pub tolerance: Option<f64>,
    /// As [`Rule::must_detect`].
    pub must_detect: Option<f64>,
    /// As [`Rule::floor`].
    pub floor: Option<f64>,
    /// As [`Rule::advisory`].
    pub advisory: Option<bool>,
}

impl Tolerance {
    /// The rule of a metric with this changed.
    pub fn of(self, rule: Rule) -> Rule {
        Rule {
            tolerance: self.tolerance.unwrap_or(rule.tolerance),
            must_detect: self.must_detect.unwrap_or(rule.must_detect),
            floor: self.floor.unwrap_or(rule.floor),
            advisory: self.advisory.unwrap_or(rule.advisory),
            ..rule
        }
    }
}

impl Asked {
    /// The rule of a metric; `None` of one that is never compared.
    pub fn rule(&self, metric: Quantity, clock_ns: f64) -> Option<Rule> {
        let rule = self.tolerances.get(&metric).copied().unwrap_or_default().of(metric.rule(clock_ns)?);
        Some(Rule { minimum_runs: self.minimum_runs, ..rule })
    }
}

/// The metrics of tests before they are judged, and what was found on the way.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    metrics: Vec<Unjudged>,
    /// Hard fields that differ.
    pub mismatches: Vec<Mismatch>,
    /// Soft fields that do.
    pub differences: Vec<Mismatch>,
    /// What only the candidate has.
    pub uncompared: Vec<Uncompared>,
    /// Usual metrics of a test for which no run had samples enough.
    pub unmeasured: Vec<String>,
    /// Stored sittings that were not measured alike, where others were.
    pub left_out: Vec<LeftOut>,
    /// An end used the emulated device.
    pub is_emulated: bool,
    /// An end was compiled without optimisation.
    pub is_unoptimised: bool,
}

/// One metric of one point.
#[derive(Debug, Clone)]
struct Unjudged {
    series: Series,
    rule: Rule,
    context: Context,
}

/// What is true of all metrics of a point.
#[derive(Debug, Clone, Default)]
pub(super) struct Context {
    /// What a reading of the clock costs.
    pub clock_ns: f64,
    /// A hard field differs, and was allowed to.
    pub is_advisory: bool,
    /// The values of A are those of sittings.
    pub is_stored: bool,
    /// As [`Asked::may_be_first`].
    pub may_be_first: bool,
    /// Runs of the baseline at this point, where the arms took turns, with the metric or without it.
    pub runs_a: usize,
    /// The same of the candidate.
    pub runs_b: usize,
    /// Why nothing can be said.
    pub obstacle: Option<Obstacle>,
}

/// What stands in the way of a verdict.
#[derive(Debug, Clone)]
pub(super) struct Obstacle {
    verdict: Verdict,
    code: Code,
    reason: String,
}

impl Obstacle {
    pub(super) fn not_comparable(reason: impl Into<String>) -> Self {
        Self { verdict: Verdict::NotComparable, code: Code::Mismatch, reason: reason.into() }
    }
}

impl Gathered {
    /// Adds a test that both arms ran in turns. In what the arms differ from each other is what is compared; an arm that
    /// differs from itself is not comparable with anything.
    pub fn in_turns(&mut self, asked: &Asked, a: &Runs, b: &Runs) {
        let beside = beside(a, b, Pairing::Names, |field, a, b| is_of_the_arms(a, b) || asked.allows(field));
        let context = Context {
            clock_ns: clock_ns(&[a, b]),
            is_advisory: beside.mismatches.iter().any(|found| !is_of_the_arms(&found.a, &found.b)),
            obstacle: obstacle(&beside),
            ..Context::default()
        };
        self.add_lost(asked, a, &beside.uncompared);
        for point in &beside.points {
            let context = Context { runs_a: point.a.runs, ..context.clone() };
            self.add(asked, point.b, |metric| vec![values(point.a, metric)], &context);
        }
        if beside.points.is_empty() {
            self.without_baseline(asked, b, 1, &context);
        }
        self.take_over(asked, beside);
    }

    /// Notes on what a test was measured that is compared with nothing.
    pub fn observe(&mut self, runs: &Runs) {
        self.is_emulated |= runs.tests.iter().any(|test| test.is_emulated);
        self.is_unoptimised |= runs.tests.iter().any(|test| test.is_unoptimised);
    }

    /// What the baseline has and the candidate lacks is no pass: a candidate may not get better by measuring less.
    fn add_lost(&mut self, asked: &Asked, a: &Runs, uncompared: &[Uncompared]) {
        let is_lost = |point: &PointRuns| {
            asked.judges(point.transport)
                && uncompared
                    .iter()
                    .any(|lone| lone.in_a && lone.id.as_deref().is_none_or(|id| id == point.id))
        };
        let lost = a.tests.iter().flat_map(|test| test.points.iter().map(move |point| (test, point)));
        let lost = lost.filter(|(_, point)| is_lost(point));
        let met = |(test, point): (&TestRuns, &PointRuns)| Met {
            value: point.id.clone(),
            file: test.first_file.clone(),
        };
        self.mismatches.extend(lacking(&asked.test, lost.map(met).collect(), &asked.allowed));
    }

    /// Adds a test whose measuring went wrong, as far as it is known what it would have measured.
    pub fn spoilt(&mut self, asked: &Asked, runs: &Runs, cause: &str) {
        let obstacle =
            Obstacle { verdict: Verdict::Invalid, code: Code::InvalidRun, reason: cause.to_owned() };
        let context = Context { obstacle: Some(obstacle), ..Context::default() };
        self.observe(runs);
        self.without_baseline(asked, runs, 0, &context);
    }

    fn without_baseline(&mut self, asked: &Asked, runs: &Runs, sittings: usize, context: &Context) {
        for point in runs.tests.iter().flat_map(|test| &test.points) {
            self.add(asked, point, |_| vec![Vec::new(); sittings], context);
        }
    }

    /// Adds the metrics of a point of the candidate. Of the baseline `of_a` gives the values of a metric, a list for each
    /// sitting.
    pub(super) fn add(
        &mut self,
        asked: &Asked,
        point: &PointRuns,
        of_a: impl Fn(Quantity) -> Vec<Vec<f64>>,
        context: &Context,
    ) {
        if !asked.judges(point.transport) {
            return;
        }
        for &metric in &asked.metrics {
            let Some(mut rule) = asked.rule(metric, context.clock_ns) else { continue };
            let (values_a, values_b) = (of_a(metric), values(point, metric));
            if asked.is_usual && values_b.is_empty() && values_a.iter().all(Vec::is_empty) {
                self.unmeasured.push(format!("{} {}", asked.test, metric.name()));
                continue;
            }
            rule.advisory |= context.is_advisory;
            let series = Series {
                test: asked.test.clone(),
                id: point.id.clone(),
                transport: point.transport,
                point: point.point,
                unit: metric.unit(),
                better: Better::of(metric),
                judgement: Judgement::without(&rule, Verdict::Inconclusive, Code::TooFewRuns, ""),
                values_a,
                values_b,
                message: String::new(),
            };
            let context = Context { runs_b: point.runs, ..context.clone() };
            self.metrics.push(Unjudged { series, rule, context });
        }
    }

    /// Keeps what was found beside the points.
    pub(super) fn take_over(&mut self, asked: &Asked, beside: Beside<'_>) {
        let named = |found: Mismatch| Mismatch { test: asked.test.clone(), ..found };
        beside.mismatches.into_iter().for_each(|found| join(&mut self.mismatches, named(found)));
        beside.differences.into_iter().for_each(|found| join(&mut self.differences, named(found)));
        let only_new = beside.uncompared.into_iter().filter(|lone| !lone.in_a);
        let only_new = only_new.map(|lone| Uncompared { test: asked.test.clone(), ..lone });
        self.uncompared.extend(only_new);
        self.is_emulated |= beside.is_emulated;
        self.is_unoptimised |= beside.is_unoptimised;
    }

    /// Judges all of them. Unless this is the `last` look, what seems to have changed is left open.
    pub fn judge(self, last: bool) -> Vec<Series> {
        let deciding = self.metrics.iter().filter(|metric| !metric.rule.advisory).count();
        let confidence = family::confidence(deciding);
        self.metrics.into_iter().map(|metric| metric.judge(confidence, last)).collect()
    }
}

impl Unjudged {
    fn judge(self, confidence: f64, last: bool) -> Series {
        let Self { mut series, rule, context } = self;
        let rule = Rule { confidence, ..rule };
        let enough = |values: &Vec<f64>| values.len() >= FEWEST_RUNS;
        let sittings: Vec<_> = series.values_a.iter().filter(|values| enough(values)).cloned().collect();
        let judged = match unjudged(&series, &rule, &context) {
            Some(judgement) => Ok(judgement),
            None if context.is_stored => judge_sitting(&rule, &sittings, &series.values_b),
            None => judge(&rule, &sittings[0], &series.values_b, last),
        };
        // What is wrong with one metric is no end of the others.
        series.judgement = judged.unwrap_or_else(|error| {
            Judgement::without(&rule, Verdict::Invalid, Code::InvalidRun, error.to_string())
        });
        series.message = series.judgement.line(&series.title());
        series
    }
}

/// Of a metric that no rule can judge: why, and what is known of it all the same.
fn unjudged(series: &Series, rule: &Rule, context: &Context) -> Option<Judgement> {
    let name = rule.metric.name();
    let longest = series.values_a.iter().map(Vec::len).max().unwrap_or(0);
    let new = series.values_b.len();
    let is_zero = |values: &[f64]| values.iter().any(|value| *value <= 0.0);
    // A run that stalled has too few messages for a percentile: without it the others would look well.
    let incomplete = [("baseline", longest, context.runs_a), ("candidate", new, context.runs_b)];
    let incomplete = incomplete.into_iter().find(|(_, values, runs)| values < runs);
    let (verdict, code, reason) = if let Some(Obstacle { verdict, code, reason }) = &context.obstacle {
        (*verdict, *code, reason.clone())
    } else if new == 0 {
        let hint = match rule.metric.class() {
            Class::Cost => "its CPU time was not to be had",
            Class::Latency | Class::Rate => "measure longer, with -D",
        };
        let reason = format!("no run of the candidate has {name}: {hint}");
        (Verdict::Invalid, Code::InvalidRun, reason)
    } else if let Some((arm, values, runs)) = incomplete {
        let without = runs - values;
        let reason = format!(
            "{without} of {runs} runs of the {arm} had too few messages for {name}: measure longer, with -D"
        );
        (Verdict::Invalid, Code::InvalidRun, reason)
    } else if is_zero(&series.values_b) || series.values_a.iter().any(|values| is_zero(values)) {
        (Verdict::Inconclusive, Code::Zero, format!("{name} of a run is 0, and has no ratio"))
    } else if context.is_stored && longest == 0 && context.may_be_first {
        (Verdict::Inconclusive, Code::TooFewSittings, "no stored sitting has it yet".to_owned())
    } else if context.is_stored && longest == 0 {
        let reason = format!("no stored sitting has {name} of this point: record one");
        (Verdict::NotComparable, Code::TooFewSittings, reason)
    } else if longest.min(new) < FEWEST_RUNS {
        let needed = if context.is_stored { longest.max(FEWEST_RUNS) } else { rule.minimum_runs };
        let reason = format!("{longest} and {new} runs have {name}: it takes {needed} of each");
        (Verdict::Inconclusive, Code::TooFewRuns, reason)
    } else {
        return None;
    };
    let mut judgement = Judgement::without(rule, verdict, code, reason);
    judgement.advisory |= context.may_be_first && code == Code::TooFewSittings;
    describe(&mut judgement, &series.values_a.concat(), &series.values_b);
    Some(judgement)
}

/// The points that a candidate lacks, as a field that differs; none where it lacks none.
pub fn lacking(test: &str, points: Vec<Met>, allowed: &[String]) -> Option<Mismatch> {
    (!points.is_empty()).then(|| Mismatch {
        test: test.into(),
        field: POINTS.into(),
        end: None,
        a: points,
        b: Vec::new(),
        allowed: allowed.iter().any(|name| name == POINTS),
    })
}

/// Adds a field that differs, once for all the sittings that it differs from.
fn join(all: &mut Vec<Mismatch>, found: Mismatch) {
    let is_same =
        |one: &&mut Mismatch| (&one.test, &one.field, one.end) == (&found.test, &found.field, found.end);
    let Some(known) = all.iter_mut().find(is_same) else {
        all.push(found);
        return;
    };
    known.allowed &= found.allowed;
    for (known, found) in [(&mut known.a, found.a), (&mut known.b, found.b)] {
        for met in found {
            if !known.iter().any(|one| one.value == met.value) {
                known.push(met);
            }
        }
    }
}

impl Asked {
    pub(super) fn allows(&self, field: &Field) -> bool {
        self.allowed.iter().any(|name| *name == field.name)
    }

    fn judges(&self, transport: Transport) -> bool {
        self.transport.is_none_or(|judged| judged == transport)
    }
}

/// Each arm has one value: they were made to differ.
pub(super) fn is_of_the_arms(a: &[Met], b: &[Met]) -> bool {
    a.len() == 1 && b.len() == 1
}

/// What forbids a comparison.
pub(super) fn obstacle(beside: &Beside<'_>) -> Option<Obstacle> {
    let forbidding: Vec<_> = beside.mismatches.iter().filter(|found| !found.allowed).collect();
    (!forbidding.is_empty()).then(|| Obstacle::not_comparable(in_words(&forbidding)))
}

/// Fields that differ, and their values.
pub(super) fn in_words(mismatches: &[&Mismatch]) -> String {
    let line = |found: &&Mismatch| format!("{} {} vs {}", found.field, joined(&found.a), joined(&found.b));
    let mut named: Vec<String> = mismatches.iter().map(line).collect();
    named.dedup();
    named.join("; ")
}

pub(super) fn values(point: &PointRuns, metric: Quantity) -> Vec<f64> {
    let found = point.metrics.iter().find(|(name, _)| *name == metric);
    found.map_or_else(Vec::new, |(_, values)| values.clone())
}

pub(super) fn clock_ns(sides: &[&Runs]) -> f64 {
    sides.iter().flat_map(|runs| &runs.tests).map(|test| test.clock_ns).fold(0.0, f64::max)
}
