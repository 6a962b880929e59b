#!/usr/bin/env python3
"""Reads what `verbmark gate` wrote with the programs it is written for, and compares it with the document.

    python3 -m venv venv && venv/bin/pip install junitparser prometheus_client apache-otava cmarkgfm xmlschema
    venv/bin/python scripts/check_gate_outputs.py DIRECTORY [--junit-schema junit-10.xsd]

Each NAME.json in the directory is the document of a gate; beside it may lie NAME.junit.xml, NAME.md, NAME.annotations,
NAME.prom, NAME.otava.csv with NAME.otava.yaml, NAME.smaller.json and NAME.bigger.json. What is there is checked. The schema
of Jenkins is in its plugin xunit (src/main/resources/.../model/xsd/junit-10.xsd). `promtool` comes with Debian's prometheus;
where it is not installed that is said.
"""

import argparse
import collections
import csv
import html.parser
import json
import math
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import unicodedata

import cmarkgfm
import junitparser
import prometheus_client.openmetrics.parser
import prometheus_client.parser
from otava.config import load_config_from_file
from otava.data_selector import DataSelector
from otava.importer import CsvImporter
from otava.util import parse_datetime

SCHEMA = "verbmark.gate/1"
PERCENT_CODES = (("%0D", "\r"), ("%0A", "\n"))
PROPERTY_CODES = PERCENT_CODES + (("%3A", ":"), ("%2C", ","))


class Checks:
    """Counts what held, names what did not and what could not be asked."""

    def __init__(self):
        self.passed = 0
        self.failed = 0
        self.skipped = 0

    def check(self, holds, what):
        if holds:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED  {what}")

    def equal(self, found, expected, what):
        self.check(found == expected, f"{what}: {found!r}, not {expected!r}")

    def skip(self, what):
        self.skipped += 1
        print(f"skipped  {what}")


def printable(text, keep=""):
    """A name as formats of one line show it."""
    gone = "\u2028\u2029\ufffe\uffff"
    return "".join(
        c if c in keep or (unicodedata.category(c) != "Cc" and c not in gone) else "\ufffd" for c in text
    )


def in_xml(text):
    """A name as XML can hold it."""
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "\ufffd", text)


def decides(series, *verdicts):
    return not series["advisory"] and series["verdict"] in verdicts


def spoilt(gate):
    """Tests that were not measured to their end."""
    return [test for test in gate["tests"] if test["error"]]


def candidate(series):
    """Values of the candidate that may be shown beside others."""
    return series["values_b"] if series["verdict"] != "invalid" else []


def troubles(gate):
    """What the job fails for."""
    series = [one for one in gate["series"] if decides(one, "regression", "invalid", "not_comparable")]
    return series + [limit for limit in gate["limits"] if limit["verdict"] != "pass"]


def check_junit(checks, path, gate, schema):
    xml = junitparser.JUnitXml.fromfile(str(path))
    suites = list(xml)
    cases = [case for suite in suites for case in suite]
    kinds = collections.Counter(type(result).__name__ for case in cases for result in case.result)
    checks.equal(xml.tests, len(cases), f"{path}: tests")
    checks.equal(xml.failures, kinds["Failure"], f"{path}: failures")
    checks.equal(xml.errors, kinds["Error"], f"{path}: errors")
    checks.equal([in_xml(suite.name) for suite in suites], ["gate"] + [in_xml(t["name"]) for t in gate["tests"]], f"{path}: suites")
    is_red = bool(kinds["Failure"] or kinds["Error"])
    checks.equal(is_red, gate["exit_status"] != 0, f"{path}: red, of exit status {gate['exit_status']}")
    checks.equal(len(cases), 1 + len(gate["series"]) + len(gate["limits"]) + len(spoilt(gate)), f"{path}: cases")
    names = collections.Counter((case.classname, case.name) for case in cases)
    checks.check(max(names.values()) == 1, f"{path}: a case is there twice, and Jenkins shows one: {names.most_common(1)}")
    outcomes = {(case.classname, case.name): case for case in cases}
    for series in gate["series"]:
        case = outcomes.get((in_xml(series["test"]), in_xml(f"{series['id']} {series['metric']}")))
        if case is None:
            checks.check(False, f"{path}: no case of {series['id']} {series['metric']}")
            continue
        if series["verdict"] in ("pass", "improved"):
            # In a self-test what all rounds found stands below.
            said = case.system_out[: len(in_xml(series["message"]))] if gate["self_test"] else case.system_out
            checks.equal((case.result, said), ([], in_xml(series["message"])), f"{path}: {case.name}")
            continue
        kind = {"regression": "Failure", "invalid": "Error"}.get(series["verdict"], "Skipped")
        kind = "Skipped" if series["advisory"] else kind
        found = [(type(result).__name__, result.message) for result in case.result]
        checks.equal(found, [(kind, in_xml(series["message"]))], f"{path}: {case.name}")
    for test in spoilt(gate):
        case = outcomes.get((in_xml(test["name"]), "measuring"))
        found = [type(result).__name__ for result in case.result] if case else None
        checks.equal(found, ["Error"], f"{path}: {test['name']} was not measured")
    for suite, test in zip(suites[1:], gate["tests"]):
        properties = {known.name: known.value for known in suite.properties()}
        for field, value in test["fingerprint"].items():
            checks.equal(properties.get(in_xml(field)), in_xml(value), f"{path}: fingerprint {field}")
    if schema is not None:
        errors = [error.reason for error in schema.iter_errors(str(path))]
        checks.equal(errors, [], f"{path}: by Jenkins' schema")


class Tables(html.parser.HTMLParser):
    """Cells of the tables of a page, its headings, and which tags there are."""

    def __init__(self):
        super().__init__()
        self.rows, self.headings, self.tags, self.text = [], [], set(), None

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th", "h2", "h3"):
            self.text = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.rows[-1].append(self.text)
        elif tag in ("h2", "h3"):
            self.headings.append(self.text)

    def handle_data(self, data):
        if self.text is not None:
            self.text += data


def check_markdown(checks, path, gate):
    text = path.read_text(encoding="utf-8")
    checks.check(len(text.encode()) <= 256 << 10, f"{path}: {len(text.encode())} bytes")
    page = Tables()
    page.feed(cmarkgfm.github_flavored_markdown_to_html(text))
    allowed = {"h2", "h3", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    checks.check(page.tags <= allowed, f"{path}: tags {sorted(page.tags - allowed)}")
    checks.check(f"exit status {gate['exit_status']}" in page.headings[0], f"{path}: {page.headings[0]}")
    if "more, in the JSON document" in text:
        return
    itself = (gate["self_test"] or {"series": []})["series"]
    lists = [itself, spoilt(gate)] + [gate[key] for key in ("series", "limits", "mismatches", "differences", "notes")]
    checks.equal(len(page.rows), sum(len(rows) + 1 for rows in lists if rows), f"{path}: rows")

    def shown(text):
        # GitHub and browsers fold white space.
        return " ".join(printable(re.sub("[\n\r\t]", " ", text)).split())

    cells = [[" ".join(cell.split()) for cell in row] for row in page.rows]
    for series in gate["series"]:
        row = [row for row in cells if row[0] == shown(series["test"]) and row[3:4] == [series["metric"]]]
        checks.check(row, f"{path}: no row of {series['test']!r} {series['metric']}")
    for test in spoilt(gate):
        row = [shown(test["name"]), str(test["runs_a"]), str(test["runs_b"])]
        checks.check(any(found[:3] == row for found in cells), f"{path}: no row of {test['name']!r}, which was not measured")
    worst = [row for row in cells if len(row) == 8 and row[0] != "test" and row[2] in ("rdma", "tcp")]
    regressions = [one for one in gate["series"] if decides(one, "regression")]
    if regressions:
        checks.check(worst[0][7].startswith("REGRESSION"), f"{path}: the worst is not first")


def decoded(text, codes):
    """As the runner undoes the escaping: `%25` last."""
    for code, character in codes:
        text = text.replace(code, character)
    return text.replace("%25", "%")


def check_annotations(checks, path, gate):
    kinds, messages = collections.Counter(), []
    for line in path.read_bytes().decode().split("\n")[:-1]:
        found = re.fullmatch(r"::(error|warning) (.*?)::(.*)", line, re.DOTALL)
        checks.check(found, f"{path}: {line!r} is no command")
        if not found:
            continue
        kind, properties, data = found.groups()
        pairs = [pair.split("=", 1) for pair in properties.split(",")]
        checks.check([pair[0] for pair in pairs] == ["title"], f"{path}: properties {pairs}")
        title = decoded(pairs[0][1], PROPERTY_CODES)
        checks.check(title, f"{path}: no title in {line!r}")
        kinds[kind] += 1
        messages.append(decoded(data, PERCENT_CODES))
    checks.check(max(kinds.values(), default=0) <= 10, f"{path}: {kinds}, and GitHub keeps ten")
    checks.equal(bool(messages), gate["exit_status"] != 0, f"{path}: annotations, of exit status {gate['exit_status']}")
    if gate["error"]:
        checks.check(printable(gate["error"]["message"], "\n") in messages[0], f"{path}: no error in {messages[:1]}")
    elif any("message" in one for one in troubles(gate)) and kinds["error"] < 10:
        for series in (one for one in troubles(gate) if "message" in one):
            checks.check(printable(series["message"], "\n") in messages, f"{path}: {series['message']!r} is missing")
    if not gate["error"] and kinds["error"] < 10:
        for test in spoilt(gate):
            start = printable(f"{test['name']} was not measured", "\n")
            checks.check(any(message.startswith(start) for message in messages), f"{path}: {start!r} is missing")


def check_metrics(checks, path, gate):
    text = path.read_bytes().decode()
    parsers = {
        "OpenMetrics": prometheus_client.openmetrics.parser.text_string_to_metric_families,
        "Prometheus text": prometheus_client.parser.text_string_to_metric_families,
    }
    units = {"ns": 1e9, "ns_per_message": 1e9, "bytes_per_s": 1, "messages_per_s": 1}
    names = {"p50": "latency_seconds", "p99": "latency_seconds", "p99.9": "latency_seconds",
             "bw": "bandwidth_bytes_per_second", "rate": "messages_per_second",
             "cpu.client": "cpu_seconds_per_message", "cpu.server": "cpu_seconds_per_message"}
    for name, parse in parsers.items():
        families = {family.name: family for family in parse(text)}
        checks.check(all(family.type == "gauge" for family in families.values()), f"{path}: {name}: not all are gauges")
        samples = {}
        for family in families.values():
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                checks.check(key not in samples, f"{path}: {name}: {key} twice")
                samples[key] = sample.value
        for series in gate["series"]:
            point = series["point"]
            labels = {"test": printable(series["test"], "\n"), "transport": series["transport"], "metric": series["metric"]}
            labels |= {key: str(point[key]) for key in ("size_bytes", "qps", "depth", "threads", "wait", "direction")}
            if point["offered_per_s"] is not None:
                labels["offered_per_second"] = f"{point['offered_per_s']:g}"
            end = {"end": series["metric"].removeprefix("cpu.")} if series["metric"].startswith("cpu.") else {}
            own = statistics.median(candidate(series)) if candidate(series) else None
            for role, value in (("baseline", series["median_a"]), ("candidate", own)):
                of_role = labels | end | {"role": role}
                found = samples.get(("verbmark_" + names[series["metric"]], tuple(sorted(of_role.items()))))
                expected = None if value is None else value / units[series["unit"]]
                same = found is expected is None or None not in (found, expected) and math.isclose(found, expected)
                checks.check(same, f"{path}: {name}: {role} of {labels}: {found}, not {expected}")
            for key, family in (("ratio", "change_ratio"), ("lower", "change_lower_ratio"), ("upper", "change_upper_ratio")):
                found = samples.get(("verbmark_gate_" + family, tuple(sorted(labels.items()))))
                checks.equal(found, series[key], f"{path}: {name}: {family} of {labels}")
            of_verdict = labels | {"advisory": str(series["advisory"]).lower(), "verdict": series["verdict"]}
            found = samples.get(("verbmark_gate_series_verdict", tuple(sorted(of_verdict.items()))))
            checks.equal(found, 1, f"{path}: {name}: verdict of {labels}")
        for limit in gate["limits"]:
            labels = {"test": printable(limit["test"], "\n"), "point": limit["point"] or "", "limit": limit["limit"]}
            found = samples.get(("verbmark_gate_limit_verdict", tuple(sorted((labels | {"verdict": limit["verdict"]}).items()))))
            checks.equal(found, 1, f"{path}: {name}: verdict of {labels}")
        holds = [dict(key[1])["verdict"] for key, value in samples.items() if key[0] == "verbmark_gate_verdict" and value == 1]
        was_judged = gate["status"] in ("ok", "invalid") or gate["series"] or gate["limits"]
        checks.equal(holds, [gate["verdict"]] if was_judged else [], f"{path}: {name}: verdict")
        for test in gate["tests"]:
            found = samples.get(("verbmark_gate_test_measured", (("test", printable(test["name"], "\n")),)))
            checks.equal(found, float(test["error"] is None and gate["error"] is None), f"{path}: {name}: measured {test['name']!r}")
        codes = {dict(key[1])["code"] for key in samples if key[0] == "verbmark_gate_note"}
        checks.equal(codes, {note["code"] for note in gate["notes"]}, f"{path}: {name}: notes")
        fields = {(dict(key[1])["test"], dict(key[1])["field"]) for key in samples if key[0] == "verbmark_gate_mismatch"}
        differing = {(printable(one["test"], "\n"), one["field"]) for one in gate["mismatches"]}
        checks.equal(fields, differing, f"{path}: {name}: mismatches")
    if shutil.which("promtool"):
        run = subprocess.run(["promtool", "check", "metrics"], input=text.encode(), capture_output=True, check=False)
        checks.equal((run.returncode, run.stdout + run.stderr), (0, b""), f"{path}: promtool check metrics")
    else:
        checks.skip(f"{path}: promtool is not installed")


def check_otava(checks, path, gate):
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    of_sittings = gate["form"] == "sittings"
    stored = [sitting for sitting in gate["sittings"] if printable(sitting["name"]) in {row["sitting"] for row in rows}]
    checks.equal(len(rows), len(stored) + 1, f"{path}: rows")
    some = [i for i, _ in enumerate(gate["sittings"]) if any(one["values_a"][i] for one in gate["series"])]
    checks.check(3 * len(stored) >= 2 * len(some), f"{path}: {len(stored)} rows of {len(some)} sittings")
    indices = [gate["sittings"].index(sitting) for sitting in stored]
    yaml = path.with_suffix(".yaml")
    if not yaml.exists():
        checks.skip(f"{yaml}: not there")
        return
    config = load_config_from_file(str(yaml))
    comment = "".join(line for line in yaml.read_text(encoding="utf-8").splitlines(True) if line.startswith("#"))
    for sitting in gate["sittings"]:
        name = printable(sitting["name"])
        checks.equal(f"#   {name}\n" in comment, sitting not in stored, f"{yaml}: the comment names {name!r}")
    read = {column for test in config.tests.values() for column in test.metrics}
    for column in (rows[0].keys() if rows else set()) - {"time", "sitting", "commit"} - read:
        checks.check(f"#   {column}: " in comment, f"{yaml}: the comment does not name {column!r}")
    for name, test in config.tests.items():
        series = [one for one in gate["series"] if printable(one["test"]) == name]
        wanted = [one for one in series if candidate(one) and (not of_sittings or all(one["values_a"][i] for i in indices))]
        checks.equal(len(test.metrics), len(wanted), f"{yaml}: metrics of {name!r}")
        test.file = str(path)
        selector = DataSelector()
        # Otava looks back a year unless told otherwise.
        selector.since_time = parse_datetime("2000-01-01")
        data = CsvImporter().fetch_data(test, selector)
        times = [row["time"] for row in rows]
        checks.equal(data.time, [int(parse_datetime(time).timestamp()) for time in times], f"{path}: times of {name!r}")
        for one, (column, metric) in zip(wanted, test.metrics.items()):
            checks.equal(metric.direction, {"lower": -1, "higher": 1}[one["better"]], f"{yaml}: direction of {column!r}")
            before = [one["values_a"][i] for i in indices] if of_sittings else []
            medians = [statistics.median(values) for values in before + [one["values_b"]]]
            same = len(data.data[column]) == len(medians) and all(map(math.isclose, data.data[column], medians))
            checks.check(same, f"{path}: {column!r} is {data.data[column]}, not {medians}")
        analysis = [pathlib.Path(sys.executable).parent / "otava", "analyze", name, "--config-file", yaml, "--since", "2000-01-01"]
        run = subprocess.run(analysis, capture_output=True, check=False, text=True)
        lines = [line for line in run.stdout.splitlines() if re.match(r"\d{4}-", line)]
        checks.check(run.returncode == 0 and "ERROR" not in run.stderr, f"{yaml}: otava analyze: {run.stderr[-500:]}")
        checks.equal(len(lines), len(rows), f"{yaml}: rows that otava analyze shows of {name!r}")


def check_benchmark_action(checks, path, gate, better):
    entries = json.loads(path.read_text(encoding="utf-8"))
    wanted = [one for one in gate["series"] if one["better"] == better and candidate(one)]
    checks.equal(len(entries), len(wanted), f"{path}: entries")
    checks.equal(len({entry["name"] for entry in entries}), len(entries), f"{path}: distinct names")
    for entry, series in zip(entries, wanted):
        checks.check(set(entry) <= {"name", "value", "unit", "range", "extra"}, f"{path}: keys {sorted(entry)}")
        texts = [entry[key] for key in ("name", "unit", "range", "extra") if key in entry]
        checks.check(all(isinstance(text, str) and text for text in texts), f"{path}: texts {texts}")
        value = entry["value"]
        same = isinstance(value, (int, float)) and math.isclose(value, statistics.median(series["values_b"]))
        checks.check(same, f"{path}: value of {entry['name']!r} is {value}")
        # The action takes the number behind the sign to convert it with the unit.
        found = re.search(r"(\+-|±)\s*(?P<value>\d.+)", entry.get("range", "± 0.0"))
        checks.check(found and float(found["value"]) >= 0, f"{path}: range {entry.get('range')!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--junit-schema", type=pathlib.Path)
    arguments = parser.parse_args()
    schema = None
    if arguments.junit_schema:
        import xmlschema

        schema = xmlschema.XMLSchema(str(arguments.junit_schema))
    checks = Checks()
    formats = {
        ".junit.xml": lambda path, gate: check_junit(checks, path, gate, schema),
        ".md": lambda path, gate: check_markdown(checks, path, gate),
        ".annotations": lambda path, gate: check_annotations(checks, path, gate),
        ".prom": lambda path, gate: check_metrics(checks, path, gate),
        ".otava.csv": lambda path, gate: check_otava(checks, path, gate),
        ".smaller.json": lambda path, gate: check_benchmark_action(checks, path, gate, "lower"),
        ".bigger.json": lambda path, gate: check_benchmark_action(checks, path, gate, "higher"),
    }
    seen = collections.Counter()
    for document in sorted(arguments.directory.glob("*.json")):
        gate = json.loads(document.read_text(encoding="utf-8"))
        if not isinstance(gate, dict) or gate.get("schema") != SCHEMA:
            continue
        for end, check in formats.items():
            path = document.with_name(document.stem + end)
            if path.exists():
                seen[end] += 1
                check(path, gate)
    for end in formats:
        checks.check(seen[end], f"nothing was checked: no *{end} beside a document")
    print(f"{checks.passed} passed, {checks.failed} failed, {checks.skipped} skipped")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
