//! What `verbmark gate` was told: mistakes are told before anything runs, with their place and what to write; what would
//! run is shown as a shell takes it. Nothing is measured here.

use crate::documents;

use std::fs;
use std::process::Command;

use crate::suite::{Files, at, text};

const LAT: &str = "[[test]]\nbinary = \"send_lat\"\n";

/// Words of a gate that looks at everything, and runs nothing.
const LOOK: [&str; 4] = ["suite.toml", "--dry-run", "--self-test", "1"];

impl Files {
    /// Holds a suite to being refused, for these reasons.
    #[track_caller]
    fn refuses(&self, suite: &str, says: &[&str]) {
        self.suite(suite);
        let run = self.gate(&[&LOOK[..], &["--loopback"]].concat()).exits(2).says(says);
        assert!(run.stdout.is_empty() && run.stderr.contains("\n  try: "), "{suite}: {}", run.stderr);
    }

    /// What a gate says it would do.
    #[track_caller]
    fn previewed(&self, words: &[&str], says: &[&str]) -> String {
        let shown = self.gate(&[words, &["--dry-run"]].concat()).exits(0).stdout;
        says.iter().for_each(|part| assert!(shown.contains(part), "no {part:?} in {shown}"));
        shown
    }
}

#[test]
fn a_mistake_in_a_suite_is_told_with_file_line_test_and_remedy() {
    let files = Files::new();
    fs::create_dir(files.path("empty")).unwrap();
    let binary = files.path("send_lat");
    fs::write(binary, "no program").unwrap();
    for (more, says) in [
        ("name = \"\"", "suite.toml: line 3: test send_lat: name = \"\" is empty"),
        ("metrics = [\"bw\"]", "suite.toml: line 1: test send_lat: send_lat does not measure bw"),
        ("limits = [\"bw:min=1Gbps\"]\n[a]", "--limit bw:min=1Gbps: send_lat does not measure that"),
        (
            "options = \"--wrong\"",
            "suite.toml: line 1: test send_lat: send_lat: unexpected argument '--wrong'",
        ),
        ("options = \"--json x\"", "test send_lat: --json is for one run"),
        (
            "options = \"--no-tcp\"\nlimits = [\"tcp.p50:max=1ms\"]",
            "test send_lat: the limit tcp.p50:max=1ms",
        ),
        ("options = \"--no-tcp\"\nlimits = [\"tcp/rdma.p50:min=2\"]", "that --no-tcp in options leaves away"),
        ("options = \"--tcp-only\"\nlimits = [\"p50:max=1ms\"]", "that --tcp-only in options leaves away"),
        ("options = \"--tcp-only\"\nlimits = [\"tcp/rdma.p50:min=2\"]", "that --tcp-only in options"),
        ("options = \"--no-tcp --limit tcp.p50:max=1ms\"", "about a path that is not measured"),
        ("sizes = [64]\noptions = \"-es 64\"", "its sizes stand in `sizes` and in options of the test"),
        (
            "sizes = [64]\n[b]\noptions = \"--size=64\"",
            "its sizes stand in `sizes` and in options of the arm",
        ),
        (
            "metrics = [\"p50\"]\n[test.tolerance]\np99 = { tolerance = \"9%\" }",
            "suite.toml: line 5: test send_lat: a tolerance for p99",
        ),
        ("[tolerance]\nbw = { tolerance = \"9%\" }", "suite.toml: line 4: a tolerance for bw, which no test"),
        (
            "[tolerance]\np50 = { must_detect = \"1.99%\" }",
            "must_detect of p50 is 1.99%: it must be above its tolerance, 2%",
        ),
        (
            "[tolerance]\np50 = { tolerance = \"99.9%\", must_detect = \"99.9%\" }",
            "is 99.9%: it must be above its tolerance, 99.9%",
        ),
        ("[tolerance]\np50 = { tolerance = \"100%\" }", "tolerance of p50 is 100%: it must be 0% or more"),
        ("[tolerance]\nbw = { floor = \"50ns\" }", "suite.toml: line 4: a floor for bw, which is no time"),
        ("[a]\nname = \"x\"\n[b]\nname = \"x\"", "suite.toml: both arms are called x"),
        ("[a]\nname = \"candidate\"", "both arms are called candidate"),
        ("[b]\nprograms = \"nowhere\"", "test send_lat, [b]: there is no directory nowhere"),
        ("[b]\nprograms = \"empty\"", "test send_lat, [b]: there is no send_lat in empty"),
        ("[b]\nprograms = \"suite.toml\"", "suite.toml is no directory"),
        ("[b]\nprograms = \".\"", "./send_lat is no program that can be run"),
        (
            "[[test]]\nbinary = \"send_bw\"\nname = \"send_lat\"",
            "line 3: test send_lat: two tests of the suite",
        ),
    ] {
        files.refuses(&format!("{LAT}{more}\n"), &[says]);
    }
    files.refuses(&format!("tcp = true\noptions = \"--no-tcp\"\n{LAT}"), &["tcp = true and --no-tcp"]);
    files
        .refuses(&format!("options = \"-a\"\n{LAT}sizes = [1]"), &["in `sizes` and in options of the suite"]);
    // A binary that is none is told before what it would be held to.
    files.suite("[[test]]\nbinary = \"send_latt\"");
    files
        .gate(&["suite.toml"])
        .exits(2)
        .says(&["line 2: test send_latt: 'send_latt' is no test", "one of send_lat,"]);
    files.gate(&["--b", "send_latt --loopback"]).exits(2).says(&["--b: 'send_latt' is no test"]);
}

#[test]
fn an_option_without_effect_is_refused() {
    let files = Files::new();
    files.baseline(2);
    files.suite(&format!("min_pairs = 20\n{LAT}limits = [\"p50:max=900ms\"]"));
    let lat = "send_lat -d emu0 --loopback";
    for (words, says) in [
        (
            &["suite.toml", "--baseline", "base", "--min-pairs", "3"][..],
            "--min-pairs has no effect with --baseline",
        ),
        (
            &["suite.toml", "--record", "base", "--max-pairs", "3"],
            "--max-pairs has no effect with --record alone",
        ),
        (&["suite.toml", "--max-pairs", "3"], "--max-pairs has no effect with limits alone"),
        (&["suite.toml", "--seed", "3"], "--seed has no effect with limits alone"),
        (
            &["suite.toml", "--allow-mismatch", "mtu_bytes"],
            "--allow-mismatch has no effect with limits alone",
        ),
        (&["suite.toml", "--self-test", "2", "--runs", "3"], "--runs has no effect with --self-test"),
        (
            &["--a", lat, "--b", lat, "--runs", "3"],
            "--runs has no effect where baseline and candidate take turns",
        ),
        (
            &["--baseline", "base", "--candidate", "base", "--keep", "x"],
            "--keep has no effect with --candidate",
        ),
        (&["--a", lat, "--b", lat, "--metric", "p50,p99", "--metric", "p50"], "--metric names p50 twice"),
        (
            &["suite.toml", "--self-test", "1", "--max-pairs", "9"],
            "20 pairs before the first look (min_pairs of suite.toml), 9 before the last (--max-pairs)",
        ),
    ] {
        files.gate(words).exits(2).says(&[says, "\n  try: "]);
    }
    let old = format!("LD_LIBRARY_PATH=nowhere/old:elsewhere {lat}");
    let says =
        ["LD_LIBRARY_PATH of baseline is nowhere/old:elsewhere", "those of the system would be measured"];
    files.gate(&["--a", &old, "--b", lat]).exits(2).says(&says);
    files.previewed(&["--a", &old, "--b", lat], &["note  LD_LIBRARY_PATH of baseline"]);
    let limited = format!("{lat} --limit p50:max=1us");
    files.previewed(
        &["--a", &limited, "--b", lat, "--max-pairs", "4"],
        &["note  limits of --a are not looked at", "note  4 pairs never decide anything: it takes 5"],
    );
    fs::create_dir(files.path("d")).unwrap();
    for other in ["x.json", "./x.json", "d/../x.json", "./suite.toml"] {
        let words = ["suite.toml", "--json", "x.json", "--junit", other];
        files
            .gate(&words)
            .exits(2)
            .says(&["is the suite or the file of another output", "give each output a file of its own"]);
    }
    files.previewed(&["suite.toml", "--loopback", "--json", "/dev/null", "--junit", "/dev/null"], &["once"]);
    for words in [["--baseline", "nowhere"], ["--baseline", "base"]] {
        let words = [&words[..], &["--candidate", "/nowhere/x"]].concat();
        files.gate(&words).exits(2).says(&[words[1].trim_start_matches("base"), "\n  try: name "]);
    }
}

#[test]
fn a_dry_run_says_what_would_be_held_to_what() {
    let files = Files::new();
    let lat = "send_lat -d emu0 --loopback";
    let arms = |more: &[&str], says: &[&str]| {
        files.previewed(&[&["--a", "N='a b' send_lat --loopback", "--b", lat][..], more].concat(), says)
    };
    let shown = arms(
        &["--metric", "p50,cpu.client"],
        &["each test 6 to 15 times an arm", "cpu.client (tolerance 2 %"],
    );
    // The line of the baseline is one that a shell takes.
    let line = shown.lines().find_map(|line| line.strip_prefix("  A  ")).unwrap();
    let line = line.replacen("send_lat --loopback", "send_lat --version; echo", 1);
    assert!(line.starts_with("N='a b' "), "{shown}");
    assert!(Command::new("sh").args(["-c", &line]).output().unwrap().status.success(), "{line}");
    arms(&["--min-pairs", "3", "--max-pairs", "3"], &["runs  each test 3 times an arm\n"]);
    files
        .previewed(&["--a", lat, "--b", "write_lat --loopback"], &["note  compares write_lat with send_lat"]);
    files.previewed(&["--b", lat, "--self-test", "2"], &["runs  2 rounds, and in a round each test 6 to 15"]);

    files.suite(&format!("{LAT}limits = [\"p50:max=900ms\"]\nmetrics = [\"p50\"]\n"));
    let limits = ["suite.toml", "--loopback"];
    let shown = files.previewed(&limits, &["send_lat  limit p50:max=900ms\n", "runs  each test once\n"]);
    assert!(!shown.contains("tolerance"), "limits alone judge no metric: {shown}");
    files.previewed(
        &[&limits[..], &["--runs", "3"]].concat(),
        &["3 times, whose median is held to the limits"],
    );
    files.baseline(2);
    let recorded = ["send_lat  recorded, limit p50", "records  a sitting in base unless a limit fails\n"];
    files.previewed(&[&limits[..], &["--record", "base"]].concat(), &recorded);
    let held = [
        "against  2 stored sittings of base; 6 more for",
        "records  a sitting in base unless it got worse or",
    ];
    files.previewed(&[&limits[..], &["--baseline", "base", "--record", "base"]].concat(), &held);
    assert_eq!(fs::read_dir(files.path("base")).unwrap().count(), 2, "nothing was recorded");
}

#[test]
fn a_suite_says_what_of_a_measured_candidate_is_judged() {
    let files = Files::new();
    files.baseline(8);
    files.runs("same", &documents::latency(), 10, 1.001);
    files.suite(&format!("{LAT}metrics = [\"p50\"]\nlimits = [\"p50:max=900ms\"]\n[a]\n"));
    let words = ["suite.toml", "--baseline", "base", "--candidate", "same"];
    let notes = ["note  [a] of the suite is not used", "note  limits of the suite are not looked at"];
    files.previewed(&words, &["runs  none: same has 6 runs of send_lat (p50)\n", notes[0], notes[1]]);
    let value = files.gated(&words, 0);
    let judged = at(&value, "/series").as_array().unwrap();
    assert!(judged.iter().all(|series| series["metric"] == "p50") && !judged.is_empty(), "{value:#}");
    assert_eq!(text(&value, "/notes/0/code"), "unused", "{value:#}");
    // Without the suite both usual ones are.
    files.previewed(&words[1..], &["send_lat (p50, p99)"]);
    files.suite(&format!("{LAT}metrics = [\"p50\"]\n{LAT}"));
    files.gate(&words).exits(2).says(&["asks different things of send_lat and send_lat 2"]);
}
