"""The client library with everything inside: what it asks of a system, what it shows, and that it and other copies of
abseil and protobuf in one process do not touch each other."""

import glob
import os
import re
import subprocess
import sys
import unittest

from tests.python import junit

LIBRARY = os.path.realpath("deploy/libiris.so.0")
HEADER = "client/iris/c_api.h"
# Debian's own copies, which are another's as far as the library is concerned.
FOREIGN = sorted(glob.glob("/usr/lib/x86_64-linux-gnu/libabsl_*.so")) + [
    "/usr/lib/x86_64-linux-gnu/libprotobuf.so",
    "/usr/lib/x86_64-linux-gnu/libgrpc++.so",
]
OF_THE_SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread)\.so\.\d+|ld-linux-x86-64\.so\.2)$")
# Ubuntu 22.04's.
GLIBC_MAX = (2, 35)
PATIENCE_SECONDS = 120

# What the processes below begin with. An error of the launcher's variables says what stands in them.
PROLOGUE = """
import _ctypes, ctypes, glob, os, sys, threading
LIBRARY, FOREIGN = sys.argv[1], sys.argv[2:]
class Launcher(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("rest", ctypes.c_char * 512)]
def load_iris(mode):
    return ctypes.CDLL(LIBRARY, mode=mode)
def load_foreign(mode):
    return [ctypes.CDLL(path, mode=mode) for path in FOREIGN]
def write(iris, text):
    os.environ["IRIS_RANK"], os.environ["IRIS_N_RANKS"] = text.decode(), "1"
    iris.iris_error_message.restype = ctypes.c_char_p
    launcher = Launcher(ctypes.sizeof(Launcher))
    assert iris.iris_launcher_read(ctypes.byref(launcher)) == 3
    print(iris.iris_error_message().decode(), file=sys.stderr)
def mapped():
    with open("/proc/self/maps") as maps:
        return {line.split()[-1] for line in maps if "/" in line}
"""


def run(*command, environment=None):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          timeout=PATIENCE_SECONDS, env=environment)


def symbols():
    """(name, binding, whether the library defines it, version) of each dynamic symbol."""
    for line in run("readelf", "-W", "--dyn-syms", LIBRARY).stdout.splitlines():
        cells = line.split()
        if len(cells) >= 8 and cells[0].rstrip(":").isdigit():
            name, _, version = cells[7].partition("@")
            yield name, cells[4], cells[6] != "UND", version.lstrip("@")


class PrivateTest(unittest.TestCase):

    def process(self, script, **environment):
        """A process that runs the script; its standard error."""
        self.assertGreater(len(FOREIGN), 40)
        result = run(sys.executable, "-c", PROLOGUE + script, LIBRARY, *FOREIGN,
                     environment={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", **environment})
        self.assertEqual(result.returncode, 0, result.stderr[-4000:])
        return result.stderr

    def test_needs_the_c_library_alone(self):
        dynamic = run("readelf", "-W", "-d", LIBRARY).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
        self.assertIn("libc.so.6", needed)
        for name in needed:
            self.assertRegex(name, OF_THE_SYSTEM)
        self.assertIn("NODELETE", dynamic)
        # Else a process that opens it late may have no room for its thread-local variables.
        self.assertNotIn("STATIC_TLS", dynamic)

    def test_asks_for_no_newer_system(self):
        versions = set(re.findall(r"Name: (\w+_[\d.]+)", run("readelf", "-W", "-V", LIBRARY).stdout))
        self.assertIn("GLIBC_2.2.5", versions)
        for version in {v for v in versions if not v.startswith("IRIS_")}:
            name, number = version.split("_")
            self.assertEqual(name, "GLIBC", version)
            self.assertLessEqual(tuple(map(int, number.split("."))), GLIBC_MAX, version)

    def test_shows_what_its_header_says(self):
        shown = {name for name, binding, defined, _ in symbols() if defined and binding != "LOCAL"}
        with open(HEADER, encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        declared = set(re.findall(r"^IRIS_EXPORT\s[^;(]*?(\w+)\(", text, flags=re.M))
        self.assertGreater(len(declared), 50)
        self.assertEqual(declared, {name for name in shown if not name.startswith("IRIS_")})

    def test_takes_nothing_by_chance(self):
        # What has no version may be anybody's. The linker puts these three everywhere.
        self.assertEqual({name for name, _, defined, version in symbols() if name and not defined and not version} -
                         {"__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"},
                         {"iris_backend_operations"})  # weak: a backend that the program has, if it has one

    def test_has_no_symbol_that_is_one_for_the_whole_process(self):
        self.assertEqual([name for name, binding, _, _ in symbols() if binding == "UNIQUE"], [])

    def test_maps_nothing_else(self):
        self.process("""
before = mapped()
iris = load_iris(ctypes.RTLD_LOCAL)
write(iris, b"one line")
new = [path for path in mapped() - before if path != LIBRARY and ".so" in path]
wrong = [path for path in new if not path.rsplit("/", 1)[1].startswith(("libc.", "libm.", "libdl.", "libpthread."))]
assert not wrong, wrong
""")

    def test_lives_with_others_that_come_before_or_after(self):
        for first, second in (("iris = load_iris(M)", "foreign = load_foreign(M)"),
                              ("foreign = load_foreign(M)", "iris = load_iris(M)")):
            for mode in ("ctypes.RTLD_GLOBAL", "ctypes.RTLD_LOCAL"):
                with self.subTest(first=first, mode=mode):
                    log = self.process(f"M = {mode}\n{first}\n{second}\nwrite(iris, b'its own words')\n",
                                       LD_DEBUG="bindings", LD_BIND_NOW="1")
                    self.assertIn("its own words", log)
                    self.check_bindings(log)

    def check_bindings(self, log):
        """The library uses itself and the system, and nobody else uses it."""
        name = os.path.basename(LIBRARY)
        n_own = n_others = 0
        pattern = r"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: \w+ symbol `(.*?)'"
        for source, target, symbol in re.findall(pattern, log):
            if source.endswith(name):
                n_own += 1
                # A program may have its own copy of a variable of the C library, for everybody.
                if not target.endswith(name) and symbol not in ("stdin", "stdout", "stderr", "environ"):
                    self.assertRegex(os.path.basename(target), OF_THE_SYSTEM, symbol)
            else:
                n_others += "libabsl_" in source
                self.assertFalse(target.endswith(name), f"{source} uses {symbol} of {name}")
        self.assertGreater(n_own, 50)
        self.assertGreater(n_others, 50)

    def test_threads_outlive_its_unloading(self):
        # abseil is told by the thread's end that it ends.
        self.process("""
iris = load_iris(ctypes.RTLD_LOCAL)
written, closed = threading.Event(), threading.Event()
def work():
    write(iris, b"from a thread")
    written.set()
    closed.wait()
thread = threading.Thread(target=work)
thread.start()
written.wait()
_ctypes.dlclose(iris._handle)
closed.set()
thread.join()
assert LIBRARY in mapped()
""")


if __name__ == "__main__":
    junit.main()
