#!/usr/bin/env python3
"""Draws what `restart_bench soak` counted: a row for each column over the restarts, from 0 to a little more than its
most.

    soak_chart.py SOAK.csv OUT.svg
"""

import csv
import sys
from xml.sax.saxutils import escape

LABEL, WIDTH, HEIGHT, GAP, TOP = 160, 640, 44, 16, 12


class Malformed(Exception):
    """The file is no output of restart_bench soak."""


def columns_of(text):
    """(restarts, [(name, its values)])"""
    rows = list(csv.reader(text.splitlines()))
    try:
        numbers = [[float(cell) for cell in row] for row in rows[1:]]
    except ValueError as error:
        raise Malformed(str(error)) from error
    if len(numbers) < 2 or rows[0][0] != "restarts" or any(len(row) != len(rows[0]) for row in numbers):
        raise Malformed("no lines of numbers below a line of names, the first of which is 'restarts'")
    restarts, *others = zip(*numbers)
    if not restarts[-1] > 0 or not all(0 <= value < 1e15 for values in others for value in values):
        raise Malformed("numbers that nobody counts")
    return restarts, list(zip(rows[0][1:], others))


def draw(text):
    """The picture as SVG."""
    restarts, columns = columns_of(text)
    width, height = LABEL + WIDTH + 90, TOP + len(columns) * (HEIGHT + GAP) + 20
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{width}" height="{height}" fill="white"/>']
    y = TOP
    for name, values in columns:
        most = max(max(values), 1) * 1.1
        points = " ".join(f"{LABEL + WIDTH * x / restarts[-1]:.1f},{y + HEIGHT * (1 - value / most):.1f}"
                          for x, value in zip(restarts, values))
        out += [f'<line x1="{LABEL}" y1="{y + HEIGHT}" x2="{LABEL + WIDTH}" y2="{y + HEIGHT}" stroke="#ccc"/>',
                f'<text x="{LABEL - 8}" y="{y + HEIGHT - 4}" text-anchor="end">{escape(name)}</text>',
                f'<polyline points="{points}" fill="none" stroke="#2b6cb0"/>',
                f'<text x="{LABEL + WIDTH + 6}" y="{y + HEIGHT - 4}">{min(values):,.0f}–{max(values):,.0f}</text>']
        y += HEIGHT + GAP
    out.append(f'<text x="{LABEL + WIDTH}" y="{y + 6}" text-anchor="end">{restarts[-1]:,.0f} restarts</text>')
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
