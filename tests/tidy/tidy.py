#!/usr/bin/env python3
"""The rules of this repository that a compiler does not check.

Each rule is a function from a source tree to the places that break it. `tidy.py [ROOT]` prints them and exits 1 if there
are any; tidy_test.py runs the rules on this tree, and plants a violation of each to see it found.
"""

import os
import re
import sys

SOURCE = (".h", ".cc")
BUILD_NAMES = ("BUILD.bazel", "BUILD", "WORKSPACE", ".bazelrc")

# Comment lines may be a little longer than code.
MAX_CODE_COLUMNS = 100
MAX_COMMENT_COLUMNS = 125


class Tree:
    """The text files below a folder, read once."""

    def __init__(self, root):
        self.files = {}
        for folder, names, files in os.walk(root):
            names[:] = sorted(n for n in names
                              if n not in (".git", "__pycache__", ".whl") and not n.startswith("bazel-"))
            for name in sorted(files):
                path = os.path.join(folder, name)
                if os.path.islink(path) or os.path.getsize(path) > 4 << 20:
                    continue
                with open(path, "rb") as file:
                    data = file.read()
                if b"\0" not in data[:4096]:
                    self.files[os.path.relpath(path, root)] = data.decode("utf-8", "replace")

    def with_file(self, path, text):
        """This tree with one more file, or with another text in it."""
        tree = Tree.__new__(Tree)
        tree.files = {**self.files, path: text}
        return tree

    def select(self, *suffixes, under=("",), without=()):
        """(path, text) of files whose name ends so, below one of the folders."""
        for path, text in self.files.items():
            if path.endswith(suffixes) and path.startswith(tuple(under)) and not (
                    without and path.startswith(tuple(without))):
                yield path, text


def _grep(files, pattern, message):
    found = []
    for path, text in files:
        for number, line in enumerate(text.split("\n"), 1):
            match = pattern.search(line)
            if match:
                found.append(f"{path}:{number}: {message}: {match.group(0).strip()!r}")
    return found


# --- the rules -------------------------------------------------------------------------------------------------------

# Whole words, and words inside identifiers (CudaStream, kHip, hip_stream), but not "membership" or "amdahl".
VENDOR = re.compile(
    r"(?i:cuda|nvidia|nvshmem|nvlink|rocshmem|amdgpu|gfx9[0-9a-f]+)"
    r"|(?i:(?<![a-z])(?:amd|hip|ptx|rocm|nccl|rccl|nvcc|mi[23]\d\d[ax]?|[abh][12]00)(?![a-z0-9]))"
    r"|(?<![A-Za-z])hip[A-Z]|(?:(?<=k)|(?<=[a-z]))(?:Hip|Amd)(?=[A-Z]|\b)")


def vendor_names(tree):
    """No vendor's name above the device seam."""
    places = ("device/", "server/", "client/", "proto/", "examples/", "tests/")
    # tests/isa reads the assembly of each vendor.
    seam = ("device/backend/", "device/driver/", "tests/isa/", "tests/tidy/")
    return _grep(
        tree.select(*SOURCE, ".proto", ".py", ".sh", ".toml", ".bazel", ".bzl", under=places, without=seam),
        VENDOR, "a vendor's name outside device/backend and device/driver")


def orphan_tests(tree):
    """A test that no target names never runs."""
    found = []
    for path, _ in tree.select("_test.cc", "_test.py", "_test.sh"):
        folder, name = os.path.split(path)
        build = tree.files.get(os.path.join(folder, "BUILD.bazel"), "")
        # By its file, or, where a list makes the targets, by its name without the suffix.
        if f'"{name}"' not in build and f'"{os.path.splitext(name)[0]}"' not in build:
            found.append(f"{path}: no target of {folder}/BUILD.bazel names this test")
    return found


# What may be included from where: the first row whose folder fits decides.
EDGES = (
    ("device/base/", ("device/base/",)),
    ("proto/", ("proto/", "device/base/")),
    ("device/driver/", ("device/driver/", "device/base/")),
    ("device/", ("device/",)),
    ("server/", ("server/", "proto/", "device/driver/", "device/base/")),
    ("client/", ("client/", "proto/", "device/")),
)
OURS = ("proto/", "device/", "server/", "client/", "examples/", "tests/")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)


def _includes(text):
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start(1)) + 1, match.group(1)


def dependency_edges(tree):
    """Components include only what the design allows: never client from server, or server from client."""
    found = []
    for path, text in tree.select(*SOURCE):
        allowed = next((to for start, to in EDGES if path.startswith(start)), None)
        if allowed is None:
            continue
        for number, header in _includes(text):
            helper = header.startswith("tests/") and path.endswith("_test.cc")  # a test may use what tests share
            if header.startswith(OURS) and not header.startswith(allowed) and not helper:
                found.append(f"{path}:{number}: must not include {header}")
    return found


PURE = ("server/job/", "server/heap/", "server/policy/")


def pure_logic(tree):
    """The daemon's logic knows no socket, no driver and no wall clock."""
    found = []
    for path, text in tree.select(*SOURCE, under=PURE):
        for number, header in _includes(text):
            if (header.startswith(("grpc", "google/", "device/", "server/rpc/", "server/session/", "sys/"))
                    or header.endswith(".pb.h")):
                found.append(f"{path}:{number}: pure logic must not include {header}")
    wall_clock = re.compile(r"absl::Now\b|absl::GetCurrentTimeNanos|system_clock|steady_clock|clock_gettime|\btime\(nullptr")
    sources = (f for f in tree.select(*SOURCE, under=PURE, without=("server/job/clock.h",)) if not f[0].endswith("_test.cc"))
    return found + _grep(sources, wall_clock, "pure logic takes the time from a Clock")


def proto_types(tree):
    """Messages stop at the edge: irisd's in server/rpc, the client's in client/internal and client/ctl."""
    edge = ("server/rpc/", "client/internal/", "client/ctl/")
    found = []
    for path, text in tree.select(*SOURCE, under=("server/", "client/", "device/"), without=edge):
        if path.endswith("_test.cc"):
            continue
        for number, header in _includes(text):
            if header.endswith(".pb.h"):
                found.append(f"{path}:{number}: must not include {header}")
    return found


def header_shape(tree):
    """A header says first what it is, and guards itself."""
    found = []
    for path, text in tree.select(".h"):
        if not text.startswith("// "):
            found.append(f"{path}:1: a header begins with a comment that says what it is")
        if not re.search(r"^#pragma once$", text, re.M):
            found.append(f"{path}:1: no #pragma once")
    return found


def one_conditional(tree):
    """The backend is chosen in one place."""
    test = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*\bIRIS_BACKEND_", re.M)
    found = _grep(tree.select(*SOURCE, without=("device/backend/select.h",)), test,
                  "only device/backend/select.h asks which backend this is")
    text = tree.files.get("device/backend/select.h", "")
    starts = [m for m in test.finditer(text) if "elif" not in m.group(0)]
    if len(starts) > 1:
        found.append(f"device/backend/select.h: {len(starts)} conditionals on the backend instead of one")
    return found


def download_hosts(tree):
    """The build fetches nothing."""
    files = [(p, t) for p, t in tree.files.items()
             if os.path.basename(p) in BUILD_NAMES or p.endswith((".bzl", ".bazel"))
             or (p.startswith(("deploy/", ".ci/")) and not p.endswith(".md"))]
    return _grep(files, re.compile(r"\b(?:https?|ftp)://[\w.-]+|\b(?:wget|curl)\s+-|\bhttp_archive\b|\bgit_repository\b"),
                 "a download in a build file")


COMMENT = re.compile(r"^\s*(?://|#|\*|/\*)")


def layout(tree):
    """No tabs, no trailing blanks, a line feed at the end, and lines that fit."""
    found = []
    for path, text in tree.select(*SOURCE, ".proto", ".py", ".sh", ".bzl", ".bazel"):
        if text and not text.endswith("\n"):
            found.append(f"{path}: no line feed at the end")
        for number, line in enumerate(text.split("\n"), 1):
            if "\t" in line:
                found.append(f"{path}:{number}: a tab")
            if line != line.rstrip():
                found.append(f"{path}:{number}: blanks at the end of the line")
            comment = "//" in line or "#" in line or COMMENT.match(line) or not path.endswith(SOURCE)
            limit = MAX_COMMENT_COLUMNS if comment else MAX_CODE_COLUMNS
            if len(line) > limit and "#include" not in line:
                found.append(f"{path}:{number}: {len(line)} columns, at most {limit}")
    return found


def machine_paths(tree):
    """Nothing names a developer's machine."""
    pattern = re.compile(r"(?<![\w.$}])/(?:work|home/\w|Users/\w|root/\w)[\w/]*|\.\./shared\b")
    files = [(p, t) for p, t in tree.files.items() if not p.startswith("tests/tidy/")]
    return _grep(files, pattern, "a path of somebody's machine")


def unfinished(tree):
    """What is unfinished is not committed."""
    files = tree.select(*SOURCE, ".proto", ".py", ".sh", ".bzl", ".bazel", ".md", without=("tests/tidy/",))
    return _grep(files, re.compile(r"\b(?:TODO|FIXME|XXX)\b"), "unfinished")


def client_storeys(tree):
    """The client's storeys: base below internal below iris. Messages stop in internal: iris and base reach neither protobuf
    nor gRPC, not even through headers of ours."""
    above = {"client/base/": ("client/internal/", "client/iris/", "client/ctl/"),
             "client/internal/": ("client/iris/", "client/ctl/")}
    found = []
    for below, forbidden in above.items():
        for path, text in tree.select(*SOURCE, under=(below,)):
            found += [f"{path}:{number}: must not include {header}"
                      for number, header in _includes(text) if header.startswith(forbidden)]

    reached = {}  # header: the headers on the way from it to a message, or ()

    def way(header):
        if header.startswith(("grpc", "google/")) or header.endswith(".pb.h"):
            return (header,)
        if header not in reached:
            reached[header] = ()  # a circle ends here
            ways = (way(inner) for _, inner in _includes(tree.files.get(header, "")))
            reached[header] = next(((header,) + found_way for found_way in ways if found_way), ())
        return reached[header]

    for path, text in tree.select(*SOURCE, under=("client/base/", "client/iris/")):
        for number, header in _includes(text):
            if way(header):
                found.append(f"{path}:{number}: reaches a message: {' -> '.join(way(header))}")
    return found


RULES = (vendor_names, orphan_tests, dependency_edges, pure_logic, proto_types, header_shape, one_conditional,
         download_hosts, layout, machine_paths, unfinished, client_storeys)


def main(argv):
    root = argv[1] if len(argv) > 1 else os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    tree = Tree(root)
    found = [place for rule in RULES for place in rule(tree)]
    print("\n".join(found) if found else f"{len(tree.files)} files, {len(RULES)} rules: clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
