"""The bundle as a user has it: unpacked, moved, built against with CMake and with pkg-config, run, and checked."""

import glob
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import unittest

from tests.bundle import bundle_case
from tests.bundle.bundle_case import PATIENCE_SECONDS, clean_environment
from tests.docs import links
from tests.python import junit

# As deploy/setup.sh has it.
WHEELS = "/usr/local/lib/iris/wheels"

# The machine's own: C and C++ libraries, whatever else of them there is.
OF_THE_MACHINE = re.compile(r"(linux-vdso|ld-linux-x86-64|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so")


class Bundle(bundle_case.BundleCase):

    def elf_files(self, root):
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                if not os.path.islink(path) and not name.endswith(".a"):
                    with open(path, "rb") as file:
                        if file.read(4) == b"\x7fELF":
                            yield path

    def check_hello(self, bundle, program):
        out = self.run_two_ranks(bundle, program)
        self.assertEqual(sorted(out.splitlines()), ["[0] rank 0 got 101", "[1] rank 1 got 100"])

    def test_is_small(self):
        """Without the programs for GPUs: size_test looks at the whole."""
        self.assertLess(os.path.getsize(self.archive), 15 << 20)
        self.assertLess(os.path.getsize(self.archive_for_users()), 14 << 20)

    def archive_for_users(self):
        return self.archive.replace(".tar.xz", "-user.tar.xz")

    def test_the_archive_for_users_has_all_but_the_tests_and_benchmarks(self):
        with tarfile.open(self.archive_for_users()) as tar:
            names = tar.getnames()
        with tarfile.open(self.archive) as tar:
            others = set(tar.getnames()) - set(names)
        self.assertEqual(len(names), len(set(names)))
        self.assertTrue(any("/libexec/iris/emu/examples/" in name for name in names))
        for name in sorted(others):
            # A library goes if only tests need it.
            self.assertRegex(name, r"/(bin/iris-gpu-check|libexec/iris/(tests|emu/tests|emu/bench)/.*|"
                                   r"lib/lib(?!iris)[^/]*)$")
        self.assertFalse([name for name in names if "/tests/" in name or "/bench/" in name])
        path = os.path.join(self.folder, "user")
        with tarfile.open(self.archive_for_users()) as tar:
            tar.extractall(path)
        (top,) = os.listdir(path)
        for file in self.elf_files(f"{path}/{top}"):
            with self.subTest(file):
                self.assertNotIn("not found", self.run_ok("ldd", file))

    def test_needs_nothing_of_the_machine_but_c_and_cpp(self):
        lib = os.path.join(self.first, "lib")
        self.assertEqual([n for n in os.listdir(lib) if OF_THE_MACHINE.match(n)], [])
        files = list(self.elf_files(self.first))
        self.assertGreater(len(files), 15)
        for path in files:
            for line in self.run_ok("ldd", path).splitlines():
                name, _, found = line.strip().partition(" => ")
                if name == "statically linked" or OF_THE_MACHINE.match(os.path.basename(name.split(" ")[0])):
                    continue
                real = os.path.realpath(found.split(" (")[0])
                self.assertTrue(real.startswith(os.path.realpath(lib) + "/"), f"{path}: {line}")

    def test_programs_have_grpc_in_them(self):
        for name in ("bin/irisd", "bin/iris-ctl", "bin/iris-run", "libexec/iris/irisd-worker",
                     "libexec/iris/irisd-port"):
            needed = self.run_ok("readelf", "-d", f"{self.first}/{name}")
            self.assertNotRegex(needed, r"NEEDED.*lib(grpc|absl|protobuf|iris)")

    def test_has_the_licences_of_what_is_in_it(self):
        doc = f"{self.first}/share/doc/iris"
        self.assertTrue(os.path.exists(f"{doc}/LICENSE"))
        with open(f"{doc}/third_party/NOTICE", encoding="utf-8") as file:
            packages = re.findall(r"(?m)^(\S+) \d\S*$", file.read())
        for package in ("libgrpc-dev", "libprotobuf-dev", "libabsl20220623", "libboost-context1.74-dev"):
            self.assertIn(package, packages)
        for package in packages:
            self.assertTrue(os.path.exists(f"{doc}/third_party/{package}.txt"), package)

    def test_every_link_of_its_pages_leads_somewhere(self):
        pages = sorted(links.pages(self.first))
        self.assertIn("README.md", pages)
        self.assertIn("share/doc/iris/tutorial.md", pages)
        self.assertEqual([], links.broken(self.first, pages))

    def test_a_project_finds_it_with_cmake(self):
        if not shutil.which("cmake", path="/usr/local/bin:/usr/bin:/bin"):
            self.fail("cmake is missing; deploy/setup.sh installs it")
        project = self.project("cmake project")
        self.run_ok("cmake", "-S", project, "-B", f"{project}/build", f"-DCMAKE_PREFIX_PATH={self.first}")
        self.run_ok("cmake", "--build", f"{project}/build")
        self.check_hello(self.first, f"{project}/build/hello")
        for program in ("hello_c", "hello_host"):
            with self.subTest(program):
                out = self.run_two_ranks(self.first, f"{project}/build/{program}")
                self.assertEqual(sorted(out.splitlines()), ["[0] rank 0 got 201", "[1] rank 1 got 201"])

    def test_its_examples_are_a_project(self):
        build = os.path.join(self.folder, "examples")
        self.run_ok("cmake", "-S", f"{self.second}/share/iris/examples", "-B", build)
        self.run_ok("cmake", "--build", build, "--target", "01_hello_heap")
        self.assertIn("rank 1 says", self.run_two_ranks(self.second, f"{build}/01_hello_heap"))

    def test_cmake_refuses_another_version(self):
        project = self.project("too-new")
        with open(f"{project}/CMakeLists.txt", "w", encoding="utf-8") as file:
            file.write("cmake_minimum_required(VERSION 3.16)\nproject(p CXX)\nfind_package(Iris 99 REQUIRED)\n")
        result = subprocess.run(["cmake", "-S", project, "-B", f"{project}/build", f"-DCMAKE_PREFIX_PATH={self.first}"],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                                timeout=PATIENCE_SECONDS, env=clean_environment())
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("99", result.stdout)

    def test_a_project_finds_it_with_pkg_config_elsewhere(self):
        project = self.project("pkg-config")
        environment = clean_environment(PKG_CONFIG_PATH=f"{self.second}/lib/pkgconfig")
        flags = self.run_ok("pkg-config", "--cflags", "--libs", "iris-device-emu", environment=environment).split()
        self.run_ok("g++", "-std=c++17", f"{project}/hello.cc", *flags, "-o", f"{project}/hello")
        self.check_hello(self.second, f"{project}/hello")
        flags = self.run_ok("pkg-config", "--cflags", "--libs", "iris", environment=environment).split()
        self.run_ok("gcc", "-std=c11", f"{project}/hello.c", *flags, "-o", f"{project}/hello_c")
        self.assertIn("rank 1 got 201", self.run_two_ranks(self.second, f"{project}/hello_c"))

    def test_a_program_with_an_abseil_of_its_own(self):
        project = self.project("absl")
        environment = clean_environment(PKG_CONFIG_PATH=f"{self.second}/lib/pkgconfig")
        flags = self.run_ok("pkg-config", "--cflags", "--libs", "iris", "absl_status", "absl_strings",
                            environment=environment).split()
        self.run_ok("g++", "-std=c++17", f"{project}/hello_absl.cc", *flags, "-o", f"{project}/hello_absl")
        out = self.run_two_ranks(self.second, f"{project}/hello_absl")
        self.assertEqual(sorted(out.splitlines()), ["[0] rank 1 spoke", "[1] rank 1 spoke"])

    def test_thread_sanitizer_sees_the_races_of_the_program_alone(self):
        project = self.project("tsan")
        environment = clean_environment(PKG_CONFIG_PATH=f"{self.second}/lib/pkgconfig")
        flags = self.run_ok("pkg-config", "--cflags", "--libs", "iris", environment=environment).split()
        program = f"{project}/two_threads"
        self.run_ok("clang-19", "-std=c11", "-g", "-fsanitize=thread", f"{project}/two_threads.c", "-pthread", *flags,
                    "-o", program)
        suppressions = {"TSAN_OPTIONS": f"suppressions={self.second}/share/iris/tsan.supp"}
        race = "WARNING: ThreadSanitizer: data race"
        code, out = self.try_ranks(1, self.second, program, **suppressions)
        self.assertEqual((code, out.count("got 3"), out.count(race)), (0, 2, 0), out)
        code, out = self.try_ranks(1, self.second, program, "race", **suppressions)
        self.assertNotEqual(code, 0, out)
        self.assertEqual(out.count(race), 1, out)
        # The file is needed: without it, correct synchronization inside the library is reported.
        code, out = self.try_ranks(1, self.second, program)
        self.assertNotEqual(code, 0, out)
        self.assertIn(race, out)

    def check_python(self, when, *modules, **variables):
        """A job of Python whose processes have the modules, too."""
        script = os.path.realpath("tests/bundle/python_job.py")
        out = self.run_two_ranks(self.second, "/usr/bin/python3", script, f"{self.second}/lib/libiris.so", when,
                                 *modules, **variables)
        self.assertEqual(sorted(out.splitlines()), ["[0] sum of the last 1998.0", "[1] sum of the last 1998.0"])

    def test_a_process_of_python_alone(self):
        self.check_python("before")

    def test_a_process_of_python_with_libraries_of_its_own(self):
        # Debian's, before libiris.so and after it.
        modules = [f"{module}@/usr/lib/python3/" for module in ("grpc", "google.protobuf", "torch")]
        for when in ("before", "after"):
            with self.subTest(when):
                self.check_python(when, *modules)

    def test_a_process_of_python_with_wheels(self):
        # gRPC and protobuf as the Python Package Index has them, torch as Debian has it.
        if not os.path.exists(f"{WHEELS}/wheels.txt"):
            self.skipTest(f"no packages of the Python Package Index are in {WHEELS}: deploy/setup.sh fetches them, "
                          "where pip can reach its index")
        modules = [f"grpc@{WHEELS}/", f"google.protobuf@{WHEELS}/", "torch@/usr/lib/python3/"]
        for when in ("before", "after"):
            with self.subTest(when):
                self.check_python(when, *modules, PYTHONPATH=WHEELS)

    def test_programs_map_few_libraries_of_ours(self):
        found = self.run_ok("ldd", f"{self.second}/libexec/iris/emu/examples/01_hello_heap")
        ours = [line for line in found.splitlines() if os.path.realpath(self.second) in line]
        self.assertLessEqual(len(ours), 15)
        self.assertEqual({line.split()[0] for line in ours}, {"libiris.so.0", "libiris_emu.so.0"})

    def test_checks_itself(self):
        """The script for GPU machines, on emulated devices."""
        out = os.path.join(self.folder, "out")
        os.makedirs(out)
        text = self.run_ok(f"{self.second}/bin/iris-gpu-check", "--backend", "emu", "--quick",
                           environment=clean_environment(OUT=out))
        self.assertRegex(text, r"(?m)^(\d+) passed, 0 failed\n\Z")
        self.assertRegex(text, r"(?m)^passed +barrier_test on 2 +\d+ passed, 0 failed, 0 skipped, ")
        for line in ("iris-ctl doctor", "05_all_reduce on 2", "training on 2", "training on 2, loss as on emu",
                     "peek on 2, ranks 0 and 1", "waits on 2, stopped in an all-reduce",
                     "waits on 2, stopped in a host barrier", "waits on 2, stopped before an allocation",
                     "kill -9 of a rank of 2, puts", "kill -9 of a rank of 2, collectives",
                     "kill -9 of a rank of 2, products",
                     "kill -9 of irisd under 2 ranks"):
            self.assertRegex(text, rf"(?m)^passed +{re.escape(line)}  ")
        nodes = os.geteuid() == 0 and os.path.exists("/usr/local/lib/iris/ucx")
        for line in ("04_message_passing", "05_all_reduce", "10_digits_training", "17_moe_layer",
                     "18_gpt_step") if nodes else ():
            self.assertRegex(text, rf"(?m)^passed +{line} on 2, two nodes  ")
        self.assertRegex(text, r"(?m)^skipped +torch's memory on 2 +torch's pools are for GPUs")
        # What it runs with a GPU machine's torch and Triton:
        topics = ("collectives", "host", "platform", "programs", "tiles")
        for name in ("foreign_ranks.py", "ranks.py", *(f"reference_{topic}_ranks.py" for topic in topics)):
            self.assertTrue(os.path.isfile(f"{self.second}/libexec/iris/tests/python/{name}"), name)
        with open(f"{out}/iris-gpu-check.txt", encoding="utf-8") as file:
            self.assertEqual(file.read(), text)

    def test_the_check_reports_what_fails(self):
        broken = self.unpack("broken")
        example = f"{broken}/libexec/iris/emu/examples/02_put_get"
        with open(example, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho broken on purpose\nexit 7\n")
        result = subprocess.run([f"{broken}/bin/iris-gpu-check", "--backend", "emu", "--quick", "--only", "examples"],
                                stdout=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_SECONDS,
                                env=clean_environment())
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertRegex(result.stdout, r"(?m)^failed +02_put_get on 2 +exit code 7")
        self.assertIn("broken on purpose", result.stdout)
        self.assertRegex(result.stdout, r"(?m)^\d+ passed, 1 failed\n\Z")


if __name__ == "__main__":
    junit.main()
