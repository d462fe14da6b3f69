"""Every source is laid out as clang-format-14 would lay it out, by .clang-format."""

import os
import shutil
import subprocess
import unittest

from tests.python import junit
from tests.tidy import tidy

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(tidy.__file__))))
PROGRAM = "clang-format-14"


def complaints(*arguments, text=""):
    return subprocess.run([PROGRAM, "--dry-run", *arguments], input=text, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, cwd=ROOT, text=True, check=True).stdout


class Format(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        if not shutil.which(PROGRAM):
            raise FileNotFoundError(f"{PROGRAM} is missing; deploy/setup.sh installs it")

    def test_this_tree(self):
        files = [path for path, _ in tidy.Tree(ROOT).select(*tidy.SOURCE)]
        self.assertGreater(len(files), 100)
        self.assertEqual("", complaints(*files))

    def test_planted(self):
        for text in ("int  f();\n", "int *f();\n", "#include <b>\n#include <a>\n"):
            self.assertIn("clang-formatted", complaints("--assume-filename=client/iris/planted.cc", text=text))

    def test_comments_are_left_alone(self):
        text = f"// {'word ' * 30}end\n//     x   y\n// z\nint f();\n"
        self.assertEqual("", complaints("--assume-filename=client/iris/planted.cc", text=text))


if __name__ == "__main__":
    junit.main()
