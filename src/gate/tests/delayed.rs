//! A delay injected in the emulated device, judged as a gate does: what is measured is the real loop over real queue pairs,
//! and what varies is known to the nanosecond, because the time is virtual. Nothing here depends on the machine.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::random::Random;
use crate::cli;
use crate::gate::rule::{FIRST_LOOK, LAST_LOOK};
use crate::gate::{Code, Judgement, Rule, Verdict, judge, order, overall};
use crate::measure::latency::{initiate, respond};
use crate::measure::{Clock, Epoch, Halt, LatencyHistogram, RoundTrip, Stop, Ticks, Waiting, Wake, Watch};
use crate::ops::{self, Verb};
use crate::plan::{self, Shape, Side, Test};
use crate::result::Quantity;
use crate::transport::path::{self, PathChoice};
use crate::transport::rdma::{PingPong, Port, Prepared, Rdma, Reads};
use crate::verbs::VirtualTime;

/// What a message takes besides the delay of its device, in ns: usually, and in the round trips that make the 99th
/// percentile another number than the median.
type Costs = [u64; 2];

/// Where the floor is far below what is judged.
const COSTS: Costs = [2000, 2200];

/// Round trips of a run: the fewest whose 99th percentile has ten samples beyond it.
const TRIPS: u64 = 1000;

/// Run-to-run scatter, as a share.
const SCATTER: f64 = 0.015;

/// What is judged, and the quantile of a run's histogram that it is.
const METRICS: [(Quantity, f64); 2] = [(Quantity::P50, 0.5), (Quantity::P99, 0.99)];

/// The clock of a run in which everything takes longer by a factor.
#[derive(Clone, Copy)]
struct Slowed<'t> {
    time: &'t VirtualTime,
    factor: f64,
}

impl Ticks for Slowed<'_> {
    fn now(self) -> u64 {
        (self.time.ns() as f64 * self.factor) as u64
    }
}

/// What is not there at the first look never comes: no other thread could bring it.
#[derive(Default)]
struct AtOnce;

impl Waiting for AtOnce {
    const SLEEPS: bool = false;

    fn polls(_: &Watch<'_>) -> u32 {
        1
    }

    fn idle<S: Wake>(&mut self, _: &mut S, _: &Watch<'_>) -> Result<bool, Halt> {
        Err(Halt::Peer)
    }
}

/// Both ends on one thread, which is what makes the order of events, and so the time, the same each time. The device has
/// done what is posted when the post returns, so that neither end ever waits.
struct BothEnds<'r> {
    client: PingPong<'r, ops::Send, AtOnce>,
    server: PingPong<'r, ops::Send, AtOnce>,
    time: &'r VirtualTime,
    costs_ns: Costs,
    trips: u64,
}

impl BothEnds<'_> {
    /// One trip in fifty is a slow one.
    fn pass_cost(&self) {
        self.time.pass(self.costs_ns[usize::from(self.trips.is_multiple_of(50))]);
    }
}

impl RoundTrip for BothEnds<'_> {
    fn start(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.trips += 1;
        self.pass_cost();
        self.client.start(watch)
    }

    fn finish(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.pass_cost();
        match respond::<_, false>(&mut self.server, watch) {
            // The one message that there was, and no other.
            (1, Halt::Peer) => self.client.finish(watch),
            (_, halt) => Err(halt),
        }
    }

    fn settle(&mut self, watch: &Watch<'_>) -> Result<(), Halt> {
        self.client.settle(watch)
    }

    fn stamp(&mut self) {
        self.client.stamp();
    }

    fn check(&mut self) -> Result<(), Halt> {
        self.client.check()
    }
}

/// One of the two that are compared: they differ in the delay of the device.
struct Build<'t> {
    time: &'t VirtualTime,
    costs_ns: Costs,
    port: Port,
    choice: PathChoice,
    reads: Reads,
    test: Test,
    clock: Clock,
}

impl<'t> Build<'t> {
    fn new(time: &'t VirtualTime, costs_ns: Costs, delay_ns: u64) -> Self {
        let words = ["send_lat", "--loopback", "-d", "emu0", "-s", "16", "-r", "4"].map(Into::into);
        let typed = cli::parse("send_lat", "", words).unwrap();
        let plan = plan::resolve(typed, Verb::Send, Shape::Latency, 1).unwrap();
        let port = time.misbehaving(&format!("delay={delay_ns}"), || Port::open(&plan.site)).unwrap();
        let facts = port.facts();
        Self {
            time,
            costs_ns,
            choice: path::choose(&facts, &facts, None, |_| None).unwrap(),
            reads: Reads::agree(&plan.test, &facts, &facts),
            test: plan.test,
            port,
            // Of a kernel without a trusted counter: a tick is a nanosecond.
            clock: Clock::calibrate(Epoch::note(), None),
        }
    }

    /// The ends of a connection that no run has used.
    fn connect(&self) -> [Rdma; 2] {
        let [client, server] =
            [Side::Client, Side::Server].map(|side| Prepared::new(&self.port, &self.test, side).unwrap());
        let (here, there) = (client.endpoint(), server.endpoint());
        [(client, there), (server, here)]
            .map(|(end, peer)| end.connect(&peer, &self.test, &self.choice, self.reads).unwrap())
    }

    /// The metrics of one run: half of a round trip, since the server echoes.
    fn run(&self, factor: f64) -> [f64; 2] {
        static QUIET: AtomicBool = AtomicBool::new(false);
        let (control, _peer) = UnixStream::pair().unwrap();
        let watch = Watch::new(control.as_fd(), &QUIET, Duration::from_secs(5));
        let [mut client, mut server] = self.connect();
        let mut path = BothEnds {
            client: PingPong::new(&mut client, 16),
            server: PingPong::new(&mut server, 16),
            time: self.time,
            costs_ns: self.costs_ns,
            trips: 0,
        };
        let mut histogram = LatencyHistogram::new();
        let ticks = Slowed { time: self.time, factor };
        let limit = Stop::Count(TRIPS).into();
        let made = initiate::<_, _, false>(&mut path, ticks, &self.clock, limit, &watch, &mut histogram);
        assert_eq!(made.unwrap(), TRIPS);
        METRICS.map(|(_, quantile)| histogram.quantile(quantile).unwrap() as f64 / 2.0)
    }
}

/// Values of runs, by arm and metric.
type Runs = [[Vec<f64>; 2]; 2];

fn judged([a, b]: &Runs, last: bool) -> Vec<Judgement> {
    let rule = |metric: Quantity| metric.rule(0.0).unwrap();
    let judge = |(i, (metric, _)): (usize, _)| judge(&rule(metric), &a[i], &b[i], last).unwrap();
    METRICS.into_iter().enumerate().map(judge).collect()
}

/// A gate of a device with the first delay against one with the second, on a machine whose runs scatter.
fn gate(seed: u64, costs_ns: Costs, delays_ns: [u64; 2], scatter: f64) -> (Vec<Judgement>, Runs) {
    let time = VirtualTime::begin();
    let builds = delays_ns.map(|delay_ns| Build::new(&time, costs_ns, delay_ns));
    let mut random = Random(seed);
    let mut runs = Runs::default();
    for (done, arm) in order(seed, LAST_LOOK).into_iter().enumerate() {
        if done == 2 * FIRST_LOOK {
            let found = judged(&runs, false);
            if overall(&found) != Verdict::Inconclusive {
                return (found, runs);
            }
        }
        let values = builds[arm as usize].run((scatter * random.normal()).exp());
        runs[arm as usize].iter_mut().zip(values).for_each(|(metric, value)| metric.push(value));
    }
    (judged(&runs, true), runs)
}

/// Gates with these seeds all end so, and estimate the true ratios within what the histogram rounds and runs scatter.
fn assert_verdict(seeds: u64, delays_ns: [u64; 2], scatter: f64, verdict: Verdict) {
    let [before, after] = delays_ns.map(|delay_ns| COSTS.map(|cost_ns| (cost_ns + delay_ns) as f64));
    for seed in 0..seeds {
        let (found, _) = gate(seed, COSTS, delays_ns, scatter);
        for (i, found) in found.iter().enumerate() {
            assert_eq!(found.verdict, verdict, "{seed}: {found:?}");
            let off = found.ratio.unwrap() / (after[i] / before[i]) - 1.0;
            // A bucket is 0.1 % wide; the estimate scatters as a difference of two means does.
            let deviation = scatter * (2.0 / found.n_a as f64).sqrt();
            assert!(off.abs() <= 0.001 + 3.0 * deviation, "{seed}: {off} of {found:?}");
        }
    }
}

#[test]
fn the_loop_reads_the_delay_to_the_nanosecond() {
    let time = VirtualTime::begin();
    for delay_ns in [0, 1, 15, 200, 500] {
        let values = Build::new(&time, [200, 220], delay_ns).run(1.0);
        assert_eq!(values, [200 + delay_ns, 220 + delay_ns].map(|ns| ns as f64));
    }
}

#[test]
fn a_delay_of_a_tenth_and_more_is_a_regression() {
    assert_verdict(5, [0, 200], SCATTER, Verdict::Regression);
    assert_verdict(5, [0, 2000], SCATTER, Verdict::Regression);
}

#[test]
fn no_delay_passes() {
    assert_verdict(20, [0, 0], SCATTER, Verdict::Pass);
}

#[test]
fn a_shorter_delay_is_an_improvement() {
    assert_verdict(5, [600, 200], SCATTER, Verdict::Improved);
}

#[test]
fn without_scatter_the_estimate_is_the_true_ratio() {
    assert_verdict(1, [0, 200], 0.0, Verdict::Regression);
    assert_verdict(1, [200, 200], 0.0, Verdict::Pass);
}

#[test]
fn a_delay_below_the_floor_passes_where_its_share_alone_would_not() {
    for seed in 0..5 {
        let (found, [a, b]) = gate(seed, [200, 220], [0, 15], SCATTER);
        assert!(found.iter().all(|found| found.verdict == Verdict::Pass), "{seed}: {found:?}");
        assert_eq!(found[0].reasons[0].code, Code::BelowFloor, "{seed}: {found:?}");
        let without = Rule { floor: 0.0, ..Quantity::P50.rule(0.0).unwrap() };
        assert_eq!(judge(&without, &a[0], &b[0], true).unwrap().verdict, Verdict::Regression, "{seed}");
    }
}

#[test]
fn a_gate_is_repeated_to_the_bit() {
    let one = gate(7, COSTS, [0, 0], SCATTER);
    let other = std::thread::spawn(|| gate(7, COSTS, [0, 0], SCATTER)).join().unwrap();
    assert_eq!(one, other);
}
