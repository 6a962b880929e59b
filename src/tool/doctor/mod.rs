//! `verbmark doctor`: what of this machine disturbs measurements, what that does to results, and what mends it. It reads
//! files, asks the kernel, and spins on one core for a second; it changes nothing and needs no root.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::cli::tool::DoctorArgs;
use crate::error::{Error, Result, Step};
use crate::host::environment::{self, CoreTimes, siblings};
use crate::host::{self, Cores};
use crate::measure::{Clock, ClockSource, Counter, Epoch, Jitter, Raw, jitter};
use crate::suite;
use crate::tool::output::Output;
use crate::verbs;

mod code;
mod cpu;
mod machine;
mod nic;
mod path;
mod record;
mod table;

pub use code::Code;
use nic::Nic;
use record::{Checked, Verdict};
pub use record::{Checkup, Finding, JitterFacts, Level, PathFacts, RdmaOnPath, SCHEMA};
pub use table::render;

/// Exit status with `--strict` where there is a warning: what is measured here is not conclusive.
const DISTURBED: u8 = 3;

/// Looks, and gives the exit status.
///
/// # Errors
/// What was named is not there, or the document could not be written.
pub fn run(args: &DoctorArgs) -> Result<u8> {
    let output = Output::open(args.json.as_deref())?;
    let checkup = match &args.root {
        Some(root) => of_files(args, root)?,
        None => of_this_machine(args)?,
    };
    output.show(|| render(&checkup, suite::width()));
    output.write(&checkup)?;
    Ok(if args.strict && checkup.count(Level::Warning) > 0 { DISTURBED } else { 0 })
}

/// What is counted before and after the probe.
struct Counted {
    cores: BTreeMap<usize, CoreTimes>,
    congestion: host::DeviceCounters,
}

impl Counted {
    fn now(root: &Path, core: usize, nic: Option<&Nic>) -> Self {
        let cores = siblings(root, core).unwrap_or_default().into_iter().chain([core]);
        let times = cores.filter_map(|core| Some((core, CoreTimes::of(root, core).ok()?)));
        Self { cores: times.collect(), congestion: nic.map(|nic| nic.counters(root)).unwrap_or_default() }
    }
}

fn of_this_machine(args: &DoctorArgs) -> Result<Checkup> {
    let nic = nic::choose(args.device.as_deref(), args.ib_port)?;
    let cores = Cores::read(nic.as_ref().map(|nic| nic.name.as_str()))?;
    let core = match args.cpu {
        Some(core) => cores.given(core, &[])?.core,
        None => cores.choose(&[]).map_or(0, |choice| choice.core),
    };
    let root = Path::new("/");
    // Before the probe makes a load of its own.
    let (running, pressure) = (machine::running(root), machine::pressure(root));
    let before = Counted::now(root, core, nic.as_ref());
    let seen = watch(core, args.duration)?;
    let mut checkup = Checkup::new(core);
    checkup.jitter = Some(JitterFacts::from(&seen));
    checkup.found(Code::Jitter, judge(&seen));
    examine(&mut checkup, root, nic.as_ref(), &before, running, pressure);
    if let Some(host) = &args.host {
        path::examine(&mut checkup, host, args.port, nic.as_ref());
    }
    Ok(checkup)
}

/// Nothing runs on a machine of which there are only files.
fn of_files(args: &DoctorArgs, root: &Path) -> Result<Checkup> {
    let nic = nic::choose_from(root, args.device.as_deref(), args.ib_port)?;
    let core = args.cpu.unwrap_or(0);
    let mut checkup = Checkup::new(core);
    let reason = "files alone are looked at: nothing can be run on that machine";
    checkup.miss("jitter", reason);
    checkup.found(Code::Jitter, Err(reason.into()));
    let before = Counted::now(root, core, nic.as_ref());
    examine(&mut checkup, root, nic.as_ref(), &before, machine::running(root), machine::pressure(root));
    Ok(checkup)
}

/// Spins on the core for a while, on a thread of its own.
fn watch(core: usize, span: Duration) -> Result<Jitter> {
    let clocksource = environment::clocksource(Path::new("/")).ok();
    let watching = move || {
        host::pin(core)?;
        let clock = Clock::calibrate(Epoch::note(), clocksource.as_deref());
        Ok(match clock.source() {
            ClockSource::MonotonicRaw => Jitter::probe(Raw, &clock, span),
            ClockSource::Tsc | ClockSource::Cntvct => Jitter::probe(Counter, &clock, span),
        })
    };
    let failed = |why: String| Error::failed(Step::Measure, format!("watching core {core}: {why}"));
    let thread = std::thread::Builder::new().name("jitter".into()).spawn(watching);
    let thread = thread.map_err(|cause| failed(cause.to_string()))?;
    thread.join().map_err(|_| failed("the thread ended early".into()))?
}

fn judge(seen: &Jitter) -> Checked {
    let us =
        |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.2} us", ns as f64 / 1000.0));
    let text = format!(
        "{} gaps over {} us in {:.2} s, p99.9 {}, max {}",
        seen.over,
        jitter::THRESHOLD.as_micros(),
        seen.window_ns as f64 / 1e9,
        us(seen.gaps.quantile(0.999)),
        us(seen.gaps.max()),
    );
    Ok(if seen.over_per_s() > jitter::TOLERATED_PER_S { Verdict::warning(text) } else { Verdict::ok(text) })
}

/// Everything but the probe itself and the way to another host.
fn examine(
    checkup: &mut Checkup,
    root: &Path,
    nic: Option<&Nic>,
    before: &Counted,
    running: Checked,
    pressure: Checked,
) {
    let core = checkup.core;
    checkup.host = checkup.keep("host", environment::hostname(root));
    checkup.kernel = checkup.keep("kernel", environment::kernel_release(root));
    let after = Counted::now(root, core, nic);
    let spent = |core: usize| match (before.cores.get(&core), after.cores.get(&core)) {
        (Some(before), Some(after)) => Ok(after.since(*before)),
        _ => Err(format!("/proc/stat does not say what core {core} did")),
    };
    checkup.found(Code::Governor, cpu::frequency(root, core));
    checkup.found(Code::Turbo, cpu::boost(root));
    checkup.found(Code::IdleStates, cpu::idle_states(root, core));
    checkup.found(Code::LatencyLimit, cpu::latency_limit(root));
    checkup.found(Code::Smt, cpu::smt(root, core, spent));
    checkup.found(Code::Isolated, cpu::isolated(root, core));
    checkup.found(Code::NohzFull, cpu::tickless(root, core));
    checkup.found(Code::RcuNocbs, cpu::callbacks(root, core));
    checkup.found(Code::Steal, cpu::steal(spent(core)));
    checkup.found(Code::Load, running);
    checkup.found(Code::CpuPressure, pressure);
    checkup.found(Code::Hypervisor, machine::hypervisor(root));
    checkup.found(Code::Clocksource, machine::clock(root));
    checkup.found(Code::Tsc, machine::counter(root));
    checkup.found(Code::HugePages, machine::huge_pages(root));
    checkup.found(Code::Irqbalance, machine::interrupt_balancer(root));
    checkup.found(Code::Memlock, machine::locked_memory(root));
    checkup.found(Code::PerfEvents, machine::counting(root));
    match nic {
        Some(nic) => of_device(checkup, root, nic, &before.congestion, &after.congestion),
        None => {
            let none = "this machine has no RDMA device";
            checkup.found(Code::Device, Ok(Verdict::note(none).mended_by(verbs::NO_DEVICE_REMEDY)));
            ["device", "port", "netdev"].into_iter().for_each(|key| checkup.miss(key, none));
        }
    }
}

fn of_device(
    checkup: &mut Checkup,
    root: &Path,
    nic: &Nic,
    before: &host::DeviceCounters,
    after: &host::DeviceCounters,
) {
    let core = checkup.core;
    checkup.device = Some(nic.name.clone());
    checkup.port = Some(nic.port);
    checkup.netdev = checkup.keep("netdev", nic.netdev.clone());
    checkup.found(Code::Device, nic.device());
    checkup.found(Code::Link, nic.link());
    checkup.found(Code::Mtu, nic.mtu(root));
    checkup.found(Code::Pcie, nic.pcie(root));
    checkup.found(Code::Numa, nic.numa(root, core));
    checkup.found(Code::IrqsOnCore, nic.irqs(root, core));
    checkup.found(Code::Congestion, nic::congestion(before, after));
    // InfiniBand's flow control has no switch.
    if nic.is_ethernet() {
        checkup.found(Code::Ecn, nic.ecn(root));
        checkup.found(Code::Pfc, nic.pfc());
    }
}
