#!/usr/bin/env python3
"""Draws what `iris_bench matmul --json` measured.

    product_plots.py RESULT.json OUT.svg [--ranks N]

A row of bars for each operation and shape: TFLOP/s of one rank on the left, for each variant, and the part of the
communication that is hidden behind the product on the right. Times are those in graphs. Several numbers of ranks are
drawn one after another; --ranks draws one of them.
"""

import argparse
import json
import sys
from xml.sax.saxutils import escape

COLUMNS = ("operation", "ranks", "m", "n", "k", "wanted", "variant", "TFLOP/s", "hidden")
COLORS = {"auto": "#2b6cb0", "fused": "#c05621", "pair": "#718096", "persistent": "#2f855a",
          "copy_engine": "#6b46c1"}
OTHER = "#805ad5"
LABEL, BARS, GAP, BAR, PAD, NUMBER = 300, 340, 90, 13, 12, 60


class Malformed(Exception):
    """The file is no report of iris_bench matmul."""


def rows_of(text, ranks=None):
    """The rows of the table, checked."""
    try:
        report = json.loads(text)
        rows = report["tables"]["matmul"]["rows"]
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed("no report of iris_bench matmul --json") from error
    if not isinstance(rows, list):
        raise Malformed("no report of iris_bench matmul --json: its rows are no list")
    for number, row in enumerate(rows):
        for column in COLUMNS:
            if not isinstance(row, dict) or column not in row:
                raise Malformed(f"row {number} has no {column!r}")
        for column in ("TFLOP/s", "hidden"):
            value = row[column]
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
                raise Malformed(f"row {number} has {value!r} as its {column!r}")
    chosen = [row for row in rows if ranks is None or row["ranks"] == ranks]
    if not chosen:
        raise Malformed("the report has no rows" + ("" if ranks is None else f" of {ranks} ranks"))
    return chosen


def groups_of(rows):
    """(title, its rows) of each operation, shape and number of ranks, as they come."""
    groups = {}
    for row in rows:
        title = f"{row['operation']} {row['m']}×{row['n']}×{row['k']}, {row['ranks']} ranks"
        groups.setdefault(title, []).append(row)
    return list(groups.items())


def draw(rows):
    """The picture as SVG."""
    groups = groups_of(rows)
    most = max(row["TFLOP/s"] for row in rows) or 1
    second = LABEL + BARS + GAP
    width = second + BARS + NUMBER
    out = []

    def text(x, y, words, anchor="start", weight="normal"):
        out.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>')

    def bar(x, y, part, color, words):
        out.append(f'<rect x="{x:g}" y="{y:g}" width="{max(part, 0) * BARS:.1f}" height="{BAR - 2}" fill="{color}"/>')
        text(x + max(part, 0) * BARS + 4, y + BAR - 4, words)

    y = 46
    text(LABEL, 18, "TFLOP/s of one rank", weight="bold")
    text(second, 18, "share of the communication that is hidden", weight="bold")
    x = LABEL
    for name in dict.fromkeys(row["wanted"] for row in rows):
        out.append(f'<rect x="{x}" y="26" width="10" height="10" fill="{COLORS.get(name, OTHER)}"/>')
        text(x + 14, 35, name)
        x += 90
    for title, members in groups:
        text(LABEL - 8, y + BAR * len(members) / 2 + 4, title, anchor="end")
        for row in members:
            color = COLORS.get(row["wanted"], OTHER)
            ran = f" ({row['variant']})" if row["variant"] != row["wanted"] else ""
            bar(LABEL, y, row["TFLOP/s"] / most, color, f"{row['TFLOP/s']:.3g}{ran}")
            bar(second, y, min(row["hidden"], 1), color, f"{100 * row['hidden']:.0f} %")
            y += BAR
        y += PAD
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y:g}" viewBox="0 0 {width} {y:g}" '
            'font-family="sans-serif" font-size="11">')
    return "\n".join([head, f'<rect width="{width}" height="{y:g}" fill="white"/>', *out, "</svg>", ""])


def main(argv):
    parser = argparse.ArgumentParser(description="Draws what iris_bench matmul --json measured.")
    parser.add_argument("result")
    parser.add_argument("out")
    parser.add_argument("--ranks", type=int)
    arguments = parser.parse_args(argv)
    try:
        with open(arguments.result, encoding="utf-8") as file:
            svg = draw(rows_of(file.read(), arguments.ranks))
        with open(arguments.out, "w", encoding="utf-8") as file:
            file.write(svg)
    except (OSError, Malformed) as error:
        print(f"product_plots.py: {arguments.result}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
