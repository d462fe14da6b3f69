"""Lines with a deadline: what comes is read, and what does not come is told."""

import subprocess
import sys
import unittest

from tests.python import junit
from tests.python import patience


def start(program):
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Patience(unittest.TestCase):

    def test_lines_come_one_by_one(self):
        with start("print('a\\nb', flush=True)") as process:
            self.assertEqual([patience.line(process), patience.line(process)], ["a\n", "b\n"])
            self.assertRaisesRegex(AssertionError, "has ended", patience.line, process)

    def test_a_line_that_does_not_come_is_told(self):
        with start("import sys; sys.stdin.read()") as process:
            self.assertRaisesRegex(AssertionError, "no line for 0.1 s", patience.line, process, 0.1)
            process.stdin.close()


if __name__ == "__main__":
    junit.main()
