//! Runs of one side, gathered while they are read: by test, by point, a number a run for each metric. Nothing else of a
//! document is kept.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use super::fingerprint::{Facts, Field, Fingerprint};
use super::recorded::{Recorded, TEST_LABEL};
use crate::result::{Device, Point, Quantity, Side, Transport};

/// All runs of one side.
#[derive(Debug, Clone, Default)]
pub struct Runs {
    /// One entry for each set of options, in the order met.
    pub tests: Vec<TestRuns>,
    /// When the first of them began, and what was written on it; `None` without a run.
    pub first: Option<Begun>,
    by_identity: HashMap<(Option<String>, Facts), usize>,
    ids: HashSet<String>,
}

/// The beginning of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Begun {
    /// RFC 3339, UTC.
    pub started_at: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Runs of one test.
#[derive(Debug, Clone)]
pub struct TestRuns {
    /// What a suite calls it; `None` of runs that no gate made.
    pub name: Option<String>,
    /// The binary, such as `send_lat`.
    pub binary: String,
    /// What makes it this test.
    pub options: Facts,
    /// What its runs were measured on: each field with every value that was met.
    pub environment: Seen,
    /// The same of fields that are soft.
    pub soft: Seen,
    /// The file of the first of them.
    pub first_file: String,
    /// What was measured, by the id of a point, in the order met.
    pub points: Vec<PointRuns>,
    by_id: HashMap<String, usize>,
    /// An end used the emulated device.
    pub is_emulated: bool,
    /// An end was compiled without optimisation.
    pub is_unoptimised: bool,
    /// What a reading of the clock costs, in ns, the most that was met.
    pub clock_ns: f64,
}

/// One point of all runs of a test.
#[derive(Debug, Clone)]
pub struct PointRuns {
    /// Its name in every run.
    pub id: String,
    /// The path.
    pub transport: Transport,
    /// What was varied.
    pub point: Point,
    /// How many runs measured it.
    pub runs: usize,
    /// Its metrics: a number for each run that has it.
    pub metrics: Vec<(Quantity, Vec<f64>)>,
}

/// Each field and its values in the order met, of which there is one at least.
#[derive(Debug, Clone, Default)]
pub struct Seen(pub BTreeMap<Field, Vec<Met>>);

/// A value, and the file in which it was met first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Met {
    /// The value as text; `-` where it is not known.
    pub value: String,
    /// The file.
    pub file: String,
}

/// Values that were met, in one text.
pub fn joined(met: &[Met]) -> String {
    met.iter().map(|met| met.value.as_str()).collect::<Vec<_>>().join(", ")
}

impl Seen {
    fn add(&mut self, facts: Facts, file: &str) {
        for (field, value) in facts {
            let values = self.0.entry(field).or_default();
            if !values.iter().any(|met| met.value == value) {
                values.push(Met { value, file: file.into() });
            }
        }
    }
}

impl Runs {
    /// Adds a run. `file` names it to people.
    ///
    /// # Errors
    /// The run is there already, under another name: it would count twice.
    pub fn add(&mut self, recorded: &Recorded, file: &str) -> Result<(), String> {
        if !self.ids.insert(recorded.run_id.clone()) {
            return Err(format!("the run {} is there already, and would count twice", recorded.run_id));
        }
        let mut labels = recorded.labels.clone();
        let name = labels.remove(TEST_LABEL);
        let begun = Begun { started_at: recorded.started_at.clone(), labels };
        self.first = Some(self.first.take().map_or(begun.clone(), |first| first.min(begun)));
        let Fingerprint { options, environment, soft } = Fingerprint::of(recorded);
        let identity = (name, options);
        let index = match self.by_identity.get(&identity) {
            Some(&index) => index,
            None => {
                self.by_identity.insert(identity.clone(), self.tests.len());
                let (name, options) = identity;
                self.tests.push(TestRuns::new(name, &recorded.tool.binary, options, file));
                self.tests.len() - 1
            }
        };
        let test = &mut self.tests[index];
        test.environment.add(environment, file);
        test.soft.add(soft, file);
        test.add(recorded);
        Ok(())
    }

    /// The runs of each test apart, with its name among the others. What they share is known to each.
    pub fn into_tests(self) -> Vec<(String, Self)> {
        let names: Vec<_> = self.tests.iter().map(|test| test.name_among(&self.tests)).collect();
        let alone = |test: TestRuns| Self {
            by_identity: HashMap::from([((test.name.clone(), test.options.clone()), 0)]),
            tests: vec![test],
            first: self.first.clone(),
            ids: self.ids.clone(),
        };
        names.into_iter().zip(self.tests.into_iter().map(alone)).collect()
    }

    /// How many runs there are.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// The most runs that measured the same point.
    pub fn most_of_a_point(&self) -> usize {
        self.tests.iter().flat_map(|test| &test.points).map(|point| point.runs).max().unwrap_or(0)
    }

    /// How many of them the other side has, too.
    pub fn shared_with(&self, other: &Self) -> usize {
        self.ids.intersection(&other.ids).count()
    }
}

impl TestRuns {
    fn new(name: Option<String>, binary: &str, options: Facts, file: &str) -> Self {
        Self {
            name,
            binary: binary.into(),
            options,
            environment: Seen::default(),
            soft: Seen::default(),
            first_file: file.into(),
            points: Vec::new(),
            by_id: HashMap::new(),
            is_emulated: false,
            is_unoptimised: false,
            clock_ns: 0.0,
        }
    }

    fn add(&mut self, recorded: &Recorded) {
        for end in [Side::Client, Side::Server].into_iter().filter_map(|side| recorded.end(side)) {
            self.is_emulated |= end.device.as_ref().is_some_and(Device::is_emulated);
            self.is_unoptimised |= !end.process.optimised;
            let reading_ns = end.clock.and_then(|clock| clock.reading_ns);
            self.clock_ns = self.clock_ns.max(reading_ns.unwrap_or(0.0));
        }
        for row in &recorded.results {
            let index = *self.by_id.entry(row.id.clone()).or_insert(self.points.len());
            if index == self.points.len() {
                self.points.push(PointRuns {
                    id: row.id.clone(),
                    transport: row.transport,
                    point: row.point,
                    runs: 0,
                    metrics: Vec::new(),
                });
            }
            self.points[index].runs += 1;
            let metrics = &mut self.points[index].metrics;
            for (quantity, value) in row.values() {
                match metrics.iter_mut().find(|(known, _)| *known == quantity) {
                    Some((_, values)) => values.push(value),
                    None => metrics.push((quantity, vec![value])),
                }
            }
        }
    }

    /// What a suite calls it, or the binary, with the options in which its tests among `all` differ.
    pub fn name_among(&self, all: &[Self]) -> String {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let others: Vec<_> = all.iter().filter(|other| other.binary == self.binary).collect();
        let differing = self.options.iter().filter(|(field, value)| {
            others.iter().any(|other| other.option(&field.name) != Some(value.as_str()))
        });
        let options: Vec<_> = differing.map(|(field, value)| format!(" {} {value}", field.name)).collect();
        format!("{}{}", self.binary, options.concat())
    }

    /// The value of an option.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(field, _)| field.name == name).map(|(_, value)| value.as_str())
    }
}
