//! Which transport services a verb runs over, and which options have a meaning there.

use std::time::Duration;

use super::{Connection, Shape, Test, Transport};
use crate::cli::SHORTEST_LOSS_TIMEOUT;
use crate::error::{Error, Result};
use crate::ops::Verb;

/// Largest datagram: the largest MTU that a path can have.
pub(super) const LARGEST_DATAGRAM: u64 = 4096;

/// Options of what only a reliable connection does.
const RELIABLE: [(&str, &str); 5] = [
    ("--outs", "nothing is read over it"),
    ("--qp-timeout", "nothing is acknowledged"),
    ("--retry-count", "nothing is sent twice"),
    ("--rnr-retry", "nobody says that no receive is posted"),
    ("--min-rnr-timer", "nobody says that no receive is posted"),
];

/// The service by its typed name, any case.
pub(super) fn named(typed: &str) -> Connection {
    let found = Connection::ALL.into_iter().find(|connection| connection.name().eq_ignore_ascii_case(typed));
    found.unwrap_or(Connection::Rc)
}

/// Refuses typed options that have no meaning over a service.
pub(super) fn check_typed(connection: Connection, given: &[String]) -> Result<()> {
    let refuse = |option: &str, why: &str| {
        Err(Error::usage(format!("{option} has no meaning over {connection}: {why}"))
            .with_remedy(format!("leave {option} away, or choose another service with -c")))
    };
    let is_given = |option: &str| given.iter().any(|given| given == option);
    if connection.is_reliable() {
        if is_given("--loss-timeout") {
            return refuse("--loss-timeout", "what is lost is sent again");
        }
        return Ok(());
    }
    match RELIABLE.iter().find(|(option, _)| is_given(option)) {
        Some((option, why)) => refuse(option, why),
        None => Ok(()),
    }
}

/// The services that have a verb, as a list to choose from.
fn legal(verb: Verb) -> String {
    let has = |connection: &Connection| verb.facts().runs_over(*connection);
    let names: Vec<_> = Connection::ALL.into_iter().filter(has).map(Connection::name).collect();
    match names.split_last() {
        Some((last, [])) => (*last).into(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

impl Test {
    /// The verb runs over the service, with these sizes and times.
    pub(super) fn check_service(&self) -> Result<()> {
        let (verb, connection) = (self.verb, self.connection);
        if !verb.facts().runs_over(connection) {
            return Err(Error::usage(format!("{connection} has no {}", verb.facts().title))
                .with_remedy(format!("use -c {}", legal(verb))));
        }
        if connection.is_reliable() {
            return Ok(());
        }
        if !self.measures(Transport::Rdma) {
            return Err(Error::usage(format!("-c {connection} is for RDMA, which --tcp-only leaves out"))
                .with_remedy("leave -c away"));
        }
        if self.threads > 1 {
            return Err(Error::usage(format!(
                "--threads {} is for RC: a receiver measures with one",
                self.threads
            ))
            .with_remedy("leave --threads away, or use -c RC; -q gives more queue pairs"));
        }
        if connection == Connection::Ud {
            let most = self.mtu.map_or(LARGEST_DATAGRAM, u64::from);
            if let Some(size) = self.sizes.iter().find(|size| **size > most) {
                return Err(Error::usage(format!(
                    "a datagram is one packet: {size} bytes are more than the {most} that it can have"
                ))
                .with_remedy(format!("use -s {most} or less, or -c UC")));
            }
        }
        if self.loss_timeout < SHORTEST_LOSS_TIMEOUT || self.loss_timeout >= self.stall_timeout {
            return Err(Error::usage(format!(
                "--loss-timeout {} s is outside {} s to --stall-timeout {} s",
                self.loss_timeout.as_secs_f64(),
                SHORTEST_LOSS_TIMEOUT.as_secs_f64(),
                self.stall_timeout.as_secs_f64()
            ))
            .with_remedy("lower --loss-timeout, or raise --stall-timeout"));
        }
        Ok(())
    }

    /// How long a phase must have been quiet until what is missing counts as lost. A receiver may be off its core for
    /// a time slice or two.
    pub fn quiet_time(&self) -> Duration {
        self.loss_timeout.max(Duration::from_millis(20))
    }

    /// The receiver counts and times what arrives, because the sender's completions tell nothing of that.
    pub fn is_measured_by_receiver(&self) -> bool {
        self.shape == Shape::Bandwidth
            && !self.connection.is_reliable()
            && self.verb.facts().arrival == crate::ops::Arrival::RecvCompletion
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_legal_reads_as_a_choice() {
        let all = [Verb::Send, Verb::Write, Verb::Read].map(legal);
        assert_eq!(all, ["RC, UC or UD", "RC or UC", "RC"]);
    }

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(["rc", "Uc", "UD"].map(named), Connection::ALL);
    }
}
