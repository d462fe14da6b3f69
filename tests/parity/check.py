#!/usr/bin/env python3
"""Checks docs/parity.md: that what it names exists and, given results of tests, that it passed.

    python3 tests/parity/check.py [--root REPOSITORY] [--results PATH]...

The page has tables with three columns: ability, where, proof. A proof is a list of targets, `//package:name`, each
followed by the cases that count, `Suite.Case` in C++ and `Class.test_case` in Python; text that begins with "not yet"
may stand in place of it or behind it. A target has to be in its BUILD file, and a case in the sources of its target.
What looks like a header, <iris/...>, or like a path has to exist.

PATH is a folder with the test.xml of Bazel (bazel-testlogs), or a file or a folder of files that tests of GoogleTest
wrote by --gtest_output=json, each named as its target: atomics_test.json. Then each case must have run and passed,
or each target without a case, at least one of whose cases must have run; a target that is in none of them counts as
not run. In a row whose ability ends with "(on GPUs)", a case may have been skipped.
"""

import argparse
import ast
import glob
import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

PAGE = "docs/parity.md"
HEAD = ["ability", "where", "proof"]
NOT_YET = "not yet"
ON_GPUS = "(on GPUs)"
CODE = re.compile(r"`([^`]+)`")
TARGET = re.compile(r"^//[\w/.-]*:[\w.-]+$")
CASE = re.compile(r"^[A-Za-z_]\w*\.\w+$")
HEADER = re.compile(r"^<(iris/[\w/]+\.h)>$")
PATH = re.compile(r"^(?:client|deploy|device|docs|examples|proto|server|tests)/[\w/.-]+$|^server$")


class Row:
    """One ability: where it stands on the page, and what proves it."""

    def __init__(self, line, ability, where, proof):
        self.line = line
        self.ability = ability
        self.places = CODE.findall(where)
        self.missing = NOT_YET in proof
        self.proofs = []  # (target, its cases)
        self.wrong = []
        for word in CODE.findall(proof.split(NOT_YET)[0]):
            if TARGET.match(word):
                self.proofs.append((word, []))
            elif CASE.match(word) and self.proofs:
                self.proofs[-1][1].append(word)
            else:
                self.wrong.append(f"`{word}` is no target, and no case of one")


def rows(text):
    """The rows of the page's tables, in order."""
    found = []
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells == HEAD:
            inside = True
        elif inside and not set(line) <= set("|-: "):
            if len(cells) == 3:
                found.append(Row(number, *cells))
            else:
                row = Row(number, cells[0], "", "")
                row.wrong.append(f"{len(cells)} columns, not 3")
                found.append(row)
    return found


def _read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Sources:
    """The targets of a source tree and the cases in their sources, as far as BUILD files and sources say them."""

    def __init__(self, root):
        self.root = root
        self.builds = {}
        self.cases = {}

    def _build(self, package):
        if package not in self.builds:
            path = os.path.join(self.root, package, "BUILD.bazel")
            self.builds[package] = ast.parse(_read(path)) if os.path.exists(path) else None
        return self.builds[package]

    def files(self, target):
        """The sources of a target that may hold cases. None: there is no such target."""
        package, name = target[2:].split(":")
        build = self._build(package)
        if build is None:
            return None
        calls = [n for n in ast.walk(build) if isinstance(n, ast.Call)]
        named = False
        files = []
        for call in calls:
            attributes = {k.arg: k.value for k in call.keywords}
            own = attributes.get("name")
            if not (isinstance(own, ast.Constant) and own.value == name):
                continue
            named = True
            for attribute in ("main", "srcs"):
                value = attributes.get(attribute)
                files += [n.value for n in ast.walk(value) if isinstance(n, ast.Constant)] if value else []
        # A list or a table that makes many targets has the name as a word of its own.
        named = named or any(isinstance(n, ast.Constant) and n.value == name for n in ast.walk(build))
        if not named:
            return None
        files = [f for f in files if isinstance(f, str) and f.endswith((".cc", ".py"))] or [f"{name}.cc"]
        files.append(f"{name}.py")  # the main of a python_test, where it does not say another
        # A source may be a pattern of Bazel's glob().
        return [path for f in files if not f.startswith(("/", ":"))
                for path in sorted(glob.glob(os.path.join(self.root, package, f)))]

    def has_case(self, path, case):
        if path not in self.cases:
            text = _read(path)
            if path.endswith(".cc"):
                pairs = re.findall(r"^\s*(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\((\w+),\s*(\w+)\)", text, re.M)
                self.cases[path] = {f"{suite}.{name}" for suite, name in pairs}
            else:
                self.cases[path] = {f"{node.name}.{inner.name}" for node in ast.walk(ast.parse(text))
                                    if isinstance(node, ast.ClassDef)
                                    for inner in node.body if isinstance(inner, ast.FunctionDef)}
        return case in self.cases[path]


def check_sources(page, root):
    """What the page names and the source tree does not have."""
    found = []
    sources = Sources(root)
    for row in rows(page):
        say = [f"{PAGE}:{row.line}: {text}" for text in row.wrong]
        if not row.proofs and not row.missing and not row.wrong:
            say.append(f"{PAGE}:{row.line}: neither a test nor \"{NOT_YET}\": {row.ability}")
        for place in row.places:
            header = HEADER.match(place)
            if header:
                if not any(os.path.exists(os.path.join(root, top, header.group(1))) for top in ("device", "client")):
                    say.append(f"{PAGE}:{row.line}: there is no {place}")
            elif PATH.match(place) and not os.path.exists(os.path.join(root, place)):
                say.append(f"{PAGE}:{row.line}: there is no {place}")
        for target, cases in row.proofs:
            files = sources.files(target)
            if files is None:
                say.append(f"{PAGE}:{row.line}: there is no target {target}")
                continue
            say += [f"{PAGE}:{row.line}: {target} has no case {case}" for case in cases
                    if not any(sources.has_case(path, case) for path in files)]
        found += say
    return found


class Results:
    """What ran: for each target, by its label or by its name alone, the answers of its cases."""

    def __init__(self, paths):
        self.answers = {}  # target: {case: [True for passed, False for failed, None for skipped]}
        for path in paths:
            if os.path.isdir(path):
                for xml in glob.glob(os.path.join(path, "**", "test.xml"), recursive=True):
                    self._read_xml(xml, os.path.relpath(xml, path))
                for each in glob.glob(os.path.join(path, "*.json")):
                    self._read_json(each)
            else:
                self._read_json(path)

    def _add(self, target, case, passed):
        self.answers.setdefault(target, {}).setdefault(case, []).append(passed)

    def _read_xml(self, path, inside):
        folder = os.path.dirname(inside)
        if os.path.basename(folder).startswith("shard_"):
            folder = os.path.dirname(folder)
        target = f"//{os.path.dirname(folder)}:{os.path.basename(folder)}"
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            bad = case.find("failure") is not None or case.find("error") is not None
            skipped = (case.find("skipped") is not None or case.get("status") == "notrun"
                       or case.get("result") in ("skipped", "suppressed"))
            self._add(target, self.plain(case.get("classname", ""), case.get("name", "")),
                      None if skipped and not bad else not bad)

    def _read_json(self, path):
        target = os.path.splitext(os.path.basename(path))[0]
        with open(path, encoding="utf-8") as file:
            for suite in json.load(file).get("testsuites", []):
                for case in suite.get("testsuite", []):
                    ran = case.get("status") == "RUN" and case.get("result") != "SKIPPED"
                    self._add(target, self.plain(case.get("classname", suite["name"]), case["name"]),
                              not case.get("failures") if ran else None)

    @staticmethod
    def plain(suite, name):
        """The case as the source names it: "All/AtomicTest", "Ends/F32" is AtomicTest.Ends, and so is "AtomicTest/0";
        "test_a (__main__.Class)" is Class.test_a."""
        parts = [part for part in suite.split("/") if part]
        if len(parts) > 1:
            parts = [part for part in parts if not part.isdigit()][-1:]
        return f"{parts[0] if parts else ''}.{re.split(r'[/ ]', name)[0]}"

    def of(self, target):
        return self.answers.get(target) or self.answers.get(target.split(":")[1]) or {}


def check_results(page, results):
    """What the page names that did not run, or did not pass."""
    found = []
    for row in rows(page):
        for target, cases in row.proofs:
            answers = results.of(target)
            if not answers:
                found.append(f"{PAGE}:{row.line}: {target} did not run")
                continue
            ran = [passed for of_case in answers.values() for passed in of_case]
            if not cases and True not in ran and False not in ran and not row.ability.endswith(ON_GPUS):
                found.append(f"{PAGE}:{row.line}: all cases of {target} were skipped")
            for case in cases or sorted(answers):
                seen = answers.get(case, [])
                if False in seen:
                    found.append(f"{PAGE}:{row.line}: {case} of {target} failed")
                elif seen and True not in seen and row.ability.endswith(ON_GPUS):
                    continue
                elif True not in seen and cases:
                    found.append(f"{PAGE}:{row.line}: {case} of {target} {'was skipped' if seen else 'did not run'}")
    return found


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))),
                        help="the repository")
    parser.add_argument("--results", action="append", default=[], metavar="PATH", help="what tests wrote")
    options = parser.parse_args(argv)
    for path in options.results:
        if not os.path.exists(path):
            parser.error(f"{path} is not there: give the answer of `bazel info bazel-testlogs`, or what "
                         "--gtest_output=json wrote")
    page = _read(os.path.join(options.root, PAGE))
    found = check_sources(page, options.root)
    if options.results:
        found += check_results(page, Results(options.results))
    print("\n".join(found) if found else "")
    all_rows = rows(page)
    print(f"{len(all_rows)} rows: {sum(1 for r in all_rows if r.proofs and not r.missing)} proven, "
          f"{sum(1 for r in all_rows if r.proofs and r.missing)} in part, "
          f"{sum(1 for r in all_rows if not r.proofs)} {NOT_YET}; {len(found)} mistakes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
