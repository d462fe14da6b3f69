"""Compiles the matrix kernels for Hopper, and asserts what their speed rests on.

The compiler serializes wgmma where it does not understand the registers, and only says so among its informations: a
kernel that is then three times as slow still computes. So the informations are read here. Needs a toolkit of NVIDIA's,
and no GPU.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from tests.python import junit

SOURCE = "device/iris/backend/cuda/matmul/matmul.cc"
# As third_party/gpu_toolkits.bzl looks for it.
FOLDERS = (os.environ.get("CUDA_PATH", "") + "/bin", "/usr/local/cuda/bin",
           "/usr/local/lib/iris/wheels/nvidia/cu13/bin")
GPU = "90a"
# Of the warps that load and store, which have 40 registers each.
MOST_SPILLED_BYTES = 240
# C7510 and its neighbours: wgmma is serialized, or the numbers of registers are not as asked for.
BAD_INFORMATION = r"\(C75\d\d\)"
# What every kernel must have: the instruction, and how often at least.
INSTRUCTIONS = {
    r"wgmma\.mma_async": 4,
    r"cp\.async\.bulk\.tensor\.2d\.shared::cluster": 2,
    r"cp\.async\.bulk\.tensor\.2d\.global": 1,
    r"mbarrier\.try_wait": 4,
}


def find(program):
    return shutil.which(program) or next((found for folder in FOLDERS if (found := shutil.which(program, path=folder))),
                                         None)


def kernels(ptx):
    """The text of each kernel that multiplies, by its name."""
    parts = re.split(r"^\.visible \.entry (\w+)", ptx, flags=re.MULTILINE)
    return {name: text for name, text in zip(parts[1::2], parts[2::2]) if "MatmulKernel" in name}


def what_is_missing(ptx):
    found = kernels(ptx)
    wrong = [] if len(found) == 16 else [f"{len(found)} kernels instead of 16"]
    for name, text in found.items():
        for pattern, least in INSTRUCTIONS.items():
            count = len(re.findall(pattern, text))
            if count < least:
                wrong.append(f"{name}: {count} of {pattern!r}, at least {least} expected")
        # Wider orders at the barriers of a block cost a third of the speed.
        wrong += [f"{name}: {line}" for line in re.findall(r"mbarrier\.\S*\.(?:acquire|release)\.\S*", text)]
        # A call in the way of the matrix instructions serializes them.
        wrong += [f"{name}: {line}" for line in re.findall(r"^\s*call\.\S+.*", text, flags=re.MULTILINE)]
    return wrong


def what_is_said(report):
    """The complaints in the report of the assembler."""
    wrong = [line for line in report.splitlines() if re.search(BAD_INFORMATION, line)]
    for stored, loaded in re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report):
        if int(stored) + int(loaded) > MOST_SPILLED_BYTES:
            wrong.append(f"{stored} bytes spilled, {loaded} loaded")
    return wrong


class Hopper(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        nvcc, ptxas = find("nvcc"), find("ptxas")
        if nvcc is None or ptxas is None:
            raise unittest.SkipTest("no nvcc on this machine")
        cls.folder = tempfile.TemporaryDirectory(prefix="iris-matmul-", dir="/tmp")
        cls.addClassCleanup(cls.folder.cleanup)
        path = os.path.join(cls.folder.name, "matmul.ptx")
        cls.run_tool([nvcc, "-x", "cu", "-std=c++17", "-O3", "-Werror=all-warnings", f"-gencode=arch=compute_{GPU},"
                      f"code=compute_{GPU}", "-Idevice", "-ptx", SOURCE, "-o", path])
        with open(path, encoding="utf-8") as file:
            cls.ptx = file.read()
        cls.ptxas = ptxas

    @staticmethod
    def run_tool(command):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              timeout=600)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}\n{done.stdout}")
        return done.stdout

    def assemble(self, ptx):
        path = os.path.join(self.folder.name, "assembled.ptx")
        with open(path, "w", encoding="utf-8") as file:
            file.write(ptx)
        return self.run_tool([self.ptxas, "-v", f"-arch=sm_{GPU}", path, "-o", path + ".cubin"])

    def test_every_kernel_has_the_instructions_that_it_is_for(self):
        self.assertEqual([], what_is_missing(self.ptx))

    def test_the_assembler_serializes_nothing_and_spills_little(self):
        report = self.assemble(self.ptx)
        self.assertGreaterEqual(len(re.findall(r"bytes spill stores", report)), 16, report)
        self.assertEqual([], what_is_said(report))

    def test_planted_accumulators_that_are_read_too_early(self):
        """Without the wait behind its loop, a kernel's results are used while the instructions still write them."""
        parts = re.split(r"(?=^\.visible \.entry)", self.ptx, flags=re.MULTILINE)
        smallest = min((part for part in parts[1:] if "wgmma" in part), key=len)
        planted = smallest.replace("wgmma.wait_group.sync.aligned 0;", "")
        self.assertNotEqual(smallest, planted)
        self.assertTrue(what_is_said(self.assemble(parts[0] + planted)))

    def test_planted_call_and_order(self):
        planted = self.ptx.replace("mbarrier.try_wait.parity", "mbarrier.try_wait.parity.acquire.cluster", 1)
        self.assertTrue(what_is_missing(planted))
        self.assertTrue(what_is_missing(self.ptx.replace("wgmma.mma_async", "mma")))


if __name__ == "__main__":
    junit.main()
