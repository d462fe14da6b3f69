"""The count at the end of run-tests.sh: nothing that failed is lost, nothing is counted twice."""

import os
import shutil
import tempfile
import unittest

from deploy import count_tests
from tests.python import junit

GTEST = """<?xml version="1.0"?><testsuites><testsuite name="A">
<testcase name="one" classname="A" status="run" result="completed"/>
<testcase name="two" classname="A" status="run" result="completed">%s</testcase>
<testcase name="off" classname="A" status="notrun" result="suppressed"/>
<testcase name="never" classname="A" status="run" result="completed" timestamp="1970-01-01T00:00:00.000"/>
<testcase name="skip" classname="A" status="run" result="skipped"><skipped message="no device"/></testcase>
</testsuite></testsuites>"""


class CountTests(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def result(self, label, status, xml=None, log=None, shard=1, attempt=1):
        outputs = []
        for name, text in (("test.xml", xml), ("test.log", log)):
            if text is not None:
                path = os.path.join(self.folder, f"{label.strip('/').replace(':', '_')}-{shard}-{attempt}-{name}")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                outputs.append({"name": name, "uri": "file://" + path})
        return {"id": {"testResult": {"label": label, "run": 1, "shard": shard, "attempt": attempt}},
                "testResult": {"status": status, "testActionOutput": outputs}}

    def run_of(self, *events, exit_code=0):
        run = count_tests.Run("gcc", exit_code)
        run.read(events)
        return run

    def report(self, *runs):
        lines = []
        code = count_tests.report(runs, lines.append)
        return code, lines

    def test_counts_cases(self):
        run = self.run_of(self.result("//a:t", "PASSED", GTEST % ""))
        self.assertEqual((run.passed, run.failed, run.skipped), (2, [], 3))

    def test_counts_a_test_without_cases_as_one(self):
        run = self.run_of(self.result("//a:t", "PASSED"), self.result("//a:u", "PASSED", "<testsuites/>"))
        self.assertEqual((run.passed, run.failed), (2, []))

    def test_a_failed_case_is_named_and_its_log_shown_once(self):
        failure = GTEST % '<failure message="x&#10;  y"/>'
        run = self.run_of(self.result("//a:t", "FAILED", failure, "the log"), exit_code=3)
        self.assertEqual((run.passed, len(run.failed)), (1, 1))
        code, lines = self.report(run)
        self.assertEqual(code, 1)
        self.assertEqual(lines.count("the log"), 1)
        self.assertEqual(lines[-3:-1], ["FAILED gcc: //a:t A.two", "    x y"])
        self.assertEqual(lines[-1], "1 passed, 1 failed")

    def test_a_timeout_is_a_failure(self):
        run = self.run_of(self.result("//a:t", "TIMEOUT"), exit_code=3)
        self.assertEqual((run.passed, run.failed[0][0]), (0, "//a:t (timeout)"))

    def test_a_crash_after_good_cases_is_a_failure(self):
        run = self.run_of(self.result("//a:t", "FAILED", GTEST % ""), exit_code=3)
        self.assertEqual(len(run.failed), 1)

    def test_what_does_not_build_is_a_failure(self):
        run = self.run_of({"id": {"targetCompleted": {"label": "//a:t"}}, "completed": {}}, exit_code=1)
        self.assertEqual(run.failed, [("//a:t does not build", "", "")])

    def test_what_builds_is_no_test(self):
        run = self.run_of({"id": {"targetCompleted": {"label": "//a:t"}}, "completed": {"success": True}})
        self.assertEqual((run.passed, run.failed), (0, []))

    def test_a_run_that_fails_without_a_word_is_a_failure(self):
        for exit_code in (1, 2, 3, 37):
            self.assertEqual(len(self.run_of(exit_code=exit_code).failed), 1)

    def test_nothing_at_all_is_not_a_success(self):
        code, lines = self.report(self.run_of())
        self.assertEqual((code, lines[-1]), (1, "0 passed, 0 failed"))

    def test_shards_add_up_and_repeated_events_do_not(self):
        one, two = self.result("//a:t", "PASSED", shard=1), self.result("//a:t", "PASSED", shard=2)
        self.assertEqual(self.run_of(one, two, one).passed, 2)

    def test_what_passes_when_it_is_tried_again_is_named_with_its_failure(self):
        run = self.run_of(self.result("//a:t", "FAILED", GTEST % '<failure message="x"/>', "the failure"),
                          self.result("//a:t", "PASSED", GTEST % "", "fine", attempt=2),
                          self.result("//a:u", "PASSED", GTEST % ""))
        self.assertEqual((run.passed, run.failed, run.targets), (4, [], 2))
        code, lines = self.report(run)
        self.assertEqual((code, lines[-1]), (0, "4 passed, 0 failed"))
        self.assertEqual(lines[-3:-1], ["flaky gcc: //a:t failed, and passed when it was tried again", "    A.two: x"])
        self.assertIn("the failure", lines)
        self.assertNotIn("fine", lines)

    def test_what_fails_twice_has_failed_once(self):
        failure = GTEST % '<failure message="x"/>'
        run = self.run_of(self.result("//a:t", "FAILED", failure, "first"),
                          self.result("//a:t", "FAILED", failure, "second", attempt=2), exit_code=3)
        self.assertEqual((run.passed, len(run.failed), run.flaky), (1, 1, []))
        self.assertIn("second", self.report(run)[1])

    def test_runs_add_up(self):
        code, lines = self.report(self.run_of(self.result("//a:t", "PASSED")),
                                  self.run_of(self.result("//a:t", "PASSED")))
        self.assertEqual((code, lines[-1]), (0, "2 passed, 0 failed"))

    def test_missing_and_broken_event_files_are_failures(self):
        path = os.path.join(self.folder, "events.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"id": {')
        for each in (path, os.path.join(self.folder, "none")):
            run = count_tests.Run("gcc", 8)
            run.read(count_tests.read_events(each))
            self.assertEqual(len(run.failed), 1)


if __name__ == "__main__":
    junit.main()
