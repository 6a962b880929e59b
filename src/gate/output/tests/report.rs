//! What people see: JUnit, Markdown, annotations.

use quick_xml::events::Event;
use quick_xml::{Reader, XmlVersion};

use super::sample::{self, HOSTILE};
use crate::error::{Error, Step};
use crate::gate::compare::Mismatch;
use crate::gate::document::{Form, Gate};
use crate::gate::output::{annotations, junit, markdown};
use crate::gate::verdict::Verdict;
use crate::result::{LimitVerdict, Quantity};

/// An element, its attributes, and its text.
#[derive(Debug, Default, Clone)]
struct Element {
    name: String,
    attributes: Vec<(String, String)>,
}

impl Element {
    #[track_caller]
    fn attribute(&self, name: &str) -> &str {
        let found = self.attributes.iter().find(|(known, _)| known == name);
        &found.unwrap_or_else(|| panic!("no {name} in {self:?}")).1
    }
}

/// Every element in order, with references resolved and white space in attributes as a reader takes it.
fn elements(xml: &str) -> Vec<Element> {
    let mut reader = Reader::from_str(xml);
    let mut elements = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Start(start) | Event::Empty(start) => elements.push(Element {
                name: start.name().as_ref().to_owned(),
                attributes: start
                    .attributes()
                    .map(|attribute| {
                        let attribute = attribute.unwrap();
                        let value = attribute.normalized_value(XmlVersion::Implicit1_0).unwrap();
                        (attribute.key.as_ref().to_owned(), value.into_owned())
                    })
                    .collect(),
            }),
            Event::Eof => return elements,
            _ => {}
        }
    }
}

/// A name as XML can hold it.
fn in_xml(text: &str) -> String {
    text.replace(['\0', '\u{1b}', '\u{fffe}'], "\u{fffd}")
}

#[test]
fn xml_holds_every_name_and_no_character_that_it_forbids() {
    for (name, gate) in sample::all() {
        let xml = junit::to_string(&gate).unwrap();
        assert!(!xml.contains(['\0', '\u{1b}', '\u{fffe}']), "{name}");
        let elements = elements(&xml);
        let commit =
            elements.iter().find(|of| of.name == "property" && of.attribute("name") == "label.commit");
        assert_eq!(commit.unwrap().attribute("value"), in_xml(HOSTILE), "{name}");
    }
    let elements = elements(&junit::to_string(&sample::turns()).unwrap());
    let suites: Vec<_> = elements.iter().filter(|of| of.name == "testsuite").collect();
    assert_eq!(
        suites.iter().map(|suite| suite.attribute("name")).collect::<Vec<_>>(),
        ["gate", "send_lat", &in_xml(HOSTILE), "write_lat"]
    );
}

#[test]
fn a_case_fails_for_what_the_job_fails_for_and_totals_are_the_sums() {
    let gate = sample::turns();
    let elements = elements(&junit::to_string(&gate).unwrap());
    let count = |name: &str| elements.iter().filter(|of| of.name == name).count();
    let of_series = |verdict, advisory| {
        gate.series
            .iter()
            .filter(|of| (of.judgement.verdict, of.judgement.advisory) == (verdict, advisory))
            .count()
    };
    let limits = |verdict| gate.limits.iter().filter(|of| of.result.verdict == verdict).count();
    // The gate as a whole is a case, too.
    let failed = of_series(Verdict::Regression, false) + limits(LimitVerdict::Fail) + 1;
    let skipped = of_series(Verdict::Inconclusive, false)
        + of_series(Verdict::NotComparable, false)
        + of_series(Verdict::Regression, true);
    let unmeasured = gate.tests.iter().filter(|test| test.error.is_some()).count();
    let errors = of_series(Verdict::Invalid, false) + limits(LimitVerdict::NotEvaluated) + unmeasured;
    assert!(failed > 2 && skipped > 2 && errors > 1, "{failed} {skipped} {errors}");
    assert_eq!((count("failure"), count("skipped"), count("error")), (failed, skipped, errors));
    assert_eq!(count("testcase"), 1 + gate.series.len() + gate.limits.len() + unmeasured);
    let root = &elements[0];
    assert_eq!(root.attribute("failures"), failed.to_string());
    assert_eq!(root.attribute("errors"), errors.to_string());
    assert_eq!(root.attribute("time"), "1234.568");
    for name in ["tests", "failures", "errors"] {
        let suites = elements.iter().filter(|of| of.name == "testsuite");
        let sum: usize = suites.map(|of| of.attribute(name).parse::<usize>().unwrap()).sum();
        assert_eq!(root.attribute(name), sum.to_string(), "{name}");
    }
}

#[test]
fn a_file_is_green_only_where_the_gate_ends_with_0() {
    for status in [0, 1, 2, 3, 4, 5, 130] {
        let gate = Gate { exit_status: status, ..Gate::new(Form::Turns, vec!["verbmark".into()]) };
        let xml = junit::to_string(&gate).unwrap();
        assert_eq!(xml.contains("<failure") || xml.contains("<error"), status != 0, "{status}: {xml}");
    }
    for (name, gate) in sample::all() {
        let xml = junit::to_string(&gate).unwrap();
        let is_red = xml.contains("<failure") || xml.contains("<error");
        assert_eq!(is_red, gate.exit_status != 0, "{name}: {xml}");
        let elements = elements(&xml);
        let cases = elements.iter().filter(|of| of.name == "testcase");
        let names: Vec<_> = cases.map(|of| (of.attribute("classname"), of.attribute("name"))).collect();
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{name}: {names:?}");
    }
    // Whatever its status says.
    let failed = junit::to_string(&Gate { exit_status: 0, ..sample::failed() }).unwrap();
    let error = elements(&failed).into_iter().find(|of| of.name == "error").unwrap();
    assert!(error.attribute("message").contains("start the server"), "{failed}");
}

/// The cells of a row, divided where GitHub divides them.
fn cells(line: &str) -> usize {
    let escaped = line.replace(r"\\", "").replace(r"\|", "");
    escaped.matches('|').count() - 1
}

#[test]
fn no_name_ends_a_cell_or_a_row_or_means_anything_to_html() {
    for (name, gate) in sample::all() {
        let text = markdown::to_string(&gate);
        assert!(!text.contains(['<', '>', '\u{1b}', '\r', '\t']), "{name}: {text}");
        assert!(text.contains("&lt;b&gt;&amp;lt;"), "{name}: {text}");
        let mut columns = 0;
        for line in text.lines() {
            assert!(["|", "#", "*", ""].contains(&line.get(..1).unwrap_or("")), "{name}: {line}");
            match line.starts_with('|') {
                true if columns == 0 => columns = cells(line),
                true => assert_eq!(cells(line), columns, "{name}: {line}"),
                false => columns = 0,
            }
        }
    }
}

#[test]
fn the_worst_row_comes_first_and_a_self_test_has_its_table() {
    let text = markdown::to_string(&sample::turns());
    let rows: Vec<_> = text.lines().skip_while(|line| *line != "### Metrics").skip(4).collect();
    assert!(
        rows[0].starts_with("| send\\_lat | 64 B | rdma | p99 |") && rows[0].contains("+50.0 % \\[+"),
        "{text}"
    );
    let at = |verdict: &str| rows.iter().position(|row| row.contains(verdict)).unwrap();
    assert!(
        at("| INVALID") < at("| NOT COMPARABLE") && at("| NOT COMPARABLE") < at("| INCONCLUSIVE"),
        "{text}"
    );
    assert!(at("| INCONCLUSIVE") < at("| PASS"), "{text}");
    assert!(at("| REGRESSION (advisory)") < at("| PASS"), "{text}");
    assert!(text.starts_with("## verbmark gate: REGRESSION, exit status 1: 10 metrics"), "{text}");
    let itself = markdown::to_string(&sample::self_test());
    assert!(itself.contains("| 1.3 % | 1 inconclusive, 4 pass | 3.1 % | 4 % | 12 % |"), "{itself}");
    assert!(itself.contains("| - | 1 inconclusive, 4 pass | - | - | - |"), "{itself}");
    assert!(itself.contains("5 rounds against itself"), "{itself}");
}

#[test]
fn a_gate_of_any_size_stays_below_what_github_takes_and_says_what_it_left_out() {
    let mut gate = sample::turns();
    let long = HOSTILE.repeat(1000);
    gate.series = (0..5000).map(|_| gate.series[1].clone()).collect();
    gate.series[7].test.clone_from(&long);
    gate.limits = (0..5000).map(|_| gate.limits[1].clone()).collect();
    let field = |index| Mismatch { field: format!("field{index}"), ..gate.mismatches[0].clone() };
    gate.mismatches = (0..5000).map(field).collect();
    gate.differences = gate.mismatches.clone();
    (0..5000).for_each(|index| gate.note("note", format!("{index} {long}")));
    gate.fail(Error::failed(Step::Measure, long));
    let text = markdown::to_string(&gate);
    assert!(text.len() <= markdown::LARGEST, "{}", text.len());
    let told: Vec<usize> =
        text.lines().filter_map(|line| line.strip_prefix("and ")?.split_once(' ')?.0.parse().ok()).collect();
    assert_eq!(told.len(), 5, "{told:?}");
    let rows = text.lines().filter(|line| line.starts_with("| ")).count() - 6;
    assert_eq!(rows + told.iter().sum::<usize>(), 4 * 5000 + gate.notes.len() + 1);
    assert!(!markdown::to_string(&sample::turns()).contains(" more, in the"));
}

/// A command as the runner reads it: its name, its title, its text.
#[track_caller]
fn command(line: &str) -> (String, String, String) {
    let (command, data) = line.strip_prefix("::").unwrap().split_once("::").unwrap();
    let (name, properties) = command.split_once(' ').unwrap();
    let title = properties.strip_prefix("title=").unwrap();
    assert!(!title.contains(','), "a second property: {line}");
    let unescaped = |text: &str| text.replace("%0D", "\r").replace("%0A", "\n");
    let title = unescaped(title).replace("%3A", ":").replace("%2C", ",").replace("%25", "%");
    (name.into(), title, unescaped(data).replace("%25", "%"))
}

/// A name as one line, and as several.
fn printed(text: &str) -> String {
    text.replace(['\0', '\r', '\t', '\u{1b}', '\u{fffe}', '\u{2028}'], "\u{fffd}")
}

#[test]
fn github_reads_back_what_was_said_and_nothing_else() {
    let gate = sample::turns();
    let text = annotations::to_string(&gate);
    let commands: Vec<_> = text.lines().map(command).collect();
    let troubles = gate.troubles();
    assert_eq!(commands.len(), troubles.len());
    let worst = &gate.series[1];
    assert_eq!(
        commands[0],
        ("error".into(), "REGRESSION send_lat 64 B rdma p99".into(), worst.message.clone())
    );
    let hostile = commands.iter().find(|(_, title, _)| title.starts_with("INVALID a")).unwrap();
    assert_eq!(hostile.1, printed(&format!("INVALID {HOSTILE} 1 MiB rdma rate")));
    assert_eq!(hostile.2, printed(&gate.series[9].message));
    let (_, _, failed) = command(annotations::to_string(&sample::failed()).trim_end());
    assert_eq!(failed, printed(&format!("connect: {HOSTILE}; start the server, and look at its port")));
    assert_eq!(annotations::to_string(&sample::limits()), "");
}

#[test]
fn github_is_given_ten_at_most_of_a_kind_and_the_last_counts_the_rest() {
    let mut gate = sample::turns();
    gate.series =
        (0..40).map(|_| sample::in_turns("send_lat", 64, Quantity::P50, 2310.0, 2.0, 1.0)).collect();
    gate.limits.clear();
    gate.tests.clear();
    let text = annotations::to_string(&gate);
    assert_eq!(text.lines().count(), 10);
    assert!(text.ends_with("::and 31 more, in the JSON document\n"), "{text}");
    gate.series.truncate(10);
    assert!(!annotations::to_string(&gate).contains(" more, in"), "all ten fit");
}

#[test]
fn an_inconclusive_gate_warns_where_it_is_strict_and_no_failing_one_is_silent() {
    let mut gate = sample::turns();
    gate.series.retain(|series| series.judgement.verdict == Verdict::Inconclusive);
    gate.limits.clear();
    gate.tests.clear();
    gate.exit_status = 0;
    assert_eq!(annotations::to_string(&gate), "");
    gate.exit_status = 3;
    let text = annotations::to_string(&gate);
    assert_eq!(text.lines().count(), gate.series.len());
    assert!(text.lines().all(|line| line.starts_with("::warning title=INCONCLUSIVE send_lat")), "{text}");
    for status in [1, 3, 4, 5] {
        let gate = Gate { exit_status: status, ..Gate::new(Form::Turns, vec!["verbmark".into()]) };
        assert_eq!(annotations::to_string(&gate).lines().count(), 1, "{status}");
    }
}
