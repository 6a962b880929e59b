//! The rest before a run that reports CPU in full: what the machines do while nothing is measured.

use std::time::Duration;

use super::lane::{Lane, STEP};
use crate::error::{Error, Result, Step};
use crate::host::{MachineCpu, MachineMeter};
use crate::oob::run::Rested;
use crate::result::Document;

/// How long both ends rest: some hundred of the ticks that the kernel counts in, and no more than a second.
const REST: Duration = Duration::from_millis(950);

/// How often a resting end looks for a signal.
const LOOK: Duration = Duration::from_millis(50);

/// What either end does in the rest: it sleeps, and tells the other what it saw.
///
/// # Errors
/// A signal, or the peer is gone.
pub fn share(lane: &mut Lane, document: &mut Document) -> Result<()> {
    lane.control.set_step(Step::WarmUp);
    let ours = Rested { machine: rest(lane)? };
    lane.control.send(&ours)?;
    let theirs: Rested = lane.control.recv("what the other machine does at rest", STEP)?;
    let ends = [(&mut document.local, ours.machine), (&mut document.remote, theirs.machine)];
    for (end, machine) in ends {
        if let Some(end) = end {
            end.idle_machine = machine;
        }
    }
    for (end, machine) in [("local", ours.machine), ("remote", theirs.machine)] {
        if machine.is_none() {
            document.miss(format!("{end}.idle_machine"), "/proc/stat cannot be read there");
        }
    }
    Ok(())
}

fn rest(lane: &Lane) -> Result<Option<MachineCpu>> {
    let meter = MachineMeter::start();
    for _ in 0..REST.as_millis() / LOOK.as_millis() {
        if lane.watch().is_signalled() {
            return Err(Error::interrupted(Step::WarmUp));
        }
        std::thread::sleep(LOOK);
    }
    Ok(meter.and_then(|meter| meter.stop()).ok())
}
