//! What a rule is, and how its test is run: on every device asked for, as specified or as the device is known to
//! deviate.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::lab::Lab;

/// One thing that must hold of every device.
pub struct Rule {
    /// The test's name.
    pub name: &'static str,
    /// What must hold.
    pub expectation: &'static str,
    /// Who says so: a man page, or a section of the InfiniBand specification, volume 1.
    pub source: &'static str,
    /// Fails unless it holds.
    pub specified: fn(&Lab),
    /// What is known to do otherwise.
    pub deviation: Option<Deviation>,
}

/// What a driver does instead.
pub struct Deviation {
    /// The driver.
    pub driver: &'static str,
    /// The version of the kernel it was seen in.
    pub kernel: &'static str,
    /// What it does.
    pub instead: &'static str,
    /// Fails unless it does exactly that, so that a driver which was put right is noticed.
    pub seen: fn(&Lab),
}

/// Rules of one kind.
pub struct Group {
    /// The kind.
    pub title: &'static str,
    /// The rules.
    pub rules: &'static [Rule],
}

/// Declares the rules of a file, and a test for each. A rule is checked by the function of its name.
macro_rules! rules {
    ($title:literal;
     $($name:ident: $source:literal, $expectation:literal
        $(, but $driver:ident $kernel:literal: $instead:literal => $seen:ident)?;)*) => {
        pub const GROUP: $crate::rule::Group = $crate::rule::Group {
            title: $title,
            rules: &[$($crate::rule::Rule {
                name: stringify!($name),
                expectation: $expectation,
                source: $source,
                specified: $name,
                deviation: rules!(@deviation $($driver $kernel $instead => $seen)?),
            }),*],
        };

        mod rule {
            $(#[test]
            fn $name() {
                $crate::rule::check(&super::GROUP, stringify!($name));
            })*
        }
    };
    (@deviation) => { None };
    (@deviation $driver:ident $kernel:literal $instead:literal => $seen:ident) => {
        Some($crate::rule::Deviation {
            driver: stringify!($driver),
            kernel: $kernel,
            instead: $instead,
            seen: $seen,
        })
    };
}
pub(crate) use rules;

/// The devices to check, separated by commas.
const VARIABLE: &str = "VERBMARK_CONFORMANCE_DEVICE";

/// Checks a rule on every device. Prints a line for each, which `scripts/lab.d/conformance` counts.
pub fn check(group: &Group, name: &str) {
    let rule = group.rules.iter().find(|rule| rule.name == name).expect("it was declared beside its test");
    let devices = std::env::var(VARIABLE).unwrap_or_else(|_| "emu0,emu1".to_owned());
    for device in devices.split(',') {
        println!("checking {name} on {device}");
        let lab = Lab::open(device);
        println!("rule {device} {name}: {}", verdict(rule, &lab));
    }
}

/// What is to be said of a rule that passes on this device.
fn verdict(rule: &Rule, lab: &Lab) -> String {
    match rule.deviation.as_ref().filter(|known| lab.driver() == known.driver) {
        None => {
            (rule.specified)(lab);
            if lab.applies() { "as specified".to_owned() } else { "does not apply".to_owned() }
        }
        Some(deviation) => {
            deviates(rule, deviation, lab);
            format!("deviates: {}", deviation.instead)
        }
    }
}

/// Passes if the device deviates as it is known to.
fn deviates(rule: &Rule, known: &Deviation, lab: &Lab) {
    let attempt = |what: fn(&Lab)| catch_unwind(AssertUnwindSafe(|| what(lab)));
    if let Err(failure) = attempt(known.seen) {
        let now = match attempt(rule.specified) {
            Ok(()) => "it does what is specified",
            Err(_) => "it does not do what is specified either",
        };
        eprintln!(
            "{} no longer deviates from {} as seen in kernel {} ({}): {now}",
            known.driver, rule.name, known.kernel, known.instead
        );
        resume_unwind(failure);
    }
}

#[test]
fn a_deviation_that_is_gone_is_noticed() {
    fn holds(_: &Lab) {}
    fn fails(_: &Lab) {
        panic!("as it must");
    }
    let devices = std::env::var(VARIABLE).unwrap_or_else(|_| "emu0".to_owned());
    let lab = Lab::open(devices.split(',').next().unwrap());
    let driver: &str = lab.driver().leak();
    let passes = |specified: fn(&Lab), seen: Option<fn(&Lab)>| {
        let known = |seen| Deviation { driver, kernel: "0", instead: "it differs", seen };
        let deviation = seen.map(known);
        let rule = Rule { name: "example", expectation: "", source: "", specified, deviation };
        catch_unwind(AssertUnwindSafe(|| verdict(&rule, &lab))).is_ok()
    };
    assert!(passes(holds, None) && !passes(fails, None));
    assert!(passes(fails, Some(holds)));
    assert!(!passes(holds, Some(fails)), "the device was put right");
    assert!(!passes(fails, Some(fails)), "it deviates in another way");
}
