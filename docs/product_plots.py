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

import svg
from svg import Malformed

COLUMNS = ("operation", "ranks", "m", "n", "k", "wanted", "variant", "TFLOP/s", "hidden")
COLORS = {"auto": "#2b6cb0", "fused": "#c05621", "pair": "#718096", "persistent": "#2f855a",
          "copy_engine": "#6b46c1"}
OTHER = "#805ad5"
LABEL, BARS, GAP, BAR, PAD, NUMBER = 300, 340, 90, 13, 12, 60


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


def draw(rows):
    """The picture as SVG, with a group of bars for each operation, shape and number of ranks."""
    groups = {}
    for row in rows:
        title = f"{row['operation']} {row['m']}×{row['n']}×{row['k']}, {row['ranks']} ranks"
        groups.setdefault(title, []).append(row)
    most = max(row["TFLOP/s"] for row in rows) or 1
    second = LABEL + BARS + GAP
    p = svg.Picture(second + BARS + NUMBER, font_size=11)
    p.text(LABEL, 18, "TFLOP/s of one rank", "start", font_weight="bold")
    p.text(second, 18, "share of the communication that is hidden", "start", font_weight="bold")
    for i, name in enumerate(dict.fromkeys(row["wanted"] for row in rows)):
        p.rect(LABEL + 90 * i, 26, 10, 10, COLORS.get(name, OTHER))
        p.text(LABEL + 90 * i + 14, 35, name, "start")
    y = 46
    for title, members in groups.items():
        p.text(LABEL - 8, y + BAR * len(members) / 2 + 4, title, "end")
        for row in members:
            ran = f" ({row['variant']})" if row["variant"] != row["wanted"] else ""
            for x, part, words in ((LABEL, row["TFLOP/s"] / most, f"{row['TFLOP/s']:.3g}{ran}"),
                                   (second, min(row["hidden"], 1), f"{100 * row['hidden']:.0f} %")):
                p.rect(x, y, f"{part * BARS:.1f}", BAR - 2, COLORS.get(row["wanted"], OTHER))
                p.text(x + part * BARS + 4, y + BAR - 4, words, "start")
            y += BAR
        y += PAD
    p.height = y
    return p.svg()


def main(argv):
    parser = argparse.ArgumentParser(description="Draws what iris_bench matmul --json measured.")
    parser.add_argument("result")
    parser.add_argument("out")
    parser.add_argument("--ranks", type=int)
    arguments = parser.parse_args(argv)
    return svg.draw_file(arguments.result, arguments.out, lambda text: draw(rows_of(text, arguments.ranks)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
