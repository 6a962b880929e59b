"""What the comparisons with other tools share: running both in turns, and the table of what came of it."""

import os
import signal
import socket
import statistics
import subprocess
import sys
import time

# Ratios within this are called equal.
CLOSE = (0.95, 1.05)


class Failed(Exception):
    """A tool did not do what it was asked for."""


def end_as_asked():
    """Lets a signal end what was started, on its way out."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, _: sys.exit(128 + number))


def run(command, seconds):
    """Runs a command to its end and returns its standard output."""
    process = Process(command)
    with process:
        return process.finish(seconds)


class Process:
    """A command that runs beside others; ended with the block at the latest."""

    def __init__(self, command):
        self.command = [str(word) for word in command]

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.stdout.close()
        self.process.wait()

    def finish(self, seconds):
        """Waits for its end, and returns what it wrote."""
        try:
            text, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(self.command)}: not over after {seconds} s") from None
        if self.process.returncode != 0:
            raise Failed(f"{' '.join(self.command)}: status {self.process.returncode}\n{text}")
        return text

    def listens(self, port, seconds=10):
        """Waits until somebody listens on the port. Connecting would be taken for the client by some servers."""
        wanted = f":{port:04X} "
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            for table in ("/proc/net/tcp", "/proc/net/tcp6"):
                with open(table, encoding="ascii") as lines:
                    # A listening socket has no other end.
                    if any(wanted in line.split(":", 1)[1][:42] and " 0A " in line for line in lines if ": " in line):
                        return
            time.sleep(0.02)
        raise Failed(f"{' '.join(self.command)}: does not listen on port {port}")


def free_port():
    """A port that nobody used a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def in_turns(comparisons, rounds):
    """Measures every side of every comparison once a round, either first in turns: what drifts, drifts for both.

    A comparison has `sides`, two functions, and gets a list of values for each.
    """
    for comparison in comparisons:
        comparison.values = ([], [])
    for number in range(rounds):
        for comparison in comparisons:
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                comparison.values[side].append(comparison.sides[side]())
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)


class Comparison:
    """Two ways to measure one thing."""

    def __init__(self, name, unit, ours, other, theirs):
        self.name, self.unit, self.other = name, unit, other
        self.sides = (ours, theirs)
        self.values = ([], [])

    def row(self):
        """The cells of the table."""
        ours, theirs = self.values
        ratio = statistics.median(ours) / statistics.median(theirs)
        each = [a / b for a, b in zip(ours, theirs)]
        verdict = "" if CLOSE[0] <= ratio <= CLOSE[1] else f"outside {CLOSE[0]} to {CLOSE[1]}"
        return [
            self.name,
            self.unit,
            spread(ours),
            self.other,
            spread(theirs),
            f"{ratio:.2f}  ({min(each):.2f} .. {max(each):.2f})",
            verdict,
        ]


def spread(values):
    """The median, and from where to where the rest reach."""
    return f"{number(statistics.median(values))}  ({number(min(values))} .. {number(max(values))})"


def number(value):
    """Four digits at most."""
    return f"{value:.{max(0, 3 - len(str(int(value))))}f}"


def print_table(comparisons, rounds):
    """Medians over the rounds, with how far they reached, and the ratio of the medians with those of each round."""
    head = ["", "", "verbmark", "beside", "", "verbmark / beside", ""]
    rows = [head] + [comparison.row() for comparison in comparisons]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    print(f"median of {rounds} rounds (least .. most)")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def print_load(when):
    """Other work on the machine, which the numbers suffer from."""
    one, five, _ = os.getloadavg()
    print(f"load average {when}: {one:.2f} over a minute, {five:.2f} over five; {os.cpu_count()} processors")
