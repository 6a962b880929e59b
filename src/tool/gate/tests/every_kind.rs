//! Of everything that a gate can find, each output tells; or `docs/formats.md` says that it does not.

use crate::error::{Error, Step};
use crate::gate::compare::{Better, Mismatch};
use crate::gate::document::{Form, Gate, Series, TestEntry};
use crate::gate::output::tests::sample::{self, in_turns, limit, point, runs};
use crate::gate::output::{annotations, benchmark_action, junit, markdown, openmetrics, otava, words};
use crate::gate::sample::Met;
use crate::gate::verdict::{Code, Judgement, Verdict};
use crate::gate::{judge, overall};
use crate::result::{LimitVerdict, Quantity, Status};
use crate::tool::gate::table::render;

/// Names that no format has to escape.
const TESTS: [&str; 11] = [
    "regressed",
    "untrusted",
    "unlike",
    "unsure",
    "advised",
    "doubtful",
    "fine",
    "failing",
    "unjudged",
    "kept",
    "unmeasured",
];

fn advisory(series: Series) -> Series {
    let judgement = Judgement { advisory: true, ..series.judgement };
    let title = format!("{} 64 B rdma", series.test);
    Series { message: judgement.line(&title), judgement, ..series }
}

/// One of each kind.
fn gate() -> Gate {
    let mut gate = Gate::new(Form::Turns, vec!["verbmark".into(), "gate".into()]);
    gate.tests = TESTS.map(|name| sample::test(name, "send_lat")).into();
    if let Some(TestEntry { error, .. }) = gate.tests.last_mut() {
        *error = Some(Error::failed(Step::Measure, "the link is down").with_remedy("look at the cable"));
    }
    let p50 = Quantity::P50.rule(10.0).unwrap();
    let without = |test: &str, verdict, code, why: &str| {
        let found = Judgement::without(&p50, verdict, code, why);
        sample::series(test, point(64), found, vec![Vec::new()], Vec::new())
    };
    let few = runs(2310.0, 1.0)[..3].to_vec();
    let unsure = judge(&p50, &few, &few, true).unwrap();
    gate.series = vec![
        in_turns("regressed", 64, Quantity::P50, 2310.0, 25.0, 1.0),
        without("untrusted", Verdict::Invalid, Code::InvalidRun, "corrupt payload"),
        without("unlike", Verdict::NotComparable, Code::Mismatch, "kernel old vs new"),
        sample::series("unsure", point(64), unsure, vec![few.clone()], few),
        advisory(in_turns("advised", 64, Quantity::P50, 2310.0, 2.0, 1.0)),
        advisory(without("doubtful", Verdict::Invalid, Code::InvalidRun, "no samples")),
        in_turns("fine", 64, Quantity::P50, 2310.0, 1.0, 1.0),
    ];
    gate.limits = vec![
        limit("failing", "p99:max=5us", LimitVerdict::Fail),
        limit("unjudged", "p99:max=6us", LimitVerdict::NotEvaluated),
        limit("kept", "p99:max=7us", LimitVerdict::Pass),
    ];
    let met = |value: &str| vec![Met { value: value.into(), file: "run0.json".into() }];
    let differs = |field: &str, allowed| Mismatch {
        test: "unlike".into(),
        field: field.into(),
        end: None,
        a: met("old"),
        b: met("new"),
        allowed,
    };
    gate.mismatches = vec![differs("kernel", false), differs("mtu", true)];
    gate.differences = vec![differs("driver", true)];
    gate.note("emulated", "numbers of this tool");
    gate.verdict = overall(gate.series.iter().map(|series| &series.judgement));
    gate.exit_status = 1;
    gate
}

/// The outputs, in the order of the columns below.
fn outputs(gate: &Gate) -> [(&'static str, String); 8] {
    [
        ("text", render(gate, None)),
        ("Markdown", markdown::to_string(gate)),
        ("annotations", annotations::to_string(gate)),
        ("JUnit", junit::to_string(gate).unwrap()),
        ("OpenMetrics", openmetrics::to_string(gate)),
        ("Otava", otava::to_string(gate).unwrap()),
        ("Otava's configuration", otava::configuration(gate, "history.csv")),
        ("github-action-benchmark", benchmark_action::to_string(gate, Better::Lower).unwrap()),
    ]
}

/// Not told here, as the documentation says: the mark of the kind is nowhere in it.
const NOT: &str = "";

#[test]
fn each_output_tells_of_each_kind() {
    let lacks = |test: &str| format!("#   {test}.rdma.64.p50: the candidate lacks it");
    let (untrusted, unlike, doubtful) = (lacks("untrusted"), lacks("unlike"), lacks("doubtful"));
    // What is told, the mark by which it would be found anywhere, and how each output tells of it.
    let table: &[(&str, &str, [&str; 8])] = &[
        (
            "a regression",
            "regressed",
            [
                "failed  REGRESSION  regressed 64 B rdma p50",
                "| regressed | 64 B | rdma | p50 |",
                "::error title=REGRESSION regressed",
                "<failure type=\"regression\" message=\"REGRESSION  regressed",
                "verbmark_gate_series_verdict{test=\"regressed\"",
                "regressed.rdma.64.p50",
                "\"regressed.rdma.64.p50\": {",
                "\"regressed.rdma.64.p50\"",
            ],
        ),
        (
            "a metric that must not be trusted",
            "untrusted",
            [
                "failed  INVALID  untrusted 64 B rdma p50: corrupt payload",
                "| INVALID: corrupt payload |",
                "::error title=INVALID untrusted",
                "<error type=\"invalid\" message=\"INVALID  untrusted",
                "verbmark_gate_series_verdict{test=\"untrusted\"",
                "untrusted.rdma.64.p50",
                &untrusted,
                NOT,
            ],
        ),
        (
            "a metric that is not comparable",
            "unlike",
            [
                "failed  NOT COMPARABLE  unlike 64 B rdma p50: kernel old vs new",
                "| NOT COMPARABLE: kernel old vs new |",
                "::error title=NOT COMPARABLE unlike",
                "<skipped type=\"not_comparable\" message=\"NOT COMPARABLE  unlike",
                "verbmark_gate_series_verdict{test=\"unlike\"",
                "unlike.rdma.64.p50",
                &unlike,
                NOT,
            ],
        ),
        (
            "an inconclusive one",
            "unsure",
            [
                "open  unsure 64 B rdma p50: 3 and 3 runs",
                "| INCONCLUSIVE: 3 and 3 runs",
                NOT,
                "<skipped type=\"inconclusive\" message=\"INCONCLUSIVE  unsure",
                "verbmark_gate_series_verdict{test=\"unsure\"",
                "unsure.rdma.64.p50",
                "\"unsure.rdma.64.p50\": {",
                "\"unsure.rdma.64.p50\"",
            ],
        ),
        (
            "an advisory regression",
            "advised",
            [
                "advisory  REGRESSION  advised 64 B rdma p50",
                "| REGRESSION (advisory) |",
                NOT,
                "<skipped type=\"regression\" message=\"REGRESSION  advised",
                "advisory=\"true\",verdict=\"regression\"} 1",
                "advised.rdma.64.p50",
                "\"advised.rdma.64.p50\": {",
                "\"advised.rdma.64.p50\"",
            ],
        ),
        (
            "an advisory one that must not be trusted",
            "doubtful",
            [
                "advisory  INVALID  doubtful 64 B rdma p50  (advisory): no samples",
                "| INVALID (advisory): no samples |",
                NOT,
                "<skipped type=\"invalid\" message=\"INVALID  doubtful",
                "advisory=\"true\",verdict=\"invalid\"} 1",
                "doubtful.rdma.64.p50",
                &doubtful,
                NOT,
            ],
        ),
        (
            "a limit that failed",
            "failing",
            [
                "failed  LIMIT FAILED  failing p99:max=5us at 64 B rdma: 6.20 us, 24.0 % above 5.00 us (median",
                "| failing | p99:max=5us | 64 B rdma | 6.20 us | 5.00 us | failed, 24.0 % above 5.00 us |",
                "::error title=LIMIT failing p99%3Amax=5us::LIMIT FAILED  failing p99:max=5us at 64 B rdma: 6.20 us",
                "<failure type=\"limit\" message=\"LIMIT FAILED  failing p99:max=5us at 64 B rdma: 6.20 us, 24.0 %",
                "verbmark_gate_limit_verdict{test=\"failing\"",
                NOT,
                NOT,
                NOT,
            ],
        ),
        (
            "a limit that could not be judged",
            "unjudged",
            [
                "failed  LIMIT NOT EVALUATED  unjudged p99:max=6us: no TCP path",
                "| not evaluated: no TCP path",
                "::error title=LIMIT unjudged",
                "<error type=\"not_evaluated\" message=\"LIMIT NOT EVALUATED  unjudged",
                "verbmark_gate_limit_verdict{test=\"unjudged\"",
                NOT,
                NOT,
                NOT,
            ],
        ),
        (
            "a limit that holds",
            "kept",
            [
                "limit  PASS  kept p99:max=7us at 64 B rdma: 6.20 us, 11.4 % below 7.00 us",
                "| passed, 11.4 % below 7.00 us |",
                NOT,
                "PASS  kept p99:max=7us at 64 B rdma: 6.20 us, 11.4 % below 7.00 us",
                "verbmark_gate_limit_verdict{test=\"kept\"",
                NOT,
                NOT,
                NOT,
            ],
        ),
        (
            "a test that was not measured",
            "unmeasured",
            [
                "failed  unmeasured was not measured to its end: measure: the link is down; look at the cable",
                "| unmeasured | 15 | 15 | measure: the link is down | look at the cable |",
                "::error title=INVALID unmeasured::unmeasured was not measured to its end: measure: the link is down; look",
                "<error type=\"not_measured\" message=\"unmeasured was not measured to its end: measure: the link is down; look",
                "verbmark_gate_test_measured{test=\"unmeasured\"} 0",
                NOT,
                NOT,
                NOT,
            ],
        ),
        (
            "a test that was",
            "fine",
            [
                "\nfine\n",
                "| fine |",
                NOT,
                "<testsuite name=\"fine\"",
                "verbmark_gate_test_measured{test=\"fine\"} 1",
                "fine.rdma.64.p50",
                "  \"fine\":\n",
                "\"fine.rdma.64.p50\"",
            ],
        ),
        (
            "a field that forbids it",
            "kernel",
            [
                "not comparable  unlike: kernel is old in A, new in B",
                "| unlike | kernel | - | old | new | no |",
                "::error title=NOT COMPARABLE unlike::unlike kernel: old against new",
                "unlike kernel: old against new\n",
                "verbmark_gate_mismatch{test=\"unlike\",field=\"kernel\",end=\"\",allowed=\"false\"} 1",
                NOT,
                NOT,
                NOT,
            ],
        ),
        (
            "a field that may differ",
            "mtu",
            [
                "differs  unlike: mtu is old in A, new in B",
                "| unlike | mtu | - | old | new | yes |",
                NOT,
                "unlike mtu: old against new (allowed)",
                "verbmark_gate_mismatch{test=\"unlike\",field=\"mtu\",end=\"\",allowed=\"true\"} 1",
                NOT,
                NOT,
                NOT,
            ],
        ),
        (
            "a soft field",
            "driver",
            [
                "note  unlike: driver is old in A, new in B",
                "| unlike | driver | - | old | new | yes |",
                NOT,
                NOT,
                NOT,
                NOT,
                NOT,
                NOT,
            ],
        ),
        (
            "a note",
            "emulated",
            [
                "note  numbers of this tool",
                "| emulated | numbers of this tool |",
                NOT,
                "emulated: numbers of this tool",
                "verbmark_gate_note{code=\"emulated\"} 1",
                NOT,
                NOT,
                NOT,
            ],
        ),
        (
            "the whole",
            "exit status",
            [
                "verdict  REGRESSION, exit status 1: 7 metrics (1 regression, 1 invalid, ",
                "## verbmark gate: REGRESSION, exit status 1: 7 metrics (1 regression, 1 invalid, ",
                NOT,
                "message=\"REGRESSION, exit status 1: 7 metrics (1 regression, 1 invalid, ",
                "verbmark_gate_verdict{verdict=\"regression\"} 1",
                NOT,
                NOT,
                NOT,
            ],
        ),
    ];
    let outputs = outputs(&gate());
    for (kind, mark, parts) in table {
        for ((name, text), part) in outputs.iter().zip(parts) {
            match *part {
                NOT => assert!(!text.contains(mark), "{name} tells of {kind}: {mark:?} is in\n{text}"),
                part => {
                    assert!(text.contains(part), "{name} does not tell of {kind}: no {part:?} in\n{text}")
                }
            }
        }
    }
    // Once each: what failed is not told twice.
    assert_eq!(outputs[0].1.matches("failing p99:max=5us").count(), 1, "{}", outputs[0].1);
}

#[test]
fn why_a_gate_broke_off_is_told() {
    for (error, status, ended) in [
        (Error::failed(Step::Connect, "no answer").with_remedy("start the server"), 5, "FAILED"),
        (Error::interrupted(Step::Measure).with_remedy("start it again"), 130, "INTERRUPTED"),
    ] {
        let remedy = error.remedy.clone().unwrap();
        let mut gate = Gate::new(Form::Turns, vec!["verbmark".into()]);
        gate.tests = vec![sample::test("broken", "send_lat")];
        gate.fail(error);
        gate.exit_status = status;
        let outputs = outputs(&gate);
        let headline = format!("{ended}, exit status {status}: nothing was judged");
        for (name, text) in &outputs[..2] {
            assert!(text.contains(&headline) && !text.contains("COMPARABLE"), "{name}: {text}");
        }
        // What a terminal shows of an error stands on standard error.
        for (name, text) in &outputs[1..4] {
            assert!(text.contains(&remedy) && !text.to_lowercase().contains("comparable"), "{name}: {text}");
        }
        let metrics = &outputs[4].1;
        assert!(metrics.contains(&format!("status=\"{}\"}} 1", ended.to_lowercase())), "{metrics}");
        assert!(!metrics.contains("verbmark_gate_verdict"), "{metrics}");
        assert!(metrics.contains("verbmark_gate_test_measured{test=\"broken\"} 0"), "{metrics}");
    }
}

#[test]
fn an_invalid_gate_has_no_error_and_is_told_by_its_verdict() {
    let gate = Gate { status: Status::Invalid, exit_status: 5, ..gate() };
    let invalid = Gate { verdict: Verdict::Invalid, ..gate };
    let [text, markdown, annotations, junit, metrics, ..] = outputs(&invalid).map(|(_, text)| text);
    assert!(text.contains("verdict  INVALID, exit status 5: "), "{text}");
    assert!(markdown.starts_with("## verbmark gate: INVALID, exit status 5: "), "{markdown}");
    assert!(annotations.contains("::error"), "{annotations}");
    assert!(junit.contains("<error type=\"invalid\" message=\"INVALID, exit status 5: "), "{junit}");
    assert!(metrics.contains("verbmark_gate_status{status=\"invalid\"} 1"), "{metrics}");
    assert_eq!(serde_json::to_value(&invalid).unwrap()["error"], serde_json::Value::Null);
}

#[test]
fn advisory_metrics_are_counted_apart_and_a_gate_of_nothing_else_says_why_it_decides_nothing() {
    let mut gate = gate();
    gate.series.retain(|series| ["regressed", "fine", "advised"].contains(&series.test.as_str()));
    (gate.limits, gate.tests) = (Vec::new(), Vec::new());
    let counts = "3 metrics (1 regression, 1 pass, 1 advisory regression)";
    for (name, text) in [&outputs(&gate)[0], &outputs(&gate)[1], &outputs(&gate)[3]] {
        assert!(text.contains(counts), "{name}: {text}");
    }
    let few = sample::advisory();
    let why = "INCONCLUSIVE, exit status 3: 1 metric (1 advisory regression); nothing that decides was judged: the only \
               metric is advisory, with 3 stored sittings of 8";
    assert_eq!(words::headline(&few), why);
    for (name, text) in &outputs(&few)[..4] {
        assert!(text.contains(why), "{name}: {text}");
    }
    gate.series = vec![advisory(in_turns("advised", 64, Quantity::P50, 2310.0, 2.0, 1.0)); 2];
    (gate.verdict, gate.exit_status) = (Verdict::Inconclusive, 0);
    gate.mismatches.truncate(1);
    let said = words::headline(&gate);
    assert!(said.ends_with("nothing that decides was judged: all 2 metrics are advisory"), "{said}");
    gate.mismatches[0].allowed = true;
    gate.form = Form::Sittings;
    let said = words::headline(&gate);
    assert!(
        said.ends_with("all 2 metrics are advisory, since a field that differs was allowed to"),
        "{said}"
    );
}

#[test]
fn a_self_test_says_the_same_everywhere() {
    let [text, markdown, _, junit, metrics, ..] = outputs(&sample::self_test()).map(|(_, text)| text);
    assert!(
        text.contains("64 B rdma  p50      1.3 %           3.1 %        4 %         12 %            0"),
        "{text}"
    );
    assert!(
        text.contains("64 B rdma  p99          -               -          -            -            0"),
        "{text}"
    );
    assert!(
        markdown.contains("| 64 B rdma | p50 | 1.3 % | 1 inconclusive, 4 pass | 3.1 % | 4 % | 12 % |"),
        "{markdown}"
    );
    let said = "run CV 1.3 %, largest change 3.1 %, tolerance 4 %, must detect 12 %";
    assert!(junit.contains(said), "{junit}");
    assert!(junit.contains("run CV -, largest change -, tolerance -, must detect -"), "{junit}");
    for (name, value) in [("run_cv", "0.013"), ("largest_change", "0.031"), ("tolerance", "0.04")] {
        let samples =
            metrics.lines().filter(|line| line.starts_with(&format!("verbmark_self_test_{name}_ratio{{")));
        let values: Vec<_> = samples.map(|line| line.rsplit(' ').next().unwrap()).collect();
        assert_eq!(values, [value], "{metrics}");
    }
    // It is red where the machine must not judge, and each metric is there once.
    let [text, _, annotations, junit, ..] = outputs(&sample::self_test_that_failed()).map(|(_, text)| text);
    assert!(
        text.contains("verdict  REGRESSION, exit status 1: 5 rounds against itself, 2 metrics"),
        "{text}"
    );
    assert!(annotations.contains("::error title=REGRESSION"), "{annotations}");
    assert_eq!((junit.matches("<failure").count(), junit.matches("<testcase").count()), (2, 3), "{junit}");
    assert!(junit.contains("against itself 1 regression, 4 pass: run CV"), "{junit}");
}

#[test]
fn a_huge_change_is_read_at_a_glance() {
    let mut gate = gate();
    gate.limits[0].result.by_percent = Some(36_400.0);
    assert!(words::limit(&gate.limits[0]).contains("365 times 5.00 us (median"), "{:?}", gate.limits[0]);
    let outputs = outputs(&gate);
    for (name, text) in &outputs[..4] {
        assert!(text.contains("+2400 %"), "{name}: {text}");
    }
}

#[test]
fn a_point_is_named_in_plain_words() {
    for (id, said) in [
        ("rdma/64B/qps1/depth1/threads1/busy/unidirectional", "64 B rdma"),
        (
            "tcp/65536B/qps2/depth128/threads4/events/bidirectional/rate1000",
            "64 KiB tcp, 2 QPs, depth 128, 4 threads, events, both ways, 1000/s",
        ),
        ("of another version", "of another version"),
    ] {
        assert_eq!(words::point(id), said);
    }
}
