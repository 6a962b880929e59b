//! Documents as a session would build them, for the tests of formats.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use verbmark::error::{Error, Step};
use verbmark::host::environment::PcieLink;
use verbmark::host::{Fingerprint, Machine};
use verbmark::measure::{LatencyHistogram, Stop};
use verbmark::ops::Verb;
use verbmark::plan::{Load, Test};
use verbmark::result::{
    Arrivals, Bandwidth, Basis, Buffers, ClockFacts, Connection, CpuEvidence, CpuUse, Device, Direction,
    DirectionRow, Document, End, Floor, Gid, GidType, LinkLayer, MachineCpu, MemoryKind, Overlap, Point,
    Process, ResultRow, RowInterval, Shape, Side, Span, TcpEnd, TcpOptions, TestRecord, Tool, Transport,
    Wait,
};

pub const RUN_ID: &str = "0123456789abcdef0123456789abcdef";

fn machine(name: &str) -> Machine {
    serde_json::from_value(json!({
        "host": name,
        "boot_id": "6b1e4c44-0e0f-4c0b-9b3c-3d4c8e1a2f10",
        "kernel": "6.11.0-9-generic",
        "os": "Debian GNU/Linux 13",
        "cpu_model": "AMD EPYC 9454",
        "governor": "performance",
        "clocksource": "tsc",
        "cpus_allowed": [0, 1, 2, 3],
        "memlock_bytes": 8_388_608,
        "memory_bytes": null,
        "hypervisor": false
    }))
    .expect("a machine is read from what a machine writes")
}

pub fn device(address: &str) -> Device {
    Device {
        name: "mlx5_0".into(),
        driver: Some("mlx5_core".into()),
        provider: Some("mlx5".into()),
        firmware: Some("22.41.1000".into()),
        link_layer: LinkLayer::Ethernet,
        is_software: Some(false),
        rate_gbps: Some(400.0),
        active_mtu_bytes: Some(4096),
        path_mtu_bytes: Some(4096),
        port: 1,
        gid: Some(Gid { index: 3, address: address.into(), kind: GidType::RoceV2 }),
        lid: None,
        pkey_index: Some(0),
        pkey: Some("0xffff".into()),
        netdev: Some("eth2".into()),
        numa_node: Some(0),
        inline_bytes: Some(220),
        node_guid: Some("b8ce:f603:0012:3456".into()),
    }
}

fn fingerprint() -> Fingerprint {
    Fingerprint {
        governor: Some("performance".into()),
        frequency_driver: Some("intel_pstate".into()),
        turbo: Some(false),
        idle_state: Some("C1".into()),
        idle_exit_us: Some(2),
        siblings: Some(vec![35]),
        isolated: Some(true),
        tickless: Some(true),
        no_callbacks: Some(true),
        transparent_huge_pages: Some("madvise".into()),
        clocksource: Some("tsc".into()),
        mitigations: Some([("spectre_v2".into(), "Mitigation: Enhanced / Automatic IBRS".into())].into()),
        command_line_hash: Some("089c0207b5452844".into()),
        pcie: Some(PcieLink { speed_gts: 32.0, width: 16, max_speed_gts: 32.0, max_width: 16 }),
        irqs_on_core: Some(0),
        hypervisor: Some(false),
    }
}

pub fn end(side: Side) -> End {
    let (name, own, peer) = match side {
        Side::Client => ("alpha", "10.7.0.1", "10.7.0.2"),
        Side::Server => ("beta", "10.7.0.2", "10.7.0.1"),
    };
    End {
        side,
        machine: machine(name),
        core: Some(3),
        numa_node: Some(0),
        fingerprint: Some(fingerprint()),
        buffers: Some(Buffers { page_bytes: 4096, numa_node: None }),
        process: Process::current(),
        evidence: Some(CpuEvidence { level: 3, reason: "nothing is in the way".into() }),
        idle_machine: None,
        clock: Some(ClockFacts { source: "tsc".into(), frequency_hz: Some(2.75e9), reading_ns: Some(7.3) }),
        device: Some(device(&format!("::ffff:{own}"))),
        tcp: Some(TcpEnd {
            local_address: Some(format!("{own}:41022")),
            peer_address: Some(format!("{peer}:18515")),
            interface: Some("eth2".into()),
            same_link: Some(true),
            send_buffer_bytes: Some(2_626_560),
            receive_buffer_bytes: Some(131_072),
            congestion: Some("cubic".into()),
            busy_poll_us: Some(0),
        }),
    }
}

pub fn test(verb: Verb, shape: Shape, sizes: &[u64]) -> Test {
    Test {
        verb,
        shape,
        connection: Connection::Rc,
        wait: Wait::Busy,
        compare_waits: false,
        transports: vec![Transport::Rdma, Transport::Tcp],
        sizes: sizes.to_vec(),
        stop: Stop::After(Duration::from_secs(1)),
        warm_up: Stop::After(Duration::from_millis(100)).into(),
        payload_seed: 1,
        tx_depth: 128,
        rx_depth: 512,
        load: Load {
            depth: if shape == Shape::Latency { 1 } else { 128 },
            rate_per_s: None,
            arrivals: Arrivals::Constant,
            rate_shares: Vec::new(),
        },
        signal_every: 32,
        post_list: 1,
        cqe_batch: 16,
        bidirectional: false,
        qps: 1,
        shared_receive: false,
        buffers: None,
        threads: 1,
        memory: MemoryKind::Anonymous,
        relaxed_ordering: false,
        on_demand_paging: false,
        max_inline: 220,
        outstanding_reads: 16,
        mtu: None,
        service_level: 0,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        qp_timeout: 14,
        retry_count: 6,
        rnr_retry: 7,
        min_rnr_timer: 12,
        tcp: TcpOptions::default(),
        verify: false,
        cpu_report: false,
        first: Side::Client,
        stall_timeout: Duration::from_secs(10),
        loss_timeout: Duration::from_millis(50),
    }
}

pub fn point(size_bytes: u64, depth: u32) -> Point {
    Point {
        size_bytes,
        qps: 1,
        depth,
        threads: 1,
        wait: Wait::Busy,
        direction: Direction::Unidirectional,
        offered_per_s: None,
    }
}

/// `samples` round trips from `low` ns upwards with a long tail.
pub fn round_trips(samples: u64, low: u64) -> LatencyHistogram {
    let mut histogram = LatencyHistogram::new();
    for i in 0..samples {
        let tail = if i % 997 == 996 { low * 3 } else { 0 };
        histogram.record(low + (i * 7919) % (low / 8 + 1) + tail);
    }
    histogram
}

pub fn latency_row(transport: Transport, size: u64, samples: u64, low: u64) -> ResultRow {
    ResultRow::new(transport, point(size, 1), Side::Client)
        .with_window(samples, Duration::from_secs(1))
        .with_latency(&round_trips(samples, low), Basis::HalfRoundTrip)
}

pub fn bandwidth_row(transport: Transport, size: u64, messages: u64) -> ResultRow {
    let window = Duration::from_secs(1);
    let mut row = ResultRow::new(transport, point(size, 128), Side::Client).with_window(messages, window);
    row.intervals = (0..10)
        .map(|i| RowInterval {
            start_s: f64::from(i) * 0.1,
            seconds: 0.1,
            messages: messages / 10,
            bytes_per_s: Some(messages as f64 * size as f64 * (0.95 + 0.01 * f64::from(i))),
            payload: None,
        })
        .collect();
    row.bandwidth = Some(Bandwidth::new(messages, size, window, &row.intervals));
    let cpu = CpuUse {
        cpu_ns: Some(1_000_000_000),
        user_ns: Some(900_000_000),
        system_ns: Some(40_000_000),
        voluntary_switches: Some(0),
        involuntary_switches: Some(12),
        page_faults: Some(0),
        empty_polls: None,
        idle_share: Some(0.6),
        instructions: Some(2_000_000_000),
        cycles: Some(2_700_000_000),
        counts_user_only: Some(true),
        system_calls: Some(12_345),
        machine: Some(MachineCpu {
            window_s: 1.0,
            user_ns: 910_000_000,
            system_ns: 60_000_000,
            irq_ns: 10_000_000,
            softirq_ns: 20_000_000,
            steal_ns: 0,
        }),
        ..CpuUse::default()
    };
    row.limited_by = Some("path".into());
    row.cpu.client = Some(cpu.per_message(messages).per_byte(size));
    let nothing = CpuUse { cpu_ns: Some(0), user_ns: Some(0), system_ns: Some(0), ..cpu };
    row.cpu.server = Some(nothing.per_message(messages).per_byte(size));
    row.counters.client = Some(BTreeMap::from([("port_xmit_data".into(), messages * size / 4)]));
    row
}

pub fn started(binary: &str) -> Document {
    let command = vec![binary.into(), "-s".into(), "64".into(), "10.7.0.2".into()];
    let labels = BTreeMap::from([("commit".into(), "a1b2c3, \"quoted\"".into())]);
    let mut document = Document::new(Tool::new(binary), command, labels);
    document.run_id = RUN_ID.into();
    document.started_at = "2026-11-29T16:45:42.000Z".into();
    document.tool.version = "0.1.0".into();
    document
}

/// Both ends known and the test agreed, nothing measured.
pub fn agreed(binary: &str, test: &Test) -> Document {
    let mut document = started(binary);
    document.test = Some(TestRecord::from(test));
    document.local = Some(end(Side::Client));
    document.remote = Some(end(Side::Server));
    document.same_host = Some(false);
    document.miss("remote.memory_bytes", "/proc/meminfo cannot be read");
    document
}

pub fn latency() -> Document {
    let mut document = agreed("send_lat", &test(Verb::Send, Shape::Latency, &[64, 65536]));
    for size in [64, 65536] {
        document.add_row(latency_row(Transport::Rdma, size, 112_304, 1_500 + size / 8));
        document.add_row(latency_row(Transport::Tcp, size, 71_120, 12_000 + size / 4));
    }
    document.warn("preempted", "core 3 was preempted 12 times during tcp; see `verbmark doctor`");
    document.finish();
    document
}

pub fn bandwidth() -> Document {
    let mut document = agreed("write_bw", &test(Verb::Write, Shape::Bandwidth, &[65536]));
    document.add_row(bandwidth_row(Transport::Rdma, 65536, 746_000));
    document.add_row(bandwidth_row(Transport::Tcp, 65536, 74_000));
    document.finish();
    document
}

/// Polling beside sleeping, which takes longer and costs less.
pub fn compared_waits(shape: Shape) -> Document {
    let test = Test { compare_waits: true, ..test(Verb::Send, shape, &[64, 4096]) };
    let mut document = agreed(if shape == Shape::Latency { "send_lat" } else { "send_bw" }, &test);
    for size in [64, 4096] {
        for (wait, slower) in [(Wait::Busy, 1), (Wait::Events, 5)] {
            for (transport, low) in [(Transport::Rdma, 1_500 + size / 8), (Transport::Tcp, 12_000)] {
                let messages = 1_000_000_000 / low / slower;
                let mut row = match shape {
                    Shape::Latency => latency_row(transport, size, messages, low * slower),
                    Shape::Bandwidth => bandwidth_row(transport, size, messages),
                };
                row.point.wait = wait;
                row.id = row.point.id(transport);
                let used = |share| CpuUse { cpu_ns: Some(1_000_000_000 / share), ..CpuUse::default() };
                row.cpu.client = Some(used(slower).per_message(messages));
                row.cpu.server = Some(used(slower * 2).per_message(messages));
                document.add_row(row);
            }
        }
    }
    document.finish();
    document
}

/// Two directions, the server's with 1 % less; how the clocks stand is known for RDMA alone.
pub fn bidirectional() -> Document {
    let test = Test { bidirectional: true, ..test(Verb::Write, Shape::Bandwidth, &[65536]) };
    let mut document = agreed("write_bw", &test);
    for (transport, messages, uncertainty_ns) in
        [(Transport::Rdma, 746_000, 4_100), (Transport::Tcp, 74_000, 12_000_000)]
    {
        let row = bandwidth_row(transport, 65536, messages);
        let direction = |from, messages, start_s| {
            let intervals = row.intervals.clone();
            let window = Duration::from_secs(1);
            let direction = DirectionRow::new(from, 65536, messages, window, intervals);
            DirectionRow { start_s: Some(start_s), ..direction }
        };
        let directions = vec![
            direction(Side::Client, messages, 0.25),
            direction(Side::Server, messages / 100 * 99, 0.2501),
        ];
        let span = |start_ns| Span { start_ns, length_ns: 1_000_000_000 };
        let overlap = Overlap::of(span(250_000_000), span(250_100_000), -1_234_567, uncertainty_ns);
        let mut row = row.with_directions(directions, Some(overlap));
        row.point.direction = Direction::Bidirectional;
        row.id = row.point.id(transport);
        document.add_row(row);
    }
    document.finish();
    document
}

/// A latency run held to limits: one that holds, one that fails at both sizes, one that could not be judged.
pub fn limited() -> Document {
    let mut document = latency();
    let limits = ["p50:max=1ms", "tcp/rdma.p99:min=30", "tcp.p99.99:max=1ms"];
    let limits: Vec<_> = limits.iter().map(|limit| limit.parse().expect("a limit")).collect();
    document.limits = verbmark::gate::limit::evaluate(&document, &limits);
    document
}

pub fn failed_before_plan() -> Document {
    let error = Error::failed(Step::Connect, "10.7.0.2:18515: connection refused")
        .with_remedy("start `send_lat` without a host there first");
    Document::failed(
        Tool::new("send_lat"),
        vec!["send_lat".into(), "10.7.0.2".into()],
        BTreeMap::new(),
        error,
    )
}

pub fn failed_mid_run() -> Document {
    let mut document = agreed("send_lat", &test(Verb::Send, Shape::Latency, &[64, 65536]));
    document.add_row(latency_row(Transport::Rdma, 64, 112_304, 1_500));
    document.fail(Error::failed(Step::Measure, "completion: transport retry counter exceeded").as_remote());
    document.finish();
    document
}

pub fn interrupted() -> Document {
    let mut document = agreed("write_bw", &test(Verb::Write, Shape::Bandwidth, &[64, 65536]));
    document.add_row(bandwidth_row(Transport::Rdma, 64, 4_000_000));
    document.fail(Error::interrupted(Step::Measure));
    document.finish();
    document
}

/// One host, no hardware: the emulated device.
pub fn emulated() -> Document {
    let mut document = agreed("send_lat", &test(Verb::Send, Shape::Latency, &[64]));
    for end in [&mut document.local, &mut document.remote].into_iter().flatten() {
        let device = end.device.as_mut().expect("every sample has a device");
        device.name = "emu0".into();
        device.provider = Some(Device::EMULATED.into());
        device.is_software = Some(true);
    }
    document.same_host = Some(true);
    document.floor = Some(Floor { core_to_core_ns: Some(62.0), loop_ns: Some(21.5) });
    document.add_row(latency_row(Transport::Rdma, 64, 200_000, 260));
    document.add_row(latency_row(Transport::Tcp, 64, 71_120, 12_000));
    document.finish();
    document
}

pub fn all() -> Vec<(&'static str, Document)> {
    vec![
        ("latency", latency()),
        ("bandwidth", bandwidth()),
        ("compared waits", compared_waits(Shape::Latency)),
        ("compared waits of a stream", compared_waits(Shape::Bandwidth)),
        ("bidirectional", bidirectional()),
        ("limited", limited()),
        ("failed before plan", failed_before_plan()),
        ("failed mid-run", failed_mid_run()),
        ("interrupted", interrupted()),
        ("emulated", emulated()),
    ]
}
