//! Options in combination, drawn by chance: whatever goes together measures exactly what was asked for, with every
//! payload right.
//!
//! `VERBMARK_PRODUCT=SEED` repeats a run, `VERBMARK_PRODUCT=SEED:CASE` one case of it.

use crate::suite;

use std::time::{Instant, SystemTime};

use crate::suite::{BINARIES, number, rows, text};

/// Cases of a run: some minutes on two cores.
const CASES: u64 = 400;

/// Numbers that follow from a seed (Knuth's MMIX generator).
struct Chance(u64);

impl Chance {
    fn new(seed: u64, case: u64) -> Self {
        let mut chance = Self(seed ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for _ in 0..4 {
            chance.below(1);
        }
        chance
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// A binary, its options, and how many messages each row is to have.
fn case(seed: u64, case: u64) -> (&'static str, String, u64) {
    let mut chance = Chance::new(seed, case);
    let binary = chance.one_of(&BINARIES);
    let (wait, _) = chance.one_of(suite::waits(binary));
    let count = chance.one_of(&[1, 2, 31, 32, 33, 100, 500]);
    let depth = chance.one_of(&[1, 2, 3, 7, 16, 128, 200]);
    let every = 1 + chance.below(depth);
    let receives = chance.one_of(&[1, 2, 5, 64, 512]);
    let device = chance.one_of(&["emu0", "emu1"]);
    let sizes = chance.one_of(&["1", "2,64", "220,221", "4k,4097", "64k", "1..16"]);
    let paths = chance.one_of(&["", "--no-tcp", "--no-tcp", "--tcp-only"]);
    let verify = chance.one_of(&["", "--verify"]);
    let warm_up = chance.one_of(&["", "--warm-up 0"]);
    let mut line = format!(
        "-s {sizes} -n {count} -t {depth} -Q {every} -r {receives} {wait} {paths} {verify} {warm_up}"
    );
    if paths != "--tcp-only" {
        line += &format!(" -d {device}");
    }
    if binary.ends_with("_bw") {
        line += &format!(" -l {} --cqe-batch {}", 1 + chance.below(depth), chance.one_of(&[1, 2, 16, 64]));
    }
    if !binary.starts_with("read") {
        line += chance.one_of(&["", " -I 0", " -I 1", " -I 64", " -I 220"]);
    }
    (binary, line, count)
}

#[test]
#[ignore = "takes minutes; scripts/test --only product runs it"]
fn whatever_goes_together_measures_exactly_what_was_asked_for() {
    let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let given = std::env::var("VERBMARK_PRODUCT").ok();
    let (seed, only) = match given.as_deref().map(|given| given.split_once(':').unwrap_or((given, ""))) {
        None => (clock(), None),
        Some((seed, only)) => (seed.parse().expect("a seed"), only.parse().ok()),
    };
    println!("VERBMARK_PRODUCT={seed} repeats this run");
    let began = Instant::now();
    for number_of_case in only.map_or(0..CASES, |only| only..only + 1) {
        let (binary, line, count) = case(seed, number_of_case);
        println!("VERBMARK_PRODUCT={seed}:{number_of_case}  {binary} {line}");
        let document = suite::loopback(binary, &line);
        assert_eq!(text(&document, "/status"), "ok", "{document:#}");
        assert!(!rows(&document).is_empty(), "{document:#}");
        for row in rows(&document) {
            assert_eq!(number(row, "/messages"), count as f64, "{row:#}");
        }
    }
    println!("{:.0} s", began.elapsed().as_secs_f64());
}
