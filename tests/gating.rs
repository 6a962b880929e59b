//! How often the rule errs, on machines that are known because they are simulated. Seeds are fixed. `docs/gating.md` has the
//! table; `cargo test --test gating -- --ignored --nocapture table_of_the_rule` prints it again.

use verbmark::gate::family::confidence;
use verbmark::gate::rule::{FIRST_LOOK, LAST_LOOK};
use verbmark::gate::{
    Arm, Judgement, Rule, Verdict, judge, judge_sitting, order, overall, rank,
    shift::{median, shift},
};
use verbmark::result::Quantity;

// Beside the unit tests, which need some of it, too.
#[path = "../src/gate/tests/random.rs"]
mod random;

use random::Random;

const TRIALS: usize = 20_000;

/// Run-to-run scatter, as a share.
const SCATTER: [f64; 5] = [0.01, 0.02, 0.03, 0.05, 0.10];

/// What a machine does to the logarithm of a run's value, in units of its scatter: normal noise, one run in twenty slow by
/// four on average, and a drift that goes 0.3 either way from run to run.
struct Machine {
    random: Random,
    scatter: f64,
    drift: f64,
    /// Of the drift from run to run: at random, and steadily.
    step: f64,
    trend: f64,
    /// Share of slow runs.
    slow: f64,
}

impl Machine {
    fn new(seed: u64, scatter: f64) -> Self {
        Self { random: Random(seed), scatter, drift: 0.0, step: 0.3, trend: 0.0, slow: 0.05 }
    }

    /// Noise alone, for which an interval is exact.
    fn quiet(seed: u64, scatter: f64) -> Self {
        Self { step: 0.0, slow: 0.0, ..Self::new(seed, scatter) }
    }

    /// The logarithm of a run's value, around 0.
    fn run(&mut self) -> f64 {
        self.drift += self.trend + self.step * self.random.normal();
        let slow =
            if self.random.uniform() < self.slow { -4.0 * (1.0 - self.random.uniform()).ln() } else { 0.0 };
        self.scatter * (self.random.normal() + self.drift + slow)
    }

    /// Both arms of a sitting in turns, around 10 us, the candidate longer by `factor`.
    fn sitting(&mut self, pairs: usize, factor: f64) -> [Vec<f64>; 2] {
        self.drift = 0.0;
        let mut arms = [Vec::new(), Vec::new()];
        for arm in order((self.random.uniform() * 1e9) as u64, pairs) {
            let value = 10_000.0 * self.run().exp();
            match arm {
                Arm::A => arms[0].push(value),
                Arm::B => arms[1].push(value * factor),
            }
        }
        arms
    }
}

fn p50() -> Rule {
    Quantity::P50.rule(10.0).unwrap()
}

/// Six pairs, and fifteen if those do not end it.
fn looked_at_twice(rule: &Rule, [a, b]: &[Vec<f64>; 2]) -> Judgement {
    let first = judge(rule, &a[..FIRST_LOOK], &b[..FIRST_LOOK], false).unwrap();
    if first.verdict == Verdict::Inconclusive { judge(rule, a, b, true).unwrap() } else { first }
}

/// What became of a simulated gate.
#[derive(Default)]
struct Tally {
    trials: usize,
    improved: usize,
    pass: usize,
    inconclusive: usize,
    regression: usize,
    runs: usize,
}

impl Tally {
    fn of(trials: usize, scatter: f64, factor: f64) -> Self {
        Self::on(trials, &mut Machine::new((scatter * 1e4) as u64 + (factor * 1e8) as u64, scatter), factor)
    }

    fn on(trials: usize, machine: &mut Machine, factor: f64) -> Self {
        let mut tally = Tally { trials, ..Tally::default() };
        for _ in 0..trials {
            tally.add(&looked_at_twice(&p50(), &machine.sitting(LAST_LOOK, factor)));
        }
        tally
    }

    fn add(&mut self, found: &Judgement) {
        self.runs += found.n_a + found.n_b;
        *match found.verdict {
            Verdict::Improved => &mut self.improved,
            Verdict::Pass => &mut self.pass,
            Verdict::Regression => &mut self.regression,
            _ => &mut self.inconclusive,
        } += 1;
    }

    /// In percent: pass, inconclusive, regression.
    fn shown(&self) -> String {
        let shares = [self.pass + self.improved, self.inconclusive, self.regression];
        shares.map(|count| format!("{:.1}", 100.0 * self.share(count))).join(" / ")
    }

    fn share(&self, count: usize) -> f64 {
        count as f64 / self.trials as f64
    }
}

#[test]
fn no_change_is_called_a_regression_in_at_most_3_of_1000() {
    for scatter in SCATTER {
        let tally = Tally::of(TRIALS, scatter, 1.0);
        assert!(tally.share(tally.regression) <= 0.003, "{scatter}: {}", tally.regression);
        assert!(scatter > 0.03 || tally.share(tally.pass) >= 0.99, "{scatter}: {}", tally.pass);
    }
    // A machine that slows down steadily, by nine times its scatter from the first run to the last.
    let mut machine = Machine { trend: 0.3, ..Machine::new(1, 0.02) };
    let tally = Tally::on(TRIALS, &mut machine, 1.0);
    assert!(tally.share(tally.regression) <= 0.003, "{}", tally.regression);
}

#[test]
fn a_change_at_the_tolerance_is_called_a_regression_in_at_most_5_of_1000() {
    for scatter in SCATTER {
        let tally = Tally::of(TRIALS, scatter, 1.02);
        assert!(tally.share(tally.regression) <= 0.005, "{scatter}: {}", tally.regression);
    }
}

#[test]
fn what_must_be_detected_passes_in_at_most_1_of_100() {
    for scatter in SCATTER {
        let tally = Tally::of(TRIALS, scatter, 1.10);
        assert!(tally.share(tally.pass + tally.improved) <= 0.01, "{scatter}: {}", tally.pass);
    }
}

#[test]
fn a_regression_is_found_where_the_scatter_allows_it() {
    for (scatter, factor, found) in
        [(0.01, 1.1, 0.99), (0.02, 1.1, 0.99), (0.05, 1.2, 0.99), (0.1, 1.3, 0.95)]
    {
        let tally = Tally::of(TRIALS / 4, scatter, factor);
        assert!(tally.share(tally.regression) >= found, "{scatter} {factor}: {}", tally.regression);
    }
}

#[test]
fn an_improvement_is_called_one_and_never_a_regression() {
    let tally = Tally::of(TRIALS / 4, 0.02, 0.9);
    assert!(tally.share(tally.improved) >= 0.95, "{}", tally.improved);
    assert_eq!(tally.regression, 0);
}

/// Runs of a metric that owes half of its variance to what the metrics of a run share.
fn correlated(shared: &[Vec<f64>; 2], own: &[Vec<f64>; 2]) -> [Vec<f64>; 2] {
    [0, 1].map(|arm| {
        let both = shared[arm].iter().zip(&own[arm]);
        both.map(|(a, b)| ((a.ln() + b.ln()) / 2_f64.sqrt()).exp()).collect()
    })
}

/// The rule as one of 24 metrics has it.
fn among_24() -> Rule {
    Rule { confidence: confidence(24), ..p50() }
}

/// The verdict of a job of 24 metrics that have not changed.
fn clean_job(machine: &mut Machine) -> Verdict {
    let shared = machine.sitting(LAST_LOOK, 1.0);
    let judged = |_| {
        let [a, b] = correlated(&shared, &machine.sitting(LAST_LOOK, 1.0));
        judge(&among_24(), &a, &b, true).unwrap()
    };
    overall(&(0..24).map(judged).collect::<Vec<_>>())
}

#[test]
fn a_clean_job_of_24_correlated_metrics_is_red_in_at_most_1_of_100() {
    const JOBS: usize = 2000;
    for scatter in [0.03, 0.10] {
        let mut machine = Machine::new(24, scatter);
        let red = (0..JOBS).filter(|_| clean_job(&mut machine) == Verdict::Regression).count();
        assert!(red * 100 <= JOBS, "{scatter}: {red} of {JOBS}");
    }
}

#[test]
fn a_regression_is_found_among_24_metrics_too() {
    for (scatter, factor, found) in [(0.02, 1.1, 0.99), (0.05, 1.2, 0.99), (0.1, 1.3, 0.90)] {
        let mut machine = Machine::new(25, scatter);
        let mut tally = Tally { trials: TRIALS / 10, ..Tally::default() };
        for _ in 0..tally.trials {
            tally.add(&looked_at_twice(&among_24(), &machine.sitting(LAST_LOOK, factor)));
        }
        assert!(tally.share(tally.regression) >= found, "{scatter} {factor}: {}", tally.regression);
    }
}

/// To the buckets of a histogram with three digits: 1024 to 2048 in each power of two.
fn in_a_bucket(value: f64) -> f64 {
    let unit = 2_f64.powf(value.log2().floor() - 10.0);
    (value / unit).floor() * unit
}

#[test]
fn values_that_tie_are_judged_like_others() {
    for (scatter, factor, verdict) in [
        (0.0005, 1.0, Verdict::Pass),
        (0.0005, 1.10, Verdict::Regression),
        (0.0005, 0.9, Verdict::Improved),
        (0.01, 1.10, Verdict::Regression),
    ] {
        let mut machine = Machine::new(5, scatter);
        let mut tally = Tally { trials: TRIALS / 10, ..Tally::default() };
        let mut ties = 0;
        for _ in 0..tally.trials {
            let arms =
                machine.sitting(LAST_LOOK, factor).map(|arm| arm.into_iter().map(in_a_bucket).collect());
            let arms: [Vec<f64>; 2] = arms;
            ties += usize::from(arms[0].iter().enumerate().any(|(i, a)| arms[0][..i].contains(a)));
            tally.add(&looked_at_twice(&p50(), &arms));
        }
        assert!(ties * 2 > tally.trials, "{ties} of {} have a tie", tally.trials);
        let found = match verdict {
            Verdict::Pass => tally.pass,
            Verdict::Regression => tally.regression,
            _ => tally.improved,
        };
        assert!(tally.share(found) >= 0.99, "{scatter} {factor}: {found} of {}", tally.trials);
        assert!(factor > 1.0 || tally.regression == 0);
    }
}

/// Of intervals around a candidate longer by 7 %, the share that hold it.
fn coverage(machine: &mut Machine, pairs: usize, rounded: bool) -> f64 {
    let held = (0..TRIALS).filter(|_| {
        let arms = machine.sitting(pairs, 1.07).map(|arm| {
            arm.iter().map(|&value| if rounded { in_a_bucket(value) } else { value }.ln()).collect::<Vec<_>>()
        });
        let (lower, upper) = shift(&arms[0], &arms[1], 0.99).bounds.unwrap();
        (lower..=upper).contains(&1.07_f64.ln())
    });
    held.count() as f64 / TRIALS as f64
}

#[test]
fn an_interval_of_99_percent_holds_the_truth_in_99_of_100() {
    for pairs in [FIRST_LOOK, 10, LAST_LOOK] {
        let quiet = coverage(&mut Machine::quiet(9, 0.02), pairs, false);
        assert!((0.985..=0.995).contains(&quiet), "{pairs} pairs: {quiet}");
        let slow = coverage(&mut Machine { slow: 0.05, ..Machine::quiet(9, 0.02) }, pairs, true);
        assert!((0.985..=0.995).contains(&slow), "{pairs} pairs with slow runs, in buckets: {slow}");
        // Runs in turns share the drift, which the interval does not know: it holds the truth more often.
        let drifting = coverage(&mut Machine::new(9, 0.02), pairs, false);
        assert!(drifting >= 0.985, "{pairs} pairs with a drift: {drifting}");
    }
}

#[test]
fn the_smallest_detectable_shift_is_found_as_often_as_it_says() {
    for scatter in [0.02, 0.05] {
        let mut machine = Machine::new(11, scatter);
        let judged = |machine: &mut Machine, factor| {
            let [a, b] = machine.sitting(LAST_LOOK, factor);
            judge(&p50(), &a, &b, true).unwrap()
        };
        let mean = (0..1000).map(|_| judged(&mut machine, 1.0).mde.unwrap()).sum::<f64>() / 1000.0;
        let found =
            (0..2000).filter(|_| judged(&mut machine, 1.0 + mean).verdict == Verdict::Regression).count();
        assert!((1800..=1990).contains(&found), "{scatter}: {found} of 2000 at {mean}");
    }
}

/// Sittings of a machine that is otherwise in each, by as much as it scatters within one.
fn sittings(machine: &mut Machine, count: usize, runs: usize) -> Vec<Vec<f64>> {
    (0..count)
        .map(|_| {
            let otherwise = (machine.scatter * machine.random.normal()).exp();
            machine.drift = 0.0;
            (0..runs).map(|_| 10_000.0 * otherwise * machine.run().exp()).collect()
        })
        .collect()
}

#[test]
fn one_stored_sitting_alarms_for_nothing_so_that_its_verdict_is_advisory() {
    let mut alarms = Vec::new();
    for runs in [FIRST_LOOK, 10, LAST_LOOK] {
        let mut machine = Machine::new(8, 0.05);
        let (mut significant, mut regressions) = (0, 0);
        for _ in 0..2000 {
            let all = sittings(&mut machine, 2, runs);
            significant += usize::from(slower(&all[0], &all[1]));
            let found = judge_sitting(&p50(), &all[..1], &all[1]).unwrap();
            assert!(found.advisory);
            regressions += usize::from(found.verdict == Verdict::Regression);
        }
        assert!(significant > 200 && regressions > 100, "{runs}: {significant}, {regressions} of 2000");
        alarms.push((significant, regressions));
    }
    assert!(alarms.is_sorted(), "more runs of one sitting make the mistake surer: {alarms:?}");
}

#[test]
fn stored_sittings_alarm_for_nothing_in_at_most_5_of_1000() {
    for count in [2, 3, 8, 20] {
        let mut machine = Machine::new(80 + count as u64, 0.05);
        let mut tally = Tally { trials: TRIALS / 4, ..Tally::default() };
        for _ in 0..tally.trials {
            let all = sittings(&mut machine, count + 1, FIRST_LOOK);
            let found = judge_sitting(&p50(), &all[..count], &all[count]).unwrap();
            assert_eq!(found.advisory, count < 8);
            tally.add(&found);
        }
        assert!(tally.share(tally.regression) <= 0.005, "{count} sittings: {}", tally.regression);
    }
}

/// Prints the tables of `docs/gating.md`.
#[test]
#[ignore = "prints"]
fn table_of_the_rule() {
    println!(
        "pass / inconclusive / regression, %, of the rule with two looks; then its runs without a change"
    );
    for scatter in SCATTER {
        let tallies =
            [1.0, 1.02, 1.05, 1.10, 1.15, 1.20, 1.30].map(|factor| Tally::of(TRIALS, scatter, factor));
        let runs = tallies[0].runs as f64 / TRIALS as f64;
        println!(
            "| {:.0} % | {} | {runs:.1} |",
            100.0 * scatter,
            tallies.map(|tally| tally.shown()).join(" | ")
        );
    }
    println!("the same of stored sittings");
    for scatter in SCATTER {
        let cells = [(8, 1.0), (8, 1.1), (8, 1.2), (20, 1.0), (20, 1.1), (20, 1.2)].map(|(count, factor)| {
            let mut machine = Machine::new(90, scatter);
            let mut tally = Tally { trials: TRIALS / 4, ..Tally::default() };
            for _ in 0..tally.trials {
                let mut all = sittings(&mut machine, count + 1, FIRST_LOOK);
                all[count].iter_mut().for_each(|value| *value *= factor);
                tally.add(&judge_sitting(&p50(), &all[..count], &all[count]).unwrap());
            }
            tally.shown()
        });
        println!("| {:.0} % | {} |", 100.0 * scatter, cells.join(" | "));
    }
    println!("coverage of 99 % at 6, 10, 15 pairs, %");
    for (name, machine) in [
        ("noise alone", Machine::quiet(9, 0.02)),
        ("slow runs", Machine { slow: 0.05, ..Machine::quiet(9, 0.02) }),
        ("slow runs, drift", Machine::new(9, 0.02)),
    ] {
        let mut machine = machine;
        println!(
            "| {name} | {:.2?} |",
            [6, 10, 15].map(|pairs| 100.0 * coverage(&mut machine, pairs, false))
        );
    }
    println!("false alarms of other rules, %");
    for (name, alarm) in ALARMS {
        let shares = [0.01, 0.02, 0.05, 0.10].map(|scatter| {
            let mut machine = Machine::new(60, scatter);
            let alarms = (0..TRIALS / 4).filter(|_| alarm(&mut machine)).count();
            format!("{:.1}", 100.0 * alarms as f64 / (TRIALS / 4) as f64)
        });
        println!("| {name} | {} |", shares.join(" | "));
    }
}

/// Whether a rule that is often used alarms without a change.
type Alarms = fn(&mut Machine) -> bool;

const ALARMS: [(&str, Alarms); 6] = [
    ("one run against one, +10 %", |machine| {
        let [a, b] = machine.sitting(1, 1.0);
        b[0] > 1.1 * a[0]
    }),
    ("mean of 5 runs against mean of 5 stored, +5 %", |machine| {
        let all = sittings(machine, 2, 5);
        all[1].iter().sum::<f64>() > 1.05 * all[0].iter().sum::<f64>()
    }),
    ("10 runs against 10 stored, p < 0.05", |machine| {
        let all = sittings(machine, 2, 10);
        slower(&all[0], &all[1])
    }),
    ("15 runs against 15 stored, p < 0.05", |machine| {
        let all = sittings(machine, 2, 15);
        slower(&all[0], &all[1])
    }),
    ("15 and 15 in turns, p < 0.05, any of 24 metrics", |machine| {
        let shared = machine.sitting(LAST_LOOK, 1.0);
        (0..24).any(|_| {
            let [a, b] = correlated(&shared, &machine.sitting(LAST_LOOK, 1.0));
            slower(&a, &b)
        })
    }),
    ("this rule, any of 24 metrics", |machine| clean_job(machine) == Verdict::Regression),
];

/// Slower, and significantly so.
fn slower(a: &[f64], b: &[f64]) -> bool {
    median(b) > median(a) && rank::p_value(a, b) < 0.05
}
