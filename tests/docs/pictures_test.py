"""The pictures in docs are what docs/pictures.py draws, byte for byte."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
import xml.dom.minidom

from tests.python import junit

sys.path.insert(0, "docs")

# pylint: disable=wrong-import-position
import overlap_chart  # noqa: E402
import pictures  # noqa: E402
import product_plots  # noqa: E402
import soak_chart  # noqa: E402
import trace_picture  # noqa: E402


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
        of_peers = [self.box("put", "rma", 101 + 2 * peer, 1, args={"peer": peer}) for peer in (0, 1)]
        svg = self.draw(*of_peers, names={"put": "send", "put@1": "return"})
        self.assertTrue(">send<" in svg and ">return<" in svg)
        self.assertNotIn("launch", svg)
        self.assertNotIn("launch", self.draw(*boxes, rows_max=1))

    def test_the_scale_has_round_steps(self):
        self.assertEqual([trace_picture.step_of(span) for span in (0.012, 0.013, 10, 15500, 1e6)],
                         [0.001, 0.002, 1, 2000, 100000])


class OverlapChart(unittest.TestCase):

    def row(self, example, arguments, figure, **more):
        return dict({"example": example, "arguments": arguments.split(), "backend": "emu", "ranks": 2, "result": "ok",
                     "figure": figure, "unit": "us"}, **more)

    def rows(self):
        return [self.row("11a_overlap_streams", "bulk 64 128 32", 100.0), self.row("01_hello_heap", "", None),
                self.row("11a_overlap_streams", "bulk 256 128 32", 400.0),
                self.row("08_gemm_all_scatter", "64 128 32", 50.0), self.row("11c_overlap_warps", "64 128 32", 80.0),
                self.row("11c_overlap_warps", "256 128 32", 320.0),
                self.row("08_gemm_all_scatter", "256 128 32", None, result="failed: x"),
                self.row("11b_overlap_blocks", "64 128 99", 1.0),
                self.row("11b_overlap_blocks", "64 128 32", 1, ranks=4)]

    def test_ratios_to_the_bulk_synchronous_pattern(self):
        svg = overlap_chart.draw(self.rows(), 2, "A & B")
        titles = [t.firstChild.data for t in xml.dom.minidom.parseString(svg).getElementsByTagName("title")]
        self.assertEqual(titles, ["bulk-synchronous, 100 us", "bulk-synchronous, 400 us", "sequential, 50 us",
                                  "specialized warps, 80 us", "specialized warps, 320 us"])
        self.assertIn("A &amp; B", svg)
        self.assertIn("n = 128, k = 32", svg)
        self.assertNotIn("k = 99", svg)
        # The panel ends at twice as fast: bulk is in the middle, and the sequential one at the top.
        self.assertIn('points="115.00,170.00 245.00,170.00"', svg)
        self.assertIn('points="115.00,70.00"', svg)
        self.assertIn('points="115.00,145.00 245.00,145.00"', svg)

    def test_the_best_of_each_shape(self):
        self.assertEqual(list(overlap_chart.best(self.rows(), 2)), [
            "m 64, n 128, k 32: sequential, 50 us, 2.00 times as fast as bulk-synchronous",
            "m 256, n 128, k 32: specialized warps, 320 us, 1.25 times as fast as bulk-synchronous"])

    def test_files_that_are_wrong_are_refused(self):
        for rows, what in (([], "there is no row in it"), ([{}], "ranks"), ([1], "int"),
                           (self.rows()[3:4], "no shape with a figure"),
                           ([self.row("08_gemm_all_scatter", "64 128", 5.0)], "row 0: ValueError"),
                           ([self.row("08_gemm_all_scatter", "1 1 1", 5.0, unit="GB/s")], "a figure of 5.0 GB/s"),
                           ([self.row("08_gemm_all_scatter", "1 1 1", -5.0)], "a figure of -5.0 us")):
            with self.subTest(what), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "figures.json")
                with open(path, "w", encoding="ascii") as file:
                    json.dump(rows, file)
                err = io.StringIO()
                with contextlib.redirect_stderr(err), self.assertRaises(SystemExit):
                    overlap_chart.main([path, os.path.join(folder, "chart.svg")])
                self.assertIn(what, err.getvalue())
                self.assertEqual(os.listdir(folder), ["figures.json"])


class ProductPlots(unittest.TestCase):

    def row(self, **other):
        return dict({"operation": "matmul_all_reduce", "ranks": 2, "m": 64, "n": 128, "k": 256, "wanted": "auto",
                     "variant": "fused", "TFLOP/s": 100.0, "hidden": 0.75}, **other)

    def text(self, *rows):
        return json.dumps({"tables": {"matmul": {"rows": rows}}})

    def test_bars_of_all_rows(self):
        svg = product_plots.draw(product_plots.rows_of(self.text(
            self.row(), self.row(wanted="pair", variant="pair", hidden=0, **{"TFLOP/s": 50.0}),
            self.row(operation="<op>", ranks=4, hidden=1))))
        xml.dom.minidom.parseString(svg)
        self.assertIn("matmul_all_reduce 64×128×256, 2 ranks", svg)
        self.assertIn("&lt;op&gt; 64×128×256, 4 ranks", svg)
        self.assertEqual(svg.count(f'width="{product_plots.BARS}.0"'), 3)  # two of 100 TFLOP/s, one all hidden
        self.assertIn(f'width="{product_plots.BARS * 0.75:.1f}"', svg)
        for words in ("100 (fused)", ">50<", "75 %", "0 %"):
            self.assertIn(words, svg)

    def test_one_number_of_ranks(self):
        svg = product_plots.draw(product_plots.rows_of(self.text(self.row(), self.row(ranks=4)), ranks=4))
        self.assertNotIn("2 ranks", svg)

    def test_what_is_no_report(self):
        cut = self.row()
        del cut["hidden"]
        for text, words in (("", "no report"), ("[]", "no report"), ('{"tables": {"matmul": {"rows": 1}}}', "no list"),
                            (self.text(), "has no rows"), (self.text(1), "row 0 has no 'operation'"),
                            (self.text(cut), "row 0 has no 'hidden'"),
                            (self.text(self.row(hidden=None)), "row 0 has None"),
                            (self.text(self.row(hidden=-1)), "row 0 has -1"),
                            (self.text(self.row(hidden=float("nan"))), "row 0 has nan")):
            with self.subTest(text), self.assertRaisesRegex(product_plots.Malformed, words):
                product_plots.rows_of(text)
        with self.assertRaisesRegex(product_plots.Malformed, "of 3 ranks"):
            product_plots.rows_of(self.text(self.row()), ranks=3)

    def test_the_program(self):
        with tempfile.TemporaryDirectory(prefix="iris-plots-", dir="/tmp") as folder:
            result, out = os.path.join(folder, "r.json"), os.path.join(folder, "o.svg")
            with open(result, "w", encoding="utf-8") as file:
                file.write(self.text(self.row()))
            self.assertEqual(product_plots.main([result, out]), 0)
            xml.dom.minidom.parse(out)
            self.assertEqual(product_plots.main([os.path.join(folder, "none"), out]), 1)


class SoakChart(unittest.TestCase):

    def line(self, kills, rss=5000):
        return (f"  {kills} kills: irisd  {rss} KiB  42 descriptors  9 threads | supervisor   7160 KiB  30 descriptors "
                "2 threads | journal   14659 bytes | 2 processes\n")

    def test_a_row_for_each_number(self):
        svg = soak_chart.draw("[ RUN      ]\n" + self.line(100) + "rounds 4\n" + self.line(200, rss=5500))
        xml.dom.minidom.parseString(svg)
        for words in ("irisd RSS KiB", "5,000–5,500", "42–42", "9–9", "7,160–7,160", "14,659–14,659", "200 kills"):
            self.assertIn(words, svg)

    def test_what_is_no_output(self):
        for text in ("", self.line(100), "100 kills: irisd\n200 kills: irisd\n"):
            with self.subTest(text), self.assertRaises(soak_chart.Malformed):
                soak_chart.draw(text)

    def test_the_program(self):
        self.assertEqual(soak_chart.main(["none", "none.svg"]), 1)


if __name__ == "__main__":
    junit.main()
