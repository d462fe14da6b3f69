#!/usr/bin/env python3
"""Draws what irisd and its parent process hold while irisd is killed again and again: a row for each number that
tests/integration/restart_test prints, from 0 to a little more than its most.

    IRIS_TEST_OPS=10000 restart_test > OUTPUT; soak_chart.py OUTPUT OUT.svg
"""

import re
import sys
from xml.sax.saxutils import escape

LABEL, WIDTH, HEIGHT, GAP, TOP = 160, 640, 44, 16, 12
LINE = re.compile(r" *(\d+) kills: irisd +(\d+) KiB +(\d+) descriptors +(\d+) threads \| supervisor +(\d+) KiB +(\d+) "
                  r"descriptors +\d+ threads \| journal +(\d+) bytes ")
NAMES = ("irisd RSS KiB", "irisd descriptors", "irisd threads", "parent RSS KiB", "parent descriptors", "stored bytes")


class Malformed(Exception):
    """The file is no output of restart_test, or of too few kills."""


def columns_of(text):
    """(kills, [(name, its values)])"""
    rows = [[int(number) for number in match.groups()] for match in map(LINE.match, text.splitlines()) if match]
    if len(rows) < 2:
        raise Malformed("fewer than two lines of numbers, of which restart_test prints one for every 100 kills")
    kills, *others = zip(*rows)
    return kills, list(zip(NAMES, others))


def draw(text):
    """The picture as SVG."""
    kills, columns = columns_of(text)
    width, height = LABEL + WIDTH + 90, TOP + len(columns) * (HEIGHT + GAP) + 20
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{width}" height="{height}" fill="white"/>']
    y = TOP
    for name, values in columns:
        most = max(max(values), 1) * 1.1
        points = " ".join(f"{LABEL + WIDTH * x / max(kills):.1f},{y + HEIGHT * (1 - value / most):.1f}"
                          for x, value in zip(kills, values))
        out += [f'<line x1="{LABEL}" y1="{y + HEIGHT}" x2="{LABEL + WIDTH}" y2="{y + HEIGHT}" stroke="#ccc"/>',
                f'<text x="{LABEL - 8}" y="{y + HEIGHT - 4}" text-anchor="end">{escape(name)}</text>',
                f'<polyline points="{points}" fill="none" stroke="#2b6cb0"/>',
                f'<text x="{LABEL + WIDTH + 6}" y="{y + HEIGHT - 4}">{min(values):,.0f}–{max(values):,.0f}</text>']
        y += HEIGHT + GAP
    out.append(f'<text x="{LABEL + WIDTH}" y="{y + 6}" text-anchor="end">{max(kills):,} kills</text>')
    return "\n".join([*out, "</svg>", ""])


def main(argv):
    if len(argv) != 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        with open(argv[0], encoding="utf-8") as file:
            svg = draw(file.read())
        with open(argv[1], "w", encoding="utf-8") as file:
            file.write(svg)
    except (OSError, Malformed) as error:
        print(f"soak_chart.py: {argv[0]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
