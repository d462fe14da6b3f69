#!/usr/bin/env python3
"""Draws the chart of the five patterns of overlap from measured figures: which one is fastest for which shape.

    examples/run_all.py --backend BACKEND --ranks 8 --only 08,11 --sizes chart --json figures.json
    docs/overlap_chart.py figures.json chart.svg --title "8 devices, bf16"

The file is what examples/run_all.py --json writes. For each n and k there is a panel, with m to the right, and for each
pattern how many times as fast as the bulk-synchronous one it was. Shapes that lack the bulk-synchronous figure are left
out, and so are runs that failed.
"""

import argparse
import json
import math
import sys

import svg

# The name and the color of an example and its first argument, if that is no number.
PATTERNS = {
    ("11a_overlap_streams", "bulk"): ("bulk-synchronous", "#222222"),
    ("11a_overlap_streams", "streams"): ("two streams", "#2f72b8"),
    ("08_gemm_all_scatter", ""): ("sequential", "#d98a1f"),
    ("11b_overlap_blocks", ""): ("specialized blocks", "#3f9a3a"),
    ("11c_overlap_warps", ""): ("specialized warps", "#8a55b5"),
}
BULK = "bulk-synchronous"
LEFT, PANEL, HEIGHT, TOP, GAP = 50, 260, 200, 70, 40


def times_of(rows, ranks):
    """{(n, k): {m: {pattern: microseconds}}} of the rows with so many ranks. ValueError says which row is wrong."""
    found = {}
    for number, row in enumerate(rows):
        try:
            words = list(row["arguments"])
            way = words.pop(0) if words and not words[0].isdigit() else ""
            pattern = PATTERNS.get((row["example"], way))
            if pattern is None or row["ranks"] != ranks or row["result"] != "ok":
                continue
            m, n, k = (int(word) for word in words)
            figure = float(row["figure"])
            if row["unit"] != "us" or not 0 < figure < math.inf:
                raise ValueError(f"a figure of {row['figure']} {row['unit']}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"row {number}: {type(error).__name__}: {error}") from error
        found.setdefault((n, k), {}).setdefault(m, {})[pattern[0]] = figure
    whole = {nk: {m: times for m, times in sorted(by_m.items()) if BULK in times} for nk, by_m in found.items()}
    return {nk: by_m for nk, by_m in sorted(whole.items()) if by_m}


def draw(rows, ranks, title=""):
    """The SVG. ValueError: there is nothing to draw, or a row is wrong."""
    panels = times_of(rows, ranks)
    if not panels:
        raise ValueError(f"no shape with a figure of 11a_overlap_streams bulk on {ranks} ranks")
    most = max(times[BULK] / us for by_m in panels.values() for times in by_m.values() for us in times.values())
    most = max(math.ceil(most * 4) / 4, 1.25)
    bottom = TOP + HEIGHT + 34
    p = svg.Picture(LEFT + len(panels) * (PANEL + GAP), bottom + 16 * len(PATTERNS) + 8, fill=svg.INK)
    p.text(8, 18, title, "start", font_size=13)
    p.text(8, 38, f"times as fast as {BULK}, over m", "start", font_size=11)
    for i, ((n, k), by_m) in enumerate(panels.items()):
        left = LEFT + i * (PANEL + GAP)
        x_of = {m: left + PANEL * (j + 0.5) / len(by_m) for j, m in enumerate(by_m)}
        p.rect(left, TOP, PANEL, HEIGHT, "#ffffff", stroke=svg.FRAME)
        p.text(left + PANEL // 2, TOP - 8, f"n = {n}, k = {k}")
        for step in range(0, int(most * 2) + 1):
            y = TOP + HEIGHT * (1 - step / 2 / most)
            p.add("path", d=f"M{left} {y:.2f} h{PANEL}", stroke=svg.FRAME, stroke_width=0.6)
            p.text(left - 6, y + 4, f"{step / 2:g}", "end", font_size=11)
        for m, x in x_of.items():
            p.text(x, TOP + HEIGHT + 16, m, font_size=11)
        for name, color in PATTERNS.values():
            points = [(x_of[m], TOP + HEIGHT * (1 - times[BULK] / times[name] / most), times[name])
                      for m, times in by_m.items() if name in times]
            p.polyline([(x, y) for x, y, _ in points], color, stroke_width=1.6)
            for x, y, us in points:
                p.add("circle", f"<title>{name}, {us:g} us</title>", cx=x, cy=y, r=3, fill=color)
    for i, (name, color) in enumerate(PATTERNS.values()):
        p.rect(LEFT, bottom + 16 * i, 20, 4, color)
        p.text(LEFT + 28, bottom + 16 * i + 6, name, "start")
    return p.svg()


def best(rows, ranks):
    """A line for each shape: the fastest pattern."""
    for (n, k), by_m in times_of(rows, ranks).items():
        for m, times in by_m.items():
            name, us = min(times.items(), key=lambda item: item[1])
            yield f"m {m}, n {n}, k {k}: {name}, {us:g} us, {times[BULK] / us:.2f} times as fast as {BULK}"


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures")
    parser.add_argument("svg")
    parser.add_argument("--ranks", type=int, help="[the largest number of ranks in the file]")
    parser.add_argument("--title", default="")
    given = parser.parse_args(arguments)
    try:
        with open(given.figures, encoding="utf-8") as file:
            rows = json.load(file)
        if not rows:
            raise ValueError("there is no row in it: examples/run_all.py --json writes some")
        ranks = given.ranks or max(int(row["ranks"]) for row in rows)
        chart = draw(rows, ranks, given.title)
    except (OSError, ValueError, TypeError, KeyError) as error:
        parser.error(f"{given.figures}: {error}")
    with open(given.svg, "w", encoding="utf-8") as file:
        file.write(chart)
    print("\n".join(best(rows, ranks)))


if __name__ == "__main__":
    main(sys.argv[1:])
