"""Finds relative links of Markdown pages that lead nowhere: to no file, or to no heading of it."""

import os
import re

FENCE = re.compile(r"^ {0,3}```.*?^ {0,3}```", re.S | re.M)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
OUTSIDE = re.compile(r"[a-z]+:")


def anchors(text):
    """The names of the headings of a page, as readers of Markdown make them."""
    names = set()
    for heading in re.findall(r"(?m)^#+ +(.*)$", FENCE.sub("", text)):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        number = 0
        while (name if not number else f"{name}-{number}") in names:
            number += 1
        names.add(name if not number else f"{name}-{number}")
    return names


def broken(root, pages):
    """What is wrong with the links of the pages, whose paths are below root."""
    found = []
    for page in pages:
        with open(os.path.join(root, page), encoding="utf-8") as file:
            text = file.read()
        for link in LINK.findall(CODE.sub("", FENCE.sub("", text))):
            if OUTSIDE.match(link):
                continue
            path, _, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if target.startswith("..") or not os.path.exists(os.path.join(root, target)):
                found.append(f"{page}: ({link}): there is no {target}")
            elif anchor:
                with open(os.path.join(root, target), encoding="utf-8") as file:
                    if anchor not in anchors(file.read()):
                        found.append(f"{page}: ({link}): {target} has no heading of that name")
    return found


def pages(root):
    for folder, names, files in os.walk(root):
        names[:] = [n for n in names if n not in (".git", "third_party") and not n.startswith("bazel-")]
        for name in files:
            if name.endswith(".md"):
                yield os.path.relpath(os.path.join(folder, name), root)
