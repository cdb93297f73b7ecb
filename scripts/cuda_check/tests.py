"""Programs of GoogleTest whose tests may crash or hang: such a test is named and left out, and the rest run again.

run(Program) follows what the program prints, test by test, so that nothing is lost that was known before it ended.
"""

import dataclasses
import os
import queue
import re
import signal
import subprocess
import threading
import time

STARTED = re.compile(r"^\[ RUN      \] (\S+)$")
ENDED = re.compile(r"^\[(       OK|  FAILED |  SKIPPED) \] ([^\s,]+)")
PROPERTY = re.compile(r"^\[ PROPERTY \] (\S+) (\S+)$")
ALL_RUN = re.compile(r"^\[==========\] \d+ tests? from \d+ test suites? ran\.")
MOST_STARTS = 25
LINES_OF_A_CRASH = 12


@dataclasses.dataclass
class Program:
    command: list  # the program, perhaps under a tool
    filter: str
    seconds: float  # for all of it
    test_seconds: float = 60  # for one test, and for starting


@dataclasses.dataclass
class Outcome:
    passed: list = dataclasses.field(default_factory=list)
    failed: list = dataclasses.field(default_factory=list)
    skipped: list = dataclasses.field(default_factory=list)
    reasons: set = dataclasses.field(default_factory=set)  # of those that were skipped
    ended_it: list = dataclasses.field(default_factory=list)  # {"test", "how", "last_lines"}: crashed, hung, was cut off
    worst: dict = dataclasses.field(default_factory=dict)  # of the figures that tests noted
    problem: str = ""  # of the program itself

    def done(self):
        return [*self.passed, *self.failed, *self.skipped, *(one["test"] for one in self.ended_it)]

    def no_test_passed_or_failed(self):
        return not self.passed and not self.failed and not self.ended_it


def _without(selected, names):
    if not names:
        return selected
    return selected + (":" if "-" in selected else "-") + ":".join(names)


class _Run:
    """One start of the program."""

    def __init__(self, program, outcome, log, deadline):
        self.outcome, self.log, self.deadline, self.test_seconds = outcome, log, deadline, program.test_seconds
        self.current, self.lines, self.is_reason, self.has_ended = None, [], False, False
        chosen = _without(program.filter, outcome.done())
        self.process = subprocess.Popen(
            [*program.command, f"--gtest_filter={chosen}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        self.queue = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.queue.put(line)
        self.queue.put(None)

    def _take(self, line):
        self.log.write(line)
        self.log.flush()
        line = line.rstrip("\n")
        self.lines = [*self.lines[-LINES_OF_A_CRASH:], line]
        if self.is_reason:
            self.outcome.reasons.add(line.strip())
        self.is_reason = line.endswith(": Skipped")
        if ALL_RUN.match(line):
            self.has_ended = True
        elif found := STARTED.match(line):
            self.current, self.lines = found[1], []
        elif found := PROPERTY.match(line):
            worst = self.outcome.worst
            worst[found[1]] = max(worst.get(found[1], 0.0), float(found[2]))
        elif (found := ENDED.match(line)) and found[2] == self.current:
            kind = found[1].strip()
            {"OK": self.outcome.passed, "FAILED": self.outcome.failed, "SKIPPED": self.outcome.skipped}[kind].append(
                self.current)
            self.current = None

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def follow(self):
        """To the program's end, or until it has to be ended. Returns how it ended: "", "hung" or "cut off"."""
        quiet_since = time.monotonic()
        how = ""
        while True:
            now = time.monotonic()
            left = min(self.deadline - now, quiet_since + self.test_seconds - now)
            if left <= 0:
                how = "cut off" if self.deadline <= now else "hung"
                break
            try:
                line = self.queue.get(timeout=left)
            except queue.Empty:
                continue
            if line is None:
                break
            # A test that prints for ever hangs all the same.
            if STARTED.match(line) or ENDED.match(line):
                quiet_since = time.monotonic()
            self._take(line)
        self.kill()
        self.process.wait()
        self.process.stdout.close()
        return how


def run(program, log):
    """Runs the program until each test that is selected has run or ended it. Returns Outcome."""
    outcome = Outcome()
    deadline = time.monotonic() + program.seconds
    for _ in range(MOST_STARTS):
        one = _Run(program, outcome, log, deadline)
        try:
            how = one.follow()
        except BaseException:
            one.kill()
            raise
        code = one.process.returncode
        if one.current is not None:
            how = how or f"crashed ({'signal ' + str(-code) if code < 0 else 'exit code ' + str(code)})"
            outcome.ended_it.append({"test": one.current, "how": how, "last_lines": one.lines})
            log.write(f"\n{one.current} {how}: the rest without it\n")
            if how != "cut off":
                continue
        if how == "cut off":
            outcome.problem = f"cut off after {program.seconds:.0f} s"
        elif how or not one.has_ended or code not in (0, 1):
            # Not within a test: as it started or ended, or by what a tool found.
            outcome.problem = f"the program {how or f'ended with {code}'} outside of its tests: {' '.join(one.lines)[-200:]}"
        return outcome
    outcome.problem = f"{MOST_STARTS} tests ended the program; the rest did not run"
    return outcome
