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

INK, FRAME = "#222222", "#c8c8c8"
# Of an example and its first argument, if that is no number: the name and the color.
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
    whole = {nk: {m: times for m, times in by_m.items() if BULK in times} for nk, by_m in found.items()}
    return {nk: by_m for nk, by_m in sorted(whole.items()) if by_m}


def draw(rows, ranks, title=""):
    """The SVG. ValueError: there is nothing to draw, or a row is wrong."""
    panels = times_of(rows, ranks)
    if not panels:
        raise ValueError(f"no shape with a figure of 11a_overlap_streams bulk on {ranks} ranks")
    most = max(times[BULK] / us for by_m in panels.values() for times in by_m.values() for us in times.values())
    most = max(math.ceil(most * 4) / 4, 1.25)
    parts = []
    for i, ((n, k), by_m) in enumerate(panels.items()):
        left = LEFT + i * (PANEL + GAP)
        sizes = sorted(by_m)

        def x_of(m, left=left, sizes=sizes):
            return left + PANEL * (sizes.index(m) + 0.5) / len(sizes)

        def y_of(ratio):
            return TOP + HEIGHT * (1 - ratio / most)

        parts.append(f'<rect x="{left}" y="{TOP}" width="{PANEL}" height="{HEIGHT}" fill="#ffffff" stroke="{FRAME}"/>')
        parts.append(f'<text x="{left + PANEL / 2:g}" y="{TOP - 8}" text-anchor="middle">n = {n}, k = {k}</text>')
        for step in range(0, int(most * 2) + 1):
            y = y_of(step / 2)
            parts.append(f'<path d="M{left} {y:.2f} h{PANEL}" stroke="{FRAME}" stroke-width="0.6"/>')
            parts.append(f'<text x="{left - 6}" y="{y + 4:.2f}" text-anchor="end" font-size="11">{step / 2:g}</text>')
        for m in sizes:
            parts.append(f'<text x="{x_of(m):.2f}" y="{TOP + HEIGHT + 16}" text-anchor="middle" '
                         f'font-size="11">{m}</text>')
        for name, color in PATTERNS.values():
            points = [(x_of(m), y_of(by_m[m][BULK] / by_m[m][name]), by_m[m][name]) for m in sizes if name in by_m[m]]
            parts.append('<polyline fill="none" stroke="%s" stroke-width="1.6" points="%s"/>' % (
                color, " ".join(f"{x:.2f},{y:.2f}" for x, y, _ in points)))
            parts.extend(f'<circle cx="{x:.2f}" cy="{y:.2f}" r="3" fill="{color}"><title>{name}, {us:g} us</title>'
                         '</circle>' for x, y, us in points)
    width, bottom = LEFT + len(panels) * (PANEL + GAP), TOP + HEIGHT + 34
    for i, (name, color) in enumerate(PATTERNS.values()):
        y = bottom + 16 * i
        parts.append(f'<rect x="{LEFT}" y="{y}" width="20" height="4" fill="{color}"/>'
                     f'<text x="{LEFT + 28}" y="{y + 6}">{name}</text>')
    height = bottom + 16 * len(PATTERNS) + 8
    title = title.replace("&", "&amp;").replace("<", "&lt;")
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="18" font-size="13">{title}</text>',
        '<text x="8" y="38" font-size="11">times as fast as bulk-synchronous, over m</text>', *parts, "</svg>", ""])


def best(rows, ranks):
    """A line for each shape: the fastest pattern."""
    for (n, k), by_m in times_of(rows, ranks).items():
        for m in sorted(by_m):
            name, us = min(by_m[m].items(), key=lambda item: item[1])
            yield f"m {m}, n {n}, k {k}: {name}, {us:g} us, {by_m[m][BULK] / us:.2f} times as fast as {BULK}"


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
        svg = draw(rows, ranks, given.title)
    except (OSError, ValueError, TypeError, KeyError) as error:
        parser.error(f"{given.figures}: {error}")
    with open(given.svg, "w", encoding="utf-8") as file:
        file.write(svg)
    print("\n".join(best(rows, ranks)))


if __name__ == "__main__":
    main(sys.argv[1:])
