"""The program of all conformance tests has the tests of each of them under its name, and no others."""

import glob
import os
import re
import subprocess
import tempfile
import unittest

from tests.python import junit

FOLDER = "tests/conformance/"


def tests_of(program, *options):
    done = subprocess.run([program, "--gtest_list_tests", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, timeout=120)
    # googletest's own main begins with its name, and padding of parameters has any value.
    return done.returncode, re.sub(r"^Running main\(\) from .*\n|  # GetParam\(\) = .*", "", done.stdout)


class ConformanceProgram(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="iris-conformance-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def named(self, name):
        path = os.path.join(self.folder, name)
        os.symlink(os.path.abspath(FOLDER + "conformance"), path)
        return path

    def test_each_name_has_the_tests_of_its_file(self):
        programs = sorted(p for p in glob.glob(FOLDER + "*_test") if "program" not in p)
        self.assertGreaterEqual(len(programs), 20, programs)
        for program in programs:
            with self.subTest(program):
                self.assertEqual(tests_of(program), tests_of(self.named(os.path.basename(program))))

    def test_a_filter_still_counts(self):
        code, said = tests_of(self.named("rma_test"), "--gtest_filter=Nothing*")
        self.assertEqual((code, said.count("\n  ")), (0, 0), said)
        code, said = tests_of(self.named("collective_conformance_test"), "--gtest_filter=-*MatrixTest*")
        self.assertEqual(code, 0)
        self.assertNotIn("MatrixTest", said)
        self.assertIn("FailureTest", said)

    def test_another_name_is_refused(self):
        code, said = tests_of(self.named("other_test"))
        self.assertEqual((code, said), (2, "other_test: no conformance test is called so\n"))


if __name__ == "__main__":
    junit.main()
