"""What tests of the bundle share: it is unpacked twice, in other places than it was made in, and programs run on it."""

import glob
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import unittest

ARCHIVES = "deploy/bundle_for_test/iris-*-linux-x86_64.tar.xz"
PROJECT = tuple("tests/bundle/" + name for name in ("CMakeLists.txt", "hello.cc", "hello.c", "hello_host.cc",
                                                    "hello_absl.cc", "two_threads.c"))
PATIENCE_SECONDS = 240


def clean_environment(**more):
    """A user's: nothing of Bazel's, and no path to libraries."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", **more}


class BundleCase(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="iris-bundle-", dir="/tmp")
        (cls.archive,) = glob.glob(ARCHIVES)
        cls.first = cls.unpack("first")
        cls.second = cls.unpack("a/second/place")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    @classmethod
    def unpack(cls, name):
        path = os.path.join(cls.folder, name)
        os.makedirs(path)
        with tarfile.open(cls.archive) as tar:
            tar.extractall(path)
        (top,) = os.listdir(path)
        assert os.path.basename(cls.archive) == top + ".tar.xz", top
        return os.path.join(path, top)

    def run_ok(self, *command, environment=None, **kwargs):
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                                timeout=PATIENCE_SECONDS, env=environment or clean_environment(), **kwargs)
        self.assertEqual(result.returncode, 0, f"{command}\n{result.stdout}")
        return result.stdout

    def project(self, name):
        path = os.path.join(self.folder, name)
        os.makedirs(path)
        for file in PROJECT:
            shutil.copy(file, path)
        return path

    def run_two_ranks(self, bundle, *program, **variables):
        """irisd of the bundle, and the program on two ranks. What they print; it is an error if they fail."""
        code, out = self.try_two_ranks(bundle, *program, **variables)
        self.assertEqual(code, 0, f"{program}\n{out}")
        return out

    def try_two_ranks(self, bundle, *program, **variables):
        """The same, which may fail."""
        return self.try_ranks(2, bundle, *program, **variables)

    def try_ranks(self, n_ranks, bundle, *program, **variables):
        runtime_dir = tempfile.mkdtemp(prefix="run-", dir=self.folder)
        environment = clean_environment(IRIS_RUNTIME_DIR=runtime_dir, **variables)
        with open(os.path.join(runtime_dir, "log"), "wb") as log:
            daemon = subprocess.Popen([f"{bundle}/bin/irisd", "--runtime-dir", runtime_dir, "--backend", "emu",
                                       "--emu-devices", "2", "--emu-memory", "256MiB"],
                                      stdout=log, stderr=log, env=clean_environment())
        try:
            end = time.monotonic() + PATIENCE_SECONDS
            while subprocess.run([f"{bundle}/bin/iris-ctl", "status"], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, check=False, env=environment, timeout=60).returncode != 0:
                self.assertIsNone(daemon.poll(), "irisd ended")
                self.assertLess(time.monotonic(), end, "irisd does not answer")
            ran = subprocess.run([f"{bundle}/bin/iris-run", "-n", str(n_ranks), "--", *program], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE_SECONDS,
                                 env=environment)
            return ran.returncode, ran.stdout
        finally:
            daemon.terminate()
            self.assertEqual(daemon.wait(PATIENCE_SECONDS), 0)
