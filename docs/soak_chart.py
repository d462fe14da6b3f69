#!/usr/bin/env python3
"""Draws what irisd and its parent process hold while irisd is killed again and again: a row for each number that
tests/integration/restart_test prints, from 0 to a little more than its most.

    IRIS_TEST_OPS=10000 restart_test > OUTPUT; soak_chart.py OUTPUT OUT.svg
"""

import re
import sys

import svg
from svg import Malformed

LABEL, WIDTH, HEIGHT, GAP, TOP = 160, 640, 44, 16, 12
LINE = re.compile(r" *(\d+) kills: irisd +(\d+) KiB +(\d+) descriptors +(\d+) threads \| supervisor +(\d+) KiB +(\d+) "
                  r"descriptors +\d+ threads \| journal +(\d+) bytes ")
NAMES = ("irisd RSS KiB", "irisd descriptors", "irisd threads", "parent RSS KiB", "parent descriptors", "stored bytes")


def draw(text):
    """The picture as SVG."""
    rows = [[int(number) for number in match.groups()] for match in map(LINE.match, text.splitlines()) if match]
    if len(rows) < 2:
        raise Malformed("fewer than two lines of numbers, of which restart_test prints one for every 100 kills")
    kills, *columns = zip(*rows)
    right, y = LABEL + WIDTH, TOP
    p = svg.Picture(right + 90, TOP + len(columns) * (HEIGHT + GAP) + 20)
    for name, values in zip(NAMES, columns):
        most = max(max(values), 1) * 1.1
        p.add("line", x1=LABEL, y1=y + HEIGHT, x2=right, y2=y + HEIGHT, stroke="#ccc")
        p.text(LABEL - 8, y + HEIGHT - 4, name, "end")
        p.polyline([(LABEL + WIDTH * x / max(kills), y + HEIGHT * (1 - value / most))
                    for x, value in zip(kills, values)], "#2b6cb0")
        p.text(right + 6, y + HEIGHT - 4, f"{min(values):,.0f}–{max(values):,.0f}", "start")
        y += HEIGHT + GAP
    p.text(right, y + 6, f"{max(kills):,} kills", "end")
    return p.svg()


def main(argv):
    if len(argv) != 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    return svg.draw_file(*argv, draw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
