//! A new sitting laid beside stored ones: which of them it is held to, which are left out, and what it lacks.

use super::compare::{Beside, Pairing, Uncompared, beside};
use super::fingerprint::Facts;
use super::sample::{Runs, TestRuns};
use super::series::{Asked, Context, Gathered, Obstacle, clock_ns, in_words, obstacle, values};

/// Stored sittings that a test of the candidate is not held to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The test.
    pub test: String,
    /// Which of the stored sittings.
    pub sittings: Vec<usize>,
    /// In what they differ.
    pub reason: String,
}

impl Gathered {
    /// Adds a test of a sitting that is held to stored ones. Those that were not measured alike are left out; without any
    /// other, the test is not comparable. Those that differ in what may differ take part only as long as there is no other.
    pub fn against_sittings(&mut self, asked: &Asked, stored: &[&Runs], new: &Runs) {
        self.observe(new);
        let all = stored
            .iter()
            .map(|sitting| beside(sitting, new, Pairing::Names, |field, _, _| asked.allows(field)));
        let all: Vec<_> = all.collect();
        let is_alike = |beside: &Beside<'_>| beside.mismatches.is_empty() && !beside.points.is_empty();
        let is_comparable = |beside: &Beside<'_>| beside.is_comparable() && !beside.points.is_empty();
        let has_alike = all.iter().any(is_alike);
        let is_usable = |beside: &Beside<'_>| is_alike(beside) || !has_alike && is_comparable(beside);
        let has_some = all.iter().any(is_usable);
        let obstacle = match all.iter().find_map(obstacle) {
            _ if has_some => None,
            None if asked.may_be_first => None,
            Some(unlike) => Some(unlike),
            None => Some(Obstacle::not_comparable("no stored sitting has this test: record one")),
        };
        let context = Context {
            clock_ns: clock_ns(&[new]),
            is_advisory: all.iter().any(|beside| is_usable(beside) && !is_alike(beside)),
            is_stored: true,
            may_be_first: asked.may_be_first,
            obstacle,
            ..Context::default()
        };
        for point in new.tests.iter().flat_map(|test| &test.points) {
            // One list a sitting, empty where it has none of this.
            let of_sitting = |beside: &Beside<'_>, metric| {
                let mut shared = beside.points.iter().filter(|_| is_usable(beside));
                let shared = shared.find(|shared| shared.b.id == point.id);
                let values = shared.map_or_else(Vec::new, |shared| values(shared.a, metric));
                // A cost of 0 has no ratio: such a sitting has none.
                if values.iter().all(|value| *value > 0.0) { values } else { Vec::new() }
            };
            let of_a = |metric| all.iter().map(|beside| of_sitting(beside, metric)).collect();
            self.add(asked, point, of_a, &context);
        }
        if !stored.is_empty() {
            self.uncompared.extend(unknown(&asked.test, &all, new));
        }
        let usable: Vec<_> = all.iter().map(is_usable).collect();
        for (sitting, (mut beside, is_usable)) in all.into_iter().zip(usable).enumerate() {
            beside.uncompared.clear();
            let differing: Vec<_> = beside.mismatches.iter().collect();
            match has_some && !is_usable && !differing.is_empty() {
                true => self.leave_out(&asked.test, sitting, in_words(&differing)),
                false => self.take_over(asked, beside),
            }
        }
    }

    fn leave_out(&mut self, test: &str, sitting: usize, reason: String) {
        match self.left_out.iter_mut().find(|known| known.test == test && known.reason == reason) {
            Some(known) => known.sittings.push(sitting),
            None => self.left_out.push(LeftOut { test: test.into(), sittings: vec![sitting], reason }),
        }
    }
}

/// What of a test no stored sitting has.
fn unknown(test: &str, all: &[Beside<'_>], new: &Runs) -> Vec<Uncompared> {
    let is_known = |id: &str| all.iter().any(|beside| beside.points.iter().any(|shared| shared.b.id == id));
    let points = new.tests.iter().flat_map(|test| &test.points);
    let (known, unknown): (Vec<_>, Vec<_>) = points.partition(|point| is_known(&point.id));
    let lone = |id| Uncompared { test: test.into(), id, in_a: false };
    match known.is_empty() {
        true => vec![lone(None)],
        false => unknown.into_iter().map(|point| lone(Some(point.id.clone()))).collect(),
    }
}

/// What the latest sitting has that a new one lacks. A test that is there with other options is not lost: that is another
/// finding.
pub fn lost(latest: &Runs, new: &[&Runs]) -> Vec<Uncompared> {
    let all: Vec<&TestRuns> = new.iter().flat_map(|runs| &runs.tests).collect();
    let is_same = |one: &TestRuns, other: &TestRuns| match (&one.name, &other.name) {
        (Some(one), Some(other)) => one == other,
        _ => kind(&one.options) == kind(&other.options),
    };
    let mut lost = Vec::new();
    for test in &latest.tests {
        let mut lone = |id| lost.push(Uncompared { test: test.name_among(&latest.tests), id, in_a: true });
        let same: Vec<_> = all.iter().filter(|other| is_same(test, other)).collect();
        if same.is_empty() {
            lone(None);
            continue;
        }
        let has = |id: &str| same.iter().any(|other| other.points.iter().any(|point| point.id == id));
        test.points.iter().filter(|point| !has(&point.id)).for_each(|point| lone(Some(point.id.clone())));
    }
    lost
}

/// What of the options makes it another binary.
fn kind(options: &Facts) -> Vec<&str> {
    options
        .iter()
        .filter(|(field, _)| ["op", "shape"].contains(&field.name.as_ref()))
        .map(|(_, value)| value.as_str())
        .collect()
}
