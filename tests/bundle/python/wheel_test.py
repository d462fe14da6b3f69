"""The wheel of the bundle: pip installs it into an empty environment, without an index, and two ranks sum with it.
And the folder of a release, which deploy/release.sh makes of the bundle."""

import csv
import filecmp
import glob
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import time
import unittest
import zipfile

from tests.bundle import bundle_case
from tests.python import junit

PROGRAM = """
import iris
assert iris.__file__.startswith("{place}"), iris.__file__
with iris.Context(1 << 24) as context:
    print("sum", context.all_reduce(context.full((3,), context.rank + 1)).tolist())
    context.barrier()
"""


def has(module):
    return importlib.util.find_spec(module) is not None


class Wheel(bundle_case.BundleCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.wheel = cls.make(cls.first, "wheels")

    @classmethod
    def make(cls, bundle, name):
        folder = os.path.join(cls.folder, name)
        said = subprocess.run([sys.executable, f"{bundle}/share/iris/wheel.py", bundle, folder],
                              stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        (path,) = glob.glob(folder + "/*.whl")
        assert said == path, said
        return path

    def test_its_name_and_record(self):
        version = os.path.basename(self.first).split("-")[1]
        self.assertEqual(os.path.basename(self.wheel),
                         f"iris_symm-{version}-py3-none-manylinux_2_35_x86_64.whl")
        with zipfile.ZipFile(self.wheel) as wheel:
            self.assertIsNone(wheel.testzip())
            names = wheel.namelist()
            self.assertEqual(len(names), len(set(names)))
            (record,) = [name for name in names if name.endswith("/RECORD")]
            rows = list(csv.reader(wheel.read(record).decode().splitlines()))
            self.assertEqual([row[0] for row in rows], names)
            for name in ("iris/__init__.py", "iris/py.typed", "iris/_bundle/lib/libiris.so",
                         "iris/_bundle/lib/libiris_emu.so", "iris/_bundle/bin/iris-run",
                         "iris/_bundle/libexec/iris/irisd-worker", "iris/_bundle/libexec/iris/irisd-port"):
                self.assertIn(name, names)
            self.assertIn(f"Version: {version}\n", wheel.read(record.replace("RECORD", "METADATA")).decode())

    def test_the_same_bundle_gives_the_same_bytes(self):
        with open(self.wheel, "rb") as one, open(self.make(self.second, "again"), "rb") as other:
            self.assertEqual(one.read(), other.read())

    def test_what_is_no_bundle_is_refused(self):
        result = subprocess.run([sys.executable, f"{self.first}/share/iris/wheel.py", self.folder, self.folder],
                                stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("is no unpacked bundle", result.stderr)

    @unittest.skipUnless(has("pip") and has("numpy"), "pip or numpy is not installed")
    def test_pip_installs_it_and_two_ranks_sum(self):
        place = os.path.join(self.folder, "venv")
        bundle = self.unpack("gone")
        wheel = self.make(bundle, "from-gone")
        self.run_ok(sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", place)
        python = f"{place}/bin/python"
        self.run_ok(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-cache-dir",
                    "--disable-pip-version-check", wheel)
        # Nothing of the bundle that it was made of is there any more.
        shutil.rmtree(bundle)
        program = os.path.join(self.folder, "program.py")
        with open(program, "w", encoding="utf-8") as file:
            file.write(PROGRAM.format(place=place))
        runtime_dir = os.path.join(self.folder, "run")
        os.mkdir(runtime_dir)
        environment = bundle_case.clean_environment(IRIS_RUNTIME_DIR=runtime_dir)
        daemon = subprocess.Popen([f"{place}/bin/irisd", "--runtime-dir", runtime_dir, "--backend", "emu",
                                   "--emu-devices", "2", "--emu-memory", "64MiB", "--no-self-check"],
                                  env=environment, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + bundle_case.PATIENCE_SECONDS
            while not os.path.exists(os.path.join(runtime_dir, "session.sock")):
                self.assertIsNone(daemon.poll(), "irisd ended")
                self.assertLess(time.monotonic(), end, "irisd does not start")
                time.sleep(0.01)
            said = self.run_ok(python, "-m", "iris.run", "-n", "2", program,
                               environment=dict(environment, IRIS_HEAP_BYTES="16M"))
            self.assertEqual(said.count("sum [3, 3, 3]"), 2, said)
            self.assertIn("iris-ctl", self.run_ok(f"{place}/bin/iris-ctl", "--help", environment=environment))
        finally:
            daemon.terminate()
            self.assertEqual(daemon.wait(60), 0)
        self.run_ok(sys.executable, "-m", "pip", "--python", python, "uninstall", "-y", "iris-symm")
        self.assertEqual(glob.glob(f"{place}/lib/python*/site-packages/iris*"), [])

    def release(self, *arguments):
        return subprocess.run(["deploy/release.sh", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, check=False, timeout=bundle_case.PATIENCE_SECONDS)

    def test_a_release_has_the_bundle_the_wheel_notes_and_checksums(self):
        out = os.path.join(self.folder, "release")
        result = self.release("--out", out, "--bundle", self.archive)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        bundle, wheel = os.path.basename(self.archive), os.path.basename(self.wheel)
        self.assertEqual(sorted(os.listdir(out)), sorted([bundle, wheel, "NOTES.md", "SHA256SUMS"]))
        self.assertEqual(self.run_ok("sha256sum", "--strict", "-c", "SHA256SUMS", cwd=out).splitlines(),
                         [f"{name}: OK" for name in sorted([bundle, wheel, "NOTES.md"])])
        # The other test installs a wheel of these bytes.
        for made, wanted in ((bundle, self.archive), (wheel, self.wheel)):
            self.assertTrue(filecmp.cmp(os.path.join(out, made), wanted, shallow=False), made)
        with open(os.path.join(out, "NOTES.md"), encoding="utf-8") as file:
            notes = file.read()
        self.assertRegex(notes, r"symbols up to glibc 2\.[0-9]+;")
        for name in (bundle, wheel):
            self.assertIn(f"| {name} | {os.path.getsize(os.path.join(out, name))} | ", notes)
        self.assertRegex(notes, r"device backends: .*emu")
        self.assertRegex(notes, r"(?m)^## Changes.*\n\n### \w+\n- ")

    def test_a_release_of_something_else_is_refused(self):
        out = os.path.join(self.folder, "no-release")
        text = os.path.join(self.folder, "text.tar.xz")
        with open(text, "w", encoding="utf-8") as file:
            file.write("not packed")
        empty = os.path.join(self.folder, "empty.tar.xz")
        tarfile.open(empty, "w:xz").close()
        for arguments, said in ((["--bundle", text], "text.tar.xz is no packed tar archive"),
                                (["--bundle", empty], "empty.tar.xz is no bundle of Iris"),
                                (["--bundle", "/none.tar.xz"], "there is no file /none.tar.xz"),
                                (["--bundle", self.archive, "--bundle", self.archive], "two bundles have the name"),
                                (["--bundle", self.archive, "--out", self.folder], "remove it, or name another folder"),
                                (["--bundle"], "--bundle needs a value")):
            with self.subTest(said):
                result = self.release("--out", out, *arguments)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn("release.sh: ", result.stderr)
                self.assertIn(said, result.stderr)
                self.assertFalse(os.path.exists(out))


if __name__ == "__main__":
    junit.main()
