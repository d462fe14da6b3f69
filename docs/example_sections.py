#!/usr/bin/env python3
"""Writes into docs/examples.md what the sources of the examples say at their top: example_sections.py [ROOT].

Between `<!-- examples/NAME.cc -->` and `<!-- end -->` the page has, of the comment that begins this file, what the
example is, how it is run, its drawing and what to see. All else of the page is written by hand.
"""

import os
import re
import sys
import textwrap

PAGE = "docs/examples.md"
COLUMNS = 140
SECTION = re.compile(r"(<!-- (examples/\w+\.cc) -->\n).*?(<!-- end -->\n)", re.S)
SEE = "What to see: "

# What is code in the prose of a comment, and pages of the documents.
CODE = re.compile(r"`[^`]+`|<iris/[\w.]+>|--[a-z]+|\"(?:user \d|put_signal)\"|\b[A-Z]{4,}_[A-Z]+\b|iris-ctl allocations"
                  r"|\b\w+\([\w, ]*\)|\b\w+\[[^\]]+\]|\bBlock\{\}|\b(?:[A-Z][a-z]+){2,}\b|\b[a-z]+_[a-z]+(?:\.h)?\b"
                  r"|\b[a-z]+\.h\b|docs/\w+\.md|(?<=[a-z,;] )[A-Z][a-z]+\b|(?<=\()[A-Z][a-z]+(?=\))")


class Malformed(Exception):
    pass


def prose(lines):
    """Lines of a comment as a paragraph of the page."""

    def marked(match):
        word = match.group(0)
        page = re.fullmatch(r"docs/(\w+)\.md", word)
        code = word.strip(chr(96) + chr(34)).replace(" ", "\0")  # it stays on one line
        return f"[{page.group(1)}]({page.group(1)}.md)" if page else f"`{code}`"

    text = CODE.sub(marked, " ".join(line.strip() for line in lines))
    filled = textwrap.fill(text[0].upper() + text[1:], COLUMNS, break_long_words=False, break_on_hyphens=False)
    filled = filled.replace("\0", " ")
    if re.search(r"(?m)^(?:[-+*#>]|\d+[.)]) ", filled):
        raise Malformed(f"a line of this would begin a list in Markdown: {filled!r}")
    return filled


def section(source, path):
    """What the page has of the source of an example."""
    comment = []
    for line in source.split("\n"):
        if not line.startswith("//"):
            break
        comment.append(line[2:])
    name = os.path.splitext(os.path.basename(path))[0]
    run = next((i for i, line in enumerate(comment) if line.startswith("   iris-run ") and f"/{name}" in line), None)
    see = next((i for i, line in enumerate(comment) if line.startswith(" " + SEE)), None)
    title = re.match(r" \d\d[a-z]?: ", comment[0]) if comment else None
    if run is None or see is None or title is None or not run < see:
        raise Malformed(f"{path}: its first comment is not of the form: // NN: what it is, iris-run, a drawing, {SEE}")
    what = [comment[0][title.end():]] + [line for line in comment[1:run] if line]
    # Between the drawing's lines, which are indented, there may be words about it.
    about = [line for line in comment[run + 1:see] if re.match(r" \S", line)]
    drawing = "\n".join("" if re.match(r" \S", line) else line for line in comment[run + 1:see]).rstrip()
    drawing = textwrap.dedent(drawing).strip("\n")
    if not drawing:
        raise Malformed(f"{path}: its first comment has no drawing")
    return "\n".join([prose(what), "", "```", comment[run].strip(), "```", "", *([prose(about), ""] if about else []),
                      "```", drawing, "```", "", prose(comment[see:]), ""])


def write(page, read):
    """The page with its sections written anew; read(path) gives a source."""
    return SECTION.sub(lambda match: match.group(1) + section(read(match.group(2)), match.group(2)) + match.group(3),
                       page)


def main(argv):
    root = argv[1] if len(argv) > 1 else os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

    def read(path):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            return file.read()

    try:
        page = write(read(PAGE), read)
    except (Malformed, OSError) as error:
        sys.exit(f"example_sections.py: {error}")
    with open(os.path.join(root, PAGE), "w", encoding="utf-8") as file:
        file.write(page)


if __name__ == "__main__":
    main(sys.argv)
