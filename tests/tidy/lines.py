#!/usr/bin/env python3
"""Counts the tree by folder: lines of product code, tests and build files, and words of pages.

    tests/tidy/lines.py                  the files of the last commit
    tests/tidy/lines.py df12ab6 HEAD     two commits side by side

Product code is all code that a test does not need to exist: fakes, models and helpers in a folder testing/, tests,
benchmarks and examples are counted as tests. Lines are counted with comments and blank lines.
"""

import argparse
import collections
import pathlib
import re
import subprocess

CODE = {".cc", ".cu", ".h", ".py", ".pyi", ".proto", ".sh", ".lds"}
TEST_FOLDERS = {"tests", "testing", "examples"}
PRODUCT_FOLDERS = ("client", "deploy", "device", "docs", "proto", "server", "third_party")


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], check=True, capture_output=True).stdout


def kind_of(path: pathlib.PurePosixPath) -> str | None:
    """The row to which a file counts; None for data."""
    if path.suffix == ".md":
        return "words of pages"
    if path.name.startswith(("BUILD", "WORKSPACE")) or path.suffix in (".bzl", ".bazel", ".BUILD"):
        return "build files"
    if path.suffix not in CODE:
        return None
    if TEST_FOLDERS & set(path.parts[:-1]) or re.search(r"_test\.\w+$", path.name):
        return "tests and examples"
    if path.parts[0] in PRODUCT_FOLDERS:
        depth = 3 if path.parts[:2] == ("device", "iris") else 2
        return "product " + "/".join(path.parts[: min(depth, len(path.parts) - 1)])
    return None


def count(commit: str) -> collections.Counter[str]:
    result: collections.Counter[str] = collections.Counter()
    for line in git("ls-tree", "-r", commit).decode().splitlines():
        (_, object_type, name), path = line.split("\t")[0].split(), line.split("\t", 1)[1]
        kind = kind_of(pathlib.PurePosixPath(path)) if object_type == "blob" else None
        if kind is None:
            continue
        text = git("cat-file", "blob", name)
        result[kind] += len(text.split()) if kind == "words of pages" else text.count(b"\n")
    result["product, all"] = sum(n for kind, n in result.items() if kind.startswith("product "))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", default=["HEAD"])
    commits = parser.parse_args().commits
    counts = [count(commit) for commit in commits]
    print(f"{'':32}", *(f"{commit[:10]:>10}" for commit in commits), *(["    change"] if len(commits) == 2 else []))
    for kind in sorted(set().union(*counts)):
        numbers = [each[kind] for each in counts]
        if len(numbers) == 2:
            numbers.append(numbers[1] - numbers[0])
        print(f"{kind:32}", *(f"{n:10,}" for n in numbers))


if __name__ == "__main__":
    main()
