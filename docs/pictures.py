#!/usr/bin/env python3
"""Draws the pictures of the documents: pictures.py FOLDER writes each as an SVG, the same bytes in every run."""

import os
import sys

import svg

MEMORY, PROCESS, DAEMON = "#cfe3f7", "#f5f0e1", "#dcefd9"


class Picture(svg.Picture):
    """Boxes with text, and arrows."""

    head = ('<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>',)

    def box(self, x, y, width, height, text, fill):
        self.rect(x, y, width, height, fill, stroke=svg.INK)
        lines = text.split("\n")
        for i, line in enumerate(lines):
            self.text(x + width // 2, y + height // 2 + 5 + 16 * i - 8 * (len(lines) - 1), line)

    def arrow(self, x1, y1, x2, y2, text=""):
        self.add("path", d=f"M{x1} {y1} L{x2} {y2}", stroke=svg.INK, marker_end="url(#tip)")
        if text:
            self.text((x1 + x2) // 2, (y1 + y2) // 2 - 6, text)


def heap_and_window():
    p = Picture(720, 300, font_size=13)
    for rank in range(3):
        x = 160 + 180 * rank
        p.text(x + 80, 24, f"heap of rank {rank}")
        p.box(x, 34, 160, 50, "", MEMORY)
        p.box(x + 50, 34, 40, 50, "x", "#9cc3ea")
        p.arrow(x + 80, 86, x + 80, 146)
    p.text(80, 56, "memory,")
    p.text(80, 72, "owned by irisd")
    p.text(80, 178, "window of a rank,")
    p.text(80, 194, "in its addresses")
    p.box(160, 150, 520, 66, "", PROCESS)
    for rank in range(3):
        x = 160 + 180 * rank
        p.box(x, 150, 160, 66, "", MEMORY)
        p.box(x + 50, 150, 40, 66, "x", "#9cc3ea")
    p.arrow(160, 232, 210, 232)
    p.text(185, 250, "offset")
    p.arrow(160, 268, 340, 268)
    p.text(250, 286, "stride")
    p.text(360, 250, "x on rank p = base + p × stride + offset", "start")
    return p


def lanes(names, height):
    """A picture with a column for each party, and the middles of the columns."""
    p = Picture(720, height, font_size=13)
    middles = [120 + 240 * i for i in range(len(names))]
    for middle, (name, fill) in zip(middles, names):
        p.add("path", d=f"M{middle} 50 L{middle} {height - 14}", stroke=svg.INK, stroke_dasharray="4 4")
        p.box(middle - 80, 14, 160, 36, name, fill)
    return p, middles


def attach():
    p, (zero, irisd, one) = lanes([("rank 0", PROCESS), ("irisd", DAEMON), ("rank 1", PROCESS)], 330)
    p.arrow(zero, 84, irisd, 84, "connect, join the job")
    p.arrow(one, 104, irisd, 104, "connect, join the job")
    p.box(irisd - 95, 120, 190, 44, "all are here:\ncreates their memory", DAEMON)
    p.arrow(irisd, 190, zero, 190, "descriptors of all heaps")
    p.arrow(irisd, 190, one, 190, "descriptors of all heaps")
    p.box(zero - 80, 204, 160, 30, "maps the window", PROCESS)
    p.box(one - 80, 204, 160, 30, "maps the window", PROCESS)
    p.arrow(zero, 262, irisd, 262, "mapped")
    p.arrow(one, 262, irisd, 262, "mapped")
    p.arrow(irisd, 300, zero, 300, "go")
    p.arrow(irisd, 300, one, 300, "go")
    return p


def signal():
    p, (sender, heap, receiver) = lanes(
        [("kernel of rank 0", PROCESS), ("heap of rank 1", MEMORY), ("kernel of rank 1", PROCESS)], 290)
    p.arrow(receiver, 84, heap, 84, "wait: signal ≥ 5?   no")
    p.arrow(sender, 114, heap, 114, "PutSignal: first the data")
    p.box(heap - 60, 126, 120, 28, "data is here", MEMORY)
    p.arrow(sender, 182, heap, 182, "then the signal := 5 (release)")
    p.arrow(receiver, 212, heap, 212, "signal ≥ 5?   yes (acquire)")
    p.arrow(heap, 252, receiver, 252, "reads the data")
    return p


def death():
    p, (dead, irisd, alive) = lanes([("rank 1", PROCESS), ("irisd", DAEMON), ("rank 0", PROCESS)], 300)
    p.box(alive - 85, 64, 170, 44, "its kernel waits\nfor rank 1", PROCESS)
    p.box(dead - 60, 64, 120, 44, "dies", "#f3c6c6")
    p.arrow(dead, 130, irisd, 130, "its socket hangs up")
    p.box(irisd - 85, 144, 170, 30, "sets the abort word", DAEMON)
    p.arrow(irisd, 196, alive, 196, "the wait sees it: kAborted")
    p.box(alive - 105, 210, 210, 44, "Health() names\nthe rank and its process", PROCESS)
    p.box(irisd - 100, 246, 200, 44, "takes the memory back\nwhen the last has left", DAEMON)
    return p


PICTURES = {f"{draw.__name__}.svg": draw for draw in (heap_and_window, attach, signal, death)}


def main(argv):
    for name, draw in PICTURES.items():
        with open(os.path.join(argv[1], name), "w", encoding="utf-8") as file:
            file.write(draw().svg())


if __name__ == "__main__":
    main(sys.argv)
