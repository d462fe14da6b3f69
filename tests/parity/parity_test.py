"""What docs/parity.md names exists; and what check.py must find, it finds."""

import json
import os
import tempfile
import unittest

from tests.parity import check
from tests.python import junit

# The whole source tree, found through this file's real path.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

HEAD = "| ability | where | proof |\n|---|---|---|\n"
GOOD = HEAD + ("| fly | `<iris/fly.h>`, `device/wings` | "
               "`//a/b:fly_test` `FlyTest.High` `FlyTest.Far`; not yet: far away |\n")
FILES = {
    "device/iris/fly.h": "",
    "device/wings/x": "",
    "a/b/BUILD.bazel": 'cc_test(name = "fly_test", srcs = ["fly_test.cc", "more_test.cc"])\n'
                       '[py_test(name = n) for n in ["swim_test"]]\n',
    "a/b/fly_test.cc": "TEST(FlyTest, High) {}\n",
    "a/b/more_test.cc": "TYPED_TEST(FlyTest, Far) {}\n",
    "a/b/swim_test.py": "class Swim:\n    def test_deep(self):\n        pass\n",
}
XML = """<testsuites><testsuite>
<testcase classname="All/FlyTest" name="High/F32" status="run"/>
<testcase classname="All/FlyTest" name="High/F64" status="run">{high}</testcase>
<testcase classname="FlyTest/0" name="Far" status="run">{far}</testcase>
</testsuite></testsuites>"""


class Parity(unittest.TestCase):

    def tree(self, files):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for path, text in files.items():
            os.makedirs(os.path.join(folder.name, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(folder.name, path), "w", encoding="utf-8") as file:
                file.write(text)
        return folder.name

    def found(self, page, files=None):
        return check.check_sources(page, self.tree(files or FILES))

    def test_the_page(self):
        with open(os.path.join(ROOT, check.PAGE), encoding="utf-8") as file:
            page = file.read()
        self.assertGreater(len(check.rows(page)), 70)
        self.assertEqual([], check.check_sources(page, ROOT))

    def test_what_is_there(self):
        self.assertEqual([], self.found(GOOD))
        self.assertEqual([], self.found(HEAD + "| swim | `a/b` | `//a/b:swim_test` `Swim.test_deep` |\n"))
        self.assertEqual([], self.found(HEAD + "| dive | | not yet |\n"))
        self.assertEqual([], self.found("| other | table |\n|---|---|\n| a | `//no:no` |\n"))

    def test_what_is_not(self):
        for wrong, text in (
            (GOOD.replace("fly.h", "fall.h"), "there is no <iris/fall.h>"),
            (GOOD.replace("device/wings", "device/tail"), "there is no device/tail"),
            (GOOD.replace("//a/b:fly_test", "//a/b:fall_test"), "there is no target //a/b:fall_test"),
            (GOOD.replace("//a/b:fly_test", "//a/c:fly_test"), "there is no target //a/c:fly_test"),
            (GOOD.replace("FlyTest.Far", "FlyTest.Low"), "//a/b:fly_test has no case FlyTest.Low"),
            (GOOD.replace("`FlyTest.Far`", "`somewhere`"), "`somewhere` is no target, and no case of one"),
            (HEAD + "| fly | `<iris/fly.h>` | proven |\n", "neither a test nor \"not yet\": fly"),
            (HEAD + "| fly | not yet |\n", "2 columns, not 3"),
            (HEAD + "| swim | | `//a/b:swim_test` `Swim.test_flat` |\n",
             "//a/b:swim_test has no case Swim.test_flat"),
        ):
            self.assertEqual([f"docs/parity.md:3: {text}"], self.found(wrong))
        # A case counts only if it is in a source of that target.
        self.assertEqual(["docs/parity.md:3: //a/b:swim_test has no case FlyTest.High",
                          "docs/parity.md:3: //a/b:swim_test has no case FlyTest.Far"],
                         self.found(GOOD.replace("//a/b:fly_test", "//a/b:swim_test")))

    def test_results_of_bazel(self):
        def found(high, far, folder="a/b/fly_test", page=GOOD):
            root = self.tree({f"{folder}/test.xml": XML.format(high=high, far=far)})
            return check.check_results(page, check.Results([root]))

        self.assertEqual([], found("", ""))
        self.assertEqual([], found("", "", "a/b/fly_test/shard_1_of_2"))
        self.assertEqual(["docs/parity.md:3: FlyTest.High of //a/b:fly_test failed"], found("<failure/>", ""))
        self.assertEqual(["docs/parity.md:3: FlyTest.Far of //a/b:fly_test was skipped"], found("", "<skipped/>"))
        self.assertEqual([], found("", "<skipped/>", page=GOOD.replace("| fly |", "| fly (on GPUs) |")))
        self.assertEqual(["docs/parity.md:3: //a/b:fly_test did not run"], found("", "", "a/c/fly_test"))
        # A target of which nothing ran proves nothing.
        whole = GOOD.replace(" `FlyTest.High` `FlyTest.Far`", "")
        self.assertNotEqual(whole, GOOD)
        self.assertEqual([], found("", "<skipped/>", page=whole))
        skipped = XML.format(high="<skipped/>", far="<skipped/>")
        skipped = skipped.replace('name="High/F32" status="run"/>', 'name="High/F32" status="notrun"/>')
        results = check.Results([self.tree({"a/b/fly_test/test.xml": skipped})])
        self.assertEqual(["docs/parity.md:3: all cases of //a/b:fly_test were skipped"],
                         check.check_results(whole, results))
        self.assertEqual([], check.check_results(whole.replace("| fly |", "| fly (on GPUs) |"), results))

    def test_results_of_programs(self):
        def found(cases, name="fly_test.json"):
            suites = {"testsuites": [{"name": "FlyTest", "testsuite": cases}]}
            return check.check_results(GOOD, check.Results([self.tree({name: json.dumps(suites)})]))

        high = {"name": "High/1", "classname": "FlyTest", "status": "RUN", "result": "COMPLETED"}
        far = {**high, "name": "Far"}
        self.assertEqual([], found([high, far]))
        self.assertEqual(["docs/parity.md:3: FlyTest.High of //a/b:fly_test failed"],
                         found([{**high, "failures": [{"failure": "x"}]}, far]))
        self.assertEqual(["docs/parity.md:3: FlyTest.Far of //a/b:fly_test was skipped"],
                         found([high, {**far, "result": "SKIPPED"}]))
        self.assertEqual(["docs/parity.md:3: FlyTest.Far of //a/b:fly_test did not run"], found([high]))
        self.assertEqual(["docs/parity.md:3: //a/b:fly_test did not run"], found([high, far], "other.json"))


if __name__ == "__main__":
    junit.main()
