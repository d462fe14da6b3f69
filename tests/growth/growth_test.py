"""Counts the files that each toy of this folder touches, and applies the patches to the tree as it is. growth.py builds
and runs them."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from tests.growth import growth
from tests.python import junit

ROOT = pathlib.Path(os.path.realpath(growth.__file__)).parents[2]


class GrowthTest(unittest.TestCase):

    def test_toys_touch_few_files(self):
        for name, most in growth.FILES_MAX.items():
            with self.subTest(name):
                paths = growth.touched(name)
                self.assertTrue(paths)
                self.assertLessEqual(len(paths), most, f"{name} touches {', '.join(paths)}")

    def test_patches_apply_to_the_tree(self):
        for name in growth.FILES_MAX:
            with self.subTest(name), tempfile.TemporaryDirectory(prefix="iris-growth-", dir="/tmp") as folder:
                for path in growth.touched(name):
                    if not (ROOT / path).exists():
                        continue
                    (pathlib.Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / path, pathlib.Path(folder) / path)
                try:
                    growth.apply(name, pathlib.Path(folder))
                except subprocess.CalledProcessError:
                    self.fail(f"tests/growth/{name}.patch does not apply: mend it, and run tests/growth/growth.py "
                              f"{name}")

    def test_the_page_says_how_many(self):
        page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
        for name, most in growth.FILES_MAX.items():
            self.assertIn(f"`tests/growth/{name}.patch`, {most} files", page)


if __name__ == "__main__":
    junit.main()
