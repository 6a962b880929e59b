//! Who does what when: a device, the sizes, the calls.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::Screen;
use super::document::{
    BreakEven, Device, Document, Extent, Local, Operation, Pages, Paging, ResultRow, TestRecord,
};
use super::plan::Plan;
use super::timing::{Case, Registrations, Timing, WARM_UP};
use crate::error::{Error, Kind, Result, Step};
use crate::host::{self, Cores, CpuMeter, CpuUse, Machine};
use crate::measure::clock::TOLERATED_PPM;
use crate::measure::{Clock, Epoch, LatencyHistogram, Limit};
use crate::plan::MemoryKind;
use crate::result::{self, Buffers, Process};
use crate::transport::memory;
use crate::units::format_size;
use crate::verbs::{self, Context, Pd, Placement, Transport};

/// Memory left to others beside what a size takes.
const SPARE: u64 = 64 << 20;

/// Preemptions a second beyond which a size was disturbed: a quiet core has a few.
const PREEMPTED_PER_S: f64 = 10.0;

/// Does what the plan says, and returns the document of it: also of a run that failed.
pub fn run(
    plan: &Plan,
    command: Vec<String>,
    epoch: Epoch,
    signalled: &AtomicBool,
    screen: &mut Screen,
) -> Document {
    let labels = plan.labels.iter().cloned().collect();
    let mut document = Document::new(record(plan), command, labels);
    if let Err(error) = measure(plan, epoch, signalled, screen, &mut document) {
        document.fail(error);
    }
    document
}

fn record(plan: &Plan) -> TestRecord {
    let extent = |limit: Limit| Extent {
        samples: Some(limit.messages).filter(|count| *count < u64::MAX),
        seconds: Some(limit.span).filter(|span| *span < Duration::MAX).map(|span| span.as_secs_f64()),
    };
    TestRecord {
        sizes_bytes: plan.sizes.clone(),
        stop: extent(plan.stop.into()),
        warm_up: extent(Limit { messages: WARM_UP.0, span: WARM_UP.1 }),
        pages: plan.pages.clone(),
        paging: plan.paging.clone(),
        memory: plan.memory,
    }
}

fn measure(
    plan: &Plan,
    epoch: Epoch,
    signalled: &AtomicBool,
    screen: &mut Screen,
    document: &mut Document,
) -> Result<()> {
    memory::check_node(plan.numa)?;
    let huge_page_bytes = match plan.memory {
        MemoryKind::Anonymous => None,
        MemoryKind::HugePages => Some(memory::huge_pages()?.page_bytes),
    };
    let placement = Placement { huge_page_bytes, numa_node: plan.numa, unjoined: huge_page_bytes.is_none() };
    let context = open(plan.device.as_deref())?;
    let cores = Cores::read(Some(context.device().name()))?;
    let core = match plan.core {
        Some(core) => Some(cores.given(core, &[])?.core),
        None => cores.choose(&[]).map(|choice| choice.core),
    };
    let (machine, unknown) = Machine::read();
    for fact in unknown {
        let fact = fact.within("local");
        document.miss(fact.path, fact.reason);
    }
    if let Some(core) = core {
        host::pin(core)?;
    }
    let clock = Clock::calibrate(epoch, machine.clocksource.as_deref());
    let local = Local {
        machine,
        core,
        numa_node: core.and_then(host::node_of_core),
        buffers: Buffers { page_bytes: memory::page_bytes(placement), numa_node: plan.numa },
        process: Process::current(),
        clock: clock.report().into(),
        device: device(&context)?,
    };
    explain(screen, &local);
    note(document, &local);
    document.local = Some(local);
    paging(plan, &context, document)?;
    screen.begin(document);
    let pd = context.alloc_pd()?;
    let mut run = Run {
        pd,
        placement,
        timing: Timing { clock: &clock, stop: plan.stop, signalled },
        longest: context.attr()?.max_mr_size,
        refused: None,
        cut: Vec::new(),
        document,
    };
    for &size in &plan.sizes {
        let meter = CpuMeter::start(false);
        let outcome = run.size(size);
        if let Some(used) = meter.ok().and_then(|meter| meter.stop().ok()) {
            run.disturbed(size, &used);
        }
        screen.measured(run.document, size);
        outcome?;
    }
    run.finish()?;
    match clock.report().calibration_ppm.filter(|ppm| ppm.abs() > TOLERATED_PPM) {
        Some(ppm) => Err(Error::invalid(Step::Measure, format!("the clock's rate moved by {ppm:.0} ppm"))),
        None => Ok(()),
    }
}

/// Opens the device a user named, or else the first that opens, or else an emulated one.
fn open(name: Option<&str>) -> Result<Context> {
    if let Some(name) = name {
        return verbs::find(name)?.open();
    }
    let (emulated, real): (Vec<_>, Vec<_>) =
        verbs::devices()?.into_iter().partition(verbs::Device::is_emulated);
    let mut first = None;
    for device in if real.is_empty() { emulated } else { real } {
        match device.open() {
            Ok(context) => return Ok(context),
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    Err(first.unwrap_or_else(|| {
        Error::failed(Step::OpenDevice, "this machine has no RDMA device")
            .with_remedy(verbs::NO_DEVICE_REMEDY)
    }))
}

fn device(context: &Context) -> Result<Device> {
    let (handle, attr) = (context.device(), context.attr()?);
    let provider = if handle.is_emulated() { Some(result::Device::EMULATED.into()) } else { handle.driver() };
    let transports = [Some(Transport::Rc), Some(Transport::Uc), None];
    let mut on_demand_paging = false;
    for transport in transports {
        on_demand_paging |= context.on_demand_paging(transport)? != verbs::OnDemandPaging::default();
    }
    Ok(Device {
        name: handle.name().into(),
        driver: handle.driver(),
        provider,
        firmware: Some(attr.firmware).filter(|firmware| !firmware.is_empty()),
        is_software: handle.is_software(),
        numa_node: host::node_of_device(handle.name()),
        node_guid: handle.guid_text(),
        max_mr_size: attr.max_mr_size,
        on_demand_paging,
    })
}

fn explain(screen: &Screen, local: &Local) {
    let core = local.core.map_or_else(|| "not chosen".into(), |core| core.to_string());
    let size = |bytes: u64| if bytes == u64::MAX { "any length".into() } else { format_size(bytes) };
    screen.explain(&format!("core {core}; clock {}", local.clock.source));
    screen.explain(&format!(
        "{} registers {} at once, {} on-demand paging; pages of {}",
        local.device.name,
        size(local.device.max_mr_size),
        if local.device.on_demand_paging { "with" } else { "without" },
        format_size(local.buffers.page_bytes)
    ));
}

/// What must be said of the device, and what it does not tell.
fn note(document: &mut Document, local: &Local) {
    let (device, name) = (&local.device, &local.device.name);
    let provider = device.provider.as_deref().unwrap_or("without a name");
    if provider == result::Device::EMULATED {
        document.note(
            "emulated",
            format!(
                "{name} is emulated in this process: it registers by adding to a table and pins nothing. Numbers of its \
                 calls measure this tool"
            ),
        );
    } else if device.is_software == Some(true) {
        document.note(
            "software",
            format!("{name} is software RDMA ({provider}): pages are pinned, but no adapter is told of them"),
        );
    } else if device.is_software.is_none() {
        document.note("unknown", format!("the provider of {name} ({provider}) is not known to be hardware"));
    }
    let absent = [
        ("core", local.core.is_none(), "no core could be chosen"),
        ("numa_node", local.numa_node.is_none(), "the kernel has no NUMA node for the core"),
        ("device.driver", device.driver.is_none(), "sysfs names no driver"),
        ("device.provider", device.provider.is_none(), "sysfs names no driver"),
        ("device.firmware", device.firmware.is_none(), "the device reports no version"),
        ("device.is_software", device.is_software.is_none(), "the driver is not known"),
        (
            "device.numa_node",
            device.numa_node.is_none(),
            "the device is on no NUMA node that the kernel names",
        ),
        ("device.node_guid", device.node_guid.is_none(), "the device has none"),
    ];
    for (key, is_absent, reason) in absent {
        if is_absent {
            document.miss(format!("local.{key}"), reason);
        }
    }
}

/// Leaves out what the device does not do, unless it is all that was asked for.
fn paging(plan: &Plan, context: &Context, document: &mut Document) -> Result<()> {
    let has = document.local.as_ref().is_some_and(|local| local.device.on_demand_paging);
    if has {
        return Ok(());
    }
    let name = context.device().name();
    if plan.paging == [Paging::OnDemand] {
        return Err(Error::failed(Step::RegisterMemory, format!("{name} does no on-demand paging")).with_remedy(
            "leave --odp away, or choose another device with -d (`ibv_devinfo -v` shows general_odp_caps)",
        ));
    }
    document.test.paging.retain(|paging| *paging != Paging::OnDemand);
    document.note(
        "no_on_demand_paging",
        format!("{name} does no on-demand paging: only pinned memory was measured"),
    );
    Ok(())
}

/// A run with everything at hand.
struct Run<'a> {
    pd: Pd,
    placement: Placement,
    timing: Timing<'a>,
    /// Bytes that the device registers at once.
    longest: u64,
    /// The smallest size that could not be pinned, and why: larger ones are not tried.
    refused: Option<(u64, Error)>,
    /// Sizes not measured, each once, and why.
    cut: Vec<(u64, Error)>,
    document: &'a mut Document,
}

impl Run<'_> {
    /// All of one size.
    fn size(&mut self, size: u64) -> Result<()> {
        if let Err(error) = self.has_room(size) {
            for (pages, paging) in self.cases() {
                self.add_case(size, pages, paging, &Registrations::default(), Some(&error));
            }
            self.add_copy(size, &LatencyHistogram::new(), Some(&error));
            self.cut.push((size, error));
            return Ok(());
        }
        let first = self.document.results.len();
        for (pages, paging) in self.cases() {
            self.case(size, pages, paging)?;
        }
        let mut calls = LatencyHistogram::new();
        let outcome = self.timing.copies(size as usize, self.placement, &mut calls);
        let outcome = match outcome {
            Err(error) if error.kind == Kind::Failed => {
                self.add_copy(size, &calls, Some(&error));
                self.cut_once(size, error);
                return Ok(());
            }
            outcome => outcome,
        };
        if calls.samples() > 0 {
            self.add_copy(size, &calls, None);
        }
        outcome?;
        self.break_even(first);
        Ok(())
    }

    fn cases(&self) -> Vec<(Pages, Paging)> {
        let test = &self.document.test;
        test.paging.iter().flat_map(|paging| test.pages.iter().map(|pages| (*pages, *paging))).collect()
    }

    /// Registration and its end of one kind of memory. What is refused is noted and goes on.
    fn case(&mut self, size: u64, pages: Pages, paging: Paging) -> Result<()> {
        let mut calls = Registrations::default();
        let case = Case { len: size as usize, placement: self.placement, pages, paging };
        let outcome = match &self.refused {
            Some((least, error)) if paging == Paging::Pinned && size >= *least => Err(error.clone()),
            _ => self.timing.registrations(&self.pd, case, &mut calls),
        };
        match outcome {
            Err(error) if error.kind == Kind::Failed => {
                self.add_case(size, pages, paging, &calls, Some(&error));
                if paging == Paging::Pinned && self.refused.is_none() {
                    self.refused = Some((size, error.clone()));
                }
                self.cut_once(size, error);
                Ok(())
            }
            outcome => {
                if calls.register.samples() > 0 {
                    self.add_case(size, pages, paging, &calls, None);
                }
                outcome
            }
        }
    }

    fn add_case(
        &mut self,
        size: u64,
        pages: Pages,
        paging: Paging,
        calls: &Registrations,
        error: Option<&Error>,
    ) {
        let reason = error.map(|error| error.message.as_str());
        for (operation, calls) in
            [(Operation::Register, &calls.register), (Operation::Deregister, &calls.deregister)]
        {
            self.document.add(ResultRow::new(operation, size, Some((pages, paging)), calls), reason);
        }
    }

    fn add_copy(&mut self, size: u64, calls: &LatencyHistogram, error: Option<&Error>) {
        let reason = error.map(|error| error.message.as_str());
        self.document.add(ResultRow::new(Operation::Copy, size, None, calls), reason);
    }

    /// Compares the results from the `first` on, the last of which is the copy.
    fn break_even(&mut self, first: usize) {
        let emulated = self.document.is_emulated();
        let Some((copy, calls)) = self.document.results[first..].split_last() else { return };
        let found: Vec<_> = calls
            .chunks_exact(2)
            .filter_map(|pair| BreakEven::of(&pair[0], &pair[1], copy, emulated))
            .collect();
        self.document.break_even.extend(found);
    }

    fn cut_once(&mut self, size: u64, error: Error) {
        if self.cut.iter().all(|(known, _)| *known != size) {
            self.cut.push((size, error));
        }
    }

    /// Says what took the core away.
    fn disturbed(&mut self, size: u64, used: &CpuUse) {
        let (shown, switches) = (format_size(size), used.involuntary_switches);
        let seconds = (used.total_ns + used.ready_wait_ns.unwrap_or(0)) as f64 / 1e9;
        if switches as f64 > PREEMPTED_PER_S * seconds.max(0.1) {
            self.document.warn("preempted", format!("the core was taken {switches} times during {shown}"));
        }
        if let Some(steal_ns) = used.steal_ns.filter(|ns| *ns > 0) {
            let ms = steal_ns / 1_000_000;
            self.document.warn("steal", format!("the hypervisor took the core for {ms} ms during {shown}"));
        }
    }

    /// The device takes a buffer of this size, and the machine has room for two.
    fn has_room(&self, size: u64) -> Result<()> {
        let shown = format_size(size);
        if size > self.longest {
            let longest = self.longest;
            return Err(Error::failed(
                Step::RegisterMemory,
                format!("{shown} is longer than the {longest} bytes the device registers at once"),
            )
            .with_remedy("choose smaller sizes with -s"));
        }
        let (available, needed, kind) = match self.placement.huge_page_bytes {
            Some(page) => {
                let pages = memory::huge_pages()?.available;
                (
                    pages.saturating_mul(page as u64),
                    2 * size.next_multiple_of(page as u64),
                    "reserved huge pages",
                )
            }
            // Where the kernel does not tell, it is tried.
            None => (host::available_memory().unwrap_or(u64::MAX), 2 * size + SPARE, "memory"),
        };
        if needed <= available {
            return Ok(());
        }
        Err(Error::failed(
            Step::RegisterMemory,
            format!(
                "{shown} needs {} of {kind}, for a buffer to copy from and one to copy to, and {} are available",
                format_size(needed.next_multiple_of(1 << 20)),
                format_size(available >> 20 << 20)
            ),
        )
        .with_remedy(match self.placement.huge_page_bytes {
            Some(_) => "reserve more (as root, `sysctl vm.nr_hugepages=N`), choose smaller sizes with -s, or leave --hugepages away",
            None => "choose smaller sizes with -s, or give this process more memory (cgroup)",
        }))
    }

    /// Says what was not measured. If that is everything, the run has failed.
    fn finish(&mut self) -> Result<()> {
        if self.document.break_even.iter().any(|found| found.uses.is_none()) {
            self.document.miss("break_even[].uses", "calls of an emulated device measure this tool");
        }
        let Some((_, first)) = self.cut.first().cloned() else { return Ok(()) };
        let registered = |row: &ResultRow| row.operation == Operation::Register && row.latency_ns.is_some();
        if !self.document.results.iter().any(registered) {
            return Err(first);
        }
        for cut in self.cut.chunk_by(|a, b| a.1 == b.1) {
            let sizes: Vec<_> = cut.iter().map(|(size, _)| format_size(*size)).collect();
            let error = &cut[0].1;
            let remedy = error.remedy.as_deref().map(|remedy| format!("; try: {remedy}")).unwrap_or_default();
            self.document.warn(
                "not_measured",
                format!("not or not wholly measured: {}: {}{remedy}", sizes.join(", "), error.message),
            );
        }
        Ok(())
    }
}
