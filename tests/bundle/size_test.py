"""The archives are no larger than docs/operations.md says. Builds them: bazel test //tests/bundle:size_test"""

import glob
import os
import unittest

from tests.python import junit


class Size(unittest.TestCase):

    def test_archives_are_small(self):
        for pattern, mebibytes in (("linux-x86_64.tar.xz", 32), ("linux-x86_64-user.tar.xz", 16)):
            (archive,) = glob.glob(f"deploy/bundle/iris-*-{pattern}")
            with self.subTest(archive):
                self.assertLessEqual(os.path.getsize(archive), mebibytes << 20)


if __name__ == "__main__":
    junit.main()
