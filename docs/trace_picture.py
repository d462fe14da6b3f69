#!/usr/bin/env python3
"""Draws a part of a trace as an SVG: what iris-ctl trace, IRIS_TRACE or iris.trace wrote.

    docs/trace_picture.py trace.json picture.svg --from 120.5 --to 140 --rows 4

Times are microseconds from the beginning of the file. Each row is a thread of the host or a block of a kernel.
"""

import argparse
import json
import sys

INK, FRAME = "#222222", "#c8c8c8"
COLORS = {"collective": "#9cc3ea", "wait": "#f3c98b", "user": "#b5dcae", "host": "#d8c7ec", "rma": "#a8dcd9",
          "irisd": "#e8a5a5"}
LEFT, WIDTH, ROW, GAP, TOP, CHARACTER = 150, 900, 22, 6, 46, 6.4


def escape(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def rows_of(trace, begin, end, rows_max, hosts):
    """[(rank, [(name of the row, its boxes)])]: what there is to see between the two times."""
    processes, threads, boxes = {}, {}, {}
    for event in trace["traceEvents"]:
        where = (event["pid"], event.get("tid"))
        if event["ph"] == "M" and event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "M":
            threads[where] = event["args"]["name"]
        elif event["ph"] == "X" and event["ts"] < end and event["ts"] + event["dur"] > begin:
            boxes.setdefault(where, []).append(event)
    found = []
    for pid in sorted(processes):
        here = [(threads[where], boxes[where]) for where in sorted(boxes)
                if where[0] == pid and (hosts or not threads[where].startswith("host"))]
        if here:
            found.append((processes[pid], here[:rows_max]))
    return found


def depths(boxes):
    """Each box with how many are around it."""
    around = []
    for box in sorted(boxes, key=lambda b: (b["ts"], -b["dur"])):
        while around and around[-1] <= box["ts"] + 1e-9:
            around.pop()
        yield box, len(around)
        around.append(box["ts"] + box["dur"])


def step_of(span):
    """A round distance between two marks of the scale, for some ten of them."""
    return next(float(f"{digit}e{power}") for power in range(-3, 18) for digit in (1, 2, 5)
                if span / float(f"{digit}e{power}") <= 12)


def draw(trace, begin, end, rows_max=4, hosts=True, title="", names=None):
    """The SVG."""
    names = names or {}
    scale = WIDTH / (end - begin)
    parts, y = [], TOP
    shown = rows_of(trace, begin, end, rows_max, hosts)
    for process, rows in shown:
        parts.append(f'<text x="8" y="{y + 14}" font-weight="bold">{escape(process.split(" (")[0])}</text>')
        for name, boxes in rows:
            parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW}" fill="#f7f7f7"/>')
            for box, depth in depths(boxes):
                left = max(box["ts"], begin)
                right = min(box["ts"] + box["dur"], end)
                x, width = LEFT + (left - begin) * scale, max((right - left) * scale, 0.6)
                inset = min(5 * depth, 12)
                label = names.get(f'{box["name"]}@{box["args"].get("peer")}', names.get(box["name"], box["name"]))
                parts.append(f'<rect x="{x:.2f}" y="{y + inset}" width="{width:.2f}" height="{ROW - inset}" '
                             f'fill="{COLORS.get(box["cat"], "#dddddd")}" stroke="{INK}" stroke-width="0.4">'
                             f'<title>{escape(label)}, {box["dur"]:g} us</title></rect>')
                if width > CHARACTER * len(label) + 4:
                    parts.append(f'<text x="{x + width / 2:.2f}" y="{y + inset / 2 + 15:g}" '
                                 f'text-anchor="middle" font-size="11">{escape(label)}</text>')
            y += ROW + 2
        y += GAP
    step, at, scale_parts = step_of(end - begin), 0.0, []
    while at <= end - begin + 1e-9:
        x = LEFT + at * scale
        scale_parts.append(f'<path d="M{x:.2f} {TOP - 6} V{y - GAP}" stroke="{FRAME}" stroke-width="0.6"/>'
                           f'<text x="{x:.2f}" y="{TOP - 10}" text-anchor="middle" font-size="11">{at:g}</text>')
        at = round(at + step, 9)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{y + 6}" '
        f'viewBox="0 0 {LEFT + WIDTH + 20} {y + 6}" font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{LEFT + WIDTH + 20}" height="{y + 6}" fill="#ffffff"/>',
        f'<text x="8" y="18" font-size="13">{escape(title)}</text>',
        f'<text x="{LEFT + WIDTH}" y="18" text-anchor="end" font-size="11">microseconds</text>',
        *scale_parts, *parts, "</svg>", ""])


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("trace")
    parser.add_argument("svg")
    parser.add_argument("--from", dest="begin", type=float, required=True, help="microseconds")
    parser.add_argument("--to", dest="end", type=float, required=True, help="microseconds")
    parser.add_argument("--rows", type=int, default=4, help="of each rank [4]")
    parser.add_argument("--no-host", action="store_true", help="blocks of kernels alone")
    parser.add_argument("--title", default="")
    parser.add_argument("--name", action="append", default=[], metavar="OLD=NEW",
                        help="another word for a box; for those of one peer: OLD@PEER=NEW")
    given = parser.parse_args(arguments)
    if not given.begin < given.end:
        parser.error("--from must be less than --to")
    with open(given.trace, encoding="ascii") as file:
        trace = json.load(file)
    names = dict(name.split("=", 1) for name in given.name if "=" in name)
    with open(given.svg, "w", encoding="utf-8") as file:
        file.write(draw(trace, given.begin, given.end, given.rows, not given.no_host, given.title, names))


if __name__ == "__main__":
    main(sys.argv[1:])
