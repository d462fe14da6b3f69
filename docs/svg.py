"""An SVG of boxes, lines and text: what the programs of this folder draw with."""

import os
import sys
from xml.sax.saxutils import escape

INK, FRAME = "#222222", "#c8c8c8"


class Malformed(Exception):
    """The file is not one that the program draws."""


def element(tag, content=None, **attributes):
    """`content` is markup. The attribute stroke_width is written stroke-width, and a float with two digits."""
    written = "".join(f' {name.replace("_", "-")}="{f"{value:.2f}" if isinstance(value, float) else value}"'
                      for name, value in attributes.items())
    return f"<{tag}{written}/>" if content is None else f"<{tag}{written}>{content}</{tag}>"


class Picture:
    """Elements on a white ground, each in front of those before it. `style` is of the whole picture."""

    head = ()

    def __init__(self, width, height=0, font_size=12, **style):
        self.width, self.height = width, height
        self.style = {"font_size": font_size, **style}
        self.parts = []

    def add(self, *arguments, **attributes):
        self.parts.append(element(*arguments, **attributes))

    def text(self, x, y, text, anchor="middle", **style):
        self.add("text", escape(str(text)), x=x, y=y, text_anchor=anchor, **style)

    def rect(self, x, y, width, height, fill, content=None, **style):
        self.add("rect", content, x=x, y=y, width=width, height=height, fill=fill, **style)

    def polyline(self, points, color, **style):
        self.add("polyline", points=" ".join(f"{x:.2f},{y:.2f}" for x, y in points), fill="none", stroke=color, **style)

    def svg(self):
        size = {"width": self.width, "height": self.height}
        lines = ["", *self.head, element("rect", **size, fill="#ffffff"), *self.parts, ""]
        return element("svg", "\n".join(lines), xmlns="http://www.w3.org/2000/svg", **size,
                       viewBox=f"0 0 {self.width} {self.height}", font_family="sans-serif", **self.style) + "\n"


def draw_file(source, target, draw):
    """Writes what `draw` makes of the text of a file. Returns the exit code."""
    try:
        with open(source, encoding="utf-8") as file:
            svg = draw(file.read())
        with open(target, "w", encoding="utf-8") as file:
            file.write(svg)
    except (OSError, Malformed) as error:
        print(f"{os.path.basename(sys.argv[0])}: {source}: {error}", file=sys.stderr)
        return 1
    return 0
