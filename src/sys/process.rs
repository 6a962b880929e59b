//! Processes that must not outlive this one.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl;
use nix::sys::signal::Signal;

/// The process that `command` starts is asked to end (SIGTERM) when the thread that started it is gone, however that came
/// about: `PR_SET_PDEATHSIG` (`prctl(2)`).
pub fn ends_with_us(command: &mut Command) -> &mut Command {
    let ask = || prctl::set_pdeathsig(Signal::SIGTERM).map_err(std::io::Error::from);
    // SAFETY: between fork and exec only what is safe in a signal handler may be called: prctl(2) is a system call, and
    // nothing is allocated.
    unsafe { command.pre_exec(ask) }
}
