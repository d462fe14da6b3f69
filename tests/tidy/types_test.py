"""mypy finds nothing wrong with the package for Python and its examples, and finds what users get wrong."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from tests.python import junit
from tests.tidy import tidy

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(tidy.__file__))))
PROGRAM = "mypy"
# Examples show calls, and not how to write hints.
LENIENT = ("--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-decorators", "--allow-any-generics",
           "--no-warn-unused-ignores")

# A program, and what is wrong with it.
PLANTED = (
    ("context.ones(2).numel().shape", "attr-defined"),
    ("context.rank + 'x'", "operator"),
    ("context.barrier(nothing=3)", "call-arg"),
    ("iris.DType.of('f32').itemsize.upper()", "attr-defined"),
    ("iris.Stream(3)", "arg-type"),
    ("context.zeros(2, dtype='f32').reshape(2, 1)", None),  # right
)


@unittest.skipUnless(shutil.which("mypy"), "mypy is missing; deploy/setup.sh installs it")
class Types(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="iris-types-", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        # The build writes one module of the package.
        shutil.copytree(f"{ROOT}/client/python/iris", f"{cls.folder}/package/iris")
        with open(f"{cls.folder}/package/iris/_header.py", "w", encoding="utf-8") as file:
            subprocess.run([sys.executable, f"{ROOT}/client/python/bindings.py", f"{ROOT}/client/iris/c_api.h"],
                           stdout=file, check=True)

    def complaints(self, *arguments):
        # The cache is the test's own: the next file is quick, and nothing is left behind.
        done = subprocess.run([PROGRAM, "--config-file", f"{ROOT}/tests/tidy/mypy.ini", "--no-error-summary",
                               f"--cache-dir={self.folder}/cache", *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, cwd=self.folder, text=True, check=False, timeout=240,
                              env={"PATH": os.environ["PATH"], "MYPYPATH": f"{self.folder}/package"})
        self.assertIn(done.returncode, (0, 1), done.stdout)
        return done.stdout

    def test_the_package(self):
        self.assertEqual("", self.complaints(f"{self.folder}/package/iris"))

    def test_the_examples(self):
        self.assertEqual("", self.complaints(*LENIENT, f"{ROOT}/examples/python"))

    def test_what_users_get_wrong(self):
        for number, (line, wanted) in enumerate(PLANTED):
            path = os.path.join(self.folder, f"planted_{number}.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"import iris\n\n\ndef main(context: iris.Context) -> None:\n    {line}\n")
            with self.subTest(line):
                said = self.complaints(path)
                if wanted is None:
                    self.assertEqual("", said)
                else:
                    self.assertIn(f"[{wanted}]", said)


if __name__ == "__main__":
    junit.main()
