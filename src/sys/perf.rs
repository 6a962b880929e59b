//! The kernel's counting of events of one thread: `perf_event_open(2)`, counting mode only.

use std::fs::File;
use std::io::{Error, Read};
use std::os::fd::{FromRawFd, OwnedFd};

use nix::libc;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Instructions retired (`PERF_COUNT_HW_INSTRUCTIONS`).
    Instructions,
    /// Cycles of the core (`PERF_COUNT_HW_CPU_CYCLES`).
    Cycles,
    /// Passes of a tracepoint, by the number in its file `id` of tracefs.
    Tracepoint(u64),
}

impl Event {
    /// `type` and `config` of `struct perf_event_attr`.
    fn config(self) -> (u32, u64) {
        const HARDWARE: u32 = 0;
        const TRACEPOINT: u32 = 2;
        match self {
            Self::Cycles => (HARDWARE, 0),
            Self::Instructions => (HARDWARE, 1),
            Self::Tracepoint(id) => (TRACEPOINT, id),
        }
    }
}

/// The first published `struct perf_event_attr` (`PERF_ATTR_SIZE_VER0`); the kernel takes what it lacks as zeros.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attr>() == 64);

/// Bits of the attribute's `flags`.
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;

/// `PERF_FLAG_FD_CLOEXEC`: no child of the process inherits the descriptor.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// Counts an event of the thread that opened it, from then on.
#[derive(Debug)]
pub struct Counter {
    file: File,
}

impl Counter {
    /// Begins to count: with the kernel's part, or that of user space alone.
    ///
    /// # Errors
    /// `EACCES` or `EPERM` where `/proc/sys/kernel/perf_event_paranoid` forbids it, `ENOENT` where the machine does not
    /// count this, as virtual ones often do not.
    pub fn open(event: Event, with_kernel: bool) -> Result<Self, Error> {
        /// Enabled and running time follow the count, in ns.
        const TOTAL_TIMES: u64 = 1 | 2;
        let (kind, config) = event.config();
        let flags = EXCLUDE_HYPERVISOR | if with_kernel { 0 } else { EXCLUDE_KERNEL };
        let size = size_of::<Attr>() as u32;
        let attr = Attr { kind, size, config, read_format: TOTAL_TIMES, flags, ..Attr::default() };
        let (this_thread, any_core, no_group): (libc::pid_t, libc::c_int, libc::c_int) = (0, -1, -1);
        // SAFETY: the kernel reads `attr.size` bytes of `attr`, which lives until the call is over, and keeps none of it.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                this_thread,
                any_core,
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: the call returned a new descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Ok(Self { file: fd.into() })
    }

    /// How often so far; `None` if the processor's counter was shared with others meanwhile, so that a part is missing.
    pub fn read(&self) -> Option<u64> {
        let mut bytes = [0; 24];
        (&self.file).read_exact(&mut bytes).ok()?;
        let word = |at: usize| Some(u64::from_ne_bytes(bytes[at..at + 8].try_into().ok()?));
        let (count, enabled, running) = (word(0)?, word(8)?, word(16)?);
        (enabled == running).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_counts_goes_up() {
        // Where it counts nothing the error says so; what it must not do is count 0 of a busy thread.
        match Counter::open(Event::Instructions, false) {
            Ok(counter) => {
                let before = counter.read();
                std::hint::black_box((0..10_000u64).fold(0u64, |sum, n| sum.wrapping_mul(31) ^ n));
                let after = counter.read();
                assert!(before.is_none() || after.is_none() || after > before, "{before:?} {after:?}");
            }
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
    }

    #[test]
    fn an_event_that_does_not_exist_is_an_error() {
        assert!(Counter::open(Event::Tracepoint(u64::MAX), true).is_err());
    }
}
