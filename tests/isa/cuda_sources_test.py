"""Compiles every source of the device library for NVIDIA's GPUs, as far as PTX that is not optimized.

That takes a second or two for each, where the build for GPUs takes minutes. It finds what only that compiler knows,
such as a function of the host that a kernel calls: clang and g++ do not mind. Needs nvcc, and no GPU.
"""

import concurrent.futures
import glob
import os
import shutil
import subprocess
import tempfile
import unittest

from tests.python import junit

# As third_party/gpu_toolkits.bzl looks for it.
FOLDERS = (os.environ.get("CUDA_PATH", "") + "/bin", "/usr/local/cuda/bin",
           "/usr/local/lib/iris/wheels/nvidia/cu13/bin")
# matmul.cc is for one kind of GPU: matmul_test compiles it.
FOLDERS_OF_SOURCES = ("backend/cuda", "collective", "collective/variants", "fill", "moe", "nodes", "norm",
                      "norm/variants", "ops", "ops/variants", "port", "rounds")
PLANTED = """
#include "iris/device.h"
constexpr int OfTheHost(int x) { return x + 1; }
IRIS_KERNEL void Kernel(int* x) { *x = OfTheHost(*x); }
"""


def find(program):
    return shutil.which(program) or next((found for folder in FOLDERS if (found := shutil.which(program, path=folder))),
                                         None)


def sources(folder):
    return sorted(path for path in glob.glob(f"device/iris/{folder}/*.cc")
                  if not path.endswith(("_test.cc", "test_support.cc")))


class CudaSources(unittest.TestCase):

    def setUp(self):
        self.nvcc = find("nvcc")
        if self.nvcc is None:
            self.skipTest("no nvcc on this machine")
        folder = tempfile.TemporaryDirectory(prefix="iris-cuda-sources-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def compile(self, path):
        """What the compiler says, and whether that is the end of it."""
        out = os.path.join(self.folder, path.replace("/", "_") + ".ptx")
        # -G: nothing is optimized.
        command = [self.nvcc, "-x", "cu", "-std=c++20", "-G", "-ptx", "-arch=compute_90", "-Werror=all-warnings",
                   "-DIRIS_KERNELS=cuda", "-DIRIS_BACKEND_CUDA=1", "-Iclient", "-Idevice", "-I.", path, "-o", out]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              timeout=600)
        return done.returncode, done.stdout

    def test_every_source_compiles(self):
        found = {folder: sources(folder) for folder in FOLDERS_OF_SOURCES}
        self.assertEqual([], [folder for folder, paths in found.items() if not paths])
        paths = [path for paths in found.values() for path in paths]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for path, (code, said) in zip(paths, pool.map(self.compile, paths)):
                with self.subTest(path):
                    self.assertEqual(0, code, said)

    def test_a_planted_call_of_the_host_is_found(self):
        path = os.path.join(self.folder, "planted.cc")
        with open(path, "w", encoding="utf-8") as file:
            file.write(PLANTED)
        code, said = self.compile(path)
        self.assertNotEqual(0, code)
        self.assertIn("OfTheHost", said)


if __name__ == "__main__":
    junit.main()
