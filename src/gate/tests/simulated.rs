//! How often the rule errs, on machines that are known because they are simulated. Seeds are fixed. `docs/gating.md` has the
//! table; `cargo test --lib -- --ignored --nocapture table_of_the_rule` prints it again.

use crate::gate::rule::{FIRST_LOOK, LAST_LOOK};
use crate::gate::{
    Arm, Judgement, Metric, Rule, Verdict, judge, judge_sitting, order, overall, rank,
    shift::{median, shift},
};

const TRIALS: usize = 20_000;

/// Run-to-run scatter, as a share.
const SCATTER: [f64; 5] = [0.01, 0.02, 0.03, 0.05, 0.10];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    fn exponential(&mut self) -> f64 {
        -(1.0 - self.uniform()).ln()
    }
}

/// What a machine does to the logarithm of a run's value, in units of its scatter: normal noise, one run in twenty slow by
/// four on average, and a drift that goes 0.3 either way from run to run.
struct Machine {
    random: Random,
    scatter: f64,
    drift: f64,
    /// Of the drift from run to run.
    step: f64,
    /// Share of slow runs.
    slow: f64,
}

impl Machine {
    fn new(seed: u64, scatter: f64) -> Self {
        Self { random: Random(seed), scatter, drift: 0.0, step: 0.3, slow: 0.05 }
    }

    /// Noise alone, for which an interval is exact.
    fn quiet(seed: u64, scatter: f64) -> Self {
        Self { step: 0.0, slow: 0.0, ..Self::new(seed, scatter) }
    }

    /// The logarithm of a run's value, around 0.
    fn run(&mut self) -> f64 {
        self.drift += self.step * self.random.normal();
        let slow = if self.random.uniform() < self.slow { 4.0 * self.random.exponential() } else { 0.0 };
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
    Metric::P50.rule(10.0).unwrap()
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

#[test]
fn a_clean_job_of_24_correlated_metrics_is_red_in_at_most_1_of_100() {
    const JOBS: usize = 4000;
    let mut red = 0;
    for job in 0..JOBS {
        let mut machine = Machine::new(24 + job as u64, 0.03);
        // Half of the variance of each metric is the run's, which they share.
        let shared = machine.sitting(LAST_LOOK, 1.0);
        let judgements: Vec<Judgement> = (0..24)
            .map(|_| {
                let own = machine.sitting(LAST_LOOK, 1.0);
                let mixed = |arm: usize| -> Vec<f64> {
                    let both = shared[arm].iter().zip(&own[arm]);
                    both.map(|(a, b)| ((a.ln() + b.ln()) / 2_f64.sqrt()).exp()).collect()
                };
                judge(&p50(), &mixed(0), &mixed(1), true).unwrap()
            })
            .collect();
        red += usize::from(overall(&judgements) == Verdict::Regression);
    }
    assert!(red * 100 <= JOBS, "{red} of {JOBS}");
}

/// To the three digits that a histogram has.
fn in_a_bucket(value: f64) -> f64 {
    let unit = 10_f64.powf(value.log10().floor() - 2.0);
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
    for (runs, naive, sure) in [(6, 0.10, 0.0), (10, 0.10, 0.0), (15, 0.10, 0.0)] {
        let mut machine = Machine::new(8, 0.05);
        let trials = 2000;
        let (mut significant, mut alarms) = (0, 0);
        for _ in 0..trials {
            let new = sittings(&mut machine, 2, runs);
            let slower = median(&new[1]) > median(&new[0]);
            significant += usize::from(slower && rank::p_value(&new[0], &new[1]) < 0.05);
            let found = judge_sitting(&p50(), &new[..1], &new[1]).unwrap();
            assert!(found.advisory);
            alarms += usize::from(found.verdict == Verdict::Regression);
        }
        println!("{runs} runs: p < 0.05 {significant}, the rule for one sitting {alarms} of {trials}");
        assert!(significant as f64 > naive * trials as f64, "{runs}: {significant}");
        assert!(alarms as f64 > sure * trials as f64, "{runs}: {alarms}");
    }
}

#[test]
fn stored_sittings_alarm_for_nothing_in_at_most_5_of_1000() {
    for count in [2, 3, 5, 8, 10, 20] {
        let mut machine = Machine::new(80 + count as u64, 0.05);
        let mut tally = Tally { trials: TRIALS / 4, ..Tally::default() };
        for _ in 0..tally.trials {
            let all = sittings(&mut machine, count + 1, FIRST_LOOK);
            let found = judge_sitting(&p50(), &all[..count], &all[count]).unwrap();
            assert_eq!(found.advisory, count < 8);
            tally.add(&found);
        }
        println!("{count}: {} {} {}", tally.pass, tally.inconclusive, tally.regression);
        assert!(tally.share(tally.regression) <= 0.005, "{count} sittings: {}", tally.regression);
    }
}

/// Prints the tables of `docs/gating.md`.
#[test]
#[ignore = "prints"]
fn table_of_the_rule() {
    for scatter in SCATTER {
        print!("| {:.0} % |", 100.0 * scatter);
        for factor in [1.0, 1.02, 1.05, 1.10, 1.15, 1.20, 1.30] {
            let tally = Tally::of(TRIALS, scatter, factor);
            let shares = [tally.pass + tally.improved, tally.inconclusive, tally.regression];
            let shares = shares.map(|count| format!("{:.2}", 100.0 * tally.share(count)));
            print!(" {} |", shares.join(" / "));
            if factor == 1.0 {
                print!(" {:.1} |", tally.runs as f64 / tally.trials as f64);
            }
        }
        println!();
    }
    for (scatter, step) in [(0.02, 0.0), (0.02, 0.3), (0.02, 1.0)] {
        let machine = &mut Machine { step, ..Machine::new(3, scatter) };
        println!("step {step}: {:?}", Tally::on(TRIALS, machine, 1.0).regression);
    }
}
