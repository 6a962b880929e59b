//! What is typed wrong is said, never guessed; what is asked for about the program itself is told.

use crate::suite;

use crate::suite::{BINARIES, Files, Running};

/// Each line is wrong, and the message names the option or value that is.
const WRONG: &[(&str, &str)] = &[
    ("-s 64kB", "64kB"),
    ("-s 0", "at least 1 byte"),
    ("-s 2G", "2G"),
    ("-s 64,64", "twice"),
    ("-s 512..64", "empty"),
    ("-s 010", "leading zero"),
    ("-s 99999999999999999999", "too large"),
    ("-n 0", "--iters"),
    ("-n -1", "-1"),
    ("-n 1k", "--iters"),
    ("-n 10 -D 1", "--duration"),
    ("-D 0", "--duration"),
    ("-D 1e9", "1e9"),
    ("-t 0", "--tx-depth"),
    ("-t 65537", "--tx-depth"),
    ("-r 0", "--rx-depth"),
    ("-t 8 -Q 9", "-Q 9"),
    ("-p 70000", "--port"),
    ("-x -1", "-1"),
    ("-i 0", "--ib-port"),
    ("-m 1500", "1500"),
    ("-S 16", "--sl"),
    ("-u 32", "--qp-timeout"),
    ("-o 0", "--outs"),
    ("-c XRC", "XRC"),
    ("-c UC -u 10", "--qp-timeout has no meaning over UC"),
    ("-c UD -s 8k", "8192 bytes are more than the 4096"),
    ("-c UD --loss-timeout 10us", "100 us"),
    ("--loss-timeout 1ms", "--loss-timeout has no meaning over RC"),
    ("--retry-count 7", "--retry-count"),
    ("--tclass 256", "--tclass"),
    ("--flow-label 1048576", "--flow-label"),
    ("--hop-limit 0", "--hop-limit"),
    ("--hop-limit 4294967297", "--hop-limit"),
    ("--min-rnr-timer 32", "--min-rnr-timer"),
    ("--pkey-index 65536", "--pkey-index"),
    ("--no-tcp --tcp-only", "--tcp-only"),
    ("-a -s 64", "--size"),
    ("-u 20 --stall-timeout 2", "--stall-timeout"),
    ("--numa 1024", "--numa"),
    ("--numa 1023", "--numa 1023"),
    ("--tcp-only --odp", "--odp"),
    ("--tcp-only --relaxed-ordering", "--relaxed-ordering"),
    ("--tcp-sndbuf 0", "--tcp-sndbuf"),
    ("--tcp-rcvbuf 1G", "--tcp-rcvbuf"),
    ("--tcp-congestion a/b", "--tcp-congestion"),
    ("--tcp-busy-poll 0", "--tcp-busy-poll"),
    ("--tcp-busy-poll 1000001", "--tcp-busy-poll"),
    ("--no-tcp --tcp-zerocopy", "--tcp-zerocopy"),
    ("--label novalue", "KEY=VALUE"),
    ("--cpu 5000", "core 5000 may not be used: allowed are"),
    ("--core 5000", "core 5000"),
    ("--peer-cpu x", "--peer-cpu"),
    ("--json - --csv -", "--json and --csv"),
    ("--json /nowhere/run.json", "/nowhere/run.json"),
    ("--no-such-option", "--no-such-option"),
    ("127.0.0.1 another", "another"),
];

#[test]
fn what_is_wrong_is_named_and_ends_with_status_2() {
    for (options, named) in WRONG {
        // As a loopback the run would start at once if the mistake were not seen; a host excludes that.
        let role = if options.starts_with("127") { "" } else { "--loopback -d emu0" };
        let run = suite::run("send_lat", &format!("{role} {options}")).exits(2).says(&["error:", named]);
        assert!(run.stdout.is_empty(), "{options}: {}", run.stdout);
    }
}

#[test]
fn a_usage_error_writes_no_document() {
    let files = Files::new();
    let mut command = suite::line("send_lat", "--loopback -s 0 --json");
    command.arg(files.path("run.json"));
    Running::start(command).finish().exits(2);
    assert!(!files.path("run.json").exists());
}

#[test]
fn a_client_must_name_the_port() {
    suite::run("send_lat", "127.0.0.1 -p 0").exits(2).says(&["-p 0"]);
}

#[test]
fn a_host_and_a_loopback_exclude_each_other() {
    suite::run("send_lat", "127.0.0.1 --loopback").exits(2).says(&["--loopback"]);
}

#[test]
fn a_read_has_no_payload_to_inline() {
    suite::run("read_lat", "--loopback -d emu0 -I 64").exits(2).says(&["-I"]);
}

#[test]
fn help_and_version_go_to_standard_output() {
    for binary in BINARIES {
        let version = suite::run(binary, "--version").exits(0);
        assert_eq!(version.stdout, format!("{binary} {}\n", env!("CARGO_PKG_VERSION")));
        for option in ["-h", "--help"] {
            let help = suite::run(binary, option).exits(0);
            assert!(help.stderr.is_empty());
            for word in ["HOST", "--loopback", "--size", "--json", "--tcp-only", "Exit status"] {
                assert!(help.stdout.contains(word), "{binary} {option} lacks {word}");
            }
        }
    }
}

#[test]
fn help_reads_as_it_did() {
    trycmd::TestCases::new().case("tests/help/*.toml");
}
