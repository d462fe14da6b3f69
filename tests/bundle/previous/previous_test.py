"""Programs of the previous minor version on today's library: see README.md."""

import os
import re
import subprocess

from tests.bundle import bundle_case
from tests.python import junit

FOLDER = os.path.realpath("tests/bundle/previous")


class Header:
    """What a c_api.h says: its version, and which functions it declares."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)

        def number(name):
            return int(re.search(rf"(?m)^#define {name} (\d+)$", text).group(1))

        self.version = (number("IRIS_VERSION_MAJOR"), number("IRIS_VERSION_MINOR"))
        self.device_abi = number("IRIS_DEVICE_ABI")
        self.functions = set(re.findall(r"^IRIS_EXPORT\s[^;(]*?(\w+)\(", text, flags=re.M))


def symbols(path):
    """{name: version} of what an ELF file has or wants of the C API."""
    table = subprocess.run(["readelf", "-W", "--dyn-syms", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    return dict(re.findall(r" (iris_\w+)@+(IRIS_[\d.]+)", table))


class Previous(bundle_case.BundleCase):

    def setUp(self):
        self.before = Header(f"{FOLDER}/include/iris/c_api.h")
        self.now = Header(f"{self.first}/include/iris/c_api.h")

    def check_program(self, program):
        # Every symbol is looked up at the start.
        out = self.run_two_ranks(self.first, program, LD_LIBRARY_PATH=f"{self.first}/lib", LD_BIND_NOW="1")
        version = "%d.%d" % self.before.version
        self.assertEqual(sorted(out.splitlines()), [f"[{rank}] rank {rank} used all of {version}" for rank in range(2)])

    def test_its_program_works(self):
        self.check_program(f"{FOLDER}/program")

    def test_a_program_compiled_with_its_header_works(self):
        program = os.path.join(self.folder, "program")
        self.run_ok("gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", f"{FOLDER}/include",
                    f"{FOLDER}/program.c", "-L", f"{self.first}/lib", "-liris", "-o", program)
        self.check_program(program)

    def test_its_program_with_kernels_works_or_is_told(self):
        code, out = self.try_two_ranks(self.first, f"{FOLDER}/hello", LD_LIBRARY_PATH=f"{self.first}/lib")
        if self.before.device_abi == self.now.device_abi:
            self.assertEqual((code, sorted(out.splitlines())), (0, ["[0] rank 0 got 101", "[1] rank 1 got 100"]))
        else:
            self.assertNotEqual(code, 0, out)
            self.assertIn(f"built for device ABI {self.before.device_abi}, and libiris.so", out)

    def test_the_program_uses_all_of_its_version(self):
        self.assertGreater(len(self.before.functions), 60)
        self.assertEqual(set(symbols(f"{FOLDER}/program")), self.before.functions)

    def test_functions_stay_under_the_version_in_which_they_came(self):
        shown = symbols(f"{self.first}/lib/libiris.so.0")
        self.assertEqual(self.before.functions - set(shown), set(), "functions that are gone")
        if self.before.version != self.now.version:
            newest = "IRIS_%d.%d" % self.now.version
            self.assertEqual({name for name, version in shown.items() if version == newest},
                             set(shown) - self.before.functions, "what deploy/libiris.lds has under " + newest)

    def test_the_fixture_is_of_the_previous_version(self):
        (major, minor), now = self.before.version, self.now.version
        self.assertIn(now, ((major, minor), (major, minor + 1)), "run tests/bundle/previous/renew.sh")


if __name__ == "__main__":
    junit.main()
