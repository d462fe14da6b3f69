"""offload_bundler.py: what clang's driver asks of it, read back."""

import os
import struct
import subprocess
import sys
import tempfile
import unittest

from tests.python import junit

BUNDLER = "third_party/hip/offload_bundler.py"
TARGETS = ("host-x86_64-unknown-linux-gnu", "hipv4-amdgcn-amd-amdhsa--gfx90a", "hipv4-amdgcn-amd-amdhsa--gfx950")
CONTENTS = (b"", b"\x7fELF of one" * 700, b"\x7fELF of another")


def run(*arguments):
    return subprocess.run([sys.executable, BUNDLER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False)


class OffloadBundler(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "out")
        self.inputs = []
        for i, content in enumerate(CONTENTS):
            self.inputs.append(os.path.join(folder.name, str(i)))
            with open(self.inputs[-1], "wb") as file:
                file.write(content)

    def test_every_code_object_is_where_the_table_says(self):
        result = run("-type=o", "-bundle-align=4096", f"-targets={','.join(TARGETS)}",
                     *[f"-input={path}" for path in self.inputs], f"-output={self.out}")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        with open(self.out, "rb") as file:
            data = file.read()
        self.assertEqual(data[:24], b"__CLANG_OFFLOAD_BUNDLE__")
        self.assertEqual(struct.unpack_from("<Q", data, 24), (len(TARGETS),))
        at = 32
        for target, content in zip(TARGETS, CONTENTS):
            offset, size, name_size = struct.unpack_from("<QQQ", data, at)
            at += 24
            self.assertEqual(data[at:at + name_size].decode(), target)
            at += name_size
            self.assertEqual(offset % 4096, 0)
            self.assertEqual(data[offset:offset + size], content)
        self.assertGreaterEqual(4096, at)

    def test_refuses_what_it_does_not_know(self):
        result = run("-type=bc", "-targets=a", f"-input={self.inputs[0]}", f"-output={self.out}")
        self.assertIn("does not know '-type=bc'", result.stderr)
        self.assertEqual(result.returncode, 1)
        result = run("-type=o", "-targets=a,b", f"-input={self.inputs[0]}", f"-output={self.out}")
        self.assertIn("1 inputs for 2 targets", result.stderr)
        self.assertFalse(os.path.exists(self.out))


if __name__ == "__main__":
    junit.main()
