"""unittest's answers as the XML that Bazel collects, a case each, so that the suite's count includes them."""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from xml.etree import ElementTree
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


def _cases(suite):
    for each in suite:
        yield from _cases(each) if isinstance(each, unittest.TestSuite) else (each,)


def _run_parts(n_parts):
    """Runs every n-th case in a process of its own, all parts at the same time. Returns whether all passed."""
    path = os.environ.get("XML_OUTPUT_FILE", os.devnull)
    with tempfile.TemporaryDirectory() as folder:
        parts = []
        for part in range(n_parts):
            xml, output = (os.path.join(folder, f"{part}.{end}") for end in ("xml", "txt"))
            with open(output, "wb") as file:
                environment = {**os.environ, "IRIS_TEST_PART": f"{part}/{n_parts}", "XML_OUTPUT_FILE": xml}
                parts.append((subprocess.Popen(sys.orig_argv, env=environment, stdout=file, stderr=file), xml, output))
        passed = all([process.wait() == 0 for process, _, _ in parts])
        suites = ElementTree.Element("testsuites")
        for _, xml, output in parts:
            with open(output, encoding="utf-8", errors="replace") as file:
                print(file.read(), flush=True)
            if os.path.exists(xml):
                suites.extend(ElementTree.parse(xml).getroot())
        ElementTree.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)
    return passed


def main(n_parts=1):
    """Runs the calling module's tests, as unittest.main does, in `n_parts` processes at the same time. It fails where
    there are none, not even one to be skipped: a class that is skipped as a whole counts as one that is. In each
    process, IRIS_TEST_PART is `part/n_parts`."""
    part = os.environ.get("IRIS_TEST_PART")
    if n_parts > 1 and part is None:
        sys.exit(0 if _run_parts(n_parts) else 1)
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    if part is not None:
        first, step = map(int, part.split("/"))
        suite = unittest.TestSuite(list(_cases(suite))[first::step])
    result = unittest.TextTestRunner(resultclass=_Result, verbosity=2).run(suite)
    path = os.environ.get("XML_OUTPUT_FILE")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.write('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites><testsuite name="python" '
                       f'tests="{result.testsRun}">\n' + "\n".join(result.cases) + "\n</testsuite></testsuites>\n")
    sys.exit(0 if result.wasSuccessful() and result.cases else 1)
