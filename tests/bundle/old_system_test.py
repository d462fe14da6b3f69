"""The bundle on the oldest system that it is for: glibc 2.35 and the libstdc++ of GCC 12 (Ubuntu 22.04), Linux 5.15."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

from tests.python import junit

(ARCHIVE,) = glob.glob("deploy/bundle_for_test/iris-*-linux-x86_64.tar.xz")
OLD_KERNEL = [sys.executable, os.path.abspath("tests/bundle/old_kernel.py")]
NEWEST = {"GLIBC": (2, 35), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
PATIENCE_SECONDS = 120


class OldSystemTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="iris-old-", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        with tarfile.open(ARCHIVE) as tar:
            tar.extractall(cls.folder)
        (top,) = os.listdir(cls.folder)
        cls.bundle = os.path.join(cls.folder, top)

    def run_old(self, *command):
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "IRIS_RUNTIME_DIR": f"{self.folder}/run"}
        return subprocess.run([*OLD_KERNEL, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, timeout=PATIENCE_SECONDS, env=environment)

    def test_no_file_asks_for_newer_libraries(self):
        n_files = 0
        for folder, _, names in os.walk(self.bundle):
            for path in (os.path.join(folder, name) for name in names):
                if os.path.islink(path) or path.endswith(".a"):
                    continue
                with open(path, "rb") as file:
                    if file.read(4) != b"\x7fELF":
                        continue
                n_files += 1
                needs = subprocess.run(["readelf", "-W", "-V", path], stdout=subprocess.PIPE, text=True, check=True)
                for name, number in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)\b", needs.stdout):
                    self.assertLessEqual(tuple(map(int, number.split("."))), NEWEST[name],
                                         f"{path} needs {name}_{number}")
        self.assertGreater(n_files, 15)

    def test_the_filter_is_an_old_kernel(self):
        script = ("import ctypes, errno, os, socket\n"
                  "c = ctypes.CDLL(None, use_errno=True)\n"
                  "assert c.syscall(449, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.ENOSYS\n"
                  "assert c.madvise(0, 4096, 102) == -1 and ctypes.get_errno() == errno.EINVAL\n"
                  "a, b = socket.socketpair()\n"
                  "try:\n"
                  "    a.getsockopt(socket.SOL_SOCKET, 77)\n"
                  "    raise SystemExit('SO_PEERPIDFD is there')\n"
                  "except OSError as e:\n"
                  "    assert e.errno == errno.ENOPROTOOPT, e\n"
                  "a.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)\n"
                  "os.close(os.memfd_create('there', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))\n")
        result = self.run_old(sys.executable, "-c", script)
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_jobs_run_on_an_old_kernel(self):
        log_path = f"{self.folder}/log"
        with open(log_path, "wb") as log:
            daemon = subprocess.Popen([*OLD_KERNEL, f"{self.bundle}/bin/irisd", "--runtime-dir", f"{self.folder}/run",
                                       "--backend", "emu", "--emu-devices", "4", "--emu-memory", "512MiB"],
                                      stdout=log, stderr=log)
        try:
            end = time.monotonic() + PATIENCE_SECONDS
            while self.run_old(f"{self.bundle}/bin/iris-ctl", "status").returncode != 0:
                with open(log_path, encoding="utf-8") as log:
                    self.assertIsNone(daemon.poll(), log.read())
                self.assertLess(time.monotonic(), end, "irisd does not answer")
                time.sleep(0.05)
            # Attaching, host and device barriers, fibers with guards, collectives.
            for example in ("01_hello_heap", "02_put_get", "04_message_passing", "05_all_reduce"):
                result = self.run_old(f"{self.bundle}/bin/iris-run", "-n", "4", "--",
                                      f"{self.bundle}/libexec/iris/emu/examples/{example}")
                self.assertEqual(result.returncode, 0, f"{example}:\n{result.stdout}")
            doctor = self.run_old(f"{self.bundle}/bin/iris-ctl", "doctor").stdout
            self.assertRegex(doctor, r"futex_waitv\s.*lacks it")
            self.assertNotIn("pidfd_open", doctor)
        finally:
            daemon.terminate()
            self.assertEqual(daemon.wait(PATIENCE_SECONDS), 0)


if __name__ == "__main__":
    junit.main()
