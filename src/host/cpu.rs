//! What a thread used of the CPU during a phase.

use std::marker::PhantomData;
use std::path::Path;

use nix::errno::Errno;
use nix::sched::sched_getcpu;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::counting::{Counting, Counts};
use super::machine_cpu::ClockTicks;
use super::read;

/// What the calling thread used between [`CpuMeter::start`] and [`CpuMeter::stop`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuUse {
    /// Time on a core, in ns, exact (`clock_gettime(2)`, `CLOCK_THREAD_CPUTIME_ID`).
    pub total_ns: u64,
    /// Time in user mode, in ns (`getrusage(2)`, `RUSAGE_THREAD`). On most kernels it is brought up to date only at
    /// timer ticks, 1 to 10 ms apart, and split from the kernel's by an estimate: of a short phase it says nothing.
    pub user_ns: u64,
    /// Time in the kernel on the thread's behalf, in ns; likewise.
    pub system_ns: u64,
    /// Times the thread gave up its core to wait.
    pub voluntary_switches: u64,
    /// Times it was taken off its core: preempted.
    pub involuntary_switches: u64,
    /// Page faults served without I/O.
    pub minor_faults: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
    /// It ended on another core than it began on.
    pub migrated: bool,
    /// Core it ended on.
    pub core: usize,
    /// Time it was ready to run and had no core, in ns (`/proc/PID/schedstat`, second field). `None` where the kernel
    /// keeps no account of it.
    pub ready_wait_ns: Option<u64>,
    /// Time the hypervisor ran something else on this core, in ns, counted in ticks of 10 ms (`proc_stat(5)`).
    /// `None` when the thread migrated, or the kernel does not tell.
    pub steal_ns: Option<u64>,
    /// What the processor and the kernel counted.
    pub counts: Counts,
}

impl CpuUse {
    /// What this thread and another have used together; what only one of them knows is not known.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        let both = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a + b);
        Self {
            total_ns: self.total_ns + other.total_ns,
            user_ns: self.user_ns + other.user_ns,
            system_ns: self.system_ns + other.system_ns,
            voluntary_switches: self.voluntary_switches + other.voluntary_switches,
            involuntary_switches: self.involuntary_switches + other.involuntary_switches,
            minor_faults: self.minor_faults + other.minor_faults,
            major_faults: self.major_faults + other.major_faults,
            migrated: self.migrated || other.migrated,
            core: self.core,
            ready_wait_ns: both(self.ready_wait_ns, other.ready_wait_ns),
            steal_ns: both(self.steal_ns, other.steal_ns),
            counts: self.counts.and(&other.counts),
        }
    }
}

/// Measures the thread that started it.
#[derive(Debug)]
pub struct CpuMeter {
    usage: Usage,
    total_ns: u64,
    core: usize,
    ready_wait_ns: Option<u64>,
    steal_ns: Option<u64>,
    counting: Counting,
    /// Another thread's usage is not what was started with.
    this_thread: PhantomData<*const ()>,
}

impl CpuMeter {
    /// Begins. Files are read and counters opened first, and the thread's usage is asked for last, so that little of this
    /// is in it. System calls are counted only if asked for, since that makes each one slower.
    ///
    /// # Errors
    /// The kernel has no per-thread usage.
    pub fn start(system_calls: bool) -> Result<Self, String> {
        let core = core()?;
        let root = Path::new("/");
        let (steal_ns, ready_wait_ns) = (steal(root, core), ready_wait(root));
        Ok(Self {
            core,
            steal_ns,
            ready_wait_ns,
            counting: Counting::start(system_calls),
            usage: usage()?,
            total_ns: total()?,
            this_thread: PhantomData,
        })
    }

    /// What was used since the start; the meter runs on.
    ///
    /// # Errors
    /// The kernel has no per-thread usage.
    pub fn stop(&self) -> Result<CpuUse, String> {
        let total_ns = total()?.saturating_sub(self.total_ns);
        let end = usage()?;
        let counts = self.counting.so_far();
        let core = core()?;
        let root = Path::new("/");
        let ready_wait_ns = between(self.ready_wait_ns, ready_wait(root));
        let migrated = core != self.core;
        let steal_ns = if migrated { None } else { between(self.steal_ns, steal(root, core)) };
        let ns = |of: fn(&Usage) -> nix::sys::time::TimeVal| {
            since(of(&self.usage).num_nanoseconds(), of(&end).num_nanoseconds())
        };
        let count = |of: fn(&Usage) -> std::ffi::c_long| since(of(&self.usage), of(&end));
        Ok(CpuUse {
            total_ns,
            user_ns: ns(Usage::user_time),
            system_ns: ns(Usage::system_time),
            voluntary_switches: count(Usage::voluntary_context_switches),
            involuntary_switches: count(Usage::involuntary_context_switches),
            minor_faults: count(Usage::minor_page_faults),
            major_faults: count(Usage::major_page_faults),
            migrated,
            core,
            ready_wait_ns,
            steal_ns,
            counts,
        })
    }
}

fn total() -> Result<u64, String> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_err(|errno| format!("clock_gettime(CLOCK_THREAD_CPUTIME_ID): {errno}"))?;
    u64::try_from(time.num_nanoseconds()).map_err(|_| "a negative time on the core".into())
}

fn usage() -> Result<Usage, String> {
    getrusage(UsageWho::RUSAGE_THREAD).map_err(|errno: Errno| format!("getrusage(RUSAGE_THREAD): {errno}"))
}

fn core() -> Result<usize, String> {
    sched_getcpu().map_err(|errno| format!("sched_getcpu: {errno}"))
}

/// The kernel's counts never go back; should they, nothing was counted.
fn since(start: i64, end: i64) -> u64 {
    u64::try_from(end.saturating_sub(start)).unwrap_or(0)
}

fn between(start: Option<u64>, end: Option<u64>) -> Option<u64> {
    end?.checked_sub(start?)
}

fn ready_wait(root: &Path) -> Option<u64> {
    read(root, "proc/thread-self/schedstat").ok()?.split_whitespace().nth(1)?.parse().ok()
}

/// The eighth number of the core's line, in ticks.
fn steal(root: &Path, core: usize) -> Option<u64> {
    let stat = read(root, "proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")))?;
    ClockTicks::read()?.ns(line.split_whitespace().nth(7)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Works until the kernel has given this thread so much time, however long others have the core in between.
    fn work(time: Duration) {
        let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
        let end = now() + time;
        while now() < end {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn work_and_sleep_are_told_apart() {
        let meter = CpuMeter::start(true).unwrap();
        work(Duration::from_millis(30));
        let worked = meter.stop().unwrap();
        let total = worked.user_ns + worked.system_ns;
        assert!((29_000_000..=45_000_000).contains(&total), "{worked:?}");

        let meter = CpuMeter::start(true).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        let slept = meter.stop().unwrap();
        assert!(slept.user_ns + slept.system_ns < 20_000_000, "{slept:?}");
        assert!(slept.voluntary_switches >= 1, "{slept:?}");
    }

    #[test]
    fn another_threads_work_is_not_counted() {
        let meter = CpuMeter::start(true).unwrap();
        std::thread::spawn(|| work(Duration::from_millis(50))).join().unwrap();
        let used = meter.stop().unwrap();
        assert!(used.user_ns + used.system_ns < 20_000_000, "{used:?}");
    }

    #[test]
    fn page_faults_are_counted() {
        let meter = CpuMeter::start(true).unwrap();
        let pages = std::hint::black_box(vec![1u8; 8 << 20]);
        let used = meter.stop().unwrap();
        assert!(used.minor_faults >= 4, "{used:?}");
        drop(pages);
    }

    #[test]
    fn steal_is_the_eighth_number_of_the_cores_own_line() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/thread-self")).unwrap();
        std::fs::write(
            dir.path().join("proc/stat"),
            "cpu  9 9 9 9 9 9 9 9 9 9\ncpu1 1 2 3 4 5 6 7 800 9 10\ncpu11 0 0 0 0 0 0 0 1 0 0\ncpu2 1 2 3\n",
        )
        .unwrap();
        std::fs::write(dir.path().join("proc/thread-self/schedstat"), "100 250 3\n").unwrap();
        let tick = ClockTicks::read().unwrap().ns("1").unwrap();
        assert_eq!(steal(dir.path(), 1), Some(800 * tick));
        assert_eq!(steal(dir.path(), 11), Some(tick));
        assert_eq!((steal(dir.path(), 2), steal(dir.path(), 3)), (None, None));
        assert_eq!(ready_wait(dir.path()), Some(250));
        assert_eq!(between(Some(5), Some(4)), None);
    }
}
