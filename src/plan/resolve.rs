//! From what was typed to what was decided.

use std::time::Duration;

use super::{
    Connection, Load, MemoryKind, Outputs, Plan, Role, Shape, Side, Site, Test, Transport, Wait, limits,
    service,
};
use crate::cli::{SizeSpec, TestArgs, Typed};
use crate::error::{Error, Result};
use crate::measure::{Limit, Stop};
use crate::ops::{ATOMIC_SIZE, Arrival, Verb};

/// Length of a warm-up.
const WARM_UP: Duration = Duration::from_millis(100);

/// Fewest messages of a warm-up that a count limits.
const FEWEST_WARM_UP: u64 = 16;

/// Inline asked for by latency tests: more than any common device grants, so that each gives its most.
const LATENCY_INLINE: u32 = 220;

/// Depth of a send queue.
const TX_DEPTH: u32 = 128;

/// Depth of a receive queue.
const RX_DEPTH: u32 = 512;

/// Work requests that the queues of many queue pairs have room for in all, unless asked for otherwise: completion
/// queues of some devices end at twice as many.
const QUEUED_IN_ALL: u32 = 1 << 14;

/// Most sends that share one completion by default.
const SIGNAL_EVERY: u32 = 32;

/// Completions taken with one poll of a stream by default.
const CQE_BATCH: u32 = 16;

/// Size of a datagram where bandwidth is measured and no size is given: what an Ethernet of the usual 1500 bytes takes.
const DATAGRAM: u64 = 1024;

/// Largest size of a sweep.
const SWEEP_END: u64 = 8 << 20;

/// Decides everything the options leave open. `payload_seed` is what payload patterns are made from.
///
/// # Errors
/// Options that contradict each other, with the values and what to change.
pub fn resolve(typed: Typed, verb: Verb, shape: Shape, payload_seed: u64) -> Result<Plan> {
    let Typed { args, client_options } = typed;
    let role = match (&args.host, args.loopback) {
        (Some(host), _) => Role::Client(host.clone()),
        (None, true) => Role::Loopback,
        (None, false) => Role::Server,
    };
    if args.endpoint.port == 0 && matches!(role, Role::Client(_)) {
        return Err(Error::usage("-p 0 is for a server that takes a free port; a client must name it"));
    }
    let verb = operation(&args, &client_options, verb)?;
    Load::check_typed(&args.shape.load, shape)?;
    let test = test(&args, verb, shape, payload_seed);
    service::check_typed(test.connection, &client_options)?;
    test.check()?;
    let outputs = Outputs {
        json: args.output.json.clone(),
        csv: args.output.csv.clone(),
        hlog: args.output.hlog.clone(),
    };
    outputs.check()?;
    let (ignored, limits) = match role {
        Role::Server => (client_options, Vec::new()),
        Role::Client(_) | Role::Loopback => (Vec::new(), args.shape.limits),
    };
    limits::check(&limits, &test)?;
    if role != Role::Server && !args.endpoint.allow.is_empty() {
        return Err(Error::usage("--allow is for a server: it says where clients may come from")
            .with_remedy("leave --allow away"));
    }
    let site = Site {
        may_emulate: role == Role::Loopback,
        connect_timeout: args.reach.connect_timeout,
        ..Site::of_server(args.endpoint, args.shape.tcp_only, args.output.verbose)
    };
    Ok(Plan {
        role,
        test,
        is_sweep: args.shape.all,
        site,
        server_core: args.shape.peer_cpu,
        outputs,
        labels: args.output.labels,
        limits,
        ignored,
    })
}

/// The verb of the binary, or the atomic operation chosen.
fn operation(args: &TestArgs, given: &[String], verb: Verb) -> Result<Verb> {
    if !verb.facts().is_atomic() {
        return match given.iter().any(|option| option == "--atomic") {
            true => Err(Error::usage(format!("-A has no meaning for {verb}")).with_remedy("leave -A away")),
            false => Ok(verb),
        };
    }
    // perftest's names are aliases of these two.
    let is_swap = args.shape.atomic.to_lowercase().starts_with('c');
    Ok(if is_swap { Verb::CompareSwap } else { Verb::FetchAdd })
}

fn test(args: &TestArgs, verb: Verb, shape: Shape, payload_seed: u64) -> Test {
    let (queues, path) = (&args.queues, &args.path);
    let connection = service::named(&args.shape.connection);
    let sizes = match (&args.shape.size, args.shape.all, shape) {
        (Some(spec), ..) => spec.sizes().to_vec(),
        (None, true, _) if connection == Connection::Ud => {
            let most = path.mtu.map_or(service::LARGEST_DATAGRAM, u64::from);
            SizeSpec::doubling(1, most).sizes().to_vec()
        }
        (None, true, _) => SizeSpec::doubling(1, SWEEP_END).sizes().to_vec(),
        (None, false, _) if verb.facts().is_atomic() => vec![ATOMIC_SIZE],
        (None, false, Shape::Latency) => vec![64],
        (None, false, Shape::Bandwidth) if connection == Connection::Ud => vec![DATAGRAM],
        (None, false, Shape::Bandwidth) => vec![64 << 10],
    };
    let stop = match (args.shape.iters, args.shape.duration) {
        (Some(count), _) => Stop::Count(count),
        (None, span) => Stop::After(span.unwrap_or(Duration::from_secs(1))),
    };
    let messages = match stop {
        Stop::Count(count) if args.shape.warm_up.is_none() => (count / 10).max(FEWEST_WARM_UP),
        _ => u64::MAX,
    };
    let queue_depth = |one: u32| (QUEUED_IN_ALL / queues.qps).clamp(one / 8, one);
    let tx_depth = queues.tx_depth.unwrap_or(queue_depth(TX_DEPTH));
    let rx_depth = queues.rx_depth.unwrap_or(if queues.srq { RX_DEPTH } else { queue_depth(RX_DEPTH) });
    let transports = match (args.shape.no_tcp, args.shape.tcp_only) {
        (true, _) => vec![Transport::Rdma],
        (_, true) => vec![Transport::Tcp],
        _ => vec![Transport::Rdma, Transport::Tcp],
    };
    Test {
        verb,
        shape,
        connection,
        wait: if args.shape.events { Wait::Events } else { Wait::Busy },
        compare_waits: args.shape.compare_wait,
        transports,
        sizes,
        stop,
        warm_up: Limit { messages, span: args.shape.warm_up.unwrap_or(WARM_UP) },
        tx_depth,
        rx_depth,
        load: Load::new(&args.shape.load, verb, shape, tx_depth, rx_depth),
        signal_every: queues.cq_mod.unwrap_or_else(|| SIGNAL_EVERY.min(tx_depth / 4).max(1)),
        post_list: queues.post_list,
        cqe_batch: queues.cqe_batch.unwrap_or(if shape == Shape::Bandwidth { CQE_BATCH } else { 1 }),
        bidirectional: args.shape.bidirectional,
        qps: queues.qps,
        shared_receive: queues.srq,
        buffers: args.memory.buffers,
        threads: queues.threads,
        memory: if args.memory.hugepages { MemoryKind::HugePages } else { MemoryKind::Anonymous },
        relaxed_ordering: args.memory.relaxed_ordering,
        on_demand_paging: args.memory.odp,
        max_inline: queues.inline.unwrap_or(match shape {
            Shape::Latency if verb.facts().may_inline => LATENCY_INLINE,
            _ => 0,
        }),
        outstanding_reads: queues.outs,
        mtu: path.mtu,
        service_level: path.sl,
        traffic_class: path.tclass,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        qp_timeout: path.qp_timeout,
        retry_count: path.retry_count,
        rnr_retry: path.rnr_retry,
        min_rnr_timer: path.min_rnr_timer,
        tcp: (&args.tcp).into(),
        verify: args.shape.verify,
        cpu_report: args.shape.cpu_report,
        payload_seed,
        first: Side::Client,
        stall_timeout: path.stall_timeout,
        loss_timeout: args.shape.loss_timeout,
    }
}

impl Outputs {
    /// Each goes to a place of its own.
    ///
    /// # Errors
    /// Two that do not.
    pub fn check(&self) -> Result<()> {
        let named = [("--json", &self.json), ("--csv", &self.csv), ("--hlog", &self.hlog)];
        let given: Vec<_> =
            named.iter().filter_map(|(option, file)| Some((option, file.as_ref()?))).collect();
        for (i, (option, file)) in given.iter().enumerate() {
            if let Some((other, _)) = given[..i].iter().find(|(_, earlier)| earlier == file) {
                return Err(Error::usage(format!("{other} and {option} both go to {}", file.display()))
                    .with_remedy("give each a file of its own; at most one may be -"));
            }
        }
        Ok(())
    }
}

impl Test {
    /// Checks what options decide together: the client before it connects, the server before it agrees.
    ///
    /// # Errors
    /// The values that do not go together, and what to change.
    pub fn check(&self) -> Result<()> {
        let facts = self.verb.facts();
        self.check_service()?;
        if self.signal_every > self.tx_depth {
            return Err(Error::usage(format!(
                "-Q {} would leave a full send queue of -t {} without a completion",
                self.signal_every, self.tx_depth
            ))
            .with_remedy(format!("use -Q {} or less", self.tx_depth)));
        }
        if self.post_list > self.tx_depth {
            return Err(Error::usage(format!(
                "a list of -l {} does not fit a send queue of -t {}",
                self.post_list, self.tx_depth
            ))
            .with_remedy(format!("use -l {} or less", self.tx_depth)));
        }
        if self.shape == Shape::Latency && (self.post_list, self.cqe_batch) != (1, 1) {
            return Err(Error::usage(
                "-l and --cqe-batch have no meaning for a latency test: each message is posted and completes by itself",
            )
            .with_remedy("leave them away, or use the bandwidth test"));
        }
        if self.shape == Shape::Latency && facts.arrival == Arrival::LastByte && self.sleeps() {
            return Err(Error::usage(format!(
                "a {} has no completion at its target, so that none can wake it",
                self.verb
            ))
            .with_remedy("leave --events and --compare-wait away, or use write_imm_lat"));
        }
        if self.relaxed_ordering && self.shape == Shape::Latency && facts.arrival == Arrival::LastByte {
            return Err(Error::usage(format!(
                "--relaxed-ordering lets the last byte of a {} arrive before the others, and this test waits for it",
                self.verb
            ))
            .with_remedy("leave --relaxed-ordering away, or use write_imm_lat"));
        }
        for (option, is_given) in
            [("--relaxed-ordering", self.relaxed_ordering), ("--odp", self.on_demand_paging)]
        {
            if is_given && !self.measures(Transport::Rdma) {
                return Err(Error::usage(format!("{option} is for RDMA, which --tcp-only leaves out"))
                    .with_remedy(format!("leave {option} away")));
            }
        }
        self.load.check(self)?;
        self.tcp.check(self)?;
        self.check_directions()?;
        self.check_queues()?;
        if self.max_inline > 0 && !facts.may_inline {
            return Err(Error::usage(format!("-I has no meaning for {}: it sends no payload", self.verb))
                .with_remedy("leave -I away"));
        }
        if let Some(size) = self.sizes.iter().find(|size| facts.is_atomic() && **size != ATOMIC_SIZE) {
            return Err(Error::usage(format!("a {} has {ATOMIC_SIZE} bytes, not {size}", self.verb))
                .with_remedy("leave -s and -a away"));
        }
        let gives_up = self.device_gives_up_after();
        let may_give_up = self.measures(Transport::Rdma) && self.connection.is_reliable();
        if may_give_up && self.stall_timeout <= gives_up {
            return Err(Error::usage(format!(
                "--stall-timeout {:.1} s would end before the device gives up, which takes up to {:.1} s with -u {} and \
                 --retry-count {}",
                self.stall_timeout.as_secs_f64(),
                gives_up.as_secs_f64(),
                self.qp_timeout,
                self.retry_count
            ))
            .with_remedy("raise --stall-timeout, or lower -u or --retry-count"));
        }
        Ok(())
    }

    /// What is asked of the queues has a meaning for this test.
    fn check_queues(&self) -> Result<()> {
        let refuse = |message: String, remedy: &str| Err(Error::usage(message).with_remedy(remedy));
        let consumes = self.verb.facts().arrival == Arrival::RecvCompletion;
        if self.shared_receive && !consumes {
            return refuse(
                format!("--srq has no meaning for {}: it takes no receives", self.verb),
                "leave --srq away",
            );
        }
        match (self.shape, self.buffers) {
            (Shape::Latency, Some(_)) => {
                return refuse("--buffers is for bandwidth tests".into(), "leave --buffers away");
            }
            (Shape::Latency, None) if self.threads > 1 => {
                return refuse(
                    format!("--threads {} is for bandwidth tests", self.threads),
                    "leave --threads away",
                );
            }
            (Shape::Latency, None) if self.shared_receive && self.is_pipelined() => {
                return refuse(
                    "--srq goes with one message outstanding: each of many has its own receive".into(),
                    "leave --srq away, or measure on one queue pair at --depth 1 without --rate",
                );
            }
            (Shape::Bandwidth, Some(buffers)) if !buffers.is_multiple_of(self.post_list) => {
                return refuse(
                    format!("--buffers {buffers} is no multiple of -l {}", self.post_list),
                    "lists go through the buffers one behind the other: choose a multiple",
                );
            }
            _ => {}
        }
        if let Stop::Count(count) = self.stop
            && count < self.threads.into()
        {
            return refuse(
                format!("-n {count} leaves some of --threads {} without a message", self.threads),
                "raise -n, or lower --threads",
            );
        }
        Ok(())
    }

    /// How long a device may try before it reports a peer that does not answer: each try takes up to four times the
    /// timeout that was set (IBTA 9.9.2.1.3).
    pub fn device_gives_up_after(&self) -> Duration {
        Duration::from_nanos(4096) * (1u32 << self.qp_timeout.min(31)) * 4 * (u32::from(self.retry_count) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    fn plan(verb: Verb, shape: Shape, line: &str) -> Result<Plan> {
        let words = std::iter::once("x").chain(line.split_whitespace()).map(Into::into);
        resolve(cli::parse("x", "about", words).unwrap(), verb, shape, 1)
    }

    #[test]
    fn defaults_are_those_of_the_manual() {
        let latency = plan(Verb::Send, Shape::Latency, "--loopback").unwrap().test;
        assert_eq!((latency.sizes, latency.stop), (vec![64], Stop::After(Duration::from_secs(1))));
        assert_eq!((latency.max_inline, latency.tx_depth, latency.rx_depth), (220, 128, 512));
        assert_eq!(latency.transports, [Transport::Rdma, Transport::Tcp]);
        let bandwidth = plan(Verb::Write, Shape::Bandwidth, "host").unwrap().test;
        assert_eq!((bandwidth.sizes, bandwidth.max_inline), (vec![65536], 0));
    }

    #[test]
    fn a_warm_up_is_the_shorter_of_a_tenth_second_and_a_tenth_of_the_count() {
        let warm_up = |line| plan(Verb::Send, Shape::Latency, line).unwrap().test.warm_up;
        assert_eq!(warm_up("-n 1000"), Limit { messages: 100, span: WARM_UP });
        assert_eq!(warm_up("-n 1"), Limit { messages: 16, span: WARM_UP });
        assert_eq!(warm_up("-D 2"), Limit { messages: u64::MAX, span: WARM_UP });
        assert_eq!(warm_up("-n 10 --warm-up 2").span, Duration::from_secs(2));
    }

    #[test]
    fn options_that_contradict_each_other_say_what_to_change() {
        for (verb, shape, line, word) in [
            (Verb::Send, Shape::Bandwidth, "-t 8 -Q 9", "-Q 9"),
            (Verb::Write, Shape::Latency, "--events", "no completion"),
            (Verb::Write, Shape::Latency, "--compare-wait", "no completion"),
            (Verb::Read, Shape::Latency, "-I 64", "-I"),
            (Verb::Write, Shape::Bandwidth, "-t 8 -l 9 -Q 1", "-l 9"),
            (Verb::Write, Shape::Latency, "-l 2", "-l"),
            (Verb::Write, Shape::Latency, "--cqe-batch 4", "--cqe-batch"),
            (Verb::Send, Shape::Latency, "-A fetch_add", "-A"),
            (Verb::Write, Shape::Bandwidth, "--depth 8", "--depth"),
            (Verb::Write, Shape::Latency, "--depth 129", "-t 128"),
            (Verb::Send, Shape::Latency, "-r 8 --depth 9", "-r 8"),
            (Verb::Send, Shape::Latency, "--rate 1k --events", "--events"),
            (Verb::Send, Shape::Latency, "--rate 1k --compare-wait", "--compare-wait"),
            (Verb::Send, Shape::Latency, "--rate-sweep 50% --events", "--events"),
            (Verb::Send, Shape::Latency, "--rate 0.1", "--stall-timeout"),
            (Verb::Send, Shape::Latency, "--rate 1 --arrivals poisson -D 2", "--stall-timeout"),
            (Verb::Send, Shape::Latency, "--rate 4 -D 200ms", "--rate 4"),
            (Verb::Send, Shape::Latency, "--rate-sweep 50% -s 64,128", "one size"),
            (Verb::Write, Shape::Bandwidth, "--rate-sweep 50%", "--rate-sweep"),
            (Verb::Send, Shape::Latency, "--arrivals poisson", "--arrivals"),
            (Verb::Send, Shape::Latency, "--depth 8 --tcp-zerocopy", "--tcp-zerocopy"),
            (Verb::Write, Shape::Latency, "--depth 128 -s 1G", "--depth"),
            (Verb::FetchAdd, Shape::Latency, "-s 16", "8 bytes, not 16"),
            (Verb::FetchAdd, Shape::Bandwidth, "-a", "8 bytes, not 1"),
            (Verb::Write, Shape::Latency, "--relaxed-ordering", "--relaxed-ordering"),
            (Verb::Send, Shape::Latency, "--tcp-only --odp", "--odp"),
            (Verb::Send, Shape::Latency, "--no-tcp --tcp-zerocopy", "--tcp-zerocopy"),
            (Verb::Send, Shape::Latency, "--no-tcp --tcp-sndbuf 1M", "--tcp-sndbuf"),
            (Verb::Send, Shape::Latency, "-u 20 --stall-timeout 5", "--stall-timeout"),
            (Verb::Read, Shape::Latency, "-c UC", "UC has no RDMA READ"),
            (Verb::FetchAdd, Shape::Bandwidth, "-c UD", "UD has no"),
            (Verb::WriteImm, Shape::Latency, "-c ud", "UD has no RDMA WRITE with immediate"),
            (Verb::Send, Shape::Latency, "-c UD -s 4097", "4097 bytes are more than the 4096"),
            (Verb::Send, Shape::Bandwidth, "-c UD -m 1024 -s 64..2k", "2048 bytes are more than the 1024"),
            (Verb::Send, Shape::Latency, "-c UC -u 10", "--qp-timeout has no meaning over UC"),
            (Verb::Send, Shape::Latency, "-c UD -o 1", "--outs has no meaning over UD"),
            (Verb::Write, Shape::Latency, "-c UC --retry-count 1", "--retry-count"),
            (Verb::Send, Shape::Bandwidth, "-c UC --rnr-retry 1", "--rnr-retry"),
            (Verb::Send, Shape::Bandwidth, "-c UD --min-rnr-timer 1", "--min-rnr-timer"),
            (Verb::Send, Shape::Latency, "--loss-timeout 1ms", "--loss-timeout has no meaning over RC"),
            (Verb::Send, Shape::Latency, "-c UD --loss-timeout 20", "--loss-timeout 20 s is outside"),
            (Verb::Send, Shape::Latency, "-c UD --tcp-only", "-c UD is for RDMA"),
            (Verb::Send, Shape::Bandwidth, "-c UD --threads 2", "--threads 2 is for RC"),
            (Verb::Send, Shape::Latency, "-b", "-b"),
            (Verb::Send, Shape::Bandwidth, "-b --threads 2", "--threads"),
            (Verb::Send, Shape::Bandwidth, "-b --tcp-zerocopy", "--tcp-zerocopy"),
            (Verb::Send, Shape::Latency, "--json - --csv -", "--json and --csv"),
            (Verb::Send, Shape::Latency, "host -p 0", "-p 0"),
        ] {
            let error = plan(verb, shape, line).unwrap_err();
            assert_eq!(error.exit_status(), 2, "{line}");
            assert!(error.message.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn datagrams_are_swept_as_far_as_a_packet_goes() {
        let sizes = |line| plan(Verb::Send, Shape::Bandwidth, line).unwrap().test.sizes;
        assert_eq!(sizes("-c UD -a").last(), Some(&4096));
        assert_eq!(sizes("-c UD -a -m 1024").last(), Some(&1024));
        assert_eq!(sizes("-c UD"), [1024]);
        assert_eq!(sizes("-c UC"), [65536]);
    }

    #[test]
    fn what_only_a_reliable_connection_waits_for_bounds_no_other() {
        assert!(plan(Verb::Send, Shape::Latency, "-c UC --stall-timeout 1").is_ok());
        assert!(plan(Verb::Send, Shape::Latency, "--stall-timeout 1").is_err());
    }

    #[test]
    fn a_server_names_what_it_ignores() {
        assert_eq!(plan(Verb::Send, Shape::Latency, "-s 64 -p 0").unwrap().ignored, ["--size"]);
        assert!(plan(Verb::Send, Shape::Latency, "host -s 64").unwrap().ignored.is_empty());
    }
}
