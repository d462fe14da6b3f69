"""Every relative link of the repository's pages leads to a file and to a heading that are there."""

import os
import tempfile
import unittest

from tests.docs import links
from tests.python import junit


# The whole source tree, found through this file's real path.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class Links(unittest.TestCase):

    def test_of_the_repository(self):
        found = sorted(links.pages(ROOT))
        self.assertIn("README.md", found)
        self.assertIn("docs/tutorial.md", found)
        self.assertEqual([], links.broken(ROOT, found))

    def test_what_is_broken_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "a.md"), "w", encoding="utf-8") as file:
                file.write("# One thing: `x`\n[a](#one-thing-x) [b](#two) [c](b.md) [d](https://x.org/y)\n"
                           "`[e](f.md)`\n```\n[g](h.md)\n```\n[i](../up.md)\n")
            self.assertEqual(["a.md: (#two): a.md has no heading of that name", "a.md: (b.md): there is no b.md",
                              "a.md: (../up.md): there is no ../up.md"], links.broken(folder, ["a.md"]))


if __name__ == "__main__":
    junit.main()
