"""Compares client/base/pmix_api.h with PMIx's own headers, of Debian's libpmix-dev."""

import os
import subprocess
import tempfile
import unittest

from tests.python import junit

SOURCE = "client/base/testing/pmix_headers.cc"
HEADER = "client/base/pmix_api.h"


def compile_errors(root="."):
    flags = subprocess.check_output(["pkg-config", "--cflags", "pmix"], text=True).split()
    done = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", f"-I{root}", *flags, SOURCE], capture_output=True,
                          text=True, timeout=300, check=False)
    return "" if done.returncode == 0 else done.stderr or "failed without a word"


class PmixHeadersTest(unittest.TestCase):

    def test_the_declarations_are_the_same(self):
        self.assertEqual(compile_errors(), "")

    def test_mistakes_are_found(self):
        with open(HEADER, encoding="utf-8") as file:
            text = file.read()
        for right, wrong in (("char key[512]", "char key[256]"), ("kString = 3", "kString = 4"),
                             ("(*Put)(uint8_t scope", "(*Put)(uint32_t scope")):
            self.assertIn(right, text)
            with tempfile.TemporaryDirectory() as root:
                path = os.path.join(root, HEADER)
                os.makedirs(os.path.dirname(path))
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text.replace(right, wrong))
                self.assertIn("static assertion failed", compile_errors(root), wrong)


if __name__ == "__main__":
    junit.main()
