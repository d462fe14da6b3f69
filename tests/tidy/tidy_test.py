"""Runs the tidy rules on this tree, and each rule on a copy of it in which its violation was planted."""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from tests.python import junit
from tests.tidy import tidy

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(tidy.__file__))))

# rule: (file, text), (...): each is planted alone, and each must be found.
PLANTED = {
    "vendor_names": (
        ("server/planted.cc", "// Calls cudaMalloc.\n"),
        ("client/planted.h", "// Of NVIDIA.\n#pragma once\n"),
        ("device/iris/planted.h", "// kHip\n#pragma once\nenum { kHip };\n"),
        ("device/collective/planted.h", "// x\n#pragma once\nvoid* hip_stream;\n"),
        ("examples/planted.cc", "// On an MI300X.\n"),
        ("proto/planted.proto", "// amd\n"),
    ),
    "orphan_tests": (
        ("server/heap/nobody_builds_this_test.cc", "// x\n"),
        ("tests/unbuilt/planted_test.cc", "// x\n"),
    ),
    "dependency_edges": (
        ("server/planted_test.cc", '#include "client/iris/context.h"\n'),
        ("server/planted.cc", '#include "tests/integration/daemon_harness.h"\n'),
        ("server/planted.cc", '#include "client/iris/context.h"\n'),
        ("client/internal/planted.cc", '#include "server/job/job_machine.h"\n'),
        ("device/driver/planted.cc", '#include "proto/wire/unique_fd.h"\n'),
        ("device/iris/planted.h", '// x\n#pragma once\n#include "client/iris/context.h"\n'),
        ("server/planted.cc", '#include "device/iris/types.h"\n'),
        ("proto/wire/planted.cc", '#include "server/job/ids.h"\n'),
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
        ("device/backend/select.h",
         "// x\n#pragma once\n#if defined(IRIS_BACKEND_EMU)\n#endif\n#ifdef IRIS_BACKEND_EMU\n#endif\n"),
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
        ("client/iris/planted.cc", "// " + "f" * 130 + "\n"),
    ),
    "machine_paths": (
        ("docs/planted.md", "Look into /work/main.\n"),
        ("deploy/planted.sh", "cd /home/somebody/iris\n"),
        ("README.md", "Copied from ../shared/data.\n"),
    ),
    "client_storeys": (
        ("client/internal/planted.cc", '#include "client/iris/context.h"\n'),
        ("client/base/planted.cc", '#include "client/internal/clock.h"\n'),
        # Through one header of ours, and through two.
        ("client/iris/planted.cc", '#include "client/internal/session_client.h"\n'),
        ("client/iris/planted.cc", '#include "client/internal/grpc_control_plane.h"\n'),
        ("client/base/planted.h", "// x\n#pragma once\n#include <grpcpp/grpcpp.h>\n"),
    ),
    "unfinished": (
        ("client/iris/planted.cc", "// TODO: the rest\n"),
    ),
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
            shutil.copytree(os.path.join(ROOT, "tests"), os.path.join(root, "tests"), ignore=ignored)
            clean = subprocess.run([sys.executable, tidy.__file__, root], stdout=subprocess.PIPE, text=True, check=False)
            os.makedirs(os.path.join(root, "server"))
            with open(os.path.join(root, "server", "planted.cc"), "w", encoding="utf-8") as file:
                file.write('#include "client/iris/context.h"\n')
            planted = subprocess.run([sys.executable, tidy.__file__, root], stdout=subprocess.PIPE, text=True, check=False)
        self.assertEqual(planted.returncode, 1)
        self.assertIn("server/planted.cc:1: must not include client/iris/context.h", planted.stdout)
        self.assertNotIn("server/planted.cc", clean.stdout)

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
