"""The pictures in docs are what docs/pictures.py draws, byte for byte."""

import os
import unittest
import xml.dom.minidom

from docs import pictures
from docs import trace_picture
from tests.python import junit


class Pictures(unittest.TestCase):

    def test_the_committed_ones_are_what_is_drawn(self):
        for name, draw in pictures.PICTURES.items():
            with self.subTest(name):
                with open(os.path.join("docs", name), encoding="utf-8") as file:
                    self.assertEqual(draw().svg(), file.read(), "run: docs/pictures.py docs")

    def test_they_are_xml(self):
        for name, draw in pictures.PICTURES.items():
            with self.subTest(name):
                xml.dom.minidom.parseString(draw().svg())


class TracePicture(unittest.TestCase):

    def box(self, name, category, start, length, **place):
        return dict({"ph": "X", "name": name, "cat": category, "pid": 0, "tid": 1, "ts": start, "dur": length,
                     "args": {}}, **place)

    def draw(self, *boxes, **options):
        names = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "rank 0 (pid 7)"}},
                 {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": "block 0"}},
                 {"ph": "M", "name": "thread_name", "pid": 0, "tid": 2, "args": {"name": "host 8"}}]
        return trace_picture.draw({"traceEvents": names + list(boxes)}, 100, 110, **options)

    def test_what_lies_between_is_drawn(self):
        svg = self.draw(self.box("all_reduce", "collective", 101, 8), self.box("first <round>", "wait", 101, 4),
                        self.box("early", "user", 90, 9), self.box("late", "user", 111, 1),
                        self.box("launch", "host", 95, 10, tid=2), title="A & B")
        titles = [t.firstChild.data for t in xml.dom.minidom.parseString(svg).getElementsByTagName("title")]
        self.assertEqual(titles, ["all_reduce, 8 us", "first <round>, 4 us", "launch, 10 us"])
        self.assertIn("A &amp; B", svg)
        # 900 for 10 microseconds, from 150 on; what began earlier is cut.
        self.assertIn('<rect x="240.00" y="46" width="720.00"', svg)
        self.assertIn('<rect x="150.00" y="70" width="450.00"', svg)

    def test_rows_and_names_can_be_chosen(self):
        boxes = (self.box("user 1", "user", 101, 8), self.box("launch", "host", 95, 10, tid=2))
        svg = self.draw(*boxes, hosts=False, names={"user 1": "forward"})
        self.assertIn(">forward<", svg)
        self.assertNotIn("launch", svg)
        self.assertNotIn("launch", self.draw(*boxes, rows_max=1))

    def test_the_scale_has_round_steps(self):
        self.assertEqual([trace_picture.step_of(span) for span in (0.012, 0.013, 10, 15500, 1e6)],
                         [0.001, 0.002, 1, 2000, 100000])


if __name__ == "__main__":
    junit.main()
