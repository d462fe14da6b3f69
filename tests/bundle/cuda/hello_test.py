"""The same hello in CUDA, compiled against the bundle with CMake and with pkg-config. No GPU is asked for: on an irisd
with emulated devices the program is told what it is for."""

import os
import shutil

from tests.bundle import bundle_case
from tests.bundle.bundle_case import clean_environment
from tests.python import junit


class Cuda(bundle_case.BundleCase):

    def nvcc(self):
        with open("tests/bundle/cuda/nvcc.txt", encoding="utf-8") as file:
            path = file.read().strip()
        if not path:
            self.skipTest("the bundle was built without a compiler of CUDA: CUDA_PATH says where one is, and "
                          "deploy/setup.sh fetches one, where pip can reach its index")
        return path

    def project_in_cuda(self, name):
        project = self.project(name)
        shutil.move(f"{project}/hello.cc", f"{project}/hello.cu")
        shutil.copy("tests/bundle/cuda/CMakeLists.txt", project)
        return project

    def check_hello(self, bundle, program):
        self.assertTrue(os.access(program, os.X_OK))
        code, out = self.try_two_ranks(bundle, program)
        self.assertNotEqual(code, 0, out)
        for rank in range(2):
            self.assertRegex(
                out, rf"(?m)^\[{rank}\] FAILED_PRECONDITION: .* built for the backend 'cuda'.*link iris-device-emu")

    def test_a_project_finds_it_with_cmake(self):
        nvcc = self.nvcc()
        project = self.project_in_cuda("cmake project")
        self.run_ok("cmake", "-S", project, "-B", f"{project}/build", f"-DCMAKE_PREFIX_PATH={self.first}",
                    f"-DCMAKE_CUDA_COMPILER={nvcc}")
        self.run_ok("cmake", "--build", f"{project}/build")
        self.check_hello(self.first, f"{project}/build/hello")

    def test_a_project_finds_it_with_pkg_config(self):
        nvcc = self.nvcc()
        project = self.project_in_cuda("pkg-config")
        environment = clean_environment(PKG_CONFIG_PATH=f"{self.second}/lib/pkgconfig")
        flags = self.run_ok("pkg-config", "--cflags", "--libs", "iris-device-cuda", environment=environment).split()
        # As the bundle's README says.
        flags = [flag.replace("-Wl,", "-Xlinker=") for flag in flags]
        self.run_ok(nvcc, "-std=c++17", "-arch=sm_90", f"{project}/hello.cu", *flags, "-o", f"{project}/hello")
        self.check_hello(self.second, f"{project}/hello")


if __name__ == "__main__":
    junit.main()
