"""Runs the tidy rules on this tree, and each rule on a copy of it in which its violation was planted."""

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from tests.python import junit
from tests.tidy import tidy

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(tidy.__file__))))

with open(os.path.join(ROOT, tidy.PAGE), encoding="utf-8") as _file:
    ARCHITECTURE = _file.read()


def with_row(row):
    """docs/architecture.md with one more row in its table of folders."""
    return re.sub(r"(?m)^(\| folder \|.*\n\|---.*\n)", lambda m: m.group(1) + row + "\n", ARCHITECTURE)


def with_dependency(folder, on):
    """docs/architecture.md where the row of `folder` names one more folder."""
    return re.sub(rf"(?m)^(\| `{folder}`.*) \|$", rf"\1, `{on}` |", ARCHITECTURE)


with open(os.path.join(ROOT, tidy.VARIABLE_PAGE), encoding="utf-8") as _file:
    OPERATIONS = _file.read()

# rule: (file, text), (...): each is planted alone, and each must be found.
PLANTED = {
    "vendor_names": (
        ("server/planted.cc", "// Calls cudaMalloc.\n"),
        ("client/planted.h", "// Of NVIDIA.\n#pragma once\n"),
        ("device/iris/planted.h", "// kHip\n#pragma once\nenum { kHip };\n"),
        ("device/iris/collective/planted.h", "// x\n#pragma once\nvoid* hip_stream;\n"),
        ("examples/planted.cc", "// On an MI300X.\n"),
        ("proto/planted.proto", "// amd\n"),
    ),
    "orphan_tests": (
        ("server/heap/nobody_builds_this_test.cc", "// x\n"),
        ("tests/unbuilt/planted_test.cc", "// x\n"),
    ),
    "architecture": (
        ("server/planted_test.cc", '#include "client/iris/context.h"\n'),
        ("server/planted.cc", '#include "tests/integration/daemon_harness.h"\n'),
        ("server/planted.cc", '#include "client/iris/context.h"\n'),
        ("client/team/planted.cc", '#include "server/job/job_machine.h"\n'),
        ("device/driver/planted.cc", '#include "proto/wire/unique_fd.h"\n'),
        ("device/iris/planted.h", '// x\n#pragma once\n#include "client/iris/context.h"\n'),
        ("server/planted.cc", '#include "device/iris/types.h"\n'),
        ("proto/wire/planted.cc", '#include "server/job/ids.h"\n'),
        # Inside one component, as the table says.
        ("server/heap/planted.cc", '#include "server/job/ids.h"\n'),
        ("device/iris/impl/planted.h", '// x\n#pragma once\n#include "device/iris/collective/collective.h"\n'),
        ("client/iris/planted.cc", '#include "client/ctl/text.h"\n'),
        ("examples/planted.cc", '#include "client/membership/window.h"\n'),
        # Targets of Bazel.
        ("server/heap/BUILD.bazel", 'cc_library(name = "x", deps = [":y", "//server/job:ids"])\n'),
        ("device/iris/BUILD.bazel", 'cc_library(name = "x", deps = select({"//:a": ["//device/driver"]}))\n'),
        ("client/team/BUILD.bazel", '[cc_test(name = n, deps = ["//server"] + []) for n in ["a"]]\n'),
        # Folders without a row.
        ("server/planted/planted.cc", "int x;\n"),
        ("device/iris/collective/planted/planted.h", "// x\n#pragma once\n"),
        # The table itself.
        ("docs/architecture.md", with_row("| `server/nowhere` | nothing | nothing |")),
        ("docs/architecture.md", with_row("| somewhere | nothing | nothing |")),
        ("docs/architecture.md", with_dependency("server/heap", "server/nowhere")),
        ("docs/architecture.md", with_dependency("server/heap", "server/job")),
        ("docs/architecture.md", with_dependency("server/heap", "client/iris")),
    ),
    "pure_logic": (
        ("server/heap/planted.cc", "#include <grpcpp/grpcpp.h>\n"),
        ("server/job/planted.cc", '#include "device/driver/gpu_driver.h"\n'),
        ("server/policy/planted.cc", "auto now = absl::Now();\n"),
        ("server/job/planted.cc", "auto now = std::chrono::steady_clock::now();\n"),
    ),
    "proto_types": (
        ("server/session/planted.cc", '#include "proto/iris/v1/heap.pb.h"\n'),
        ("client/iris/planted.cc", '#include "proto/iris/v1/heap.grpc.pb.h"\n'),
    ),
    "header_shape": (
        ("client/iris/planted.h", "// What it is.\nint f();\n"),
        ("client/iris/planted.h", "#pragma once\nint f();\n"),
    ),
    "one_conditional": (
        ("device/iris/planted.h", "// x\n#pragma once\n#if defined(IRIS_BACKEND_EMU)\n#endif\n"),
        ("device/iris/backend/select.h",
         "// x\n#pragma once\n#if defined(IRIS_BACKEND_EMU)\n#endif\n#ifdef IRIS_BACKEND_EMU\n#endif\n"),
    ),
    "one_definition": (
        ("server/planted.h", "// x\n#pragma once\nnamespace iris::wire {\nstruct FrameHeader {\n  int x;\n};\n}\n"),
        ("server/planted.cc", "namespace iris {\nnamespace wire {\nclass HelloPayload final : public X {};\n}\n}\n"),
        ("server/planted.cc", "namespace a {\nenum class B : int { kX };\nstruct C { enum D { kY }; };\n}\n"
         "namespace a {\ntemplate <class T>\nstruct B {};\n}\n"),
        ("server/planted.cc", "struct C {\n  enum D { kY };\n};\nnamespace C {\nunion D {};\n}\n"),
    ),
    "download_hosts": (
        ("client/BUILD.bazel", 'url = "https://example.org/a.tar.gz"\n'),
        ("WORKSPACE", 'http_archive(name = "x")\n'),
    ),
    "layout": (
        ("client/iris/planted.cc", "int\tf();\n"),
        ("client/iris/planted.cc", "int f(); \n"),
        ("client/iris/planted.cc", "int f();"),
        ("client/iris/planted.cc", "int " + "f" * 98 + ";\n"),
        ("client/iris/planted.cc", "// " + "f" * 98 + "\n"),
        ("proto/iris/v1/planted.proto", "// " + "f" * 118 + "\n"),
        ("deploy/planted.sh", "# " + "f" * 119 + "\n"),
        ("deploy/planted", "#!/bin/sh\n# " + "f" * 119 + "\n"),
        ("client/BUILD.bazel", "# " + "f" * 119 + "\n"),
        ("docs/planted.md", "f " * 71 + "f\n"),
    ),
    "rulers": (
        ("client/iris/planted.cc", "// ---- The rules ----\n"),
        ("client/iris/planted.h", "// The rules --------\n"),
        ("client/iris/planted.cc", "/* ======== */\n"),
        ("client/iris/planted.cc", "////////////\n"),
        ("proto/iris/v1/planted.proto", "// ====\n"),
        ("deploy/planted.py", "# --- the rules ---\n"),
        ("deploy/planted.sh", "#########\n"),
        ("client/BUILD.bazel", "# ---------\n"),
        ("third_party/planted.bzl", "# The rules ====\n"),
        ("deploy/irisd.toml", "# ~~~~ settings\n"),
    ),
    "orphan_lines": (
        ("client/iris/planted.cc", "// " + "word " * 18 + "end\n// an orphan of\n// the line above it.\n"),
        ("deploy/planted.py", "# " + "word " * 22 + "end\n# an orphan of\n# the line above it.\n"),
    ),
    "machine_paths": (
        ("docs/planted.md", "Look into /work/main.\n"),
        ("deploy/planted.sh", "cd /home/somebody/iris\n"),
        ("README.md", "Copied from ../shared/data.\n"),
    ),
    "client_storeys": (
        ("client/team/planted.cc", '#include "client/iris/context.h"\n'),
        ("client/base/planted.cc", '#include "client/session/control_plane.h"\n'),
        # Through a header of ours.
        ("client/iris/planted.cc", '#include "client/session/testing/fake_irisd.h"\n'),
        ("client/team/planted.cc", '#include "client/wire/testing/proto_reference.h"\n'),
        ("client/team/planted.h", '// x\n#pragma once\n#include "proto/iris/v1/heap.pb.h"\n'),
        ("client/base/planted.h", "// x\n#pragma once\n#include <grpcpp/grpcpp.h>\n"),
    ),
    "unfinished": (
        ("client/iris/planted.cc", "// TODO: the rest\n"),
        ("client/iris/planted.cc", "<<<<<<< HEAD\nint a;\n=======\nint b;\n>>>>>>> other\n"),
    ),
    "target_macros": (
        ("client/BUILD.bazel", 'cc_library(name = "x", srcs = ["x.cc"])\n'),
        ("server/BUILD.bazel", '[cc_test(name = n, srcs = [n]) for n in ["a"]]\n'),
        ("device/iris/BUILD.bazel", 'device_cc_test(name = "x", srcs = ["x.cc"])\n'),
    ),
    "dead_files": (
        ("client/iris/nobody_builds_this.cc", "// x\n"),
        ("client/iris/nobody_includes_this.h", "// x\n#pragma once\n"),
        ("deploy/nobody_runs_this.sh", "# x\n"),
        ("deploy/nobody_runs_this.py", "# x\n"),
        ("third_party/nobody_loads_this.bzl", "# x\n"),
        ("docs/nobody_shows_this.svg", "<svg/>\n"),
    ),
    "environment_variables": (
        ("client/planted.cc", 'const char* x = getenv("IRIS_PLANTED");\n'),
        ("device/planted.h", '// x\n#pragma once\ninline auto x = Environment("IRIS_PLANTED");\n'),
        # Read in another file already.
        ("client/python/iris/planted.py", 'import os\nX = os.environ.get("IRIS_PLANTED")\n'),
        ("client/python/iris/planted.py", 'import os\nX = os.environ["IRIS_LIBRARY"]\n'),
        ("client/planted.cc", 'const char* x = getenv("IRIS_HEAP_BYTES");\n'),
        # In two files of irisd.
        ("server/planted.cc", 'const char* x = getenv("IRIS_RUNTIME_DIR");\n'),
        # Read by nobody.
        ("docs/operations.md", OPERATIONS.replace("\n| `IRIS_JOB` ", "\n| `IRIS_NO` | – | – |\n| `IRIS_JOB` ")),
    ),
    "short_examples": (
        ("examples/planted.cc", "// x\n" * 149 + "int main() {}\n"),
        ("examples/python/planted.py", "# x\n" * 150),
    ),
    "short_readme": (("README.md", "x\n" * 121),),
}


@functools.lru_cache(None)
def violations(rule):
    """Of this tree."""
    return rule(TREE)


class ThisTree(unittest.TestCase):
    maxDiff = None


class Planted(unittest.TestCase):

    def test_every_rule_has_a_violation_that_it_finds(self):
        self.assertEqual({rule.__name__ for rule in tidy.RULES}, set(PLANTED))

    def test_the_program_fails_on_a_copy_with_a_violation(self):
        with tempfile.TemporaryDirectory() as folder:
            root = os.path.join(folder, "iris")
            ignored = shutil.ignore_patterns(".git", "bazel-*", "__pycache__", "*.csv", ".*.swp")
            for folder in ("docs", "tests"):
                shutil.copytree(os.path.join(ROOT, folder), os.path.join(root, folder), ignore=ignored)
            command = [sys.executable, tidy.__file__, root]
            clean = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            os.makedirs(os.path.join(root, "server"))
            with open(os.path.join(root, "server", "planted.cc"), "w", encoding="utf-8") as file:
                file.write('#include "client/iris/context.h"\n')
            planted = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        self.assertEqual(planted.returncode, 1)
        self.assertIn("server/planted.cc:1: must not include client/iris/context.h", planted.stdout)
        self.assertNotIn("server/planted.cc", clean.stdout)

    def test_what_only_looks_like_a_ruler(self):
        for line in ("//   a    --->  b", "x = 1  # ...", "# --name VALUE", "//   |---|---|", "// a ----> b", "#"):
            self.assertIsNone(tidy.RULER.search(line), line)

    def test_what_is_a_short_example_or_none(self):
        for path, text in (("examples/planted.cc", "// x\n" * 148 + "int main() {}\n"),
                           ("examples/python/planted.py", "# x\n" * 149), ("examples/planted_data.cc", "// x\n" * 150),
                           ("examples/planted_test.py", "# x\n" * 150)):
            self.assertEqual(violations(tidy.short_examples), tidy.short_examples(TREE.with_file(path, text)), path)

    def test_words_that_only_look_like_a_vendor(self):
        for word in ("membership", "ship", "AmDahl", "chip", "relationship", "whip()", "kChip", "sigprocmask"):
            self.assertIsNone(tidy.VENDOR.search(word), word)


def _this_tree(rule):

    def test(self):
        self.assertEqual([], violations(rule))

    test.__doc__ = rule.__doc__
    return test


def _planted(rule, path, text):

    def test(self):
        before = violations(rule)
        found = [place for place in rule(TREE.with_file(path, text)) if place not in before]
        self.assertTrue(found, f"{rule.__name__} does not find {text!r} in {path}")
        self.assertTrue(all(place.startswith(path) for place in found), found)

    return test


TREE = tidy.Tree(ROOT)
for _rule in tidy.RULES:
    setattr(ThisTree, f"test_{_rule.__name__}", _this_tree(_rule))
    for _number, (_path, _text) in enumerate(PLANTED.get(_rule.__name__, ())):
        setattr(Planted, f"test_{_rule.__name__}_{_number}", _planted(_rule, _path, _text))

if __name__ == "__main__":
    junit.main()
