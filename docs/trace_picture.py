#!/usr/bin/env python3
"""Draws a part of a trace as an SVG: what iris-ctl trace, IRIS_TRACE or iris.trace wrote.

    docs/trace_picture.py trace.json picture.svg --from 120.5 --to 140 --rows 4

Times are microseconds from the beginning of the file. Each row is a thread of the host or a block of a kernel.
"""

import argparse
import json
import sys
from xml.sax.saxutils import escape

import svg

COLORS = {"collective": "#9cc3ea", "wait": "#f3c98b", "user": "#b5dcae", "host": "#d8c7ec", "rma": "#a8dcd9",
          "irisd": "#e8a5a5"}
LEFT, WIDTH, ROW, GAP, TOP, CHARACTER = 150, 900, 22, 6, 46, 6.4


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
    shown = rows_of(trace, begin, end, rows_max, hosts)
    bottom = TOP + sum(len(rows) * (ROW + 2) + GAP for _, rows in shown)
    p = svg.Picture(LEFT + WIDTH + 20, bottom + 6, fill=svg.INK)
    p.text(8, 18, title, "start", font_size=13)
    p.text(LEFT + WIDTH, 18, "microseconds", "end", font_size=11)
    step, at = step_of(end - begin), 0.0
    while at <= end - begin + 1e-9:
        x = LEFT + at * scale
        p.add("path", d=f"M{x:.2f} {TOP - 6} V{bottom - GAP}", stroke=svg.FRAME, stroke_width=0.6)
        p.text(x, TOP - 10, f"{at:g}", font_size=11)
        at = round(at + step, 9)
    y = TOP
    for process, rows in shown:
        p.text(8, y + 14, process.split(" (")[0], "start", font_weight="bold")
        for name, boxes in rows:
            p.text(LEFT - 8, y + 15, name, "end")
            p.rect(LEFT, y, WIDTH, ROW, "#f7f7f7")
            for box, depth in depths(boxes):
                left, right = max(box["ts"], begin), min(box["ts"] + box["dur"], end)
                x, width = LEFT + (left - begin) * scale, max((right - left) * scale, 0.6)
                inset = min(5 * depth, 12)
                label = names.get(f'{box["name"]}@{box["args"].get("peer")}', names.get(box["name"], box["name"]))
                p.rect(x, y + inset, width, ROW - inset, COLORS.get(box["cat"], "#dddddd"),
                       f'<title>{escape(label)}, {box["dur"]:g} us</title>', stroke=svg.INK, stroke_width=0.4)
                if width > CHARACTER * len(label) + 4:
                    p.text(x + width / 2, y + inset / 2 + 15, label, font_size=11)
            y += ROW + 2
        y += GAP
    return p.svg()


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
    names = dict(name.split("=", 1) for name in given.name if "=" in name)
    return svg.draw_file(given.trace, given.svg, lambda text: draw(
        json.loads(text), given.begin, given.end, given.rows, not given.no_host, given.title, names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
