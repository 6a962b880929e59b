//! What the loops cost, beside the same loops in C, and what they are made of.
//!
//! Timing is for people: nothing is decided by it. Instructions are exact, and the program fails when a loop in Rust
//! takes more of them than the one in C.

mod c;
mod cases;
mod instructions;
mod null;
mod rig;

use std::process::ExitCode;

use cases::{LOOPS, Language, Loop, On, Part};
use clap::{Parser, Subcommand, ValueEnum};

/// Cost of the measured loops, in ns and instructions a message, beside the same loops in C
#[derive(Parser)]
#[command(name = "bench")]
struct Arguments {
    /// Timed rounds of each loop; Rust and C take turns
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Messages a round
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1024..))]
    messages: u64,
    /// Leave the instructions out, which take valgrind and a minute
    #[arg(long)]
    no_instructions: bool,
    #[command(subcommand)]
    once: Option<Once>,
}

/// One run, for who counts it from outside
#[derive(Subcommand)]
enum Once {
    /// A loop
    Loop { which: Loop, on: On, language: Language, messages: u64 },
    /// A part of the loops
    Part { part: Part, times: u64 },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.once {
        Some(Once::Loop { which, on, language, messages }) => {
            cases::run(which, on, language, messages);
            ExitCode::SUCCESS
        }
        Some(Once::Part { part, times }) => {
            cases::run_part(part, times);
            ExitCode::SUCCESS
        }
        None => report(&arguments),
    }
}

fn report(arguments: &Arguments) -> ExitCode {
    let counts = |inside: &str, words: &[&str]| -> Option<f64> {
        if arguments.no_instructions {
            return None;
        }
        instructions::per_message(inside, words)
            .inspect_err(|error| eprintln!("bench: not counted: {error}"))
            .ok()
    };
    println!("{:<26}{:>10}{:>22}{:>14}", "part of the loops", "ns", "", "instructions");
    let mut fold = 0.0;
    for &part in Part::value_variants() {
        let times = arguments.messages;
        let ns = spread(arguments, || cases::run_part(part, times));
        let counted = counts("*cases::run_part*", &["part", &name(part)]);
        println!("{:<26}{:>10.2}{:>22}{:>14}", part_title(part), ns.median, ns.range(), number(counted));
        if part == Part::Fold {
            fold = ns.median;
        }
    }
    println!(
        "\n{:<26}{:>10}{:>22}{:>10}{:>22}{:>14}{:>10}",
        "64 B, loop on device", "Rust ns", "", "C ns", "", "instructions", "in C"
    );
    let mut thicker = Vec::new();
    for (which, on) in LOOPS {
        // Samples of the loops in C go nowhere; what recording them costs in Rust stands above.
        let fold = if which.folds() { fold } else { 0.0 };
        let (mut rust, mut c) = (Vec::new(), Vec::new());
        for _ in 0..arguments.rounds {
            rust.push(cases::run(which, on, Language::Rust, arguments.messages));
            c.push(cases::run(which, on, Language::C, arguments.messages));
        }
        let rust = Spread::of(rust, arguments.messages).less(fold);
        let c = Spread::of(c, arguments.messages);
        let words = |language| ["loop".to_owned(), name(which), name(on), name(language)];
        let counted =
            |language| counts(which.functions(language), &words(language).each_ref().map(String::as_str));
        let (rust_count, c_count) = (counted(Language::Rust), counted(Language::C));
        let title = format!("{} on {}", name(which).replace('-', "_"), name(on));
        println!(
            "{title:<26}{:>10.2}{:>22}{:>10.2}{:>22}{:>14}{:>10}",
            rust.median,
            rust.range(),
            c.median,
            c.range(),
            number(rust_count),
            number(c_count)
        );
        if rust_count.zip(c_count).is_some_and(|(rust, c)| rust > c + TOLERATED) {
            thicker.push(title);
        }
    }
    println!(
        "\nmedian of {} rounds, least and most of them; instructions by callgrind, the device's included",
        arguments.rounds
    );
    println!("loops in Rust without the recording of samples, which stands above as part of a block");
    if thicker.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("bench: more than {TOLERATED} instructions a message beyond C: {}", thicker.join(", "));
    ExitCode::FAILURE
}

/// Instructions a message that a loop may have more than in C: what places and counts of a stretch cost that C's loops
/// do without, dealt out to its messages.
const TOLERATED: f64 = 1.5;

fn part_title(part: Part) -> &'static str {
    match part {
        Part::Counter => "read the counter",
        Part::Raw => "read the kernel's clock",
        Part::Record => "record a sample alone",
        Part::Fold => "record a sample of a block",
    }
}

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

/// ns a message over the rounds.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut rounds: Vec<u64>, messages: u64) -> Self {
        rounds.sort_unstable();
        let each = |ns: u64| ns as f64 / messages as f64;
        Self {
            median: each(rounds[rounds.len() / 2]),
            least: each(rounds[0]),
            most: each(rounds[rounds.len() - 1]),
        }
    }

    fn less(self, ns: f64) -> Self {
        Self { median: self.median - ns, least: self.least - ns, most: self.most - ns }
    }

    fn range(&self) -> String {
        format!("({:.2} to {:.2})", self.least, self.most)
    }
}

fn spread(arguments: &Arguments, run: impl Fn() -> u64) -> Spread {
    Spread::of((0..arguments.rounds).map(|_| run()).collect(), arguments.messages)
}
