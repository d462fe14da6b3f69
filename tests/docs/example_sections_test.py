"""docs/examples.md says what the examples say at their top, of each of them, in the order of their numbers."""

import os
import re
import unittest

from docs import example_sections
from tests.python import junit

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(example_sections.__file__)))

SOURCE = """// 30: a thing. It has a
// Kernel.
//
//   iris-run -n 4 -- bazel-bin/examples/30_thing [n]
//
// Time runs right:
//
//      a --> b
//
//   c
//
// What to see: the first word[i] goes to PutSignal (<iris/x.h>), as docs/tracing.md has "user 1".
#include <cstdio>

// Not this.
"""
SECTION = """A thing. It has a `Kernel`.

```
iris-run -n 4 -- bazel-bin/examples/30_thing [n]
```

Time runs right:

```
   a --> b

c
```

What to see: the first `word[i]` goes to `PutSignal` (`<iris/x.h>`), as [tracing](tracing.md) has `user 1`.
"""


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class ExampleSections(unittest.TestCase):
    maxDiff = None

    def test_the_page_is_what_the_sources_say(self):
        page = read(example_sections.PAGE)
        self.assertEqual(example_sections.write(page, read), page, "run: docs/example_sections.py")

    def test_it_has_every_example_once_in_order(self):
        programs = sorted(name for name in os.listdir(os.path.join(ROOT, "examples"))
                          if name.endswith(".cc") and re.search(r"(?m)^int main\(", read(f"examples/{name}")))
        page = read(example_sections.PAGE)
        self.assertGreater(len(programs), 15)
        self.assertEqual([path for _, path, _ in example_sections.SECTION.findall(page)],
                         [f"examples/{name}" for name in programs])
        for name in programs:
            name = os.path.splitext(name)[0]
            self.assertIn(f"### {name}\n\n<!-- examples/{name}.cc -->\n", page)
            self.assertEqual(page.count(f"| [`{name}`](#{name})"), 1, f"{name} in the table")

    def test_a_section(self):
        self.assertEqual(example_sections.section(SOURCE, "examples/30_thing.cc"), SECTION)

    def test_what_is_by_hand_stays(self):
        page = "x\n<!-- examples/30_thing.cc -->\nold\n<!-- end -->\ny <!-- examples/other -->\n"
        self.assertEqual(example_sections.write(page, {"examples/30_thing.cc": SOURCE}.get),
                         page.replace("old\n", SECTION))

    def test_a_source_without_a_part_is_refused(self):
        for part in ("30: ", "   iris-run", "What to see"):
            with self.subTest(part), self.assertRaisesRegex(example_sections.Malformed, "not of the form"):
                example_sections.section(SOURCE.replace(part, ""), "examples/30_thing.cc")
        with self.assertRaisesRegex(example_sections.Malformed, "has no drawing"):
            example_sections.section(SOURCE.replace("//      a --> b\n", "").replace("//   c\n", ""),
                                     "examples/30_thing.cc")

    def test_no_line_begins_a_list(self):
        words = "word " * 26
        self.assertEqual(example_sections.prose([words + "of r - 1"]), "W" + words[1:] + "of r - 1")
        with self.assertRaisesRegex(example_sections.Malformed, "would begin a list"):
            example_sections.prose([words + "of rank r - 1 is there"])


if __name__ == "__main__":
    junit.main()
