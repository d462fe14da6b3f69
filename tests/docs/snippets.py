#!/usr/bin/env python3
"""Makes a file that compiles from the C++ in Markdown pages, and finds their programs of Python.

    snippets.py OUT [--include HEADER]... PAGE.md...

OUT gets every block of code that a page marks as cpp, in the order of the page. The blocks of a page share a namespace
inside iris::docs, which has the name of the page, so a block may use what an earlier one defines. A block stands
outside of functions. What it includes goes to the top of OUT, behind the headers that the command line names. Lines
are numbered as in the page, so that the compiler's errors say where to look.

Each block that a page marks as python is a whole program, which tests/bundle/python runs on two ranks. A block that
cannot be one has the line `<!-- fragment: why -->` before it; snippets_test limits how many there are.
"""

import os
import re
import sys

FENCE = re.compile(r"^ {0,3}(`{3,})\s*(\S*)")
INCLUDE = re.compile(r'^#include ["<].*[">]')
FRAGMENT = re.compile(r"^ {0,3}<!-- fragment: (\S.*) -->$")
# Other names of the languages, by which a block would escape the tests.
ALIASES = {"c": "cpp", "cc": "cpp", "c++": "cpp", "cxx": "cpp", "hpp": "cpp",
           "py": "python", "py3": "python", "python3": "python", "pycon": "python"}


class Malformed(Exception):
    pass


def blocks(text, page, language="cpp"):
    """(number of the first line, lines) of each block of a language in a page."""
    found = []
    fence = None  # (its line, its backticks, its language)
    for number, line in enumerate(text.split("\n"), 1):
        match = FENCE.match(line)
        if fence is None:
            if match:
                fence = (number, match.group(1), match.group(2).lower())
                lines = []
                if fence[2] == "c" and os.path.basename(page) == "c.md":
                    continue  # c_test compiles it
                if fence[2] in ALIASES:
                    raise Malformed(f"{page}:{number}: no test would see this block of code: mark it as "
                                    f"{ALIASES[fence[2]]}")
        elif match and match.group(1) == fence[1] and not match.group(2):
            if fence[2] == language:
                found.append((fence[0] + 1, lines))
            fence = None
        else:
            lines.append(line)
    if fence is not None:
        raise Malformed(f"{page}:{fence[0]}: this block of code does not end")
    return found


def programs(text, page):
    """(number of the first line, source, why it is a fragment or None) of each block of Python in a page."""
    above = [""] + text.split("\n")
    found = []
    for first, lines in blocks(text, page, "python"):
        fragment = FRAGMENT.match(above[first - 2])
        found.append((first, "\n".join(lines) + "\n", fragment.group(1) if fragment else None))
    return found


def namespace(page):
    return re.sub(r"\W", "_", os.path.splitext(os.path.basename(page))[0]).lower().lstrip("0123456789_")


def compiled(pages, headers, name):
    """The text of the file `name`, from (path, text) of each page."""
    includes = [f'#include "{header}"' for header in headers]
    body = []
    for page, text in pages:
        found = blocks(text, page)
        if not found:
            continue
        body += ["", f"namespace iris::docs::{namespace(page)} {{"]
        for first, lines in found:
            body.append(f'#line {first} "{page}"')
            for line in lines:
                if INCLUDE.match(line):
                    includes.append(line)
                    line = ""  # so that the numbers of the other lines stay
                body.append(line)
        body.append(f"}}  // namespace iris::docs::{namespace(page)}")
    head = [f"// {name}: made by tests/docs/snippets.py from the pages that the #line directives name."]
    if name.endswith(".h"):
        head.append("#pragma once")
    return "\n".join(head + [""] + list(dict.fromkeys(includes)) + body) + "\n"


def main(argv):
    out, *rest = argv[1:]
    headers = []
    while rest[:1] == ["--include"]:
        headers.append(rest[1])
        rest = rest[2:]
    pages = []
    for page in rest:
        with open(page, encoding="utf-8") as file:
            pages.append((page, file.read()))
    try:
        text = compiled(pages, headers, os.path.basename(out))
    except Malformed as problem:
        sys.exit(str(problem))
    with open(out, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main(sys.argv)
