"""The scripts of this folder: what they say of words that they do not know, before they install or build anything;
their cache of compiled results; and when the kernels of the bundle are to be compiled."""

import os
import subprocess
import tempfile
import unittest

from tests.python import junit


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


class Scripts(unittest.TestCase):

    def test_help(self):
        for script, said in (("run-tests.sh", "N passed, N failed"), ("run-demo.sh", "starts irisd"),
                             ("release.sh", "--bundle ARCHIVE")):
            result = run(f"deploy/{script}", "--help")
            self.assertEqual((result.returncode, result.stderr), (0, ""), script)
            self.assertIn(said, result.stdout)
            self.assertNotIn("set -", result.stdout)

    def test_unknown_words(self):
        for script, said in (("run-tests.sh", "unknown run 'asna': there are gcc, kernels, asan and tsan"),
                             ("run-demo.sh", "it takes no arguments, and not 'asna'"),
                             ("release.sh", "unknown argument 'asna': there are --out and --bundle")):
            result = run(f"deploy/{script}", "asna")
            self.assertEqual((result.returncode, result.stdout), (2, ""), script)
            self.assertIn(said, result.stderr)


class BuildCache(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="iris-cache-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def common(self, line, **environment):
        done = subprocess.run(["bash", "-c", f". deploy/common.sh; {line}"], stdout=subprocess.PIPE, text=True,
                              timeout=60, check=True, env={**os.environ, **environment})
        return done.stdout

    def test_what_was_used_longest_ago_goes_first(self):
        for age, name in enumerate(("new", "a name with spaces", "older", "oldest")):
            with open(f"{self.folder}/{name}", "wb") as file:
                file.truncate(400 << 10)
            os.utime(f"{self.folder}/{name}", (10**9 - age, 10**9))
        limits = {"IRIS_BUILD_CACHE": self.folder, "IRIS_BUILD_CACHE_MIB": "1"}
        self.common("trim_build_cache", **limits)
        self.assertEqual({"new", "a name with spaces"}, set(os.listdir(self.folder)))
        self.common("trim_build_cache", **limits)
        self.assertEqual(2, len(os.listdir(self.folder)), "what fits stays")

    def test_its_part_is_named_after_the_compilers(self):
        flags = 'use_build_cache; printf "%s\\n" "${quiet[@]}"'
        key = self.common("system_key").strip()
        self.assertRegex(key, "^[0-9a-f]{16}$")
        self.assertIn(f"--disk_cache={self.folder}/{key}\n", self.common(flags, IRIS_BUILD_CACHE=self.folder))
        programs = f"{self.folder}/programs"
        os.mkdir(programs)
        with open(f"{programs}/nvcc", "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho another version\n")
        os.chmod(f"{programs}/nvcc", 0o755)
        self.assertNotEqual(key, self.common("system_key", PATH=f"{programs}:{os.environ['PATH']}").strip())

    def test_it_is_not_needed(self):
        self.assertNotIn("disk_cache", self.common('use_build_cache; echo "${quiet[@]}"', IRIS_BUILD_CACHE=""))
        self.common("trim_build_cache", IRIS_BUILD_CACHE="")
        self.common("trim_build_cache", IRIS_BUILD_CACHE=f"{self.folder}/none")

    def test_a_key_of_the_kernels_files(self):
        for name in ("client", "deploy", "device/iris", "docs", "examples", "tests/conformance", "tests/isa",
                     "tests/multi_gpu", "third_party"):
            os.makedirs(f"{self.folder}/{name}")

        def key(name, content):
            with open(f"{self.folder}/{name}", "w", encoding="utf-8") as file:
                file.write(content)
            return self.common(f"cd {self.folder}; kernels_key").strip()

        key("docs/memory_model.md", "one")
        first = key("device/iris/put.h", "one")
        self.assertRegex(first, "^[0-9a-f]{32}$")
        for name in ("device/README.md", "device/iris/put_test.cc", "deploy/bundle.py", "deploy/kernels.stamp"):
            self.assertEqual(first, key(name, "x"), name)
        keys = {first, key("device/iris/put.h", "two"), key("examples/a b.cc", ""), key("third_party/gpu.bzl", ""),
                key("tests/isa/isa_test.py", "")}
        self.assertEqual(5, len(keys))
        self.assertEqual(5, len(keys | {key("third_party/gpu.bzl", "")}), "the same files have the same key")


if __name__ == "__main__":
    junit.main()
