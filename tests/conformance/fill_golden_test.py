"""fill_golden.h is what fill_golden.py makes of the numpy reference: so the kernels and Python agree, bit for bit."""

import importlib.util
import unittest

from tests.python import junit

HAS_NUMPY = importlib.util.find_spec("numpy") is not None


@unittest.skipUnless(HAS_NUMPY, "numpy is not installed")
class Golden(unittest.TestCase):

    def test_the_header_is_what_the_reference_gives(self):
        from tests.conformance import fill_golden
        with open("tests/conformance/fill_golden.h", encoding="utf-8") as file:
            there = file.read()
        again = fill_golden.text()
        self.assertEqual(again.split("\n"), there.split("\n"))


if __name__ == "__main__":
    junit.main()
