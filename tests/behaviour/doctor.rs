//! `verbmark doctor`: what it says of machines that are known, of one of which nothing is, and of this one.

use crate::schema;
use crate::suite;

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::Path;

use crate::suite::{Finished, Running, TOOL, at, client, number, server, text};
use serde_json::{Value, json};
use tempfile::TempDir;
use verbmark::tool::doctor::{Checkup, render};

/// Files of a machine, by their path.
type Files = BTreeMap<String, String>;

const CPU: &str = "sys/devices/system/cpu";
const NIC: &str = "sys/class/infiniband/mlx5_0";

fn put(files: &mut Files, changes: &[(&str, &str)]) {
    for (file, text) in changes {
        let file = file.replace("CPU", CPU).replace("NIC", NIC);
        files.insert(file, format!("{text}\n"));
    }
}

/// A machine that is set up for measuring on core 2.
fn good() -> Files {
    let mut files = Files::new();
    put(
        &mut files,
        &[
            ("proc/sys/kernel/hostname", "alpha"),
            ("proc/sys/kernel/osrelease", "6.12.0"),
            ("proc/sys/kernel/perf_event_paranoid", "1"),
            ("proc/cmdline", "isolcpus=2-3 nohz_full=2-3"),
            ("proc/cpuinfo", "processor : 0\nflags : tsc constant_tsc nonstop_tsc"),
            ("proc/loadavg", "0.02 0.04 0.00 1/300 1277"),
            ("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=9"),
            ("proc/2/comm", "kthreadd"),
            ("proc/self/limits", "Max locked memory         unlimited            unlimited            bytes"),
            ("proc/self/status", "CapEff:\t0000000000000000"),
            ("proc/irq/40/effective_affinity_list", "0"),
            ("proc/irq/41/effective_affinity_list", "1"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc"),
            ("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet"),
            ("sys/devices/system/node/has_memory", "0-1"),
            ("sys/devices/system/node/online", "0-1"),
            ("sys/devices/system/node/node0/distance", "10 21"),
            ("CPU/online", "0-3"),
            ("CPU/isolated", "2-3"),
            ("CPU/nohz_full", "2-3"),
            ("CPU/intel_pstate/no_turbo", "1"),
            ("CPU/cpu2/node0/cpulist", "0-3"),
            ("CPU/cpu2/cpufreq/scaling_governor", "performance"),
            ("CPU/cpu2/cpufreq/scaling_driver", "intel_pstate"),
            ("CPU/cpu2/cpuidle/state0/name", "POLL"),
            ("CPU/cpu2/cpuidle/state0/latency", "0"),
            ("CPU/cpu2/topology/thread_siblings_list", "2"),
            ("NIC/ports/1/state", "4: ACTIVE"),
            ("NIC/ports/1/phys_state", "5: LinkUp"),
            ("NIC/ports/1/rate", "100 Gb/sec (4X EDR)"),
            ("NIC/ports/1/link_layer", "Ethernet"),
            ("NIC/ports/1/gid_attrs/ndevs/0", "eth2"),
            ("NIC/ports/1/hw_counters/np_cnp_sent", "0"),
            ("NIC/device/numa_node", "0"),
            ("NIC/device/msi_irqs/40", "msix"),
            ("NIC/device/msi_irqs/41", "msix"),
            ("NIC/device/current_link_speed", "16.0 GT/s PCIe"),
            ("NIC/device/max_link_speed", "16.0 GT/s PCIe"),
            ("NIC/device/current_link_width", "16"),
            ("NIC/device/max_link_width", "16"),
            ("sys/class/net/eth2/mtu", "9000"),
        ],
    );
    for role in ["roce_np", "roce_rp"] {
        for priority in 0..8 {
            put(&mut files, &[(&format!("sys/class/net/eth2/ecn/{role}/enable/{priority}"), "1")]);
        }
    }
    files.insert("dev/cpu_dma_latency".into(), "\0\0\0\0".into());
    files
}

/// The same with everything wrong that files can show.
fn bad() -> Files {
    let mut files = good();
    put(
        &mut files,
        &[
            ("proc/sys/kernel/perf_event_paranoid", "3"),
            ("proc/cmdline", "quiet"),
            ("proc/cpuinfo", "processor : 0\nflags : tsc hypervisor"),
            ("proc/loadavg", "3.70 2.00 1.00 5/300 1277"),
            ("proc/pressure/cpu", "some avg10=31.00 avg60=0.00 avg300=0.00 total=9"),
            ("proc/731/comm", "irqbalance"),
            ("proc/self/limits", "Max locked memory         8388608              8388608              bytes"),
            ("proc/irq/41/effective_affinity_list", "2"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
            ("CPU/isolated", ""),
            ("CPU/nohz_full", ""),
            ("CPU/intel_pstate/no_turbo", "0"),
            ("CPU/cpu2/cpufreq/scaling_governor", "powersave"),
            ("CPU/cpu2/cpuidle/state1/name", "C6"),
            ("CPU/cpu2/cpuidle/state1/latency", "133"),
            ("CPU/cpu2/cpuidle/state1/disable", "0"),
            ("CPU/cpu2/topology/thread_siblings_list", "2,34"),
            ("NIC/ports/1/state", "1: DOWN"),
            ("NIC/ports/1/phys_state", "3: Disabled"),
            ("NIC/ports/1/hw_counters/np_cnp_sent", "12"),
            ("NIC/device/numa_node", "1"),
            ("NIC/device/current_link_speed", "8.0 GT/s PCIe"),
            ("NIC/device/current_link_width", "8"),
            ("sys/class/net/eth2/mtu", "1500"),
            ("sys/class/net/eth2/ecn/roce_rp/enable/0", "0"),
        ],
    );
    for priority in 0..8 {
        put(&mut files, &[(&format!("sys/class/net/eth2/ecn/roce_np/enable/{priority}"), "0")]);
    }
    // Four bytes it should be.
    files.insert("dev/cpu_dma_latency".into(), "?".into());
    files
}

fn machine(files: &Files) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

fn doctor(options: &str) -> Finished {
    suite::run(TOOL, &format!("doctor -D 10ms {options}"))
}

fn of_files(files: &Files, options: &str) -> Finished {
    let root = machine(files);
    doctor(&format!("--cpu 2 --root {} {options}", root.path().display()))
}

/// Holds a document to the schema, and each `null` of it to a reason.
#[track_caller]
fn document(text: &str) -> Value {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let errors = schema::errors(&schema::strict(schema::of_doctors()), &value);
    assert!(errors.is_empty(), "{errors:#?} in {text}");
    let mut nulls = BTreeSet::new();
    let keys = |place: &str| {
        at(&value, place).as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect::<Vec<_>>()
    };
    for key in keys("").into_iter().filter(|key| key != "path") {
        nulls.extend(value[&key].is_null().then_some(key));
    }
    for key in keys("/path").into_iter().filter(|key| key != "gateway") {
        nulls.extend(value["path"][&key].is_null().then(|| format!("path.{key}")));
    }
    for (index, finding) in at(&value, "/findings").as_array().unwrap().iter().enumerate() {
        nulls.extend(finding["seen"].is_null().then(|| format!("findings[{index}].seen")));
    }
    let missing = at(&value, "/missing").as_array().expect("a list");
    let explained: BTreeSet<String> = missing.iter().map(|entry| self::text(entry, "/path").into()).collect();
    assert_eq!(explained, nulls, "what is null, and what is explained");
    value
}

/// Codes by level.
fn levels(value: &Value) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut levels = BTreeMap::<_, BTreeSet<_>>::new();
    for finding in at(value, "/findings").as_array().unwrap() {
        assert!(
            levels.entry(text(finding, "/level")).or_default().insert(text(finding, "/code")),
            "{finding} twice"
        );
    }
    levels
}

fn finding<'a>(value: &'a Value, code: &str) -> &'a Value {
    let findings = at(value, "/findings").as_array().unwrap();
    findings.iter().find(|finding| finding["code"] == code).unwrap_or_else(|| panic!("no {code} in {value}"))
}

#[test]
fn the_schema_is_valid_itself() {
    jsonschema::meta::validate(&schema::of_doctors()).expect("draft 2020-12");
}

#[test]
fn a_machine_that_is_set_up_has_nothing_to_mend() {
    let run = of_files(&good(), "--strict --json").exits(0);
    let value = document(&run.stdout);
    let levels = levels(&value);
    assert_eq!(levels.keys().collect::<Vec<_>>(), [&"ok", &"unknown"], "{levels:#?}");
    assert_eq!(
        levels["unknown"],
        BTreeSet::from(["jitter", "pfc", "steal"]),
        "nothing ran, and no file tells"
    );
    assert_eq!(levels["ok"].len(), 25);
    assert!(at(&value, "/findings").as_array().unwrap().iter().all(|finding| finding["remedy"].is_null()));
    assert_eq!((text(&value, "/device"), text(&value, "/netdev")), ("mlx5_0", "eth2"));
}

#[test]
fn a_machine_that_is_not_is_told_what_disturbs_and_what_mends_it() {
    let value = document(&of_files(&bad(), "--json").exits(0).stdout);
    for (code, level, seen, remedy) in [
        ("governor", "warning", "powersave (intel_pstate)", "cpupower frequency-set -g performance"),
        ("turbo", "note", "on", "intel_pstate/no_turbo"),
        ("idle_states", "warning", "C6, 133 us", "cpupower idle-set -D"),
        ("smt", "note", "core 34", "cpu34/online"),
        ("isolated", "note", "core 2 is not", "isolcpus=2"),
        ("nohz_full", "note", "core 2 is not", "nohz_full=2"),
        ("rcu_nocbs", "note", "core 2 is not", "rcu_nocbs=2"),
        ("load", "warning", "3.7 over a minute on 4 cores", "top"),
        ("cpu_pressure", "warning", "31 %", ""),
        ("hypervisor", "note", "virtual machine", ""),
        ("clocksource", "warning", "hpet", "echo tsc | sudo tee"),
        ("tsc", "note", "not invariant", ""),
        ("huge_pages", "note", "always", "echo madvise"),
        ("irqbalance", "note", "731", "systemctl stop irqbalance"),
        ("memlock", "warning", "8 MiB", "prlimit --memlock=unlimited"),
        ("perf_events", "note", "3", "kernel.perf_event_paranoid=1"),
        ("link", "warning", "down (disabled), 100 Gb/s 4X", "ip link set eth2 up"),
        ("mtu", "warning", "1024 of 4096, eth2 has 1500", "ip link set eth2 mtu 4192"),
        ("pcie", "warning", "8 GT/s x8 of 16 GT/s x16", "lspci"),
        ("numa", "warning", "mlx5_0 on node 1, distance 21", "--cpu"),
        ("irqs_on_core", "warning", "1 of 2 on core 2: irq 41", "/proc/irq/$irq/smp_affinity_list"),
        ("congestion", "note", "np_cnp_sent 12", ""),
        ("ecn", "note", "off", "ecn/roce_"),
    ] {
        let finding = finding(&value, code);
        assert_eq!(text(finding, "/level"), level, "{finding}");
        assert!(text(finding, "/seen").contains(seen), "{finding}");
        assert_eq!(finding["remedy"].is_null(), remedy.is_empty(), "{finding}");
        assert!(finding["remedy"].as_str().unwrap_or_default().contains(remedy), "{finding}");
    }
    let run = of_files(&bad(), "--strict").exits(3);
    assert!(run.stdout.starts_with("verbmark doctor  alpha  kernel 6.12.0  core 2  mlx5_0/1 on eth2\n"));
}

#[test]
fn a_limit_that_is_asked_for_keeps_out_of_deep_states() {
    let mut files = bad();
    files.insert("dev/cpu_dma_latency".into(), "\u{5}\0\0\0".into());
    let value = document(&of_files(&files, "--json").exits(0).stdout);
    assert_eq!(finding(&value, "idle_states")["level"], "ok");
    assert_eq!(finding(&value, "latency_limit")["seen"], "5 us");
}

#[test]
fn what_cannot_be_read_is_never_ok() {
    let value = document(&of_files(&Files::new(), "--strict --json").exits(0).stdout);
    let mut levels = levels(&value);
    assert_eq!(levels.remove("note"), Some(BTreeSet::from(["device"])));
    assert_eq!(levels.keys().collect::<Vec<_>>(), [&"unknown"]);
    // Nor is what of a device is not there.
    let mut files = good();
    files.retain(|file, _| !file.starts_with("sys/class") || file.contains("ports/1/link_layer"));
    let value = document(&of_files(&files, "--json").exits(0).stdout);
    for code in ["link", "mtu", "pcie", "numa", "irqs_on_core", "congestion", "ecn", "pfc"] {
        assert_eq!(finding(&value, code)["level"], "unknown", "{code}");
    }
}

#[test]
fn a_table_is_the_one_on_file_and_no_wider_than_it_may_be() {
    let root = machine(&bad());
    let place = root.path().display();
    let run = doctor(&format!("--cpu 2 --root {place} --json")).exits(0);
    let checkup: Checkup = serde_json::from_str(&run.stdout.replace(&place.to_string(), "")).unwrap();
    let table = render(&checkup, Some(60));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tables/doctor-60.txt");
    if std::env::var_os("UPDATE_TABLES").is_some() {
        std::fs::write(&path, &table).expect("the tables are part of the source tree");
    }
    assert_eq!(table, std::fs::read_to_string(&path).unwrap_or_default());
    let wide = table.lines().filter(|line| line.len() > 60);
    // A path that is longer than a line has one to itself.
    wide.for_each(|line| assert!(!line.trim().contains(' '), "{line}"));
}

#[test]
fn this_machine_is_looked_at_and_its_core_is_watched() {
    let _turn = suite::turn();
    let value = document(&doctor("--json").exits(0).stdout);
    // A part of a tick may be missing.
    assert!(number(&value, "/jitter/window_s") > 0.0099);
    assert!(number(&value, "/jitter/max_ns") >= number(&value, "/jitter/p50_ns"));
    assert_eq!(
        finding(&value, "jitter")["seen"].as_str().map(|seen| seen.contains("gaps over 10 us")),
        Some(true)
    );
    let emulated = document(&doctor("-d emu0 --json").exits(0).stdout);
    assert!(text(finding(&emulated, "device"), "/seen").contains("emulated"));
    assert_eq!(finding(&emulated, "pcie")["level"], "unknown");
}

#[test]
fn looking_at_a_server_does_not_end_it() {
    let _turn = suite::turn();
    let (server, port) = server("send_lat", "--tcp-only");
    let value = document(&doctor(&format!("127.0.0.1 -p {port} --json")).exits(0).stdout);
    assert_eq!(at(&value, "/path/server_protocol"), &json!(1));
    assert_eq!((text(&value, "/path/interface"), text(&value, "/path/address")), ("lo", "127.0.0.1"));
    assert_eq!(finding(&value, "server")["level"], "ok");
    assert!(text(finding(&value, "peer"), "/remedy").contains("127.0.0.1"));
    Running::start(client("send_lat", "127.0.0.1", port, "--tcp-only -n 20")).finish().exits(0);
    server.finish().exits(0);
}

#[test]
fn nobody_there_and_no_such_host_are_reported() {
    let _turn = suite::turn();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let value = document(&doctor(&format!("127.0.0.1 -p {port} --json")).exits(0).stdout);
    assert_eq!(finding(&value, "server")["level"], "note");
    assert!(text(finding(&value, "server"), "/remedy").contains("verbmark serve"));
    let value = document(&doctor("no-such-host.invalid --strict --json").exits(3).stdout);
    assert!(text(finding(&value, "route"), "/seen").contains("no-such-host.invalid"));
    assert_eq!(finding(&value, "server")["level"], "unknown");
}

#[test]
fn a_run_records_how_its_ends_were_set_up() {
    let _turn = suite::turn();
    let run = suite::loopback("send_lat", "--tcp-only -n 20");
    let missing = at(&run, "/missing").as_array().unwrap();
    for end in ["local", "remote"] {
        let fingerprint = at(&run, &format!("/{end}/fingerprint")).as_object().expect("it is recorded");
        for (key, value) in fingerprint {
            let path = format!("{end}.fingerprint.{key}");
            let explained = missing.iter().any(|missing| missing["path"] == json!(path));
            assert_eq!(value.is_null(), explained, "{path} is {value}");
        }
        assert!(
            fingerprint["command_line_hash"].is_string() && fingerprint["pcie"].is_null(),
            "{fingerprint:?}"
        );
    }
}

#[test]
fn what_is_asked_for_and_not_there_is_named() {
    doctor("-d nosuch0").exits(5).says(&["nosuch0", "emu0"]);
    doctor("-d emu0 -i 9").exits(5).says(&["9"]);
    doctor("--cpu 5000").exits(2).says(&["core 5000", "allowed are"]);
    doctor("-p 18515").exits(2).says(&["HOST"]);
    doctor("--root / 127.0.0.1").exits(2).says(&["--root"]);
    doctor("--json /nowhere/doctor.json").exits(2).says(&["/nowhere/doctor.json"]);
    of_files(&good(), "-d nosuch0").exits(5).says(&["nosuch0", "mlx5_0"]);
    of_files(&good(), "-i 2").exits(5).says(&["port 2"]);
}
