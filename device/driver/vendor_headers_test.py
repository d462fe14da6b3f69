"""Compares the drivers' declarations of the vendors' libraries with the vendors' headers, if installed."""

import glob
import os
import shutil
import subprocess
import tempfile
import unittest

from tests.python import junit

SOURCE = "device/driver/testing/vendor_headers.cc"
CUDA_HEADERS = [os.path.join(os.environ.get("CUDA_PATH", "/usr/local/cuda"), "include"), "/usr/include"]
HIP_HEADERS = [os.path.join(os.environ.get("ROCM_PATH", "/opt/rocm"), "include"), "/usr/include"]


def find(folders, header):
    return next((folder for folder in folders if os.path.exists(os.path.join(folder, header))), None)


def compile_errors(flags, root="."):
    done = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", f"-I{root}", *flags, SOURCE],
                          capture_output=True, text=True, timeout=300, check=False)
    return "" if done.returncode == 0 else done.stderr or "failed without a word"


class VendorHeadersTest(unittest.TestCase):

    def cuda_flags(self):
        folder = find(CUDA_HEADERS, "cuda.h")
        if folder is None:
            self.skipTest("no cuda.h here")
        return ["-DWITH_CUDA", f"-I{folder}"]

    def hip_flags(self):
        folder = find(HIP_HEADERS, "hip/hip_runtime_api.h")
        if folder is None:
            self.skipTest("no hip/hip_runtime_api.h here")
        return ["-DWITH_HIP", "-D__HIP_PLATFORM_AMD__", f"-I{folder}"]

    def test_cuda(self):
        self.assertEqual(compile_errors(self.cuda_flags()), "")

    def test_hip(self):
        self.assertEqual(compile_errors(self.hip_flags()), "")

    def expect_found(self, flags, header, right, wrong, named):
        """Checks that our header does not compile with one mistake in it."""
        with tempfile.TemporaryDirectory() as root:
            folder = os.path.join(root, "device", "driver")
            os.makedirs(folder)
            for path in glob.glob("device/driver/*.h"):
                shutil.copy(path, folder)
            path = os.path.join(folder, header)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            self.assertIn(right, text)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace(right, wrong, 1))
            self.assertRegex(compile_errors(flags, root), f"static assertion failed: .*{named}")

    def test_a_wrong_argument_is_found(self):
        self.expect_found(self.cuda_flags(), "hip_api.h", "(*hipMemRelease)(hipMemGenericAllocationHandle_t)",
                          "(*hipMemRelease)(unsigned)", "cuMemRelease")
        self.expect_found(self.cuda_flags(), "hip_api.h", "(*hipDeviceGetUuid)(hipUUID*,",
                          "(*hipDeviceGetUuid)(int*,", "cuDeviceGetUuid")

    def test_a_wrong_number_is_found(self):
        self.expect_found(self.hip_flags(), "hip_api.h", "hipErrorNotSupported = 801", "hipErrorNotSupported = 802",
                          "hipErrorNotSupported")


if __name__ == "__main__":
    junit.main()
