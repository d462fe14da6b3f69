"""Doxygen makes the API reference from the headers without a warning, and the headers' text is in it."""

import os
import shutil
import subprocess
import tempfile
import unittest

from tests.python import junit

# The whole source tree, found through this file's real path.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
PATH = "/usr/local/bin:/usr/bin:/bin"


class Doxygen(unittest.TestCase):

    def test_the_reference(self):
        if not shutil.which("doxygen", path=PATH):
            self.fail("doxygen is missing; deploy/setup.sh installs it")
        with open(os.path.join(ROOT, "docs/Doxyfile"), encoding="utf-8") as file:
            settings = file.read()
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(["doxygen", "-"], input=f"{settings}\nOUTPUT_DIRECTORY = {folder}\n", cwd=ROOT,
                                    env={"PATH": PATH}, capture_output=True, text=True, check=False)
            self.assertEqual((0, "", ""), (result.returncode, result.stdout, result.stderr))
            for page, text in (("classiris_1_1Context", "joins the job, maps every peer"),
                               ("classiris_1_1Stream", "Copy between this rank and a peer by the device"),
                               ("classiris_1_1ccl_1_1Communicator", "In place: out == in")):
                with open(f"{folder}/html/{page}.html", encoding="utf-8") as file:
                    self.assertIn(text, file.read())


if __name__ == "__main__":
    junit.main()
