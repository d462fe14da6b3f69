#!/usr/bin/env python3
"""Counts test cases from Bazel's build events, over several runs, and says what failed.

    count_tests.py NAME=EVENTS.json=EXIT_CODE ...

EVENTS.json is what --build_event_json_file wrote. A test whose XML lists cases counts that many, any other test counts
as 1. A target that does not build, and a run that fails without naming a target, count as one failure each. Skipped
cases count as neither. A test that failed and passed when it was tried again counts as passed, and is named as `flaky`
with the log of its failure. It prints the log of each test that failed, a line for each run, what failed with the first
words of why, and last "N passed, N failed".
The exit code is 1 if anything failed or nothing passed.
"""

import json
import os
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

LOG_LINES = 120
REASON_CHARACTERS = 400


def path_of(outputs, name):
    uri = next((output.get("uri", "") for output in outputs if output.get("name") == name), "")
    return urllib.parse.unquote(urllib.parse.urlparse(uri).path)


def count_cases(xml_path):
    """(passed, skipped, (name, reason) of failed cases) of one test's XML; None if it has no cases."""
    try:
        root = ElementTree.parse(xml_path).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    passed, skipped, failed = 0, 0, []
    for case in root.iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        failures = case.findall("failure") + case.findall("error")
        if failures:
            reason = " ".join(failures[0].get("message", "").split())
            failed.append((name, reason[:REASON_CHARACTERS]))
        elif (case.find("skipped") is not None or case.get("status") == "notrun"
              or case.get("result") in ("skipped", "suppressed")
              # Not begun, since the program's environment is skipped: GoogleTest says "completed", and no time.
              or case.get("timestamp", "").startswith(("1969-", "1970-"))):
            skipped += 1
        else:
            passed += 1
    return (passed, skipped, failed) if passed or skipped or failed else None


class Run:
    """What one bazel command did."""

    def __init__(self, name, exit_code):
        self.name = name
        self.exit_code = exit_code
        self.passed = self.skipped = self.targets = 0
        self.failed = []  # (what, path of its log or "", why or "")
        self.flaky = []  # the same

    def add_test(self, label, status, outputs):
        self.targets += 1
        log = path_of(outputs, "test.log")
        good = status in ("PASSED", "FLAKY")
        cases = count_cases(path_of(outputs, "test.xml"))
        passed, skipped, failed = cases or (int(good), 0, [])
        self.passed += passed
        self.skipped += skipped
        self.failed += [(f"{label} {name}", log, reason) for name, reason in failed]
        if not good and not failed:  # crashed, timed out, or a sanitizer's verdict after the last case
            if passed and status == "FAILED":
                self.passed -= 1  # the XML of a process that died counts it as one that passed
            self.failed.append((f"{label} ({status.lower()})", log, ""))

    def read(self, events):
        tried = {}  # the attempts of each shard: {number: result}
        for event in events:
            identity = event.get("id", {})
            if "testResult" in event and "testResult" in identity:
                what = identity["testResult"]
                key = (what.get("label"), what.get("run"), what.get("shard"))
                tried.setdefault(key, {})[what.get("attempt", 1)] = event["testResult"]
            elif "targetCompleted" in identity and not event.get("completed", {}).get("success"):
                label = identity["targetCompleted"].get("label")
                if "completed" in event or "aborted" in event:
                    self.failed.append((f"{label} does not build", "", ""))
        for (label, _, _), attempts in tried.items():
            last = attempts[max(attempts)]
            self.add_test(label, last.get("status", "NO_STATUS"), last.get("testActionOutput", []))
            if len(attempts) > 1 and last.get("status") in ("PASSED", "FLAKY"):
                outputs = attempts[min(attempts)].get("testActionOutput", [])
                cases = count_cases(path_of(outputs, "test.xml"))
                why = "; ".join(f"{name}: {reason}" for name, reason in cases[2]) if cases else ""
                self.flaky.append((label, path_of(outputs, "test.log"), why))
        if self.exit_code and not self.failed:
            said = "says that tests failed" if self.exit_code == 3 else f"failed with exit code {self.exit_code}"
            self.failed.append((f"{self.name}: bazel {said}", "", ""))


def read_events(path):
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except (OSError, json.JSONDecodeError):  # the latter where bazel was ended in the middle of a line
        return


def tail(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            written = file.read().splitlines()
    except OSError:
        return []
    lines = []
    for line in written:  # without the cases that passed and had nothing to say
        if line.startswith("[       OK ]") and lines and lines[-1].startswith("[ RUN      ]"):
            lines.pop()
        else:
            lines.append(line)
    return ([f"... {len(lines) - LOG_LINES} lines before"] if len(lines) > LOG_LINES else []) + lines[-LOG_LINES:]


def report(runs, write=print):
    """Writes everything; returns the exit code."""
    shown = set()
    for run in runs:
        for what, log, _ in run.failed + run.flaky:
            if log and log not in shown:
                shown.add(log)
                write(f"\n==== {run.name}: {what}: {os.path.basename(os.path.dirname(log))}/{os.path.basename(log)}")
                for line in tail(log):
                    write(line)
    write("")
    passed = failed = 0
    for run in runs:
        skipped = f", {run.skipped} skipped" if run.skipped else ""
        write(f"{run.name:<12} {run.passed} passed, {len(run.failed)} failed{skipped} ({run.targets} test targets)")
        passed += run.passed
        failed += len(run.failed)
    for run in runs:
        lines = [(f"flaky {run.name}: {what} failed, and passed when it was tried again", why)
                 for what, _, why in run.flaky]
        lines += [(f"FAILED {run.name}: {what}", why) for what, _, why in run.failed]
        for line, why in lines:
            write(line)
            if why:
                write(f"    {why}")
    write(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def main(arguments):
    runs = []
    for argument in arguments:
        name, path, exit_code = argument.rsplit("=", 2)
        run = Run(name, int(exit_code))
        run.read(read_events(path))
        runs.append(run)
    return report(runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
