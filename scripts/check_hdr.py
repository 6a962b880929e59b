#!/usr/bin/env python3
"""Decodes every histogram of a result with another implementation and compares it with the document.

    python3 -m venv venv && venv/bin/pip install hdrhistogram
    venv/bin/python scripts/check_hdr.py RESULT.json [LOG.hlog]

The count must be exact, every percentile within a bucket (0.1 %), and a percentile may be absent only where fewer than
ten samples lie beyond it. With a log, each of its lines is compared with the histogram of the same result.
"""

import json
import sys

from hdrh.histogram import HdrHistogram

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9, "p99_99": 99.99}
SAMPLES_BEYOND = 10


class Checks:
    """Counts what held and names what did not."""

    def __init__(self):
        self.passed = 0
        self.failed = 0

    def check(self, holds, what):
        if holds:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED  {what}")


def check_result(checks, result):
    """One result's histogram against its statistics; returns the decoded histogram."""
    name, latency = result["id"], result["latency_ns"]
    histogram = HdrHistogram.decode(result["histogram"]["payload"])
    total = histogram.get_total_count()
    if latency is None:
        checks.check(total == 0, f"{name}: {total} samples, but no statistics")
        return histogram

    divisor = {"half_round_trip": 2, "round_trip": 1}[latency["basis"]]
    checks.check(total == latency["samples"], f"{name}: {total} samples, document says {latency['samples']}")
    for key, percentile in PERCENTILES.items():
        stated = latency[key]
        beyond = total * (100 - percentile) / 100
        if stated is None:
            checks.check(beyond < SAMPLES_BEYOND + 0.1, f"{name}: {key} is null with {beyond:.1f} samples beyond it")
            continue
        value = histogram.get_value_at_percentile(percentile)
        off = abs(stated * divisor - value)
        # A bucket at three significant digits, or the nanosecond below which there is none.
        checks.check(off <= max(1, value / 1000), f"{name}: {key} is {value} ns, document says {stated * divisor} ns")
    return histogram


def check_log(checks, path, histograms):
    """Every line of an interval log against the histogram of its tag."""
    seen = set()
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("Tag="):
                continue
            tag, _start, _seconds, _max, payload = line.strip().split(",")
            tag = tag.removeprefix("Tag=")
            seen.add(tag)
            known = histograms.get(tag)
            same = known is not None and HdrHistogram.decode(payload).equals(known)
            checks.check(same, f"{path}: {tag} differs from the document")
    checks.check(seen == set(histograms), f"{path}: has {sorted(seen)}, document has {sorted(histograms)}")


def main(arguments):
    if not 2 <= len(arguments) <= 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    with open(arguments[1], encoding="utf-8") as file:
        document = json.load(file)
    checks = Checks()
    histograms = {}
    for result in document["results"]:
        if result["histogram"] is not None:
            histograms[result["id"]] = check_result(checks, result)
    if len(arguments) == 3:
        check_log(checks, arguments[2], histograms)
    checks.check(checks.passed > 0, "nothing was checked: the document has no histogram")
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
