"""Checks that a backend does not compile if a declaration is missing or has another type.

spec.h, primitives.h and raw_host.h detect this.
"""

import os
import shutil
import subprocess
import tempfile
import unittest

from tests.python import junit

HEADER = "device/iris/backend/emu/backend.h"
COMMON = "device/iris/backend/host.cc"
# (file, its text, the text that replaces it, the source that then must not compile, part of the error)
MISTAKES = (
    (HEADER, "#define IRIS_PARAM const\n", "", COMMON, "defines each macro"),
    (HEADER, "kWarpThreads = 32;", "kWarpThreads = 33;", COMMON, "a power of two"),
    (HEADER, "static constexpr bool kNullIsAStream = false;", "", COMMON, "kNullIsAStream"),
    (HEADER, "inline void BlockSync() {", "inline bool BlockSync() { return true;", COMMON, "BlockSync"),
    (HEADER, "inline uint64_t Ballot(bool", "inline uint32_t Ballot(bool", COMMON, "Ballot"),
    (HEADER, "inline W CompareExchangeWord(", "inline bool CompareExchangeWord(", COMMON, "CompareExchangeWord"),
    (HEADER, "using ShuffleUnit = Bytes16;", "using ShuffleUnit = uint64_t;", COMMON, "ShuffleUnit"),
    ("device/iris/backend/emu/memory.cc", "Result raw::CopyAsync(void* to, const void* from,",
     "Result raw::CopyAsync(void* to, void* from,", "device/iris/backend/emu/memory.cc", "CopyAsync"),
)


class SpecTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="iris-spec-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copytree("device/iris/backend", os.path.join(self.folder, "device/iris/backend"))
        shutil.copy("device/iris/status_code.h", os.path.join(self.folder, "device/iris"))

    def compile(self, source):
        """Returns the compiler's errors, or "" if the source compiles."""
        command = ["/usr/bin/g++", "-std=c++20", "-fsyntax-only", "-DIRIS_BACKEND_EMU=1", "-I.", "-Idevice", source]
        done = subprocess.run(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return "" if done.returncode == 0 else done.stdout

    def test_the_backend_compiles(self):
        for source in sorted({mistake[3] for mistake in MISTAKES}):
            self.assertEqual(self.compile(source), "")

    def test_each_mistake_is_an_error(self):
        for path, right, wrong, source, text in MISTAKES:
            with self.subTest(wrong=wrong or "without " + right):
                planted = os.path.join(self.folder, path)
                with open(planted, encoding="utf-8") as file:
                    original = file.read()
                self.assertIn(right, original)
                os.remove(planted)
                with open(planted, "w", encoding="utf-8") as file:
                    file.write(original.replace(right, wrong))
                self.assertIn(text, self.compile(source))
                with open(planted, "w", encoding="utf-8") as file:
                    file.write(original)


if __name__ == "__main__":
    junit.main()
