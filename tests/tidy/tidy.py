#!/usr/bin/env python3
"""The rules of this repository that a compiler does not check.

Each rule is a function from a source tree to the places that break it. `tidy.py [ROOT]` prints them and exits 1 if
there are any; tidy_test.py runs the rules on this tree, and plants a violation of each to see it found.
"""

import ast
import fnmatch
import functools
import os
import re
import sys

SOURCE = (".h", ".cc")
BUILD_NAMES = ("BUILD.bazel", "BUILD", "WORKSPACE", ".bazelrc")

# The columns that a line may have, code and comments alike, by the end of the file's name. In Markdown this is for
# prose: tables, blocks of code and lines that hold a link may be longer.
COLUMNS = {
    (".h", ".cc"): 100,
    (".proto", ".py", ".sh", ".bash", ".bzl", ".bazel", ".bazelrc", ".toml", ".service", ".lds", ".in", ".txt",
     "script"): 120,
    (".md",): 140,
}


class Tree:
    """The text files below a folder, read once."""

    def __init__(self, root):
        self.files = {}
        for folder, names, files in os.walk(root):
            names[:] = sorted(n for n in names
                              if n not in (".git", "__pycache__", ".whl") and not n.startswith("bazel-"))
            for name in sorted(files):
                path = os.path.join(folder, name)
                # A checkout beside another has a file where others have the folder.
                if name == ".git" or os.path.islink(path) or os.path.getsize(path) > 4 << 20:
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


@functools.lru_cache(None)
def _matches(text, pattern):
    """(line, what is found there) of each line where the pattern is."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        match = pattern.search(line)
        if match:
            found.append((number, match.group(0).strip()))
    return found


def _grep(files, pattern, message):
    return [f"{path}:{number}: {message}: {what!r}" for path, text in files for number, what in _matches(text, pattern)]


# Whole words, and words inside identifiers (CudaStream, kHip, hip_stream), but not "membership" or "amdahl".
VENDOR = re.compile(
    r"(?i:cuda|nvidia|nvshmem|nvlink|rocshmem|amdgpu|gfx9[0-9a-f]+)"
    r"|(?i:(?<![a-z])(?:amd|hip|ptx|rocm|nccl|rccl|nvcc|mi[23]\d\d[ax]?|[abh][12]00)(?![a-z0-9]))"
    r"|(?<![A-Za-z])hip[A-Z]|(?:(?<=k)|(?<=[a-z]))(?:Hip|Amd)(?=[A-Z]|\b)")


def vendor_names(tree):
    """No vendor's name above the device seam."""
    places = ("device/", "server/", "client/", "proto/", "examples/", "tests/")
    # tests/isa reads the assembly of each vendor, and tests/bundle/cuda uses a vendor's compiler as users do.
    # Python's arrays are exchanged, and platforms are asked, by names that have a vendor's in them: they stand in two
    # files, and in their tests. Modules of the reference have such names, too: one file lists them, and a test imports
    # them. One example is a program of the reference.
    seam = ("device/iris/backend/", "device/driver/", "tests/bundle/cuda/", "tests/isa/", "tests/tidy/",
            "client/python/iris/_foreign.py", "client/python/iris/_modules.py", "client/python/iris/_platform.py",
            "examples/python/readme.py", "tests/bundle/python/foreign_ranks.py", "tests/bundle/python/reference_",
            "tests/parity/reference_test.py")
    return _grep(
        tree.select(*SOURCE, ".proto", ".py", ".sh", ".toml", ".bazel", ".bzl", under=places, without=seam),
        VENDOR, "a vendor's name outside device/iris/backend and device/driver")


def orphan_tests(tree):
    """A test that no target names never runs."""
    found = []
    for path, _ in tree.select("_test.cc", "_test.py", "_test.sh"):
        folder, name = os.path.split(path)
        build = tree.files.get(os.path.join(folder, "BUILD.bazel"), "")
        strings, globs = _named_in_build(build)
        # By its file or a pattern, or, where a list makes the targets, by its name without the suffix.
        if not {name, os.path.splitext(name)[0]} & strings and not any(
                fnmatch.fnmatchcase(name, pattern) for pattern in globs):
            found.append(f"{path}: no target of {folder}/BUILD.bazel names this test")
    return found


OURS = ("proto/", "device/", "server/", "client/", "examples/", "tests/")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)


@functools.lru_cache(None)
def _written_includes(text):
    """(line, header) of each include, as it stands there."""
    return [(text.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in INCLUDE.finditer(text)]


# Where the headers lie that are included as <iris/...>, inside the repository as outside.
INSTALLED = ("device/", "client/")


def _includes(tree, text):
    """(line, header) of each include, with the path of the header in the repository if it is one of ours."""
    found = []
    for number, header in _written_includes(text):
        if header.startswith("iris/"):
            header = next((place + header for place in INSTALLED if place + header in tree.files), header)
        found.append((number, header))
    return found


@functools.lru_cache(None)
def _parsed(text):
    return ast.parse(text)


def _strings(node):
    """The strings in an expression, as far as they stand there: (line, string)."""
    return [(n.lineno, n.value) for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


@functools.lru_cache(None)
def _dependencies(text):
    """(line, label, whether this is for tests alone) of each dependency of a target in a BUILD file."""
    found = []
    for call in ast.walk(_parsed(text)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            attributes = {k.arg: k.value for k in call.keywords}
            test = call.func.id.endswith("_test") or "testonly" in attributes
            if "deps" in attributes:
                found += [(number, label, test) for number, label in _strings(attributes["deps"])]
    return found


PAGE = "docs/architecture.md"
# What the table of that page must not say: (folders, folders that they never depend on). Everything
# may depend on device/base.
NEVER = (
    ("proto", ("device", "server", "client", "examples")),
    ("device", ("proto", "server", "client", "examples")),
    ("server", ("client", "examples")),
    ("client", ("server", "examples")),
)


class Architecture:
    """The table of folders in docs/architecture.md.

        | folder | one noun | depends on |
        |---|---|---|
        | `device/iris` with `impl` | the device API | `device/iris/backend` |

    A row may be for a folder and some that are inside it, which belong together. It names every folder that files of
    its own include from; `x/*` are all folders in x. Text that is not in backticks is for people.
    """

    def __init__(self, text):
        self.rows = {}  # the row's folder: (line, folders that it depends on, as written)
        self.row_of = {}  # folder: the row's folder
        self.errors = []
        inside = False
        for number, line in enumerate(text.split("\n"), 1):
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if cells == ["folder", "one noun", "depends on"]:
                inside = True
            elif not line.startswith("|"):
                inside = False
            elif inside and len(cells) == 3 and not set(cells[0]) <= set("-: "):
                names = re.findall(r"`([^`]+)`", cells[0])
                if not names:
                    self.errors.append(f"{PAGE}:{number}: this row names no folder")
                    continue
                self.rows[names[0]] = (number, re.findall(r"`([^`]+)`", cells[2]))
                for name in [names[0]] + [f"{names[0]}/{inner}" for inner in names[1:]]:
                    self.row_of[name] = names[0]

    def meant(self, name):
        """The rows that a name in the last column means."""
        if name.endswith("/*"):
            return {row for row in self.rows if row.startswith(name[:-1])}
        return {self.row_of[name]} if name in self.row_of else set()


def architecture(tree):
    """Folders depend on each other as docs/architecture.md draws it: by includes, and by the targets of Bazel."""
    table = Architecture(tree.files.get(PAGE, ""))
    found = list(table.errors)
    allowed = {}
    for row, (number, names) in table.rows.items():
        allowed[row] = {row}
        for name in names:
            meant = table.meant(name)
            if not meant:
                found.append(f"{PAGE}:{number}: {row} depends on {name}, which has no row")
            allowed[row] |= meant
        for top, never in NEVER:
            for other in sorted(allowed[row] - {"device/base"}):
                if row.split("/")[0] == top and other.split("/")[0] in never:
                    found.append(f"{PAGE}:{number}: {row} must not depend on {other}, whatever the table says")
    used = {row: set() for row in table.rows}
    with_sources = set()

    def edge(place, folder, to, what):
        row = table.row_of[folder]
        target = table.row_of.get(to)
        used[row].add(target)
        if target not in allowed[row]:
            found.append(f"{place}: must not {what}: the row of {row} in {PAGE} does not name {target or to}")

    unknown = set()
    components = tuple(place for place in OURS if place != "tests/")
    for path, text in tree.select(*SOURCE, "BUILD.bazel", under=components):
        folder, name = os.path.split(path)
        if name != "BUILD.bazel":
            with_sources.add(folder)
        if folder not in table.row_of:
            if folder not in unknown and name != "BUILD.bazel":
                found.append(f"{path}: {folder} has no row in the table of {PAGE}: add one that says what it is and "
                             "which folders it depends on, or name it in its parent's row, behind 'with'")
                unknown.add(folder)
            continue
        if name == "BUILD.bazel":
            for number, label, test in _dependencies(text):
                to = label[2:].split(":")[0]
                if label.startswith("//") and f"{to}/".startswith(OURS) and not (test and to.startswith("tests/")):
                    edge(f"{path}:{number}", folder, to, f"use {label}")
            continue
        for number, header in _includes(tree, text):
            if header.startswith(OURS) and not (header.startswith("tests/") and path.endswith("_test.cc")):
                edge(f"{path}:{number}", folder, os.path.dirname(header), f"include {header}")
    for row, (number, names) in table.rows.items():
        if not any(table.row_of[folder] == row for folder in with_sources if folder in table.row_of):
            if not any(path.startswith(row + "/") for path in tree.files):
                found.append(f"{PAGE}:{number}: there is no folder {row}")
        for name in names:
            if table.meant(name) and not table.meant(name) & used[row]:
                found.append(f"{PAGE}:{number}: {row} does not depend on {name}: strike it from the table")
    return found


PURE = ("server/job/", "server/heap/", "server/policy/")


def pure_logic(tree):
    """The daemon's logic knows no socket, no driver and no wall clock."""
    found = []
    for path, text in tree.select(*SOURCE, under=PURE):
        for number, header in _includes(tree, text):
            if (header.startswith(("grpc", "google/", "device/", "server/rpc/", "server/session/", "sys/"))
                    and header != "device/base/bytes.h" or header.endswith(".pb.h")):
                found.append(f"{path}:{number}: pure logic must not include {header}")
    wall_clock = re.compile(
        r"absl::Now\b|absl::GetCurrentTimeNanos|system_clock|steady_clock|clock_gettime|\btime\(nullptr")
    sources = (f for f in tree.select(*SOURCE, under=PURE, without=("server/job/clock.h",))
               if not f[0].endswith("_test.cc"))
    return found + _grep(sources, wall_clock, "pure logic takes the time from a Clock")


def proto_types(tree):
    """Messages stop at the edge: irisd's in server/rpc and server/state, the client's in client/wire, session and ctl.
    A worker names the services, whose messages it does not read; a port's messages are its own."""
    edge = ("server/rpc/", "server/state/", "server/worker/", "server/port/", "client/wire/", "client/session/",
            "client/ctl/")
    found = []
    for path, text in tree.select(*SOURCE, under=("server/", "client/", "device/"), without=edge):
        if path.endswith("_test.cc"):
            continue
        for number, header in _includes(tree, text):
            if header.endswith(".pb.h"):
                found.append(f"{path}:{number}: must not include {header}")
    return found


def header_shape(tree):
    """A header says first what it is, and guards itself."""
    found = []
    for path, text in tree.select(".h"):
        # One in C says the same in the words of C.
        in_c = text.startswith("/* ") and 'extern "C"' in text and re.search(r"^#ifndef (\w+)\n#define \1$", text, re.M)
        if not text.startswith("// ") and not in_c:
            found.append(f"{path}:1: a header begins with a comment that says what it is")
        if not re.search(r"^#pragma once$", text, re.M) and not in_c:
            found.append(f"{path}:1: no #pragma once")
    return found


def one_conditional(tree):
    """The backend is chosen in one place."""
    test = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*\bIRIS_BACKEND_", re.M)
    found = _grep(tree.select(*SOURCE, without=("device/iris/backend/select.h",)), test,
                  "only device/iris/backend/select.h asks which backend this is")
    text = tree.files.get("device/iris/backend/select.h", "")
    starts = [m for m in test.finditer(text) if "elif" not in m.group(0)]
    if len(starts) > 1:
        found.append(f"device/iris/backend/select.h: {len(starts)} conditionals on the backend instead of one")
    return found


# What a definition of a type is made of: comments, literals and directives are passed over.
TOKEN = re.compile(
    r'(?P<no>//[^\n]*|/\*.*?\*/|R"(?P<end>\w*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    r"|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*)|\w+|::|\S", re.S | re.M)


def _opens(words):
    """("namespace" or "type", its name) that begins with these words before a brace; None for any other brace, and for
    a namespace or type without a name."""
    if "namespace" in words and "(" not in words:
        name = "".join(words[words.index("namespace") + 1:])
        return ("namespace", name) if name else None
    if words[:1] == ["extern"]:
        return "namespace", ""
    text = re.sub(r"^(?:template < .* > (?=struct|class|union|enum))?(?:(?:public|private|protected) : )?", "",
                  " ".join(words))
    match = re.match(r"(?:typedef )?(?:struct|class|union|enum)(?: class| struct)? (?:alignas \( .*? \) )?"
                     r"(?:\[ \[ .*? \] \] )?(\w+)(?: final)?(?: :(?!:).*)?$", text)
    return ("type", match.group(1)) if match else None


@functools.lru_cache(None)
def _types(text):
    """(line, qualified name) of each class, struct, union and enum that is defined outside of unnamed namespaces and
    functions."""
    found, scopes, words = [], [], []
    for match in TOKEN.finditer(text):
        token = match.group(0)
        if match.group("no") is not None:
            continue
        if token in "{};":
            opened = _opens(words) if token == "{" and None not in scopes else None
            if opened and opened[0] == "type":
                found.append((text.count("\n", 0, match.start()) + 1, "::".join([*filter(None, scopes), opened[1]])))
            if token == "{":
                scopes.append(opened and opened[1])
            elif token == "}" and scopes:
                scopes.pop()
            words = []
        else:
            words.append(token)
    return found


def one_definition(tree):
    """No two types have one qualified name: in a program that has both, the linker would choose between their
    functions. Backends define the same types by design, and a program has one of them."""
    places = {}
    for path, text in tree.select(*SOURCE, without=("tests/", "examples/")):
        if not path.endswith("_test.cc") and "/testing/" not in path:
            for line, name in _types(text):
                places.setdefault(name, []).append((path, line))
    found = []
    for name, (first, *others) in sorted(places.items()):
        backends = [os.path.dirname(path) for path, _ in [first, *others]]
        if len(set(backends)) == len(backends) and all(b.startswith("device/iris/backend/") for b in backends):
            continue
        found += [f"{path}:{line}: {name} is defined in {first[0]}:{first[1]}, too" for path, line in others]
    return found


def download_hosts(tree):
    """The build fetches nothing."""
    files = [(p, t) for p, t in tree.files.items()
             if os.path.basename(p) in BUILD_NAMES or p.endswith((".bzl", ".bazel"))
             or (p.startswith(("deploy/", ".ci/")) and not p.endswith(".md"))]
    download = re.compile(
        r"\b(?:https?|ftp)://[\w.-]+|\b(?:wget|curl)\s+-|\bhttp_archive\b|\bgit_repository\b")
    return _grep(files, download, "a download in a build file")


def _kind(path, text):
    """The end of the file's name, "script" for a program without one, or None for what is not ours to lay out."""
    name = os.path.basename(path)
    if name == "CMakeLists.txt":
        return ".txt"
    if text.startswith("#!") and "." not in name:
        return "script"
    kind = os.path.splitext(name)[1] or name
    return kind if kind != ".txt" and any(kind in kinds for kinds in COLUMNS) else None


def _columns(kind):
    return next(columns for kinds, columns in COLUMNS.items() if kind in kinds)


@functools.lru_cache(None)
def _badly_laid_out(kind, text):
    """(line, what is wrong)."""
    found = []
    limit = _columns(kind)
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if "\t" in line:
            found.append((number, "a tab"))
        if line != line.rstrip():
            found.append((number, "blanks at the end of the line"))
        inside ^= line.lstrip().startswith("```")
        may_be_long = "#include" in line or kind == ".md" and (
            inside or line.lstrip().startswith("|") or re.search(r"\]\(|https?://", line))
        if len(line) > limit and not may_be_long:
            found.append((number, f"{len(line)} columns, at most {limit}"))
    return found


def layout(tree):
    """No tabs, no trailing blanks, a line feed at the end, and one width for each kind of file."""
    found = []
    for path, text in tree.files.items():
        kind = _kind(path, text)
        if kind is None:
            continue
        found += [f"{path}:{number}: {what}" for number, what in _badly_laid_out(kind, text)]
        if text and not text.endswith("\n"):
            found.append(f"{path}: no line feed at the end")
    return found


RULER = re.compile(
    r"^\s*(?://|\#|;)\s*(?:[-=*~_\u2500\u2550]{3,}|\#{3,}|/{3,})"  # begins with a line: // ---- The rules
    r"|^\s*(?://|\#).*\s[-=*~_\#/\u2500\u2550]{4,}$"  # ends with one: // The rules -----
    r"|^\s*/\*\s*[-=*~_]{3,}", re.X)


def rulers(tree):
    """A comment is text: no lines of dashes, no headings in a box."""
    files = ((p, t) for p, t in tree.files.items() if _kind(p, t) not in (None, ".md"))
    return _grep(files, RULER, "a ruler in a comment")


C_COMMENT = re.compile(r"^(\s*//) ?(.*)$")
HASH_COMMENT = re.compile(r"^(\s*#) ?(.*)$")


@functools.lru_cache(None)
def _broken_comments(kind, text):
    """(line, text) of the middle one of three lines of one paragraph, if it is short though the first is full."""
    found = []
    pattern = C_COMMENT if kind in (".h", ".cc", ".proto") else HASH_COMMENT
    width = _columns(kind)
    rows = [(len(line), pattern.match(line)) for line in text.split("\n")]
    for number, ((before, a), (here, b), (_, c)) in enumerate(zip(rows, rows[1:], rows[2:]), 2):
        if not (a and b and c and a.group(1) == b.group(1) == c.group(1)):
            continue
        a, b, c = (m.group(2) for m in (a, b, c))
        full_and_short = before > width - 30 and here < width - 50
        if full_and_short and re.match(r"\S", a) and re.match(r"\S.*[\w,]$", b) and re.match(r"[a-z]", c):
            found.append((number, b))
    return found


def orphan_lines(tree):
    """No line of a comment is broken in the middle of a sentence long before its end, as careless tools leave it."""
    return [f"{path}:{number}: a line that is broken in the middle of a sentence: {line!r}"
            for path, text in tree.files.items() if _kind(path, text) not in (None, ".md")
            for number, line in _broken_comments(_kind(path, text), text)]


def machine_paths(tree):
    """Nothing names a developer's machine."""
    pattern = re.compile(r"(?<![\w.$}])/(?:work|home/\w|Users/\w|root/\w)[\w/]*|\.\./shared\b")
    files = [(p, t) for p, t in tree.files.items() if not p.startswith("tests/tidy/")]
    return _grep(files, pattern, "a path of somebody's machine")


def unfinished(tree):
    """What is unfinished is not committed."""
    files = tree.select(*SOURCE, ".proto", ".py", ".sh", ".bzl", ".bazel", ".md", without=("tests/tidy/",))
    marks = re.compile(r"\b(?:TODO|FIXME|XXX)\b|^(?:<{7}|>{7})(?: |$)")  # the second: of a merge
    return _grep(files, marks, "unfinished")


# The inside of the client library, between client/base and client/iris.
INSIDE = tuple(f"client/{folder}/" for folder in (
    "backend", "wire", "session", "membership", "team", "trace", "context", "comm"))
# What is there of protobuf: an irisd for tests, and the model of the messages.
PROTOBUF_FOR_TESTS = ("client/session/testing/fake_irisd.h", "client/wire/testing/proto_reference.h")


def client_storeys(tree):
    """The client's storeys: base below the inside below iris. What becomes the client library reaches neither protobuf
    nor gRPC, not even through headers of ours: a process may have its own."""
    above = {"client/base/": (*INSIDE, "client/iris/", "client/ctl/"),
             **{folder: ("client/iris/", "client/ctl/") for folder in INSIDE}}
    found = []
    for below, forbidden in above.items():
        for path, text in tree.select(*SOURCE, under=(below,)):
            found += [f"{path}:{number}: must not include {header}"
                      for number, header in _includes(tree, text) if header.startswith(forbidden)]

    reached = {}  # header: the headers on the way from it to a message, or ()

    def way(header):
        if header.startswith(("grpc", "google/")) or header.endswith(".pb.h"):
            return (header,)
        if header not in reached:
            reached[header] = ()  # a circle ends here
            ways = (way(inner) for _, inner in _includes(tree, tree.files.get(header, "")))
            reached[header] = next(((header,) + found_way for found_way in ways if found_way), ())
        return reached[header]

    for path, text in tree.select(*SOURCE, under=("client/base/", *INSIDE, "client/iris/"),
                                  without=PROTOBUF_FOR_TESTS):
        for number, header in _includes(tree, text):
            if not (path.startswith(INSIDE) and path.endswith("_test.cc")) and way(header):
                found.append(f"{path}:{number}: reaches a message: {' -> '.join(way(header))}")
    return found


def target_macros(tree):
    """C++ targets are made by the macros of //third_party:iris.bzl, which say once what all of them would repeat."""
    found = []
    for path, text in tree.select("BUILD.bazel", without=("third_party/",)):
        for call in ast.walk(_parsed(text)):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                continue
            kind = call.func.id
            # A target that compiles nothing, or is a library for users, may be plain.
            compiles = any(k.arg == "srcs" for k in call.keywords)
            if kind.startswith("device_cc_") or kind in ("cc_library", "cc_binary", "cc_test") and compiles:
                found.append(f"{path}:{call.lineno}: {kind} instead of a macro of //third_party:iris.bzl")
    return found


# Files that are read by their place, not by their name: by Git, Bazel, editors, the service that runs tests, and
# readers.
UNNAMED = (".bazelrc", ".bazelversion", ".gitignore", ".clang-format", ".clang-tidy", ".ci/run", "WORKSPACE", "LICENSE",
           "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "third_party/remote_coverage_tools/WORKSPACE",
           "third_party/rules_cc/WORKSPACE", "third_party/rules_cc/cc/defs.bzl", "docs/Doxyfile")
# Folders of such files: readers look through the decisions, and fuzz targets go through their whole corpus.
UNNAMED_FOLDERS = ("docs/decisions/", "tests/fuzz/corpus/")


def _package_of(tree, path):
    folder = os.path.dirname(path)
    while folder and os.path.join(folder, "BUILD.bazel") not in tree.files:
        folder = os.path.dirname(folder)
    return folder


@functools.lru_cache(None)
def _named_in_build(text):
    """What a BUILD file names: its strings, names with .cc behind them, and the patterns of its globs."""
    strings = {string for _, string in _strings(_parsed(text))}
    globs = [string for call in ast.walk(_parsed(text))
             if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "glob"
             for _, string in _strings(call)]
    return strings, globs


@functools.lru_cache(None)
def _file_names(text):
    """The words of a text that may be the name of a file."""
    return frozenset(re.findall(r"[\w+-]+(?:\.[\w+-]+)+|[a-z]+-[a-z]+-[a-z]+", text))


def dead_files(tree):
    """A file that no target, script, source or page names is dead. A header that nobody includes is, too."""
    found = []
    included = set()
    words = {}
    for path, text in tree.files.items():
        for name in _file_names(text) if path != "tests/tidy/tidy_test.py" else ():
            words.setdefault(name, set()).add(path)
        if path.endswith(SOURCE):
            included |= {header for _, header in _includes(tree, text)}
    for path, text in tree.files.items():
        name = os.path.basename(path)
        if path in UNNAMED or name in BUILD_NAMES or path.startswith(UNNAMED_FOLDERS):
            continue
        naming = {other for other in words.get(name, ())
                  if other != path and os.path.basename(other) not in BUILD_NAMES}
        if path.endswith(".h") and path not in included and not naming:
            found.append(f"{path}: no file includes this header")
            continue
        if path.endswith(SOURCE):
            package = _package_of(tree, path)
            strings, globs = _named_in_build(tree.files.get(os.path.join(package, "BUILD.bazel"), ""))
            inner = os.path.relpath(path, package or ".")
            if inner in strings or os.path.splitext(inner)[0] in strings or any(
                    fnmatch.fnmatchcase(inner, pattern) for pattern in globs):
                continue
            found.append(f"{path}: no target of {package}/BUILD.bazel names this file")
        # Whether a target has a test is for orphan_tests.
        elif not path.endswith("_test.py") and not words.get(name, set()) - {path}:
            found.append(f"{path}: nothing names this file")
    return found


VARIABLE_PAGE = "docs/operations.md"
VARIABLE_CHECKS = "client/base/environment.cc"
VARIABLE_ROW = re.compile(r"^\| `(IRIS_[A-Z0-9_]+)`")
# A string that is the name of a variable and nothing else: who writes it reads the variable.
VARIABLE = re.compile(r'"(IRIS_[A-Z0-9_]+)"')
PYTHON_VARIABLE = re.compile(r'environ(?:\.get\(|\[)"(IRIS_[A-Z0-9_]+)"')


def environment_variables(tree):
    """Each environment variable of Iris is read in one file, and perhaps in one of irisd's; it stands in the table of
    docs/operations.md; what stands there is read. The client library checks what device/ reads, too."""
    listed = {}  # variable: its line in the table
    inside = False
    for number, line in enumerate(tree.files.get(VARIABLE_PAGE, "").split("\n"), 1):
        inside = line.startswith("| variable | ") or inside and line.startswith("|")
        match = VARIABLE_ROW.match(line) if inside else None
        if match:
            listed[match.group(1)] = number
    readers = {}  # variable: {file: line}
    for path, text in tree.select(*SOURCE, under=("client/", "device/", "server/", "proto/")):
        if path.endswith("_test.cc"):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            for name in VARIABLE.findall(line):
                readers.setdefault(name, {}).setdefault(path, number)
    # The package for Python reads by itself what it knows, in one file, too.
    in_python = {}
    for path, text in tree.select(".py", under=("client/python/iris/",)):
        for number, line in enumerate(text.split("\n"), 1):
            for name in PYTHON_VARIABLE.findall(line):
                in_python.setdefault(name, {}).setdefault(path, number)
    found = []
    for name, places in sorted(in_python.items()):
        (first, number), *others = sorted(places.items())
        if name in readers:
            found += [f"{path}:{line}: {name} is read in {first} already" for path, line in others]
        else:
            readers[name] = places
    for name, places in sorted(readers.items()):
        first, number = min(places.items())
        if name not in listed:
            found.append(f"{first}:{number}: {name} is not in the table of variables in {VARIABLE_PAGE}")
        for of_irisd in (False, True):
            side = sorted(place for place in places.items() if place[0].startswith("server/") == of_irisd)
            if any(path.startswith("device/") for path, _ in side):
                side = [place for place in side if place[0] != VARIABLE_CHECKS]
            found += [f"{path}:{line}: {name} is read in {side[0][0]} already" for path, line in side[1:]]
    return found + [f"{VARIABLE_PAGE}:{number}: nobody reads {name}"
                    for name, number in listed.items() if name not in readers]


EXAMPLE_LINES = 150


def short_examples(tree):
    """An example is read in one go: each of these programs has fewer than 150 lines, in C++ and in Python."""
    found = []
    for path, text in tree.select(".cc", ".py", under=("examples/",)):
        program = re.search(r"^int main\(", text, re.M) if path.endswith(".cc") else path.startswith("examples/python/")
        lines = text.count("\n")
        if program and lines >= EXAMPLE_LINES:
            found.append(f"{path}: {lines} lines: an example has fewer than {EXAMPLE_LINES}")
    return found


README_LINES_MAX = 120


def short_readme(tree):
    """The README says in a minute why to try Iris: the rest is in docs/."""
    lines = tree.files.get("README.md", "").count("\n")
    return [f"README.md: {lines} lines, at most {README_LINES_MAX}"] if lines > README_LINES_MAX else []


RULES = (vendor_names, orphan_tests, architecture, pure_logic, proto_types, header_shape, one_conditional,
         one_definition, download_hosts, layout, rulers, orphan_lines, machine_paths, unfinished, client_storeys,
         target_macros, dead_files, environment_variables, short_examples, short_readme)


def main(argv):
    root = argv[1] if len(argv) > 1 else os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    tree = Tree(root)
    found = [place for rule in RULES for place in rule(tree)]
    print("\n".join(found) if found else f"{len(tree.files)} files, {len(RULES)} rules: clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
