"""The pictures in docs are what docs/pictures.py draws, byte for byte."""

import os
import unittest
import xml.dom.minidom

from docs import pictures
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


if __name__ == "__main__":
    junit.main()
