"""What snippets.py makes of a page; and, by what this test depends on, that the C++ of all pages compiles."""

import glob
import unittest

from tests.docs import snippets
from tests.python import junit

PAGE = """# A page

```cpp
#include "a.h"
#include <b>

int F();
```

```sh
cpp
```

  ```cpp
int G() { return F(); }
```

```python
import iris
```
<!-- fragment: it has no context -->
```python
context.barrier()
```
"""
FRAGMENTS_MAX = 2


class Snippets(unittest.TestCase):

    def test_blocks_of_cpp_alone_with_their_lines(self):
        self.assertEqual([(4, ['#include "a.h"', "#include <b>", "", "int F();"]),
                          (15, ["int G() { return F(); }"])], snippets.blocks(PAGE, "page.md"))

    def test_a_file_that_compiles(self):
        text = snippets.compiled([("docs/001-a-page.md", PAGE), ("docs/none.md", "no code\n")], ["c.h", "a.h"], "x.h")
        self.assertEqual("""// x.h: made by tests/docs/snippets.py from the pages that the #line directives name.
#pragma once

#include "c.h"
#include "a.h"
#include <b>

namespace iris::docs::a_page {
#line 4 "docs/001-a-page.md"



int F();
#line 15 "docs/001-a-page.md"
int G() { return F(); }
}  // namespace iris::docs::a_page
""", text)

    def test_another_name_for_the_language(self):
        for name, language in (("c++", "cpp"), ("py", "python"), ("Python3", "python")):
            with self.assertRaisesRegex(snippets.Malformed, f"page.md:2: .* mark it as {language}"):
                snippets.blocks(f"a\n```{name}\nint F();\n```\n", "page.md")

    def test_programs_of_python_and_fragments(self):
        self.assertEqual([(19, "import iris\n", None), (23, "context.barrier()\n", "it has no context")],
                         snippets.programs(PAGE, "page.md"))

    def test_few_blocks_of_python_are_not_run(self):
        fragments, whole = [], 0
        for page in ["README.md", *glob.glob("docs/**/*.md", recursive=True)]:
            with open(page, encoding="utf-8") as file:
                for line, _, reason in snippets.programs(file.read(), page):
                    whole += reason is None
                    fragments += [f"{page}:{line}: {reason}"] if reason else []
        self.assertGreater(whole, 6)
        self.assertLessEqual(len(fragments), FRAGMENTS_MAX, fragments)

    def test_a_block_without_an_end(self):
        with self.assertRaisesRegex(snippets.Malformed, "page.md:3: this block of code does not end"):
            snippets.blocks("a\n\n```cpp\nint F();\n", "page.md")


if __name__ == "__main__":
    junit.main()
