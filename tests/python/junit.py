"""unittest's answers as the XML that Bazel collects, a case each, so that the suite's count includes them."""

import os
import sys
import time
import unittest
from xml.sax.saxutils import escape, quoteattr


class _Result(unittest.TextTestResult):

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cases = []
        self._started = time.monotonic()

    def startTest(self, test):
        super().startTest(test)
        self._started = time.monotonic()

    def _add(self, test, kind="", text=""):
        last = text.splitlines()[-1] if text else kind
        body = f"<{kind} message={quoteattr(last)}>{escape(text)}</{kind}>" if kind else ""
        self.cases.append(f'<testcase classname={quoteattr(type(test).__name__)} name={quoteattr(str(test))} '
                          f'time="{time.monotonic() - self._started:.3f}">{body}</testcase>')

    def addSuccess(self, test):
        super().addSuccess(test)
        self._add(test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._add(test, "failure", self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self._add(test, "error", self.errors[-1][1])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._add(test, "skipped", reason)


def main():
    """Runs the calling module's tests, as unittest.main does. It fails where there are none, not even one to be
    skipped: a class that is skipped as a whole counts as one that is."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    result = unittest.TextTestRunner(resultclass=_Result, verbosity=2).run(suite)
    path = os.environ.get("XML_OUTPUT_FILE")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.write('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites><testsuite name="python" '
                       f'tests="{result.testsRun}">\n' + "\n".join(result.cases) + "\n</testsuite></testsuites>\n")
    sys.exit(0 if result.wasSuccessful() and result.cases else 1)
