"""The scripts of this folder: what they say of words that they do not know, before they install or build anything."""

import subprocess
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
        for script, said in (("run-tests.sh", "unknown run 'asna': there are gcc, asan and tsan"),
                             ("run-demo.sh", "it takes no arguments, and not 'asna'"),
                             ("release.sh", "unknown argument 'asna': there are --out and --bundle")):
            result = run(f"deploy/{script}", "asna")
            self.assertEqual((result.returncode, result.stdout), (2, ""), script)
            self.assertIn(said, result.stderr)


if __name__ == "__main__":
    junit.main()
