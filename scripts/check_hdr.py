#!/usr/bin/env python3
"""Decodes every histogram of a result with another implementation and compares it with the document.

    python3 -m venv venv && venv/bin/pip install hdrhistogram
    venv/bin/python scripts/check_hdr.py RESULT.json [LOG.hlog [INTERVALS]]

The count must be exact, every percentile within a bucket (0.1 %) and a sample's rank, and one may be absent only where fewer than
ten samples lie beyond it. With a log, its lines must add up to the histogram of the result they name, one behind the
other; with a number, there must be so many of each.
"""

import json
import sys

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

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
        # Implementations round the rank differently: by a sample at most.
        ranks = (max(0, percentile - 100 / total), min(100, percentile + 100 / total))
        low, high = (histogram.get_value_at_percentile(rank) for rank in ranks)
        # A bucket at three significant digits, or the nanosecond below which there is none.
        blur = max(1, high / 1000)
        near = low - blur <= stated * divisor <= high + blur
        checks.check(near, f"{name}: {key} is {low} to {high} ns, document says {stated * divisor} ns")
    return histogram


def read_by_tool(path):
    """How many intervals of each tag that implementation's own reader of logs finds."""
    counts = {}
    reader = HistogramLogReader(path, HdrHistogram(1, 100_000_000_000, 3))
    while True:
        histogram = reader.get_next_interval_histogram()
        if histogram is None:
            reader.close()
            return counts
        tag = histogram.get_tag()
        counts[tag] = counts.get(tag, 0) + 1


def check_log(checks, path, histograms, intervals):
    """The lines of an interval log, added up, against the histogram of their tag."""
    sums, counts, ends = {}, {}, {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("Tag="):
                continue
            tag, start, seconds, longest, payload = line.strip().split(",")
            tag = tag.removeprefix("Tag=")
            histogram = HdrHistogram.decode(payload)
            # Start and length are rounded to milliseconds.
            follows = abs(float(start) - ends.get(tag, float(start))) < 0.003
            checks.check(follows, f"{path}: {tag} goes on at {start}, not {ends.get(tag)}")
            ends[tag] = float(start) + float(seconds)
            # It is in microseconds, rounded to nanoseconds, and a bucket wide.
            top = histogram.get_max_value()
            near = abs(float(longest) * 1000 - top) <= max(1, top / 1000)
            checks.check(near, f"{path}: {tag} has a maximum of {longest} us, its histogram one of {top} ns")
            counts[tag] = counts.get(tag, 0) + 1
            if tag in sums:
                sums[tag].add(histogram)
            else:
                sums[tag] = histogram
    for tag, total in sums.items():
        known = histograms.get(tag)
        same = known is not None and total.get_total_count() == known.get_total_count()
        same = same and all(
            total.get_count_at_index(i) == known.get_count_at_index(i) for i in range(known.counts_len)
        )
        checks.check(same, f"{path}: the intervals of {tag} differ from the document in their sum")
        right = intervals is None or counts[tag] == intervals
        checks.check(right, f"{path}: {tag} has {counts[tag]} intervals, not {intervals}")
    checks.check(read_by_tool(path) == counts, f"{path}: the log reader of hdrh finds other lines than {counts}")
    checks.check(set(sums) == set(histograms), f"{path}: has {sorted(sums)}, document has {sorted(histograms)}")


def main(arguments):
    if not 2 <= len(arguments) <= 4:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    with open(arguments[1], encoding="utf-8") as file:
        document = json.load(file)
    checks = Checks()
    histograms = {}
    for result in document["results"]:
        if result["histogram"] is not None:
            histograms[result["id"]] = check_result(checks, result)
    if len(arguments) > 2:
        check_log(checks, arguments[2], histograms, int(arguments[3]) if len(arguments) > 3 else None)
    checks.check(checks.passed > 0, "nothing was checked: the document has no histogram")
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
