//! Gates as the rule judges them, with names that mean something to every format.

use std::collections::BTreeMap;

use crate::error::{Error, Step};
use crate::gate::baseline::judge_sitting;
use crate::gate::compare::{Better, Mismatch};
use crate::gate::document::{
    ArmRecord, Form, Gate, LimitOutcome, SelfTest, SelfTestSeries, Series, Sitting, TestEntry,
};
use crate::gate::order::{Arm, order};
use crate::gate::sample::Met;
use crate::gate::verdict::{Code, Judgement, Verdict};
use crate::gate::{judge, overall};
use crate::result::{
    Direction, LimitResult, LimitVerdict, Point, Quantity, Status, Transport, Wait, timestamp,
};

/// A name that ends, quotes or commands in some format.
pub const HOSTILE: &str = "a\"|<b>&lt;'\n\r\t\u{1b}[31m\u{0}%0A%25%,:;`*_[x](y)\\$~#é\u{fffe}\u{2028}]]>";

/// Runs that scatter by a percent.
const SCATTER: [f64; 15] =
    [1.0, 1.004, 0.997, 1.009, 0.991, 1.002, 0.999, 1.006, 0.994, 1.003, 1.001, 0.998, 1.007, 0.993, 1.005];

/// Fifteen runs about a median; `width` spreads them further.
pub fn runs(median: f64, width: f64) -> Vec<f64> {
    SCATTER.iter().map(|scatter| median * (1.0 + (scatter - 1.0) * width)).collect()
}

pub fn point(size_bytes: u64) -> Point {
    Point {
        size_bytes,
        qps: 1,
        depth: 1,
        threads: 1,
        wait: Wait::Busy,
        direction: Direction::Unidirectional,
        offered_per_s: None,
    }
}

/// A series of a judgement that was made of these values.
pub fn series(test: &str, point: Point, judgement: Judgement, a: Vec<Vec<f64>>, b: Vec<f64>) -> Series {
    let mut series = Series {
        test: test.into(),
        id: point.id(Transport::Rdma),
        transport: Transport::Rdma,
        point,
        unit: judgement.metric.unit(),
        better: Better::of(judgement.metric),
        judgement,
        values_a: a,
        values_b: b,
        message: String::new(),
    };
    series.message = series.judgement.line(&series.title());
    series
}

/// Baseline and candidate in turns, the candidate otherwise by a factor.
pub fn in_turns(test: &str, size: u64, metric: Quantity, median: f64, factor: f64, width: f64) -> Series {
    let (a, b) = (runs(median, width), runs(median * factor, width));
    let found = judge(&metric.rule(10.0).unwrap(), &a, &b, true).unwrap();
    series(test, point(size), found, vec![a], b)
}

pub fn test(name: &str, binary: &str) -> TestEntry {
    let words = vec![binary.to_owned(), "--loopback".into(), HOSTILE.into()];
    TestEntry {
        name: name.into(),
        binary: binary.into(),
        commands: BTreeMap::from([("A".into(), words.clone()), ("B".into(), words)]),
        runs_a: 15,
        runs_b: 15,
        fingerprint: BTreeMap::from([
            ("kernel".into(), "6.1.0".into()),
            ("client.device".into(), HOSTILE.into()),
        ]),
        error: None,
    }
}

fn arm(arm: Arm, name: &str) -> ArmRecord {
    ArmRecord {
        arm,
        name: name.into(),
        environment: BTreeMap::from([("RDMAV_FORK_SAFE".into(), HOSTILE.into())]),
        programs: (arm == Arm::A).then(|| "/opt/before".into()),
        options: vec!["--no-tcp".into()],
        busy_cores: Some(1.25),
        stolen_share: (arm == Arm::B).then_some(0.001),
    }
}

pub fn limit(test: &str, limit: &str, verdict: LimitVerdict) -> LimitOutcome {
    let was_judged = verdict != LimitVerdict::NotEvaluated;
    LimitOutcome {
        test: test.into(),
        runs: 6,
        result: LimitResult {
            limit: limit.into(),
            point: was_judged.then(|| point(64).id(Transport::Rdma)),
            unit: "ns".into(),
            value: was_judged.then_some(6200.0),
            bound: was_judged.then_some(if verdict == LimitVerdict::Pass { 7000.0 } else { 5000.0 }),
            verdict,
            reason: (!was_judged).then(|| format!("no TCP path {HOSTILE}")),
            by_percent: was_judged.then_some(if verdict == LimitVerdict::Pass { 11.4 } else { 24.0 }),
        },
    }
}

fn begun(form: Form) -> Gate {
    let mut gate = Gate::new(form, vec!["verbmark".into(), "gate".into(), HOSTILE.into()]);
    gate.labels = BTreeMap::from([("commit".into(), HOSTILE.into()), (HOSTILE.into(), "x".into())]);
    gate.duration_s = 1234.5678;
    gate.note("emulated", HOSTILE);
    gate
}

/// Every verdict there is, limits of every outcome, a test that was not measured to its end, and fields that differ.
pub fn turns() -> Gate {
    let mut gate = begun(Form::Turns);
    gate.suite = Some(HOSTILE.into());
    gate.arms = vec![arm(Arm::A, "before"), arm(Arm::B, HOSTILE)];
    gate.seed = Some(7);
    gate.order = order(7, 15);
    let error = Error::failed(Step::Measure, HOSTILE).with_remedy("look at the cable");
    let spoilt = TestEntry { runs_b: 2, error: Some(error), ..test("write_lat", "write_lat") };
    gate.tests = vec![test("send_lat", "send_lat"), test(HOSTILE, "send_bw"), spoilt];
    let rule = |metric: Quantity| metric.rule(10.0).unwrap();
    let without = |metric, verdict, code| Judgement::without(&rule(metric), verdict, code, HOSTILE);
    let mut deep = in_turns(HOSTILE, 65536, Quantity::Bandwidth, 48.9e9, 1.3, 1.0);
    deep.point = Point { depth: 128, wait: Wait::Events, offered_per_s: Some(1000.0), ..point(65536) };
    deep.id = deep.point.id(Transport::Rdma);
    let few = runs(2310.0, 1.0)[..3].to_vec();
    let too_few = judge(&rule(Quantity::P50), &few, &few, true).unwrap();
    gate.series = vec![
        in_turns("send_lat", 64, Quantity::P50, 2310.0, 1.0, 1.0),
        in_turns("send_lat", 64, Quantity::P99, 4000.0, 1.5, 1.0),
        in_turns("send_lat", 64, Quantity::P99_9, 9000.0, 2.0, 1.0),
        in_turns("send_lat", 4096, Quantity::P50, 3000.0, 1.05, 20.0),
        series("send_lat", point(8192), too_few, vec![few.clone()], few),
        deep,
        in_turns(HOSTILE, 65536, Quantity::Rate, 746e3, 0.8, 1.0),
        in_turns(HOSTILE, 65536, Quantity::CpuClient, 410.0, 1.0, 1.0),
        series(
            HOSTILE,
            point(1 << 20),
            without(Quantity::Bandwidth, Verdict::NotComparable, Code::Mismatch),
            vec![Vec::new()],
            Vec::new(),
        ),
        series(
            HOSTILE,
            point(1 << 20),
            without(Quantity::Rate, Verdict::Invalid, Code::InvalidRun),
            vec![Vec::new()],
            Vec::new(),
        ),
    ];
    gate.limits = vec![
        limit("send_lat", "p99:max=7us", LimitVerdict::Pass),
        limit("send_lat", "p99:max=5us", LimitVerdict::Fail),
        limit(HOSTILE, "tcp/rdma.p50:min=3", LimitVerdict::NotEvaluated),
    ];
    let met = |value: &str| vec![Met { value: value.into(), file: "before/run0.json".into() }];
    let differs = |field: &str, end, allowed| Mismatch {
        test: "send_lat".into(),
        field: field.into(),
        end,
        a: met("mlx5_0"),
        b: met(HOSTILE),
        allowed,
    };
    gate.mismatches = vec![differs("device", Some("client"), true), differs("same_host", None, true)];
    gate.differences = vec![differs("port", Some("server"), true)];
    gate.verdict = overall(&gate.series.iter().map(|series| series.judgement.clone()).collect::<Vec<_>>());
    gate.exit_status = gate.verdict.exit_status(false);
    gate
}

/// Nine stored sittings, of which the third lacks one metric, five lack another, and the last has none.
pub fn sittings() -> Gate {
    const SITTINGS: usize = 10;
    let mut gate = begun(Form::Sittings);
    gate.arms = vec![arm(Arm::B, HOSTILE)];
    gate.tests = vec![test("send_lat", "send_lat"), test(HOSTILE, "send_bw")];
    let day = std::time::Duration::from_secs(24 * 3600);
    let now = std::time::SystemTime::now();
    gate.sittings = (0..SITTINGS)
        .map(|index| Sitting {
            name: if index == 1 { HOSTILE.into() } else { format!("baseline/{index}") },
            started_at: timestamp(now - day * (SITTINGS - index) as u32),
            labels: BTreeMap::from([("commit".into(), format!("c0ffee{index}"))]),
            runs: 15,
        })
        .collect();
    let judged = |test: &str, metric: Quantity, median: f64, factor: f64, lacks: &[usize]| {
        let of = |index: usize| runs(median * SCATTER[index], 1.0);
        let a: Vec<_> =
            (0..SITTINGS).map(|index| if lacks.contains(&index) { Vec::new() } else { of(index) }).collect();
        let b = runs(median * factor, 1.0);
        let stored: Vec<_> = a.iter().filter(|runs| !runs.is_empty()).cloned().collect();
        let found = judge_sitting(&metric.rule(10.0).unwrap(), &stored, &b).unwrap();
        series(test, point(64), found, a, b)
    };
    gate.series = vec![
        judged("send_lat", Quantity::P50, 2310.0, 1.0, &[9]),
        judged("send_lat", Quantity::P99, 4000.0, 1.5, &[2, 9]),
        judged("send_lat", Quantity::P99_9, 9000.0, 1.0, &[0, 1, 3, 4, 5, 9]),
        judged(HOSTILE, Quantity::Bandwidth, 48.9e9, 0.5, &[9]),
    ];
    gate.verdict = overall(&gate.series.iter().map(|series| series.judgement.clone()).collect::<Vec<_>>());
    gate.exit_status = gate.verdict.exit_status(false);
    gate
}

/// Limits alone, which all hold.
pub fn limits() -> Gate {
    let mut gate = begun(Form::Limits);
    gate.arms = vec![arm(Arm::B, HOSTILE)];
    gate.tests = vec![test("send_lat", "send_lat")];
    gate.limits = vec![limit("send_lat", "p99:max=7us", LimitVerdict::Pass)];
    gate.verdict = Verdict::Pass;
    gate
}

/// A candidate against itself.
pub fn self_test() -> Gate {
    let mut gate = begun(Form::SelfTest);
    gate.arms = vec![arm(Arm::A, HOSTILE), arm(Arm::B, HOSTILE)];
    gate.seed = Some(0);
    gate.tests = vec![test(HOSTILE, "send_lat")];
    let of = |metric, ratios: Vec<f64>| SelfTestSeries {
        test: HOSTILE.into(),
        id: point(64).id(Transport::Rdma),
        metric,
        verdicts: BTreeMap::from([(Verdict::Pass, 4), (Verdict::Inconclusive, 1)]),
        cv: (!ratios.is_empty()).then_some(0.013),
        tolerance: (!ratios.is_empty()).then_some(0.031),
        must_detect: (!ratios.is_empty()).then_some(0.12),
        suggested_tolerance: (!ratios.is_empty()).then_some(0.04),
        suggested_must_detect: (!ratios.is_empty()).then_some(0.12),
        ratios,
    };
    let few = judge(&Quantity::P99.rule(10.0).unwrap(), &[4e3; 3], &[4e3; 3], true).unwrap();
    gate.series = vec![
        in_turns(HOSTILE, 64, Quantity::P50, 2310.0, 1.0, 1.0),
        series(HOSTILE, point(64), few, vec![vec![4e3; 3]], vec![4e3; 3]),
    ];
    gate.self_test = Some(SelfTest {
        rounds: 5,
        series: vec![of(Quantity::P50, vec![1.01, 0.97, 1.0, 1.02, 0.99]), of(Quantity::P99, Vec::new())],
    });
    gate.verdict = Verdict::Inconclusive;
    gate
}

/// A machine that must not judge: a candidate that regressed against itself in one round of five.
pub fn self_test_that_failed() -> Gate {
    let mut gate = self_test();
    gate.series[0] = in_turns(HOSTILE, 64, Quantity::P50, 2310.0, 1.2, 1.0);
    if let Some(found) = &mut gate.self_test {
        found.series[0].verdicts = BTreeMap::from([(Verdict::Pass, 4), (Verdict::Regression, 1)]);
    }
    gate.verdict = Verdict::Regression;
    gate.exit_status = 1;
    gate
}

/// Too few sittings to decide, which a strict gate does not let pass.
pub fn advisory() -> Gate {
    let mut gate = sittings();
    gate.sittings.truncate(3);
    let stored: Vec<_> = (0..3).map(|index| runs(2310.0 * SCATTER[index], 1.0)).collect();
    let new = runs(9240.0, 1.0);
    let found = judge_sitting(&Quantity::P50.rule(10.0).unwrap(), &stored, &new).unwrap();
    gate.series = vec![series("send_lat", point(64), found, stored, new)];
    gate.verdict = overall(gate.series.iter().map(|series| &series.judgement));
    gate.exit_status = gate.verdict.exit_status(true);
    gate
}

/// One that came to its end, with a test that must not be trusted.
pub fn invalid() -> Gate {
    let mut gate = turns();
    gate.series.clear();
    gate.limits.clear();
    (gate.status, gate.verdict, gate.exit_status) = (Status::Invalid, Verdict::Invalid, 5);
    gate
}

/// One that a signal ended before anything was judged.
pub fn interrupted() -> Gate {
    let mut gate = begun(Form::Turns);
    gate.fail(Error::interrupted(Step::Measure));
    gate.exit_status = 130;
    gate
}

/// One that broke off before anything was judged.
pub fn failed() -> Gate {
    let mut gate = begun(Form::Turns);
    let error = Error::failed(Step::Connect, HOSTILE).with_remedy("start the server, and look at its port");
    gate.tests.iter_mut().for_each(|test| test.error = Some(error.clone()));
    gate.fail(error);
    gate.exit_status = 5;
    gate
}

/// All of them, by name.
pub fn all() -> [(&'static str, Gate); 9] {
    [
        ("turns", turns()),
        ("sittings", sittings()),
        ("limits", limits()),
        ("self_test", self_test()),
        ("self_test_that_failed", self_test_that_failed()),
        ("advisory", advisory()),
        ("invalid", invalid()),
        ("interrupted", interrupted()),
        ("failed", failed()),
    ]
}
