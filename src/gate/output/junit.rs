//! JUnit XML, as GitLab, Jenkins, Azure and Buildkite read it.
//!
//! The first suite is the gate as a whole, with one case that passes only if the gate came to its end, with status 0: a file
//! without a test, or of a gate that broke off, is never green. Then one suite a test, with a case a metric and a case a
//! limit at each point; of a self-test the metric in its worst round, with what all rounds found. Elements and attributes
//! are those of Jenkins' `junit-10.xsd`, which forbids others.

use std::borrow::Cow;
use std::io;

use quick_xml::Writer;
use quick_xml::escape::escape;
use quick_xml::events::attributes::Attribute;
use quick_xml::events::{BytesDecl, BytesText, Event};
use quick_xml::name::QName;

use super::words;
use crate::error::{Error, Result, Step};
use crate::gate::document::{Gate, LimitOutcome, Series, TestEntry};
use crate::gate::order::Arm;
use crate::gate::verdict::Verdict;
use crate::result::LimitVerdict;

/// The XML, with its declaration.
///
/// # Errors
/// It cannot be written.
pub fn to_string(gate: &Gate) -> Result<String> {
    let broken =
        |cause: &dyn std::fmt::Display| Error::failed(Step::Output, format!("cannot write XML: {cause}"));
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    write(&mut writer, gate).map_err(|e| broken(&e))?;
    let text = String::from_utf8(writer.into_inner()).map_err(|e| broken(&e))?;
    Ok(text + "\n")
}

/// What became of a case, as JUnit knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Skipped,
    /// Neither: it could not be told.
    Error,
}

struct Case {
    class: String,
    name: String,
    outcome: Outcome,
    /// Why, for programs.
    kind: &'static str,
    /// One line.
    message: String,
    /// That and more lines, where there are some.
    text: String,
}

impl Case {
    /// One whose text is its message.
    fn new(test: &str, name: String, (outcome, kind): (Outcome, &'static str), message: String) -> Self {
        Self { class: test.into(), name, outcome, kind, text: message.clone(), message }
    }
}

struct Suite {
    name: String,
    properties: Vec<(String, String)>,
    cases: Vec<Case>,
}

impl Suite {
    fn count(&self, outcome: Outcome) -> usize {
        self.cases.iter().filter(|case| case.outcome == outcome).count()
    }
}

fn suites(gate: &Gate) -> Vec<Suite> {
    let is_known = |name: &str| gate.tests.iter().any(|test| test.name == name);
    let mut whole = Suite { name: "gate".into(), properties: facts(gate), cases: vec![gate_case(gate)] };
    // Nothing that was judged may be missing, whatever it belongs to.
    whole.cases.extend(cases(gate, |name| !is_known(name)));
    let of_tests = gate.tests.iter().map(|test| Suite {
        name: test.name.clone(),
        properties: facts(gate).into_iter().chain(test_facts(test)).collect(),
        cases: cases(gate, |name| name == test.name).into_iter().chain(test_case(test)).collect(),
    });
    std::iter::once(whole).chain(of_tests).collect()
}

/// The gate as a whole.
fn gate_case(gate: &Gate) -> Case {
    let outcome = match gate.exit_status {
        _ if gate.error.is_some() => Outcome::Error,
        0 => Outcome::Passed,
        1 | 3 => Outcome::Failed,
        _ => Outcome::Error,
    };
    let (kind, message) = match &gate.error {
        Some(error) => ("broken_off", format!("{}: {}", words::headline(gate), words::error(error))),
        None => (words::verdict(gate).map_or("", Verdict::name), words::headline(gate)),
    };
    let mismatches = gate.mismatches.iter().map(words::mismatch);
    let notes = gate.notes.iter().map(|note| format!("{}: {}", note.code, note.message));
    let details: Vec<_> = std::iter::once(message.clone()).chain(mismatches).chain(notes).collect();
    Case {
        class: "gate".into(),
        name: words::form(gate.form).into(),
        outcome,
        kind,
        message,
        text: details.join("\n"),
    }
}

/// That of a test which was not measured to its end, whatever was judged of it.
fn test_case(test: &TestEntry) -> Option<Case> {
    test.error.as_ref()?;
    let outcome = (Outcome::Error, "not_measured");
    Some(Case::new(&test.name, "measuring".into(), outcome, words::test(test)))
}

/// The cases of tests by name.
fn cases(gate: &Gate, of: impl Fn(&str) -> bool) -> Vec<Case> {
    let series = gate.series.iter().filter(|series| of(&series.test));
    let series = series.map(|series| {
        let case = series_case(series);
        let itself = gate.self_test.iter().flat_map(|found| &found.series);
        let itself = itself.filter(|found| found.is_of(series));
        let itself = itself
            .flat_map(|found| std::iter::once(words::self_test(found)).chain(words::unsuggested(found)));
        // Readers take two cases of one name for one, and show either.
        Case { text: std::iter::once(case.text).chain(itself).collect::<Vec<_>>().join("\n"), ..case }
    });
    let limits = gate.limits.iter().filter(|limit| of(&limit.test)).map(limit_case);
    series.chain(limits).collect()
}

fn series_case(series: &Series) -> Case {
    let found = &series.judgement;
    let outcome = match found.verdict {
        Verdict::Improved | Verdict::Pass => Outcome::Passed,
        _ if found.advisory => Outcome::Skipped,
        Verdict::Regression => Outcome::Failed,
        Verdict::Inconclusive | Verdict::NotComparable => Outcome::Skipped,
        Verdict::Invalid => Outcome::Error,
    };
    let name = format!("{} {}", series.id, found.metric.name());
    Case::new(&series.test, name, (outcome, found.verdict.name()), series.message.clone())
}

fn limit_case(limit: &LimitOutcome) -> Case {
    let outcome = match limit.result.verdict {
        LimitVerdict::Pass => (Outcome::Passed, ""),
        LimitVerdict::Fail => (Outcome::Failed, "limit"),
        LimitVerdict::NotEvaluated => (Outcome::Error, "not_evaluated"),
    };
    let place = limit.result.point.as_deref().unwrap_or("no point");
    Case::new(&limit.test, format!("{place} {}", limit.result.limit), outcome, words::limit(limit))
}

/// What tells of a gate whatever it finds.
fn facts(gate: &Gate) -> Vec<(String, String)> {
    let mut facts = vec![
        ("tool".into(), format!("{} {}", gate.tool.name, gate.tool.version)),
        ("form".into(), words::form(gate.form).into()),
    ];
    facts.extend(gate.seed.map(|seed| ("seed".into(), seed.to_string())));
    facts.extend(gate.suite.iter().map(|suite| ("suite".into(), suite.clone())));
    facts.extend(gate.arms.iter().map(|arm| {
        let role = if arm.arm == Arm::A { "baseline" } else { "candidate" };
        (role.into(), arm.name.clone())
    }));
    facts.extend(gate.labels.iter().map(|(name, value)| (format!("label.{name}"), value.clone())));
    facts
}

fn test_facts(test: &TestEntry) -> impl Iterator<Item = (String, String)> {
    let fields = test.fingerprint.iter().map(|(field, value)| (field.clone(), value.clone()));
    let binary = ("binary".to_owned(), test.binary.clone());
    let runs = [("runs_a", test.runs_a), ("runs_b", test.runs_b)];
    std::iter::once(binary).chain(runs.map(|(arm, runs)| (arm.to_owned(), runs.to_string()))).chain(fields)
}

fn write(writer: &mut Writer<Vec<u8>>, gate: &Gate) -> io::Result<()> {
    let suites = suites(gate);
    let total = |outcome| suites.iter().map(|suite| suite.count(outcome)).sum::<usize>().to_string();
    let tests = suites.iter().map(|suite| suite.cases.len()).sum::<usize>().to_string();
    // Jenkins takes no more digits.
    let seconds = format!("{:.3}", gate.duration_s);
    writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    let root = writer.create_element("testsuites").with_attributes([
        attribute("name", "verbmark gate"),
        attribute("tests", &tests),
        attribute("failures", &total(Outcome::Failed)),
        attribute("errors", &total(Outcome::Error)),
        attribute("time", &seconds),
    ]);
    root.write_inner_content(|writer| {
        for (index, suite) in suites.iter().enumerate() {
            // Times of suites are added up, and only the whole has one.
            let time = (index == 0).then(|| attribute("time", &seconds));
            let element = writer.create_element("testsuite").with_attributes([
                attribute("name", &suite.name),
                attribute("tests", &suite.cases.len().to_string()),
                attribute("failures", &suite.count(Outcome::Failed).to_string()),
                attribute("errors", &suite.count(Outcome::Error).to_string()),
                attribute("skipped", &suite.count(Outcome::Skipped).to_string()),
                attribute("timestamp", &gate.started_at),
            ]);
            element.with_attributes(time).write_inner_content(|writer| write_suite(writer, suite))?;
        }
        Ok(())
    })?;
    Ok(())
}

fn write_suite(writer: &mut Writer<Vec<u8>>, suite: &Suite) -> io::Result<()> {
    writer.create_element("properties").write_inner_content(|writer| {
        for (name, value) in &suite.properties {
            let both = [attribute("name", name), attribute("value", value)];
            writer.create_element("property").with_attributes(both).write_empty()?;
        }
        Ok(())
    })?;
    for case in &suite.cases {
        let both = [attribute("classname", &case.class), attribute("name", &case.name)];
        let element = writer.create_element("testcase").with_attributes(both);
        element.write_inner_content(|writer| write_outcome(writer, case))?;
    }
    Ok(())
}

fn write_outcome(writer: &mut Writer<Vec<u8>>, case: &Case) -> io::Result<()> {
    let name = match case.outcome {
        Outcome::Passed => {
            writer.create_element("system-out").write_text_content(BytesText::new(&xml(&case.text)))?;
            return Ok(());
        }
        Outcome::Failed => "failure",
        Outcome::Skipped => "skipped",
        Outcome::Error => "error",
    };
    let both = [attribute("type", case.kind), attribute("message", &case.message)];
    let element = writer.create_element(name).with_attributes(both);
    // GitLab and Buildkite show the text, Jenkins both.
    element.write_text_content(BytesText::new(&xml(&case.text)))?;
    Ok(())
}

/// An attribute with its value escaped. Readers take a line feed or a tab in it for a space unless it is a reference.
fn attribute<'a>(name: &'a str, value: &str) -> Attribute<'a> {
    let value = escape(xml(value)).replace('\n', "&#10;").replace('\t', "&#9;");
    Attribute { key: QName(name), value: Cow::Owned(value) }
}

/// The text with what XML 1.0 forbids in any form replaced: most control characters, and two that are none.
fn xml(text: &str) -> Cow<'_, str> {
    let is_forbidden = |c: char| matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}');
    if text.contains(is_forbidden) {
        Cow::Owned(text.replace(is_forbidden, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}
