//! What of a suite does not go together: arms of one name, a floor of a rate, a path that is asked for and left away, sizes
//! that are said twice.

use std::ffi::OsString;

use toml::Spanned;

use super::{Metric, Suite, Tolerances, TypedArm, TypedTest, TypedTolerance};
use crate::error::{Error, Result};
use crate::gate::series::Tolerance;
use crate::gate::{Arm, Class};
use crate::plan::Shape;
use crate::result::{LimitSpec, Of, Quantity};
use crate::tool::test_command;

impl Suite {
    /// Tolerances of what is not judged: their place, and the metric.
    pub fn unjudged<'a>(
        &'a self,
        tolerances: &'a Tolerances,
        judged: &'a [Quantity],
    ) -> impl Iterator<Item = (String, &'static str)> + 'a {
        let unjudged = tolerances.iter().filter(|(metric, _)| !judged.contains(&metric.0));
        unjudged.map(|(metric, typed)| (self.place(typed), metric.0.name()))
    }

    /// A floor is a time, and rates have none.
    ///
    /// # Errors
    /// Usage: the first floor of a rate, with its place.
    pub fn check_floors(&self) -> Result<()> {
        let of_tests = self.test.iter().flat_map(|test| &test.get_ref().tolerance);
        let all = self.tolerance.iter().chain(of_tests);
        let is_wrong = |(metric, typed): &(&Metric, &Spanned<TypedTolerance>)| {
            metric.0.class() == Class::Rate && Tolerance::from(*typed.get_ref()).floor.is_some()
        };
        match all.into_iter().find(is_wrong) {
            None => Ok(()),
            Some((metric, typed)) => {
                let (place, metric) = (self.place(typed), metric.0.name());
                Err(Error::usage(format!("{place}: a floor for {metric}, which is no time"))
                    .with_remedy("leave the floor away"))
            }
        }
    }

    /// Both arms have names of their own.
    ///
    /// # Errors
    /// Usage: they have one.
    pub fn check_arms(&self) -> Result<()> {
        let Some(a) = &self.a else { return Ok(()) };
        let b = self.b.clone().unwrap_or_default();
        let (a, b) = (a.name_as(Arm::A), b.name_as(Arm::B));
        match a == b {
            false => Ok(()),
            true => Err(Error::usage(format!("{}: both arms are called {a}", self.name()))
                .with_remedy("give [a] and [b] names that differ")),
        }
    }

    /// What is held to a limit, or judged, is measured by a command of these words.
    ///
    /// # Errors
    /// Usage: its options leave away what the suite or a limit asks for.
    pub fn check_paths<'a>(
        &self,
        words: &[OsString],
        mut limits: impl Iterator<Item = &'a LimitSpec> + Clone,
    ) -> Result<()> {
        let refused = |cause: String| Err(Error::usage(cause).with_remedy("leave one of the two away"));
        if names(words, "--no-tcp") && self.tcp {
            return refused("tcp = true and --no-tcp in options contradict each other".into());
        }
        match limits.find(|limit| !is_measured(limit, !names(words, "--tcp-only"), !names(words, "--no-tcp")))
        {
            None => Ok(()),
            Some(limit) => {
                let option = if names(words, "--no-tcp") { "--no-tcp" } else { "--tcp-only" };
                refused(format!("the limit {limit} is about a path that {option} in options leaves away"))
            }
        }
    }

    /// Sizes are said once.
    ///
    /// # Errors
    /// Usage: options say them, too.
    pub fn check_sizes(&self, typed: &TypedTest, arm: &TypedArm, shape: Shape) -> Result<()> {
        let (verb, _) = test_command::named(&typed.binary)?;
        let places = [
            ("options of the suite", &self.options),
            ("options of the arm", &arm.options),
            ("options of the test", &typed.options),
        ];
        for (place, options) in places {
            let words: Vec<_> = options.iter().map(OsString::from).collect();
            // What cannot be read is told later, or known to another build.
            let read = test_command::read(verb, shape, &words);
            if read.is_ok_and(|read| read.args.shape.size.is_some() || read.args.shape.all) {
                return Err(Error::usage(format!("its sizes stand in `sizes` and in {place}"))
                    .with_remedy("leave `sizes` away, or -s, --size and -a in options"));
            }
        }
        Ok(())
    }
}

/// The paths that a limit is about are measured.
pub fn is_measured(limit: &LimitSpec, rdma: bool, tcp: bool) -> bool {
    match limit.of {
        Of::Rdma => rdma,
        Of::Tcp => tcp,
        Of::Ratio => rdma && tcp,
    }
}

/// An option is among the words of a command.
pub fn names(words: &[OsString], option: &str) -> bool {
    words.iter().any(|word| word == option)
}
