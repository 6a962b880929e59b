//! Input that nobody means: options, suite files, documents and messages of the other end. Each is read, or refused in
//! words; nothing panics, and nothing is taken for more than it can be.

use std::ffi::OsString;
use std::sync::OnceLock;
use std::time::Duration;

use clap::CommandFactory;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::Value;
use verbmark::plan::{self, Plan};
use verbmark::report::{csv, hlog, json, render};
use verbmark::result::Document;
use verbmark::tool::gate::Suite;
use verbmark::{cli, registration, suite as binaries};

use crate::compare::{kinds, odd, places};
use crate::suite::proxy::Proxy;
use crate::suite::{self, Running, TOOL, client, line, port};

/// Every option of a test, by its long name.
fn options() -> &'static [String] {
    static OPTIONS: OnceLock<Vec<String>> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let command = cli::TestArgs::command();
        let long = command.get_arguments().filter_map(|argument| argument.get_long());
        long.map(|name| format!("--{name}")).collect()
    })
}

/// What stands after an option, meant or not.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<u64>().prop_map(|number| number.to_string()),
        (0_u32..70_000).prop_map(|number| number.to_string()),
        (
            0_u32..5000,
            prop::sample::select(vec!["k", "M", "G", "KiB", "kB", "us", "ms", "s", "h", "%", "/s"])
        )
            .prop_map(|(number, unit)| format!("{number}{unit}")),
        prop::sample::select(vec![
            "",
            "-1",
            "0",
            "1",
            "64,4k",
            "1..8M",
            "4k..1",
            "UD",
            "rc",
            "10.7.0.0/16",
            "nan",
            "1e9"
        ])
        .prop_map(String::from),
        "\\PC{0,8}",
    ]
}

fn words() -> impl Strategy<Value = Vec<String>> {
    let option = prop::sample::select(options().to_vec());
    let typed = (option, prop::option::weighted(0.7, value()))
        .prop_map(|(option, value)| [Some(option), value].into_iter().flatten().collect::<Vec<_>>());
    prop::collection::vec(typed, 0..6).prop_map(|typed| typed.concat())
}

/// What was decided can be carried out by arithmetic that does not overflow.
fn check(plan: &Plan) {
    let test = &plan.test;
    assert!(!test.sizes.is_empty() && test.sizes.iter().all(|size| (1..=1 << 30).contains(size)), "{test:?}");
    assert!(test.tx_depth > 0 && test.rx_depth > 0 && test.qps > 0 && test.threads > 0, "{test:?}");
    // Its documents can be written.
    serde_json::to_value(test).expect("a test is plain values");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_options_of_a_test_are_decided_or_refused_in_words(which in any::<prop::sample::Index>(), words in words(), host in 0_usize..3) {
        let &(verb, shape) = which.get(binaries::TESTS);
        let end = ["--loopback", "192.0.2.1", ""][host];
        let ends = (!end.is_empty()).then(|| end.to_owned());
        let line = std::iter::once("test".to_owned()).chain(ends).chain(words).map(OsString::from);
        match binaries::parse(verb, shape, line) {
            Err(error) => prop_assert!(!error.to_string().trim().is_empty()),
            Ok(typed) => match plan::resolve(typed, verb, shape, 7) {
                Err(error) => prop_assert!(!error.message.is_empty() && error.exit_status() == 2, "{error:?}"),
                Ok(plan) => check(&plan),
            },
        }
    }

    #[test]
    fn any_words_of_the_tools_are_taken_or_refused(
        tool in prop::sample::select(vec!["devices", "doctor", "explain", "audit", "report", "compare", "gate", "serve", "nothing"]),
        words in prop::collection::vec(prop_oneof![value(), prop::sample::select(options().to_vec()),
            prop::sample::select(vec!["--json", "--a", "--b", "--baseline", "--record", "--self-test", "--min-pairs", "--max-size"]).prop_map(String::from)], 0..6),
    ) {
        let line = ["verbmark".to_owned(), tool.to_owned()].into_iter().chain(words).map(OsString::from);
        if let Err(error) = cli::tool::parse(line.clone()) {
            prop_assert!(!error.to_string().trim().is_empty());
        }
        let _ = cli::registration::parse(line);
    }

    #[test]
    fn any_suite_file_is_a_suite_or_is_told_why_not(
        lines in prop::collection::vec(prop_oneof![
            Just("[[test]]".to_owned()), Just("[a]".to_owned()), Just("[tolerance]".to_owned()), Just("binary = \"send_lat\"".to_owned()),
            ("[a-z_.]{1,12}", "\\PC{0,16}").prop_map(|(key, value)| format!("{key} = {value}")),
            prop::sample::select(vec!["sizes", "limits", "metrics", "options", "min_pairs", "p50", "name"]).prop_flat_map(|key| value().prop_map(move |value| format!("{key} = [\"{value}\"]"))),
            "\\PC{0,24}",
        ], 0..8),
    ) {
        if let Err(error) = Suite::parse("suite.toml", &lines.join("\n")) {
            let cause = error.message;
            prop_assert!(cause.starts_with("suite.toml: ") && !cause.contains('\n'), "{cause:?}");
            prop_assert!(error.remedy.is_some_and(|remedy| !remedy.contains('\n')), "{cause:?}");
        }
    }

    #[test]
    fn a_mutated_document_is_shown_again_or_refused(
        of in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), odd()), 1..4),
    ) {
        let mut changed = kinds()[of.index(kinds().len())].clone();
        for (place, value) in changes {
            let mut all = Vec::new();
            places(&changed, "", &mut all);
            *changed.pointer_mut(&all[place.index(all.len())]).unwrap() = value;
        }
        let text = changed.to_string();
        let _ = registration::Document::from_json(&text);
        if let Ok(document) = Document::from_json(&text) {
            render(&document, Some(60));
            json::to_string(&document).unwrap();
            csv::to_string(&document).unwrap();
            // A histogram that is none is an error in words.
            if let Err(error) = hlog::to_string(&document) {
                prop_assert!(!error.message.is_empty());
            }
        }
    }
}

/// Messages of a run that are changed, one in each run.
const CASES: usize = 40;

/// Longest that either end may take over a run in which a message was wrong: longer than its deadlines.
const ENDED: Duration = Duration::from_secs(30);

#[test]
fn a_wrong_message_ends_one_run_and_not_the_server() {
    let _turn = suite::turn();
    let mut server = Running::start(line(TOOL, "serve --bind 127.0.0.1 -p 0 --tcp-only --max-memory 1M"));
    let port = port(&mut server);
    let start = |port: u16| {
        let options = "--tcp-only -n 20 -s 64,128 --connect-timeout 2 --stall-timeout 1";
        Running::start(client("send_lat", "127.0.0.1", port, options))
    };
    let clean = Proxy::start(port, usize::MAX, |_| {});
    start(clean.port()).finish().exits(0);
    let frames = clean.frames().len();
    let mut runner = TestRunner::deterministic();
    for case in 0..CASES {
        let at = case * frames / CASES;
        let (place, odd) = (any::<prop::sample::Index>(), odd()).new_tree(&mut runner).unwrap().current();
        let proxy = Proxy::with_wrong_message(port, at, move |mut message: Value| {
            let mut all = Vec::new();
            places(&message, "", &mut all);
            *message.pointer_mut(&all[place.index(all.len())]).unwrap() = odd;
            message
        });
        let run = start(proxy.port()).finish_within(ENDED);
        let status = run.status.code();
        // What was changed may mean nothing to who reads it.
        assert!([Some(0), Some(5)].contains(&status), "message {at}: {run:?}");
        assert_eq!(status == Some(5), run.stderr.contains("error: "), "message {at}: {run:?}");
        assert!(server.runs(), "message {at}: {}", server.said());
    }
    start(port).finish_within(ENDED).exits(0);
    assert!(!server.said().contains("panicked"), "{}", server.said());
}
